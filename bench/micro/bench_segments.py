"""Segment files: writing and reading them, beside a bare loop of pwrite or pread of the same size.

    python -m fluxmq.bench.micro.bench_segments [--smoke] [--dir DIR] [--mib N] [--json]

MB of messages per second. Cold: the files' pages are given back to the system before (POSIX_FADV_DONTNEED), so the disk
is read; warm: they are in the page cache. `open`: seconds to open a store over what was written; `index bytes`: memory
of the index per message.
"""
from __future__ import annotations

import argparse
import json
import os
import random
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from fluxmq._core.hub.hub import Hub
from fluxmq._core.queue.export import Export
from fluxmq._core.queue.log import Log
from fluxmq.bench.load.replay import drop_from_cache
from fluxmq.storage.segment_files import Block
from fluxmq.storage.segments import SegmentStore

__all__ = ["bare", "main", "measure"]

PAYLOAD_BYTES = 256
READ_BYTES = 1024 * 1024


def _blocks(total: int) -> tuple[list[Block], int]:
    """Blocks as an Export makes them, of random payloads, and how many messages they hold. They do not compress."""
    chance = random.Random(1)
    log = Log(Hub(None).ledger, 1)
    while log.memory < total:
        log.append_message(b"bench/segments", chance.randbytes(PAYLOAD_BYTES))
    return list(Export(log, 1 << 60)), log.next


def _timed(work: Callable[[], object]) -> float:
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


def bare(paths: list[Path]) -> None:
    """Read the files whole, a MiB at a time."""
    for path in paths:
        fd = os.open(path, os.O_RDONLY)
        at = 0
        while data := os.pread(fd, READ_BYTES, at):
            at += len(data)
        os.close(fd)


def _bare_write(directory: Path, total: int) -> None:
    data = random.Random(2).randbytes(READ_BYTES)
    with tempfile.TemporaryFile(dir=directory) as file:
        for at in range(0, total, READ_BYTES):
            os.pwrite(file.fileno(), data, at)
        os.fdatasync(file.fileno())


def _read(store: SegmentStore) -> None:
    at = 0
    while True:
        _, at, blocks = store.read(1, at, READ_BYTES)
        if not blocks:
            return


def measure(directory: Path, mib: int, compression: str) -> dict[str, float | str]:
    """One row of the table."""
    blocks, messages = _blocks(mib << 20)
    total = sum(len(block[7]) for block in blocks)
    with tempfile.TemporaryDirectory(dir=directory) as name:
        where = Path(name)
        store = SegmentStore(where, compression=compression)
        store.open()

        def write() -> None:
            for at in range(0, len(blocks), 16):
                store.write(1, blocks[at:at + 16])
            store.sync([1])

        bare_write = _timed(lambda: _bare_write(where, total))
        written = _timed(write)
        store.close()
        paths = sorted(where.glob("queues/*/*.seg"))
        reopened = SegmentStore(where)
        opening = _timed(reopened.open)
        row: dict[str, float | str] = {"compression": compression, "messages": messages,
                                       "write": total / written / 1e6, "bare_write": total / bare_write / 1e6}
        for kind in ("cold", "warm"):
            for key, work in (("bare", lambda: bare(paths)), ("read", lambda: _read(reopened))):
                if kind == "cold":
                    drop_from_cache(paths)
                row[f"{kind}_{key}"] = total / _timed(work) / 1e6
        row["open_seconds"] = opening
        row["index_bytes"] = 56 * len(blocks) / messages
        reopened.close()
    return row


def main(arguments: list[str] | None = None) -> None:
    """Measure and print one table, or JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--smoke", action="store_true", help="a moment of everything, to see that it works")
    parser.add_argument("--dir", default=".", type=Path, help="where the files go")
    parser.add_argument("--mib", default=512, type=int, help="of messages")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    rows = [measure(options.dir, 2 if options.smoke else options.mib, compression) for compression in ("none", "zstd")]
    if options.json:
        print(json.dumps(rows))
        return
    print(f"{PAYLOAD_BYTES}-byte payloads, batches of an Export; MB/s")
    print("compression    write  (bare)    cold  (bare)    warm  (bare)   open s  index bytes")
    for row in rows:
        print(f"{row['compression']:11} {row['write']:8.0f} {row['bare_write']:7.0f} {row['cold_read']:7.0f}"
              f" {row['cold_bare']:7.0f} {row['warm_read']:7.0f} {row['warm_bare']:7.0f} {row['open_seconds']:8.4f}"
              f" {row['index_bytes']:12.2f}")


if __name__ == "__main__":
    main()
