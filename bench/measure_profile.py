"""What a profile costs on `local[2]`: seconds, processor time, and the most memory that all its processes had together.

    python -P -m fluxmq.bench.measure_profile RECORDING

RECORDING: such as generate_recording of tests/kit/recordings.py makes. Memory is looked at four times a second, of the
command, its JVM and the Python workers: the sum of what is resident, and of that with what they share counted once
(Rss and Pss of /proc/PID/smaps_rollup).
"""
from __future__ import annotations

import subprocess
import sys
import threading
import time
from pathlib import Path

__all__ = ["family", "main", "memory_of"]

EVERY_S = 0.25
TICKS = 100           # of /proc/PID/stat, per second


def family(root: int) -> list[int]:
    """The process and all that descend from it."""
    found, ahead = [root], [root]
    while ahead:
        pid = ahead.pop()
        for task in Path(f"/proc/{pid}/task").glob("*/children"):
            try:
                children = [int(word) for word in task.read_text().split()]
            except OSError:
                continue
            found += children
            ahead += children
    return found


def memory_of(pids: list[int]) -> tuple[int, int]:
    """(resident bytes, proportional bytes) of these processes together."""
    resident = shared_out = 0
    for pid in pids:
        try:
            lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        except OSError:
            continue
        for line in lines:
            if line.startswith("Rss:"):
                resident += int(line.split()[1]) * 1024
            elif line.startswith("Pss:"):
                shared_out += int(line.split()[1]) * 1024
    return resident, shared_out


def processor_of(pids: list[int]) -> float:
    """Seconds of processor time of these processes."""
    total = 0
    for pid in pids:
        try:
            words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        total += int(words[11]) + int(words[12])
    return total / TICKS


def main(recording: str) -> None:
    begun = time.monotonic()
    command = subprocess.Popen([sys.executable, "-P", "-m", "fluxmq", "replay", "profile", recording, "--master",
                                "local[2]", "--json"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    most = [0, 0]
    seconds = 0.0
    over = threading.Event()

    def look() -> None:
        nonlocal seconds
        while not over.wait(EVERY_S):
            pids = family(command.pid)
            resident, shared_out = memory_of(pids)
            most[:] = max(most[0], resident), max(most[1], shared_out)
            seconds = max(seconds, processor_of(pids))

    watcher = threading.Thread(target=look)
    watcher.start()
    status = command.wait()
    over.set()
    watcher.join()
    print(f"status {status}, {time.monotonic() - begun:.0f} s, {seconds:.0f} s of processor time, "
          f"resident {most[0] / 2**20:.0f} MiB, proportional {most[1] / 2**20:.0f} MiB")


if __name__ == "__main__":
    main(sys.argv[1])
