"""When memory is short: the mark, what counts as the machine's memory, and the alarm's two edges."""
from __future__ import annotations

import mmap
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fluxmq.app.memory import MemoryAlarm, high_mark, machine_bytes, resident_bytes

MARK = 1000


@given(st.lists(st.integers(0, 2 * MARK), max_size=30))
def test_between_the_two_edges_nothing_changes(steps: list[int]) -> None:
    now = 0
    alarm = MemoryAlarm(MARK, lambda: now)
    wanted = False
    for now in steps:
        was = wanted
        if now >= MARK:
            wanted = True
        elif now < 0.9 * MARK:
            wanted = False
        assert alarm.look() == (wanted != was) and alarm.on == wanted


@pytest.mark.parametrize("on", [False, True])
def test_who_cannot_look_changes_nothing(on: bool) -> None:
    def blind() -> int:
        raise OSError(24, "Too many open files")

    alarm = MemoryAlarm(MARK, blind)
    alarm.on = on
    assert not alarm.look() and alarm.on is on


def test_what_this_process_has() -> None:
    before = resident_bytes()
    assert before > 4 << 20
    with mmap.mmap(-1, 64 << 20) as ballast:    # new to the process, whatever its heap has to spare
        for page in range(0, 64 << 20, mmap.PAGESIZE):
            ballast[page] = 1
        assert resident_bytes() > before + (48 << 20)


def test_a_control_group_counts_when_it_allows_less(tmp_path: Path) -> None:
    most = machine_bytes(())
    for text, found in (("max\n", most), (f"{1 << 30}\n", min(1 << 30, most)), (f"{1 << 62}\n", most), ("0", most)):
        (tmp_path / "memory.max").write_text(text)
        assert machine_bytes((tmp_path / "none", tmp_path / "memory.max")) == found
    assert high_mark(5) == 5 and 0 < high_mark(0) <= 0.6 * most
