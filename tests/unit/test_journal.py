"""The journal on its own: group commit, files, damage. Errors of the disk and crashes: test_journal_faults.py."""
from __future__ import annotations

import itertools
import json
import os
import random
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from kit.journals import Ops, body_of, commit, contents, wait_durable, wait_event, wait_rotated, writing

from fluxmq._core.disk.journal import JOURNAL_OK, Journal
from fluxmq._core.disk.journal_format import crc32c, decode_file_header, file_name, file_number
from fluxmq._core.errors import CorruptError, StorageError, UsageError
from fluxmq.bench.micro import bench_journal
from fluxmq.storage.journal_files import recover
from fluxmq.storage.journal_repair import repair_journal


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
            Journal(tmp_path, identity=1, **wrong)
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
    assert (found.last, found.truncated_bytes) == (22, 0)
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


def stats(directory: Path) -> dict[str, os.stat_result]:
    """Of all files, at one instant: the writer's thread may rename one meanwhile."""
    while True:
        try:
            return {path.name: path.stat() for path in directory.iterdir()}
        except FileNotFoundError:
            continue


def test_a_file_that_has_grown_to_its_size_is_followed_by_another(tmp_path: Path, mode: str) -> None:
    with writing(tmp_path, mode=mode, file_bytes_max=10_000) as journal:
        for index in range(40):
            commit(journal, (1, b"%04d" % index * 250))
        upto = journal.rotate()
        wait_rotated(journal)
        sizes = [found.st_size for found in stats(tmp_path).values()]
        assert len(sizes) >= 4 and max(sizes) < 10_000 + 1_100
        # Several files are retired at once, and as many as there is use for are kept.
        assert journal.retire(upto) >= 3
        assert sum("spare" in name for name in files(tmp_path)) >= 3
        inodes = {found.st_ino for name, found in stats(tmp_path).items() if "spare" in name}
        for index in range(40, 100):
            commit(journal, (1, b"%04d" % index * 250))
        used = {found.st_ino for name, found in stats(tmp_path).items() if "spare" not in name}
        assert inodes <= used, "every spare is written again"
        assert [records for _, records in contents(tmp_path, after=upto)] == [
            [(1, b"%04d" % index * 250)] for index in range(upto, 100)]


def test_no_more_spares_than_there_is_use_for(tmp_path: Path) -> None:
    with writing(tmp_path, file_bytes_max=5_000) as journal:
        for _ in range(40):
            commit(journal, (1, bytes(2000)))
        assert journal.retire(journal.durable) >= 10
        assert sum("spare" in name for name in files(tmp_path)) == 4


def test_small_batches_overwrite_what_is_there(tmp_path: Path, mode: str) -> None:
    """A sync is cheap where the file does not grow."""
    with writing(tmp_path, mode=mode) as journal:
        commit(journal, (1, b"x"))
        size = (tmp_path / file_name(1)).stat().st_size
        for index in range(100):
            commit(journal, (1, b"%d" % index))
        assert (tmp_path / file_name(1)).stat().st_size == size
        assert len(contents(tmp_path)) == 101
    found = recover(tmp_path)
    assert (found.last, found.truncated_bytes) == (101, 0)


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
    """offset: -1 is the last byte that was written; behind it are zeros for batches to come."""
    raw = bytearray(path.read_bytes())
    raw[offset if offset >= 0 else len(raw.rstrip(b"\0")) - 1] ^= 0x40
    path.write_bytes(raw)


def remove(path: Path, _offset: int) -> None:
    path.unlink()


DAMAGES: list[tuple[str, Callable[[Path, int], None], int, int, range, str]] = [
    # what, how, file, offset, batches that are lost, text
    ("header of the first", flip, 1, 9, range(0), "CRC of its header"),
    ("magic", flip, 2, 0, range(0), "FMQJ"),
    ("header of the last", flip, 3, 20, range(0), "CRC of its header"),
    ("file id of the middle", flip, 2, 25, range(4, 7), "CRC of its header"),
    ("a batch of the first", flip, 1, 90, range(1, 2), "offset 40 does not hold"),
    ("the last batch of the middle", flip, 2, -1, range(6, 7), "though the next file begins with batch 7"),
    ("a batch of the last, followed by another", flip, 3, 50, range(7, 8), "had been written and synced"),
    ("first file", remove, 1, 0, range(1, 4), "journal file.* missing"),
    ("middle file", remove, 2, 0, range(4, 7), "a journal file is missing|does not hold"),
]


