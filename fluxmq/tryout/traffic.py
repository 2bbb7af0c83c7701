"""Demo traffic: for each node a publisher and a consumer of each protocol, which come back whenever they lose it.

    mqtt-pub-N      $queue/orders, with keys; plant/node-N/temperature
    mqtt-sub-N      $queue/orders; $queue/audit, a stream; plant/+/temperature
    amqp-pub-N      orders, with keys; emails, of which some bounce
    amqp-sub-N      orders; emails: what bounces is rejected, and becomes a dead letter

A client runs, is paused (it stays connected, and publishes or settles nothing), or is killed (its connection ends).
"""
from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from fluxmq._core.client.amqp091_machine import AmqpMessage
from fluxmq._core.errors import FluxError
from fluxmq.client import Backoff, Client, Delivery, SubscribeRefused
from fluxmq.client.queues import QueueConsumer
from fluxmq.client.tasks import Tasks
from fluxmq.tryout.amqp import AmqpClient
from fluxmq.tryout.asking import TryoutError
from fluxmq.tryout.demo import AUDIT, EMAILS, ORDERS, TOPIC, USER
from fluxmq.tryout.nodes import Node

__all__ = ["RATE", "DemoClient", "Settings", "Traffic"]

RATE = 20.0             # messages per second and publisher
RATE_MIN, RATE_MAX = 0.5, 2000.0
IN_FLIGHT_MAX = 256     # publishes of one client that wait for their confirms; then it waits, too
PREFETCH = 32
TICK_S = 0.05
AGAIN_S = 0.5           # until a client connects again
KEYS = 64
EMAIL_EVERY, BOUNCE_EVERY, TEMPERATURE_EVERY = 4, 50, 4
BOUNCE = b"bounce"
COME_BACK = Backoff(initial_s=0.1, max_s=1.0)


@dataclass(slots=True)
class Settings:
    """Of all publishers. rate: messages per second and publisher. keyed: with keys, of which each has its partition;
    otherwise the partitions take turns."""

    rate: float = RATE
    confirms: bool = True
    keyed: bool = True


@dataclass(slots=True)
class Counts:
    """Since the client began."""

    published: int = 0
    confirmed: int = 0
    refused: int = 0
    received: int = 0
    redelivered: int = 0
    settled: int = 0
    returned: int = 0
    connects: int = 0


class DemoClient:
    """One client; `run` is its task. node: whose addresses it uses."""

    protocol, role = "", ""

    def __init__(self, node: Node, settings: Settings) -> None:
        self.node, self.settings = node, settings
        self.name = f"{self.protocol}-{self.role}-{node.name.removeprefix('node-')}"
        self.counts = Counts()
        self.nack_next = False
        self._going = asyncio.Event()       # not set: paused
        self._going.set()
        self._task: asyncio.Task[None] | None = None

    @property
    def state(self) -> str:
        if self._task is None:
            return "killed"
        return "running" if self._going.is_set() else "paused"

    def about(self) -> dict[str, Any]:
        """For people and programs."""
        counts = self.counts
        return {"client": self.name, "protocol": self.protocol, "role": "publisher" if self.role == "pub" else
                "consumer", "node": self.node.name, "state": self.state,
                **{name: getattr(counts, name) for name in counts.__slots__}}

    def start(self) -> None:
        """Connects, if it was killed."""
        self._going.set()
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run())

    def pause(self) -> None:
        self._going.clear()

    def kill(self) -> None:
        """Its connection ends."""
        if self._task is not None:
            self._task.cancel()
            self._task = None

    async def end(self) -> None:
        """Kills it, and waits until it has gone."""
        task = self._task
        self.kill()
        if task is not None:
            await asyncio.wait([task])

    async def _run(self) -> None:
        while True:
            # Whatever went wrong (the node is away, a queue, the login): it is tried again.
            with contextlib.suppress(OSError, FluxError):
                await self._live()
            await asyncio.sleep(AGAIN_S)

    async def _live(self) -> None:
        """One connection, until it ends."""
        raise NotImplementedError

    async def _paced(self, publish: Callable[[int], Awaitable[bool]], alive: Callable[[], bool]) -> None:
        """Calls publish(number) at the rate, for as long as `alive`. It returns what waits for the confirm: whether the
        broker has taken the message."""
        waiting: set[asyncio.Future[None]] = set()
        numbers = itertools.count()
        due = time.monotonic()
        try:
            while alive():
                await self._going.wait()
                due = max(due, time.monotonic() - 1)       # what was missed is not made up for
                while due <= time.monotonic() and len(waiting) < IN_FLIGHT_MAX:
                    due += 1 / self.settings.rate
                    self.counts.published += 1
                    answer = asyncio.ensure_future(self._confirmed(publish(next(numbers))))
                    waiting.add(answer)
                    answer.add_done_callback(waiting.discard)
                await asyncio.sleep(min(TICK_S, 1 / self.settings.rate))
        finally:
            for one in waiting:
                one.cancel()

    async def _confirmed(self, confirm: Awaitable[bool]) -> None:
        good = False
        with contextlib.suppress(OSError, FluxError):
            good = await confirm
        if good:
            self.counts.confirmed += 1
        else:
            self.counts.refused += 1

    def _take(self, redelivered: bool) -> bool:
        """A message has come: whether it is to be given back."""
        self.counts.received += 1
        self.counts.redelivered += redelivered
        back, self.nack_next = self.nack_next, False
        self.counts.returned += back
        self.counts.settled += not back
        return back

    def _key(self, number: int) -> str:
        return f"customer-{number % KEYS}"


