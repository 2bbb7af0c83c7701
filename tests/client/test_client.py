"""The public client against a broker: publish, receive, handlers, coming back, flow control, its end."""
from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from kit.broker import Broker

from fluxmq.client import (
    Backoff,
    Client,
    ConnectionLost,
    Delivery,
    NotConnected,
    Properties,
    PublishRefused,
    QueueFull,
    SubscribeRefused,
)
from fluxmq.client.errors import UsageError
from fluxmq.client.filters import filter_matches

Run = Callable[[Any], Any]
QUICK = Backoff(initial_s=0.01, max_s=0.05)


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_publish_and_iterate(run: Run, address: str, topic: str, version: int, qos: int) -> None:
    async def body() -> None:
        async with Client(address, version=version) as client:
            assert await client.subscribe(f"{topic}/#", qos) == qos
            for number in range(50):
                assert (await client.publish(f"{topic}/a", str(number), qos)).reason == 0
            pipelined = [client.publish_nowait(f"{topic}/b", bytes([number]), qos) for number in range(200)]
            got = []
            async for message in client.messages:
                assert isinstance(message, Delivery) and message.qos == qos
                got.append((message.topic, message.payload))
                if len(got) == 250:
                    break
            assert got == ([(f"{topic}/a", str(number).encode()) for number in range(50)]
                           + [(f"{topic}/b", bytes([number])) for number in range(200)])
            assert {(await one).reason for one in pipelined} == {0}
            await client.unsubscribe(f"{topic}/#")
            result = await client.publish(f"{topic}/a", b"", 1)
            assert result.reason == (0x10 if version == 5 else 0)

    run(body())


def test_more_than_the_window_goes_in_order(run: Run, address: str, topic: str) -> None:
    async def body() -> None:
        async with Client(address) as client:
            got: list[int] = []
            await client.subscribe(topic, 1, handler=lambda message: got.append(int(message.text)))
            sent = []
            for number in range(5000):
                sent.append(client.publish_nowait(topic, str(number), number % 2 + 1))
                if number % 500 == 499:
                    await client.flush()
            assert all(one.done() for one in sent)
            while len(got) < 5000:
                await client.publish(topic + "/other", b"", 1)
            assert got == list(range(5000))

    run(body())


def test_pending_is_bounded(run: Run, address: str, topic: str) -> None:
    async def body() -> None:
        async with Client(address, max_pending=5, receive_maximum=10) as client:
            room = client.connection.receive_maximum if client.connection else 0
            sent = [client.publish_nowait(topic, b"", 1) for _ in range(room + 5)]
            with pytest.raises(QueueFull, match="max_pending"):
                client.publish_nowait(topic, b"", 1)
            await client.publish(topic, b"", 1)         # waits for room, and goes behind the others
            assert all(one.done() for one in sent)

    run(body())


def test_handlers(run: Run, address: str, topic: str) -> None:
    """Plain ones, coroutines, several for one message; what has none goes to `messages`."""

    async def body() -> None:
        plain: list[str] = []
        slow: asyncio.Queue[str] = asyncio.Queue()

        async def later(message: Delivery) -> None:
            await asyncio.sleep(0)
            await slow.put(message.text)

        async with Client(address) as client:
            await client.subscribe(f"{topic}/plain/+", 1, handler=lambda message: plain.append(message.text))
            await client.subscribe(f"{topic}/slow/#", 2, handler=later)
            await client.subscribe(f"{topic}/+/both", 1, handler=later)
            await client.subscribe(f"{topic}/rest", 0)
            await client.publish(f"{topic}/plain/x", "1", 1)
            await client.publish(f"{topic}/slow/x", "2", 1)
            await client.publish(f"{topic}/plain/both", "3", 1)
            await client.publish(f"{topic}/rest", "4", 1)
            async for message in client.messages:
                assert message.text == "4"
                break
            # One for each filter of the two that select it: the broker sends it once.
            assert {await slow.get(), await slow.get()} == {"2", "3"}
            assert plain == ["1", "3"]

    run(body())


def test_a_handler_that_fails(run: Run, address: str, topic: str) -> None:
    """The loop hears of it, the next message comes, and the one that failed is not acknowledged."""

    async def body() -> None:
        complaints: list[str] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context["message"]))
        seen: asyncio.Queue[str] = asyncio.Queue()

        async def fails(message: Delivery) -> None:
            seen.put_nowait(message.text)
            if message.text == "bad":
                raise ValueError("no")

        def fails_at_once(message: Delivery) -> None:
            raise ValueError("no")

        async with Client(address) as client:
            await client.subscribe(f"{topic}/a", 1, handler=fails)
            await client.subscribe(f"{topic}/b", 1, handler=fails_at_once)
            for topic_name, text in (("a", "bad"), ("b", "bad"), ("a", "good")):
                await client.publish(f"{topic}/{topic_name}", text, 1)
            assert [await seen.get(), await seen.get()] == ["bad", "good"]
        assert sorted(complaints) == [f"the handler of '{topic}/a' failed", f"the handler of '{topic}/b' failed"]

    run(body())


