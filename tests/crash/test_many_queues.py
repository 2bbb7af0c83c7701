"""A start leaves alone what nobody has come to: most queues of many. That it does, in numbers of queues looked at; and
that nobody can tell, by a node that is started again and again beside one that never ends."""
from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from crash.queue_node import QueueNode, View
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from unit.amqp_world import Consumer, Found, World, bytes_in_order

from fluxmq._core.queue.amqp_head import PULL_STALLED
from fluxmq._core.queue.queue import Queue
from fluxmq.engine.queues.admin import QueueAdmin
from fluxmq.engine.queues.amqp.queues import AmqpQueues
from fluxmq.engine.queues.statistics import counts_of, numbers_of, totals

MANY = 300
SMALL = 2  # of queue_node.SMALL: messages of small logs stay in the view


class Ticks:
    """A node's clocks, in the order in which the server has them tick."""

    def __init__(self, node: QueueNode) -> None:
        self.node = node

    def tick(self) -> None:
        self.node.keeper.clock.tick()
        self.node.clock.tick()


class OnLoop:
    """AMQP's queues, whose methods are called on the loop: many of them pump a queue first, and that may begin a
    read."""

    def __init__(self, world: Stored, amqp: AmqpQueues) -> None:
        self.world, self.amqp = world, amqp

    def __getattr__(self, name: str) -> Any:
        method = getattr(self.amqp, name)
        return lambda *given_, **named: self.world.on_loop(lambda: method(*given_, **named))


class Stored(World):
    """A World on a disk. small: index of queue_node.SMALL."""

    def __init__(self, directory: Path, loop: asyncio.AbstractEventLoop, small: int = SMALL) -> None:
        super().__init__()
        self.directory, self.loop, self.small, self.starts = directory, loop, small, 0
        self.start(View())

    def start(self, view: View) -> None:
        self.starts += 1
        self.node = QueueNode(self.directory, self.loop, view, (self.wall_ms, self.mono_ms),
                              3 * self.starts + self.small, filmed=False)
        self.hub, self.manager = self.node.hub, self.node.manager
        self.clock = Ticks(self.node)  # type: ignore[assignment]
        self.admin = QueueAdmin(self.manager)
        amqp = AmqpQueues(self.manager, bytes_in_order(), lambda *route: to_key(self, *route))
        self.amqp = OnLoop(self, amqp)  # type: ignore[assignment]
        self.loop.run_until_complete(asyncio.sleep(0))

    def turn(self) -> None:
        stalled = True
        while stalled:  # also where the read was over before anybody could see that it had begun
            self.node.in_turn(lambda: None)
            self.node.sync()
            stalled = bool(self.node.unread)
            self.node.unread.clear()
            self.node.settle_reads()

    def on_loop(self, step: Callable[[], Found]) -> Found:
        found: list[Found] = []
        if self.loop.is_running():
            return step()
        self.node.in_turn(lambda: found.append(step()))
        return found[0]

    def checkpoint(self) -> None:
        self.node.begin_checkpoint()
        self.node.finish_checkpoint()

    def restart(self) -> None:
        self.turn()
        self.node.stop()
        assert self.node.store is not None
        self.start(self.node.store.view)

    def touched(self) -> dict[str, int]:
        """How many queues the next checkpoint looks at, the clock has looked at, the sums have measured."""
        return {"dirty": self.hub.ledger.dirty_count, "looked": self.node.clock.looked,
                "measured": self.manager.sums.measured}


def to_key(world: World, vhost: bytes, exchange: bytes, key: bytes, table: bytes) -> list[Queue]:
    found = world.amqp.get(vhost, key)
    return [found] if found is not None else []


@contextmanager
def stored(small: int = SMALL) -> Iterator[Stored]:
    loop = asyncio.new_event_loop()
    with tempfile.TemporaryDirectory() as directory:
        world = Stored(Path(directory), loop, small)
        try:
            yield world
        finally:
            world.node.stop()
            loop.close()


def walked(world: World) -> tuple[dict[str, int], dict[str, int]]:
    """What totals() says, added up: (what happened, what is there)."""
    happened: dict[str, int] = {}
    now: dict[str, int] = {}
    for state in world.manager.queues.values():
        for sums, numbers in ((happened, counts_of(state)), (now, numbers_of(state))):
            for name, number in numbers.items():
                sums[name] = sums.get(name, 0) + number
    return happened, now


@pytest.mark.parametrize("journalled", [False, True], ids=["in the view", "in the journal"])
def test_a_start_looks_at_what_somebody_came_to(journalled: bool) -> None:
    with stored() as world:
        for number in range(MANY):
            world.declare(f"q{number}", durable=True)
        for number in range(MANY):
            world.put("1", to=f"q{number}")
        if not journalled:
            world.checkpoint()
        world.restart()
        assert world.touched() == {"dirty": MANY * journalled, "looked": 0, "measured": MANY}
        world.after(1)
        assert world.touched() == {"dirty": MANY * journalled, "looked": 0, "measured": MANY}
        assert totals(world.manager)[1]["ready"] == MANY
        world.put("2", to="q7")
        consumer = Consumer(world, "q8")
        world.amqp.purge(b"/", b"q9")
        world.amqp.delete(b"/", b"q10")
        world.after(1)
        assert totals(world.manager)[1]["ready"] == MANY - 2
        touched = world.touched()
        assert touched["looked"] == 3 and touched["measured"] <= MANY + 8
        assert touched["dirty"] == (MANY - 1 if journalled else 3)
        assert consumer.take() == ["1"]
        world.checkpoint()
        assert world.node.queues.looked == touched["dirty"]
        world.restart()
        assert not world.there("q10") and world.counts("q9") == (0, 0, 0)
        assert world.bodies("q7") == ["1", "2"] and world.bodies("q8") == world.bodies("q299") == ["1"]


