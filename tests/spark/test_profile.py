"""Profile against plain counting over the same rows, its bad input, and the example of docs/profile.md."""
from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner, Result
from hypothesis import given
from hypothesis import strategies as st
from kit.html import page_of
from kit.recordings import START, make_recording
from kit.tree import ROOT

from fluxmq.record.reading import RecordingError
from fluxmq.spark.profile.command import profile
from fluxmq.spark.profile.summary import quantiles

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SECOND = 1_000_000_000

# Spark starts, and its first jobs are compiled, in the first test: of a machine with other work that takes minutes. A
# test that is broken off leaves the connection to Java useless for all others.
pytestmark = pytest.mark.timeout(500)


def fleet() -> list[dict[str, Any]]:
    """Forty sensors that publish for twelve seconds, two readers, one of which comes and goes, a storm at the end."""
    rows: list[dict[str, Any]] = []

    def row(at_s: float, connection: int, client: str | None, kind: str, direction: str | None = None,
            **more: Any) -> None:
        rows.append({"time": START + int(at_s * SECOND), "connection": connection, "client_id": client, "kind": kind,
                     "direction": direction, "version": 5, **more})

    for number in range(40):
        row(0, 1 + number, None, "opened")
    row(0.5, 50, None, "opened")
    row(0.5, 50, "reader-1", "SUBSCRIBE", "in", bytes=20)
    row(0.6, 51, None, "opened")
    row(0.6, 51, "reader-2", "SUBSCRIBE", "in", bytes=20)
    for second in range(12):
        for number in range(40):
            at, topic = 1 + second + number / 50, f"hall/{number % 4}/sensor-{number}"
            about = {"topic": topic, "qos": 1, "size": 20 + number, "bytes": 50 + number}
            row(at, 1 + number, f"sensor-{number}", "PUBLISH", "in", **about)
            row(at + 0.001, 50, "reader-1", "PUBLISH", "out", **about)
            if number % 4 == 0 and second < 6:
                row(at + 0.001, 51, "reader-2", "PUBLISH", "out", **about)
            row(at + 0.002, 1 + number, f"sensor-{number}", "PUBACK", "out", bytes=4, ack_latency=2_000_000 + number)
    row(7.5, 51, "reader-2", "closed")
    for number in range(30):
        row(14 + number / 100, 100 + number, None, "opened")
    row(14.5, 0, None, "lost", protocol=None, version=None, detail=json.dumps({"entries": 7, "bytes": 700}))
    return sorted(rows, key=lambda one: one["time"])


def run(*arguments: str) -> Result:
    return CliRunner().invoke(profile, list(arguments), standalone_mode=False)


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("profile") / "monday"
    make_recording(path, fleet(), rows_per_part=400)
    return path


@pytest.fixture(scope="module")
def found(spark: SparkSession, recording: Path) -> dict[str, Any]:
    said = run(str(recording), "--json", "--out", str(recording.parent / "tables"))
    assert said.exception is None, said.exception
    loaded: dict[str, Any] = json.loads(said.output)
    return loaded


def test_rows_and_times(found: dict[str, Any]) -> None:
    rows = fleet()
    assert found["rows"] == len(rows) and found["bytes"] == sum(row.get("bytes", 0) for row in rows)
    assert (found["first"], found["last"]) == (rows[0]["time"], rows[-1]["time"])
    assert (found["lost_entries"], found["lost_bytes"]) == (7, 700)
    kinds = Counter((row["kind"], row["direction"], row.get("qos")) for row in rows)
    assert {(one["kind"], one["direction"], one["qos"]): one["rows"] for one in found["kinds"]} == dict(kinds)


def test_rates(found: dict[str, Any]) -> None:
    over = found["over_time"]
    assert over["seconds"] == 15 and over["step_s"] == 1
    published = Counter(row["time"] // SECOND for row in fleet()
                        if row["kind"] == "PUBLISH" and row["direction"] == "in")
    first = START // SECOND
    assert over["published"]["course"] == [published[first + second] for second in range(15)]
    assert over["published"]["max"] == 40 and over["published"]["min"] == 0 and over["published"]["mean"] == 32
    assert over["storms"]["seconds"] == 0 or over["storms"]["worst"][0]["opened"] == 42


