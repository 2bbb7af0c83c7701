"""Recordings for tests: small ones from rows as dicts, and large ones made quickly.

    as_version_1(path)                      turns it into what earlier versions wrote
    make_recording(path, rows)              each row a dict; seq is given where it is missing
    generate_recording(path, rows=5_000_000)    publishers and subscribers as a fleet would have them
"""
from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from fluxmq.record.files import RecordingFiles, batch_of_rows, prepare_directory
from fluxmq.record.manifest import MANIFEST, Manifest, new_manifest, write_manifest
from fluxmq.record.options import BrokerAbout, ClusterAbout, RecordOptions
from fluxmq.record.schema import COLUMNS, SCHEMA, microseconds

START = 1_700_000_000_000_000_000      # ns since 1970


def make_recording(path: Path, rows: Iterable[Mapping[str, Any]], *, end: str = "stopped",
                   options: RecordOptions | None = None, rows_per_part: int = 0,
                   cluster: ClusterAbout | None = None, started: int = 0, ended: int = 0) -> Manifest:
    """Writes the rows in order; seq is their number and time a microsecond after the last, where a row has none.

    rows_per_part: 0, all in one. cluster: which node it is of. started, ended: ns since 1970; 0: now.
    """
    asked = options or RecordOptions()
    if rows_per_part:
        asked = RecordOptions(max_rows=rows_per_part)
    prepare_directory(path)
    about = BrokerAbout(version="0.1.0", cluster=cluster or ClusterAbout())
    files = RecordingFiles(path, new_manifest(asked, about), asked)
    files.manifest.started = started or files.manifest.started
    whole: list[dict[str, Any]] = []
    clock = START
    for seq, row in enumerate(rows):
        clock = row.get("time", clock + 1_000)
        whole.append({"seq": seq, "connection": 1, "protocol": "mqtt", **row, "time": clock})
    step = rows_per_part or max(len(whole), 1)
    for at in range(0, len(whole), step):
        files.write(batch_of_rows(whole[at:at + step]))
    manifest = files.close(end)
    if ended:
        manifest.ended = ended
        write_manifest(path, manifest)
    return manifest


def _dictionary(words: list[str], indices: np.ndarray[Any, Any], mask: np.ndarray[Any, Any] | None = None) -> pa.Array:
    return pa.DictionaryArray.from_arrays(pa.array(indices.astype(np.int32), mask=mask), pa.array(words))


def _chunk(first: int, count: int, clients: int, topics: int, rate: float, seed: int) -> pa.RecordBatch:
    """Half of the rows PUBLISH in, half PUBLISH out of the same messages, QoS 0, with hot topics."""
    random = np.random.default_rng((seed, first))
    seq = np.arange(first, first + count, dtype=np.int64)
    time_ns = pa.array(START + (seq // 2 * (1e9 / rate)).astype(np.int64) + (seq & 1) * 50_000)
    message = seq // 2
    out = seq & 1
    heat = np.minimum(random.pareto(1.2, count) * topics / 50, topics - 1).astype(np.int32)
    heat[1::2] = heat[0::2][:len(heat[1::2])]
    client = heat % clients
    size = (64 + heat % 193).astype(np.int64)
    columns: dict[str, pa.Array] = {
        "seq": pa.array(seq),
        "time": microseconds(time_ns),
        "time_ns": time_ns,
        "connection": pa.array((client + 1 + out * clients).astype(np.int64)),
        "client_id": _dictionary([f"device-{n:06d}" for n in range(clients)]
                                 + [f"reader-{n:06d}" for n in range(clients)], client + out * clients),
        "protocol": _dictionary(["mqtt"], np.zeros(count)),
        "version": pa.array(np.full(count, 5, np.int8)),
        "direction": _dictionary(["in", "out"], out),
        "kind": _dictionary(["PUBLISH"], np.zeros(count)),
        "topic": _dictionary([f"plant/{n % 40}/line/{n}/state" for n in range(topics)], heat),
        "qos": pa.array(np.zeros(count, np.int8)),
        "retain": pa.array(np.zeros(count, bool)),
        "dup": pa.array(np.zeros(count, bool)),
        "digest": pa.array((message.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)).view(np.int64)),
        "size": pa.array(size),
        "bytes": pa.array(size + 28),
    }
    return pa.RecordBatch.from_arrays([columns.get(column.name, pa.nulls(count, column.type)) for column in COLUMNS],
                                      schema=SCHEMA)


def as_version_1(path: Path) -> Path:
    """Makes of a recording one as version 1 of the format had it: `manifest.json`, times of nanoseconds in `time`."""
    for part in sorted(path.glob("part-*.parquet")):
        table = pq.read_table(part)
        exact = table["time_ns"].cast(pa.timestamp("ns", "UTC"))
        at = table.schema.get_field_index("time")
        table = table.set_column(at, pa.field("time", exact.type, nullable=False), exact).drop_columns("time_ns")
        pq.write_table(table, part, version="2.6")
    manifest = json.loads((path / MANIFEST).read_text())
    (path / MANIFEST).unlink()
    (path / "manifest.json").write_text(json.dumps(manifest | {"version": 1}))
    return path


def generate_recording(path: Path, *, rows: int, clients: int = 1_000, topics: int = 5_000, rate: float = 50_000.0,
                       rows_per_part: int = 1_000_000, seed: int = 1) -> Manifest:
    """Millions of rows in seconds: `clients` devices publish to `topics` topics, some hot, and as many readers get it.

    rate: messages per second of recorded time. The same arguments make the same rows.
    """
    options = RecordOptions(max_rows=rows_per_part, max_bytes=1 << 40, max_seconds=3600.0)
    prepare_directory(path)
    files = RecordingFiles(path, new_manifest(options, BrokerAbout(version="0.1.0")), options)
    chunk = min(131_072, rows_per_part) & ~1 or 2
    for first in range(0, rows, chunk):
        files.write(_chunk(first, min(chunk, rows - first), clients, topics, rate, seed))
    return files.close("stopped")
