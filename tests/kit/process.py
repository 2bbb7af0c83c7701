"""`fluxmq WORDS…` as a process that a test speaks to while it runs.

    with Started("sub", "a/#", "--verbose") as sub:
        sub.says("subscribed")                  # waits until standard error has it
        assert sub.line() == "hello"
        assert sub.interrupt() == 0             # Ctrl-C; the status
"""
from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from types import TracebackType
from typing import IO, Self

from kit.python import environment

__all__ = ["Ended", "Started", "fluxmq_said"]

PATIENCE_S = 60.0  # only a failing test needs it


class Ended:
    """What a command has said. out: as bytes."""

    def __init__(self, status: int, out: bytes, err: str) -> None:
        self.status, self.out, self.err = status, out, err
        assert "Traceback" not in err, err

    @property
    def lines(self) -> list[str]:
        return self.out.decode().splitlines()


def fluxmq_said(*words: str, given: bytes = b"", **environ: str) -> Ended:
    """Runs it to its end. given: on standard input."""
    done = subprocess.run([sys.executable, "-m", "fluxmq", *words], input=given, capture_output=True, check=False,
                          timeout=PATIENCE_S, env=environment(**environ))
    return Ended(done.returncode, done.stdout, done.stderr.decode())


class Started:
    """stdin: a pipe that `write` fills, unless another one is given."""

    def __init__(self, *words: str, stdout: int | IO[bytes] = subprocess.PIPE, **environ: str) -> None:
        self._err = tempfile.TemporaryFile()  # noqa: SIM115 - closed by __exit__
        self.process = subprocess.Popen([sys.executable, "-m", "fluxmq", *words], stdin=subprocess.PIPE, stdout=stdout,
                                        stderr=self._err, env=environment(**environ))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()
        self._err.close()

    @property
    def err(self) -> str:
        """Standard error until now."""
        return os.pread(self._err.fileno(), 1 << 20, 0).decode()

    def says(self, words: str, times: int = 1) -> None:
        """Until standard error has these words, so often."""
        deadline = time.monotonic() + PATIENCE_S
        while self.err.count(words) < times:
            assert self.process.poll() is None, f"it has ended with {self.process.poll()}: {self.err}"
            assert time.monotonic() < deadline, f"it does not say {words!r}: {self.err}"
            time.sleep(0.02)

    def line(self) -> str:
        """The next line of standard output."""
        assert self.process.stdout is not None
        return self.process.stdout.readline().decode().rstrip("\n")

    def write(self, data: bytes) -> None:
        """To its standard input, at once."""
        assert self.process.stdin is not None
        self.process.stdin.write(data)
        self.process.stdin.flush()

    def end(self) -> Ended:
        """The end of its standard input; then its own, without a signal."""
        out, _ = self.process.communicate(timeout=PATIENCE_S)
        return Ended(self.process.returncode, out or b"", self.err)

    def interrupt(self, number: signal.Signals = signal.SIGINT) -> Ended:
        """A signal, and its end."""
        self.process.send_signal(number)
        return self.end()