def test_topics(found: dict[str, Any]) -> None:
    assert found["topics"] == 40
    assert found["fan_out"]["overall"] == (480 + 60) / 480
    assert found["fan_out"]["min"] == 1.0 and found["fan_out"]["max"] == 1.5
    # The ten of hall 0 went to two readers for half of the time; of equals the name decides.
    assert found["hottest"][0] == {"topic": "hall/0/sensor-0", "published": 12, "delivered": 18, "published_bytes": 240,
                                   "delivered_bytes": 360}
    assert found["subtrees"]["1"][0]["subtree"] == "hall/#" and found["subtrees"]["1"][0]["topics"] == 40
    assert [(one["subtree"], one["topics"], one["published"], one["delivered"]) for one in found["subtrees"]["2"]] == [
        ("hall/0/#", 10, 120, 180), ("hall/1/#", 10, 120, 120), ("hall/2/#", 10, 120, 120), ("hall/3/#", 10, 120, 120)]


def test_sizes_and_latencies(found: dict[str, Any]) -> None:
    sizes = found["size"]["in"]
    assert (sizes["min"], sizes["max"], sizes["p50"]) == (20, 59, 39) and sizes["mean"] == 39.5
    latency = found["ack_latency_ns"]["PUBACK out"]
    assert latency["min"] == 2_000_000 and latency["max"] == 2_000_039
    assert all(abs(latency[name] / 2_000_020 - 1) < 0.011 for name in ("p50", "p99", "mean"))


def test_clients(found: dict[str, Any]) -> None:
    roles = {one["class"]: one["clients"] for one in found["role"]}
    assert roles == {"publishes": 40, "subscribes": 2, "neither": 30}
    assert found["connections"] == 72 and found["ended_within"] == 1
    assert found["lifetime_s"]["p50"] == pytest.approx(6.9)
    assert found["busiest"][0]["client"] == "reader-1" and found["busiest"][0]["delivered"] == 480


def test_names_are_nothing_but_names(spark: SparkSession, tmp_path: Path) -> None:
    """On a terminal no topic and no client draws, wipes, or begins a line of its own."""
    path = tmp_path / "m{a,b}[1]*\\ %20#"         # nor is the path a pattern, which would take others in
    make_recording(tmp_path / "m{a,b}[1]x\\ %20#", fleet())
    topic, client = "a\x1b[2J/lost while recording: 0 entries\n/<b>", "c\r\x07\u202e{0}%s`'\""
    make_recording(path, [{"time": START + n, "connection": 1, "client_id": client, "kind": "PUBLISH",
                           "direction": "in", "topic": f"{topic}/{n % 2}", "qos": 0, "size": 3, "bytes": 9}
                          for n in range(4)])
    said = run(str(path))
    assert said.exception is None
    assert all(character.isprintable() or character == "\n" for character in said.output)
    assert "a\\x1b[2J/lost while recording: 0 entries\\n/<b>/0" in said.output
    assert "c\\r\\x07\\u202e{0}%s`'\"" in said.output
    page_at = tmp_path / "report.html"
    with_page = run(str(path), "--json", "--html", str(page_at))
    page = page_of(page_at.read_text())
    assert page.tables["The hottest of 2"][1][0] == "a\\x1b[2J/lost while recording: 0 entries\\n/<b>/0"
    assert page.tables["The busiest of 1"][1][0] == "c\\r\\x07\\u202e{0}%s`'\""
    loaded = json.loads(with_page.stdout)
    assert loaded["hottest"][0]["topic"] == f"{topic}/0" and loaded["busiest"][0]["client"] == client


def test_the_report(spark: SparkSession, found: dict[str, Any], recording: Path, tmp_path: Path) -> None:
    out = tmp_path / "report.html"
    assert run(str(recording), "--html", str(out)).exception is None
    page = page_of(out.read_text())
    assert page.verdict[0] == "bad" and page.verdict[1].endswith("lost while recording: 7 entries, 700 B")
    sizes, latencies = page.tables["Size"][1:], page.tables["Latency, PUBACK out"][1:]
    assert sum(int(row[1]) for row in sizes if row[0].startswith("in: ")) == 480 and sizes[-1][-1] == "100 %"
    assert [row[0] for row in latencies] == ["2 ms to 2.51 ms"]
    assert page.tables["The hottest of 40"][1] == ["hall/0/sensor-0", "12", "18", "600 B"]
    assert page.tables["The busiest of 72"][1][0] == "reader-1"
    assert sum(int(row[3]) for row in page.tables["By QoS"][1:]) == 480
    assert [row[4] for row in page.tables["By protocol"][1:]] == ["540", "0"]      # what was lost has no protocol
    assert "Messages over time" in page.text


