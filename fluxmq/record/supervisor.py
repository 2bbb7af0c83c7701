"""Recording by configuration: the writer as a child of the broker, started again when it dies, ended in order.

The child has the ring by descriptor, and the end of a pipe whose other end hangs up when the broker goes, however it
goes. See docs/internals/recording.md, "Lifetime".
"""
from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, cast

import msgspec

from fluxmq._core.errors import FluxError
from fluxmq.model.record import Record
from fluxmq.record.options import RecordOptions
from fluxmq.record.recorder import Recorder, Recording
from fluxmq.record.ring import open_ring

__all__ = ["CAP_REACHED", "Supervisor", "disk_used", "recording_name", "recording_options"]

CAP_REACHED = 3  # exit status of a writer that has reached its size limit
RETRY_SECONDS_MAX = 60.0
STEADY_SECONDS = 60.0  # a writer that lived this long died of a new cause: the retry delay starts anew
END_SECONDS = 10.0  # for the last rows of a writer whose ring has ended
KILL_SECONDS = 2.0
LOOK_SECONDS = 0.01

Log = Callable[[str, str, str, dict[str, Any]], None]


def recording_options(record: Record, cap_bytes: int = 0) -> RecordOptions:
    """What the configuration asks of the writer."""
    protocols = cast(tuple[Literal["mqtt", "amqp091"], ...], record.protocols)
    return RecordOptions(topics=record.topics, clients=record.clients, protocols=protocols,
                         sample=record.sample / 100, payload=record.payload, max_rows=record.max_rows,
                         max_bytes=record.max_size, max_seconds=record.max_time, cap_bytes=cap_bytes)


def disk_used(directory: Path) -> int:
    """Bytes of all files of all recordings in it."""
    size = 0
    for folder, _, names in os.walk(directory):
        for name in names:
            with contextlib.suppress(OSError):
                size += os.lstat(os.path.join(folder, name)).st_size
    return size


class Supervisor:
    """record: the section of the configuration. on_log: (level, cause, text, fields)."""

    def __init__(self, recorder: Recorder, record: Record, on_log: Log) -> None:
        self.restarts = 0
        self.child: subprocess.Popen[bytes] | None = None
        self.directory: Path | None = None  # of the recording that runs, or ran last
        self._recorder = recorder
        self._record = record
        self._log = on_log
        self._recording: Recording | None = None
        self._ring: int = -1  # own descriptor of the ring, to count what a dead writer left in it
        self._alive: int = -1
        self._unread = (0, 0, 0, 0)  # entries that dead writers left, see Tap.lose
        self._failures = 0
        self._since = 0.0
        self._due: float | None = None  # when the next one is started
        self._starting: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """The first writer. Raises FluxError when there cannot be one."""
        try:
            await self._launch()
        except OSError as error:
            raise FluxError(f"recording cannot begin in {self._record.dir}: {error.strerror or error} "
                            f"(record.dir)") from None

    async def _launch(self) -> None:
        base = Path(self._record.dir).absolute()
        base.mkdir(mode=0o700, parents=True, exist_ok=True)
        cap = self._record.max_disk
        if cap:
            cap -= await asyncio.to_thread(disk_used, base)
            if cap <= 0:
                self._log("warning", "record", "nothing is recorded: record.max_disk is used up", {"dir": str(base)})
                return
        recording = await self._recorder.begin(self._record.ring_size)
        recording.tap.lose(*self._unread)
        self._unread = (0, 0, 0, 0)
        self._recording = recording
        ring = open_ring(recording.descriptor)
        self.directory = base / recording_name(time.time_ns())
        try:
            self.child = await asyncio.get_running_loop().run_in_executor(
                None, self._spawn, recording, self.directory, cap)
        except BaseException:
            self._recorder.end(recording)
            self._recording = None
            self._unread = ring.discard()
            raise
        self._since = time.monotonic()
        self._log("info", "", "recording", {"dir": str(self.directory), "writer": self.child.pid})

    def _spawn(self, recording: Recording, directory: Path, cap: int) -> subprocess.Popen[bytes]:
        self._ring = os.dup(recording.descriptor)
        alive, self._alive = os.pipe()
        try:
            return subprocess.Popen(
                [sys.executable, "-P", "-m", "fluxmq.record.writer", "--ring", str(self._ring), "--alive", str(alive),
                 "--dir", str(directory),
                 "--options", msgspec.json.encode(recording_options(self._record, cap)).decode(),
                 "--about", msgspec.json.encode(recording.broker).decode()],
                pass_fds=(self._ring, alive), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                start_new_session=True)  # Ctrl+C at the terminal must only reach the broker
        except BaseException:
            self._let_go()
            raise
        finally:
            os.close(alive)

    def _let_go(self) -> None:
        for descriptor in (self._ring, self._alive):
            if descriptor >= 0:
                os.close(descriptor)
        self._ring = self._alive = -1

    def tick(self) -> None:
        """Checks the child process."""
        if self.child is not None:
            status = self.child.poll()
            if status is not None:
                self._ended(status)
        elif self._due is not None and time.monotonic() >= self._due and not self._recorder.stopping:
            self._due = None
            self._starting = asyncio.get_running_loop().create_task(self._restart())

    def _ended(self, status: int) -> None:
        """The child has ended unexpectedly."""
        assert self._recording is not None
        lived = time.monotonic() - self._since
        self._recorder.end(self._recording)
        fields = {"dir": str(self.directory), "status": status}
        if status == CAP_REACHED:
            self._log("warning", "record", "recording has ended: record.max_disk is reached", fields)
        else:
            with contextlib.suppress(FluxError):  # a damaged ring has no usable counts
                self._unread = open_ring(self._ring).discard()
            self._failures = 0 if lived > STEADY_SECONDS else self._failures + 1
            delay = 0.0 if not self._failures else min(RETRY_SECONDS_MAX, 2.0 ** (self._failures - 1) - 1)
            self._due = time.monotonic() + delay
            self._log("error", "record", "the writer of the recording died; another one is started in a new directory",
                      fields | {"in_s": delay})
        if self.directory is not None:
            with contextlib.suppress(OSError):  # of a writer that could not begin, this is all that is known
                self.directory.rmdir()
        self._let_go()
        self.child = self._recording = None

    async def _restart(self) -> None:
        try:
            await self._launch()
        except (FluxError, OSError) as error:
            self._failures += 1
            self._due = time.monotonic() + min(RETRY_SECONDS_MAX, 2.0 ** self._failures)
            self._log("error", "record", f"recording cannot go on: {error}", {"dir": self._record.dir})
        else:
            if self.child is not None:
                self.restarts += 1

    async def stop(self) -> None:
        """Recorder.stop was called: waits for the writer's last rows, bounded."""
        if self._starting is not None:
            await asyncio.wait([self._starting])
            self._recorder.stop()
        child, self.child = self.child, None
        if child is None:
            return
        for seconds, then in ((END_SECONDS, child.terminate), (KILL_SECONDS, child.kill), (KILL_SECONDS, None)):
            deadline = time.monotonic() + seconds
            while child.poll() is None and time.monotonic() < deadline:
                await asyncio.sleep(LOOK_SECONDS)
            if child.poll() is not None or then is None:
                break
            self._log("warning", "record", "the writer of the recording does not end; it is made to", {
                "dir": str(self.directory)})
            then()
        self._let_go()


def recording_name(now_ns: int) -> str:
    """A directory's, that sorts by time: 20251121T132400.123456Z."""
    return f"{time.strftime('%Y%m%dT%H%M%S', time.gmtime(now_ns // 10**9))}.{now_ns // 1000 % 10**6:06d}Z"
