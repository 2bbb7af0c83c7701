"""What a server can do to a connection: refuse, say half, vanish in the middle, break the protocol, be slow."""
from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from kit.scripted import Peer, Scripted
from oracle.mqtt import (
    Connack,
    Disconnect,
    Pingreq,
    Pingresp,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Suback,
    Subscribe,
)

from fluxmq.client import (
    Backoff,
    Client,
    Connection,
    ConnectionLost,
    ConnectOptions,
    ConnectRefused,
    Message,
    Properties,
    SessionLost,
)
from fluxmq.client.errors import ProtocolError

Run = Callable[[Any], Any]
Ends = asyncio.Queue[tuple[BaseException | None, int]]


async def opened(server: Scripted, options: ConnectOptions | None = None, **more: Any) -> tuple[Connection, Ends]:
    ends: Ends = asyncio.Queue()
    connection = await Connection.open(server.address, options, **more,
                                       on_closed=lambda error, why: ends.put_nowait((error, why)))
    return connection, ends


@pytest.mark.parametrize(("version", "connack", "reason", "words"), [
    (5, {"reason": 0x87, "properties": {"reason_string": "not you"}}, 0x87, "not you"),
    (5, {"reason": 0x88}, 0x88, "server unavailable"),
    (4, {"reason": 2}, 2, "identifier rejected"),
])
def test_refused(run: Run, version: int, connack: dict[str, Any], reason: int, words: str) -> None:
    async def script(peer: Peer) -> None:
        await peer.accept(**connack)
        await peer.expect_end()

    async def body() -> None:
        async with Scripted(script) as server:
            with pytest.raises(ConnectRefused, match=words) as caught:
                await Connection.open(server.address, ConnectOptions(version=version))
            assert caught.value.reason == reason

    run(body())


@pytest.mark.parametrize("said", [b"", b"\x20", b"\x20\x03\x00"])
def test_half_a_connack_and_the_end(run: Run, said: bytes) -> None:
    async def script(peer: Peer) -> None:
        await peer.reader.read(1)
        peer.send(said)

    async def body() -> None:
        async with Scripted(script) as server:
            with pytest.raises(ConnectionLost):
                await Connection.open(server.address)

    run(body())


def test_a_server_that_says_nothing(run: Run) -> None:
    async def script(peer: Peer) -> None:
        while await peer.reader.read(65536):
            pass

    async def body() -> None:
        async with Scripted(script) as server:
            with pytest.raises(TimeoutError, match="did not answer within"):
                await Connection.open(server.address, timeout_s=0.1)
            opening = asyncio.ensure_future(Connection.open(server.address))
            while server.peers < 2:
                await asyncio.sleep(0)
            opening.cancel()
            with pytest.raises(asyncio.CancelledError):
                await opening

    run(body())


def test_completed_before_the_connection_broke(run: Run) -> None:
    """The server has released the packet identifier, and its PUBCOMP was lost: the message was taken."""
    async def script(peer: Peer) -> None:
        if peer.number == 0:
            await peer.accept()
            packet = await peer.expect(Publish, qos=2)
            peer.send(Pubrec(packet_id=packet.packet_id))
            await peer.expect(Pubrel)
            peer.drop()
        else:
            await peer.accept(session_present=True)
            again = await peer.expect(Pubrel)
            peer.send(Pubcomp(packet_id=again.packet_id, reason=0x92))
            await peer.expect(Disconnect)

    async def body() -> None:
        async with Scripted(script) as server, Client(server.address, reconnect=Backoff(initial_s=0.001)) as client:
            assert (await client.publish("a", b"1", qos=2)).reason == 0

    run(body())


