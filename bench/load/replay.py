"""A stream read from the disk: filled, the broker stopped, the page cache dropped, then all of it read by one client.

Beside it, in the same run and dropped from the cache as well: how fast the disk gives the same files to a plain loop of
reads. Payloads are stored as they are, or the broker would read less than it delivers.
"""
from __future__ import annotations

import os
import time
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fluxmq.bench.load import packets
from fluxmq.bench.load.brokers import Needs, start_broker
from fluxmq.bench.load.engine import Engine, LoadError
from fluxmq.bench.load.options import LoadOptions
from fluxmq.bench.load.procinfo import memory
from fluxmq.bench.load.runner import attach_all

__all__ = ["ReplayOptions", "run_replay"]

READ_BYTES = 1 << 20
SLICE_SECONDS = 0.02
PATIENCE_SECONDS = 30.0
MEGA = 1e6


@dataclass(slots=True, kw_only=True)
class ReplayOptions:
    """messages: how many are written, of `size` bytes each. window: in flight while writing."""

    messages: int = 1_000_000
    size: int = 1024
    window: int = 1000


def run_replay(name: str, needs: Needs, options: ReplayOptions) -> dict[str, Any]:
    """Fill, stop, drop, read. Raises BrokerError, LoadError."""
    needs = replace(needs, queue="stream", compress=False)
    load = LoadOptions(version="5", queue="stream", prefix="replay", qos=1, subs=0, size=options.size,
                       window=options.window)
    with start_broker(name, needs) as broker:
        written = fill(replace(load, addr=broker.addresses["tcp"]), options.messages)
    files = sorted(path for path in needs.folder.rglob("*.seg"))
    drop_from_cache(files)
    disk = read_rate(files)
    drop_from_cache(files)
    with start_broker(name, needs) as broker:
        reader = replace(load, addr=broker.addresses["tcp"], pubs=0, subs=1, start="first", receive_maximum=65535)
        seconds = read_all(reader, written)
        weight = memory(broker.pid)
    rate = written * options.size / seconds / MEGA
    return {"messages": written, "seconds": seconds, "delivered_per_second": written / seconds,
            "megabytes_per_second": rate, "disk_megabytes_per_second": disk, "of_disk": rate / disk,
            "broker_memory": {"rss": weight.rss, "peak": weight.peak}}


def drop_from_cache(files: list[Path]) -> None:
    """Removes synced files from the page cache."""
    for path in files:
        fd = os.open(path, os.O_RDONLY)
        try:
            os.fsync(fd)
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(fd)


def read_rate(files: list[Path]) -> float:
    """MB/s of a loop that reads the files in order, one MiB at a time."""
    buffer = bytearray(READ_BYTES)
    total = 0
    began = time.monotonic()
    for path in files:
        fd = os.open(path, os.O_RDONLY)
        try:
            while got := os.readv(fd, [buffer]):
                total += got
        finally:
            os.close(fd)
    return total / max(time.monotonic() - began, 1e-9) / MEGA


def fill(options: LoadOptions, messages: int) -> int:
    """Publishes at least so many messages, each confirmed; returns the exact number."""
    engine = Engine(version=options.level, publishers=1, subscribers=0, window=options.window, checked=False)
    with ExitStack() as stack:
        attach_all(engine, options, "fill", [], stack)
        engine.start()
        while engine.counts()["sent"] < messages:
            engine.turn(SLICE_SECONDS)
        if not engine.drain(PATIENCE_SECONDS):
            raise LoadError("what was published was not confirmed")
        engine.disconnect(packets.disconnect())
    return engine.counts()["acked"]


def read_all(options: LoadOptions, messages: int) -> float:
    """Seconds from the subscription until that many messages were delivered."""
    engine = Engine(version=options.level, publishers=0, subscribers=1, window=1, checked=False)
    with ExitStack() as stack:
        began = time.monotonic()
        attach_all(engine, options, "read", [], stack)
        engine.start()
        moved, seen = began, 0
        while (received := engine.counts()["received"]) < messages:
            engine.turn(SLICE_SECONDS)
            now = time.monotonic()
            if received > seen:
                moved, seen = now, received
            elif now - moved > PATIENCE_SECONDS:
                raise LoadError(f"{received} of {messages} messages came, and then none for {PATIENCE_SECONDS:g} s")
        seconds = time.monotonic() - began
        engine.disconnect(packets.disconnect())
    return seconds