def test_the_session_goes_on_over_a_restart(run: Run, tmp_path: Path) -> None:
    """Killed in the middle: nothing acknowledged is lost, what was not is published again, subscriptions are there."""
    broker = Broker(tmp_path / "broker").start()
    address = "{}:{}".format(*broker.addresses["mqtt/tcp/plain"])

    async def body() -> None:
        async with Client(address, client_id="c", reconnect=QUICK) as client:
            got: set[int] = set()
            await client.subscribe("a", 1, handler=lambda message: got.add(int(message.text)))
            sent = [client.publish_nowait("a", str(number), 1) for number in range(500)]
            await sent[0]
            await asyncio.to_thread(broker.kill)
            sent += [client.publish_nowait("a", str(number), 1) for number in range(500, 600)]
            await asyncio.to_thread(broker.start)
            for one in sent:
                await one
            while len(got) < 600:
                await client.publish("other", b"", 1)
            assert client.connects >= 2

    try:
        run(body())
        broker.check()
    finally:
        broker.stop()


@pytest.mark.parametrize("version", [4, 5])
def test_subscriptions_are_made_again(run: Run, tmp_path: Path, version: int) -> None:
    """The server lost the session: whatever was subscribed is subscribed again, and what was asked meanwhile too."""
    broker = Broker(tmp_path / "broker").start()
    address = "{}:{}".format(*broker.addresses["mqtt/tcp/plain"])

    async def body() -> None:
        async with Client(address, version=version, session_expiry_s=0, reconnect=QUICK) as client:
            await client.subscribe("a", 1)
            await asyncio.to_thread(broker.kill)
            while client.connected:
                await asyncio.sleep(0.001)
            asking = asyncio.ensure_future(client.subscribe("b", 2))
            await asyncio.to_thread(broker.start)
            assert await asking == 2
            await client.publish("a", b"1", 1)
            await client.publish("b", b"2", 2)
            got = []
            async for message in client.messages:
                got.append((message.topic, message.payload, message.qos))
                if len(got) == 2:
                    break
            assert sorted(got) == [("a", b"1", 1), ("b", b"2", 2)]

    try:
        run(body())
        broker.check()
    finally:
        broker.stop()


def test_an_end_that_is_for_good(run: Run, address: str, topic: str) -> None:
    """Taken over by another: no war about the session, and everybody who waits hears why."""

    async def body() -> None:
        client = Client(address, client_id=topic)
        await client.start()
        reading = asyncio.ensure_future(client.messages.__anext__())
        async with Client(address, client_id=topic):
            with pytest.raises(ConnectionLost, match="taken over"):
                await reading
        with pytest.raises(ConnectionLost, match="taken over"):
            await client.publish("a", b"", 1)
        with pytest.raises(ConnectionLost, match="taken over"):
            await client.subscribe("a")
        await client.close()

    run(body())


def test_no_attempt_is_left(run: Run, tmp_path: Path) -> None:
    broker = Broker(tmp_path / "broker").start()
    address = "{}:{}".format(*broker.addresses["mqtt/tcp/plain"])

    async def body() -> None:
        client = Client(address, reconnect=Backoff(initial_s=0.001, attempts=3))
        await client.start()
        await asyncio.to_thread(broker.kill)
        with pytest.raises(OSError):
            await client.publish("a", b"", 1)
        with pytest.raises(OSError):
            async for _ in client.messages:
                pytest.fail("there was no message")
        await client.close()

    try:
        run(body())
    finally:
        broker.stop()


def test_after_the_end(run: Run, address: str) -> None:
    async def body() -> None:
        client = Client(address)
        async with client:
            reading = asyncio.ensure_future(client.messages.__anext__())
            await asyncio.sleep(0)
            await client.close()
            with pytest.raises(StopAsyncIteration):
                await reading
        for verb in (client.publish("a", b""), client.subscribe("a"), client.unsubscribe("a"), client.wait_connected()):
            with pytest.raises(NotConnected):
                await verb
        with pytest.raises(UsageError, match="started once"):
            await client.start()
        with pytest.raises(OSError):
            async with Client("127.0.0.1:1"):
                pytest.fail("nobody listens there")

    run(body())


