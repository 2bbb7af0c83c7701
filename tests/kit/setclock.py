"""A process whose clocks the test sets.

    clocks = Clocks(tmp_path)
    broker = Broker(tmp_path / "broker", environ=clocks.environ).start()
    clocks.step(-3600)          # somebody sets the wall clock back by an hour
    clocks.sleep(3600)          # the machine sleeps for an hour
"""
from __future__ import annotations

import mmap
import os
import struct
import subprocess
from pathlib import Path

from kit.tools import require_tool

__all__ = ["Clocks"]

SOURCE = Path(__file__).with_name("setclock.c")
SECOND = 1_000_000_000


class Clocks:
    """directory: for the library and what it reads. environ: what a process gets that lives by these clocks; several
    may, one after the other or at once."""

    def __init__(self, directory: Path) -> None:
        library, told = directory / "setclock.so", directory / "setclock"
        gcc = require_tool("gcc", package="gcc")
        subprocess.run([gcc, "-shared", "-fPIC", "-O1", "-Wall", "-Wextra", "-Werror", "-o", library, SOURCE, "-ldl"],
                       check=True)
        told.write_bytes(bytes(16))
        with told.open("r+b") as file:
            self._told = mmap.mmap(file.fileno(), 16)
        self._wall = self._boot = 0
        # Behind what is there: a sanitizer's library must come first.
        self.environ = {"LD_PRELOAD": " ".join([*os.environ.get("LD_PRELOAD", "").split(), str(library)]),
                        "SETCLOCK_FILE": str(told)}

    def step(self, seconds: float) -> None:
        """The wall clock is set."""
        self._wall += int(seconds * SECOND)
        self._tell()

    def sleep(self, seconds: float) -> None:
        """So much time passes, of which nobody has used a moment."""
        self._wall += int(seconds * SECOND)
        self._boot += int(seconds * SECOND)
        self._tell()

    def _tell(self) -> None:
        self._told[:] = struct.pack("=qq", self._wall, self._boot)
