"""The stream behind POST /api/v1/record: while it is open, the broker records, or shows a live view, and its client
reads the ring."""
from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from types import TracebackType
from typing import Annotated, Any

import msgspec

from fluxmq.admin.http import Stream
from fluxmq.engine.ports.record import AttachedRecording, RecordPort

__all__ = ["begin_recording"]

# Interval of checks for the other side: recording continues for up to this long after it has left.
_LOOK_SECONDS = 0.1
# An empty line shows a proxy in between that the connection lives.
_BLANK_LOOKS = 150
# A view is told the broker's counters so often.
_COUNT_LOOKS = 2


class _Request(msgspec.Struct, forbid_unknown_fields=True):
    """The body, which may be missing. ring_size: bytes; 0 = record.ring_size of the broker's configuration, for a view
    VIEW_RING_BYTES. view: a live view, which may run beside a recording. who: who asks, for the error of the next."""

    ring_size: int = 0
    view: bool = False
    who: Annotated[str, msgspec.Meta(max_length=200)] = ""


class _Lines(AsyncGenerator[bytes, None]):
    """The line that says where the ring is, then empty ones until the recording ends, for a view with counters. Closing
    it ends the recording, also before the first line was asked for."""

    def __init__(self, recording: AttachedRecording) -> None:
        self._recording = recording
        self._looks = 0

    async def asend(self, value: None) -> bytes:
        self._looks += 1
        if self._looks == 1:
            return msgspec.json.encode(self._recording.about) + b"\n"
        await asyncio.sleep(_LOOK_SECONDS)
        if not self._recording.running:
            raise StopAsyncIteration
        if self._looks % _COUNT_LOOKS == 0 and (counters := self._recording.counters()) is not None:
            return msgspec.json.encode(counters) + b"\n"
        return b"" if self._looks % _BLANK_LOOKS else b"\n"

    async def athrow(self, typ: Any, val: Any = None, tb: TracebackType | None = None) -> bytes:
        self._recording.end()
        raise val if isinstance(val, BaseException) else typ

    async def aclose(self) -> None:
        self._recording.end()


async def begin_recording(recordings: RecordPort, body: bytes) -> Stream:
    """The answer, once the recording has begun. Raises RecordRefused, and what msgspec raises for a wrong body."""
    request = msgspec.json.decode(body or b"{}", type=_Request)
    return Stream(200, "application/x-ndjson", _Lines(
        await recordings.attach(request.ring_size, view=request.view, who=request.who)))
