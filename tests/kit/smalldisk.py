"""A disk of a few megabytes that can be filled to the last byte: a tmpfs of its own. Needs root."""
from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from fluxmq.model.limits import QUEUE_RESERVE_BYTES

__all__ = ["fill", "has_reserve", "small_disk"]


@contextlib.contextmanager
def small_disk(where: Path, size: str = "12m") -> Iterator[Path]:
    """A directory that holds no more than `size`. Skips the test where that cannot be had."""
    if os.geteuid() != 0:
        pytest.skip("mounting a small tmpfs needs root")
    where.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(where)],
                      capture_output=True).returncode:
        pytest.skip("mount is not allowed here")
    try:
        yield where
    finally:
        subprocess.run(["umount", "--lazy", str(where)], check=True)


def has_reserve(data: Path) -> bool:
    """A broker with queues has taken its reserve: the file is there before its space is."""
    try:
        return (data / "reserve").stat().st_blocks * 512 >= QUEUE_RESERVE_BYTES
    except FileNotFoundError:
        return False


def fill(where: Path, leave: int) -> Path:
    """Takes every byte that is left, but some. Returns the file to delete."""
    ballast = where / "ballast"
    with ballast.open("ab", buffering=0) as file:
        for size in (65536, 4096):
            try:
                while True:
                    file.write(bytes(size))
            except OSError:
                pass
    os.truncate(ballast, ballast.stat().st_size - leave)
    return ballast