@pytest.mark.parametrize(("how", "file", "offset", "lost", "text"), [each[1:] for each in DAMAGES],
                         ids=[each[0] for each in DAMAGES])
def test_damage_is_refused_and_repair_loses_what_stood_there(
        tmp_path: Path, how: Callable[[Path, int], None], file: int, offset: int, lost: range, text: str) -> None:
    three_files(tmp_path)
    whole = contents(tmp_path)
    how(tmp_path / file_name(file), offset)
    listing = files(tmp_path)
    with pytest.raises(CorruptError, match=text) as refused:
        recover(tmp_path)
    assert f"fluxmq log repair {tmp_path.parent}" in str(refused.value)
    assert str(tmp_path) in str(refused.value)
    assert files(tmp_path) == listing, "refusing must not touch anything"
    report = repair_journal(tmp_path)
    assert report.dropped or report.first == 4
    after = report.first - 1
    assert contents(tmp_path) == [(n, [] if n in lost else records) for n, records in whole if n > after]
    assert after == (3 if how is remove and file == 1 else 0)
    again = recover(tmp_path, after=after)
    assert (again.last, again.truncated_bytes) == (9, 0)
    second = repair_journal(tmp_path)
    assert (second.dropped, second.set_aside, second.last) == ([], [], 9)
    with writing(tmp_path, found=again, identity=99) as journal:
        assert commit(journal, (1, b"on")) == 10
    assert contents(tmp_path)[-1] == (10, [(1, b"on")])


def test_a_repair_that_is_cut_short_can_be_run_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed before any call that changes a name or a file's end."""
    names = ["link", "rename", "unlink", "fsync", "truncate"]
    calls = 0
    for at in itertools.count():
        where = tmp_path / str(at)
        where.mkdir()
        three_files(where)
        whole = contents(where)
        flip(where / file_name(1), 90)
        (where / file_name(2)).unlink()
        calls = 0

        def stop(real: Callable[..., object], *arguments: object, **more: object) -> object:
            nonlocal calls
            calls += 1
            if calls > at:      # noqa: B023  # it is used up within the turn
                raise KeyboardInterrupt
            return real(*arguments, **more)

        with monkeypatch.context() as patch:
            for name in names:
                patch.setattr(os, name, partial(stop, getattr(os, name)))
            try:
                repair_journal(where)
                break
            except KeyboardInterrupt:
                pass
        repair_journal(where)
        assert contents(where) == [(n, [] if n in (1, 4, 5, 6) else records) for n, records in whole]
    assert calls >= 4


def test_a_torn_tail_is_left_to_the_start(tmp_path: Path) -> None:
    three_files(tmp_path)
    path = tmp_path / file_name(3)
    flip(path, -1)
    before = path.read_bytes()
    report = repair_journal(tmp_path)
    assert (report.dropped, path.read_bytes(), recover(tmp_path).last) == ([], before, 8)


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
    with pytest.raises(CorruptError, match="version 2"):
        repair_journal(tmp_path)


def test_benchmark_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """At smoke size, so that it cannot rot."""
    bench_journal.main(["--smoke", "--dir", str(tmp_path), "--json"])
    rows = json.loads(capsys.readouterr().out)
    assert [row["record_bytes"] for row in rows] == list(bench_journal.RECORD_BYTES)
    assert all(row["records_per_second"] > 0 for row in rows)


def test_counters(tmp_path: Path) -> None:
    for name in ("fsync", "buffered"):
        (tmp_path / name).mkdir()
    with writing(tmp_path / "fsync") as journal:
        assert (journal.batches_total, journal.bytes_total, journal.syncs, journal.sync_ns) == (0, 0, 0, 0)
        commit(journal, (1, b"x" * 1000), (2, b""))
        commit(journal, (3, b"y"))
        assert (journal.batches_total, journal.syncs) == (2, 2)
        assert 1001 < journal.bytes_total < 1200                  # records and batches have headers
        assert journal.sync_ns > 0
    assert (journal.batches_total, journal.syncs) == (2, 2)      # they may be asked for after the end
    with writing(tmp_path / "buffered", mode="buffered", interval=3600.0) as journal:
        commit(journal, (1, b"one"))
        commit(journal, (2, b"two"))
        assert (journal.batches_total, journal.syncs) == (2, 0)
    assert (journal.batches_total, journal.syncs) == (2, 1)      # close() syncs
