"""How the public client ends: in the middle of something, cancelled, from within a callback, because of the server."""
from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from kit.scripted import Peer, Scripted, answer_all
from oracle.mqtt import Connack, Disconnect, Publish, Suback, Subscribe

from fluxmq.client import Backoff, Client, Connection, ConnectionLost, ConnectRefused, Delivery, NotConnected
from fluxmq.client.errors import ProtocolError

Run = Callable[[Any], Any]
QUICK = Backoff(initial_s=0.001, max_s=0.01)


def test_closing_while_an_answer_is_on_its_way(run: Run) -> None:
    """DISCONNECT comes first, so that the answer is no breach that publishes the will."""

    async def script(peer: Peer) -> None:
        await peer.accept()
        asked = await peer.expect(Subscribe)
        peer.send(Suback(packet_id=asked.packet_id, reasons=[1]))
        await peer.expect(Disconnect, reason=0)

    async def body() -> None:
        async with Scripted(script) as server:
            client = Client(server.address)
            await client.start()
            asking = asyncio.ensure_future(client.subscribe("a"))
            await asyncio.sleep(0)
            await client.close()
            with pytest.raises(NotConnected, match="was closed"):
                await asking

    run(body())


def test_a_close_that_is_cancelled_has_closed(run: Run) -> None:
    """And the cancellation is not swallowed."""

    async def script(peer: Peer) -> None:
        await peer.accept()
        await peer.expect(Publish)
        await peer.expect(Disconnect)
        await peer.expect_end()

    async def body() -> None:
        async with Scripted(script) as server:
            client = Client(server.address)
            await client.start()
            sent = client.publish_nowait("a", b"", 1)
            closing = asyncio.ensure_future(client.close(flush_s=20))
            await asyncio.sleep(0)
            closing.cancel()
            with pytest.raises(asyncio.CancelledError):
                await closing
            with pytest.raises(NotConnected):
                await sent

    run(body())


def test_the_end_of_the_context_waits_for_the_next_connection(run: Run) -> None:
    """What was published while there was none goes out before the end."""

    async def script(peer: Peer) -> None:
        if peer.number == 0:
            await peer.accept()
            peer.drop()
        else:
            assert Publish in [type(packet) for packet in await answer_all(peer)]

    async def body() -> None:
        async with Scripted(script) as server:
            async with Client(server.address, reconnect=QUICK) as client:
                while client.connected:
                    await asyncio.sleep(0)
                sent = client.publish_nowait("a", b"", 1)
            assert (await sent).reason == 0
            assert server.peers == 2

    run(body())


def test_an_end_in_the_middle_of_closing(run: Run) -> None:
    """Whoever waits hears why the client ended; closing it raises nothing, handlers' tasks leave no trace."""

    async def script(peer: Peer) -> None:
        if peer.number == 0:
            await peer.accept()
            asked = await peer.expect(Subscribe)
            peer.send(Suback(packet_id=asked.packet_id, reasons=[0]))
            await peer.expect(Publish)
            peer.drop()
        else:
            await peer.accept(reason=0x87)

    async def body() -> None:
        async def handler(message: Delivery) -> None:
            pytest.fail("there was no message")

        async with Scripted(script) as server:
            async with Client(server.address, reconnect=QUICK) as client:
                await client.subscribe("a", handler=handler)
                sent = client.publish_nowait("a", b"", 1)
            with pytest.raises(ConnectRefused):
                await sent

    run(body())


def test_handlers_end_with_a_client_that_finds_nobody(run: Run) -> None:
    """An OSError ends it: the task of a handler does not carry it out of close()."""

    async def script(peer: Peer) -> None:
        await peer.accept()
        asked = await peer.expect(Subscribe)
        peer.send(Suback(packet_id=asked.packet_id, reasons=[0]))
        await peer.recv()

    async def body() -> None:
        async def handler(message: Delivery) -> None:
            pytest.fail("there was no message")

        async with Scripted(script) as server:
            client = Client(server.address, reconnect=Backoff(initial_s=0.001, attempts=2))
            await client.start()
            await client.subscribe("a", handler=handler)
            server._server.close()
            assert client.connection is not None
            client.connection.abort()
            with pytest.raises(OSError):
                await client.publish("a", b"", 1)
            await client.close()

    run(body())


def test_the_error_of_the_end_does_not_grow(run: Run) -> None:
    async def script(peer: Peer) -> None:
        await peer.accept()
        peer.send(Connack())
        await peer.recv()

    async def body() -> None:
        async with Scripted(script) as server:
            client = Client(server.address)
            await client.start()
            depths = set()
            for _ in range(5):
                with pytest.raises(ProtocolError) as caught:
                    await client.publish("a", b"", 1)
                trace, depth = caught.value.__traceback__, 0
                while trace is not None:
                    trace, depth = trace.tb_next, depth + 1
                depths.add(depth)
            assert max(depths) < 10 and len(depths) <= 2
            await client.close()

    run(body())


@pytest.mark.parametrize("verb", [Connection.disconnect, Connection.abort, Connection.leave_silently])
def test_a_callback_that_ends_its_connection(run: Run, verb: Callable[[Connection], None]) -> None:
    """With more of the same read behind it: nothing else is heard."""

    async def script(peer: Peer) -> None:
        await peer.accept()
        await peer.expect(Publish, topic="go")
        peer.send(b"".join(Publish(topic="a", qos=2, packet_id=number).encode(5) for number in range(1, 50)))
        while await peer.recv() is not None:
            pass

    async def body() -> None:
        async with Scripted(script) as server:
            got: list[Any] = []
            ends: asyncio.Queue[Any] = asyncio.Queue()

            def comes(message: Any) -> None:
                got.append(message)
                verb(connection)
                with pytest.raises(NotConnected):
                    connection.publish("a")

            connection = await Connection.open(server.address, on_message=comes,
                                               on_closed=lambda error, _: ends.put_nowait(error))
            connection.publish("go")
            while not got:
                await asyncio.sleep(0)
            connection.abort()
            assert await ends.get() is None and len(got) == 1
            with pytest.raises(ConnectionLost):
                await connection.drain()

    run(body())


def test_a_server_that_ends_it_for_what_was_sent(run: Run) -> None:
    """It would be sent again on the next connection, and so for ever: whoever sent it hears."""

    async def script(peer: Peer) -> None:
        await peer.accept()
        await peer.expect(Publish)
        peer.send(Disconnect(reason=0x82))
        await peer.expect_end()

    async def body() -> None:
        async with Scripted(script) as server:
            async with Client(server.address, reconnect=QUICK) as client:
                with pytest.raises(ConnectionLost, match="protocol error"):
                    await client.publish("a", b"", 1)
            assert server.peers == 1

    run(body())
