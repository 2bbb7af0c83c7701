"""A disk of which one system call errs, at a moment of the test's choice.

    disk = FaultyDisk(tmp_path)                     # faultydisk.c, compiled and ready to be preloaded
    process = subprocess.Popen([...], env=os.environ | disk.env)    # its `storage.dir` is disk.directory/…/data
    disk.arm(Point("checkpoint", "pwrite", "segment", 1, "EIO"))    # the first pwrite to a segment in that phase
    disk.phase = "checkpoint"
    …
    disk.fired                                      # the file, or "" while the call has not come
    disk.counts()                                   # (phase, call, kind) → how many calls there were

A point is one call of one phase on one kind of file, by its number among these, and what it answers: an errno, or
`short`, half of what it was asked for. Which calls there are is found out by a run without a point.
"""
from __future__ import annotations

import ctypes
import errno
import mmap
import os
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from kit.tools import require_tool

__all__ = ["CALLS", "ERRORS", "KINDS", "PHASES", "FaultyDisk", "Point", "points_of"]

SOURCE = Path(__file__).with_name("faultydisk.c")
PHASES = ("", "first start", "start", "load", "checkpoint", "stop")
KINDS = ("", "journal", "segment", "reserve", "view", "directory", "other")
CALLS = ("open", "read", "pread", "write", "pwrite", "fsync", "fdatasync", "syncfs", "ftruncate", "fallocate", "rename",
         "unlink", "mkdir", "rmdir", "stat", "fstat", "statvfs", "close", "opendir", "readdir")

# What each call may answer. EMFILE is for those that make a descriptor, ENOSPC for those that take space, a short count
# for those that count.
_ANY, _SPACE = ("EIO", "EINTR"), ("EIO", "ENOSPC", "EINTR")
ERRORS: dict[str, tuple[str, ...]] = {
    "open": ("EIO", "ENOSPC", "EMFILE", "EINTR"), "opendir": ("EIO", "EMFILE"), "readdir": ("EIO",),
    "read": (*_ANY, "short"), "pread": (*_ANY, "short"), "write": (*_SPACE, "short"), "pwrite": (*_SPACE, "short"),
    "fsync": _SPACE, "fdatasync": _SPACE, "syncfs": _SPACE, "ftruncate": _ANY, "fallocate": _SPACE,
    "rename": ("EIO", "ENOSPC"), "unlink": ("EIO",), "mkdir": ("EIO", "ENOSPC"), "rmdir": ("EIO",),
    "stat": ("EIO",), "fstat": ("EIO",), "statvfs": ("EIO",),
    "close": _ANY,
}
SHORT = -1


class Point(NamedTuple):
    """Call number `nth` (from 1) of its like in a phase, and what it answers."""

    phase: str
    call: str
    kind: str
    nth: int
    error: str

    def __str__(self) -> str:
        return ":".join(map(str, self)).replace(" ", "-")

    @classmethod
    def read(cls, text: str) -> Point:
        """What str() made."""
        phase, call, kind, nth, error = text.split(":")
        return cls(phase.replace("-", " "), call, kind, int(nth), error)


def points_of(counts: dict[tuple[str, str, str], int]) -> Iterable[Point]:
    """Every call that was counted, with every error that it may answer."""
    for (phase, call, kind), count in sorted(counts.items()):
        for nth in range(1, count + 1):
            for error in ERRORS[call]:
                yield Point(phase, call, kind, nth, error)


class _Control(ctypes.Structure):
    """As faultydisk.c has it."""

    _fields_ = [("phase", ctypes.c_uint32), ("armed_phase", ctypes.c_uint32), ("armed_call", ctypes.c_uint32),
                ("armed_kind", ctypes.c_uint32), ("armed_nth", ctypes.c_uint32), ("armed_error", ctypes.c_int32),
                ("fired", ctypes.c_uint32), ("hurry_ms", ctypes.c_uint32), ("path", ctypes.c_char * 256),
                ("counts", ((ctypes.c_uint32 * len(KINDS)) * len(CALLS)) * 8)]


class FaultyDisk:
    """directory: what is below it is looked at. Where FAULTYDISK_CONTROL names a file already (a process that has the
    library preloaded), that one is used."""

    def __init__(self, directory: Path, control: Path | None = None) -> None:
        self.directory = directory.resolve()
        self._path = control or self.directory / "faultydisk.control"
        if control is None:
            self._path.write_bytes(bytes(ctypes.sizeof(_Control)))
        with self._path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), ctypes.sizeof(_Control))
        self._control = _Control.from_buffer(self._map)

    @property
    def env(self) -> dict[str, str]:
        """What to add to the environment of the program."""
        library = self._path.with_name("faultydisk.so")
        if not library.exists():
            gcc = require_tool("gcc", package="gcc")
            subprocess.run([gcc, "-shared", "-fPIC", "-O1", "-Wall", "-Wextra", "-Werror", "-o", library, SOURCE,
                            "-ldl", "-lpthread"], check=True)
        # Behind what is there: a sanitizer's library must come first. In front of powercut.c, which keeps what was
        # synced: a sync that fails here has not happened there.
        preload = " ".join([*os.environ.get("LD_PRELOAD", "").split(), str(library)])
        return {"LD_PRELOAD": preload, "FAULTYDISK_DIR": str(self.directory), "FAULTYDISK_CONTROL": str(self._path)}

    @property
    def phase(self) -> str:
        """Calls are counted for it; the empty one is nobody's."""
        return PHASES[self._control.phase]

    @phase.setter
    def phase(self, name: str) -> None:
        self._control.phase = PHASES.index(name)

    def arm(self, point: Point | None) -> None:
        """From now on this point fails, once; calls are counted from none. None: nothing does."""
        control = self._control
        control.armed_phase = control.fired = 0
        ctypes.memset(control.counts, 0, ctypes.sizeof(control.counts))
        if point is not None:
            control.armed_call, control.armed_kind = CALLS.index(point.call), KINDS.index(point.kind)
            control.armed_nth = point.nth
            control.armed_error = SHORT if point.error == "short" else getattr(errno, point.error)
            control.armed_phase = PHASES.index(point.phase)

    @property
    def fired(self) -> str:
        """The file whose call failed; "" while none has."""
        return self._control.path.decode() if self._control.fired else ""

    def hurry(self, milliseconds: int) -> None:
        """Who waits for the disk to have room again tries as often. 0: when it wants."""
        self._control.hurry_ms = milliseconds

    def counts(self) -> dict[tuple[str, str, str], int]:
        """Calls since arm(), by (phase, call, kind of file)."""
        return {(phase, call, kind): count
                for at, phase in enumerate(PHASES) for where, call in enumerate(CALLS)
                for what, kind in enumerate(KINDS) if (count := self._control.counts[at][where][what])}
