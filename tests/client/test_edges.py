"""Turns of the public client that nobody writes on purpose: calls from within handlers, between the end of a connection
and its notice, in the middle of another; and that what is left over costs nothing."""
from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from kit.scripted import Peer, Scripted, answer_all
from oracle.mqtt import Disconnect, Puback, Publish, Suback, Subscribe, Unsuback, Unsubscribe

from fluxmq.client import (
    Backoff,
    Client,
    Delivery,
    NotConnected,
    QueueFull,
    SubscribeRefused,
    Will,
)
from fluxmq.client.errors import ConnectionLost, UsageError

Run = Callable[[Any], Any]
QUICK = Backoff(initial_s=0.001, max_s=0.01)


def test_between_the_end_and_its_notice(run: Run) -> None:
    """A reader that asks for something while the connection is ending waits for the next one, and does not spin."""

    async def script(peer: Peer) -> None:
        if peer.number == 0:
            await peer.accept()
            asked = await peer.expect(Subscribe)
            peer.send(Suback(packet_id=asked.packet_id, reasons=[0]).encode(5)
                      + Publish(topic="a").encode(5) + Disconnect(reason=0x8B).encode(5))
            await peer.expect_end()
        else:
            await answer_all(peer)

    async def body() -> None:
        async with Scripted(script) as server, Client(server.address, reconnect=QUICK) as client:
            reading = asyncio.ensure_future(client.messages.__anext__())

            async def asks() -> None:
                await reading
                await client.unsubscribe("other")

            asking = asyncio.ensure_future(asks())
            await client.subscribe("a")
            await asking
            assert client.connects == 2

    run(body())


def test_unsubscribe_survives_the_connection(run: Run) -> None:
    """And the subscription is not made again meanwhile; what comes before the answer is still the handler's."""
    got: list[str] = []

    async def script(peer: Peer) -> None:
        await peer.accept()
        if peer.number == 0:
            asked = await peer.expect(Subscribe)
            peer.send(Suback(packet_id=asked.packet_id, reasons=[0]))
            await peer.expect(Unsubscribe)
            peer.drop()
            return
        asked = await peer.expect(Unsubscribe)
        peer.send(Publish(topic="a", payload=b"late"), Unsuback(packet_id=asked.packet_id, reasons=[0]))
        await peer.expect(Disconnect)

    async def body() -> None:
        async with Scripted(script) as server, Client(server.address, reconnect=QUICK) as client:
            await client.subscribe("a", handler=lambda message: got.append(message.text))
            await client.unsubscribe("a")
            assert got == ["late"] and len(client.messages) == 0

    run(body())


def test_a_handler_that_unsubscribes_itself_runs_to_its_end(run: Run, address: str, topic: str) -> None:
    async def body() -> None:
        done = asyncio.Event()
        async with Client(address) as client:
            async def once(message: Delivery) -> None:
                await client.unsubscribe(topic)
                await client.publish(f"{topic}/other", b"", 1)
                done.set()

            await client.subscribe(topic, 1, handler=once)
            await client.publish(topic, b"", 1)
            await done.wait()
            assert (await client.publish(topic, b"", 1)).reason == 0x10

    run(body())


def test_a_handler_that_was_cancelled_inside(run: Run, address: str, topic: str) -> None:
    """What it waited for was cancelled, not the handler: the next message still comes."""

    async def body() -> None:
        complaints: list[str] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context["message"]))
        seen: asyncio.Queue[str] = asyncio.Queue()

        async def handler(message: Delivery) -> None:
            seen.put_nowait(message.text)
            if message.text == "1":
                gone = asyncio.get_running_loop().create_future()
                gone.cancel()
                await gone

        async with Client(address) as client:
            await client.subscribe(topic, 1, handler=handler)
            for text in "12":
                await client.publish(topic, text, 1)
            assert [await seen.get(), await seen.get()] == ["1", "2"]
        assert complaints == [f"the handler of {topic!r} failed"]

    run(body())


