"""Recordings of the nodes of a cluster, read as one: numbers, order, and which ones do not belong together."""
from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from kit.recordings import START, make_recording

from fluxmq.app.record_files_cli import show_command
from fluxmq.record.manifest import Manifest
from fluxmq.record.merging import ClusterRecording, open_recordings
from fluxmq.record.options import ClusterAbout
from fluxmq.record.reading import RecordingError, open_recording
from fluxmq.record.schema import SCHEMA

SECOND = 1_000_000_000
NAMES = ("n0", "n1", "n2")


def of_node(path: Path, node: str, rows: Iterable[Mapping[str, Any]] = (), *, cluster: str = "c", started: float = 0.0,
            ended: float = 100.0, **more: Any) -> Manifest:
    return make_recording(path, rows, cluster=ClusterAbout(id=cluster, node=node, nodes=NAMES), started=START + int(
        started * SECOND), ended=START + int(ended * SECOND), **more)


def row(time: int, kind: str = "PUBLISH", **more: Any) -> dict[str, Any]:
    return {"time": START + time, "kind": kind, **more}


def test_a_recording_by_itself_is_read_as_ever(tmp_path: Path) -> None:
    make_recording(tmp_path / "above" / "one", [row(1), row(2)])
    for path in (tmp_path / "above" / "one", tmp_path / "above"):
        found = open_recordings(path)
        assert not isinstance(found, ClusterRecording) and found.nodes == [found]
        assert found.table().equals(open_recording(tmp_path / "above" / "one").table())
    with pytest.raises(RecordingError, match="this is not a recording: no _manifest"):
        open_recordings(tmp_path)


def test_rows_are_merged_by_time_and_numbers_are_of_one_node_each(tmp_path: Path) -> None:
    of_node(tmp_path / "b", "n1", [
        row(10, "CONNECT", connection=1, client_id="x"), row(30, "PUBACK", connection=1, client_id="x", answers=0),
        row(50, "lost", connection=0)])
    of_node(tmp_path / "a", "n0", [
        row(20, "CONNECT", connection=1, client_id="y"), row(40, connection=2, client_id="amqp091-2",
                                                             protocol="amqp091")])
    of_node(tmp_path / "c", "n2", [row(40, connection=2, client_id="amqp091-2", protocol="amqp091")])
    for given_ in ([tmp_path], [tmp_path / "c", tmp_path / "a", tmp_path / "b"]):
        found = open_recordings(*given_)
        assert isinstance(found, ClusterRecording) and found.rows == 6 and len(found.parts) == 3
        assert [one.manifest.cluster.node for one in found.nodes] == list(NAMES)
        table = found.table()
        assert table.schema == SCHEMA
        columns = ["time_ns", "seq", "connection", "client_id", "answers"]
        assert [tuple(one[name] for name in columns) for one in table.to_pylist()] == [
            (START + 10, 0 * 3 + 1, 1 * 3 + 1, "x", None),
            (START + 20, 0 * 3 + 0, 1 * 3 + 0, "y", None),
            (START + 30, 1 * 3 + 1, 1 * 3 + 1, "x", 0 * 3 + 1),
            (START + 40, 1 * 3 + 0, 2 * 3 + 0, "amqp091-2@n0", None),
            (START + 40, 0 * 3 + 2, 2 * 3 + 2, "amqp091-2@n2", None),
            (START + 50, 2 * 3 + 1, 0, None, None)]
        assert found.table(["client_id"])["client_id"].to_pylist() == table["client_id"].to_pylist()
        assert found.protocols() == {"mqtt", "amqp091"}


@given(st.lists(st.lists(st.integers(0, 30), max_size=40), min_size=2, max_size=4), st.integers(1, 7))
def test_no_row_is_lost_and_the_order_of_each_node_stays(tmp_path_factory: pytest.TempPathFactory,
                                                         times: list[list[int]], rows_per_part: int) -> None:
    """Also where the times of a node go back, and where its rows are in several parts."""
    place = tmp_path_factory.mktemp("merged")
    for number, its in enumerate(times):
        of_node(place / f"{number}", f"n{number}", [row(time, topic=f"{number}/{time}") for time in its],
                rows_per_part=rows_per_part)
    found = open_recordings(place).table()
    assert found.num_rows == sum(map(len, times))
    merged = list(zip(found["seq"].to_pylist(), found["topic"].to_pylist(), strict=True))
    latest = [0] * len(times)
    keys = []
    for seq, topic in merged:
        number = seq % len(times)
        assert topic.startswith(f"{number}/")
        latest[number] = max(latest[number], int(topic.split("/")[1]))
        keys.append(latest[number])
    assert keys == sorted(keys)
    for number, its in enumerate(times):
        assert [topic for seq, topic in merged if seq % len(times) == number] == [f"{number}/{time}" for time in its]


