"""The clock of queues: what is due happens with the next tick, and a tick costs what is due, not what there is."""
from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from fluxmq._core.hub.hub import Hub
from fluxmq._core.queue import by_offset
from fluxmq._core.queue.group import Group
from fluxmq._core.queue.member import PyMember
from fluxmq._core.queue.queue import Queue
from fluxmq._core.testing.probes import pump_queues
from fluxmq.cluster.solo import solo
from fluxmq.engine.clock import CLOCK_KEY, STEPS_MAX, SteadyClock
from fluxmq.engine.queues import clock as queue_clock
from fluxmq.engine.queues.amqp.queues import AmqpQueues
from fluxmq.engine.queues.clock import QueueClock
from fluxmq.engine.queues.manager import QueueManager
from fluxmq.model.queues import QueueSpec, Retention

TICK = 250


class Node:
    """A manager with a clock of the test's own. Nothing is on disk."""

    def __init__(self) -> None:
        self.hub = Hub(None)
        self.wall, self.mono = 1_700_000_000_000, 50_000
        self.hub.set_clock(self.wall, self.mono)
        self.manager = QueueManager(self.hub, cluster=solo())
        self.steady = SteadyClock(self.hub, lambda level, cause, text, fields: None)
        self.clock = QueueClock(self.manager, 0, self.steady.stamp_of_age)

    def pass_ms(self, ms: int, wall: int | None = None) -> None:
        """Ticks, as many as there are in that time. wall: how far the wall clock goes meanwhile, if otherwise."""
        for step in range(-(-ms // TICK)):
            self.mono += TICK
            self.wall += TICK if wall is None else (wall if step == 0 else 0)
            self.hub.set_clock(self.wall, self.mono)
            self.steady.tick()
            self.clock.tick()
            pump_queues(self.hub)

    @contextmanager
    def looks(self) -> Iterator[list[int]]:
        """[how many queues were looked at meanwhile]."""
        counted = [-self.clock.looked]
        yield counted
        counted[0] += self.clock.looked

    def consume(self, queue: Queue, lease_ms: int = 0) -> tuple[Group, list[int]]:
        got: list[int] = []
        group = self.manager.group(queue, b"g")
        group.join(PyMember(lambda log, offset, deliveries: got.append(offset), room=1000, lease_ms=lease_ms))
        pump_queues(self.hub)
        return group, got

    def declare(self, name: str, **spec: object) -> Queue:
        return self.manager.declare(QueueSpec(name=name, **spec))[0]  # type: ignore[arg-type]


def test_idle_queues_are_not_looked_at() -> None:
    node = Node()
    queues = [node.declare(f"q{number}") for number in range(1000)]
    streams = [node.declare(f"s{number}", type="stream") for number in range(100)]
    for queue in [*queues, *streams]:
        queue.append_message(b"t", b"x")
        node.manager.group(queue, b"g")
    pump_queues(node.hub)
    node.pass_ms(20_000)
    with node.looks() as counted:
        node.pass_ms(600_000)
    assert counted == [0]
    with node.looks() as counted:
        queues[7].append_message(b"t", b"x")
        pump_queues(node.hub)
        node.pass_ms(10_000)
    assert counted == [1]


def test_a_lease_that_is_over() -> None:
    node = Node()
    queue = node.declare("q")
    queue.append_message(b"t", b"x")
    _, got = node.consume(queue, lease_ms=30_000)
    with node.looks() as counted:
        node.pass_ms(29_500)
        assert got == [0]
        node.pass_ms(750)
    assert got == [0, 0]
    assert counted[0] <= 3


def test_a_lease_that_is_extended_or_cut_short() -> None:
    node = Node()
    queue = node.declare("q")
    queue.append_message(b"t", b"x")
    group, got = node.consume(queue, lease_ms=30_000)
    node.pass_ms(1000)
    assert by_offset.extend(group, queue.logs[0].number, 0, 60_000)
    node.pass_ms(59_000)
    assert got == [0]
    assert by_offset.extend(group, queue.logs[0].number, 0, 1000)
    node.pass_ms(1500)
    assert got == [0, 0]


def test_a_message_that_waits_after_a_nack() -> None:
    node = Node()
    queue = node.declare("q")
    queue.append_message(b"t", b"x")
    group, got = node.consume(queue)
    assert by_offset.give_back_at(group, queue.logs[0].number, 0, 60_000)
    pump_queues(node.hub)
    with node.looks() as counted:
        node.pass_ms(59_500)
        assert got == [0]
        node.pass_ms(750)
    assert got == [0, 0]
    assert counted[0] <= 3


def test_delayed_messages_also_those_that_come_before_others() -> None:
    node = Node()
    queue = node.declare("q")
    _, got = node.consume(queue)
    for wait in (3_600_000, 60_000, 10_000):
        queue.append_message(b"t", b"x", not_before=node.wall + wait)
    with node.looks() as counted:
        node.pass_ms(9_500)
        assert got == []
        node.pass_ms(750)
        assert got == [0]
        node.pass_ms(50_000)
        assert got == [0, 1]
        node.pass_ms(3_500_000)
        assert got == [0, 1]
        node.pass_ms(60_000)
    assert got == [0, 1, 2]
    assert counted[0] <= 10


@pytest.mark.parametrize("jump", [-7_200_000, 7_200_000])
def test_a_wall_clock_that_jumps_moves_nothing_that_waits(jump: int) -> None:
    node = Node()
    queue = node.declare("q")
    _, got = node.consume(queue)
    queue.append_message(b"t", b"x", not_before=node.hub.steady_ms + 3_600_000)
    node.pass_ms(10_000)
    node.pass_ms(TICK, wall=jump)
    node.pass_ms(3_600_000 - 10_000 - 2 * TICK)
    assert got == []
    node.pass_ms(2 * TICK)
    assert got == [0]


def test_a_machine_that_slept_has_waited() -> None:
    node = Node()
    queue = node.declare("q")
    node.declare("e", type="ephemeral", expires_after=60.0)
    _, got = node.consume(queue)
    queue.append_message(b"t", b"x", not_before=node.hub.steady_ms + 3_600_000)
    node.pass_ms(10_000)
    assert got == []
    node.hub.set_clock(node.wall + 3_600_000, node.mono, 3_600_000)
    node.clock.tick()
    pump_queues(node.hub)
    assert got == [0] and (b"/", b"e") not in node.manager.queues


def test_streams_grow_old() -> None:
    node = Node()
    short = node.declare("short", type="stream", retention=Retention(max_age=10.0))
    long = node.declare("long", type="stream", retention=Retention(max_age=36_000.0))
    few = node.declare("few", type="stream", retention=Retention(max_length_messages=3))
    for queue in (short, long, few):
        for _ in range(10):
            queue.append_message(b"t", b"x")
    pump_queues(node.hub)
    node.pass_ms(5_500)
    assert (short.depth, long.depth, few.depth) == (10, 10, 3)
    node.pass_ms(10_000)
    assert (short.depth, long.depth) == (0, 10)
    with node.looks() as counted:
        node.pass_ms(600_000)
    assert counted[0] <= 11
    node.pass_ms(36_000_000)
    assert long.depth == 0
    with node.looks() as counted:
        node.pass_ms(600_000)
    assert counted == [0]


@pytest.mark.parametrize("jump", [-7_200_000, 7_200_000])
def test_a_stream_grows_no_older_by_a_wall_clock_that_jumps(jump: int) -> None:
    node = Node()
    stream = node.declare("s", type="stream", retention=Retention(max_age=3600.0))
    stream.append_message(b"t", b"before")
    node.pass_ms(10_000)
    node.pass_ms(TICK, wall=jump)
    stream.append_message(b"t", b"after")
    node.pass_ms(3_500_000)
    assert stream.depth == 2
    node.pass_ms(200_000 + max(-jump, 0))       # what is stamped in the future is known to be old when that has come
    assert stream.depth == 0


def test_the_clock_remembers_over_a_restart_when_it_was_set() -> None:
    node = Node()
    for _ in range(STEPS_MAX + 10):
        node.pass_ms(TICK, wall=-1000)
        node.pass_ms(TICK)
    age = node.hub.steady_ms - 1_700_000_000_000 + 1
    assert node.steady.stamp_of_age(age) == node.hub.now_ms - age
    node.pass_ms(TICK, wall=86_400_000)
    kept = node.steady.stamp_of_age(3_600_000)
    assert kept == node.hub.now_ms - 86_400_000 + TICK - 3_600_000
    key, value = node.steady.export()
    assert key == CLOCK_KEY and len(value) == 16 * (1 + STEPS_MAX)
    other = Node()
    other.hub.set_clock(node.wall, 1)
    other.steady.load(value)
    other.steady.resume()
    assert other.hub.steady_ms == node.hub.steady_ms and other.steady.stamp_of_age(3_600_000) == kept


def test_an_ephemeral_queue_that_nobody_uses_goes() -> None:
    node = Node()
    queue = node.declare("e", type="ephemeral", expires_after=60.0)
    node.pass_ms(30_000)
    group, _ = node.consume(queue)
    node.pass_ms(120_000)
    assert (b"/", b"e") in node.manager.queues
    group.leave(group.members[0])
    node.manager.left(queue, group)
    pump_queues(node.hub)
    with node.looks() as counted:
        node.pass_ms(59_000)
        assert (b"/", b"e") in node.manager.queues
        node.pass_ms(2_000)
    assert (b"/", b"e") not in node.manager.queues
    assert counted[0] <= 3


def test_a_tick_looks_at_a_bounded_number_of_queues(monkeypatch: pytest.MonkeyPatch) -> None:
    """A hundred thousand consumers that leave at once give the clock as many queues to look at."""
    monkeypatch.setattr(queue_clock, "LOOKS_MAX", 10)
    node = Node()
    queues = [node.declare(f"q{number}") for number in range(25)]
    while node.clock.tick():
        pass
    for queue in queues:
        node.consume(queue)
    for looked, behind in ((10, True), (10, True), (5, False), (0, False)):
        with node.looks() as looks:
            assert (node.clock.tick(), node.clock.behind) == (behind, behind)
        assert looks == [looked]


def test_times_that_have_come_are_bounded_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue_clock, "LOOKS_MAX", 10)
    node = Node()
    for number in range(25):
        node.declare(f"e{number}", type="ephemeral")
    while node.clock.tick():
        pass
    node.mono += 3_600_000
    node.wall += 3_600_000
    node.hub.set_clock(node.wall, node.mono)
    node.steady.tick()
    with node.looks() as looks:
        turns = 1
        while node.clock.tick():
            turns += 1
    assert looks == [25] and turns == 3


def test_the_retention_of_a_stream_is_the_matter_of_the_node_that_has_it() -> None:
    """Logs of a relay have numbers of other queues' logs, and few of the messages."""
    node = Node()
    state = node.manager.make_relay(QueueSpec(name="q", type="stream", retention=Retention(
        max_length_messages=10, max_age=60.0)), None, 7)
    [log] = state.queue.logs
    log.mirror(0, 100)
    node.pass_ms(20_000)
    assert (log.first, log.next) == (0, 100)


class Alarms:
    """Timers of the event loop, in the place of `later`."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.timers: list[tuple[int, Callable[[], None]]] = []
        node.clock = QueueClock(node.manager, 0, node.steady.stamp_of_age, self.later)
        node.clock.tick()

    def later(self, seconds: float, call: Callable[[], None]) -> None:
        self.timers.append((self.node.mono + max(1, round(seconds * 1000)), call))

    def pass_ms(self, ms: int) -> int:
        """Without a tick. Returns how many timers rang."""
        rang = 0
        for _ in range(ms):
            self.node.mono += 1
            self.node.wall += 1
            self.node.hub.set_clock(self.node.wall, self.node.mono)
            due, self.timers = ([each for each in self.timers if each[0] <= self.node.mono],
                                [each for each in self.timers if each[0] > self.node.mono])
            for _, call in due:
                call()
            rang += len(due)
            pump_queues(self.node.hub)
        return rang


def test_what_expires_between_two_ticks_goes_then() -> None:
    node = Node()
    alarms = Alarms(node)
    amqp = AmqpQueues(node.manager, lambda n: bytes(n))
    queue = amqp.declare(b"/", b"q", arguments={"x-message-ttl": 1}).queue
    idle = [amqp.declare(b"/", b"idle-%d" % number, arguments={"x-message-ttl": 1}).queue for number in range(10)]
    pump_queues(node.hub)
    node.pass_ms(TICK)
    assert not alarms.timers
    queue.publish(b"\0q", b"x", format=1)
    pump_queues(node.hub)
    with node.looks() as looked:
        assert queue.depth == 1 and alarms.pass_ms(2) == 1 and queue.depth == 0
    assert looked == [1] and alarms.pass_ms(1000) == 0 and not any(each.depth for each in idle)


def test_messages_that_expire_one_after_the_other_cost_few_alarms() -> None:
    node = Node()
    alarms = Alarms(node)
    queue = AmqpQueues(node.manager, lambda n: bytes(n)).declare(b"/", b"q", arguments={"x-message-ttl": 20}).queue
    rang = 0
    for _ in range(200):
        queue.publish(b"\0q", b"x", format=1)
        rang += alarms.pass_ms(1)
        assert queue.depth <= 30
    assert 30 <= rang + alarms.pass_ms(30) <= 50 and queue.depth == 0


def test_a_delay_that_ends_between_two_ticks() -> None:
    node = Node()
    alarms = Alarms(node)
    queue = node.declare("q")
    _, got = node.consume(queue)
    queue.append_message(b"$queue/q", b"late", not_before=node.hub.steady_ms + 900)
    queue.append_message(b"$queue/q", b"soon", not_before=node.hub.steady_ms + 30)
    pump_queues(node.hub)
    assert alarms.pass_ms(29) == 0 and not got
    assert alarms.pass_ms(2) and got == [0]
    for _ in range(3):
        node.pass_ms(TICK)
    assert got == [0] and alarms.pass_ms(140) and got == [0, 1]


def test_no_alarm_when_the_node_stops() -> None:
    node = Node()
    alarms = Alarms(node)
    queue = node.declare("q")
    queue.append_message(b"$queue/q", b"soon", not_before=node.hub.steady_ms + 30)
    pump_queues(node.hub)
    node.clock.close()
    with node.looks() as looked:
        alarms.pass_ms(100)
    assert looked == [0] and not alarms.timers
