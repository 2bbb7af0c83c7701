"""The broker's side of recording: rings, the taps, and the connections that exist when one begins.

One recording at a time, and beside it one live view: the same entries in a ring of its own. Another process reads
it: the broker's own child (supervisor.py), or a command that is attached to the admin socket. See
docs/internals/recording.md, "Lifetime" and "A view beside a recording".
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
from fluxmq.model.record import RING_BYTES_MIN, VIEW_RING_BYTES, VIEW_RING_BYTES_MAX, VIEW_RING_BYTES_MIN
from fluxmq.record.options import BrokerAbout
from fluxmq.record.ring import make_ring, ring_capacity

__all__ = ["Recorder", "Recording"]

RING_BYTES_MAX = 2 << 30
RECORDING, VIEW = 0, 1  # readers, as in fluxmq/_core/memory/tap.pxd
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
    """One, or a view, from begin() to end(). descriptor: of its ring, open until end(). broker: which one is recorded.
    reader: RECORDING or VIEW. who: reads it, if it said so."""

    def __init__(self, recorder: Recorder, tap: Tap, descriptor: int, reader: int, who: str) -> None:
        self._recorder = recorder
        self.reader = reader
        self.who = who
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

    def counters(self) -> dict[str, int] | None:
        """See AttachedRecording."""
        return self._recorder.counters(self) if self.reader == VIEW else None

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
        self._current: dict[int, Recording] = {}  # by reader
        self._beginning: set[int] = set()
        self._past = {"entries": 0, "bytes": 0, "lost_entries": 0, "lost_bytes": 0}

    @property
    def recording(self) -> bool:
        return RECORDING in self._current

    @property
    def viewed(self) -> bool:
        return VIEW in self._current

    def totals(self) -> dict[str, int]:
        """Of all recordings of this run, without views: entries and bytes of them that were tapped, and those that were
        lost."""
        tap = self._current[RECORDING].tap if RECORDING in self._current else None
        return {name: past + (getattr(tap, name) if tap is not None else 0) for name, past in self._past.items()}

    def counters(self, recording: Recording) -> dict[str, int]:
        """See AttachedRecording."""
        counted, tap = self._poller.hub.counters(), recording.tap
        return {"received": sum(counted["messages_received"]), "sent": sum(counted["messages_sent"]),
                "entries": tap.entries, "bytes": tap.bytes, "lost_entries": tap.lost_entries,
                "lost_bytes": tap.lost_bytes, "connections": len(self._poller.connections)}

    def _check(self, reader: int, ring_bytes: int) -> None:
        """Raises RecordRefused."""
        if reader == VIEW and VIEW in self._current and self._current[VIEW].tap.left:
            self.end(self._current[VIEW])   # its reader has gone, which the next tick would notice
        if reader in self._current or reader in self._beginning:
            if reader == RECORDING:
                raise RecordRefused("conflict", "this broker is being recorded already",
                                    "one recording at a time: stop the other, or set record.enabled to false")
            who = self._current[VIEW].who if VIEW in self._current else ""
            raise RecordRefused("conflict", f"this broker is being viewed already{f' by {who}' if who else ''}",
                                "one view at a time: end the other")
        if self.stopping:
            raise RecordRefused("unavailable", "the broker is stopping")
        least, most = ((RING_BYTES_MIN, RING_BYTES_MAX) if reader == RECORDING
                       else (VIEW_RING_BYTES_MIN, VIEW_RING_BYTES_MAX))
        if not least <= ring_bytes <= most:
            raise RecordRefused("invalid", f"a ring has {least} to {most} bytes, not {ring_bytes}")

    async def begin(self, ring_bytes: int, reader: int = RECORDING, who: str = "") -> Recording:
        """A new ring, and everything into it from now on. Raises RecordRefused."""
        self._check(reader, ring_bytes)
        self._beginning.add(reader)
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
            self._beginning.discard(reader)
        if self.stopping:
            os.close(descriptor)
            raise RecordRefused("unavailable", "the broker is stopping")
        recording = self._current[reader] = Recording(self, tap, descriptor, reader, who)
        self._poller.record(tap, reader == VIEW)
        # The edge reports connections from now on.
        present = list(self._poller.connections)
        recording.present_task = asyncio.get_running_loop().create_task(self._record_present(recording, present))
        return recording

    async def attach(self, ring_bytes: int, *, view: bool = False, who: str = "") -> Recording:
        """See RecordPort."""
        return await self.begin(ring_bytes or (VIEW_RING_BYTES if view else self._ring_bytes),
                                VIEW if view else RECORDING, who)

    async def _record_present(self, recording: Recording, connections: list[Any]) -> None:
        """Each connection that is there is recorded from its own entries on; many take many turns."""
        for at in range(0, len(connections), PRESENT_STEP):
            while recording.running and recording.tap.waiting > recording.capacity // 2:
                await asyncio.sleep(ROOM_S)
            for connection in connections[at:at + PRESENT_STEP]:
                if recording.running and not connection.ended:
                    connection.handler.record_present(connection, recording.reader)
            await asyncio.sleep(0)

    def end(self, recording: Recording) -> None:
        """Stops recording; the reader takes the rest. May be called twice."""
        if self._current.get(recording.reader) is not recording:
            return
        self._poller.record(None, recording.reader == VIEW)
        recording.running = False
        recording.tap.end()
        if recording.reader == RECORDING:
            for name in self._past:
                self._past[name] += getattr(recording.tap, name)
        del self._current[recording.reader]
        os.close(recording.descriptor)  # the reader has its own

    def tick(self) -> None:
        """Checks whether the readers still take entries."""
        for recording in list(self._current.values()):
            if recording.tap.left:
                self.end(recording)

    def stop(self) -> None:
        """All connections are closed: ends the recording, and the view."""
        self.stopping = True
        for recording in list(self._current.values()):
            self.end(recording)
