"""A disk that remembers every instant: what a crash would have left before and after each call that changes something.

    film = Film(directory, facts)           # facts(): what the test knows at that instant, kept beside the picture
    film.attach(ops)                        # the journal's calls (kit/journals.py); the film itself is a FileOps
    …
    for cut in film.cuts: cut.restore(target, "kill" | "power" | random.Random(7))

kill: all that was written is there. power: what was synced, files and names apart (as powercut.c says). With a Random:
power, and of the rest some, also a part of the last write.
"""
from __future__ import annotations

import os
import random
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fluxmq.storage.segment_files import FileOps
from kit.journals import Ops
from kit.powercut import mix, mixed_names

DIRECTORY = -1


@dataclass(frozen=True)
class Cut:
    """One instant. By directory: names and inodes; by inode: contents. `what` is the call that comes next."""

    what: str
    root: Path
    names: dict[Path, dict[str, int]]
    names_synced: dict[Path, dict[str, int]]
    contents: dict[int, bytes]
    contents_synced: dict[int, bytes]
    facts: Any

    def restore(self, target: Path, how: str | random.Random) -> Path:
        self._restore(self.root, target, how)
        return target

    def _restore(self, source: Path, target: Path, how: str | random.Random) -> None:
        target.mkdir()
        now, synced = self.names.get(source, {}), self.names_synced.get(source, {})
        if isinstance(how, random.Random):
            known = mixed_names(apart(synced), apart(now), how)
        else:
            known = apart(now if how == "kill" else synced)
        for name, (inode, _) in known.items():
            if inode == DIRECTORY:
                self._restore(source / name, target / name, how)
                continue
            new, old = self.contents.get(inode, b""), self.contents_synced.get(inode, b"")
            content = new if how == "kill" else old if how == "power" else mix(old, new, how)  # type: ignore[arg-type]
            (target / name).write_bytes(content)


def apart(names: dict[str, int]) -> dict[str, tuple[int, str]]:
    """Inodes, and beside them what tells one directory from another."""
    return {name: (inode, name if inode == DIRECTORY else "") for name, inode in names.items()}


class Film(FileOps):
    """Everything below `root`, which may hold something already: that counts as synced."""

    syncfs_reports = True

    def __init__(self, root: Path, facts: Callable[[], Any]) -> None:
        self.root, self.facts = root, facts
        self.cuts: list[Cut] = []
        self.lock = threading.RLock()
        self.running = True
        self._graves = root.parent / f"{root.name}.graves"
        self._graves.mkdir()
        self._names: dict[Path, dict[str, int]] = {}
        self._contents: dict[int, bytes] = {}
        self._look(contents=True)
        self._names_synced = dict(self._names)
        self._contents_synced = dict(self._contents)

    def _look(self, contents: bool = False) -> None:
        """Names are looked up anew, for not everybody who changes them tells."""
        found: dict[Path, dict[str, int]] = {}
        waiting = [self.root]
        while waiting:
            directory = waiting.pop()
            names = found[directory] = {}
            with os.scandir(directory) as entries:
                for entry in entries:
                    if entry.is_dir():
                        names[entry.name] = DIRECTORY
                        waiting.append(directory / entry.name)
                        continue
                    inode = names[entry.name] = entry.inode()
                    if not (grave := self._graves / str(inode)).exists():
                        os.link(entry.path, grave)          # an inode never means two files
                    if contents:
                        self._contents[inode] = Path(entry.path).read_bytes()
        self._names = found

    def cut(self, what: str) -> None:
        """An instant, before `what`. For those who keep something elsewhere, too."""
        with self.lock:
            if self.running:
                self._look()
                self.cuts.append(Cut(what, self.root, self._names, dict(self._names_synced), dict(self._contents),
                                     dict(self._contents_synced), self.facts()))

    def stop(self) -> None:
        with self.lock:
            self.running = False

    def _wrote(self, fd: int) -> None:
        status = os.fstat(fd)
        self._contents[status.st_ino] = os.pread(fd, status.st_size, 0)

    def _synced(self, fd: int) -> None:
        inode = os.fstat(fd).st_ino
        self._contents_synced[inode] = self._contents.get(inode, b"")

    # ── the journal's calls ──────────────────────────────────────────────────────────────────────────────

    def attach(self, ops: Ops) -> None:
        def pwrite(fd: int, data: bytes, at: int) -> int:
            self.pwrite(fd, data, at)
            return len(data)

        def ftruncate(fd: int, size: int) -> None:
            self.truncate(fd, size)

        ops.pwrite, ops.fdatasync, ops.ftruncate = pwrite, self.fdatasync, ftruncate
        ops.fsync = lambda fd: self.sync_directory(Path(os.readlink(f"/proc/self/fd/{fd}")))

    # ── the segments' calls ──────────────────────────────────────────────────────────────────────────────

    def open(self, path: Path, create: bool) -> int:
        with self.lock:
            if create:
                self.cut(f"make {path.name}")
            return super().open(path, create)

    def pwrite(self, fd: int, data: bytes, at: int) -> None:
        with self.lock:
            self.cut("write")
            super().pwrite(fd, data, at)
            self._wrote(fd)

    def truncate(self, fd: int, size: int) -> None:
        with self.lock:
            self.cut("truncate")
            super().truncate(fd, size)
            self._wrote(fd)

    def fdatasync(self, fd: int) -> None:
        with self.lock:
            self.cut("fdatasync")
            self._synced(fd)

    def syncfs(self, fd: int) -> None:
        with self.lock:
            self.cut("syncfs")
            self._look()
            self._names_synced = dict(self._names)
            self._contents_synced = dict(self._contents)

    def mkdir(self, path: Path) -> None:
        with self.lock:
            self.cut(f"mkdir {path.name}")
            super().mkdir(path)

    def rmdir(self, path: Path) -> None:
        with self.lock:
            self.cut(f"rmdir {path.name}")
            super().rmdir(path)

    def unlink(self, path: Path) -> None:
        with self.lock:
            self.cut(f"unlink {path.name}")
            super().unlink(path)

    def link(self, source: Path, target: Path) -> None:
        with self.lock:
            self.cut(f"link {target.name}")
            super().link(source, target)

    def rename(self, source: Path, target: Path) -> None:
        with self.lock:
            self.cut(f"rename {target.name}")
            super().rename(source, target)

    def sync_directory(self, path: Path) -> None:
        with self.lock:
            self.cut(f"sync {path.name}")
            self._look()
            self._names_synced[path] = self._names.get(path, {})