BREACHES = {
    "not MQTT": (b"HTTP/1.1 400 Bad Request\r\n\r\n", 0x81),
    "no packet of servers": (b"\xc0\x00", 0x82),
    "connack again": (Connack().encode(), 0x82),
    "wrong flags": (b"\x41\x02\x00\x01", 0x81),
    "remaining length": (b"\x30\xff\xff\xff\xff\x01", 0x81),
    "qos 3": (Publish(topic="a", qos=3, packet_id=1).encode(), 0x81),
    "packet id 0": (Publish(topic="a", qos=1, packet_id=0).encode(), 0x82),
    "wildcard": (Publish(topic="a/+").encode(), None),
    "not UTF-8": (Publish(topic=b"\xff").encode(), 0x81),
    "alias nobody allowed": (Publish(topic="a", properties={"topic_alias": 3}).encode(), 0x94),
    "no topic": (Publish(topic="").encode(), 0x82),
    "property twice": (Publish(topic="a", properties=[("content_type", "x"), ("content_type", "x")]).encode(), 0x82),
    "suback of nothing": (Suback(packet_id=7, reasons=[0]).encode(), 0x82),
    "pingresp of nothing": (Pingresp().encode(), 0x82),
    "too large": (Publish(topic="a", payload=bytes(2000)).encode(), 0x95),
    "auth": (b"\xf0\x00", 0x82),
}


@pytest.mark.parametrize("name", BREACHES)
def test_a_breach_ends_the_connection_with_its_reason(run: Run, name: str) -> None:
    said, reason = BREACHES[name]

    async def script(peer: Peer) -> None:
        await peer.accept()
        peer.send(said)
        told = await peer.expect(Disconnect)
        assert told.reason == reason or reason is None
        await peer.expect_end()

    async def body() -> None:
        async with Scripted(script) as server:
            _, ends = await opened(server, ConnectOptions(max_packet_bytes=1000), on_message=lambda message: None)
            error, why = await ends.get()
            assert isinstance(error, ProtocolError) and error.text
            assert reason is None or why == error.reason == reason

    run(body())


def test_more_than_the_receive_maximum_is_a_breach(run: Run) -> None:
    async def script(peer: Peer) -> None:
        await peer.accept()
        peer.send(*(Publish(topic="a", qos=1, packet_id=number) for number in (1, 2, 3)))
        await peer.expect(Disconnect, reason=0x93)

    async def body() -> None:
        async with Scripted(script) as server:
            got: list[Message] = []
            _, ends = await opened(server, ConnectOptions(receive_maximum=2), on_message=got.append, manual_ack=True)
            assert (await ends.get())[1] == 0x93 and len(got) == 2

    run(body())


def test_a_unix_socket(run: Run, tmp_path: Path) -> None:
    async def script(peer: Peer) -> None:
        await peer.accept()
        await peer.expect(Publish, topic="a", payload=b"x")
        peer.send(Puback(packet_id=1))
        await peer.expect(Disconnect, reason=0)

    async def body() -> None:
        async with Scripted(script, path=str(tmp_path / "s")) as server, Client(server.address) as client:
            assert (await client.publish("a", b"x", 1)).reason == 0

    run(body())


def test_dropped_in_the_middle_of_qos_2(run: Run) -> None:
    """The public client: behind PUBREC only PUBREL is said again, and the publish succeeds once."""

    async def script(peer: Peer) -> None:
        await peer.accept(session_present=peer.number > 0)
        assert peer.connect is not None and peer.connect.clean_start == (peer.number == 0)
        if peer.number == 0:
            await peer.expect(Publish, packet_id=1, qos=2)
            peer.send(Pubrec(packet_id=1))
            await peer.expect(Pubrel, packet_id=1)
            peer.drop()
            return
        await peer.expect(Pubrel, packet_id=1)
        peer.send(Pubcomp(packet_id=1))
        await peer.expect(Disconnect)

    async def body() -> None:
        async with Scripted(script) as server, Client(server.address, reconnect=Backoff(initial_s=0.001)) as client:
            assert (await client.publish("a", b"x", 2)).reason == 0
            assert client.connects == 2
            await client.close()

    run(body())


