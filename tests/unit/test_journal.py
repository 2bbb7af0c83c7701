"""The journal on its own: group commit, files, errors of the disk, crashes. Random cuts are in property/."""
from __future__ import annotations

import errno
import json
import os
import random
import resource
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from kit import journals
from kit.journals import Ops, body_of, commit, contents, wait_durable, wait_event, wait_rotated, writing
from kit.powercut import PowerCut

from fluxmq._core.errors import CorruptError, StorageError, UsageError
from fluxmq._core.journal import JOURNAL_FAILED, JOURNAL_FULL, JOURNAL_OK, Journal
from fluxmq._core.journal_format import crc32c, decode_file_header, file_name, file_number
from fluxmq.storage.journal_files import recover


@pytest.fixture(params=["fsync", "buffered"])
def mode(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def files(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def test_crc32c_check_value() -> None:
    # The check value of CRC-32/ISCSI.
    assert crc32c(b"123456789") == crc32c(b"123456789", 0, True) == 0xE3069283


def test_file_names() -> None:
    assert file_number(file_name(0x1F)) == 0x1F
    for other in ("journal.spare", "journal-1.log", "journal-000000000000001F.log", "journal--00000000000001f.log"):
        assert file_number(other) is None


def test_batches_come_back(tmp_path: Path, mode: str) -> None:
    with writing(tmp_path, mode=mode) as journal:
        assert (journal.gathering, journal.durable, journal.backlog()) == (1, 0, 0)
        assert commit(journal, (1, b"one"), (2, b""), (255, b"\0" * 100_000)) == 1
        assert (journal.gathering, journal.durable, journal.backlog()) == (2, 1, 0)
        assert commit(journal, (3, b"two")) == 2
    assert contents(tmp_path) == [(1, [(1, b"one"), (2, b""), (255, b"\0" * 100_000)]), (2, [(3, b"two")])]
    assert contents(tmp_path, after=1) == [(2, [(3, b"two")])]


def test_close_writes_what_gathered(tmp_path: Path, mode: str) -> None:
    with writing(tmp_path, mode=mode) as journal:
        journal.append(1, b"handed")
        journal.submit()
        journal.append(1, b"not handed")
    assert [records for _, records in contents(tmp_path)] == [[(1, b"handed")], [(1, b"not handed")]]
    journal.close()
    with pytest.raises(UsageError):
        journal.append(1, b"late")
    journal.run()  # returns: a thread may be slow to begin


def test_close_without_a_writer_writes_too(tmp_path: Path) -> None:
    journal = Journal(tmp_path, identity=1)
    journal.append(1, b"x")
    journal.close()
    assert contents(tmp_path) == [(1, [(1, b"x")])]


def test_next_batch_gathers_while_one_is_written(tmp_path: Path) -> None:
    """At most one batch is under way, everything that comes meanwhile is one batch, and nothing is durable early."""
    ops, gate, entered = Ops(), threading.Semaphore(0), threading.Semaphore(0)

    def held(fd: int) -> None:
        entered.release()
        gate.acquire(timeout=30)

    with writing(tmp_path, ops=ops) as journal:
        ops.fdatasync = held
        journal.append(1, b"first")
        assert journal.submit() == 1
        assert entered.acquire(timeout=30)
        for index in range(100):
            assert journal.append(1, b"%d" % index) == 2
            assert journal.submit() == 0
        assert (journal.poll(), journal.durable, journal.gathering) == (0, 0, 2)
        assert journal.backlog() > 500
        gate.release()
        wait_event(journal)
        assert (journal.poll(), journal.durable, journal.gathering) == (1, 1, 3)
        assert entered.acquire(timeout=30)
        gate.release()
        wait_durable(journal, 2)
        assert journal.backlog() == 0
    assert [len(records) for _, records in contents(tmp_path)] == [1, 100]


def test_large_bursts_are_given_back_and_intact(tmp_path: Path) -> None:
    big = random.Random(1).randbytes(9_000_000)
    with writing(tmp_path) as journal:
        commit(journal, (1, big))
        commit(journal, (1, b"small"))
        commit(journal, (1, big))
    assert [records[0][1] for _, records in contents(tmp_path)] == [big, b"small", big]


def test_wrong_arguments_are_refused(tmp_path: Path) -> None:
    for wrong in ({"mode": "none"}, {"first_batch": 0}, {"first_file": 0}, {"interval": 0.0}):
        with pytest.raises(UsageError):
            Journal(tmp_path, identity=1, **wrong)  # type: ignore[arg-type]
    with pytest.raises(StorageError, match="No such file"):
        Journal(tmp_path / "missing", identity=1)
    with writing(tmp_path) as journal:
        journal.append(1, b"x")
        journal.submit()
        wait_durable(journal, 1)  # so the writer is inside run()
        with pytest.raises(UsageError, match="runs already"):
            journal.run()


# ---------------------------------------------------------------------------------------------------- files


def test_rotate_and_retire(tmp_path: Path, mode: str) -> None:
    with writing(tmp_path, mode=mode) as journal:
        assert journal.rotate() == 0  # nothing in it: nothing to begin anew
        for index in range(3):
            commit(journal, (1, b"%d" % index))
        assert journal.rotate() == 3
        assert journal.rotate() == 3  # the wish stands, or has been granted and the new file is empty
        wait_rotated(journal)
        commit(journal, (1, b"3"))
        assert journal.retire(2) == 0  # the old file holds batch 3
        assert journal.retire(3) == 1
        assert files(tmp_path) == [file_name(2), "journal.spare"]
        assert journal.retire(4) == 0  # never the current one
        assert contents(tmp_path, after=3) == [(4, [(1, b"3")])]


def test_recycled_file_shows_nothing_of_its_earlier_life(tmp_path: Path, mode: str) -> None:
    with writing(tmp_path, mode=mode) as journal:
        for _ in range(20):
            commit(journal, (1, b"old life" * 40))
        upto = journal.rotate()
        wait_rotated(journal)
        size = (tmp_path / file_name(1)).stat().st_size
        assert journal.retire(upto) == 1
        commit(journal, (1, b"between"))
        journal.rotate()
        wait_rotated(journal)
        assert not (tmp_path / "journal.spare").exists()
        assert (tmp_path / file_name(3)).stat().st_size == size
        assert recover(tmp_path, after=20).files[-1].number == 2
    # One more life, killed after one batch: the program is gone, the stale batches are there.
    with writing(tmp_path, mode=mode, found=recover(tmp_path, after=20), identity=8) as journal:
        commit(journal, (1, b"last"))
    found = recover(tmp_path, after=20)
    assert (found.last, found.truncated_bytes, found.dropped) == (22, 0, [])
    assert contents(tmp_path) == [(21, [(1, b"between")]), (22, [(1, b"last")])]


def test_stale_batches_behind_the_end_are_not_read(tmp_path: Path) -> None:
    with writing(tmp_path) as journal:
        for _ in range(20):
            commit(journal, (1, b"old life" * 40))
        upto = journal.rotate()
        wait_rotated(journal)
        journal.retire(upto)
        commit(journal, (1, b"a"))
        journal.rotate()
        wait_rotated(journal)
        commit(journal, (1, b"b"))
        size = (tmp_path / file_name(3)).stat().st_size
        assert size > 20 * 300
        found = recover(tmp_path, after=20)  # as after kill -9: nothing was closed
        assert (found.last, found.truncated_bytes) == (22, 0)
        assert (tmp_path / file_name(3)).stat().st_size < size


def test_a_retired_name_is_gone_from_the_medium_before_its_file_is_written_again(tmp_path: Path) -> None:
    """Else a loss of power could bring back the old name over the new header, which would read as damage."""
    ops, calls = Ops(), []
    with writing(tmp_path, ops=ops) as journal:
        commit(journal, (1, b"x"))
        upto = journal.rotate()
        wait_rotated(journal)
        commit(journal, (1, b"y"))

        def sync(fd: int) -> None:
            names = sorted(path.name for path in tmp_path.iterdir())
            calls.append(("sync", names))
            os.fsync(fd)

        def write(fd: int, data: bytes, at: int) -> int:
            calls.append(("write", [Path(os.readlink(f"/proc/self/fd/{fd}")).name]))
            return os.pwrite(fd, data, at)

        ops.fsync, ops.pwrite = sync, write
        journal.retire(upto)
        journal.rotate()
        wait_rotated(journal)
        assert calls == [("sync", [file_name(2), "journal.spare"]), ("write", ["journal.spare"]),
                         ("sync", [file_name(2), file_name(3)])]


def test_files_above_the_limit_are_not_kept(tmp_path: Path) -> None:
    with writing(tmp_path, recycle_bytes_max=1000) as journal:
        commit(journal, (1, bytes(2000)))
        upto = journal.rotate()
        wait_rotated(journal)
        assert journal.retire(upto) == 1
        assert files(tmp_path) == [file_name(2)]


def test_spare_taken_away_is_no_error(tmp_path: Path) -> None:
    with writing(tmp_path) as journal:
        for turn in range(2):
            commit(journal, (1, b"x"))
            upto = journal.rotate()
            wait_rotated(journal)
            journal.retire(upto)
            if turn == 0:
                (tmp_path / "journal.spare").unlink()
        commit(journal, (1, b"y"))
        assert journal.status == JOURNAL_OK


def test_restart_continues_the_numbers(tmp_path: Path, mode: str) -> None:
    for life in range(5):
        found = recover(tmp_path)
        assert (found.last, len(found.files)) == (life * 2, life)
        with writing(tmp_path, found=found, identity=life, mode=mode) as journal:
            assert commit(journal, (1, b"a")) == life * 2 + 1
            assert commit(journal, (1, b"b")) == life * 2 + 2
    # Lives without a batch leave nothing behind.
    for life in range(5):
        with writing(tmp_path, found=recover(tmp_path), identity=50 + life):
            pass
    recover(tmp_path)
    assert len(files(tmp_path)) == 5
    with writing(tmp_path, found=recover(tmp_path)) as journal:
        assert journal.retire(10) == 5


# ---------------------------------------------------------------------------------------------------- damage


def three_files(directory: Path) -> None:
    """Batches 1-3, 4-6 and 7-9."""
    with writing(directory) as journal:
        for index in range(3):
            for _ in range(3):
                commit(journal, (index, body_of(journal.gathering)))
            if index < 2:
                journal.rotate()
                wait_rotated(journal)


def flip(path: Path, offset: int) -> None:
    raw = bytearray(path.read_bytes())
    raw[offset] ^= 0x40
    path.write_bytes(raw)


def remove(path: Path, _offset: int) -> None:
    path.unlink()


DAMAGES: list[tuple[str, Callable[[Path, int], None], int, int, int, str]] = [
    # what, how, file, offset, batches before it, text
    ("header of the first", flip, 1, 9, 0, "CRC of its header"),
    ("magic", flip, 2, 0, 3, "FMQJ"),
    ("header of the last", flip, 3, 20, 6, "CRC of its header"),
    ("a batch of the first", flip, 1, 90, 0, "offset 40 does not hold"),
    ("the last batch of the middle", flip, 2, -1, 5, "though the next file begins with batch 7"),
    ("a batch of the last, followed by another", flip, 3, 50, 6, "had been written and synced"),
    ("first file", remove, 1, 0, 0, "a journal file is missing"),
    ("middle file", remove, 2, 0, 3, "a journal file is missing|does not hold"),
]


@pytest.mark.parametrize(("how", "file", "offset", "before", "text"), [each[1:] for each in DAMAGES],
                         ids=[each[0] for each in DAMAGES])
def test_damage_is_refused_then_cut_on_request(tmp_path: Path, how: Callable[[Path, int], None], file: int, offset: int,
                                               before: int, text: str) -> None:
    three_files(tmp_path)
    how(tmp_path / file_name(file), offset)
    listing = files(tmp_path)
    with pytest.raises(CorruptError, match=text) as refused:
        recover(tmp_path)
    assert "storage.recover_on_startup" in str(refused.value)
    assert str(tmp_path) in str(refused.value)
    assert files(tmp_path) == listing, "refusing must not touch anything"
    found = recover(tmp_path, truncate_damage=True)
    assert found.last == before
    assert found.dropped
    assert [number for number, _ in contents(tmp_path)] == list(range(1, before + 1))
    again = recover(tmp_path)
    assert (again.last, again.dropped, again.truncated_bytes) == (before, [], 0)
    with writing(tmp_path, found=again, identity=99) as journal:
        assert commit(journal, (1, b"on")) == before + 1
    assert contents(tmp_path)[-1] == (before + 1, [(1, b"on")])


def test_damage_below_what_is_needed_is_no_matter(tmp_path: Path) -> None:
    three_files(tmp_path)
    (tmp_path / file_name(1)).unlink()
    assert recover(tmp_path, after=3).first == 4
    with pytest.raises(CorruptError):
        recover(tmp_path, after=2)


def test_missing_journal_beside_a_state_is_refused(tmp_path: Path) -> None:
    assert recover(tmp_path).last == 0
    with pytest.raises(CorruptError, match="no journal file"):
        recover(tmp_path, after=5)
    assert recover(tmp_path, after=5, truncate_damage=True).files == []


def test_file_under_another_name_is_refused(tmp_path: Path) -> None:
    three_files(tmp_path)
    (tmp_path / file_name(3)).rename(tmp_path / file_name(4))
    with pytest.raises(CorruptError, match="says that it is file 3"):
        recover(tmp_path)


def test_newer_format_is_refused(tmp_path: Path) -> None:
    three_files(tmp_path)
    path = tmp_path / file_name(1)
    raw = bytearray(path.read_bytes())
    raw[4] = 2
    raw[36:40] = crc32c(bytes(raw[:36])).to_bytes(4, "little")
    path.write_bytes(raw)
    with pytest.raises(CorruptError, match="version 2"):
        decode_file_header(bytes(raw))
    with pytest.raises(CorruptError, match="version 2"):
        recover(tmp_path)


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
    tried = threading.Semaphore(0)

    def limited(fd: int, data: bytes, at: int) -> int:
        if not full.is_set():
            return os.pwrite(fd, data, at)
        tried.release()
        if len(data) > 10 and not rotating:
            os.pwrite(fd, data[:10], at)  # a part fits
            if tried.acquire(blocking=False):
                return 10
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
        assert "waiting for space" in journal.status_text
        assert os.strerror(getattr(errno, name)) in journal.status_text
        journal.append(1, b"gathers meanwhile")
        assert journal.submit() == 0
        assert contents(tmp_path) == [(1, [(1, b"before")])]
        full.clear()
        wait_durable(journal, 3)
        assert (journal.status, journal.status_text) == (JOURNAL_OK, "ok")
    assert [records for _, records in contents(tmp_path)] == [[(1, b"before")], [(1, b"stuck")],
                                                            [(1, b"gathers meanwhile")]]
    assert recover(tmp_path).truncated_bytes == 0


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


def python(*arguments: str) -> list[str]:
    return [sys.executable, *arguments]


def environment() -> dict[str, str]:
    return os.environ | {"PYTHONPATH": os.pathsep.join(each or os.getcwd() for each in sys.path)}


def test_file_size_limit_of_the_kernel_heals(tmp_path: Path) -> None:
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[1] == resource.RLIM_INFINITY
    result = subprocess.run(python("-c", LIMITED, str(tmp_path)), env=environment(), capture_output=True, text=True)
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


def killed(directory: Path, mode: str, lines: int, more: dict[str, str] | None = None, what: str = "journal") -> int:
    """Run the appending program, kill it after some lines, return the last number that it said was durable."""
    process = subprocess.Popen(python(journals.__file__, what, str(directory), mode), stdout=subprocess.PIPE,
                               env=environment() | (more or {}))
    assert process.stdout is not None
    line = b""
    try:
        for _ in range(lines):
            line = process.stdout.readline()
            assert line.endswith(b"\n")
    finally:
        process.send_signal(signal.SIGKILL)
    rest = line + process.stdout.read()
    process.stdout.close()
    process.wait()
    assert process.returncode == -signal.SIGKILL
    return int(rest.rsplit(b"\n", 1)[0].split()[-1])


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
    chance = random.Random(11)
    last = 0
    for _ in range(6):
        said = killed(tmp_path, mode, chance.randint(1, 120))
        last_now = assert_holds(tmp_path, max(said, last))
        assert last_now > last
        last = last_now


def test_power_loss_loses_nothing_durable(tmp_path: Path) -> None:
    chance = random.Random(13)
    live, last = tmp_path / "start", 0
    live.mkdir()
    for turn in range(5):
        cut = PowerCut(tmp_path / f"cut{turn}", live)
        said = killed(cut.live, "fsync", chance.randint(1, 80), cut.env)
        for attempt in range(6):
            assert_holds(cut.restore(tmp_path / f"torn{turn}-{attempt}", random.Random(attempt)), max(said, last))
        live = cut.restore(tmp_path / f"after{turn}")
        last = assert_holds(live, max(said, last))


def test_power_loss_in_buffered_mode_loses_the_interval_and_leaves_no_damage(tmp_path: Path) -> None:
    """The other half of the test above: this disk does forget. And a gap among unsynced batches is not corruption."""
    cut = PowerCut(tmp_path / "cut")
    said = killed(cut.live, "buffered", 15, cut.env)
    assert said >= 15
    assert recover(cut.restore(tmp_path / "after")).last < said
    for attempt in range(20):
        torn = cut.restore(tmp_path / f"torn{attempt}", random.Random(attempt))
        assert_holds(torn, 0)


def test_what_recovery_accepts_is_on_the_medium_before_it_is_built_upon(tmp_path: Path) -> None:
    """kill -9 leaves bytes that were written and not synced; a restart reads them; then power goes."""
    cut = PowerCut(tmp_path / "cut")
    first = killed(cut.live, "buffered", 20, cut.env)
    second = killed(cut.live, "fsync", 20, cut.env)
    assert second > first
    assert_holds(cut.restore(tmp_path / "after"), second)
    for attempt in range(5):
        assert_holds(cut.restore(tmp_path / f"torn{attempt}", random.Random(attempt)), second)


def test_benchmark_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """At smoke size, so that it cannot rot."""
    bench_journal = pytest.importorskip("bench.micro.bench_journal")
    bench_journal.main(["--smoke", "--dir", str(tmp_path), "--json"])
    rows = json.loads(capsys.readouterr().out)
    assert [row["record_bytes"] for row in rows] == list(bench_journal.RECORD_BYTES)
    assert all(row["records_per_second"] > 0 for row in rows)
