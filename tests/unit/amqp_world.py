"""AMQP's queues without I/O, under a clock of the test's own: `World`, and `Consumer`, a channel's member."""
from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from typing import Any, TypeVar

import pytest
from oracle.amqp091 import plain_properties

from fluxmq._core.amqp091.properties import encode_properties
from fluxmq._core.errors import ProtocolError
from fluxmq._core.hub.hub import Hub
from fluxmq._core.queue import by_offset
from fluxmq._core.queue.member import PyMember
from fluxmq._core.queue.queue import Queue
from fluxmq._core.testing.probes import pump_queues
from fluxmq.cluster.solo import solo
from fluxmq.engine.queues.admin import QueueAdmin
from fluxmq.engine.queues.amqp.dead_letters import Route
from fluxmq.engine.queues.amqp.queues import AmqpQueues, QueueDeclared
from fluxmq.engine.queues.clock import QueueClock
from fluxmq.engine.queues.manager import QueueManager

START_MS = 1_700_000_000_000
AMQP = 1
Found = TypeVar("Found")


def bytes_in_order() -> Callable[[int], bytes]:
    numbers = count(1)
    return lambda n: next(numbers).to_bytes(n, "big")


@contextmanager
def refused(code: int, text: str = "") -> Iterator[None]:
    """What is done within is refused with this reply code and text."""
    with pytest.raises(ProtocolError) as caught:
        yield
    assert caught.value.reason == code
    assert text in caught.value.text


class World:
    """All queues of a node, and its two clocks."""

    def __init__(self, route: Route | None = None) -> None:
        self.hub = Hub(None)
        self.wall_ms, self.mono_ms = START_MS, 1000
        self.hub.set_clock(self.wall_ms, self.mono_ms)
        self.manager = QueueManager(self.hub, cluster=solo())
        self.clock = QueueClock(self.manager)
        self.admin = QueueAdmin(self.manager)
        self.amqp = AmqpQueues(self.manager, bytes_in_order(), route)

    def declare(self, name: str = "q", *, vhost: str = "/", owner: object = None, passive: bool = False,
                durable: bool = False, exclusive: bool = False, auto_delete: bool = False,
                **arguments: Any) -> QueueDeclared:
        """arguments: `message_ttl=5` is x-message-ttl."""
        self.hub.namespaces.add(vhost.encode())
        return self.amqp.declare(
            vhost.encode(), name.encode("utf-8", "surrogateescape"), passive=passive, durable=durable,
            exclusive_owner=owner if exclusive else None, auto_delete=auto_delete, owner=owner,
            arguments={"x-" + key.replace("_", "-"): value for key, value in arguments.items()})

    def queue(self, name: str = "q", vhost: str = "/") -> Queue:
        found = self.amqp.get(vhost.encode(), name.encode())
        assert found is not None
        return found

    def there(self, name: str = "q", vhost: str = "/") -> bool:
        return self.amqp.get(vhost.encode(), name.encode()) is not None

    def counts(self, name: str = "q") -> tuple[int, int, int]:
        return self.amqp.counts(self.queue(name))

    def put(self, *bodies: str, to: str = "q", exchange: str = "", key: str = "", **properties: Any) -> list[int]:
        """Publishes, and ends the turn. Returns reason codes, 0 for what the queue took."""
        told = [self.queue(to).publish(bytes((len(exchange),)) + exchange.encode() + (key or to).encode(),
                                       body.encode(), encode_properties(properties), format=AMQP) for body in bodies]
        self.turn()
        return told

    def turn(self) -> None:
        pump_queues(self.hub)

    def on_loop(self, step: Callable[[], Found]) -> Found:
        """Does what may begin a read, which needs the loop of a node with a disk. This one has none."""
        return step()

    def after(self, seconds: float) -> None:
        """So much time passes, as ticks and turns."""
        left = int(seconds * 1000)
        while left > 0:
            step = min(left, 250)
            left -= step
            self.mono_ms += step
            self.wall_ms += step
            self.hub.set_clock(self.wall_ms, self.mono_ms)
            self.on_loop(self.clock.tick)
            self.turn()
            self.turn()

    def bodies(self, name: str = "q") -> list[str]:
        """What it keeps that nobody has settled, in the order of its logs."""
        return [body for body, _ in self.letters(name)]

    def letters(self, name: str) -> list[tuple[str, dict[str, Any]]]:
        """(body, properties) of what a queue has."""
        found = []
        for log in self.queue(name).logs:
            at = log.first
            while (record := log.at_or_above(at)) is not None:
                at = record.offset + 1
                if self.queue(name).is_needed(log, record.offset):
                    found.append((record.payload.decode(), plain_properties(record.properties)))
        return found


class Consumer:
    """A member that keeps what it gets until the test says what becomes of it."""

    def __init__(self, world: World, name: str = "q", room: int = 100, *, priority: int = 0, exclusive: bool = False,
                 owner: object = None, asks: bool = False) -> None:
        self.world, self.queue = world, world.queue(name)
        self.held: dict[str, tuple[int, int]] = {}
        self.got: list[str] = []
        self.counts: list[int] = []
        self.member = PyMember(self._deliver, self._lost, room)
        if asks:
            self.group = world.amqp.add_puller(self.queue, self.member)
        else:
            self.group = world.amqp.consume(self.queue, self.member, exclusive=exclusive, owner=owner,
                                            priority=priority)
        world.turn()

    def _deliver(self, log: int, offset: int, deliveries: int) -> bool:
        found = next(one for one in self.queue.logs if one.number == log).get(offset)
        assert found is not None
        body = found.payload.decode()
        self.held[body] = (log, offset)
        self.got.append(body)
        self.counts.append(deliveries)
        return True

    def _lost(self, log: int, offset: int, deliveries: int) -> None:
        self.held = {body: place for body, place in self.held.items() if place != (log, offset)}

    def take(self) -> list[str]:
        got, self.got = self.got, []
        return got

    def ask(self) -> int:
        found = self.world.on_loop(lambda: self.world.amqp.ask(self.queue, self.member))
        self.world.turn()
        return found

    def ack(self, *bodies: str) -> None:
        for body in bodies:
            assert by_offset.settle_at(self.group, *self.held.pop(body))
        self.world.turn()

    def requeue(self, *bodies: str) -> None:
        for body in bodies:
            assert by_offset.give_back_at(self.group, *self.held.pop(body))
        self.world.turn()

    def reject(self, *bodies: str) -> None:
        for body in bodies:
            assert by_offset.reject_at(self.group, *self.held.pop(body), "rejected")
        self.world.turn()

    def cancel(self) -> None:
        self.world.amqp.cancel(self.queue, self.member)
        self.world.turn()

    def leave(self) -> None:
        self.world.amqp.left(self.queue, self.member)
        self.world.turn()