def test_subscriptions_come_before_what_is_sent_again(run: Run) -> None:
    """Or a client that publishes to itself would miss it on a server that has forgotten the session."""

    async def script(peer: Peer) -> None:
        await peer.accept()
        asked = await peer.expect(Subscribe)
        peer.send(Suback(packet_id=asked.packet_id, reasons=[1]))
        sent = await peer.expect(Publish, dup=False)
        if peer.number == 0:
            peer.drop()
            return
        peer.send(Puback(packet_id=sent.packet_id))
        await peer.expect(Disconnect)

    async def body() -> None:
        async with Scripted(script) as server, Client(server.address, reconnect=Backoff(initial_s=0.001)) as client:
            await client.subscribe("a", 1)
            await client.publish("a", b"x", 1)
            await client.close()

    run(body())


def test_lost_fail_says_so(run: Run) -> None:
    async def script(peer: Peer) -> None:
        await peer.accept()
        if peer.number == 0:
            await peer.expect(Publish)
            peer.drop()
        else:
            await peer.expect(Disconnect)

    async def body() -> None:
        quick = Backoff(initial_s=0.001)
        async with Scripted(script) as server, Client(server.address, reconnect=quick, lost="fail") as client:
            with pytest.raises(SessionLost):
                await client.publish("a", b"x", 1)
            await client.close()

    run(body())


def test_no_reconnect_after_a_refusal_for_good(run: Run) -> None:
    async def script(peer: Peer) -> None:
        if peer.number == 0:
            await peer.accept()
            peer.drop()
        else:
            await peer.accept(reason=0x86)
            await peer.expect_end()

    async def body() -> None:
        async with Scripted(script) as server:
            client = Client(server.address, reconnect=Backoff(initial_s=0.001))
            await client.start()
            with pytest.raises(ConnectRefused, match="bad user name"):
                await client.messages.__anext__()
            await client.close()

    run(body())


def test_a_disconnect_of_the_server(run: Run) -> None:
    async def script(peer: Peer) -> None:
        await peer.accept()
        peer.send(Disconnect(reason=0x8B, properties={"reason_string": "going home"}))
        await peer.expect_end()

    async def body() -> None:
        async with Scripted(script) as server:
            _, ends = await opened(server)
            error, why = await ends.get()
            assert isinstance(error, ConnectionLost) and why == error.reason == 0x8B and "going home" in str(error)

    run(body())


def test_a_callback_that_raises_ends_the_connection(run: Run) -> None:
    async def script(peer: Peer) -> None:
        await peer.accept()
        peer.send(Publish(topic="a"), Publish(topic="b"))
        await peer.expect_end()

    def fails(message: Message) -> None:
        raise ValueError(message.topic)

    async def body() -> None:
        async with Scripted(script) as server:
            _, ends = await opened(server, on_message=fails)
            error, _ = await ends.get()
            assert isinstance(error, ValueError) and error.args == (b"a",)

    run(body())


def test_a_publish_that_waits_is_taken_back(run: Run) -> None:
    """It waits because the server answers nothing before it was cancelled; others are not touched."""
    cancelled = asyncio.Event()

    async def script(peer: Peer) -> None:
        await peer.accept(properties={"receive_maximum": 2})
        for packet_id in (1, 2):
            await peer.expect(Publish, packet_id=packet_id, payload=b"before")
        await cancelled.wait()
        peer.send(Puback(packet_id=1), Puback(packet_id=2))
        after = await peer.expect(Publish, payload=b"after")
        peer.send(Puback(packet_id=after.packet_id))
        await peer.expect(Disconnect)

    async def body() -> None:
        async with Scripted(script) as server, Client(server.address) as client:
            sent = [client.publish_nowait("a", b"before", 1) for _ in range(2)]
            publishing = asyncio.ensure_future(client.publish("a", b"cancelled", 1))
            await asyncio.sleep(0)
            publishing.cancel()
            with pytest.raises(asyncio.CancelledError):
                await publishing
            cancelled.set()
            assert (await client.publish("a", b"after", 1)).reason == 0
            assert [(await one).reason for one in sent] == [0, 0]
            await client.close()

    run(body())


