"""Recordings of the nodes of a cluster, replayed as one: the same as if one broker had recorded it all."""
from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner
from kit import histories as kit
from kit.broker import Broker
from kit.stories import chance_story
from kit.story import SECOND, Story, events_of, write_nodes

from fluxmq.record.merging import open_recordings
from fluxmq.record.reading import Recording, open_recording
from fluxmq.spark.player.operations import ACK, OPERATIONS, PUBLISH, SETUP
from fluxmq.spark.replay.plan import nodes_of, plain_plan, plain_survey, plan_recording
from fluxmq.spark.replay.replaying import ReplayRequest, replay_here
from fluxmq.spark.report.side_by_side import recorded_nodes
from fluxmq.spark.result import Summary, open_result

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Rows = list[dict[str, Any]]
QUIET_S = 0.3
MILLI = SECOND // 1000
KEPT: dict[str, Any] = {"clean": False, "properties": {"session_expiry_interval": 600}}


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    one = Broker(tmp_path / "broker").start()
    yield one
    one.stop()
    one.check()


def planned(recording: Recording) -> Rows:
    _, (part,) = plain_plan(recording)
    return [row for batch in part for row in batch.to_pylist()]


def by_client(rows: Rows) -> dict[str, list[tuple[Any, ...]]]:
    """Operations of each client in order, without what the numbers of nodes change."""
    found: dict[str, list[tuple[Any, ...]]] = {}
    for row in rows:
        found.setdefault(row["client"], []).append(
            tuple(row[name] for name in ("kind", "topic", "qos", "retain", "size", "detail", "reason", "rank")))
    return found


@pytest.mark.parametrize("seed", range(6))
def test_the_operations_are_those_of_one_recording(tmp_path: Path, seed: int) -> None:
    """Also what is acknowledged by hand, with ranks that follow from `answers`."""
    story = chance_story(seed, "c")
    story.connect("by-hand")
    got = [story.delivered("by-hand", "t", 1) for _ in range(3)]
    for delivery in (got[1], got[0]):
        story.acknowledge("by-hand", delivery)
    whole = planned(open_recording(story.write(tmp_path / "whole")))
    chance = random.Random(seed)
    places = {row["connection"]: chance.randrange(3) for row in story.rows}
    merged = planned(open_recordings(write_nodes(story, tmp_path / "nodes", places.__getitem__)))
    assert by_client(merged) == by_client(whole)
    assert [row["rank"] for row in merged if row["kind"] == ACK] == [1, 0]
    links = {(old["link"], new["link"]) for old, new in zip(whole, merged, strict=True)}
    assert len(links) == len({old for old, _ in links}) == len({new for _, new in links})
    assert [row["client_number"] for row in merged] == [row["client_number"] for row in whole]
    assert [row["time"] for row in merged] == [row["time"] for row in whole]


def moving() -> Story:
    """A publisher and a subscriber that go from node to node, with sessions that are taken over; connection n is at
    node n % 3. A connection lasts for a second. What depends on another client comes 80 ms later, because the clocks of
    a replay differ by that."""
    story = Story()
    story.connect("watch")                                          # 1
    story.subscribe("watch", ("t/#", 1))
    for turn in range(6):
        at = 1.0 + turn * 0.95
        story.connect("sub", at=at, **KEPT)                         # 2, 4, …
        if not turn:
            story.subscribe("sub", ("t/#", 2))
        story.connect("pub", at=at + 0.004, **KEPT)                 # 3, 5, …
        for number in range(20):
            story.publish("pub", f"t/{turn}", 1 + number % 2, at=at + 0.045 * (number + 2))
    story.publish("pub", "t/last", 1, at=9.0)
    return story


