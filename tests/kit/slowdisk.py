"""A disk that is slow, or stands still until the test lets it go on.

    disk = SlowDisk(tmp_path, monkeypatch)          # what is started from here on writes to it
    broker = start_broker({"storage.type": "rocksdb"})
    with disk.held():
        ...                                         # nothing becomes durable
"""
from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from kit.tools import require_tool

__all__ = ["SlowDisk"]

SOURCE = Path(__file__).with_name("slowdisk.c")


class SlowDisk:
    """milliseconds: how much longer each sync lasts."""

    def __init__(self, directory: Path, monkeypatch: pytest.MonkeyPatch, milliseconds: int = 0) -> None:
        library = directory / "slowdisk.so"
        gcc = require_tool("gcc", package="gcc")
        subprocess.run([gcc, "-shared", "-fPIC", "-O1", "-Wall", "-Wextra", "-Werror", "-o", library, SOURCE, "-ldl"],
                       check=True)
        self._hold = directory / "hold"
        # Behind what is there: a sanitizer's library must come first.
        monkeypatch.setenv("LD_PRELOAD", " ".join([*os.environ.get("LD_PRELOAD", "").split(), str(library)]))
        monkeypatch.setenv("SLOWDISK_HOLD", str(self._hold))
        monkeypatch.setenv("SLOWDISK_MS", str(milliseconds))

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Nothing is synced inside."""
        self._hold.touch()
        try:
            yield
        finally:
            self._hold.unlink()
