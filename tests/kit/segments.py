"""Blocks as a log exports them, and a disk for segments that fails, fills up and forgets."""
from __future__ import annotations

import errno
import os
import random
from collections.abc import Iterable, Sequence
from pathlib import Path

from oracle import stored

from fluxmq.storage.segment_files import Block, FileOps
from fluxmq.storage.segments import SegmentStore
from kit.powercut import mix, mixed_names

Message = tuple[int, int, int, bytes]       # offset, time_ms, not_before, payload


def raw_of(messages: Iterable[Message]) -> bytes:
    return b"".join(stored.message(offset, time, b"t/%d" % (offset % 3), payload, not_before=due)
                    for offset, time, due, payload in messages)


def blocks_of(messages: Sequence[Message], per_block: int = 3) -> list[Block]:
    return stored.blocks_of([raw_of([one]) for one in messages], per_block)


def plain(offsets: Iterable[int], size: int = 40, due: bool = False) -> list[Message]:
    """Messages whose payload tells which one it is; every other one compresses."""
    return [(offset, 1000 + offset, 5000 - offset if due else 0,
             (b"%d." % offset).ljust(size, b".") if offset % 2 else random.Random(offset).randbytes(size))
            for offset in offsets]


def read_all(store: SegmentStore, number: int, start: int = 0, max_bytes: int = 1 << 20) -> bytes:
    """Everything from `start` on; what read() says of its range is checked on the way."""
    raw, offset = b"", start
    while True:
        first, covers, blocks = store.read(number, offset, max_bytes)
        assert first <= offset <= covers
        if not blocks:
            assert covers == offset
            return raw
        assert covers > offset
        raw += b"".join(blocks)
        offset = covers


class PowerGone(BaseException):
    """The machine has stopped: no handler may catch it."""


class Disk(FileOps):
    """What was synced, and what not, of everything under `live`. Stops at call number `stop_at` (a write is then done
    in part). As in powercut.c: contents are those of the last sync of the file, names those of the directory's."""

    syncfs_reports = True

    def __init__(self, live: Path, stop_at: int = -1, seed: int = 0) -> None:
        self.live = live
        self.graves = live.parent / f"{live.name}.graves"
        self.calls = 0
        self.stop_at = stop_at
        self.chance = random.Random(seed)
        self.paths: dict[int, Path] = {}                    # descriptor to path
        self.contents: dict[int, bytes] = {}                # inode to what is on the medium
        self.entries: dict[Path, dict[str, int]] = {}       # directory to its names on the medium; -1: a directory
        for directory in [live, *(path for path in live.rglob("*") if path.is_dir())]:
            self._keep_names(directory)
            for path in directory.iterdir():
                if path.is_file():
                    self.contents[path.stat().st_ino] = path.read_bytes()

    def _keep_names(self, directory: Path) -> None:
        self.entries[directory] = {path.name: -1 if path.is_dir() else path.stat().st_ino
                                   for path in directory.iterdir()}

    def _call(self) -> None:
        if self.calls == self.stop_at:
            raise PowerGone
        self.calls += 1

    def open(self, path: Path, create: bool) -> int:
        if create:
            self._call()
        fd = super().open(path, create)
        if create:
            self.contents[os.fstat(fd).st_ino] = b""
        self.paths[fd] = path
        return fd

    def pwrite(self, fd: int, data: bytes, at: int) -> None:
        if self.calls == self.stop_at:
            super().pwrite(fd, data[:self.chance.randint(0, len(data))], at)
        self._call()
        super().pwrite(fd, data, at)

    def truncate(self, fd: int, size: int) -> None:
        self._call()
        super().truncate(fd, size)

    def fdatasync(self, fd: int) -> None:
        self._call()
        size = os.fstat(fd).st_size
        self.contents[os.fstat(fd).st_ino] = os.pread(fd, size, 0)

    def syncfs(self, fd: int) -> None:
        self._call()
        for directory in [self.live, *(path for path in self.live.rglob("*") if path.is_dir())]:
            self._keep_names(directory)
            for path in directory.iterdir():
                if path.is_file():
                    self.contents[path.stat().st_ino] = path.read_bytes()

    def mkdir(self, path: Path) -> None:
        self._call()
        super().mkdir(path)
        self.entries[path] = {}

    def rmdir(self, path: Path) -> None:
        self._call()
        super().rmdir(path)

    def unlink(self, path: Path) -> None:
        self._call()
        # Its inode is not to be used again: the old name may come back, with what it held.
        self.graves.mkdir(exist_ok=True)
        os.link(path, self.graves / str(self.calls))
        super().unlink(path)

    def link(self, source: Path, target: Path) -> None:
        self._call()
        super().link(source, target)

    def rename(self, source: Path, target: Path) -> None:
        self._call()
        super().rename(source, target)

    def sync_directory(self, path: Path) -> None:
        self._call()
        self._keep_names(path)

    def restore(self, target: Path, torn: random.Random | None = None) -> Path:
        """What the loss of power left: what was synced, and in torn mode of the rest some."""
        live = {path.stat().st_ino: path.read_bytes() for path in self.live.rglob("*") if path.is_file()}
        self._restore(self.live, target, live, torn)
        return target

    def _restore(self, source: Path, target: Path, live: dict[int, bytes], torn: random.Random | None) -> None:
        target.mkdir()
        names = {name: (inode, name if inode == -1 else "") for name, inode in self.entries.get(source, {}).items()}
        if torn is not None and source.exists():
            now = {path.name: (-1, path.name) if path.is_dir() else (path.stat().st_ino, "")
                   for path in sorted(source.iterdir())}
            names = mixed_names(names, now, torn)
        for name, (inode, _) in names.items():
            if inode == -1:
                self._restore(source / name, target / name, live, torn)
                continue
            content = self.contents.get(inode, b"")
            if torn is not None and inode in live:
                content = mix(content, live[inode], torn)
            (target / name).write_bytes(content)


class Full(FileOps):
    """A disk with room for `room` bytes more."""

    def __init__(self, room: int, code: int = errno.ENOSPC) -> None:
        self.room = room
        self.code = code

    def pwrite(self, fd: int, data: bytes, at: int) -> None:
        fits = data[:self.room]
        super().pwrite(fd, fits, at)
        self.room -= len(fits)
        if len(fits) < len(data):
            raise OSError(self.code, os.strerror(self.code))

    def truncate(self, fd: int, size: int) -> None:
        self.room += max(0, os.fstat(fd).st_size - size)
        super().truncate(fd, size)

    def unlink(self, path: Path) -> None:
        self.room += path.stat().st_size
        super().unlink(path)


class Scarce(Full):
    """One that says how much room there is."""

    def free(self, fd: int) -> int:
        return self.room
