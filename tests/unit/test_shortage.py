"""What is short is named as what it is, and only a want of space is one."""
from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from kit.driver import AtOnce
from kit.journals import Ops, writing

from fluxmq._core.disk.journal import JOURNAL_FULL, SHORTAGES
from fluxmq._core.hub.hub import Hub
from fluxmq.cluster.solo import solo
from fluxmq.engine.queues.disk_full import QueueSpace
from fluxmq.engine.queues.manager import QueueManager
from fluxmq.model.queues import QueueSpec
from fluxmq.storage.reserve import Reserve

SIZE = 3 << 20


def refusing(code: int) -> Callable[..., Any]:
    def call(*_: object) -> Any:
        raise OSError(code, os.strerror(code))
    return call


@pytest.mark.parametrize("code", [errno.EBADF, errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS, errno.ENODEV, errno.EPERM])
def test_where_nothing_can_be_allocated_bytes_are_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                                          code: int) -> None:
    monkeypatch.setattr(os, "posix_fallocate", refusing(code))
    pwrite = os.pwrite
    # the system may take less than it is given
    monkeypatch.setattr(os, "pwrite", lambda fd, data, at: pwrite(fd, data[:70_000], at))
    kept = Reserve(tmp_path, SIZE)
    assert kept.take()
    assert (tmp_path / "reserve").stat().st_size == SIZE
    assert kept.take()
    kept.give()
    assert not (tmp_path / "reserve").exists()


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG])
def test_want_of_space_is_no_error_of_the_reserve(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    monkeypatch.setattr(os, "posix_fallocate", refusing(code))
    assert not Reserve(tmp_path, SIZE).take()
    assert not (tmp_path / "reserve").exists()


def test_the_c_library_can_write_where_the_file_system_cannot_allocate(tmp_path: Path) -> None:
    """glibc's posix_fallocate refuses descriptors that append (EBADF) where it must write instead."""
    import fcntl

    seen = []
    fill = Reserve._fill

    class Watched(Reserve):
        def _fill(self, fd: int) -> None:
            seen.append(fcntl.fcntl(fd, fcntl.F_GETFL))
            fill(self, fd)

    assert Watched(tmp_path, SIZE).take()
    assert [flags & os.O_APPEND for flags in seen] == [0] and seen[0] & os.O_ACCMODE == os.O_RDWR


@pytest.mark.parametrize("code", [errno.EMFILE, errno.EIO, errno.EACCES])
def test_a_reserve_that_cannot_be_had_refuses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                                      code: int) -> None:
    (tmp_path / "journal").mkdir()
    with writing(tmp_path / "journal") as journal:
        hub = Hub(journal)
        manager = QueueManager(hub, cluster=solo())
        manager.declare(QueueSpec(name="q"))
        notes: list[str] = []
        space = QueueSpace(manager, Reserve(tmp_path, SIZE), AtOnce(), lambda level, cause, text, fields: notes.append(
            f"{text}: {fields.get('why')}"), retry_ms=1)
        monkeypatch.setattr(Reserve, "take", refusing(code))
        for _ in range(5):
            hub.set_clock(hub.now_ms + 10, hub.mono_ms + 10)
            space.tick()
            assert not space.full
        assert len(notes) == 1 and os.strerror(code) in notes[0]


@pytest.mark.parametrize("code", sorted(SHORTAGES))
def test_the_journal_names_what_is_short(tmp_path: Path, code: int) -> None:
    ops = Ops()
    write = ops.pwrite
    with writing(tmp_path, ops=ops) as journal:
        assert journal.shortage == ""
        ops.pwrite = lambda fd, data, at: -code
        journal.append(9, b"x")
        journal.submit()
        while journal.status != JOURNAL_FULL:
            journal.poll()
        assert journal.shortage == f"{SHORTAGES[code]}: {os.strerror(code)}"
        assert ("disk" in journal.shortage) == (code in (errno.ENOSPC, errno.EDQUOT))
        ops.pwrite = write


@pytest.mark.parametrize("call", ["fdatasync", "fsync"])
def test_a_sync_that_a_signal_interrupts_is_called_again(tmp_path: Path, call: str) -> None:
    ops = Ops()
    again = getattr(ops, call)
    calls: list[int] = []

    def interrupted(fd: int) -> int | None:
        calls.append(fd)
        return -errno.EINTR if len(calls) % 3 else again(fd)  # type: ignore[no-any-return]

    setattr(ops, call, interrupted)
    with writing(tmp_path, ops=ops) as journal:
        assert len(calls) >= 3 and not journal.status_text.startswith("failed")
