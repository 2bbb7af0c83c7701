"""The segment store: many logs, a disk that fails or fills up, readers beside the writer, repair, and `fluxmq log`."""
from __future__ import annotations

import errno
import fcntl
import io
import json
import os
import resource
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from kit.python import TESTS, environment
from kit.segments import Full, Scarce, blocks_of, plain, raw_of, read_all
from oracle import stored

from fluxmq._core.disk.segment_format import log_name
from fluxmq._core.errors import CorruptError, ShortageError, StorageError, UsageError
from fluxmq.app import cli, exit_codes
from fluxmq.model.limits import VIEW_SPACE_BYTES
from fluxmq.storage import reading, segment_writer
from fluxmq.storage.segment_files import FileOps
from fluxmq.storage.segment_repair import repair, verify
from fluxmq.storage.segments import SegmentStore


def opened(directory: Path, **more: object) -> SegmentStore:
    store = SegmentStore(directory, **more)  # type: ignore[arg-type]
    store.open()
    return store


def offsets(store: SegmentStore, number: int = 1) -> list[int]:
    return stored.offsets(read_all(store, number))


def files(directory: Path, number: int = 1) -> list[Path]:
    return sorted((directory / "queues" / log_name(number)).glob("*.seg"))


# ------------------------------------------------------------------------------------------------------------ life


def test_life(tmp_path: Path) -> None:
    store = SegmentStore(tmp_path)
    with pytest.raises(UsageError, match=r"call open\(\)"):
        store.write(1, [])
    with pytest.raises(UsageError, match=r"call open\(\)"):
        store.sync([1])
    assert store.open() == {}
    with pytest.raises(UsageError, match="open already"):
        store.open()
    assert (store.read(1, 5), store.offset_at_time(1, 0), list(store.due_pairs(1))) == ((5, 5, []), None, [])
    store.trim(1, 9)
    store.remove(1)
    store.sync([1, 2])
    assert store.bytes_total == 0
    store.close()
    store.close()
    with pytest.raises(UsageError, match="zstd or none"):
        SegmentStore(tmp_path, compression="lz4")


def test_what_open_tells(tmp_path: Path) -> None:
    store = opened(tmp_path, segment_bytes=1000)
    assert store.write(1, blocks_of(plain(range(3, 60, 2)))) == 60
    assert store.write(7 << 56, blocks_of(plain([7 << 56]))) == (7 << 56) + 1
    store.write(5, [])
    total = store.bytes_total
    store.close()
    store = SegmentStore(tmp_path)
    found = store.open()
    assert list(found) == [1, 7 << 56]
    assert (found[1].first, found[1].next, found[1].messages) == (3, 60, 29)
    assert sum(log.bytes for log in found.values()) == store.bytes_total == total
    assert sum(log.files for log in found.values()) == len([*tmp_path.glob("queues/*/*.seg")]) >= 3
    assert sum(path.stat().st_size for path in tmp_path.glob("queues/*/*.seg")) == total
    store.close()


def test_what_compresses_is_packed_and_what_does_not_is_not(tmp_path: Path) -> None:
    sizes = {}
    for compression in ("zstd", "none"):
        store = opened(tmp_path, compression=compression)
        number = 1 if compression == "none" else 2
        for kind, payload in enumerate((bytes(60_000), os.urandom(60_000))):
            before = store.bytes_total
            store.write(number, blocks_of([(kind, 1, 0, payload)]))
            sizes[compression, kind] = store.bytes_total - before
        assert stored.messages(read_all(store, number))[0].payload == bytes(60_000)
        store.close()
    assert sizes["zstd", 0] < 2000 and sizes["none", 0] > 60_000
    assert 60_000 < sizes["zstd", 1] < 60_300


def test_a_message_larger_than_a_file_has_its_own(tmp_path: Path) -> None:
    store = opened(tmp_path, segment_bytes=1000, compression="none")
    large = [(n, n, 0, bytes([n]) * 5000) for n in range(4)]
    store.write(1, blocks_of(large, 1))
    assert len(files(tmp_path)) == 4 and read_all(store, 1) == raw_of(large)
    assert store.read(1, 2, 10)[:2] == (2, 3)
    store.close()


