"""A recording is read by the name of its directory, by programs that know nothing of FluxMQ, without a setting; and one
that an earlier version wrote still opens. Spark: tests/spark/test_plain_spark.py."""
from __future__ import annotations

from pathlib import Path

import pandas
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from kit.recordings import START, as_version_1, make_recording

from fluxmq.record.files import RecordingFiles, batch_of_rows, prepare_directory
from fluxmq.record.manifest import MANIFEST, new_manifest
from fluxmq.record.options import BrokerAbout, RecordOptions
from fluxmq.record.reading import open_recording

ROWS = [{"kind": "PUBLISH", "direction": "in", "topic": f"t/{n % 5}", "client_id": f"c-{n % 3}", "size": n,
         "time": START + n * 1_000_003} for n in range(40)]
TIMES = [row["time"] for row in ROWS]


@pytest.fixture
def running(tmp_path: Path) -> Path:
    """A recording that goes on: two parts are closed, one is open, and a manifest was cut off while it was written."""
    path = tmp_path / "monday"
    options = RecordOptions(max_rows=20)
    prepare_directory(path)
    files = RecordingFiles(path, new_manifest(options, BrokerAbout()), options)
    whole = [{"seq": seq, "connection": 1, "protocol": "mqtt"} | row for seq, row in enumerate(ROWS)]
    for at in (0, 20):
        files.write(batch_of_rows(whole[at:at + 20]))
    files.write(batch_of_rows(whole[:3]))
    (path / f"{MANIFEST}.new").write_bytes(b"{")
    return path


def test_what_is_no_data_begins_with_an_underscore(running: Path) -> None:
    names = sorted(path.name for path in running.iterdir())
    assert [name for name in names if not name.startswith("_")] == ["part-000001.parquet", "part-000002.parquet"]
    assert {"_manifest.json", "_part-000003.parquet.open"} < set(names)
    assert open_recording(running).rows == len(ROWS)


def test_pandas_reads_it(running: Path) -> None:
    frame = pandas.read_parquet(str(running))
    assert frame.time_ns.tolist() == TIMES
    assert frame.time.tolist() == [pandas.Timestamp(time // 1000, unit="us", tz="UTC") for time in TIMES]
    assert frame.topic.tolist() == [row["topic"] for row in ROWS]


def test_pyarrow_reads_it(running: Path) -> None:
    table = pq.read_table(running)
    assert table["time_ns"].to_pylist() == TIMES
    assert table.schema.field("time").type == pa.timestamp("us", "UTC")
    assert table["time"].cast(pa.int64()).to_pylist() == [time // 1000 for time in TIMES]


def test_duckdb_reads_it(running: Path) -> None:
    duckdb = pytest.importorskip("duckdb", reason="DuckDB is not installed")
    connection = duckdb.connect()
    rows = connection.sql(f"select time_ns, epoch_us(time), topic from '{running}/*.parquet' order by seq").fetchall()
    assert rows == [(time, time // 1000, row["topic"]) for time, row in zip(TIMES, ROWS, strict=True)]


def test_the_name_of_the_directory_says_the_node(tmp_path: Path) -> None:
    """docs/recording.md, "Recording a cluster"."""
    for node, rows in (("n0", ROWS[:10]), ("n1", ROWS[10:])):
        make_recording(tmp_path / f"node={node}", rows)
    wanted = {"n0": TIMES[:10], "n1": TIMES[10:]}
    frame = pandas.read_parquet(str(tmp_path))
    assert {str(node): its.time_ns.tolist() for node, its in frame.groupby("node", observed=True)} == wanted
    table = pq.read_table(tmp_path).to_pylist()
    assert {node: [row["time_ns"] for row in table if row["node"] == node] for node in wanted} == wanted


def test_a_recording_of_an_earlier_version_opens(tmp_path: Path) -> None:
    make_recording(tmp_path / "now", ROWS, rows_per_part=15)
    make_recording(tmp_path / "before", ROWS, rows_per_part=15)
    now, before = open_recording(tmp_path / "now"), open_recording(as_version_1(tmp_path / "before"))
    assert pq.read_schema(before.parts[0]).field("time").type == pa.timestamp("ns", "UTC")
    assert (now.manifest.version, before.manifest.version) == (2, 1)
    assert before.table() == now.table()
    for names in (["time"], ["kind", "time_ns"], ["time_ns", "seq", "time"]):
        assert before.table(names) == now.table(names)
