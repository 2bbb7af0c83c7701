"""How production code gets at the simulated disk: `SimOps` in the place of storage/files.py, `journal_calls` in that of
the journal's table of system calls, and `View` in that of RocksDB."""
from __future__ import annotations

import ctypes
import errno
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from simulator.disk import OWNERS, Dead, Directory, Disk, File

from fluxmq._core.errors import CorruptError, ShortageError, StorageError
from fluxmq.storage.files import FileOps

__all__ = ["ROOT", "SimOps", "View", "journal_calls"]

ROOT = Path("/disk")
CREATE, DIRECTORY = os.O_CREAT, os.O_DIRECTORY
_current: list[Disk] = []       # whose journal opens its directory now


class SimOps(FileOps):
    """The calls of storage/files.py on a simulated disk."""

    syncfs_reports = True

    def __init__(self, disk: Disk) -> None:
        self.disk = disk

    def open(self, path: Path, create: bool) -> int:
        return self.disk.open(str(path), create)

    def open_to_read(self, path: Path) -> int:
        self.disk.check("open", str(path), False)
        return self.disk.descriptor(self.disk.node(str(path)), str(path))

    def close(self, fd: int) -> None:
        self.disk.close(fd)

    def size(self, fd: int) -> int:
        node, _ = self.disk.behind(fd)
        assert isinstance(node, File)
        return len(node.data)

    def read_into(self, fd: int, into: memoryview, at: int) -> int:
        node, path = self.disk.behind(fd)
        assert isinstance(node, File)
        self.disk.check("pread", path, False)
        part = node.data[at:at + len(into)]
        into[:len(part)] = part
        return len(part)

    def pwrite(self, fd: int, data: bytes | memoryview, at: int) -> None:
        self.disk.pwrite(fd, bytes(data), at)

    def truncate(self, fd: int, size: int) -> None:
        self.disk.truncate(fd, size)

    def fdatasync(self, fd: int) -> None:
        self.disk.sync(fd, "fdatasync")

    def fsync(self, fd: int) -> None:
        self.disk.sync(fd, "fsync")

    def syncfs(self, fd: int) -> None:
        self.disk.check("syncfs", "")
        self.disk.sync_all()

    def free(self, fd: int) -> int:
        return 1 << 40

    def names(self, path: Path) -> list[str]:
        node = self.disk.node(str(path))
        assert isinstance(node, Directory)
        return sorted(node.names)

    def exists(self, path: Path) -> bool:
        try:
            self.disk.node(str(path))
        except FileNotFoundError:
            return False
        return True

    def is_directory(self, path: Path) -> bool:
        return self.exists(path) and isinstance(self.disk.node(str(path)), Directory)

    def mkdir(self, path: Path) -> None:
        self.disk.mkdir(str(path))

    def rmdir(self, path: Path) -> None:
        self.disk.unlink(str(path))

    def unlink(self, path: Path) -> None:
        self.disk.unlink(str(path))

    def link(self, source: Path, target: Path) -> None:
        raise NotImplementedError("only repairs link")

    def rename(self, source: Path, target: Path) -> None:
        self.disk.rename(str(source), str(target))

    def new_id(self) -> int:
        return self.disk.new_id()


# ── the journal's table of calls ─────────────────────────────────────────────────────────────────────────


class _Table(ctypes.Structure):
    _fields_ = [(name, ctypes.c_void_p) for name in (
        "pwrite", "fdatasync", "fsync", "ftruncate", "open", "rename", "unlink", "close", "size", "monotonic")]


def _answer(step: Callable[[], int | None]) -> int:
    try:
        return step() or 0
    except OSError as error:
        return -(error.errno or errno.EIO)
    except Dead:
        return -errno.EIO


def _path(directory: int, name: bytes) -> tuple[Disk, str]:
    disk = OWNERS.get(directory)
    if disk is None:
        if directory >= 0:
            raise Dead
        return _current[0], name.decode()
    _, where = disk.behind(directory)
    return disk, f"{where}/{name.decode()}"


def _pwrite(fd: int, data: int, size: int, at: int) -> int:
    def step() -> int:
        _owner(fd).pwrite(fd, ctypes.string_at(data, size), at)
        return size
    return _answer(step)


