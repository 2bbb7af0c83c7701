"""Recording: what a row costs, from the entry in the ring to the buffers of its columns, and to Parquet.

    pytest bench/micro/bench_record.py                            measure
    pytest bench/micro/bench_record.py --benchmark-disable        smoke: each body once

`rows` is RecordRows alone, `batch` with the Arrow batch made of its buffers, `parquet` with the part written (no sync
but the last). extra_info has rows per second of one core. Entries hold 20 packets each, of 1 000 topics and 200
clients.
"""
import os
import struct
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from fluxmq._core.amqp091.methods import BasicPublish
from fluxmq._core.mqtt.encode import encode_packet
from fluxmq._core.mqtt.packets import Connect, PubAck, Publish
from fluxmq._core.record.rows import RecordRows
from fluxmq._core.wire.xxh64 import xxh64
from fluxmq.record.files import RecordingFiles, batch_of_columns
from fluxmq.record.manifest import new_manifest
from fluxmq.record.options import BrokerAbout, RecordOptions

Benchmark = Callable[..., Any]
SMOKE = os.environ.get("FLUXMQ_BENCH_SMOKE") == "1"
ROWS = 4_000 if SMOKE else 100_000
PER_ENTRY = 20
CLIENTS = 200
TOPICS = 1_000
START = 1_700_000_000_000_000_000


def entry(kind: int, connection: int, data: bytes, protocol: int = 1) -> bytes:
    size = 32 + (len(data) + 7 & ~7)
    head = struct.pack("<IBBHQqII", size, kind, protocol, 0, connection, START, len(data), 0)
    return (head + data).ljust(size, b"\0")


def publishes(number: int, qos: int, version: int, properties: list[tuple[int, Any]]) -> bytes:
    size = 64 + number % 193
    topic = f"plant/hall-{number % 40:02d}/line-{number % TOPICS}/state"
    return encode_packet(Publish(topic, payload=bytes(size), qos=qos, packet_id=(number % 60_000 + 1) if qos else 0,
                                 properties=properties), version)


def mqtt_entries(kind: str) -> bytes:
    properties: list[tuple[int, Any]] = [(0x03, "application/json"), (0x26, ("device", "d-17"))]
    qos = 1 if kind == "qos1" else 0
    given = properties if kind == "properties" else []
    parts = [entry(3, n + 1, encode_packet(Connect(client_id=f"device-{n}"), 5)) for n in range(CLIENTS)]
    for first in range(0, ROWS, PER_ENTRY):
        connection = first // PER_ENTRY % CLIENTS + 1
        numbers = range(first, first + (PER_ENTRY // 2 if qos else PER_ENTRY))
        parts.append(entry(3, connection, b"".join(publishes(n, qos, 5, given) for n in numbers)))
        if qos:
            parts.append(entry(4, connection, b"".join(encode_packet(PubAck(n % 60_000 + 1), 5) for n in numbers)))
    return b"".join(parts)


def amqp_entries() -> bytes:
    method = BasicPublish(exchange="amq.topic", routing_key="plant.hall-03.line-7").frame(1)
    properties = struct.pack(">H", 0x1000) + b"\x02"
    head = struct.pack(">HHQ", 60, 0, 128) + properties
    message = (method + struct.pack(">BHI", 2, 1, len(head)) + head + b"\xCE"
               + struct.pack(">BHI", 3, 1, 128) + bytes(128) + b"\xCE")
    return b"".join(entry(3, n % CLIENTS + 1, message * PER_ENTRY, 2) for n in range(ROWS // PER_ENTRY))


ENTRIES: dict[str, Callable[[], bytes]] = {
    "qos0": lambda: mqtt_entries("qos0"), "qos1-acknowledged": lambda: mqtt_entries("qos1"),
    "properties": lambda: mqtt_entries("properties"), "amqp091": amqp_entries}


def rates(benchmark: Any, rows: int) -> None:
    if benchmark.stats is not None:
        benchmark.extra_info["rows_per_s"] = round(rows / benchmark.stats.stats.min)


@pytest.mark.parametrize("kind", ENTRIES)
def test_rows(benchmark: Any, kind: str) -> None:
    entries = ENTRIES[kind]()

    def run() -> int:
        rows = RecordRows(batch_rows=1 << 20)
        assert rows.feed(entries) == len(entries)
        count, columns = rows.take()
        assert columns["time"] is not None
        return count

    count = benchmark(run)
    assert count >= ROWS
    rates(benchmark, count)


@pytest.mark.parametrize("kind", ENTRIES)
def test_batch(benchmark: Any, kind: str) -> None:
    entries = ENTRIES[kind]()

    def run() -> pa.RecordBatch:
        rows = RecordRows(batch_rows=1 << 20)
        rows.feed(entries)
        return batch_of_columns(*rows.take())

    batch = benchmark(run)
    batch.validate(full=True)
    rates(benchmark, batch.num_rows)


@pytest.mark.parametrize("kind", ENTRIES)
def test_parquet(benchmark: Any, kind: str) -> None:
    entries = ENTRIES[kind]()
    options = RecordOptions()

    def run() -> int:
        with tempfile.TemporaryDirectory() as name:
            files = RecordingFiles(Path(name), new_manifest(options, BrokerAbout()), options)
            rows = RecordRows(batch_rows=131_072)
            at = 0
            while at < len(entries):
                at = rows.feed(entries, at)
                files.write(batch_of_columns(*rows.take()))
            return files.close("stopped").rows

    count = benchmark(run)
    assert count >= ROWS
    rates(benchmark, count)


@pytest.mark.parametrize("size", [64, 256, 4096])
def test_xxh64(benchmark: Any, size: int) -> None:
    assert benchmark(xxh64, bytes(size)) == xxh64(bytes(size), pieces=(size // 3,))
