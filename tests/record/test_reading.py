"""A recording on disk is read as it was written, and whatever is wrong with one is said in a sentence."""
from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from kit.recordings import generate_recording, make_recording

from fluxmq.record.files import OPEN, prepare_directory
from fluxmq.record.manifest import MANIFEST, read_manifest
from fluxmq.record.reading import RecordingError, open_recording
from fluxmq.record.schema import SCHEMA

ROWS: list[dict[str, Any]] = [
    {"kind": "opened", "detail": '{"tls":false}'},
    {"kind": "CONNECT", "direction": "in", "client_id": "c", "version": 5, "bytes": 20},
    *({"kind": "PUBLISH", "direction": "in", "client_id": "c", "version": 5, "topic": f"t/{n % 3}", "qos": n % 3,
       "packet_id": n or None, "payload": bytes([n]) * n, "digest": -n, "size": n, "retain": bool(n & 1)}
      for n in range(20)),
    {"kind": "lost", "connection": 0, "protocol": None, "detail": '{"entries":1,"bytes":32}'},
]


@pytest.fixture
def recording(tmp_path: Path) -> Path:
    make_recording(tmp_path / "r", ROWS, rows_per_part=9)
    return tmp_path / "r"


def test_rows_come_back(recording: Path) -> None:
    opened = open_recording(recording)
    assert [part.name for part in opened.parts] == [f"part-00000{n}.parquet" for n in (1, 2, 3)]
    assert opened.rows == opened.manifest.rows == len(ROWS)
    table = opened.table()
    assert table.schema == SCHEMA
    for seq, (found, row) in enumerate(zip(table.to_pylist(), ROWS, strict=True)):
        wanted = dict.fromkeys(SCHEMA.names) | {"connection": 1, "protocol": "mqtt"} | row
        times = ("time", "time_ns")
        assert {name: value for name, value in found.items() if name not in times} == {
            name: value for name, value in (wanted | {"seq": seq}).items() if name not in times}


def test_the_manifest_says_what_is_there(recording: Path) -> None:
    manifest = read_manifest(recording)
    times = open_recording(recording).table(["time_ns"])["time_ns"].to_pylist()
    assert [part.rows for part in manifest.parts] == [9, 9, 5]
    assert (manifest.parts[0].first_time, manifest.parts[2].last_time) == (times[0], times[-1])
    assert [part.bytes for part in manifest.parts] == [p.stat().st_size for p in open_recording(recording).parts]
    assert manifest.end == "stopped" and manifest.ended is not None and manifest.started <= manifest.ended


def test_columns_in_the_order_asked_for(recording: Path) -> None:
    names = [batch.schema.names for batch in open_recording(recording).batches(["kind", "seq"])]
    assert names and all(found == ["kind", "seq"] for found in names)


def test_parts_the_manifest_does_not_know_are_read_and_open_ones_are_not(recording: Path) -> None:
    """As kill -9 leaves it."""
    text = json.loads((recording / MANIFEST).read_text())
    text["parts"].pop()
    text["ended"] = None
    (recording / MANIFEST).write_text(json.dumps(text))
    (recording / f"_part-000004.parquet{OPEN}").write_bytes(b"PAR1 and no more")
    assert open_recording(recording).rows == len(ROWS)


def test_a_part_with_more_columns_is_read(recording: Path) -> None:
    part = open_recording(recording).parts[0]
    table = pq.read_table(part)
    pq.write_table(table.append_column("of_later", pa.array([1] * table.num_rows)), part)
    assert open_recording(recording).table().schema == SCHEMA


def _truncate(part: Path) -> None:
    part.write_bytes(part.read_bytes()[:-20])


def _without(column: str, part: Path) -> None:
    pq.write_table(pq.read_table(part).drop_columns([column]), part)


def _retyped(column: str, kind: pa.DataType, part: Path) -> None:
    table = pq.read_table(part)
    at = table.schema.get_field_index(column)
    pq.write_table(table.set_column(at, column, table[column].cast(kind)), part)


def _change_manifest(part: Path, **words: Any) -> None:
    path = part.parent / MANIFEST
    path.write_text(json.dumps(json.loads(path.read_text()) | words))


def _cut_manifest(part: Path) -> None:
    path = part.parent / MANIFEST
    path.write_text(path.read_text()[:100])


@pytest.mark.parametrize(("damage", "says"), [
    (_truncate, "part-000002.parquet: this is not a whole Parquet file"),
    (lambda part: part.write_bytes(b""), "part-000002.parquet: this is not a whole Parquet file"),
    (lambda part: _without("topic", part), "part-000002.parquet: this is not a part of a recording: it has no column "
                                           "'topic'"),
    (lambda part: _retyped("size", pa.int32(), part), "has a column 'size' of type int32, which should be int64"),
    (lambda part: part.unlink(), "part-000002.parquet is missing, which the manifest names"),
    (lambda part: pq.write_table(pq.read_table(part).slice(1), part), "it has 8 rows where the manifest says 9"),
    (_cut_manifest, "manifest.json: this is not JSON"),
    (lambda part: _change_manifest(part, version=3), "version 3 of the format is newer than this FluxMQ"),
    (lambda part: _change_manifest(part, version="one"), "`version` must be a number from 1"),
    (lambda part: _change_manifest(part, format="other"), "this is not the manifest of a recording"),
    (lambda part: _change_manifest(part, parts=[{}]), "manifest.json: the manifest is damaged"),
    (lambda part: (part.parent / MANIFEST).unlink(), "this is not a recording: no _manifest.json in it"),
])
def test_what_is_wrong_is_said_in_a_sentence(recording: Path, damage: Any, says: str) -> None:
    damage(open_recording(recording).parts[1])
    with pytest.raises(RecordingError) as raised:
        open_recording(recording)
    assert says in str(raised.value) and "\n" not in str(raised.value) and str(recording) in str(raised.value)


@pytest.mark.parametrize(("name", "says"), [("nowhere", "there is no such directory"),
                                            ("file", "a recording is a directory, and this is a file")])
def test_what_is_no_directory(tmp_path: Path, name: str, says: str) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(RecordingError, match=says):
        open_recording(tmp_path / name)


def test_damage_within_a_part_is_said_when_it_is_met(recording: Path) -> None:
    part = open_recording(recording).parts[0]
    data = bytearray(part.read_bytes())
    data[4:200] = bytes(196)
    part.write_bytes(data)
    with pytest.raises(RecordingError, match=r"part-000001\.parquet: this part is damaged"):
        open_recording(recording).table()


def test_a_path_that_is_too_long_is_said_as_any_that_cannot_be_read() -> None:
    with pytest.raises(RecordingError, match="cannot be read: File name too long"):
        open_recording(Path("x" * 300))


def test_a_path_that_is_too_long_is_no_place_for_a_recording(tmp_path: Path) -> None:
    with pytest.raises(RecordingError, match="cannot be used for a recording: File name too long"):
        prepare_directory(tmp_path / ("x" * 300))


def test_the_generator_makes_the_same_rows_again(tmp_path: Path) -> None:
    tables = []
    for name in ("a", "b"):
        generate_recording(tmp_path / name, rows=10_001, clients=50, topics=200, rows_per_part=5_000)
        tables.append(open_recording(tmp_path / name).table())
    assert tables[0].equals(tables[1])
    assert tables[0]["seq"].to_pylist() == list(range(10_001))
