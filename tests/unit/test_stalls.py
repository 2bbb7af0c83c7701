"""For how long the disk has not completed what the journal has given it."""
from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fluxmq._core.disk.journal import Journal
from fluxmq._core.errors import UsageError
from fluxmq.engine.stalls import SLOW_S, Stalls


class Disk:
    """A journal whose writer works when the test says so, and the clock."""

    def __init__(self, directory: Path, mode: str = "fsync") -> None:
        directory.mkdir()
        self.journal = Journal(directory, identity=1, mode=mode)
        self.now = 1000.0
        self.log: list[tuple[str, str]] = []
        self.stalls = Stalls(self.journal, lambda: self.now, self._note)

    def _note(self, level: str, cause: str, text: str, fields: dict[str, Any]) -> None:
        self.log.append((level, text))

    def record(self) -> None:
        self.journal.append(1, b"x")
        self.journal.submit()

    def complete(self) -> None:
        while self.journal.work():
            pass
        self.journal.poll()

    def pass_time(self, seconds: float, step: float = 0.25) -> float:
        for _ in range(round(seconds / step)):
            self.now += step
            self.stalls.look()
        return self.stalls.seconds


@pytest.mark.parametrize("mode", ["fsync", "buffered"])
def test_time_counts_while_something_waits(tmp_path: Path, mode: str) -> None:
    disk = Disk(tmp_path / "journal", mode)
    assert disk.pass_time(100) == 0.0
    disk.record()
    assert disk.pass_time(SLOW_S - 1) == pytest.approx(SLOW_S - 1, abs=0.3) and not disk.stalls.problem
    assert disk.pass_time(2) > SLOW_S and "has not completed a write" in disk.stalls.problem
    disk.complete()
    assert disk.pass_time(0.25) == 0.0 and not disk.stalls.problem
    assert [level for level, _ in disk.log] == ["warning", "info"]
    disk.journal.close()


def test_a_disk_that_is_slow_but_goes_on_counts_from_its_last_batch(tmp_path: Path) -> None:
    disk = Disk(tmp_path / "journal")
    for _ in range(5):
        disk.record()
        disk.record()       # one is written, one gathers: something waits all the time
        assert disk.pass_time(4) < SLOW_S
        disk.complete()
        disk.record()
    assert not disk.log
    disk.complete()
    disk.journal.close()


def test_time_in_which_the_process_stood_still_says_nothing_of_the_disk(tmp_path: Path) -> None:
    disk = Disk(tmp_path / "journal")
    disk.record()
    disk.now += 1000.0
    disk.stalls.look()
    assert disk.stalls.seconds <= 1.0
    disk.complete()
    disk.journal.close()


def test_without_a_disk_there_is_nothing_to_wait_for() -> None:
    stalls = Stalls(None, lambda: 0.0, lambda level, cause, text, fields: None)
    stalls.look()
    assert stalls.seconds == 0.0 and not stalls.problem


def test_a_writer_that_is_asked_to_end_does_so_without_anybody_waiting(tmp_path: Path) -> None:
    """Journal.end()."""
    disk = Disk(tmp_path / "journal")
    disk.record()
    assert disk.journal.end()       # no thread runs the writer: close() does the rest
    disk.journal.close()
    with pytest.raises(UsageError):
        disk.journal.poll()