def test_the_tables(spark: SparkSession, found: dict[str, Any], recording: Path) -> None:
    place = recording.parent / "tables"
    assert {path.name for path in place.iterdir()} == {"rates", "topics", "subtrees", "connections", "clients"}
    topics = spark.read.parquet(str(place / "topics"))
    assert topics.count() == 40 and topics.where("topic = 'hall/0/sensor-0'").first()["delivered"] == 18
    assert spark.read.parquet(str(place / "rates")).agg({"rows": "sum"}).first()[0] == found["rows"]


def test_the_example_of_the_page(spark: SparkSession, recording: Path) -> None:
    said = run(str(recording), "--top", "3")
    assert said.exception is None, said.exception
    shown = said.output.replace(str(recording), "monday").rstrip().splitlines()
    page = (ROOT / "docs" / "profile.md").read_text(encoding="utf-8")
    example = page.split("$ fluxmq replay profile monday --top 3\n", 1)[1].split("```", 1)[0].rstrip().splitlines()
    # The size of the files is that of this version of Arrow.
    assert example[0].rpartition(",")[0] == shown[0].rpartition(",")[0]
    assert example[1:] == shown[1:]


def test_nothing_recorded(tmp_path: Path) -> None:
    make_recording(tmp_path / "empty", [])
    out = tmp_path / "report.html"
    said = run(str(tmp_path / "empty"), "--html", str(out))
    assert said.exception is None and "it has no rows\n" in said.output
    assert page_of(out.read_text()).verdict == ("open", "It has no rows")


# ── bad input ────────────────────────────────────────────────────────────────────────────────────────────────


def test_what_is_no_recording(spark: SparkSession, tmp_path: Path) -> None:
    for name, wrong, says in (
            ("cut", lambda path: (path / "part-000001.parquet").write_bytes(b"PAR1 and no more"), "whole Parquet file"),
            ("newer", lambda path: _manifest(path, version=99), "newer"),
            ("foreign", lambda path: _manifest(path, format="x"), "not the manifest of a recording")):
        path = tmp_path / name
        make_recording(path, fleet())
        wrong(path)
        said = run(str(path))
        assert isinstance(said.exception, RecordingError), name
        assert says in str(said.exception) and "\n" not in str(said.exception)


def test_damage_inside_a_part(spark: SparkSession, tmp_path: Path) -> None:
    """The footer is whole, so only Spark finds out: what it says stays one sentence."""
    path = tmp_path / "damaged"
    make_recording(path, fleet())
    part = path / "part-000001.parquet"
    whole = part.read_bytes()
    part.write_bytes(whole[:4] + bytes(len(whole) // 2) + whole[4 + len(whole) // 2:])
    said = run(str(path))
    assert isinstance(said.exception, RecordingError)
    assert str(said.exception).startswith(f"{path} cannot be read: ") and "\n" not in str(said.exception)


def _manifest(path: Path, **changes: Any) -> None:
    file = path / "_manifest.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


# ── percentiles ──────────────────────────────────────────────────────────────────────────────────────────────


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(1, 20)), min_size=1))
def test_quantiles_of_counts(counted: list[tuple[int, int]]) -> None:
    spread = sorted(value for value, count in counted for _ in range(count))
    found = quantiles(counted)
    assert (found["min"], found["max"]) == (spread[0], spread[-1])
    assert found["mean"] == pytest.approx(sum(spread) / len(spread))
    for share, name in ((0.5, "p50"), (0.9, "p90"), (0.99, "p99"), (0.999, "p99.9")):
        # The least value that so large a share does not exceed.
        assert found[name] == next(value for number, value in enumerate(spread, 1) if number >= share * len(spread))


def test_quantiles_of_nothing() -> None:
    assert quantiles([]) == {}
