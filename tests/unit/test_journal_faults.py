"""The journal on a disk that fails, fills up or loses power, and in a process that is killed."""
from __future__ import annotations

import errno
import os
import random
import resource
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from kit.journals import Ops, body_of, commit, contents, wait_durable, wait_event, writing
from kit.killed import cuts_power_and_goes_on, killed, kills_and_goes_on
from kit.powercut import PowerCut
from kit.python import TESTS, environment

from fluxmq._core.disk.journal import JOURNAL_FAILED, JOURNAL_FULL, JOURNAL_OK, Journal
from fluxmq._core.errors import StorageError
from fluxmq.storage.journal_files import recover


@pytest.fixture(params=["fsync", "buffered"])
def mode(request: pytest.FixtureRequest) -> str:
    return str(request.param)


# ---------------------------------------------------------------------------------------------------- errors


@pytest.mark.parametrize(("call", "name"), [("pwrite", "EIO"), ("fdatasync", "EIO"), ("fdatasync", "ENOSPC")])
def test_failed_medium_is_final(tmp_path: Path, call: str, name: str) -> None:
    ops = Ops()
    calls: list[str] = []
    with pytest.raises(StorageError, match="nothing is acknowledged"), writing(tmp_path, ops=ops) as journal:
        commit(journal, (1, b"kept"))

        def broken(*_: object) -> int:
            calls.append(call)
            raise OSError(getattr(errno, name), "")

        healthy = getattr(ops, call)
        setattr(ops, call, broken)
        journal.append(1, b"lost")
        journal.submit()
        wait_event(journal)
        with pytest.raises(StorageError, match="cannot be written any more"):
            journal.poll()
        setattr(ops, call, healthy)  # the disk is well again; what it lost is lost all the same
        assert journal.status == JOURNAL_FAILED
        journal.append(1, b"later")
        for _ in range(3):
            with pytest.raises(StorageError):
                journal.submit()
            with pytest.raises(StorageError):
                journal.poll()
        assert journal.durable == 1
        assert calls == [call], "a failed sync must never be tried again"
    assert [number for number, _ in contents(tmp_path)][:1] == [1]


def test_acks_of_what_became_durable_come_before_the_error(tmp_path: Path) -> None:
    """The eventfd counts: one poll may find both that batch 1 is durable and that batch 2 never will be."""
    ops = Ops()
    synced = threading.Event()

    def once(fd: int) -> None:
        if synced.is_set():
            raise OSError(errno.EIO, "")
        os.fdatasync(fd)
        synced.set()

    journal = Journal(tmp_path, identity=1, file_ops=ops.address)
    ops.fdatasync = once
    thread = threading.Thread(target=journal.run)
    thread.start()
    journal.append(1, b"1")
    journal.submit()
    assert synced.wait(30)
    journal.append(1, b"2")
    while not journal.submit():  # until the writer is idle; nobody polls
        pass
    thread.join()  # run() returns when it has failed
    assert (journal.poll(), journal.durable) == (1, 1)
    wait_event(journal)
    with pytest.raises(StorageError, match="cannot be written any more"):
        journal.poll()
    with pytest.raises(StorageError):
        journal.close()


def test_interrupted_and_short_writes_are_continued(tmp_path: Path) -> None:
    ops = Ops()
    chance = random.Random(5)

    def short(fd: int, data: bytes, at: int) -> int:
        if chance.random() < 0.3:
            raise OSError(errno.EINTR, "")
        return os.pwrite(fd, data[:chance.randint(1, len(data))], at)

    ops.pwrite = short
    with writing(tmp_path, ops=ops) as journal:
        for index in range(20):
            commit(journal, (1, bytes([index]) * 500))
    assert [records[0][1] for _, records in contents(tmp_path)] == [bytes([index]) * 500 for index in range(20)]


@pytest.mark.parametrize("name", ["ENOSPC", "EDQUOT", "EFBIG"])
@pytest.mark.parametrize("rotating", [False, True])
def test_no_space_is_waited_for(tmp_path: Path, name: str, rotating: bool) -> None:
    ops = Ops()
    full = threading.Event()
    fitted: set[int] = set()

    def limited(fd: int, data: bytes, at: int) -> int:
        if not full.is_set():
            return os.pwrite(fd, data, at)
        if not rotating and not fitted:
            fitted.add(at + 10)
        if at + 10 in fitted:  # a part fits, of each attempt the same
            return os.pwrite(fd, data[:10], at)
        raise OSError(getattr(errno, name), "")

    ops.pwrite = limited
    with writing(tmp_path, ops=ops) as journal:
        commit(journal, (1, b"before"))
        full.set()
        if rotating:
            assert journal.rotate() == 1
        journal.append(1, b"stuck")
        journal.submit()
        wait_event(journal)
        assert journal.poll() == 0
        assert (journal.status, journal.durable) == (JOURNAL_FULL, 1)
        assert os.strerror(getattr(errno, name)) in journal.status_text
        assert journal.shortage in journal.status_text
        journal.append(1, b"gathers meanwhile")
        assert journal.submit() == 0
        assert contents(tmp_path) == [(1, [(1, b"before")])]
        full.clear()
        wait_durable(journal, 3)
        assert (journal.status, journal.status_text) == (JOURNAL_OK, "ok")
    assert [records for _, records in contents(tmp_path)] == [[(1, b"before")], [(1, b"stuck")],
                                                            [(1, b"gathers meanwhile")]]
    assert recover(tmp_path).truncated_bytes == 0