class MqttClient(DemoClient):
    """A client that connects again by itself, until the broker refuses it for good."""

    protocol = "mqtt"

    async def _live(self) -> None:
        client = Client(self.node.ports.address("mqtt"), client_id=f"tryout-{self.name}", username=USER, password=USER,
                        reconnect=COME_BACK, session_expiry_s=0)
        await client.start()
        self.counts.connects += 1
        try:
            await self._use(client)
        finally:
            await asyncio.shield(client.close())

    async def _use(self, client: Client) -> None:
        raise NotImplementedError


class MqttPublisher(MqttClient):
    role = "pub"

    async def _use(self, client: Client) -> None:
        queue = client.queue(ORDERS)
        topic = TOPIC.format(self.node.name)

        def publish(number: int) -> Awaitable[bool]:
            qos = 1 if self.settings.confirms else 0
            if number % TEMPERATURE_EVERY == 0:
                return _true(client.publish(topic, f"{20 + number % 7}.5", qos))
            return _true(queue.publish(f"order {self.name}-{number}", qos=qos,
                                       key=self._key(number) if self.settings.keyed else None))

        await self._paced(publish, lambda: True)


async def _true(publishing: Awaitable[Any]) -> bool:
    """A publish of the client raises what is wrong."""
    await publishing
    return True


class MqttConsumer(MqttClient):
    role = "sub"

    async def _use(self, client: Client) -> None:
        await client.subscribe(TOPIC.format("+"), 0, handler=self._temperature)
        orders = client.queue(ORDERS).consume(prefetch=PREFETCH, ack="auto")
        audit = client.queue(AUDIT).consume(offset="next", prefetch=PREFETCH, ack="auto")
        async with Tasks() as tasks:
            tasks.start(self._read(orders, settles=True))
            tasks.start(self._read(audit, settles=False))
            await tasks.first()

    def _temperature(self, _: Delivery) -> None:
        self.counts.received += 1

    async def _read(self, consumer: QueueConsumer, *, settles: bool) -> None:
        """Until the client ends. settles: its messages are settled, and may be given back."""
        while True:
            with contextlib.suppress(SubscribeRefused):     # the queue's node is away
                async for message in consumer:
                    await self._going.wait()
                    if not settles:
                        self.counts.received += 1
                    elif self._take(message.redelivered):
                        await message.nack()
                return
            await asyncio.sleep(AGAIN_S)