def test_what_becomes_due_of_queues_that_nobody_comes_to_is_not_forgotten() -> None:
    with stored() as world:
        world.declare("dead", durable=True)
        world.declare("ttl", durable=True, message_ttl=5000, dead_letter_exchange="", dead_letter_routing_key="dead")
        world.declare("short", durable=True)
        world.declare("expires", durable=True, expires=5000)
        world.put("1", to="ttl")
        world.put("never", to="short")
        world.put("2", to="short", expiration="5000")
        world.checkpoint()
        world.restart()
        world.after(4)
        assert world.bodies("ttl") == ["1"] and world.there("expires")
        world.after(2)
        assert world.bodies("ttl") == [] and world.bodies("dead") == ["1"] and not world.there("expires")
        assert world.bodies("short") == ["never", "2"], "it is not at the head"
        Consumer(world, "short").ack("never")
        assert world.bodies("short") == []
        assert walked(world)[1] == totals(world.manager)[1]


QUEUES: dict[str, dict[str, Any]] = {
    "plain": {}, "other": {},
    "ttl": {"message_ttl": 3000, "dead_letter_exchange": "", "dead_letter_routing_key": "other"},
    "few": {"max_length": 3}, "full": {"max_length_bytes": 40, "overflow": "reject-publish"},
    "levels": {"max_priority": 2}, "quorum": {"queue_type": "quorum", "delivery_limit": 2},
}
names = st.sampled_from(sorted(QUEUES))
steps = st.lists(st.one_of(
    st.tuples(st.just("put"), names, st.integers(1, 4), st.sampled_from([10, 10, 900])),
    st.tuples(st.just("get"), names, st.sampled_from(["ack", "requeue", "reject"])),
    st.tuples(st.just("consume"), names, st.integers(1, 3), st.booleans()),
    st.tuples(st.just("purge"), names),
    st.tuples(st.just("delete"), names),
    st.tuples(st.just("after"), st.sampled_from([0.25, 1.0, 4.0])),
    st.tuples(st.just("checkpoint")),
    st.tuples(st.just("restart")),
    st.tuples(st.just("restart")),
), min_size=4, max_size=25)


class Pair:
    """The same is done in both worlds."""

    def __init__(self, kept: Stored) -> None:
        self.kept = kept
        self.lasting = World(lambda *route: to_key(self.lasting, *route))
        self.worlds = (self.lasting, self.kept)
        self.count = 0
        for name in QUEUES:
            self.declare(name)

    def declare(self, name: str) -> None:
        for world in self.worlds:
            world.declare(name, durable=True, **QUEUES[name])

    def put(self, name: str, count: int, size: int) -> None:
        bodies = [f"{self.count + number}".ljust(size) for number in range(count)]
        self.count += count
        told = [world.put(*bodies, to=name, priority=count % 3) for world in self.worlds]
        assert told[0] == told[1]

    def get(self, name: str, then: str) -> None:
        got = []
        for world in self.worlds:
            consumer = Consumer(world, name, asks=True)
            while (given_ := consumer.ask()) == PULL_STALLED:
                world.turn()
            found = given_, consumer.take()
            for body in found[1]:
                getattr(consumer, then)(body)
            consumer.leave()
            got.append((found, consumer.counts))
        assert got[0] == got[1]

    def consume(self, name: str, room: int, acknowledge: bool) -> None:
        got = []
        for world in self.worlds:
            consumer = Consumer(world, name, room=room)
            got.append((consumer.take(), consumer.counts))
            if acknowledge:
                consumer.ack(*got[-1][0])
            consumer.leave()
        assert got[0] == got[1]

    def purge(self, name: str) -> None:
        assert len({world.amqp.purge(b"/", name.encode()) for world in self.worlds}) == 1
        for world in self.worlds:
            world.turn()

    def delete(self, name: str) -> None:
        assert len({world.amqp.delete(b"/", name.encode()) for world in self.worlds}) == 1
        self.declare(name)

    def after(self, seconds: float) -> None:
        for world in self.worlds:
            world.after(seconds)

    def checkpoint(self) -> None:
        self.kept.checkpoint()

    def restart(self) -> None:
        self.kept.restart()

    def compare(self) -> None:
        for name in QUEUES:
            assert self.kept.counts(name) == self.lasting.counts(name), name
        for world in self.worlds:
            happened, now, kinds = totals(world.manager)
            assert now == walked(world)[1] and kinds["classic"] == len(QUEUES)
            assert all(happened[name] >= number for name, number in walked(world)[0].items())


@settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
@given(small=st.integers(0, 2), history=steps)
@example(small=0, history=[("put", "ttl", 3, 900), ("restart",), ("after", 1.0), ("checkpoint",),
                           ("get", "ttl", "requeue")])
@example(small=1, history=[("put", "quorum", 1, 900), ("checkpoint",), ("restart",), ("delete", "quorum"),
                           ("put", "quorum", 1, 900), ("checkpoint",), ("restart",), ("purge", "quorum")])
def test_nobody_notices_a_start(small: int, history: list[tuple[Any, ...]]) -> None:
    with stored(small) as kept:
        pair = Pair(kept)
        for what, *arguments in history:
            getattr(pair, what)(*arguments)
            pair.compare()
        pair.restart()
        pair.compare()
        for name in QUEUES:
            pair.consume(name, 200, True)
        pair.compare()
