"""SimTransport: fluxmq.cluster.ports.Transport over the simulated network.

    transport = SimTransport(process, network, "n1:7948")
    process.driver.start(transport.start(calls, streams))

One is made for each life of a process. An address belongs to the transport that listened there last; who dials while
its process is dead, or after its stop, is refused.
"""
from __future__ import annotations

import random
from collections import deque
from collections.abc import AsyncIterator, Callable
from functools import partial

from simulator.cluster.machines import Process
from simulator.cluster.network import REFUSED, Connection, Network, Side

from fluxmq.cluster.ports import BindFailed, CallFailed, CallHandler, StreamHandler
from fluxmq.engine.ports.driver import Promise

__all__ = ["SimCall", "SimStreamIn", "SimStreamOut", "SimTransport"]

# What travels: tuples that begin with one of these.
HELLO, ACCEPTED, FRAME, CALL, PART, DONE, FAILED = range(7)

AT_ONCE = 0.5   # part of the frames that leave within StreamOut.send(), when nothing waits


class SimStreamOut:
    """A StreamOut."""

    def __init__(self, transport: SimTransport, address: str) -> None:
        self.address = address
        self.on_idle: Callable[[], object] = lambda: None
        self.accepted = False
        self._transport = transport
        self._chance = random.Random(f"{transport.address} {address}")     # its own: what others draw stays so
        self.side = Side(transport.process, self._on_item, self._on_break, self._on_idle)

    @property
    def idle(self) -> bool:
        return self.accepted and not self.side.closed and self.side.out.idle

    def send(self, frame: bytes) -> bool:
        if not self.side.connected:
            return False
        item = (FRAME, bytes(frame))
        if self.accepted and self._chance.random() < AT_ONCE and self.side.out.put_at_once(item):
            return True
        self.side.put(item)
        return False

    def close(self) -> None:
        self._transport.streams.pop(self, None)
        if self.side.connected:
            self.side.close("the stream was closed by the node that opened it")

    def open(self, hello: bytes) -> None:
        """Sends the hello; frames follow when it was accepted."""
        if self._transport.connect(self.side, self.address):
            self.side.out.open = False
            self.side.out.write((HELLO, bytes(hello)))
        else:
            self.side.process.driver.soon(partial(self._on_break, REFUSED))

    def _on_item(self, item: object) -> None:
        assert isinstance(item, tuple) and item[0] == ACCEPTED
        self.accepted = True
        self._transport.handler.on_open(self, item[1])
        self.side.out.open = True
        self.side.out.pump()

    def _on_break(self, why: str) -> None:
        if self in self._transport.streams:
            del self._transport.streams[self]
            self._transport.handler.on_closed(self, why)

    def _on_idle(self) -> None:
        if self.idle:       # nothing was sent since
            self.on_idle()


class SimStreamIn:
    """A StreamIn."""

    def __init__(self, transport: SimTransport, side: Side, identity: str | None) -> None:
        self.identity = identity
        self._transport = transport
        self._side = side

    def close(self, why: str) -> None:
        self._transport.accepted.pop(self, None)
        self._side.close(why)


class _Incoming:
    """The accepting end of a connection: its first item says whether it is a stream or a call."""

    def __init__(self, transport: SimTransport, identity: str | None) -> None:
        self._transport = transport
        self._identity = identity       # of who has dialled
        self._stream: SimStreamIn | None = None
        self._room: Promise[None] | None = None
        self.side = Side(transport.process, self._on_item, self._on_break, self._on_idle)
        self.side.life = transport.life

    def _on_item(self, item: object) -> None:
        assert isinstance(item, tuple)
        transport = self._transport
        if item[0] == FRAME:
            assert self._stream is not None
            transport.handler.on_frame(self._stream, item[1])
        elif not transport.listens:
            self.side.close(REFUSED)
        elif item[0] == HELLO:
            self._accept(item[1])
        else:
            transport.answers[self] = None
            transport.process.driver.start(self._answer(item[1], item[2]))

    def _accept(self, hello: bytes) -> None:
        stream = self._stream = SimStreamIn(self._transport, self.side, self._identity)
        self._transport.accepted[stream] = None
        answer = self._transport.handler.on_stream(stream, hello)
        if answer is None:
            stream.close("the stream was refused")
        else:
            self.side.put((ACCEPTED, bytes(answer)))

    async def _answer(self, method: str, body: bytes) -> None:
        try:
            async for part in self._transport.calls_to.on_call(method, body, self._identity):
                while self.side.out.full and not self.side.closed:
                    self._room = self._transport.process.driver.promise()
                    await self._room
                if self.side.closed:
                    break
                self.side.put((PART, bytes(part)))
            self.side.put((DONE,))
        except CallFailed as failed:
            self.side.put((FAILED, str(failed), failed.reached))
        finally:
            self._transport.answers.pop(self, None)

    def _on_idle(self) -> None:
        if self._room is not None and not self._room.done():
            self._room.set_result(None)

    def _on_break(self, _why: str) -> None:
        self._on_idle()
        if self._stream in self._transport.accepted:
            del self._transport.accepted[self._stream]
            self._transport.handler.on_end(self._stream)

    def stop(self) -> None:
        """The transport stops."""
        self.side.close("the transport was stopped")
        self._on_idle()