def test_publishes_go_on_with_the_session(run: Run) -> None:
    """Dropped with each kind in flight: again with DUP and in order, PUBREL again, no second PUBLISH after PUBREC."""

    async def script(peer: Peer) -> None:
        if peer.number == 0:
            await peer.accept()
            for packet_id in (1, 2, 3):
                await peer.expect(Publish, packet_id=packet_id, dup=False)
            peer.send(Pubrec(packet_id=2))
            await peer.expect(Pubrel, packet_id=2)
            peer.drop()
            return
        await peer.accept(session_present=True, properties={"receive_maximum": 2})
        # Two may be on their way, and the released one is one of them.
        await peer.expect(Pubrel, packet_id=2)
        first = await peer.expect(Publish, packet_id=1, dup=True, qos=1)
        peer.send(Puback(packet_id=1, reason=0x10), Pubcomp(packet_id=2))
        third = await peer.expect(Publish, packet_id=3, dup=True, qos=2)
        assert (first.payload, third.payload) == (b"one", b"three")
        peer.send(Pubrec(packet_id=3))
        await peer.expect(Pubrel, packet_id=3)
        peer.send(Pubcomp(packet_id=3))
        await peer.expect(Disconnect)

    async def body() -> None:
        heard: asyncio.Queue[tuple[int, int]] = asyncio.Queue()

        def done(packet_id: int, reason: int) -> None:
            heard.put_nowait((packet_id, reason))

        async with Scripted(script) as server:
            options = ConnectOptions(client_id="c", clean_start=False, session_expiry_s=60)
            connection, ends = await opened(server, options)
            connection.publish("a", b"one", 1, done=done)
            connection.publish("a", b"two", 2, done=done)
            connection.publish("a", b"three", 2, done=done)
            assert isinstance((await ends.get())[0], ConnectionLost)
            again, ends = await opened(server, options, session=connection.session)
            assert [await heard.get() for _ in range(3)] == [(1, 0x10), (2, 0), (3, 0)]
            again.disconnect()
            await ends.get()

    run(body())


@pytest.mark.parametrize("republish", [True, False])
def test_a_session_that_the_server_forgot(run: Run, republish: bool) -> None:
    async def script(peer: Peer) -> None:
        await peer.accept()
        if peer.number == 0:
            await peer.expect(Publish, packet_id=1)
            await peer.expect(Publish, packet_id=2)
            peer.send(Pubrec(packet_id=2))
            await peer.expect(Pubrel)
            peer.drop()
        elif republish:
            await peer.expect(Publish, packet_id=1, dup=False, payload=b"one")
            peer.send(Puback(packet_id=1))
        await peer.recv()

    async def body() -> None:
        heard: dict[int, int] = {}
        async with Scripted(script) as server:
            options = ConnectOptions(client_id="c", clean_start=False)
            connection, ends = await opened(server, options)
            connection.publish("a", b"one", 1, done=heard.__setitem__)
            connection.publish("a", b"two", 2, done=heard.__setitem__)
            await ends.get()
            again, ends = await opened(server, options, session=connection.session, republish=republish)
            while len(heard) < 2:
                await asyncio.sleep(0)
            # The second was received: its PUBREC came.
            assert heard == {1: 0 if republish else -1, 2: 0}
            again.disconnect()
            await ends.get()

    run(body())