@pytest.mark.parametrize("clocks", [(0, 0, 0), (-40 * MILLI, 0, 40 * MILLI), (300 * MILLI, -300 * MILLI, 0)])
def test_each_client_keeps_its_order_whatever_the_clocks_say(tmp_path: Path, clocks: tuple[int, ...]) -> None:
    story = moving()
    whole = planned(open_recording(story.write(tmp_path / "whole")))
    recording = open_recordings(write_nodes(story, tmp_path / "nodes", lambda number: number % 3, clocks))
    assert by_client(planned(recording)) == by_client(whole)
    plan = plan_recording(plain_survey(recording))
    assert plan.moves.count == 10 and plan.clients == 3
    assert (plan.moves.overlap_ns > 0) == any(clocks) == bool(plan.moves.after)


def judged(spark: SparkSession, **histories: Rows) -> tuple[list[Any], dict[str, int]]:
    """All in one job: Spark plans for longer than it works."""
    from fluxmq.spark.verify.violations import counts, judged, violations

    events = kit.frame(spark, histories)
    tables = judged(events, settle_ns=int(QUIET_S * 1e9))
    return violations(tables).collect(), counts(tables, events)


@pytest.mark.parametrize("speed", [pytest.param(None, marks=pytest.mark.soak), 2.0])
def test_verify_finds_each_message_once(tmp_path: Path, spark: SparkSession, broker: Broker,
                                        speed: float | None) -> None:
    """Published on one node, delivered on another, by and to clients that move: nothing is lost, nothing comes from
    nowhere."""
    place = write_nodes(moving(), tmp_path / "nodes", lambda number: number % 3, (-40 * MILLI, 0, 40 * MILLI))
    summary = replay_here(ReplayRequest(recording=str(place), out=str(tmp_path / "out"), speed=speed, quiet_s=QUIET_S,
                                        broker="{}:{}".format(*broker.address)))
    assert summary.complete, summary.why
    rows = events_of(tmp_path / "out")
    assert summary.counts["publish"] == 121 and not any(row["publisher"] is None for row in rows
                                                        if row["event"] == "delivery")
    got = Counter((row["client"], row["publisher_op"]) for row in rows if row["event"] == "delivery")
    assert {client for client, _ in got} == {"watch", "sub"}
    if speed is None:       # with a speed nobody waits for the subscription of another client
        assert len(got) == 2 * 121
    # Verify sees it when one is missing: what is shown is no accident.
    gone = next(row for row in rows if row["event"] == "delivery" and row["client"] == "watch")
    found, counted = judged(spark, whole=rows, lacking=[row for row in rows if row is not gone])
    assert [(row.run, row.kind) for row in found] == [("lacking", "must-missing")] and counted["must"] >= 200
    assert recorded_nodes(summary)[0].startswith("recorded on n0, n1, n2: clients moved from one to another 10 times; ")


def test_what_the_first_node_found_is_there_first_and_a_later_one_goes_on(tmp_path: Path, broker: Broker) -> None:
    """Recordings begin one after the other: the client of n1 is there before anything is played although n1 began
    later; one that went from n0 to n1 in between connects again, with its subscriptions."""
    story = Story()
    story.there("mover", ("m", 1))                                  # 1, at n0
    story.there("pub")                                              # 2, at n2
    story.publish("mover", "x", 1, at=0.1)
    story.publish("pub", "m", 1, at=0.2)
    story.now = 2.0                                                 # later than that message takes on a slow machine
    story.there("late", ("l", 1))                                   # 3, at n1
    story.there("mover", ("m", 1))                                  # 4, at n1
    story.publish("pub", "m", 1, at=4.0)                            # and than connecting takes
    story.publish("pub", "l", 1)
    nodes = {1: 0, 2: 2, 3: 1, 4: 1}
    recording = open_recordings(write_nodes(story, tmp_path / "nodes", nodes.__getitem__))
    kinds = [(row["client"], row["kind"]) for row in planned(recording)]
    assert sorted(kinds[:3]) == [("late", SETUP), ("mover", SETUP), ("pub", SETUP)]
    assert kinds[3:] == [("mover", PUBLISH), ("pub", PUBLISH), ("mover", SETUP), ("pub", PUBLISH), ("pub", PUBLISH)]
    summary = replay_here(ReplayRequest(recording=str(tmp_path / "nodes"), out=str(tmp_path / "out"), quiet_s=QUIET_S,
                                        broker="{}:{}".format(*broker.address)))
    assert summary.complete, summary.why
    got = Counter((row["client"], row["topic"]) for row in events_of(tmp_path / "out") if row["event"] == "delivery")
    assert got == {("mover", "m"): 2, ("late", "l"): 1}


