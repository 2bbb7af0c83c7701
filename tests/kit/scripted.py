"""A server that does what a test says, packet by packet: for what a client must survive.

    async with Scripted(script) as server:            # script(peer) runs for each connection
        connection = await Connection.open(server.address)

`peer.expect(Publish)` reads the next packet with the strict codec of tests/oracle, `peer.send` writes packets or bytes.
What a script raises fails the test when the server is left.
"""
from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from oracle.mqtt import (
    Connack,
    Connect,
    Packet,
    Puback,
    Publish,
    Suback,
    Subscribe,
    Unsuback,
    Unsubscribe,
    parse,
)

__all__ = ["Peer", "Script", "Scripted", "answer_all"]

P = TypeVar("P", bound=Packet)


class Peer:
    """One connection, the server's end. number: of the connection, from 0. connect: what the client said."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, number: int) -> None:
        self.reader, self.writer, self.number = reader, writer, number
        self.data = b""
        self.version = 5
        self.connect: Connect | None = None

    async def recv(self) -> Packet | None:
        """The next packet; None at the end of the connection."""
        while (found := parse(self.data, self.version)) is None:
            data = await self.reader.read(65536)
            if not data:
                return None
            self.data += data
        packet, self.data = found
        return packet

    async def expect(self, kind: type[P], **fields: Any) -> P:
        """The next packet, which must be of this kind and have these values."""
        packet = await self.recv()
        assert isinstance(packet, kind), f"{kind.__name__} expected, not {packet!r}"
        for name, value in fields.items():
            assert getattr(packet, name) == value, f"{name} of {packet!r} is not {value!r}"
        return packet

    async def expect_end(self) -> None:
        """The client hangs up, and says nothing before."""
        assert await self.recv() is None

    def send(self, *packets: Packet | bytes) -> None:
        for packet in packets:
            self.writer.write(packet if isinstance(packet, bytes) else packet.encode(self.version))

    async def accept(self, **connack: Any) -> Connect:
        """CONNECT, and CONNACK for it."""
        while b"MQTT" not in self.data[:-4]:
            self.data += await self.reader.readexactly(1)
        self.version = self.data[self.data.index(b"MQTT") + 4]
        self.connect = packet = await self.expect(Connect)
        self.send(Connack(**connack))
        return packet

    def drop(self) -> None:
        """End it as a broken network does."""
        self.writer.transport.abort()


Script = Callable[[Peer], Awaitable[None]]


class Scripted:
    """The server, on 127.0.0.1 or a unix socket. After the context `peers` is how many came."""

    def __init__(self, script: Script, *, path: str = "") -> None:
        self.script = script
        self.path = path
        self.peers = 0
        self.address = ""
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Scripted:
        if self.path:
            self._server = await asyncio.start_unix_server(self._came, self.path)
            self.address = f"unix:{self.path}"
            return self
        self._server = await asyncio.start_server(self._came, "127.0.0.1", 0)
        self.address = f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def _came(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.peers += 1
        task = asyncio.ensure_future(self._run(Peer(reader, writer, self.peers - 1)))
        self._tasks.append(task)
        await asyncio.wait([task])

    async def _run(self, peer: Peer) -> None:
        try:
            await self.script(peer)
        finally:
            peer.writer.close()

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        self._server.close()
        if kind is None:
            await asyncio.gather(*self._tasks)
        for task in self._tasks:
            task.cancel()
            if kind is not None and task.done() and not task.cancelled() and task.exception() is not None:
                raise ExceptionGroup("test and server", [task.exception(), error])  # type: ignore[list-item]


async def answer_all(peer: Peer, **connack: Any) -> list[Any]:
    """A server that says yes to everything, to the end of the connection. What came."""
    await peer.accept(**connack)
    came = []
    while (packet := await peer.recv()) is not None:
        came.append(packet)
        if isinstance(packet, Publish) and packet.qos:
            peer.send(Puback(packet_id=packet.packet_id))
        elif isinstance(packet, Subscribe):
            peer.send(Suback(packet_id=packet.packet_id, reasons=[1]))
        elif isinstance(packet, Unsubscribe):
            peer.send(Unsuback(packet_id=packet.packet_id, reasons=[0]))
    return came
