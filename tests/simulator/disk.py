"""The simulated disk: what is written is volatile until it is synced, and names are until their directory is.

    disk = Disk(random.Random(7))
    disk.ops()                  # a FileOps for segments and for reading the journal
    journal_calls(disk)         # address of a journal_file_ops for the journal's writer
    disk.crash("power")         # what was not synced survives in part: sectors of each write, changes of each directory

A crash may also come in the middle of a call (`die_at`): from then on every call of that life fails, without effect.
RocksDB is not simulated: docs/internals/storage.md says that a checkpoint is all there or not at all; `View` is that.
"""
from __future__ import annotations

import ctypes
import errno
import os
import random
from collections.abc import Callable, Iterable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

from kit.powercut import mixed_names

from fluxmq._core.errors import CorruptError, ShortageError, StorageError
from fluxmq.storage.files import FileOps

__all__ = ["ROOT", "Dead", "Disk", "SimOps", "View", "journal_calls"]

ROOT = Path("/disk")
SECTOR = 512
CREATE, DIRECTORY = os.O_CREAT, os.O_DIRECTORY
FD_FIRST = 1 << 20              # far from what the process has
RESERVE_FACTOR = 2              # as storage/reserve.py: twice as much must be free


class Dead(BaseException):
    """The machine or the process is gone in the middle of this call. No handler of errors is to see it."""


class File:
    """data: what reads give. synced: what survives for certain. unsynced: (offset, bytes) of writes, (size, None) of
    truncations, since."""

    def __init__(self) -> None:
        self.data = bytearray()
        self.synced = b""
        self.unsynced: list[tuple[int, bytes | None]] = []

    def sync(self) -> None:
        if self.unsynced:
            self.synced = bytes(self._with(self.unsynced))
            self.unsynced.clear()

    def _with(self, changes: list[tuple[int, bytes | None]]) -> bytearray:
        """What is on the medium, with these: what a failed sync has dropped is not among them, whatever reads give."""
        found = bytearray(self.synced)
        for at, data in changes:
            if data is None:
                del found[at:]
                found.extend(bytes(at - len(found)))
            else:
                found.extend(bytes(max(0, at - len(found))))
                found[at:at + len(data)] = data
        return found

    def fail_sync(self) -> None:
        """What was dirty counts as clean: it stays readable, and no later sync writes it."""
        self.unsynced.clear()

    def settle(self, chance: random.Random, kind: str) -> None:
        """What a crash leaves."""
        if kind == "power":
            left = bytearray(self.synced)
            share = chance.choice((0.0, 0.3, 0.7, 1.0))
            for at, data in self.unsynced:
                if data is None:
                    if chance.random() < share:
                        del left[at:]
                        left.extend(bytes(at - len(left)))
                    continue
                for begin in range(at - at % SECTOR, at + len(data), SECTOR):
                    low, high = max(begin, at), min(begin + SECTOR, at + len(data))
                    if chance.random() < share:
                        if len(left) < high:
                            left.extend(bytes(high - len(left)))
                        left[low:high] = data[low - at:high - at]
            self.data = left
            self.synced = bytes(left)
            self.unsynced = []


class Directory:
    """names: what is there; synced: what survives for certain."""

    def __init__(self) -> None:
        self.names: dict[str, File | Directory] = {}
        self.synced: dict[str, File | Directory] = {}

    def settle(self, chance: random.Random, kind: str) -> None:
        if kind == "power":
            self.names = mixed_names(self.synced, self.names, chance)
            self.synced = dict(self.names)
        for name in sorted(self.names):
            self.names[name].settle(chance, kind)