def test_qos_2_that_comes_in_is_delivered_once(run: Run) -> None:
    async def script(peer: Peer) -> None:
        await peer.accept(session_present=peer.number > 0)
        peer.send(Publish(topic="a", payload=b"x", qos=2, packet_id=5, dup=peer.number > 0))
        await peer.expect(Pubrec, packet_id=5)
        if peer.number == 0:
            peer.send(Publish(topic="a", payload=b"x", qos=2, packet_id=5, dup=True))
            await peer.expect(Pubrec, packet_id=5)
            peer.drop()
            return
        peer.send(Pubrel(packet_id=5))
        await peer.expect(Pubcomp, packet_id=5, reason=0)
        peer.send(Pubrel(packet_id=5))
        await peer.expect(Pubcomp, packet_id=5, reason=0x92)
        peer.send(Publish(topic="a", payload=b"y", qos=2, packet_id=5))
        await peer.expect(Pubrec, packet_id=5)
        await peer.recv()

    async def body() -> None:
        got: list[Message] = []
        async with Scripted(script) as server:
            options = ConnectOptions(client_id="c", clean_start=False)
            connection, ends = await opened(server, options, on_message=got.append)
            await ends.get()
            again, ends = await opened(server, options, on_message=got.append, session=connection.session)
            while len(got) < 2:
                await asyncio.sleep(0)
            again.disconnect()
            await ends.get()
            assert [message.payload for message in got] == [b"x", b"y"]

    run(body())


def test_keep_alive(run: Run) -> None:
    """It asks while nothing is said, and gives up a server that answers nothing."""

    async def script(peer: Peer) -> None:
        await peer.accept(properties={"server_keep_alive": 1})
        await peer.expect(Pingreq)
        peer.send(Pingresp())
        await peer.expect(Pingreq)
        await peer.expect_end()

    async def body() -> None:
        async with Scripted(script) as server:
            _, ends = await opened(server)
            error, why = await ends.get()
            assert isinstance(error, ConnectionLost) and why == 0x8D and "nothing was heard from" in str(error)

    run(body())


def test_a_server_that_reads_slowly(run: Run) -> None:
    """What is unsent is bounded by whoever waits in drain, and nothing of it is lost."""
    read = asyncio.Event()
    sizes: list[int] = []

    async def script(peer: Peer) -> None:
        await peer.accept()
        await read.wait()
        while isinstance(packet := await peer.recv(), Publish):
            sizes.append(len(packet.payload))

    async def body() -> None:
        async with Scripted(script) as server:
            connection, ends = await opened(server)
            sent = 0
            while connection.writable:
                connection.publish("a", bytes(100_000))
                sent += 1
                await asyncio.sleep(0)
            read.set()
            await connection.drain()
            assert connection.writable
            connection.disconnect()
            await ends.get()
        assert sizes == [100_000] * sent

    run(body())


def test_refusals_of_publishes_have_their_words(run: Run) -> None:
    async def script(peer: Peer) -> None:
        await peer.accept()
        await peer.expect(Publish)
        peer.send(Puback(packet_id=1, reason=0x97, properties={"reason_string": "full"}))
        await peer.expect(Publish, qos=2)
        peer.send(Pubrec(packet_id=1, reason=0x87))
        await peer.expect(Subscribe)
        peer.send(Suback(packet_id=1, reasons=[0x8F], properties={"user_property": ("a", "b")}))
        await peer.recv()

    async def body() -> None:
        heard: asyncio.Queue[tuple[object, Properties]] = asyncio.Queue()
        async with Scripted(script) as server:
            connection, ends = await opened(server)

            def done(packet_id: int, reason: object) -> None:
                heard.put_nowait((reason, Properties(connection.answer_properties)))

            connection.publish("a", b"", 1, done=done)
            reason, told = await heard.get()
            assert reason == 0x97 and told.reason_string == "full"
            connection.publish("a", b"", 2, done=done)
            assert await heard.get() == (0x87, [])
            assert connection.window == connection.receive_maximum
            connection.subscribe([("a", 0)], done)
            reason, told = await heard.get()
            assert reason == [0x8F] and told.user == [("a", "b")]
            connection.disconnect()
            await ends.get()

    run(body())


