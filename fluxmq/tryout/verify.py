"""--failover-verify: nodes are killed under load, and every confirmed message must come.

Publishers and consumers of both protocols at all nodes use one queue whose partitions are at all nodes. Each message
has an identity and is published once. A round:

    consumers stand still, so that what is confirmed now is on the disks of the owners and nowhere else
    kill -9: the owner of a partition, or the node whose etcd member leads, in turn
    consumers go on; the others see that the node is away
    the node is started again, and has its partitions again

At the end publishers stop and consumers take what is left. Lost is what was confirmed and has not come. A message that
came more than once is counted by whether that was said of it: redelivered (AMQP), or a delivery count above 1 (MQTT).
What was refused, or not answered, may have come or not.
"""
from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from fluxmq._core.client.amqp091_machine import AmqpMessage
from fluxmq._core.errors import FluxError
from fluxmq.client import Backoff, Client, PublishRefused
from fluxmq.tryout.amqp import AmqpClient
from fluxmq.tryout.asking import NoAnswer, TryoutError
from fluxmq.tryout.demo import USER, declare, delete
from fluxmq.tryout.nodes import Node, Nodes

__all__ = ["Verification"]

QUEUE = "failover-verify"
PARTITIONS_MIN = 4
KEYS = 64
RATE = 40.0                 # messages per second and publisher
IN_FLIGHT_MAX = 64
PREFETCH = 8
BACKLOG = 300               # messages that are confirmed while consumers stand still; consumers hold fewer of them
NOTICE_S, BACK_S, ANSWER_S, DRAIN_S = 60.0, 120.0, 60.0, 90.0
QUIET_S = 3.0               # the queue is empty and nothing has come: nothing will
AGAIN_S = 0.3
TICK_S = 0.05
SHOWN = 20                  # identities of lost messages that are named
COME_BACK = Backoff(initial_s=0.1, max_s=0.5)


@dataclass(slots=True)
class Books:
    """What publishers and consumers know; identities of messages."""

    published: int = 0
    confirmed: dict[str, float] = field(default_factory=dict)      # and when
    refused: int = 0
    unanswered: int = 0
    received: set[str] = field(default_factory=set)
    repeated_and_said: int = 0
    repeated_unsaid: int = 0
    gap_s: float = 0.0          # the longest time without a confirm, since it was set to 0
    last_news: float = 0.0      # when something was received

    def confirm(self, identity: str) -> None:
        now = time.monotonic()
        if self.confirmed:
            self.gap_s = max(self.gap_s, now - next(reversed(self.confirmed.values())))
        self.confirmed[identity] = now

    def receive(self, identity: str, redelivered: bool) -> None:
        self.last_news = time.monotonic()
        if identity not in self.received:
            self.received.add(identity)
        elif redelivered:
            self.repeated_and_said += 1
        else:
            self.repeated_unsaid += 1

    @property
    def lost(self) -> list[str]:
        return [identity for identity in self.confirmed if identity not in self.received]


