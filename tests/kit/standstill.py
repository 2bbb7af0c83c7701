"""A process that stands still.

SIGSTOP is taken by one of its threads, which stops the others. Until that one gets a processor the others run on, and
may answer what is asked behind the signal.
"""
from __future__ import annotations

import contextlib
import os
import signal
import time
from pathlib import Path

from kit.surroundings import OutOfTime

__all__ = ["stand_still"]

PATIENCE_S = 60.0  # only a failing test needs it
STILL = "TtZX"  # states of a thread, as ps has them: stopped, or gone


def stand_still(pid: int) -> None:
    """SIGSTOP, and waits until no thread runs any more. SIGCONT ends it."""
    os.kill(pid, signal.SIGSTOP)
    deadline = time.monotonic() + PATIENCE_S
    while any(state not in STILL for state in _states(pid)):
        if time.monotonic() >= deadline:
            raise OutOfTime(f"process {pid} runs on")
        time.sleep(0.001)


def _states(pid: int) -> list[str]:
    found = []
    for thread in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it has ended
            # Behind the name, which is in parentheses and may have some itself.
            found.append((thread / "stat").read_text().rpartition(")")[2].split()[0])
    return found
