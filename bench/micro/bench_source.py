"""Reading a stream by the million: from a running broker and from its directory, in plain loops and in Spark.

    python -m fluxmq.bench.micro.bench_source [--messages 1000000] [--size 256] [--rounds 3]

Needs the extra `spark`. What is read is published before; each way is taken in turn, the median of the rounds printed.
"""
from __future__ import annotations

import argparse
import asyncio
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fluxmq.client.connection import Connection
from fluxmq.client.options import ConnectOptions
from fluxmq.spark.session import session
from fluxmq.spark.source.columns import SCHEMA
from fluxmq.spark.source.data_source import FluxDataSource, FluxReader, register
from fluxmq.spark.source.place import LogRange
from fluxmq.spark.source.sink import Target, messages_of, publish_all

__all__ = ["main"]

PARTITIONS = 4
WINDOW = 2000
JSON_PAGES = 100


async def fill(address: str, messages: int, size: int) -> None:
    """Publishes to the stream `s`, pipelined."""
    connection = await Connection.open(address, ConnectOptions(client_id="bench", keep_alive_s=0))
    payload, waiting, news = b"x" * size, [0], asyncio.Event()

    def done(packet_id: int, reason: int) -> None:
        waiting[0] -= 1
        news.set()

    for number in range(messages):
        connection.publish(b"$queue/s/sensors/%d/temperature" % (number % 100), payload, qos=1, done=done)
        waiting[0] += 1
        while waiting[0] >= WINDOW or connection.window == 0:
            news.clear()
            await news.wait()
    while waiting[0]:
        news.clear()
        await news.wait()
    connection.disconnect()
    await connection.closed()


def json_loop(socket: str) -> tuple[int, float]:
    """A browse as JSON; (messages, seconds) of some pages."""
    from fluxmq.app.admin_client import AdminClient

    client, position, count, began = AdminClient(Path(socket)), "first", 0, time.perf_counter()
    for _ in range(JSON_PAGES):
        page = client.ask("GET", "queues", "s", "messages", query={"from": position, "count": 1000, "partition": 0})
        count, position = count + len(page["messages"]), page["next"]
    return count, time.perf_counter() - began


def raw_loop(reader: FluxReader) -> tuple[int, float]:
    """The bytes alone, without a look at them: pages of the socket, or batches of the segment files."""
    class Nothing:
        next = 0

        def add(self, messages: Any, at: int = 0) -> int:
            return len(messages)

    began, count = time.perf_counter(), 0
    for part in reader.partitions():
        assert isinstance(part, LogRange)
        for _ in reader.place.read(part, Nothing(), reader.filters):    # type: ignore[arg-type]
            pass
        count += part.end - part.start
    return count, time.perf_counter() - began


def arrow_loop(reader: FluxReader) -> tuple[int, float]:
    """Arrow batches, in this process."""
    began = time.perf_counter()
    count = sum(batch.num_rows for part in reader.partitions() for batch in reader.read(part))
    return count, time.perf_counter() - began


def sink_loop(address: str, size: int) -> tuple[int, float]:
    """Rows published by one task of the sink."""
    import pyarrow as pa

    rows = 50_000
    batch = pa.table({"payload": pa.array([b"x" * size] * rows), "key": pa.array([str(n % 100) for n in range(rows)])})
    target = Target(address, queue="t")
    began = time.perf_counter()
    count = asyncio.run(publish_all(target, messages_of(batch.to_batches(), target, f"p{began}", 0)))
    return count, time.perf_counter() - began


def ways(socket: str, data: str, address: str, size: int) -> dict[str, Callable[[], tuple[int, float]]]:
    """What is measured, by name."""
    spark = session("bench", "local[2]")
    register(spark)

    def reader(**place: str) -> FluxReader:
        made = FluxDataSource({"queue": "s", **place}).reader(SCHEMA)
        assert isinstance(made, FluxReader)
        return made

    def table(columns: str, **place: str) -> tuple[int, float]:
        began = time.perf_counter()
        loaded = spark.read.format("fluxmq").options(queue="s", **place).load()
        found = loaded.selectExpr(columns).first()
        assert found is not None
        return int(found[0]), time.perf_counter() - began

    payloads = "sum(if(length(payload) > 0, 1, 0))"
    return {
        "broker: JSON browse, one loop": lambda: json_loop(socket),
        "broker: pages as bytes, one loop": lambda: raw_loop(reader(admin=socket)),
        "broker: Arrow batches, one loop": lambda: arrow_loop(reader(admin=socket)),
        "broker: Spark, local[2], payloads summed": lambda: table(payloads, admin=socket),
        "directory: batches unpacked, one loop": lambda: raw_loop(reader(logs=data)),
        "directory: Arrow batches, one loop": lambda: arrow_loop(reader(logs=data)),
        "directory: Spark, local[2], payloads summed": lambda: table(payloads, logs=data),
        "sink: published by one task, deduplicated": lambda: sink_loop(address, size)}


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for option, default in (("messages", 1_000_000), ("size", 256), ("rounds", 3)):
        parser.add_argument(f"--{option}", type=int, default=default)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="fluxmq-bench-") as folder:
        queues = f'[{{"name": "s", "type": "stream", "partitions": {PARTITIONS}}}, {{"name": "t", "type": "stream"}}]'
        command = [sys.executable, "-P", "-m", "fluxmq", "run", "--set=server.mqtt.tcp.plain.addr=127.0.0.1:0",
                   "--set=server.mqtt.websocket.plain.addr=", "--set=server.amqp091.plain.addr=",
                   f"--set=storage.dir={folder}/data", f"--set=queues={queues}"]

        def start() -> tuple[subprocess.Popen[str], str]:
            broker = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=folder)
            assert broker.stdout is not None
            said = ""
            for line in broker.stdout:      # it ends with the broker, if that does not start
                said += line
                if "ready" in said:
                    break
            found = re.search(r"mqtt.tcp.plain\D*(127\.0\.0\.1:\d+)", said)
            assert found is not None, said
            return broker, found[1]

        broker, address = start()
        try:
            asyncio.run(fill(address, given.messages, given.size))
            broker.terminate()
            broker.wait()
            broker, address = start()                # what is read now comes from segments, not from memory
            measured: dict[str, list[float]] = {}
            chosen = ways(f"{folder}/data/admin.sock", f"{folder}/data", address, given.size)
            for turn in range(given.rounds + 1):
                for name, way in chosen.items():
                    count, seconds = way()
                    if turn:                         # the first is for caches and compilers
                        measured.setdefault(name, []).append(count / seconds)
            print(f"{given.messages} messages of {given.size} bytes, {os.cpu_count()} processors")
            for name, rates in measured.items():
                print(f"| {name} | {statistics.median(rates) / 1000:.0f} k/s | "
                      f"{min(rates) / 1000:.0f}..{max(rates) / 1000:.0f} |")
        finally:
            broker.terminate()
            broker.wait()


if __name__ == "__main__":
    main()