def test_no_space_ahead_is_no_error(tmp_path: Path) -> None:
    """Zeros are written before the batches of a growing file; where they do not fit, the batch still does."""
    ops = Ops()

    def limited(fd: int, data: bytes, at: int) -> int:
        if at + len(data) <= 100_000:
            return os.pwrite(fd, data, at)
        if at >= 100_000:
            raise OSError(errno.ENOSPC, "")
        return os.pwrite(fd, data[:100_000 - at], at)

    ops.pwrite = limited
    with writing(tmp_path, ops=ops) as journal:
        for index in range(10):
            commit(journal, (1, b"%d" % index * 1000))
            assert journal.status == JOURNAL_OK
        assert max(path.stat().st_size for path in tmp_path.iterdir()) < 15_000, "the space is given back"
    assert len(contents(tmp_path)) == 10


def test_nothing_is_written_ahead_while_space_is_needed(tmp_path: Path) -> None:
    with writing(tmp_path) as journal:
        journal.recycling = False
        commit(journal, (1, b"small"))
        assert max(path.stat().st_size for path in tmp_path.iterdir()) < 1000
        journal.recycling = True
        commit(journal, (1, b"small"))
        assert max(path.stat().st_size for path in tmp_path.iterdir()) > 1_000_000
    assert len(contents(tmp_path)) == 2


def test_closing_a_full_journal_says_what_was_lost(tmp_path: Path) -> None:
    ops = Ops()

    def full(fd: int, data: bytes, at: int) -> int:
        raise OSError(errno.ENOSPC, "")

    with pytest.raises(StorageError, match="closed with 10 bytes not written"), writing(tmp_path, ops=ops) as journal:
        commit(journal, (1, b"before"))
        ops.pwrite = full
        journal.append(1, b"stuck")
        journal.submit()
        wait_event(journal)
    assert contents(tmp_path) == [(1, [(1, b"before")])]


LIMITED = """
import resource, signal, sys
from pathlib import Path
from kit.journals import commit, wait_durable, wait_event, writing
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
with writing(Path(sys.argv[1])) as journal:
    commit(journal, (1, b"before"))
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, resource.RLIM_INFINITY))
    journal.append(1, bytes(5000))
    journal.submit()
    wait_event(journal)
    journal.poll()
    print(journal.status, journal.durable, flush=True)
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    wait_durable(journal, 2)
    print(journal.status, journal.durable, flush=True)
"""


def test_file_size_limit_of_the_kernel_heals(tmp_path: Path) -> None:
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[1] == resource.RLIM_INFINITY
    result = subprocess.run([sys.executable, "-P", "-c", LIMITED, str(tmp_path)], capture_output=True, text=True,
                            env=environment(TESTS, PYTHONFAULTHANDLER="1"))
    assert (result.stdout.split(), result.stderr) == ([str(JOURNAL_FULL), "1", str(JOURNAL_OK), "2"], "")
    assert contents(tmp_path) == [(1, [(1, b"before")]), (2, [(1, bytes(5000))])]


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small tmpfs needs root")
def test_full_file_system_heals(tmp_path: Path) -> None:
    where = tmp_path / "small"
    where.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(where)], capture_output=True).returncode:
        pytest.skip("mount is not allowed here")
    try:
        (where / "ballast").write_bytes(bytes(150_000))
        directory = where / "journal"
        directory.mkdir()
        with writing(directory) as journal:
            last = 0
            while journal.status == JOURNAL_OK:
                last = journal.append(1, body_of(journal.gathering))
                journal.submit()
                wait_event(journal)
                journal.poll()
            assert (journal.status, journal.durable) == (JOURNAL_FULL, last - 1)
            (where / "ballast").unlink()
            wait_durable(journal, last)
        assert [records for _, records in contents(directory)] == [[(1, body_of(n))] for n in range(1, last + 1)]
    finally:
        subprocess.run(["umount", str(where)], check=True)


# ---------------------------------------------------------------------------------------------------- crashes


def assert_holds(directory: Path, said: int) -> int:
    """Every batch up to `said` is there, and every batch is as it was written."""
    found = recover(directory)
    assert found.last >= said
    for number, records in contents(directory):
        # Three records a turn; turns that found the writer busy share a batch.
        assert records and len(records) % 3 == 0
        assert set(records) == {(9, body_of(number))}
    return found.last


def test_kill_loses_nothing_durable(tmp_path: Path, mode: str) -> None:
    kills_and_goes_on(tmp_path, 6, 120, assert_holds, 11, mode)


def test_power_loss_loses_nothing_durable(tmp_path: Path) -> None:
    cuts_power_and_goes_on(tmp_path, 5, 80, assert_holds, 13, 6)


def test_power_loss_in_buffered_mode_loses_the_interval_and_leaves_no_damage(tmp_path: Path) -> None:
    """The other half of the test above: this disk does forget. And a gap among unsynced batches is not corruption."""
    for number in range(5):
        cut = PowerCut(tmp_path / f"cut{number}")
        said = killed(cut.live, 15, "buffered", cut.env)
        assert said >= 15
        # A new file begins with a sync of the one before: who is killed just then has lost nothing, and does it again.
        if recover(cut.restore(tmp_path / f"after{number}")).last < said:
            break
    else:
        pytest.fail("five times this disk forgot nothing")
    for attempt in range(20):
        torn = cut.restore(tmp_path / f"torn{attempt}", random.Random(attempt))
        assert_holds(torn, 0)


def test_what_recovery_accepts_is_on_the_medium_before_it_is_built_upon(tmp_path: Path) -> None:
    """kill -9 leaves bytes that were written and not synced; a restart reads them; then power goes."""
    cut = PowerCut(tmp_path / "cut")
    first = killed(cut.live, 20, "buffered", cut.env)
    second = killed(cut.live, 20, "fsync", cut.env)
    assert second > first
    assert_holds(cut.restore(tmp_path / "after"), second)
    for attempt in range(5):
        assert_holds(cut.restore(tmp_path / f"torn{attempt}", random.Random(attempt)), second)