def test_handlers_of_other_shapes(run: Run, address: str, topic: str) -> None:
    """An object whose call is a coroutine works; a function that gives a coroutine is a mistake that is told."""

    async def body() -> None:
        complaints: list[Any] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context["exception"]))
        seen: asyncio.Queue[str] = asyncio.Queue()

        class Handler:
            async def __call__(self, message: Delivery) -> None:
                await seen.put(message.text)

        async with Client(address) as client:
            await client.subscribe(f"{topic}/a", 1, handler=Handler())
            await client.subscribe(f"{topic}/b", 1, handler=lambda message: Handler()(message))
            await client.publish(f"{topic}/a", "x", 1)
            await client.publish(f"{topic}/b", "y", 1)
            assert await seen.get() == "x"
            await client.publish(f"{topic}/none", "", 1)
        error, = complaints
        assert isinstance(error, UsageError) and "coroutine function" in str(error) and seen.empty()

    run(body())


def test_before_the_start(run: Run) -> None:
    async def body() -> None:
        client = Client("127.0.0.1:1")
        for verb in (client.publish("a", b"", 1), client.subscribe("a"), client.unsubscribe("a"),
                     client.wait_connected(), client.messages.__anext__()):
            with pytest.raises(NotConnected, match="was not started"):
                await verb
        with pytest.raises(NotConnected, match="was not started"):
            client.publish_nowait("a")
        await client.close()

    run(body())


def test_two_who_await_the_same_publish(run: Run) -> None:
    """One of them is cancelled: the other hears the outcome."""
    read = asyncio.Event()

    async def script(peer: Peer) -> None:
        await peer.accept()
        sent = await peer.expect(Publish)
        await read.wait()
        peer.send(Puback(packet_id=sent.packet_id))
        await peer.expect(Disconnect)

    async def body() -> None:
        async with Scripted(script) as server, Client(server.address) as client:
            one = client.publish_nowait("a", b"", 1)

            async def waits() -> int:
                return (await one).reason

            tasks = [asyncio.ensure_future(waits()) for _ in range(3)]
            await asyncio.sleep(0)
            tasks[0].cancel()
            tasks[1].cancel()
            read.set()
            assert await tasks[2] == 0
            assert all(isinstance(end, asyncio.CancelledError)
                       for end in await asyncio.gather(*tasks[:2], return_exceptions=True))

    run(body())


def test_what_waits_is_as_it_was_given_and_what_was_cancelled_makes_room(run: Run) -> None:
    payloads: list[bytes] = []

    async def script(peer: Peer) -> None:
        await peer.accept(properties={"receive_maximum": 1})
        first = await peer.expect(Publish)
        await peer.expect(Publish, topic="go")
        peer.send(Puback(packet_id=first.packet_id))
        for _ in range(2):
            packet = await peer.expect(Publish)
            payloads.append(packet.payload)
            peer.send(Puback(packet_id=packet.packet_id))
        await peer.expect(Disconnect)

    async def body() -> None:
        async with Scripted(script) as server, Client(server.address, max_pending=2) as client:
            client.publish_nowait("a", b"first", 1)
            buffer = bytearray(b"second")
            client.publish_nowait("a", buffer, 1)
            buffer[:] = b"changed"
            cancelled = asyncio.ensure_future(client.publish("a", b"cancelled", 1))
            await asyncio.sleep(0)
            with pytest.raises(QueueFull):
                client.publish_nowait("a", b"", 1)
            cancelled.cancel()
            await asyncio.wait([cancelled])
            last = client.publish_nowait("a", b"third", 1)
            assert client.connection is not None
            client.connection.publish("go")
            await last
        assert payloads == [b"second", b"third"]

    run(body())