def test_cancelling(run: Run, address: str, topic: str) -> None:
    """A reader may go on. (A publish that waits is taken back: test_faults.py.)"""

    async def body() -> None:
        async with Client(address) as client:
            await client.subscribe(topic, 1)
            reading = asyncio.ensure_future(client.messages.__anext__())
            await asyncio.sleep(0)
            reading.cancel()
            with pytest.raises(asyncio.CancelledError):
                await reading
            await client.publish(topic, b"after", 1)
            async for message in client.messages:
                assert message.payload == b"after"
                break

    run(body())


def test_a_consumer_that_does_not_read(run: Run, address: str, topic: str) -> None:
    """What waits is bounded, and publishing in the loop of the reader does not wait for itself."""

    async def body() -> None:
        async with Client(address, max_queued=20, receive_maximum=20) as reader, Client(address) as writer:
            await reader.subscribe(topic, 0)
            await reader.subscribe(f"{topic}/1", 1)
            for number in range(2000):
                writer.publish_nowait(topic, bytes(2000) + str(number).encode(), 0)
            for number in range(200):
                await writer.publish(f"{topic}/1", str(number), 1)
            reliable = []
            async for message in reader.messages:
                await reader.publish(f"{topic}/2", b"seen", 1)      # an answer has to come through
                if message.qos:
                    reliable.append(int(message.payload))
                if len(reliable) == 200:
                    break
            assert reliable == list(range(200))
            assert reader.dropped > 0 and len(reader.messages) <= 2000 - reader.dropped

    run(body())


def test_reading_is_paused_and_goes_on(run: Run, address: str, topic: str) -> None:
    async def body() -> None:
        async with Client(address, max_queued=10) as reader, Client(address) as writer:
            await reader.subscribe(topic, 0)
            for number in range(300):
                await writer.publish(topic, str(number), 1)
            got = []
            async for message in reader.messages:
                got.append(int(message.text))
                if got[-1] == 299:
                    break
            assert got == list(range(300)) and reader.dropped == 0

    run(body())


def test_refusals(run: Run, tmp_path: Path) -> None:
    (tmp_path / "acl.yaml").write_text('version: 1\nrules:\n  - {deny: all, topics: ["denied/#"]}\n'
                                       '  - {allow: all, topics: ["#"]}\n')
    broker = Broker(tmp_path / "broker", {"auth.acl_file": tmp_path / "acl.yaml", "auth.allow_anonymous": True}).start()

    async def body() -> None:
        async with Client("{}:{}".format(*broker.addresses["mqtt/tcp/plain"])) as client:
            with pytest.raises(PublishRefused, match="0x87"):
                await client.publish("denied/a", b"", 1)
            with pytest.raises(SubscribeRefused) as caught:
                await client.subscribe("denied/a", 1)
            assert caught.value.reason == 0x87
            with pytest.raises(UsageError):
                await client.subscribe("", 1)
            with pytest.raises(UsageError):
                await client.publish("a/#", b"", 1)
            await client.publish("a", b"", 1)

    try:
        run(body())
        broker.check()
    finally:
        broker.stop()


def test_manual_ack_and_properties(run: Run, address: str, topic: str) -> None:
    async def body() -> None:
        async with Client(address, manual_ack=True, receive_maximum=1) as client:
            await client.subscribe(topic, 1)
            for number in range(3):
                client.publish_nowait(topic, bytes([number]), 1, properties=Properties(user={"n": str(number)}))
            async for message in client.messages:
                assert message.properties.user == [("n", str(message.payload[0]))]
                assert await message.ack() and not await message.ack()
                if message.payload == b"\2":
                    break

    run(body())


def test_backoff() -> None:
    assert list(Backoff(initial_s=1, max_s=5, jitter=0, attempts=5).delays()) == [1, 2, 4, 5]
    for delay, whole in zip(Backoff(initial_s=1, max_s=8, attempts=6).delays(random.Random(1)), (1, 2, 4, 8, 8),
                            strict=True):
        assert whole / 2 <= delay <= whole
    assert list(Backoff(attempts=1).delays()) == []


@pytest.mark.parametrize(("topic_filter", "topic", "matches"), [
    ("a/b", "a/b", True), ("a/b", "a/bc", False), ("a/+", "a/b", True), ("a/+", "a", False), ("a/+", "a/", True),
    ("a/#", "a", True), ("a/#", "a/b/c", True), ("#", "a/b", True), ("#", "$SYS/x", False), ("+/x", "$SYS/x", False),
    ("$SYS/#", "$SYS/x", True), ("+/+", "/a", True), ("a/+/c", "a/b/c/d", False),
])
def test_filters(topic_filter: str, topic: str, matches: bool) -> None:
    assert filter_matches(topic_filter, topic) == matches
