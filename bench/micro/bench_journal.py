"""What the journal costs: appending a record, and committing groups of them beside a bare loop of fdatasync.

    python -m fluxmq.bench.micro.bench_journal [--smoke] [--dir DIRECTORY] [--json]

`append` goes through the Python method, an upper bound: compiled callers use Journal.reserve() and pay for the copy.
`group commit` is a closed loop: at most IN_FLIGHT records are not durable yet, each turn appends what the last sync has
freed, as a broker does whose publishers wait for their acks. The bare loop writes one record and syncs, in the same
directory, before and after. The directory should be on the disk that is meant: the default is the current one.
"""
from __future__ import annotations

import argparse
import json
import os
import select
import statistics
import tempfile
import threading
import time
from pathlib import Path

from fluxmq._core.disk.journal import Journal

__all__ = ["bare_loop", "group_commit", "main", "measure_append"]

IN_FLIGHT = 1000
RECORD_BYTES = (64, 256, 4096)


def measure_append(size: int, rounds: int) -> float:
    """Nanoseconds per append() of `size` bytes into a warm buffer, Python's loop around it included; the best round."""
    body = bytes(size)
    records = 2_000_000 // (size + 5)

    best = float("inf")
    with tempfile.TemporaryDirectory() as directory:
        journal = Journal(directory, identity=1, mode="buffered", interval=3600)
        writer = threading.Thread(target=journal.run)
        writer.start()
        for turn in range(rounds + 2):
            begin = time.perf_counter_ns()
            for _ in range(records):
                journal.append(1, body)
            spent = time.perf_counter_ns() - begin
            if turn >= 2:  # each of the two buffers has been used once
                best = min(best, spent / records)
            journal.submit()
            while journal.backlog():
                wait_readable(journal)
                journal.poll()
        journal.close()
        writer.join()
    return best


def wait_readable(journal: Journal) -> None:
    """Until the writer has signalled. poll(), because select() takes no descriptor above 1023."""
    signals = select.poll()
    signals.register(journal.event_fd, select.POLLIN)
    signals.poll()


def group_commit(directory: Path, seconds: float, size: int, mode: str = "fsync",
                 recycle: bool = True) -> dict[str, float]:
    """Records and syncs per second, and microseconds from append to durable (median of the batches)."""
    body = bytes(size)
    waits: list[float] = []
    with tempfile.TemporaryDirectory(dir=directory) as where:
        journal = Journal(where, identity=1, mode=mode, recycle_bytes_max=1 << 26 if recycle else 0)
        writer = threading.Thread(target=journal.run)
        writer.start()
        in_batch: dict[int, tuple[int, float]] = {}
        outstanding = done = retiring = 0
        begin = time.perf_counter()
        while (now := time.perf_counter()) - begin < seconds:
            free = IN_FLIGHT - outstanding
            if free:
                for _ in range(free):
                    number = journal.append(1, body)
                count, since = in_batch.get(number, (0, now))
                in_batch[number] = count + free, since
                outstanding += free
                journal.submit()
            wait_readable(journal)
            before = journal.durable
            journal.poll()
            for number in range(before + 1, journal.durable + 1):
                count, since = in_batch.pop(number)
                outstanding -= count
                done += count
                waits.append(time.perf_counter() - since)
            if journal.file_bytes > 1 << 24 and not retiring:
                retiring = journal.rotate()
            if retiring and journal.durable > retiring:
                journal.retire(retiring)
                retiring = 0
        spent = time.perf_counter() - begin
        journal.close()
        writer.join()
    return {"records_per_second": done / spent, "batches_per_second": len(waits) / spent,
            "wait_microseconds": statistics.median(waits) * 1e6 if waits else float("nan")}


def bare_loop(directory: Path, seconds: float, size: int) -> float:
    """write + fdatasync of one record at a time, per second, on a growing file."""
    body = bytes(size)
    count = 0
    with tempfile.NamedTemporaryFile(dir=directory) as file:
        begin = time.perf_counter()
        while time.perf_counter() - begin < seconds:
            os.write(file.fileno(), body)
            os.fdatasync(file.fileno())
            count += 1
        return count / (time.perf_counter() - begin)


def main(arguments: list[str] | None = None) -> None:
    """Measure and print one table, or JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--smoke", action="store_true", help="a moment of everything, to see that it works")
    parser.add_argument("--dir", default=".", type=Path, help="where the files go")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    seconds, rounds = (0.05, 1) if options.smoke else (2.0, 5)
    rows = []
    for size in RECORD_BYTES:
        row: dict[str, float] = {"record_bytes": size, "append_nanoseconds": measure_append(size, rounds)}
        before = bare_loop(options.dir, seconds / 2, size)
        row |= group_commit(options.dir, seconds, size)
        row["bare_per_second"] = (before + bare_loop(options.dir, seconds / 2, size)) / 2
        row["without_recycling"] = group_commit(options.dir, seconds, size, recycle=False)["records_per_second"]
        row["buffered"] = group_commit(options.dir, seconds, size, mode="buffered")["records_per_second"]
        row["ratio"] = row["records_per_second"] / row["bare_per_second"]
        rows.append(row)
    if options.json:
        print(json.dumps(rows))
        return
    print(f"{IN_FLIGHT} records in flight; per second")
    print("  bytes  append ns  group commit   batches   wait µs  no recycling    buffered  bare fdatasync   ratio")
    for row in rows:
        print(f"{row['record_bytes']:7.0f} {row['append_nanoseconds']:10.0f} {row['records_per_second']:13,.0f}"
              f" {row['batches_per_second']:9,.0f} {row['wait_microseconds']:9.0f} {row['without_recycling']:13,.0f}"
              f" {row['buffered']:11,.0f} {row['bare_per_second']:15,.0f} {row['ratio']:7.1f}")


if __name__ == "__main__":
    main()