def test_a_subscription_that_was_not_made(run: Run, address: str, topic: str) -> None:
    """Refused, the one before it stays; cancelled, the server hears that it is not wanted any more."""

    async def script(peer: Peer) -> None:
        await peer.accept()
        for reason in (1, 0x87):
            asked = await peer.expect(Subscribe)
            peer.send(Suback(packet_id=asked.packet_id, reasons=[reason]))
        peer.send(Publish(topic="a"))
        await peer.expect(Subscribe)
        await peer.expect(Unsubscribe)
        await peer.expect(Disconnect)

    async def body() -> None:
        got: asyncio.Queue[Delivery] = asyncio.Queue()
        async with Scripted(script) as server, Client(server.address) as client:
            await client.subscribe("a", 1, handler=got.put_nowait)
            with pytest.raises(SubscribeRefused):
                await client.subscribe("a", 2, handler=lambda message: None)
            assert (await got.get()).topic == "a"
            asking = asyncio.ensure_future(client.subscribe("b"))
            await asyncio.sleep(0)
            asking.cancel()
            await asyncio.wait([asking])

    run(body())


def test_two_who_subscribe_to_the_same(run: Run) -> None:
    """And the connection ends before either heard of it: both hear of it on the next one."""

    async def script(peer: Peer) -> None:
        if peer.number == 0:
            await peer.accept()
            await peer.expect(Subscribe)
            peer.drop()
        else:
            await answer_all(peer)

    async def body() -> None:
        async with Scripted(script) as server, Client(server.address, reconnect=QUICK) as client:
            assert await asyncio.gather(client.subscribe("a", 1), client.subscribe("a", 1)) == [1, 1]

    run(body())


def test_a_subscription_that_is_refused_the_second_time(run: Run) -> None:
    """The loop hears of it; of a queue, who reads it does."""

    async def script(peer: Peer) -> None:
        await peer.accept()
        for _ in range(2):
            asked = await peer.expect(Subscribe)
            peer.send(Suback(packet_id=asked.packet_id, reasons=[0x87 if peer.number else 1]))
        if peer.number == 0:
            peer.drop()
        else:
            await peer.recv()

    async def body() -> None:
        complaints: list[str] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context["message"]))
        async with Scripted(script) as server:
            client = Client(server.address, reconnect=QUICK)
            await client.start()
            await client.subscribe("a", 1)
            with pytest.raises(SubscribeRefused, match="orders"):
                await client.queue("orders").consume().__anext__()
            assert complaints == ["the subscription to 'a' was not made again"]
            await client.close()

    run(body())


def test_a_consumer_that_could_not_start_tries_again(run: Run) -> None:
    async def script(peer: Peer) -> None:
        await peer.accept()
        for reason in (0x97, 1):
            asked = await peer.expect(Subscribe)
            peer.send(Suback(packet_id=asked.packet_id, reasons=[reason]))
        peer.send(Publish(topic="$queue/a", payload=b"x"))
        await peer.recv()

    async def body() -> None:
        async with Scripted(script) as server, Client(server.address) as client:
            consumer = client.queue("a").consume()
            with pytest.raises(SubscribeRefused):
                await consumer.__anext__()
            assert (await consumer.__anext__()).payload == b"x"
            await client.close()

    run(body())


def test_what_a_handler_left_does_not_use_up_the_window(run: Run, address: str, topic: str) -> None:
    """Messages that waited for it, and those that the server still had, are acknowledged when it has gone."""

    async def body() -> None:
        stuck = asyncio.Event()
        got: asyncio.Queue[str] = asyncio.Queue()

        async def slow(message: Delivery) -> None:
            await stuck.wait()

        async with Client(address, receive_maximum=4) as client, Client(address) as writer:
            await client.subscribe(f"{topic}/a", 1, handler=slow)
            for number in range(20):
                await writer.publish(f"{topic}/a", str(number), 1)
            await client.unsubscribe(f"{topic}/a")
            await client.subscribe(f"{topic}/b", 1, handler=lambda message: got.put_nowait(message.text))
            for number in range(20):
                await writer.publish(f"{topic}/b", str(number), 1)
            assert [await got.get() for _ in range(20)] == [str(number) for number in range(20)]
            assert len(client.messages) == 0

    run(body())


