"""Queue helpers of the client against a broker: what docs/queues.md says of MQTT 5, in the client's words."""
from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from kit.broker import Broker

from fluxmq.client import Client, Properties, PublishRefused, QueueMessage, SubscribeRefused
from fluxmq.client.errors import UsageError

Run = Callable[[Any], Any]


async def take(consumer: Any, count: int) -> list[QueueMessage]:
    return [await consumer.__anext__() for _ in range(count)]


def test_publish_consume_settle(run: Run, address: str, topic: str) -> None:
    async def body() -> None:
        async with Client(address) as client:
            queue = client.queue(topic)
            for number in range(3):
                await queue.publish(str(number), key="k", routing_key="eu/west", user={"n": str(number)})
            consumer = queue.consume(group="g", prefetch=10, initial_backoff_s=1, max_retries=5)
            async with consumer:
                first, second, third = await take(consumer, 3)
                assert [message.text for message in (first, second, third)] == ["0", "1", "2"]
                assert (first.key, first.group, first.routing_key) == ("k", "g", "eu/west")
                assert (first.delivery_count, first.redelivered, first.offset) == (1, False, 0)
                assert first.properties.user[0] == ("n", "0") and first.message_id
                await first.ack()
                await second.nack(delay_s=0)
                await third.extend(30)
                await third.reject("spoilt")
                again = await consumer.__anext__()
                assert (again.text, again.delivery_count, again.redelivered) == ("1", 2, True)
                await again.ack()
                unknown = Properties(user={"message-id": "0:77"})
                with pytest.raises(PublishRefused) as caught:
                    await client.publish(f"$queue/{topic}/$nack", b"", 1, properties=unknown)
                assert caught.value.reason == 0x83 and caught.value.text
            dead = client.queue(f"{topic}.dlq").consume()
            letter = await dead.__anext__()
            assert letter.text == "2" and letter.properties.user_dict["x-death-reason"] == "spoilt"
            await letter.ack()

    run(body())


def test_auto_settles_when_the_next_is_asked_for(run: Run, address: str, topic: str) -> None:
    async def body() -> None:
        async with Client(address) as client:
            queue = client.queue(topic)
            for number in range(3):
                queue.publish_nowait(str(number))
            consumer = queue.consume(ack="auto", initial_backoff_s=0)
            async with consumer:
                first, second = await take(consumer, 2)
                await second.nack()
                third, again = await take(consumer, 2)
                assert [one.text for one in (first, third, again)] == ["0", "2", "1"] and again.redelivered
                await again.ack()
                with pytest.raises(UsageError, match='needs ack="manual"'):
                    await again.reject()
            async with queue.consume(ack="auto") as empty:
                await queue.publish("last")
                assert (await empty.__anext__()).text == "last"     # nothing else was left

    run(body())


def test_groups_share_and_differ(run: Run, address: str, topic: str) -> None:
    """Two groups get every message each; two members of one share them."""

    async def body() -> None:
        async with Client(address) as one, Client(address) as two, Client(address) as three:
            shared = [client.queue(topic).consume(group="workers", prefetch=1) for client in (one, two)]
            for consumer in shared:
                await consumer.start()
            for number in range(10):
                await one.queue(topic).publish(str(number))
            got: list[str] = []

            async def work(consumer: Any) -> None:
                async for message in consumer:
                    got.append(message.text)
                    await message.ack()

            workers = [asyncio.create_task(work(consumer)) for consumer in shared]
            with pytest.raises(UsageError, match="already"):
                await two.queue(topic).consume(group="audit").start()
            async with three.queue(topic).consume(group="audit") as audit:
                assert sorted(message.text for message in await take(audit, 10)) == sorted(map(str, range(10)))
            while len(got) < 10:
                await one.publish(f"{topic}/other", b"", 1)
            assert sorted(got) == sorted(map(str, range(10)))
            for worker in workers:
                worker.cancel()
            await asyncio.gather(*workers, return_exceptions=True)

    run(body())


def test_repeated_delayed_and_refused(run: Run, address: str, topic: str) -> None:
    async def body() -> None:
        async with Client(address) as client:
            queue = client.queue(topic)
            await queue.publish("later", delay_s=1.5)
            await queue.publish("never yet", not_before=datetime.now(UTC) + timedelta(hours=1))
            for _ in range(3):
                await queue.publish("once", producer=("me", 1))
            async with queue.consume() as consumer:
                first, second = await take(consumer, 2)
                assert {first.text, second.text} == {"once", "later"}       # in which order, a slow machine says
                await first.ack()
                await second.ack()
            with pytest.raises(PublishRefused, match="decimal numbers"):
                await queue.publish("x", priority=1000)
            with pytest.raises(SubscribeRefused):
                await queue.consume(qos=0).__anext__()

    run(body())


def test_what_cannot_be_asked(run: Run, address: str) -> None:
    async def body() -> None:
        async with Client(address, version=4) as old:
            with pytest.raises(UsageError, match="need MQTT 5"):
                old.queue("a")
        async with Client(address) as client:
            with pytest.raises(UsageError, match="one level"):
                client.queue("a/b")
            with pytest.raises(UsageError, match="auto"):
                client.queue("a").consume(ack="perhaps")

    run(body())


def test_a_stream_from_where_it_was_left(run: Run, tmp_path: Path) -> None:
    """The newest, an offset, the position of a group after commit."""
    broker = Broker(tmp_path / "broker", {"queues": '[{"name": "audit", "type": "stream"}]'}).start()

    async def body() -> None:
        async with Client("{}:{}".format(*broker.addresses["mqtt/tcp/plain"])) as client:
            audit = client.queue("audit")
            for number in range(5):
                await audit.publish(str(number))
            async with audit.consume(offset="first") as consumer:
                assert [message.text for message in await take(consumer, 5)] == list("01234")
            async with audit.consume(offset=3) as consumer:
                assert (await consumer.__anext__()).text == "3"
            async with audit.consume(offset=datetime(2020, 1, 1, tzinfo=UTC)) as consumer:
                assert (await consumer.__anext__()).text == "0"
            async with audit.consume(group="report", offset="first") as consumer:
                messages = await take(consumer, 3)
                await messages[1].commit()
            async with audit.consume(group="report") as consumer:
                assert (await consumer.__anext__()).text == "2"

    try:
        run(body())
        broker.check()
    finally:
        broker.stop()