class Verification:
    """nodes: at least three, all up. say: takes a line of progress."""

    def __init__(self, nodes: Nodes, rounds: int, say: Callable[[str], None]) -> None:
        self._nodes, self._rounds, self._say = nodes, rounds, say
        self.books = Books()
        self._problems: list[str] = []
        self._kills: list[dict[str, Any]] = []
        self._flowing = asyncio.Event()
        self._flowing.set()
        self._publishing = True
        self._waiting: set[asyncio.Future[None]] = set()

    async def run(self) -> dict[str, Any]:
        """What was found: "ok" only if nothing confirmed was lost, and every node came back. Raises TryoutError."""
        first = next(iter(self._nodes))
        await declare(first, QUEUE, {"partitions": max(PARTITIONS_MIN, len(self._nodes))})
        loads = [asyncio.ensure_future(_again(work, node)) for node in self._nodes for work in (
            self._mqtt_publisher, self._mqtt_consumer, self._amqp_publisher, self._amqp_consumer)]
        try:
            for number in range(self._rounds):
                try:
                    await self._round(number)
                except TryoutError as error:
                    self._problem(f"round {number + 1}: {error}")
                    break
            await self._drain()
        finally:
            for load in (*loads, *self._waiting):
                load.cancel()
            await asyncio.wait(loads)
        with contextlib.suppress(TryoutError):
            await delete(first, QUEUE)
        return self._found()

    def _found(self) -> dict[str, Any]:
        books = self.books
        lost = books.lost
        return {"ok": not lost and not self._problems, "rounds": self._kills, "published": books.published,
                "confirmed": len(books.confirmed),
                "confirmed_mqtt": sum(one.startswith("mqtt") for one in books.confirmed),
                "confirmed_amqp": sum(one.startswith("amqp") for one in books.confirmed),
                "refused": books.refused, "unanswered": books.unanswered, "received": len(books.received),
                "lost": len(lost), "lost_identities": lost[:SHOWN], "repeated_redelivered": books.repeated_and_said,
                "repeated_unmarked": books.repeated_unsaid, "problems": self._problems}

    def _problem(self, text: str) -> None:
        self._problems.append(text)
        self._say(text)

    # ── rounds ───────────────────────────────────────────────────────────────────────────────────────────────────

    async def _round(self, number: int) -> None:
        """Raises TryoutError."""
        nodes, books = self._nodes, self.books
        self._flowing.clear()
        goal = len(books.confirmed) + BACKLOG
        await nodes.wait(_told(lambda: len(books.confirmed) >= goal), "the publishers get no confirms", BACK_S)
        victim, why = await self._victim(number)
        books.gap_s = 0.0
        self._say(f"round {number + 1} of {self._rounds}: kill -9 {victim.name}, the {why}")
        nodes.kill(victim)
        since = time.monotonic()
        self._flowing.set()
        await nodes.wait(lambda: self._is(victim, "partly away"), f"nobody sees that {victim.name} is away", NOTICE_S)
        noticed = time.monotonic()
        await nodes.restart(victim)
        await nodes.wait(lambda: self._is(victim, "divided"), f"the partitions of {victim.name} do not come back",
                         BACK_S)
        self._kills.append({"node": victim.name, "why": why, "noticed_s": round(noticed - since, 1),
                            "back_s": round(time.monotonic() - since, 1), "longest_without_confirm_s":
                                round(books.gap_s, 2)})

    async def _victim(self, number: int) -> tuple[Node, str]:
        """The owner of a partition, or the node of etcd's leader; in turn."""
        if number % 2:
            found: list[Node] = []

            async def leads() -> bool:
                for node in self._nodes.up:
                    if await node.leads_etcd():
                        found.append(node)
                return bool(found)

            await self._nodes.wait(leads, "etcd has no leader", NOTICE_S)
            return found[0], "node of etcd's leader"
        places = (await self._asked("queues", QUEUE))["partition_list"]
        partition = number // 2 % len(places)
        return self._nodes.named(places[partition]["node"]), f"owner of partition {partition}"

    async def _is(self, victim: Node, state: str) -> bool:
        """Whether another node says this of the queue."""
        rows = (await self._asked("queues", without=victim))["queues"]
        return any(row["name"] == QUEUE and row["state"] == state for row in rows)

    async def _asked(self, *segments: str, without: Node | None = None) -> Any:
        """Raises NoAnswer."""
        node = next((node for node in self._nodes.up if node is not without), None)
        if node is None:
            raise NoAnswer("no node is up")
        return await node.ask("GET", *segments, limit_s=ANSWER_S)

    async def _drain(self) -> None:
        """Publishers stop; consumers take what is left."""
        books = self.books
        self._say("the publishers stop, and the consumers take what is left")
        self._flowing.set()
        self._publishing = False
        try:
            await self._nodes.wait(_told(lambda: not self._waiting), "", ANSWER_S)
        except TryoutError:
            for one in list(self._waiting):
                one.cancel()        # counted as unanswered
        books.last_news = time.monotonic()

        async def done() -> bool:
            if not books.lost:
                return True
            if time.monotonic() - books.last_news < QUIET_S:
                return False
            rows = (await self._asked("queues"))["queues"]
            return any(row["name"] == QUEUE and row["messages"] == 0 for row in rows)

        with contextlib.suppress(TryoutError):
            await self._nodes.wait(done, "", DRAIN_S)

    # ── publishers and consumers ─────────────────────────────────────────────────────────────────────────────────

    async def _paced(self, prefix: str, numbers: itertools.count[int], publish: Callable[[str, str], Awaitable[bool]],
                     alive: Callable[[], bool]) -> None:
        """publish(identity, key): whether it is confirmed; FluxError, OSError: nobody knows."""
        due = time.monotonic()
        waiting: set[asyncio.Future[None]] = set()      # of this publisher: another's node may be away
        while alive():
            due = max(due, time.monotonic() - 1)
            while self._publishing and due <= time.monotonic() and len(waiting) < IN_FLIGHT_MAX:
                due += 1 / RATE
                number = next(numbers)
                identity = f"{prefix}-{number}"
                self.books.published += 1
                task = asyncio.ensure_future(self._confirmed(identity, publish(identity, f"key-{number % KEYS}")))
                for those in (self._waiting, waiting):
                    those.add(task)
                    task.add_done_callback(those.discard)
            await asyncio.sleep(TICK_S)

    async def _confirmed(self, identity: str, confirm: Awaitable[bool]) -> None:
        answered = False
        try:
            if await confirm:
                self.books.confirm(identity)
            else:
                self.books.refused += 1
            answered = True
        except (OSError, FluxError):
            pass
        finally:
            self.books.unanswered += not answered

    async def _mqtt_publisher(self, node: Node, numbers: itertools.count[int]) -> None:
        client = _mqtt(node)
        await client.start()
        queue = client.queue(QUEUE)

        async def publish(identity: str, key: str) -> bool:
            try:
                await queue.publish(identity, key=key)
            except PublishRefused:
                return False
            return True

        try:
            await self._paced(f"mqtt-{node.name}", numbers, publish, lambda: True)
        finally:
            await asyncio.shield(client.close())

    async def _amqp_publisher(self, node: Node, numbers: itertools.count[int]) -> None:
        client = AmqpClient(node.ports.address("amqp"), QUEUE)
        await client.open(confirms=True)

        async def publish(identity: str, key: str) -> bool:
            return await client.publish(QUEUE, identity.encode(), {"partition-key": key})

        try:
            await self._paced(f"amqp-{node.name}", numbers, publish, lambda: client.why is None)
        finally:
            client.abort()

    async def _mqtt_consumer(self, node: Node, _: itertools.count[int]) -> None:
        client = _mqtt(node)
        await client.start()
        try:
            async for message in client.queue(QUEUE).consume(prefetch=PREFETCH, ack="auto"):
                await self._flowing.wait()
                self.books.receive(message.text, message.redelivered)
        finally:
            await asyncio.shield(client.close())

    async def _amqp_consumer(self, node: Node, _: itertools.count[int]) -> None:
        came: deque[AmqpMessage] = deque()
        news = asyncio.Event()

        def on_message(message: AmqpMessage) -> None:
            came.append(message)
            news.set()

        client = AmqpClient(node.ports.address("amqp"), QUEUE, on_message)
        await client.open()
        ending = asyncio.ensure_future(client.ended.wait())
        ending.add_done_callback(lambda _: news.set())
        try:
            await client.consume(QUEUE, PREFETCH)
            while client.why is None:
                await news.wait()
                news.clear()
                await self._flowing.wait()
                while came:
                    message = came.popleft()
                    self.books.receive(message.body.decode(), message.method.redelivered)
                    client.ack(message.method.delivery_tag)
        finally:
            ending.cancel()
            client.abort()


async def _again(work: Callable[[Node, itertools.count[int]], Awaitable[None]], node: Node) -> None:
    """Does it again whenever it has ended: its node was killed, or its queue is away."""
    numbers = itertools.count()
    while True:
        with contextlib.suppress(OSError, FluxError):
            await work(node, numbers)
        await asyncio.sleep(AGAIN_S)


def _told(condition: Callable[[], bool]) -> Callable[[], Awaitable[bool]]:
    async def asked() -> bool:
        return condition()
    return asked


def _mqtt(node: Node) -> Client:
    return Client(node.ports.address("mqtt"), username=USER, password=USER, reconnect=COME_BACK, session_expiry_s=0)
