"""The floors: small C programs that do the least that a broker must do, compiled on demand.

relay (forwards bytes, parses nothing), fanout (one payload to many with writev), fsync_loop (write and fdatasync).
"""
from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from fluxmq.bench.load.histogram import Histogram

__all__ = ["FloorError", "build_floor", "fsync_latency"]

SOURCES = Path(__file__).parent / "floor"
FLAGS = ["-O2", "-Wall", "-Wextra", "-Wno-unused-function"]


class FloorError(RuntimeError):
    """A floor program could not be compiled or run. The text says what is missing."""


def cache_dir() -> Path:
    """Directory of compiled programs: the user's cache directory, or a temporary one if that is not writable."""
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "fluxmq" / "floors"
    try:
        base.mkdir(parents=True, exist_ok=True)
        if os.access(base, os.W_OK):
            return base
    except OSError:
        pass
    fallback = Path(tempfile.gettempdir()) / f"fluxmq-floors-{os.getuid()}"
    fallback.mkdir(mode=0o700, exist_ok=True)
    if fallback.stat().st_uid != os.getuid():
        raise FloorError(f"{fallback} belongs to somebody else: set XDG_CACHE_HOME to a directory of yours")
    return fallback


def build_floor(name: str) -> Path:
    """The compiled program, from the cache or compiled now. Raises FloorError."""
    compiler = os.environ.get("CC") or "cc"
    if shutil.which(compiler.split()[0]) is None:
        raise FloorError(f"the floors are C programs and {compiler!r} is not installed (Debian package: gcc)")
    digest = hashlib.sha256(" ".join([compiler, *FLAGS]).encode())
    for path in (SOURCES / "floor.h", SOURCES / f"{name}.c"):
        digest.update(path.read_bytes())
    program = cache_dir() / f"{name}-{digest.hexdigest()[:16]}"
    if not program.exists():
        with tempfile.TemporaryDirectory(dir=program.parent) as scratch:
            made = Path(scratch) / name
            command = [*compiler.split(), *FLAGS, "-o", str(made), str(SOURCES / f"{name}.c")]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode:
                raise FloorError(f"{name}.c does not compile: {done.stderr.strip()}")
            # Another process may have been faster; its program is the same.
            made.replace(program)
    return program


def fsync_latency(folder: Path, seconds: float = 1.0, block_size: int = 4096) -> Histogram:
    """Latencies of a bare loop of write and fdatasync on a file in that folder. Raises FloorError."""
    program = build_floor("fsync_loop")
    handle, name = tempfile.mkstemp(prefix="fdatasync-", dir=folder)
    os.close(handle)
    try:
        done = subprocess.run([str(program), name, str(block_size), str(seconds)],
                              capture_output=True, text=True, check=False)
        if done.returncode:
            raise FloorError(f"writing in {folder} failed: {done.stderr.strip()}")
    finally:
        os.unlink(name)
    histogram = Histogram()
    for line in done.stdout.split():
        histogram.record(int(line))
    return histogram
