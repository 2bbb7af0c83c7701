"""What a test of recording needs: a client's transport that remembers every byte, and the reader's end of a ring in the
process of the broker (kit/node.py)."""
from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from fluxmq.app.server import Server
from fluxmq.record.recorder import Recording
from fluxmq.record.ring import open_ring
from kit.entries import ACCEPTED, CLOSED, IN, OPENED, OUT, Entry, parse_entries
from kit.node import Node

__all__ = ["Recorded", "Wiretap"]

PATIENCE_S = 20.0  # only a failing test needs it


class Wiretap:
    """A socket, TLS socket or WebSocket that remembers what went through, above TLS and WebSocket.

    chunk: bytes per write; 0 = as they come.
    """

    def __init__(self, transport: Any, chunk: int = 0) -> None:
        self.transport = transport
        self.chunk = chunk
        self.sent = bytearray()
        self.got = bytearray()

    def sendall(self, data: bytes) -> None:
        self.sent += data
        step = self.chunk or len(data) or 1
        for at in range(0, len(data), step):
            self.transport.sendall(data[at:at + step])

    def recv(self, count: int) -> bytes:
        data: bytes = self.transport.recv(count)
        self.got += data
        return data

    def read_to_the_end(self) -> None:
        """Until the broker closes."""
        self.transport.settimeout(PATIENCE_S)
        while self.recv(1 << 20):
            pass

    def setsockopt(self, *option: Any) -> None:
        self.transport.setsockopt(*option)

    def settimeout(self, seconds: float | None) -> None:
        self.transport.settimeout(seconds)

    def shutdown(self, how: int) -> None:
        self.transport.shutdown(how)

    def close(self) -> None:
        self.transport.close()


class Recorded:
    """A recording, or a view, of a Node, read by the test. entries: all that was taken so far."""

    def __init__(self, node: Node, ring_bytes: int = 4 << 20, *, view: bool = False, who: str = "") -> None:
        self.node = node

        async def begin(server: Server) -> Recording:
            recording = await server.recording.recorder.attach(ring_bytes, view=view, who=who)
            assert recording.present_task is not None
            await recording.present_task
            return recording

        self.recording = node.wait(begin)
        self.reader = open_ring(self.recording.about["ring"])
        self.entries: list[Entry] = []

    def take(self) -> None:
        """Everything that is there."""
        while some := parse_entries(self.reader.take()):
            self.entries += some

    def until(self, done: Callable[[Recorded], object]) -> None:
        """Takes until it is so."""
        deadline = time.monotonic() + PATIENCE_S
        while self.take() or not done(self):
            if time.monotonic() > deadline:
                pytest.fail(f"it never came about; the last entries: {self.entries[-5:]}")
            time.sleep(0.001)

    def end(self) -> list[Entry]:
        """Ends the recording; everything."""
        self.node.call(lambda server: server.recording.recorder.end(self.recording))
        self.take()
        assert self.reader.ended
        return self.entries

    def number(self, client_id: str) -> int:
        """The number of the client's only connection; 0: it is not accepted yet."""
        found = [entry.connection for entry in self.entries
                 if entry.kind == ACCEPTED and entry.json["client_id"] == client_id]
        assert len(found) <= 1
        return found[0] if found else 0

    def of(self, number: int, *kinds: int) -> list[Entry]:
        """Its entries, those of some kinds."""
        return [entry for entry in self.entries if entry.connection == number and entry.kind in (kinds or range(8))]

    def sent(self, number: int) -> bytes:
        """What the client sent, as recorded."""
        return b"".join(entry.data for entry in self.of(number, IN))

    def got(self, number: int) -> bytes:
        """What was sent to the client, as recorded."""
        return b"".join(entry.data for entry in self.of(number, OUT))

    def closed(self, number: int) -> bool:
        return bool(self.of(number, CLOSED))

    def check_order(self, number: int) -> None:
        """OPENED is first, what the client said comes before ACCEPTED, which comes before all answers, CLOSED is last.
        The times never go back."""
        found = self.of(number)
        kinds = [entry.kind for entry in found]
        assert kinds[0] == OPENED and kinds[1] == IN and kinds.count(OPENED) == kinds.count(CLOSED) == 1, kinds
        assert kinds[-1] == CLOSED, kinds
        times = [entry.time for entry in found if entry.kind != IN]
        assert times == sorted(times)