def test_trim_and_remove(tmp_path: Path) -> None:
    store = opened(tmp_path, segment_bytes=1000)
    store.write(1, blocks_of(plain(range(100))))
    store.sync([1])
    store.trim(1, 50)
    left = offsets(store)
    assert left[0] <= 50 < left[-1] == 99 and left == list(range(left[0], 100)) and left[0] > 30
    first, covers, blocks = store.read(1, 0)
    assert (first, stored.offsets(blocks[0])[0]) == (0, left[0]) and covers > left[0]
    store.trim(1, 100)
    assert files(tmp_path) == [] and store.read(1, 0) == (0, 0, [])
    assert store.write(1, blocks_of(plain(range(90, 110)))) == 110
    assert offsets(store) == list(range(100, 110)), "what was there already is skipped, also when it was removed since"
    (tmp_path / "queues" / log_name(1) / "x.seg.damaged").write_bytes(b"old")
    store.remove(1)
    assert not (tmp_path / "queues" / log_name(1)).exists() and store.read(1, 0) == (0, 0, [])
    store.close()


def test_more_files_than_descriptors(tmp_path: Path) -> None:
    store = opened(tmp_path, open_files_max=3, segment_bytes=600)
    for turn in range(3):
        for number in range(30):
            store.write(number, blocks_of(plain(range(turn * 5, turn * 5 + 5))))
            assert len(store._handles) <= 4
    store.sync(range(30))
    for number in range(30):
        assert offsets(store, number) == list(range(15))
    assert len(store._handles) <= 4
    store.close()


# ----------------------------------------------------------------------------------------------- a disk that fails


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG])
def test_no_space_leaves_the_files_whole_and_can_be_tried_again(tmp_path: Path, code: int) -> None:
    blocks = blocks_of(plain(range(40)))
    for room in range(0, 4500, 111):
        where = tmp_path / f"{room}"
        where.mkdir()
        disk = Full(room, code)
        store = opened(where, segment_bytes=1200, ops=disk)
        while True:
            try:
                store.write(1, blocks)
                store.sync([1])
                break
            except StorageError as error:
                assert os.strerror(code) in str(error)
            kept = offsets(store)
            assert kept == list(range(len(kept)))
            assert not [report for report in verify(where) if report.problems]
            disk.room += 450
        assert offsets(store) == list(range(40))
        store.close()
        store = opened(where)
        assert offsets(store) == list(range(40)) and store.recovery.truncated == []
        store.close()


def test_space_is_left_for_the_view(tmp_path: Path) -> None:
    """Else a checkpoint could fill the disk with what counts only when its view is written."""
    disk = Scarce(VIEW_SPACE_BYTES + 30_000)
    store = opened(tmp_path, compression="none", ops=disk)
    store.write(1, blocks_of(plain(range(10), 1000)))
    store.sync([1])
    room = disk.room
    for _ in range(2):
        with pytest.raises(ShortageError, match="No space left"):
            store.write(1, blocks_of(plain(range(10, 40), 1000)))
        assert disk.room == room and offsets(store) == list(range(10))
    store.write(1, blocks_of(plain(range(10, 20), 1000)))
    assert offsets(store) == list(range(20)) and disk.room >= VIEW_SPACE_BYTES
    store.close()


def test_a_system_that_does_not_tell_what_is_free_is_no_shortage(tmp_path: Path) -> None:
    class Silent(FileOps):
        def free(self, fd: int) -> int:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    store = opened(tmp_path, ops=Silent())
    assert store.write(1, blocks_of(plain(range(9)))) == 9
    store.sync([1])
    store.close()


def test_a_limit_of_the_process_on_file_size(tmp_path: Path) -> None:
    store = opened(tmp_path, compression="none")
    store.write(1, blocks_of(plain(range(10), 1000)))
    store.sync([1])
    size = store.bytes_total
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size + 5000, limits[1]))
    try:
        with pytest.raises(ShortageError, match="File too large"):
            store.write(1, blocks_of(plain(range(10, 40), 1000)))
        assert (store.bytes_total, files(tmp_path)[0].stat().st_size) == (size, size)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    store.write(1, blocks_of(plain(range(10, 40), 1000)))
    assert offsets(store) == list(range(40))
    store.close()


