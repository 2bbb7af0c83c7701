"""Verify finds nothing in what a correct broker did, by chance, a hundred times; and each planted fault, exactly.

The histories come from oracle/delivery.py. Many of them are judged by one job: `run` keeps them apart.
"""
from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from kit import histories as kit
from kit.html import page_of
from kit.sizes import some
from kit.tree import ROOT
from oracle.delivery import TICK_NS, History, Row, Simulation, as_text

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

HISTORIES, HISTORIES_LONG = 100, 1000

# Spark starts, and its first jobs are compiled, in the first test: of a machine with other work that takes minutes. A
# test that is broken off leaves the connection to Java useless for all others.
pytestmark = pytest.mark.timeout(500)


def found(spark: SparkSession, histories: dict[str, History]) -> tuple[list[Any], dict[str, int]]:
    from fluxmq.spark.verify.violations import counts, judged, violations

    events = kit.frame(spark, histories)
    tables = judged(events)
    return violations(tables).collect(), counts(tables, events)


# A seed does not get simpler by shrinking.
@pytest.mark.parametrize("count", some(1, [HISTORIES, HISTORIES_LONG]))
@settings(max_examples=1, deadline=None, database=None, phases=[Phase.generate],
          suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(seed=st.integers(0, 2**40))
def test_nothing_is_found_in_what_a_correct_broker_did(spark: SparkSession, count: int, seed: int) -> None:
    histories = {str(seed + number): Simulation(seed + number).run() for number in range(count)}
    rows, counted = found(spark, histories)
    assert not rows, f"{rows[0]}\n" + as_text(histories[rows[0].run])
    # It was no empty exercise: there was something that had to be, through subscriptions and through groups.
    assert counted["must"] == counted["must_delivered"] > 20
    assert counted["group_must"] > 20 and counted["may_delivered"] > 200


# ── planted faults ───────────────────────────────────────────────────────────────────────────────────────────


class Scene:
    """Everybody subscribes, then everything is published one after the other: every delivery is one that must be."""

    def __init__(self) -> None:
        self.rows: History = []
        self.now = 0
        self.ops: dict[int, int] = {}
        self.arrivals: dict[int, int] = {}

    def op(self, event: str, client: int, **more: Any) -> Row:
        self.now += 2
        row: Row = {"event": event, "client": f"c{client}", "client_number": client, "connection": 0,
                    "op": self.ops.get(client, 0), "sent": self.now * TICK_NS, "acked": (self.now + 1) * TICK_NS,
                    "reason": 0, **more}
        self.ops[client] = row["op"] + 1
        self.rows.append(row)
        return row

    def connect(self, *clients: int, clean: bool = True, expiry_s: int = 0, connection: int = 0,
                present: bool = False) -> None:
        for client in clients:
            self.op("connect", client, connection=connection, detail={
                "clean_start": clean, "session_expiry_s": expiry_s, "session_present": present})

    def subscribe(self, client: int, topic_filter: str, qos: int, **options: Any) -> None:
        self.op("subscribe", client, topic=topic_filter, qos=qos, detail={"requested_qos": qos, **options})

    def publish(self, client: int, topic: str, qos: int, *to: int, arrives_qos: int | None = None) -> Row:
        row = self.op("publish", client, topic=topic, qos=qos, retain=False, dup=False, size=16)
        for receiver in to:
            self.arrive(row, receiver, qos if arrives_qos is None else arrives_qos)
        return row

    def arrive(self, publish: Row, receiver: int, qos: int, **more: Any) -> Row:
        self.now += 1
        row: Row = {"event": "delivery", "client": f"c{receiver}", "client_number": receiver, "connection": 0,
                    "op": self.arrivals.get(receiver, 0), "topic": publish["topic"], "qos": qos, "retain": False,
                    "dup": False, "size": 16, "publisher": publish["client_number"], "publisher_op": publish["op"],
                    "sent": self.now * TICK_NS, **more}
        self.arrivals[receiver] = row["op"] + 1
        self.rows.append(row)
        return row


def quiet() -> Scene:
    """c0 publishes; c1 has a/# with QoS 1, c2 two filters that overlap with QoS 2, c3 and c4 share, c5 reads b,
    c6 consumes from a queue."""
    scene = Scene()
    scene.connect(0, 1, 2, 3, 4, 5, 6)
    scene.subscribe(0, "own", 1, no_local=True)
    scene.subscribe(1, "a/#", 1)
    scene.subscribe(2, "a/b", 2)
    scene.subscribe(2, "+/b", 1)
    scene.subscribe(3, "$share/g/a/+", 2)
    scene.subscribe(4, "$share/g/a/+", 2)
    scene.subscribe(5, "b", 2)
    scene.subscribe(6, "$queue/q", 1)
    for number in range(6):
        row = scene.publish(0, "a/b", 2)
        scene.arrive(row, 1, 1)
        scene.arrive(row, 2, 2)
        scene.arrive(row, 3 + number % 2, 2)
    scene.publish(0, "b", 1, 5)
    scene.publish(0, "own", 1)
    scene.publish(0, "$queue/q", 1, 6)
    return scene


def deliveries(scene: Scene, client: int) -> list[Row]:
    return [row for row in scene.rows if row["event"] == "delivery" and row["client_number"] == client]


def lost(scene: Scene) -> None:
    scene.rows.remove(deliveries(scene, 1)[2])


def lost_by_a_group(scene: Scene) -> None:
    scene.rows.remove(deliveries(scene, 3)[1])


def lost_by_a_queue(scene: Scene) -> None:
    scene.rows.remove(deliveries(scene, 6)[0])


def twice(client: int) -> Callable[[Scene], None]:
    def plant(scene: Scene) -> None:
        again = copy.deepcopy(deliveries(scene, client)[3])
        again["op"] += 100
        again["sent"] += 1
        scene.rows.append(again)
    return plant


def twice_with_qos_2(scene: Scene) -> None:
    again = copy.deepcopy(deliveries(scene, 2)[3])
    again |= {"op": again["op"] + 100, "sent": again["sent"] + 1, "dup": True}
    scene.rows.append(again)


def reordered(scene: Scene) -> None:
    one, other = deliveries(scene, 1)[2:4]
    one["publisher_op"], other["publisher_op"] = other["publisher_op"], one["publisher_op"]


def to_a_stranger(scene: Scene) -> None:
    scene.arrive(next(row for row in scene.rows if row["event"] == "publish"), 5, 2)


def to_two_members(scene: Scene) -> None:
    first = deliveries(scene, 3)[0]
    scene.rows.append({**first, "client": "c4", "client_number": 4, "op": 100, "sent": first["sent"] + 1})


def after_unsubscribe(scene: Scene) -> None:
    scene.op("unsubscribe", 5, topic="b")
    scene.publish(0, "b", 1, 5)


def to_its_publisher(scene: Scene) -> None:
    scene.arrive(next(row for row in scene.rows if row.get("topic") == "own" and row["event"] == "publish"), 0, 1)


def with_another_qos(scene: Scene) -> None:
    deliveries(scene, 2)[1]["qos"] = 1


def on_another_topic(scene: Scene) -> None:
    deliveries(scene, 1)[1]["topic"] = "a/c"


def never_published(scene: Scene) -> None:
    deliveries(scene, 5)[0]["publisher_op"] = 77
    scene.rows = [row for row in scene.rows if not (row["event"] == "publish" and row["topic"] == "b")]


def forgotten_while_away(scene: Scene) -> None:
    """A session that is kept, whose client comes back; one of two messages from meanwhile is not there."""
    scene.connect(8, clean=False, expiry_s=1000)
    scene.subscribe(8, "kept", 1)
    scene.op("disconnect", 8)
    lost_one, kept = scene.publish(0, "kept", 1), scene.publish(0, "kept", 1)
    scene.connect(8, clean=False, expiry_s=1000, connection=1, present=True)
    scene.arrive(kept, 8, 1, connection=1)
    assert lost_one["op"] + 1 == kept["op"]


def of_a_session_before(scene: Scene) -> None:
    """What the session before was subscribed to comes to a clean one."""
    scene.connect(8)
    scene.subscribe(8, "kept", 1)
    scene.op("disconnect", 8)
    scene.connect(8, connection=1)
    scene.arrive(scene.publish(0, "kept", 1), 8, 1, connection=1)


FAULTS: dict[str, tuple[Callable[[Scene], None], list[tuple[str, str | None]]]] = {
    "nothing": (lambda scene: None, []),
    "lost": (lost, [("must-missing", "c1")]),
    "lost by a group": (lost_by_a_group, [("must-missing", None)]),
    "lost by a queue": (lost_by_a_queue, [("must-missing", None)]),
    "twice": (twice(1), [("duplicate", "c1")]),
    "QoS 2 twice": (twice_with_qos_2, [("duplicate", "c2")]),
    "one for each filter": (twice(2), [("duplicate", "c2")]),
    "reordered": (reordered, [("order", "c1")]),
    "to a stranger": (to_a_stranger, [("must-not-delivered", "c5")]),
    "to two members": (to_two_members, [("duplicate", "c4")]),
    "after unsubscribe": (after_unsubscribe, [("must-not-delivered", "c5")]),
    "to its publisher": (to_its_publisher, [("must-not-delivered", "c0")]),
    "with another QoS": (with_another_qos, [("must-not-delivered", "c2")]),
    "on another topic": (on_another_topic, [("must-not-delivered", "c1")]),
    "never published": (never_published, [("must-not-delivered", "c5")]),
    "forgotten while away": (forgotten_while_away, [("must-missing", "c8")]),
    "of the session before": (of_a_session_before, [("must-not-delivered", "c8")]),
}


@pytest.fixture(scope="module")
def judged_faults(spark: SparkSession) -> dict[str, list[Any]]:
    """All faults in one job."""
    histories = {}
    for name, (plant, _) in FAULTS.items():
        scene = quiet()
        plant(scene)
        histories[name] = scene.rows
    rows, _ = found(spark, histories)
    return {name: [row for row in rows if row.run == name] for name in FAULTS}


@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_is_found(judged_faults: dict[str, list[Any]], name: str) -> None:
    assert [(row.kind, row.client) for row in judged_faults[name]] == FAULTS[name][1]


def test_the_publish_is_named(judged_faults: dict[str, list[Any]]) -> None:
    row, = judged_faults["lost"]
    publishes = [one for one in quiet().rows if one["event"] == "publish"]
    assert (row.p_client, row.publisher_op, row.p_topic, row.p_sent) == (
        "c0", publishes[2]["op"], "a/b", publishes[2]["sent"])
    row, = judged_faults["to its publisher"]
    assert "No Local" in row.why


# ── the command ──────────────────────────────────────────────────────────────────────────────────────────────


def test_the_command(spark: SparkSession, tmp_path: Path) -> None:
    from fluxmq.spark.verify.command import verify

    right, wrong = quiet(), quiet()
    lost(wrong)
    runner = CliRunner()
    good = runner.invoke(verify, [str(kit.write(tmp_path / "right", right.rows))], standalone_mode=False)
    assert good.exception is None and good.return_value == 0
    assert good.output.endswith("no violation\n") and "13 deliveries expected" in good.output
    bad = runner.invoke(verify, [str(kit.write(tmp_path / "wrong", wrong.rows, complete=False, why="it broke")),
                                 "--out", str(tmp_path / "out")], standalone_mode=False)
    assert bad.exception is None and bad.return_value == 1
    assert "partial: it broke" in bad.output and "violations: 1 (must-missing 1)" in bad.output
    assert "publish: client c0, operation 4, topic a/b, QoS 2" in bad.output
    rows = spark.read.parquet(str(tmp_path / "out")).collect()
    assert [(row.kind, row.client) for row in rows] == [("must-missing", "c1")]


@pytest.mark.parametrize(("broker", "status"), [("a:1883", 1), ("a:1883,b:1883", 0)])
def test_a_retained_message_that_was_replaced_may_come_of_a_cluster(spark: SparkSession, tmp_path: Path, broker: str,
                                                                    status: int) -> None:
    """A node says that it has the new one before the others have it. Of a single broker the old one must not come."""
    from fluxmq.spark.verify.command import verify

    scene = quiet()
    old, _ = (scene.publish(0, "kept", 1) for _ in range(2))
    for row in scene.rows[-2:]:
        row["retain"] = True
    scene.subscribe(5, "kept", 1)
    scene.arrive(old, 5, 1, retain=True)
    said = CliRunner().invoke(verify, [str(kit.write(tmp_path / "r", scene.rows, broker=broker))],
                              standalone_mode=False)
    assert said.exception is None and said.return_value == status
    assert ("must-not-delivered 1" in said.output) == (status == 1)
    assert ("a retained message that was replaced still comes is not judged" in said.output) == (status == 0)


def test_the_report(spark: SparkSession, tmp_path: Path) -> None:
    """Expected stands beside delivered; names are text, and nothing else."""
    from fluxmq.spark.verify.command import verify

    scene, name, shown = quiet(), "c1<script>\x1b", "c1<script>\\x1b"
    lost(scene)
    for row in scene.rows:
        row["client"] = name if row["client_number"] == 1 else row["client"]
        row["topic"] = row["topic"].replace("a/b", "a/<script>") if row.get("topic") else None
    out = tmp_path / "report.html"
    said = CliRunner().invoke(verify, [str(kit.write(tmp_path / "r", scene.rows)), "--html", str(out)],
                              standalone_mode=False)
    assert said.exception is None and said.return_value == 1 and f"The report with its plots: {out}" in said.output
    page = page_of(out.read_text())
    assert page.verdict == ("bad", "violations: 1 (must-missing 1)")
    assert ["deliveries expected", "13"] in page.tables["Deliveries"]
    assert page.tables["By client"][1][0] == shown and page.tables["By client"][1][3:7:3] == ["1", "1"]
    assert page.tables["By topic"][1][0] == "a/<script>" and page.tables["By topic"][1][6] == "1"
    must, there = (sum(int(row[column]) for row in page.tables["By topic"][1:]) for column in (1, 2))
    assert (must, there) == (13, 12)
    assert page.tables["What was found"][1][0].startswith(f"must-missing: client {shown}: subscribed")
    assert [row[:2] for row in page.tables["By protocol"][1:]] == [["not known", "13"]]
    assert "Latency, cumulative" in page.text


@pytest.mark.soak       # test_session.py (test_nothing_stands_before_a_result) plays it in CI
@pytest.mark.parametrize("complete", [True, False])
def test_nothing_to_judge(spark: SparkSession, tmp_path: Path, complete: bool) -> None:
    from fluxmq.spark.verify.command import verify

    connects = [row for row in quiet().rows if row["event"] == "connect"]
    said = CliRunner().invoke(verify, [str(kit.write(tmp_path / "r", connects, complete=complete))],
                              standalone_mode=False)
    assert said.exception is None and said.return_value == 2
    assert said.output.endswith("nothing was proved: no delivery was expected\n")


def test_the_example_of_the_page(spark: SparkSession, tmp_path: Path) -> None:
    from fluxmq.spark.verify.command import verify

    scene = quiet()
    lost(scene)
    to_its_publisher(scene)
    said = CliRunner().invoke(verify, [str(kit.write(tmp_path / "result", scene.rows))], standalone_mode=False)
    page = (ROOT / "docs" / "verify.md").read_text(encoding="utf-8")
    assert said.return_value == 1
    assert said.output.replace(str(tmp_path / "result"), "result") == page.split(
        "$ fluxmq replay verify result\n", 1)[1].split("```", 1)[0]


def test_a_damaged_result_is_one_sentence(spark: SparkSession, tmp_path: Path) -> None:
    from fluxmq.spark.result import ResultError
    from fluxmq.spark.verify.command import verify

    path = kit.write(tmp_path / "r", quiet().rows)
    part = next((path / "events").iterdir())
    whole = part.read_bytes()
    part.write_bytes(whole[:4] + bytes(len(whole) // 3) + whole[4 + len(whole) // 3:])
    said = CliRunner().invoke(verify, [str(path)], standalone_mode=False)
    assert isinstance(said.exception, ResultError) and "\n" not in str(said.exception)
    assert f"the events of {path} cannot be judged: " in str(said.exception)
    part.write_bytes(whole[:-9])
    said = CliRunner().invoke(verify, [str(path)], standalone_mode=False)
    assert isinstance(said.exception, ResultError) and "not a whole Parquet file" in str(said.exception)