def test_a_node_that_was_started_again_has_two(tmp_path: Path) -> None:
    of_node(tmp_path / "a1", "n0", [row(1, connection=1)], ended=40)
    of_node(tmp_path / "a2", "n0", [row(50 * SECOND, connection=1)], started=50)
    of_node(tmp_path / "b", "n1", [row(2, connection=1)], started=10, ended=60)
    found = open_recordings(tmp_path)
    assert isinstance(found, ClusterRecording)
    assert len(set(found.table()["connection"].to_pylist())) == 3
    assert found.common == (START + 10 * SECOND, START + 60 * SECOND) and found.missing == ["n2"]


def _other_cluster(path: Path) -> None:
    of_node(path, "n1", cluster="d")


def _alone(path: Path) -> None:
    make_recording(path, [])


def _capture(path: Path) -> None:
    of_node(path, "n1")
    manifest = path / "_manifest.json"
    manifest.write_text(json.dumps(json.loads(manifest.read_text()) | {"source": "pcap"}))


def _same(path: Path) -> None:
    of_node(path, "n0")
    other = path.parent / "a" / "_manifest.json"
    (path / "_manifest.json").write_text(other.read_text())


@pytest.mark.parametrize(("make", "says"), [
    (_other_cluster, "a and .*b are of different clusters: c and d"),
    (_alone, "b: it does not say of which cluster it is"),
    (_capture, "b: it was made from a capture"),
    (_same, "a and .*b are the same recording"),
    (lambda path: of_node(path, "n0", started=50), "are both of node n0 at 2023-11-14 22:14:10 UTC"),
    (lambda path: of_node(path, "n1", started=101, ended=102),
     "a ended at 2023-11-14 22:15:00 UTC, and .*b began at 2023-11-14 22:15:01 UTC"),
])
def test_recordings_that_do_not_belong_together(tmp_path: Path, make: Any, says: str) -> None:
    of_node(tmp_path / "a", "n0")
    make(tmp_path / "b")
    with pytest.raises(RecordingError, match=says) as raised:
        open_recordings(tmp_path)
    assert "\n" not in str(raised.value)


def test_nodes_that_are_still_recorded_belong_together(tmp_path: Path) -> None:
    """A quiet node has all its rows in its open part, so it seems to have ended when it began."""
    of_node(tmp_path / "a", "n0", [])
    of_node(tmp_path / "b", "n1", [row(5)], started=2)
    for one in ("a", "b"):
        manifest = tmp_path / one / "_manifest.json"
        manifest.write_text(json.dumps(json.loads(manifest.read_text()) | {"ended": None, "end": ""}))
    found = open_recordings(tmp_path)
    assert isinstance(found, ClusterRecording)
    assert found.common == (START + 2 * SECOND, START + 2 * SECOND) and found.rows == 1


def test_the_manifest_has_sums_and_what_is_common(tmp_path: Path) -> None:
    of_node(tmp_path / "a", "n0", [row(1), row(2)])
    of_node(tmp_path / "b", "n1", [row(1)], end="disk full")
    manifest = open_recordings(tmp_path).manifest
    assert (manifest.rows, manifest.end, manifest.broker.version) == (3, "a: stopped, b: disk full", "0.1.0")
    assert [part.name for part in manifest.parts] == ["a/part-000001.parquet", "b/part-000001.parquet"]
    assert manifest.cluster == ClusterAbout(id="c", node="n0, n1", nodes=NAMES)
    assert pa.types.is_dictionary(open_recordings(tmp_path).table(["topic"]).schema.field("topic").type)


def test_show_says_what_each_node_has_and_which_one_is_missing(tmp_path: Path) -> None:
    of_node(tmp_path / "a", "n0", [row(1), row(2)])
    of_node(tmp_path / "b", "n1", [row(1)], started=5, ended=90)
    shown = CliRunner().invoke(show_command, [str(tmp_path / "a"), str(tmp_path / "b")], catch_exceptions=False).output
    assert "cluster    c\n           n0: 2023-11-14 22:13:20 UTC to 2023-11-14 22:15:00 UTC, 2 rows" in shown
    assert "all nodes  2023-11-14 22:13:25 UTC to 2023-11-14 22:14:50 UTC" in shown
    assert "missing    no recording of n2" in shown and "rows       3 in 2 parts" in shown
    as_json = json.loads(CliRunner().invoke(show_command, [str(tmp_path), "--json"], catch_exceptions=False).output)
    assert as_json["files"] == ["a/part-000001.parquet", "b/part-000001.parquet"] and as_json["rows"] == 3
    one = CliRunner().invoke(show_command, [str(tmp_path / "a")], catch_exceptions=False).output
    assert "cluster    node n0 of c" in one