def _owner(fd: int) -> Disk:
    if fd not in OWNERS:
        raise Dead
    return OWNERS[fd]


def _open(directory: int, name: bytes, flags: int, _mode: int) -> int:
    def step() -> int:
        disk, path = _path(directory, name)
        if flags & DIRECTORY:
            return disk.descriptor(disk.node(path), path)
        return disk.open(path, bool(flags & CREATE), exclusive=False, truncate=True)
    return _answer(step)


def _rename(directory: int, old: bytes, new: bytes) -> int:
    def step() -> None:
        disk, source = _path(directory, old)
        disk.rename(source, _path(directory, new)[1])
    return _answer(step)


def _unlink(directory: int, name: bytes) -> int:
    def step() -> None:
        disk, path = _path(directory, name)
        disk.unlink(path)
    return _answer(step)


def _size(fd: int) -> int:
    def step() -> int:
        node, _ = _owner(fd).behind(fd)
        assert isinstance(node, File)
        return len(node.data)
    return _answer(step)


_I, _P, _C, _Z, _Q, _U = (ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_size_t, ctypes.c_int64,
                          ctypes.c_uint)
# Made once: a journal of a life that has ended may call them as long as the process lives. It closes its descriptors
# when the interpreter may be gone, so that close() is the system's, for which these numbers are none.
_kept: tuple[Any, ...] = (
    ctypes.CFUNCTYPE(_Q, _I, _P, _Z, _Q)(_pwrite),
    ctypes.CFUNCTYPE(_Q, _I)(lambda fd: _answer(lambda: _owner(fd).sync(fd, "fdatasync"))),
    ctypes.CFUNCTYPE(_Q, _I)(lambda fd: _answer(lambda: _owner(fd).sync(fd, "fsync"))),
    ctypes.CFUNCTYPE(_Q, _I, _Q)(lambda fd, size: _answer(lambda: _owner(fd).truncate(fd, size))),
    ctypes.CFUNCTYPE(_Q, _I, _C, _I, _U)(_open),
    ctypes.CFUNCTYPE(_Q, _I, _C, _C)(_rename),
    ctypes.CFUNCTYPE(_Q, _I, _C)(_unlink),
    None,
    ctypes.CFUNCTYPE(_Q, _I)(_size),
    ctypes.CFUNCTYPE(_Q)(lambda: _current[0].now_ns() if _current else 0),
)
_table = _Table(*(ctypes.cast(each, _P).value if each is not None else None for each in _kept))


def journal_calls(disk: Disk) -> int:
    """For Journal(file_ops=…): from now on journals are opened on this disk."""
    _current[:] = [disk]
    return ctypes.addressof(_table)


class View:
    """In the place of storage/view.py. write() is a WriteBatch and a flush that waits: all of it, or nothing."""

    def __init__(self, disk: Disk) -> None:
        self.disk = disk
        self._open = False

    def open(self) -> int:
        self._open = True
        if self.disk.view_broken:
            raise CorruptError(self.disk.view_broken)
        return self.disk.view_applied

    def items(self) -> Iterator[tuple[bytes, bytes]]:
        yield from sorted(self.disk.view.items())

    def make_writable(self) -> None:
        pass

    def write(self, puts: Iterable[tuple[bytes, bytes]], deletes: Iterable[bytes], upto: int) -> None:
        disk = self.disk
        rows = dict(puts)
        if not disk.dead:
            disk.on_view(rows)
        made = disk.view | rows
        for key in deletes:
            made.pop(key, None)
        try:
            number = disk.call("view", "state")
        except Dead:
            if disk.chance.random() < 0.5:      # in the flush: the manifest has its entry, or not
                disk.view, disk.view_applied = made, upto
            raise
        if number == errno.ENOSPC:
            raise ShortageError("the view cannot be written: no space")
        if number:
            if disk.chance.random() < 0.5:      # it may all be there when it is opened anew
                disk.view, disk.view_applied = made, upto
            raise StorageError("the view cannot be written")
        disk.view, disk.view_applied = made, upto
        disk.trace(f"view {upto} {len(made)}")

    def close(self) -> None:
        self._open = False