@pytest.mark.parametrize("call", ["fdatasync", "sync_directory", "syncfs"])
def test_a_failed_sync_is_final(tmp_path: Path, call: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if call == "syncfs":
        monkeypatch.setattr(segment_writer, "_SYNC_EACH_MAX", 0)
    ops = FileOps()
    store = opened(tmp_path, ops=ops)
    store.write(1, blocks_of(plain(range(5))))
    calls = []

    def broken(*_: object) -> None:
        calls.append(call)
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(ops, call, broken)
    with pytest.raises(StorageError, match="nothing more is written"):
        store.sync([1])
    monkeypatch.undo()
    for _ in range(2):
        with pytest.raises(StorageError, match="cannot be written any more"):
            store.sync([1])
        with pytest.raises(StorageError, match="cannot be written any more"):
            store.write(1, blocks_of(plain(range(5, 9))))
    assert calls == [call], "a failed sync must never be tried again"
    assert offsets(store) == list(range(5))
    store.close()


def test_a_whole_file_that_cannot_be_read_is_an_error_of_its_log(tmp_path: Path,
                                                                 monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a mapped file it would be SIGBUS, which ends the broker. A file is read as a whole where its index is gone."""
    store = opened(tmp_path, segment_bytes=500)
    for number in (1, 2):
        store.write(number, blocks_of(plain(range(50))))
    store.sync([1, 2])
    store.close()
    store = opened(tmp_path)
    sealed = files(tmp_path)[0]
    data = bytearray(sealed.read_bytes())
    trailer_and_index = len(data) - store._logs[1].files[0].end
    data[-trailer_and_index] ^= 1
    sealed.write_bytes(data)
    preadv, asked = os.preadv, []

    def broken(fd: int, buffers: list[memoryview], at: int) -> int:
        if os.readlink(f"/proc/self/fd/{fd}") == str(sealed):
            asked.append(at)
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return preadv(fd, buffers, at)

    monkeypatch.setattr(os, "preadv", broken)
    with pytest.raises(StorageError, match=f"{sealed} cannot be read.*fluxmq log verify"):
        read_all(store, 1)
    assert asked
    assert offsets(store, 2) == list(range(50))
    monkeypatch.undo()
    assert offsets(store, 1) == list(range(50))
    store.close()


def test_a_failed_sync_in_a_rotation_is_final(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ops = FileOps()
    store = opened(tmp_path, ops=ops, segment_bytes=500)

    def broken(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(ops, "fdatasync", broken)
    with pytest.raises(StorageError, match="nothing more is written"):
        store.write(1, blocks_of(plain(range(50))))
    assert len(files(tmp_path)) == 1
    store.close()


def test_descriptors_are_asked_before_they_go_where_syncfs_does_not_tell(tmp_path: Path,
                                                                         monkeypatch: pytest.MonkeyPatch) -> None:
    ops = FileOps()
    monkeypatch.setattr(ops, "syncfs_reports", False)
    synced: list[int] = []
    monkeypatch.setattr(ops, "fdatasync", synced.append)
    store = opened(tmp_path, ops=ops, open_files_max=2)
    for number in range(10):
        store.write(number, blocks_of(plain(range(3))))
    assert len(synced) >= 7
    store.sync(range(10))
    assert len(synced) == 10
    store.close()


def test_many_dirty_files_are_one_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ops = FileOps()
    calls: list[str] = []
    monkeypatch.setattr(ops, "syncfs", lambda _: calls.append("syncfs"))
    monkeypatch.setattr(ops, "fdatasync", lambda _: calls.append("fdatasync"))
    store = opened(tmp_path, ops=ops)
    for number in range(65):
        store.write(number, blocks_of(plain(range(3))))
    store.sync(range(65))
    assert calls == ["syncfs"]
    store.sync(range(65))
    assert calls == ["syncfs"]
    store.close()


# ----------------------------------------------------------------------------------------------- readers beside it


def test_readers_beside_writer_and_trim(tmp_path: Path) -> None:
    """Each sees messages in order, whole, without a hole but for what was trimmed; no errors."""
    store = opened(tmp_path, segment_bytes=4000, open_files_max=3)
    wrong: list[object] = []
    done = threading.Event()

    def reader() -> None:
        try:
            for _ in range(10_000):
                at, last = 0, -1
                while True:
                    first, covers, blocks = store.read(1, at, 3000)
                    for raw in blocks:
                        for offset in stored.offsets(raw):
                            if offset < at:
                                continue
                            if offset != last + 1 and last >= 0 and first != at:
                                wrong.append((last, offset))
                            last = offset
                    if not blocks:
                        break
                    at = covers
                store.offset_at_time(1, 1000 + at // 2)
                if done.is_set():
                    return
        except BaseException as error:
            wrong.append(error)

    threads = [threading.Thread(target=reader) for _ in range(3)]
    for thread in threads:
        thread.start()
    for at in range(0, 3000, 30):
        store.write(1, blocks_of(plain(range(at, at + 30)), 5))
        if at % 300 == 0:
            store.sync([1])
            store.trim(1, at - 500)
    done.set()
    for thread in threads:
        thread.join()
    assert wrong == []
    left = offsets(store)
    assert left == list(range(left[0], 3000)) and left[0] <= 2200
    store.close()


# ---------------------------------------------------------------------------------------------- damage and repair


def damaged(directory: Path, kind: str) -> list[int]:
    """A log of five files or more with damage in it. Returns the offsets that cannot be had any more."""
    store = opened(directory, segment_bytes=1200, compression="none")
    for at in range(0, 100, 2):
        store.write(1, blocks_of(plain(range(at, at + 2)), 2))
        store.sync([1])
    store.close()
    paths = files(directory)
    victim = paths[-1 if kind == "last" else 1]
    content = bytearray(victim.read_bytes())
    within = stored.offsets(b"".join(blocks_in(directory, victim)))
    if kind == "missing":
        victim.unlink()
        return within
    at = {"payload": 48 + 80 + 60, "last": 48 + 80 + 60, "header": 10, "batch header": 48 + 3, "id": 33}[kind]
    content[at] ^= 4
    victim.write_bytes(content)
    return within if kind == "id" else [] if kind == "header" else within[:2]


def blocks_in(directory: Path, path: Path) -> list[bytes]:
    store = opened(directory)
    log = store._logs[1]
    place = [file.path for file in log.files].index(path)
    file = log.files[place]
    blocks, at = [], file.first
    while at < file.reach:
        _, at, found = store.read(1, at, 1)
        blocks += found
    store.close()
    return blocks


@pytest.mark.parametrize("kind", ["payload", "last", "header", "batch header", "id", "missing"])
@pytest.mark.parametrize("by", ["command", "open"])
def test_repair_keeps_all_that_is_whole(tmp_path: Path, kind: str, by: str, capsys: pytest.CaptureFixture[str]) -> None:
    lost = damaged(tmp_path, kind)
    whole = {path: path.read_bytes() for path in files(tmp_path)}
    store = SegmentStore(tmp_path)
    with pytest.raises(CorruptError, match=f"fluxmq log repair {tmp_path}"):
        store.open({1: range(100)})
        read_all(store, 1)
    store.close()
    if by == "open":
        store = SegmentStore(tmp_path, recover=True)
        store.open({1: range(100)})
        assert store.recovery.dropped
    else:
        assert status("log", "verify", str(tmp_path), capsys=capsys)[0] == exit_codes.FAILURE
        code, out, _ = status("log", "repair", str(tmp_path), capsys=capsys)
        assert code == exit_codes.OK and "given up" in out and "repaired" in out
        assert status("log", "verify", str(tmp_path), capsys=capsys)[0] == exit_codes.OK
        store = opened(tmp_path)
    assert offsets(store) == [each for each in range(100) if each not in lost]
    store.write(1, blocks_of(plain(range(90, 120))))
    assert offsets(store) == [each for each in range(120) if each not in lost]
    store.close()
    changed = [path for path, content in whole.items() if path.read_bytes() != content]
    assert len(changed) <= 2, "the damaged one, and the last, which was written on"
    assert len(list(tmp_path.glob("queues/*/*.damaged"))) == (kind != "missing")
    assert repair(tmp_path).dropped == []


def test_a_torn_tail_that_the_view_says_was_safe_is_damage(tmp_path: Path) -> None:
    store = opened(tmp_path)
    reach = store.write(1, blocks_of(plain(range(9))))
    store.sync([1])
    store.close()
    path = files(tmp_path)[0]
    path.write_bytes(path.read_bytes()[:-1])
    store = SegmentStore(tmp_path)
    with pytest.raises(CorruptError, match="had been synced"):
        store.open({1: range(reach)})
    assert store.open({1: range(reach - 3)})[1].next == 6
    assert store.recovery.truncated_bytes > 0
    store.close()


def test_repair_keeps_nothing_behind_a_gap_that_the_journal_still_has(tmp_path: Path) -> None:
    """Batch 0 was synced and went bad; batch 2 was under way when power went, and batch 3 got there before it."""
    store = opened(tmp_path, compression="none")
    batches = blocks_of(plain(range(12)))
    for each in (batches[:1], batches[1:2], batches[2:]):
        store.write(1, each)
        if len(each) == 1:
            store.sync([1])
    store.close()
    path = files(tmp_path)[0]
    content = bytearray(path.read_bytes())
    batch = 80 + len(batches[0][7])
    content[48 + 5] ^= 1
    content[48 + 2 * batch + 100] ^= 1
    path.write_bytes(content)
    with pytest.raises(CorruptError, match="had been written and synced"):
        opened(tmp_path)
    assert repair(tmp_path).dropped
    store = opened(tmp_path)
    assert offsets(store) == [3, 4, 5]
    store.write(1, batches[2:])
    assert offsets(store) == list(range(3, 12))
    store.close()


def test_files_that_are_not_ours_are_let_be(tmp_path: Path) -> None:
    store = opened(tmp_path)
    store.write(1, blocks_of(plain(range(3))))
    store.close()
    (tmp_path / "queues" / "lost+found").mkdir()
    (tmp_path / "queues" / log_name(1) / "notes.txt").write_text("x")
    store = opened(tmp_path)
    assert offsets(store) == [0, 1, 2]
    store.close()


def test_a_copied_file_is_refused(tmp_path: Path) -> None:
    store = opened(tmp_path)
    store.write(1, blocks_of(plain(range(3))))
    store.close()
    (tmp_path / "queues" / log_name(2)).mkdir()
    (tmp_path / "queues" / log_name(2) / files(tmp_path)[0].name).write_bytes(files(tmp_path)[0].read_bytes())
    with pytest.raises(CorruptError, match="renamed or copied"):
        opened(tmp_path)


# ------------------------------------------------------------------------------------------------------ fluxmq log


def status(*arguments: str, capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as ended:
        cli.main(list(arguments))
    captured = capsys.readouterr()
    assert isinstance(ended.value.code, int)
    return ended.value.code, captured.out, captured.err


def test_log_commands_on_what_is_good(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = opened(tmp_path, segment_bytes=1000)
    store.write(1, blocks_of([(0, 5, 0, b"hello"), (1, 6, 7, b"\xff\x00")]))
    store.write(10, blocks_of(plain(range(60))))
    store.sync([1, 10])
    store.close()
    code, out, _ = status("log", "verify", str(tmp_path), capsys=capsys)
    assert "62 messages, 0 damaged" in out
    assert code == exit_codes.FAILURE and out.count("neither state nor journal knows it") == 2
    code, out, _ = status("log", "dump", str(tmp_path), "--json", capsys=capsys)
    lines = [json.loads(line) for line in out.splitlines()]
    assert code == exit_codes.OK and len(lines) == 62
    assert lines[0] == {"log": 1, "offset": 0, "time_ms": 5, "expires_at": 0, "not_before": 0, "qos": 0, "priority": 0,
                        "topic": "t/0", "properties": "", "payload": "hello"}
    assert (lines[1]["not_before"], lines[1]["payload_hex"]) == (7, "ff00")
    code, out, _ = status("log", "dump", str(tmp_path), "--log", "a", capsys=capsys)
    assert code == exit_codes.OK and len(out.splitlines()) == 60 and out.startswith("000000000000000a 0 1000 ")
    assert status("log", "dump", str(tmp_path), "--log", "xyz", capsys=capsys)[0] == exit_codes.CONFIG
    code, out, _ = status("log", "repair", str(tmp_path), capsys=capsys)
    assert code == exit_codes.OK and out.count("given up: ") == 2 and "queue recovered-a" in out
    code, out, _ = status("log", "verify", str(tmp_path), capsys=capsys)
    assert code == exit_codes.OK and "62 messages, 0 damaged" in out
    code, out, _ = status("log", "repair", str(tmp_path), capsys=capsys)
    assert code == exit_codes.OK and "nothing was damaged" in out


def test_a_dump_has_all_that_holds(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Behind a bad batch, a bad header and in other logs."""
    lost = damaged(tmp_path, "payload")
    store = SegmentStore(tmp_path)
    store.open(on_damage=lambda number, error: None)
    store.write(2, blocks_of(plain(range(20)), 2))
    store.close()
    third = files(tmp_path)[3]
    content = bytearray(third.read_bytes())
    lost += stored.offsets(b"".join(blocks_in(tmp_path, third)))
    content[10] ^= 4        # of its header
    third.write_bytes(content)
    code, out, err = status("log", "dump", str(tmp_path), "--json", capsys=capsys)
    assert code == exit_codes.STORAGE and str(third) in err and str(files(tmp_path)[1]) in err
    shown = [(each["log"], each["offset"]) for each in map(json.loads, out.splitlines())]
    assert shown == [*((1, offset) for offset in range(100) if offset not in lost),
                     *((2, offset) for offset in range(20))]


def test_verify_and_dump_change_nothing_and_see_the_torn_tail(tmp_path: Path,
                                                              capsys: pytest.CaptureFixture[str]) -> None:
    store = opened(tmp_path)
    store.write(1, blocks_of(plain(range(9))))
    store.close()
    path = files(tmp_path)[0]
    path.write_bytes(path.read_bytes()[:-1])
    before = path.read_bytes()
    _, out, _ = status("log", "verify", str(tmp_path), capsys=capsys)
    assert "6 messages, 0 damaged" in out and "note:" in out
    assert len(status("log", "dump", str(tmp_path), capsys=capsys)[1].splitlines()) == 6
    assert path.read_bytes() == before


def test_repair_is_refused_while_a_broker_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    opened(tmp_path).close()
    with (tmp_path / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        code, _, err = status("log", "repair", str(tmp_path), capsys=capsys)
    assert code == exit_codes.STORAGE and "a broker uses" in err


def test_a_directory_that_is_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = status("log", "verify", str(tmp_path), capsys=capsys)
    assert code == exit_codes.STORAGE and "not the storage directory" in err


def test_verify_looks_at_the_journal_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from kit.journals import commit, writing

    (tmp_path / "journal").mkdir()
    with writing(tmp_path / "journal") as journal:
        for index in range(3):
            commit(journal, (2, bytes(7) + b"%d" % index))      # ends of sessions
    code, out, _ = status("log", "verify", str(tmp_path), capsys=capsys)
    assert code == exit_codes.OK and "journal: intact, batches 1 to 3" in out
    path = next((tmp_path / "journal").glob("*.log"))
    whole = path.read_bytes()
    at = whole.rindex(b"2")  # the record of the last batch

    def verify(content: bytes) -> tuple[int, str]:
        path.write_bytes(content)
        code, out, _ = status("log", "verify", str(tmp_path), capsys=capsys)
        return code, out

    for content in (whole[:at], whole[:at] + b"x" + whole[at + 1:]):  # torn, damaged: nothing behind it says which
        code, out = verify(content)
        assert code == exit_codes.OK and "journal: batches 1 to 2; the " in out
        assert f"bytes behind them in {path.name}, from offset" in out and "or a loss of power leaves" in out
        assert "the disk has damaged the end of the file" in out
    assert verify(whole[:45] + bytes((whole[45] ^ 1,)) + whole[46:])[0] == exit_codes.FAILURE
    assert "journal: DAMAGED" in verify(whole[:45] + bytes((whole[45] ^ 1,)) + whole[46:])[1]


def test_kill_loses_nothing_synced(tmp_path: Path) -> None:
    """A process that writes and syncs is killed again and again; each life begins where the files end."""
    program = ("import sys; from pathlib import Path; from kit.segments import blocks_of, plain;"
               "from fluxmq.storage.segments import SegmentStore\n"
               "store = SegmentStore(Path(sys.argv[1]), segment_bytes=20_000)\n"
               "found = store.open(); at = found[1].next if found else 0\n"
               "while True:\n"
               "    store.write(1, blocks_of(plain(range(at, at + 50)), 7)); store.sync([1]); at += 50\n"
               "    print(at, flush=True)\n")
    for life in range(4):
        process = subprocess.Popen([sys.executable, "-P", "-c", program, str(tmp_path)], stdout=subprocess.PIPE,
                                   env=environment(TESTS))
        assert process.stdout is not None
        said = 0
        for _ in range(15 + 7 * life):
            said = int(process.stdout.readline())
        process.kill()
        said = max([said, *map(int, process.stdout.read().split())])
        process.wait()
        process.stdout.close()
        store = opened(tmp_path)
        have = offsets(store)
        assert have == list(range(len(have))) and len(have) >= said
        store.close()


def test_a_short_read_of_a_header_is_no_file_that_was_never_synced(tmp_path: Path,
                                                                   monkeypatch: pytest.MonkeyPatch) -> None:
    """Such a file is removed, for it holds nothing."""
    store = opened(tmp_path)
    store.write(1, blocks_of(plain(range(9))))
    store.sync([1])
    store.close()

    class Short(io.FileIO):
        def read(self, size: int | None = -1, /) -> bytes:
            return super().read(min(size or 7, 7))

    pread, preadv = os.pread, os.preadv
    monkeypatch.setattr(Path, "open", lambda self, *_, **__: Short(self))
    monkeypatch.setattr(os, "pread", lambda fd, size, at: pread(fd, min(size, 7), at))
    monkeypatch.setattr(os, "preadv", lambda fd, into, at: preadv(fd, [into[0][:7]], at))
    store = SegmentStore(tmp_path)
    assert store.open()[1].messages == 9
    store.close()


def test_reading_back_what_was_cut_is_told_like_the_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file is cut and synced by then: a shortage is waited for, anything else ends the checkpoint, nothing is
    lost."""
    disk = Full(1 << 20)
    store = opened(tmp_path, ops=disk)
    store.write(1, blocks_of(plain(range(9))))
    store.sync([1])
    store.write(1, blocks_of(plain(range(9, 20))))
    failing = [errno.EIO, errno.EMFILE]

    def read_whole(path: Path, _ops: object = None) -> memoryview:
        if failing:
            code = failing.pop()
            raise OSError(code, os.strerror(code), str(path))
        return reading.read_whole(path)

    monkeypatch.setattr(segment_writer, "read_whole", read_whole)
    disk.room = 10
    with pytest.raises(ShortageError):
        store.write(1, blocks_of(plain(range(20, 60))))
    with pytest.raises(StorageError, match=r"Input/output error.*\.seg") as failed:
        store.write(1, blocks_of(plain(range(9, 60))))
    assert not isinstance(failed.value, ShortageError)
    disk.room = 1 << 20
    assert store.write(1, blocks_of(plain(range(9, 60)))) == 60
    store.sync([1])
    assert offsets(store) == list(range(60))
    store.close()


def test_verify_looks_at_what_a_start_put_aside(tmp_path: Path) -> None:
    store = opened(tmp_path)
    store.write(1, blocks_of(plain(range(9))))
    store.sync([1])
    aside = store.set_aside(1)
    assert aside is not None
    [path] = aside.iterdir()
    store.close()
    assert [(report.messages, report.problems) for report in verify(tmp_path)] == [(9, [])]
    path.write_bytes(b"?" + path.read_bytes()[1:])
    assert [report.path for report in verify(tmp_path) if report.problems] == [path]