def amqp(story: Story, connection: int) -> None:
    for direction, kind in (("in", "connection.open"), (None, "accepted"), ("in", "basic.publish"), (None, "closed")):
        story.now += 0.001
        story.rows.append({
            "seq": len(story.rows), "time": story.rows[0]["time"] + int(story.now * SECOND), "connection": connection,
            "protocol": "amqp091", "client_id": f"amqp091-{connection}", "direction": direction, "kind": kind,
            "version": 91, "channel": 1, "exchange": "logs", "topic": "key" if kind == "basic.publish" else None})


def test_amqp_connections_of_two_nodes_are_two_clients(tmp_path: Path) -> None:
    """Each node calls its first one amqp091-1."""
    story = Story()
    story.connect("mqtt")
    amqp(story, 90)
    amqp(story, 91)
    rows = planned(open_recordings(write_nodes(story, tmp_path / "nodes", {1: 2, 90: 0, 91: 1}.__getitem__)))
    assert {row["client"] for row in rows} == {"mqtt", "amqp091-1@n0", "amqp091-1@n1"}
    assert len({row["client_number"] for row in rows}) == len({row["link"] for row in rows}) == 3


def test_spark_plans_the_same(tmp_path: Path, spark: SparkSession) -> None:
    from fluxmq.spark.replay.plan_spark import recorded_rows, spark_operations, spark_survey

    story = moving()
    amqp(story, 90)
    amqp(story, 91)
    recording = open_recordings(write_nodes(story, tmp_path / "nodes", lambda number: number % 3,
                                            (-40 * MILLI, 0, 40 * MILLI)))
    rows = recorded_rows(spark, recording)
    survey, plain = spark_survey(rows, nodes_of(recording)), plain_survey(recording)
    assert (sorted(survey.connections, key=lambda seen: seen.number)
            == sorted(plain.connections, key=lambda seen: seen.number))
    plan, parts = plain_plan(recording, copies=2, partitions=2)
    again = plan_recording(survey, copies=2, partitions=2)
    assert (again.moves, again.places, again.survey.silent) == (plan.moves, plan.places, plan.survey.silent)
    operations = spark_operations(spark, rows, plan)
    assert operations.columns == OPERATIONS.names
    found: list[Rows] = [[] for _ in range(2)]
    for row in operations.selectExpr("spark_partition_id() as place", "*").toArrow().to_pylist():
        found[row.pop("place")].append(row)
    assert found == [[row for batch in part for row in batch.to_pylist()] for part in parts]


def test_the_job_and_the_profile_take_several(tmp_path: Path, spark: SparkSession, broker: Broker) -> None:
    from fluxmq.spark.profile.command import profile
    from fluxmq.spark.replay.command import replay_with_spark

    place = write_nodes(moving(), tmp_path / "nodes", lambda number: number % 3)
    paths = [str(place / f"node=n{node}") for node in (2, 0, 1)]
    shown = CliRunner().invoke(profile, [*paths, "--json"], catch_exceptions=False)
    assert shown.exit_code == 0 and '"clients": 3' in shown.output and '"connections": 13' in shown.output
    summary: Summary = replay_with_spark(spark, ReplayRequest(
        recording=tuple(paths), broker="{}:{}".format(*broker.address), out=str(tmp_path / "out"), speed=None,
        quiet_s=QUIET_S))
    assert summary.complete, summary.why
    assert open_result(tmp_path / "out").summary.recording["nodes"] == ["n0", "n1", "n2"]
    assert summary.counts["delivery"] >= 2 * 121 and summary.counts["subscribe"] == 2