class SimCall:
    """A call: the parts of its answer. It begins when the first one is asked for."""

    def __init__(self, transport: SimTransport, address: str, method: str, body: bytes, limit_s: float) -> None:
        self._transport = transport
        self._address, self._method, self._body, self._limit_s = address, method, bytes(body), limit_s
        self._parts: deque[bytes] = deque()
        self._waiting: Promise[None] | None = None
        self._begun = self._done = False
        self._error: CallFailed | None = None
        self._side = Side(transport.process, self._on_item, self._on_break)

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        if not self._begun:
            self._begin()
        while not self._parts:
            if self._error is not None:
                raise self._error
            if self._done:
                raise StopAsyncIteration
            self._waiting = self._transport.process.driver.promise()
            await self._waiting
        return self._parts.popleft()

    async def aclose(self) -> None:
        """Gives the call up."""
        self.end(None)

    def _begin(self) -> None:
        self._begun = True
        self._transport.calls[self] = None
        driver = self._transport.process.driver
        if self._transport.connect(self._side, self._address):
            self._side.out.write((CALL, self._method, self._body))
            late = f"{self._address} has not answered {self._method} within {self._limit_s:g} s"
            driver.later(self._limit_s, lambda: self.end(CallFailed(late)))
        else:
            driver.soon(partial(self._on_break, REFUSED))

    def _on_item(self, item: object) -> None:
        assert isinstance(item, tuple)
        if item[0] == PART:
            self._parts.append(item[1])
            self._wake()
        else:
            self.end(None if item[0] == DONE else CallFailed(item[1], reached=item[2]))

    def _on_break(self, why: str) -> None:
        self.end(CallFailed(f"{self._address}: {why}", reached=why != REFUSED))

    def end(self, error: CallFailed | None) -> None:
        """It is over. Parts that came before an error are still given."""
        if not self._done:
            self._done, self._error = True, error
            self._transport.calls.pop(self, None)
            if self._side.connected:
                self._side.close("the call is over")
            self._wake()

    def _wake(self) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)


class SimTransport:
    """A Transport, for one life of a process. The handlers' methods are called by that process only.

    authenticated: whether others see the process's name as the identity of this end. Parts that others have asked for
    with a call are not asked of the handler any more after stop(); what it was waiting for then is not cancelled.
    """

    handler: StreamHandler
    calls_to: CallHandler

    def __init__(self, process: Process, network: Network, address: str, *, authenticated: bool = True) -> None:
        self.process = process
        self.identity = process.name if authenticated else None
        self.life = process.life
        self.address = address
        self.problem = ""
        self.streams: dict[SimStreamOut, None] = {}         # dialled, and not closed
        self.accepted: dict[SimStreamIn, None] = {}
        self.calls: dict[SimCall, None] = {}
        self.answers: dict[_Incoming, None] = {}
        self._network = network
        self._stopped = False

    @property
    def listens(self) -> bool:
        return self._network.listeners.get(self.address) is self and not self._stopped

    async def start(self, calls: CallHandler, streams: StreamHandler) -> None:
        other = self._network.listeners.get(self.address)
        if isinstance(other, SimTransport) and other.listens and other.alive:
            raise BindFailed(f"cannot listen on {self.address}: it is in use by {other.process.name}")
        self.handler, self.calls_to = streams, calls
        self._network.listeners[self.address] = self

    @property
    def alive(self) -> bool:
        """Whether its process is in the same life."""
        return self.process.alive and self.process.life == self.life

    def dial(self, address: str, hello: bytes) -> SimStreamOut:
        stream = SimStreamOut(self, address)
        self.streams[stream] = None
        stream.open(hello)
        return stream

    def call(self, address: str, method: str, body: bytes, limit_s: float) -> SimCall:
        return SimCall(self, address, method, body, limit_s)

    def connect(self, side: Side, address: str) -> bool:
        """Makes a connection to whoever listens there; False if nobody ever did."""
        other = self._network.listeners.get(address)
        if self._stopped or not isinstance(other, SimTransport):
            return False
        Connection(self._network, side, _Incoming(other, self.identity).side)
        return True

    async def stop(self) -> None:
        self._stopped = True
        for stream in list(self.streams):
            stream.close()
        for accepted in list(self.accepted):
            accepted.close("the transport was stopped")
        for answer in list(self.answers):
            answer.stop()
        for call in list(self.calls):
            call.end(CallFailed("the transport was stopped"))