def test_consumers_that_stop_early_do_not_use_up_the_window(run: Run, address: str, topic: str) -> None:
    """What a producer calls its user properties is not taken for what the server says."""

    async def body() -> None:
        async with Client(address, receive_maximum=2) as client:
            queue = client.queue(topic)
            for number in range(6):
                await queue.publish(str(number), user={"redelivered": "true", "message-id": "9:9", "offset": "77"})
            for number in range(6):
                async with queue.consume(group="g", prefetch=1) as messages:
                    async for message in messages:
                        assert (message.text, message.offset) == (str(number), number)
                        assert message.message_id == f"0:{number}"
                        assert message.redelivered == (message.delivery_count > 1)
                        await message.ack()
                        break

    run(body())


def test_mistakes_of_newcomers(run: Run, address: str) -> None:
    async def body() -> None:
        for given in (dict(initial_s=-1.0), dict(attempts=0), dict(multiplier=0.0), dict(jitter=2.0)):
            with pytest.raises(UsageError):
                Backoff(**given)
        options: list[dict[str, Any]] = [dict(client_id=5), dict(keep_alive_s=0.5), dict(address=1883)]
        for wrong in options:
            with pytest.raises(UsageError, match="a str"):
                await Client(**{"address": address} | wrong).start()
        with pytest.raises(ConnectionResetError, match="TLS handshake"):
            await Client(address, tls=True).start()
        async with Client(address, will=Will("will", "text")) as client, Client(address, version=4) as old:
            for verb, words in (
                    (client.subscribe(["a", "b"]), "one topic filter"),         # type: ignore[arg-type]
                    (client.subscribe("a", qos=3), "a qos"), (client.subscribe("a", retain_handling=3), "0 to 2"),
                    (client.subscribe("a/#/b"), "the whole last one"), (client.subscribe("a+"), "a whole level"),
                    (client.subscribe("a", handler=5), "a handler is"),         # type: ignore[arg-type]
                    (client.subscribe("$share/g/a", no_local=True), "no_local"),
                    (client.unsubscribe(["a"]), "several arguments"),           # type: ignore[arg-type]
                    (old.subscribe("a", no_local=True), "need MQTT 5"),
                    (client.queue("q").publish("x", producer="x"), "sequence")):        # type: ignore[arg-type]
                with pytest.raises(UsageError, match=words):
                    await verb
            await client.publish("a", b"", 1)

    run(body())


@pytest.mark.parametrize("reason", [0x9C, 0x9D])
def test_a_client_goes_where_it_is_sent(run: Run, reason: int) -> None:
    """And back to its own address when nobody is there any more."""
    there: list[str] = []

    async def body() -> None:
        async def second(peer: Peer) -> None:
            there.append("second")
            await peer.accept()
            await peer.expect(Subscribe)
            other._server.close()
            peer.drop()

        async def first(peer: Peer) -> None:
            there.append("first")
            if peer.number == 0:
                await peer.accept()
                peer.send(Disconnect(reason=reason, properties={"server_reference": other.address}))
                await peer.expect_end()
            else:
                await answer_all(peer)

        async with Scripted(second) as other, Scripted(first) as server, \
                Client(server.address, reconnect=QUICK) as client:
            while client.connects < 2:
                await asyncio.sleep(0.001)
            await client.subscribe("a")
            assert client.connects == 3
        assert there == ["first", "second", "first"]

    run(body())


def test_sent_away_without_a_usable_address(run: Run) -> None:
    """Another server may be behind the same address; one that has moved is not there any more."""
    async def script(peer: Peer) -> None:
        await peer.accept()
        if peer.number < 2:
            peer.send(Disconnect(reason=0x9C, properties={"server_reference": "a/b c"} if peer.number else {}))
        else:
            peer.send(Disconnect(reason=0x9D))
        await peer.expect_end()

    async def body() -> None:
        async with Scripted(script) as server, Client(server.address, reconnect=QUICK) as client:
            with pytest.raises(ConnectionLost, match="moved"):
                await client.messages.__anext__()
            assert client.connects == 3

    run(body())
