"""The broker's side of recording: rings, the tap, and the connections that exist when it begins.

One recording at a time. Another process reads the ring: the broker's own child (supervisor.py), or a
command that is attached to the admin socket. See docs/internals/recording.md, "Lifetime".
"""
from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from typing import Any

import msgspec

from fluxmq._core.memory.tap import Tap
from fluxmq._core.net.poller import Poller
from fluxmq.engine.ports.record import RecordPort, RecordRefused
from fluxmq.model.record import RING_BYTES_MIN
from fluxmq.record.options import BrokerAbout
from fluxmq.record.ring import make_ring, ring_capacity

__all__ = ["Recorder", "Recording"]

RING_BYTES_MAX = 2 << 30
PRESENT_STEP = 100  # connections reported in one step: less than a millisecond of the loop's time
ROOM_S = 0.01  # interval of checks whether the reader has made room for more of them


def _make(capacity: int) -> tuple[int, Tap]:
    descriptor = make_ring(capacity)
    try:
        return descriptor, Tap(descriptor, capacity)
    except BaseException:
        os.close(descriptor)
        raise


def _drop(made: asyncio.Future[tuple[int, Tap]]) -> None:
    """The ring is not needed any more."""
    if not made.cancelled() and made.exception() is None:
        os.close(made.result()[0])


class Recording:
    """One, from begin() to end(). descriptor: of its ring, open until end(). broker: which one is recorded."""

    def __init__(self, recorder: Recorder, tap: Tap, descriptor: int) -> None:
        self._recorder = recorder
        self.broker = recorder.about()
        self.tap = tap
        self.descriptor = descriptor
        self.capacity = os.fstat(descriptor).st_size
        self.running = True
        self.present_task: asyncio.Task[None] | None = None

    @property
    def about(self) -> dict[str, Any]:
        """See AttachedRecording."""
        return {"ring": f"/proc/{os.getpid()}/fd/{self.descriptor}", "pid": os.getpid(),
                "about": msgspec.to_builtins(self.broker)}

    def end(self) -> None:
        """The reader has gone, or is to finish: nothing more is recorded. While the broker stops, what it still says
        to its clients is, and Recorder.stop ends it."""
        if not self._recorder.stopping:
            self._recorder.end(self)


class Recorder(RecordPort):
    """poller: whose connections. about: of this broker, asked for at the start of each recording, because a node has
    its cluster only when it has joined. ring_bytes: default size of rings."""

    def __init__(self, poller: Poller, about: Callable[[], BrokerAbout], ring_bytes: int) -> None:
        self.about = about
        self.stopping = False
        self._poller = poller
        self._ring_bytes = ring_bytes
        self._current: Recording | None = None
        self._beginning = False
        self._past = {"entries": 0, "bytes": 0, "lost_entries": 0, "lost_bytes": 0}

    @property
    def recording(self) -> bool:
        return self._current is not None

    def totals(self) -> dict[str, int]:
        """Of all recordings of this run: entries and bytes of them that were tapped, and those that were lost."""
        tap = self._current.tap if self._current is not None else None
        return {name: past + (getattr(tap, name) if tap is not None else 0) for name, past in self._past.items()}

    async def begin(self, ring_bytes: int) -> Recording:
        """A new ring, and everything into it from now on. Raises RecordRefused."""
        if self._current is not None or self._beginning:
            raise RecordRefused("conflict", "this broker is being recorded already",
                                "one recording at a time: stop the other, or set record.enabled to false")
        if self.stopping:
            raise RecordRefused("unavailable", "the broker is stopping")
        if not RING_BYTES_MIN <= ring_bytes <= RING_BYTES_MAX:
            raise RecordRefused("invalid", f"a ring has {RING_BYTES_MIN} to {RING_BYTES_MAX} bytes, not {ring_bytes}")
        self._beginning = True
        try:
            # in a thread: the pages of the ring are made now, and that takes a while
            made = asyncio.get_running_loop().run_in_executor(None, _make, ring_capacity(ring_bytes))
            try:
                descriptor, tap = await asyncio.shield(made)
            except asyncio.CancelledError:
                made.add_done_callback(_drop)
                raise
        except OSError as error:
            raise RecordRefused("unavailable", f"there is no memory for the ring: {error.strerror}",
                                "give it a smaller size (record.ring_size)") from None
        finally:
            self._beginning = False
        if self.stopping:
            os.close(descriptor)
            raise RecordRefused("unavailable", "the broker is stopping")
        recording = self._current = Recording(self, tap, descriptor)
        self._poller.record(tap)
        # The edge reports connections from now on.
        present = list(self._poller.connections.values())
        recording.present_task = asyncio.get_running_loop().create_task(self._record_present(recording, present))
        return recording

    async def attach(self, ring_bytes: int) -> Recording:
        """See RecordPort."""
        return await self.begin(ring_bytes or self._ring_bytes)

    async def _record_present(self, recording: Recording, connections: list[Any]) -> None:
        """Each connection that is there is recorded from its own entries on; many take many turns."""
        for at in range(0, len(connections), PRESENT_STEP):
            while recording.running and recording.tap.waiting > recording.capacity // 2:
                await asyncio.sleep(ROOM_S)
            for connection in connections[at:at + PRESENT_STEP]:
                if recording.running and not connection.ended:
                    connection.handler.record_present(connection)
            await asyncio.sleep(0)

    def end(self, recording: Recording) -> None:
        """Stops recording; the reader takes the rest. May be called twice."""
        if self._current is not recording:
            return
        self._poller.record(None)
        recording.running = False
        recording.tap.end()
        for name in self._past:
            self._past[name] += getattr(recording.tap, name)
        self._current = None
        os.close(recording.descriptor)  # the reader has its own

    def tick(self) -> None:
        """Checks whether the reader still takes entries."""
        if self._current is not None and self._current.tap.left:
            self.end(self._current)

    def stop(self) -> None:
        """All connections are closed: ends the recording."""
        self.stopping = True
        if self._current is not None:
            self.end(self._current)
