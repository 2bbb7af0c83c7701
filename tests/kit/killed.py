"""The programs of kit/journals.py, killed, and what they leave behind."""
from __future__ import annotations

import random
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from kit import journals
from kit.powercut import PowerCut
from kit.python import TESTS, environment

__all__ = ["cuts_power_and_goes_on", "killed", "kills_and_goes_on"]


def killed(directory: Path, lines: int, mode: str = "fsync", more: dict[str, str] | None = None,
           what: str = "journal") -> int:
    """Runs one of the programs, kills it after some lines, returns the last number that it said was durable."""
    process = subprocess.Popen([sys.executable, journals.__file__, what, str(directory), mode], stdout=subprocess.PIPE,
                               env=environment(TESTS, PYTHONFAULTHANDLER="1", **(more or {})))
    assert process.stdout is not None
    line = b""
    try:
        for _ in range(lines):
            line = process.stdout.readline()
            assert line.endswith(b"\n"), f"the program ended by itself, exit code {process.wait(30)}"
    finally:
        process.send_signal(signal.SIGKILL)
    rest = line + process.stdout.read()
    process.stdout.close()
    process.wait()
    assert process.returncode == -signal.SIGKILL
    return int(rest.rsplit(b"\n", 1)[0].split()[-1])


def kills_and_goes_on(directory: Path, turns: int, lines: int, holds: Callable[[Path, int], int], seed: int,
                      mode: str = "fsync", what: str = "journal") -> None:
    """Kills it, again and again after at most so many lines. holds: asserts that what was said to be durable is there,
    returns the last number that is."""
    chance, last = random.Random(seed), 0
    for _ in range(turns):
        said = killed(directory, chance.randint(1, lines), mode, what=what)
        found = holds(directory, max(said, last))
        assert found > last
        last = found


def cuts_power_and_goes_on(directory: Path, turns: int, lines: int, holds: Callable[[Path, int], int], seed: int,
                           attempts: int, what: str = "journal") -> None:
    """As above, and power goes with it: the strict disk, and some torn ones."""
    chance, last, live = random.Random(seed), 0, directory / "start"
    live.mkdir()
    for turn in range(turns):
        cut = PowerCut(directory / f"cut{turn}", live)
        said = killed(cut.live, chance.randint(1, lines), more=cut.env, what=what)
        for attempt in range(attempts):
            holds(cut.restore(directory / f"torn{turn}-{attempt}", random.Random(attempt)), max(said, last))
        live = cut.restore(directory / f"after{turn}")
        last = holds(live, max(said, last))
