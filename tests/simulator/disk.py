"""The simulated disk: what is written is volatile until it is synced, and names are until their directory is.

    disk = Disk(random.Random(7))
    disk.crash("power")         # what was not synced survives in part: sectors of each write, changes of each directory

A crash may also come in the middle of a call (`die_at`): from then on every call of that life fails, without effect.
RocksDB is not simulated: docs/internals/storage.md says that a checkpoint is all there or not at all; `calls.View` is.
"""
from __future__ import annotations

import errno
import os
import random
from collections.abc import Callable, Iterator
from itertools import count

from kit.powercut import mixed_names

__all__ = ["OWNERS", "Dead", "Directory", "Disk", "File"]

SECTOR = 512
FD_FIRST = 1 << 20              # far from what the process has
RESERVE_FACTOR = 2              # as storage/reserve.py: twice as much must be free
NUMBERS = count(FD_FIRST)
OWNERS: dict[int, Disk] = {}    # by descriptor


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

    def copy(self, chance: random.Random) -> Disk:
        """What a copy of everything as it reads now has, on a disk of its own."""
        def of(node: File | Directory) -> File | Directory:
            if isinstance(node, File):
                made = File()
                made.data, made.synced = bytearray(node.data), bytes(node.data)
                return made
            below = Directory()
            below.names = {name: of(one) for name, one in node.names.items()}
            below.synced = dict(below.names)
            return below

        other = Disk(chance, self.room)
        top = of(self.top)
        assert isinstance(top, Directory)
        other.root.names["disk"] = other.top = top
        other.view, other.view_applied, other.view_broken = dict(self.view), self.view_applied, self.view_broken
        other.used = sum(len(file.data) for _, file in other.files())
        return other

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
        fd = next(NUMBERS)
        self._fds[fd] = self.life, node, path
        OWNERS[fd] = self
        return fd

    def behind(self, fd: int) -> tuple[File | Directory, str]:
        life, node, path = self._fds.get(fd, (-1, None, ""))
        if life != self.life or node is None:
            raise Dead      # of a former life: whoever still holds it is gone
        return node, path

    def close(self, fd: int) -> None:
        self._fds.pop(fd, None)
        OWNERS.pop(fd, None)

    def forget_descriptors(self) -> None:
        """Of every life: the table of all disks would keep this one, and with it the whole history."""
        for fd in [fd for fd, owner in OWNERS.items() if owner is self]:
            self.close(fd)

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

    # ── the reserve of engine/queues/disk_full.py ─────────────────────────────────────────────────────────────

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
