"""Processes that begin in a moment: a program that has imported everything (`kit/nursery_node.py`, or one that a test
names) forks them, so that each is a process of its own, with its own number, signals and end, and only the third of a
second of imports is not paid again.

What must be there before the interpreter, such as a library to preload, is not for a fork: `can_fork` says so.
"""
from __future__ import annotations

import atexit
import contextlib
import functools
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from kit.python import environment
from kit.readable import is_readable

__all__ = ["Nursery", "Process", "can_fork", "fork"]

PROGRAM = Path(__file__).with_name("nursery_node.py")
# Of variables that the loader, the C library or the interpreter read once, before the program.
READ_AT_START = ("LD_", "MALLOC_", "GLIBC_", "PYTHON", "ASAN_", "UBSAN_", "LSAN_")
ENVIRONMENT = environment(PYTHONUNBUFFERED="1")     # before any test has changed it


class Process:
    """One that a nursery has made; as subprocess.Popen has it."""

    def __init__(self, nursery: Nursery, pid: int) -> None:
        self.nursery, self.pid = nursery, pid
        self.returncode: int | None = None
        self._fd = os.pidfd_open(pid)

    def poll(self) -> int | None:
        return self._reap(0.0)

    def wait(self, timeout: float | None = None) -> int:
        code = self._reap(timeout)
        if code is None:
            raise subprocess.TimeoutExpired("fluxmq", timeout or 0.0)
        return code

    def _reap(self, timeout: float | None) -> int | None:
        if self.returncode is None and is_readable(self._fd, timeout):
            os.close(self._fd)
            self.returncode = self.nursery.ask("wait", self.pid)
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            signal.pidfd_send_signal(self._fd, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class Nursery:
    """A program that answers each line of JSON, [verb, what], with one. It ends with the end of its input.

    errors: the file that has what it says itself.
    """

    def __init__(self, program: Path, env: Mapping[str, str], errors: Path) -> None:
        self.errors = errors
        self._lock = threading.Lock()
        with errors.open("wb") as stderr:
            self._process = subprocess.Popen([sys.executable, str(program)], stdin=subprocess.PIPE, text=True,
                                             stdout=subprocess.PIPE, stderr=stderr, env=env)

    def ask(self, verb: str, asked: Any) -> Any:
        assert self._process.stdin is not None and self._process.stdout is not None
        with self._lock:
            self._process.stdin.write(json.dumps([verb, asked]) + "\n")
            self._process.stdin.flush()
            answer = self._process.stdout.readline()
        assert answer, f"the nursery has ended: {self.errors.read_text()[-5000:]}"
        return json.loads(answer)

    def close(self) -> None:
        """What it made goes on."""
        self._process.kill()
        self._process.communicate()


@functools.cache
def _nursery() -> Nursery:
    """That of this worker of pytest; made for the first process."""
    number, name = tempfile.mkstemp(prefix="fluxmq-nursery-")
    os.close(number)
    nursery = Nursery(PROGRAM, ENVIRONMENT, Path(name))
    atexit.register(_end, nursery)
    return nursery


def _end(nursery: Nursery) -> None:
    nursery.close()
    with contextlib.suppress(FileNotFoundError):
        nursery.errors.unlink()


def can_fork(command: Sequence[str], env: Mapping[str, str]) -> bool:
    """Whether that is a program of this interpreter, which would begin no differently with these variables."""
    return command[0] == sys.executable and _read_at_start(env) == _read_at_start(ENVIRONMENT)


def _read_at_start(env: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in env.items() if name.startswith(READ_AT_START)}


def fork(command: Sequence[str], *, stdout: Path, stderr: Path, cwd: Path, env: Mapping[str, str]) -> Process:
    """A process that runs `python -m MODULE …` or `python FILE …`. stdout is written anew, stderr is appended to."""
    nursery = _nursery()
    stdout.write_bytes(b"")             # now: nobody is to read what a former one has said
    return Process(nursery, nursery.ask("spawn", {
        "program": command[1:], "stdout": str(stdout), "stderr": str(stderr), "cwd": str(cwd), "env": dict(env)}))