class Disk:
    """chance: of everything that the disk decides. room: bytes that it has in all."""

    def __init__(self, chance: random.Random, room: int = 1 << 40) -> None:
        self.chance = chance
        self.root = Directory()
        self.root.names["disk"] = self.top = Directory()
        self.view: dict[bytes, bytes] = {}
        self.view_applied = 0
        self.view_broken = ""
        self.room, self.used, self.reserved = room, 0, 0
        self.life = 0
        self.calls = 0
        self.dead = False
        self.die_at: int | None = None          # the call of this number is the last one
        self.failing: list[tuple[str, int]] = []    # (call, errno): the next call of this name fails so, once
        self.failed: list[tuple[str, str]] = []     # what has failed so, with its file
        self.trace: Callable[[str], None] = lambda line: None
        self.on_view: Callable[[dict[bytes, bytes]], None] = lambda rows: None      # before they are written
        self._fds: dict[int, tuple[int, File | Directory, str]] = {}
        self._ids = random.Random(chance.getrandbits(64))
        self.now_ns: Callable[[], int] = lambda: 0

    # ── lives ────────────────────────────────────────────────────────────────────────────────────────────

    def crash(self, kind: str) -> None:
        """"kill": what was written stays, as in the page cache; "power": what was synced, and of the rest some."""
        self.life += 1
        self._fds.clear()
        self.dead, self.die_at, self.reserved = False, None, 0
        self.failing.clear()
        self.top.settle(self.chance, kind)
        self.used = sum(len(file.data) for _, file in self.files())

    def files(self, below: Directory | None = None, where: str = "") -> Iterator[tuple[str, File]]:
        for name, node in sorted((below or self.top).names.items()):
            if isinstance(node, File):
                yield where + name, node
            else:
                yield from self.files(node, f"{where}{name}/")

    def synced_bytes(self, below: Directory | None = None) -> Iterator[bytes]:
        """Of each file that a loss of power would leave for certain, under its name."""
        for node in (below or self.top).synced.values():
            if isinstance(node, File):
                yield node.synced
            else:
                yield from self.synced_bytes(node)

    def flip(self) -> str:
        """One bit of what is on the medium changes. Returns where; "": there is nothing."""
        files = [(name, file) for name, file in self.files() if len(file.synced) > 0 and name != "lock"
                 and "spare" not in name and "next" not in name]
        if not files:
            return ""
        name, file = self.chance.choice(files)
        written = len(file.synced.rstrip(b"\0")) or 1
        at, bit = self.chance.randrange(written), 1 << self.chance.randrange(8)
        data = bytearray(file.synced)
        data[at] ^= bit
        file.synced = bytes(data)
        if at < len(file.data):
            file.data[at] ^= bit
        return f"{name}:{at}"

    # ── what every call does first ───────────────────────────────────────────────────────────────────────

    def call(self, name: str, where: str, changes: bool = True) -> int:
        """0, or the errno with which this call fails. Raises Dead."""
        if self.dead:
            raise Dead
        if changes:
            self.calls += 1
            if self.die_at is not None and self.calls >= self.die_at:
                self.dead = True
                self.trace(f"dies {name} {where}")
                raise Dead
        for at, (wanted, number) in enumerate(self.failing):
            if wanted == name:
                del self.failing[at]
                self.failed.append((name, where))
                self.trace(f"fails {name} {where} {errno.errorcode[number]}")
                return number
        return 0

    def check(self, name: str, where: str, changes: bool = True) -> None:
        number = self.call(name, where, changes)
        if number:
            raise OSError(number, os.strerror(number), where)

    def node(self, path: str) -> File | Directory:
        at: File | Directory = self.root
        for part in path.split("/"):
            if part:
                if not isinstance(at, Directory) or part not in at.names:
                    raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
                at = at.names[part]
        return at

    def parent(self, path: str) -> tuple[Directory, str]:
        above, _, name = path.rpartition("/")
        found = self.node(above)
        assert isinstance(found, Directory)
        return found, name

    def descriptor(self, node: File | Directory, path: str) -> int:
        fd = next(_numbers)
        self._fds[fd] = self.life, node, path
        _owners[fd] = self
        return fd

    def behind(self, fd: int) -> tuple[File | Directory, str]:
        life, node, path = self._fds.get(fd, (-1, None, ""))
        if life != self.life or node is None:
            raise Dead      # of a former life: whoever still holds it is gone
        return node, path

    def close(self, fd: int) -> None:
        self._fds.pop(fd, None)
        _owners.pop(fd, None)

    # ── the calls ────────────────────────────────────────────────────────────────────────────────────────

    def open(self, path: str, create: bool, exclusive: bool = True, truncate: bool = False) -> int:
        self.check("open", path, create)
        directory, name = self.parent(path)
        node = directory.names.get(name)
        if node is None:
            if not create:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
            node = directory.names[name] = File()
            self.trace(f"create {path}")
        elif create and exclusive:
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)
        elif create and truncate and isinstance(node, File):
            self._resize(node, 0)
        return self.descriptor(node, path)

    def _grow(self, by: int) -> None:
        if by > 0 and self.used + self.reserved + by > self.room:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self.used += by

    def _resize(self, file: File, size: int) -> None:
        self._grow(size - len(file.data))
        del file.data[size:]
        file.data.extend(bytes(size - len(file.data)))
        file.unsynced.append((size, None))

    def pwrite(self, fd: int, data: bytes, at: int) -> None:
        file, path = self.behind(fd)
        assert isinstance(file, File)
        try:
            self.check("pwrite", path)
            self._grow(at + len(data) - len(file.data))
        except Dead:
            if self.dead and data:      # the last write of this life may have come to the disk in part
                part = data[:self.chance.randint(0, len(data))]
                self._put(file, part, at)
            raise
        self._put(file, data, at)
        self.trace(f"pwrite {path} {at} {len(data)}")

    @staticmethod
    def _put(file: File, data: bytes, at: int) -> None:
        if len(file.data) < at:
            file.data.extend(bytes(at - len(file.data)))
        file.data[at:at + len(data)] = data
        file.unsynced.append((at, data))

    def truncate(self, fd: int, size: int) -> None:
        file, path = self.behind(fd)
        assert isinstance(file, File)
        self.check("ftruncate", path)
        self._resize(file, size)
        self.trace(f"truncate {path} {size}")

    def sync(self, fd: int, name: str) -> None:
        node, path = self.behind(fd)
        try:
            self.check(name if isinstance(node, File) else "fsync-directory", path)
        except OSError:
            if isinstance(node, File):
                node.fail_sync()
            raise
        if isinstance(node, Directory):
            node.synced = dict(node.names)
        else:
            node.sync()
        self.trace(f"{name} {path}")

    def sync_all(self, below: Directory | None = None) -> None:
        here = below or self.top
        here.synced = dict(here.names)
        for node in here.names.values():
            if isinstance(node, Directory):
                self.sync_all(node)
            else:
                node.sync()

    def mkdir(self, path: str) -> None:
        self.check("mkdir", path)
        directory, name = self.parent(path)
        if name in directory.names:
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)
        directory.names[name] = Directory()
        self.trace(f"mkdir {path}")

    def unlink(self, path: str) -> None:
        self.check("unlink", path)
        directory, name = self.parent(path)
        node = directory.names.get(name)
        if node is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        del directory.names[name]
        if isinstance(node, File):
            self.used -= len(node.data)
        self.trace(f"unlink {path}")

    def rename(self, source: str, target: str) -> None:
        self.check("rename", target)
        directory, name = self.parent(source)
        if name not in directory.names:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), source)
        other, new = self.parent(target)
        other.names[new] = directory.names.pop(name)
        self.trace(f"rename {source} {target}")

    def new_id(self) -> int:
        return self._ids.getrandbits(64)

    # ── the reserve of engine/queue_space.py ─────────────────────────────────────────────────────────────

    reserve_bytes = 2048

    def take(self) -> bool:
        self.check("reserve", "reserve")
        if not self.reserved:
            if self.used + RESERVE_FACTOR * self.reserve_bytes > self.room:
                return False
            self.reserved = self.reserve_bytes
        return True

    def give(self) -> None:
        self.reserved = 0

    def ops(self) -> SimOps:
        return SimOps(self)


_numbers = count(FD_FIRST)
_owners: dict[int, Disk] = {}
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
    disk = _owners.get(directory)
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
    if fd not in _owners:
        raise Dead
    return _owners[fd]


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