class AmqpPublisher(DemoClient):
    protocol, role = "amqp", "pub"

    async def _live(self) -> None:
        confirms = self.settings.confirms
        client = AmqpClient(self.node.ports.address("amqp"), self.name)
        await client.open(confirms=confirms)
        self.counts.connects += 1

        def publish(number: int) -> Awaitable[bool]:
            if number % EMAIL_EVERY == 0:
                text = BOUNCE if number // EMAIL_EVERY % BOUNCE_EVERY == BOUNCE_EVERY - 1 else b"email"
                return client.publish(EMAILS, b"%s %d" % (text, number))
            return client.publish(ORDERS, f"order {self.name}-{number}".encode(), {
                "partition-key": self._key(number)} if self.settings.keyed else None)

        try:
            # Confirms are of a channel, for good: another setting needs another channel.
            await self._paced(publish, lambda: client.why is None and self.settings.confirms == confirms)
        finally:
            client.abort()


class _Delivered(NamedTuple):
    """What waits to be settled."""

    tag: int
    body: bytes
    redelivered: bool


class AmqpConsumer(DemoClient):
    protocol, role = "amqp", "sub"

    async def _live(self) -> None:
        came: deque[_Delivered] = deque()
        news = asyncio.Event()

        def on_message(message: AmqpMessage) -> None:
            came.append(_Delivered(message.method.delivery_tag, message.body, message.method.redelivered))
            news.set()

        client = AmqpClient(self.node.ports.address("amqp"), self.name, on_message)
        await client.open()
        self.counts.connects += 1
        ending = asyncio.ensure_future(client.ended.wait())
        ending.add_done_callback(lambda _: news.set())
        try:
            for queue in (ORDERS, EMAILS):
                await client.consume(queue, PREFETCH)
            while client.why is None:
                await news.wait()
                news.clear()
                await self._going.wait()
                while came:
                    self._settle(client, came.popleft())
        finally:
            ending.cancel()
            client.abort()

    def _settle(self, client: AmqpClient, one: _Delivered) -> None:
        if self._take(one.redelivered):
            client.nack(one.tag, requeue=True)
        elif one.body.startswith(BOUNCE):
            client.nack(one.tag, requeue=False)
        else:
            client.ack(one.tag)


KINDS: tuple[type[DemoClient], ...] = (MqttPublisher, MqttConsumer, AmqpPublisher, AmqpConsumer)


class Traffic:
    """All demo clients."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.clients: list[DemoClient] = []
        self._turn = itertools.count()

    def add(self, node: Node) -> None:
        """The clients of a node begin."""
        for kind in KINDS:
            self.clients.append(kind(node, self.settings))
            self.clients[-1].start()

    def named(self, name: str) -> DemoClient:
        """Raises TryoutError."""
        found = next((client for client in self.clients if client.name == name), None)
        if found is None:
            raise TryoutError(f"there is no client {name}: there are "
                              f"{', '.join(client.name for client in self.clients) or 'none'}")
        return found

    def change_rate(self, rate: float) -> float:
        """The new rate, which has its limits. Raises TryoutError."""
        if not rate > 0:
            raise TryoutError(f"a rate is more than 0, not {rate}")
        self.settings.rate = min(max(rate, RATE_MIN), RATE_MAX)
        return self.settings.rate

    def nack_next(self, name: str | None) -> DemoClient:
        """The next message of a consumer is given back; without a name the consumers take turns. Raises TryoutError."""
        consumers = [client for client in self.clients if client.role == "sub" and client.state == "running"]
        if name is not None:
            client = self.named(name)
            if client.role != "sub":
                raise TryoutError(f"{name} consumes nothing")
        elif consumers:
            client = consumers[next(self._turn) % len(consumers)]
        else:
            raise TryoutError("no consumer is running")
        client.nack_next = True
        return client

    async def end(self) -> None:
        """All of them."""
        await asyncio.gather(*(client.end() for client in self.clients))
        self.clients.clear()
