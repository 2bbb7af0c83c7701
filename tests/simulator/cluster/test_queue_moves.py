"""Queues move between the brokers of a simulated cluster. Nothing is lost or comes twice, whoever dies meanwhile."""
from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from kit.sizes import some
from oracle.mqtt import Puback, Publish
from simulator.cluster.brokers import Brokers, Client
from simulator.cluster.test_brokers import connected, serving
from simulator.cluster.test_definitions import do
from simulator.cluster.test_leaving import leave
from simulator.cluster.test_queues import NAMES, consumer, deliveries, reasons, share
from simulator.cluster.test_streams import AmqpReader

from fluxmq._core.errors import CorruptError
from fluxmq.engine.ports.queues import QueueRefused
from fluxmq.model.queues import DeadLetters, QueueLimits, QueueSpec

Q = (b"/", b"q")


def move(brokers: Brokers, to: str, at: str = "one") -> Any:
    """An operator asks node `at`. The result: why the queue stays, or None."""
    broker = brokers.processes[at]

    async def asked() -> str | None:
        try:
            await broker.cluster.holdings.queue_moves.move(Q, to)
        except QueueRefused as refused:
            return refused.text
        return None

    return broker.process.driver.start(asked())


def moved(brokers: Brokers, to: str, at: str = "one") -> None:
    work = move(brokers, to, at)
    brokers.run_until(work.done, 60.0)
    assert work.result() is None
    whole(brokers, to)


def whole(brokers: Brokers, owner: str) -> None:
    """One node has the queue, all others know which, and none has a copy."""
    brokers.run_for(1.0)
    for name, broker in brokers.processes.items():
        if not broker.process.alive:
            continue
        manager = broker.node.manager
        state = manager.queues[Q]
        assert state.here == (name == owner), name
        assert state.moving is None
        assert (state.queue.relay is None) == (name == owner)
        if name != owner:
            assert state.queue.relay.owner == owner
            assert state.queue.relay.reachable
        assert not broker.node.broker.consumers.defined.arrivals
        assert [one.queue.name for one in manager.states.values() if one.id == state.id] == [b"q"]


def fill(brokers: Brokers, publisher: Client, count: int, since: int = 0) -> None:
    for number in range(since, since + count):
        publisher.publish("$queue/q", b"%d" % number, 1)
    brokers.run_until(lambda: len(reasons(publisher)) >= since + count, 60.0)
    assert set(reasons(publisher).values()) == {0}


def numbers(client: Client) -> list[int]:
    return [int(payload) for _, payload in client.messages]


@pytest.mark.parametrize("at", NAMES)
def test_what_waits_moves_and_the_order_is_kept(at: str) -> None:
    brokers = serving(*NAMES)
    share(brokers, "one")
    publisher = connected(brokers, "three", "p")
    fill(brokers, publisher, 500)
    moved(brokers, "two", at)
    fill(brokers, publisher, 100, 500)
    reader = consumer(brokers, "one", "r")
    brokers.run_until(lambda: len(reader.messages) == 600, 30.0)
    assert numbers(reader) == list(range(600))
    assert set(map(tuple, deliveries(reader).values())) == {(1,)}


def test_a_queue_moves_under_publishers_and_consumers_of_all_nodes() -> None:
    brokers = serving(*NAMES)
    share(brokers, "one")
    readers = [consumer(brokers, at, f"r-{at}") for at in NAMES]
    publishers = [connected(brokers, at, f"p-{at}") for at in NAMES]
    sent = 0
    for to in ("two", "three", "one", "three"):
        work = move(brokers, to)
        while not work.done():
            for at, publisher in enumerate(publishers):
                publisher.publish("$queue/q", b"%d-%d" % (at, sent), 1)
            sent += 1
            brokers.run_for(0.002)
        assert work.result() is None
        whole(brokers, to)
    brokers.run_until(lambda: all(len(reasons(publisher)) == sent for publisher in publishers), 60.0)
    assert all(set(reasons(publisher).values()) == {0} for publisher in publishers)
    brokers.run_for(7.0)
    found = Counter(payload for reader in readers for _, payload in reader.messages)
    assert found == Counter(b"%d-%d" % (at, number) for at in range(3) for number in range(sent))
    counts = [count for reader in readers for each in deliveries(reader).values() for count in each]
    assert set(counts) == {1}
    state = brokers.processes["three"].node.manager.queues[Q]
    assert state.queue.waiting == 0
    assert state.groups[b"default", b""].held == 0


def test_consumers_hold_on_what_they_hold() -> None:
    brokers = serving(*NAMES)
    share(brokers, "one")
    readers = [consumer(brokers, at, f"r-{at}") for at in NAMES]
    for reader in readers:
        reader.acks = False
    publisher = connected(brokers, "two", "p")
    fill(brokers, publisher, 30)
    brokers.run_until(lambda: sum(len(reader.messages) for reader in readers) == 30)
    moved(brokers, "two")
    state = brokers.processes["two"].node.manager.queues[Q]
    assert state.groups[b"default", b""].held == 30
    brokers.run_for(6.0)
    assert state.groups[b"default", b""].held == 30
    assert sum(len(reader.messages) for reader in readers) == 30
    for reader in readers:
        for packet in reader.of(Publish):
            reader.send(Puback(packet_id=packet.packet_id))
    brokers.run_for(1.0)
    assert state.queue.waiting == 0


@pytest.mark.parametrize("restarts", [False, True])
def test_what_has_died_while_the_queue_rested_is_not_in_it_any_more(restarts: bool) -> None:
    """The oldest of a full queue. Its group hears of that when the queue is pumped, so not before it has moved."""
    brokers = serving(*NAMES)
    share(brokers, "one", limits=QueueLimits(max_depth=5), overflow="drop-head", dlq=DeadLetters(topic="dead"))
    do(brokers, "one", lambda node: node.manager.declare(QueueSpec(name="dead")))
    reader, publisher = consumer(brokers, "three", "r"), connected(brokers, "one", "p")
    fill(brokers, publisher, 4)
    brokers.run_for(0.5)
    assert len(reader.messages) == 4
    queue = brokers.processes["one"].node.manager.queues[Q].queue
    brokers.processes["three"].process.pause()      # so what is on its way there must be awaited
    fill(brokers, publisher, 2, 4)
    work = move(brokers, "two")
    brokers.run_until(lambda: queue.resting)
    fill(brokers, publisher, 20, 6)
    assert queue.resting and not work.done()
    brokers.run_until(work.done)
    assert work.result() is None
    reader.leave()
    brokers.processes["three"].process.resume()
    whole(brokers, "two")
    if restarts:
        brokers.kill("two")
        brokers.end_lease_of("two")
        brokers.run_for(0.5)
        brokers.start("two")
        brokers.run_for(2.0)
    state = brokers.processes["two"].node.manager.queues[Q]
    assert state.queue.waiting == 5
    after, dead = consumer(brokers, "two", "after"), consumer(brokers, "two", "d", "$queue/dead")
    brokers.run_until(lambda: len(after.messages) >= 5)
    brokers.run_for(2.0)
    assert numbers(after) == list(range(21, 26)) and numbers(dead) == list(range(4, 21))
    assert state.queue.waiting == 0
    fill(brokers, publisher, 5, 26)                 # nobody counts what is gone
    brokers.run_until(lambda: len(after.messages) == 10)
    assert len(dead.messages) == 17


def test_a_queue_that_cannot_move_says_why() -> None:
    brokers = serving(*NAMES)
    share(brokers, "one")
    work = move(brokers, "nine")
    brokers.run_until(work.done)
    assert "node nine does not serve" in work.result()
    brokers.processes["one"].node.manager.disk.stop(brokers.processes["one"].node.manager.queues[Q].queue,
                                                    CorruptError("a file is damaged"))
    work = move(brokers, "two")
    brokers.run_until(work.done)
    assert "it is damaged: a file is damaged" in work.result()
    whole(brokers, "one")


def owner_of(brokers: Brokers) -> str:
    """The only node that has the queue."""
    found = [name for name, broker in brokers.processes.items()
             if broker.process.alive and Q in broker.node.manager.queues and broker.node.manager.queues[Q].here]
    assert len(found) == 1
    return found[0]


STEPS = (0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 23, 26, 30, 35, 40, 50)  # ms after the beginning of a move


@pytest.mark.parametrize("victim", ["one", "two"])
@pytest.mark.parametrize("step", some(9, STEPS))
def test_a_node_that_dies_in_a_move_loses_nothing_and_doubles_nothing(victim: str, step: int) -> None:
    """The queue is at one of the two in the end, with what was acknowledged and not settled."""
    brokers = serving(*NAMES)
    share(brokers, "one")
    publisher, reader = connected(brokers, "three", "p"), consumer(brokers, "three", "r")
    fill(brokers, publisher, 20)
    brokers.run_until(lambda: len(reader.messages) == 20)
    brokers.run_for(0.5)            # they are settled on the disk
    reader.acks = False
    fill(brokers, publisher, 100, 20)
    brokers.run_for(0.5)
    held = len(reader.messages) - 20
    work = move(brokers, "two")
    brokers.run_for(step / 1000)
    for number in range(120, 125):
        publisher.publish("$queue/q", b"%d" % number, 1)
    brokers.kill(victim)
    brokers.end_lease_of(victim)
    brokers.run_for(2.0)
    brokers.start(victim)
    brokers.run_until(lambda: len(reasons(publisher)) == 125, 60.0)
    brokers.run_for(2.0)
    owner = owner_of(brokers)
    whole(brokers, owner)
    assert victim == "one" or work.done()
    confirmed = {number - 1 for number, reason in reasons(publisher).items() if reason == 0}
    assert confirmed >= set(range(120))
    reader.leave()
    other = consumer(brokers, "three", "other")
    brokers.run_for(8.0)
    found = Counter(numbers(other))
    assert set(found) >= {number for number in confirmed if number >= 20}
    assert not set(found) & set(range(20))
    assert set(found.values()) == {1}
    counts = {int(payload): each for payload, each in deliveries(other).items()}
    assert [number for number in range(20, 120) if counts[number] != [2]] == list(range(20 + held, 120))


@pytest.mark.parametrize("step", some(9, STEPS))
def test_streams_that_break_in_a_move(step: int) -> None:
    brokers = serving(*NAMES)
    share(brokers, "one")
    readers = [consumer(brokers, at, f"r-{at}") for at in NAMES]
    publisher = connected(brokers, "three", "p")
    fill(brokers, publisher, 100)
    work = move(brokers, "two")
    brokers.run_for(step / 1000)
    brokers.break_streams()
    brokers.run_until(work.done, 60.0)
    owner = "one" if work.result() else "two"
    whole(brokers, owner)
    fill(brokers, publisher, 100, 100)
    brokers.run_for(8.0)
    found = Counter(number for reader in readers for number in numbers(reader))
    assert found == Counter(range(200))
    assert brokers.processes[owner].node.manager.queues[Q].queue.waiting == 0
    moved(brokers, "two")


def test_a_node_that_leaves_moves_its_queues_and_names_those_that_stay() -> None:
    brokers = serving(*NAMES)
    share(brokers, "one")
    do(brokers, "one", lambda node: node.manager.declare(QueueSpec(name="log", type="stream")))
    do(brokers, "one", lambda node: node.manager.declare(QueueSpec(name="memory", type="ephemeral")))
    mine = AmqpReader(brokers, "one")
    mine.send(1, "queue.declare", queue="mine", exclusive=True)
    brokers.run_until(lambda: "queue.declare-ok" in mine.read())
    reader, publisher = consumer(brokers, "two", "r"), connected(brokers, "three", "p")
    reader.acks = False
    fill(brokers, publisher, 50)
    brokers.run_until(lambda: len(reader.messages) == 50)
    broker = brokers.processes["one"]
    for name in (b"log", b"memory"):
        broker.process.driver.start(broker.cluster.holdings.queue_moves.move((b"/", name), "one"))
        brokers.run_until(lambda: broker.node.manager.queues[b"/", name].here)     # noqa: B023
    brokers.run_for(1.0)
    late, never = "there was no time for it", "it is exclusive to a connection of its node"
    assert brokers.processes["one"].cluster.holdings.leaver.queues_left == {
        "q": late, "log": late, "memory": late, "mine": never}
    work = leave(brokers, "one")["one"]
    brokers.run_until(work.done)
    assert work.result() == 0
    stay = brokers.processes["one"].cluster.holdings.leaver.queues_left
    assert stay == {"mine": never}
    moves = brokers.processes["one"].cluster.holdings.queue_moves
    assert (moves.moved, moves.under_way) == (3, None)
    for name in (b"log", b"memory"):
        assert sum(brokers.processes[at].node.manager.queues[b"/", name].here for at in ("two", "three")) == 1
    owner = owner_of(brokers)
    assert owner in ("two", "three")
    fill(brokers, publisher, 10, 50)
    brokers.run_until(lambda: len(reader.messages) == 60)
    brokers.run_for(6.0)
    assert sorted(numbers(reader)) == list(range(60))


def test_a_copy_that_is_whole_too_late_is_forgotten() -> None:
    brokers = serving(*NAMES)
    share(brokers, "one")
    fill(brokers, connected(brokers, "three", "p"), 10)
    moves, driver = brokers.processes["two"].cluster.holdings.queue_moves, brokers.processes["two"].process.driver
    durable = moves.durable

    async def slow() -> None:
        await durable()
        if any(arrival.whole for arrival, _, _ in moves._coming.values()):
            await driver.sleep(6.0)

    moves.durable = slow  # type: ignore[method-assign]
    work = move(brokers, "two")
    brokers.run_until(work.done, 60.0)
    assert "node two has not stored the queue within 5 s" in work.result()
    whole(brokers, "one")
    assert not moves._coming


def test_a_consumer_is_answered_by_the_old_owner_when_the_queue_has_come() -> None:
    """The answer to its ATTACH was on its way for longer than all that a move takes."""
    brokers = serving(*NAMES)
    share(brokers, "one")
    publisher = connected(brokers, "three", "p")
    fill(brokers, publisher, 10)
    hosts, driver = brokers.processes["one"].node.broker.hosts, brokers.processes["one"].process.driver
    answer = hosts.answer

    def late(*what: Any) -> None:
        async def later() -> None:
            await driver.sleep(1.0)
            answer(*what)
        driver.start(later())

    hosts.answer = late  # type: ignore[method-assign]
    reader = connected(brokers, "two", "r")
    packet_id = reader.subscribe("$queue/q", 1)
    brokers.run_for(0.1)
    work = move(brokers, "two")
    brokers.run_until(work.done, 60.0)
    assert work.result() is None and not reader.acknowledged(packet_id)
    brokers.run_until(lambda: reader.acknowledged(packet_id))
    whole(brokers, "two")
    brokers.run_until(lambda: len(reader.messages) == 10, 30.0)
    assert numbers(reader) == list(range(10))


def test_the_first_message_expires_where_the_queue_has_moved_to() -> None:
    brokers = serving(*NAMES)
    do(brokers, "one", lambda node: node.amqp_queues.declare(b"/", b"q", durable=True,
                                                             arguments={"x-message-ttl": 5000}))
    publisher = connected(brokers, "three", "p")
    fill(brokers, publisher, 3)
    moved(brokers, "two")
    queue = brokers.processes["two"].node.manager.queues[Q].queue
    assert queue.waiting == 3
    brokers.run_for(6.0)
    assert queue.waiting == 0


def test_a_node_that_has_started_again_before_the_transaction_does_not_get_the_queue() -> None:
    """It had all of it on its disk, as a copy, which a start forgets."""
    brokers = serving(*NAMES)
    share(brokers, "one")
    publisher = connected(brokers, "three", "p")
    fill(brokers, publisher, 50)
    moves, driver = brokers.processes["one"].cluster.holdings.queue_moves, brokers.processes["one"].process.driver
    writer = moves._writer

    class Held:
        asked = released = False

        async def change(self, *what: Any) -> Any:
            self.asked = True
            while not self.released:
                await driver.sleep(0.01)
            return await writer.change(*what)

    moves._writer = held = Held()  # type: ignore[assignment]
    work = move(brokers, "two")
    brokers.run_until(lambda: held.asked)
    brokers.kill("two")
    brokers.end_lease_of("two")
    brokers.run_for(0.5)
    brokers.start("two")
    brokers.run_for(2.0)
    held.released = True
    brokers.run_until(work.done, 60.0)
    assert work.result() is not None and "queue q stays at node one" in work.result()
    whole(brokers, "one")
    reader = consumer(brokers, "two", "r")
    brokers.run_until(lambda: len(reader.messages) == 50, 30.0)
    assert numbers(reader) == list(range(50))


@pytest.mark.parametrize("count", [1, 3000])
def test_how_long_a_queue_rests_does_not_depend_on_what_waits(count: int) -> None:
    """By the simulated clock: from the instant in which it becomes a relay until its new owner serves it."""
    brokers = serving(*NAMES)
    share(brokers, "one")
    publisher = connected(brokers, "three", "p")
    for at in range(0, count, 500):
        fill(brokers, publisher, min(500, count - at), at)
    since = resting = None
    work = move(brokers, "two")
    state = brokers.processes["one"].node.manager.queues[Q]
    other = brokers.processes["two"].node.manager.queues[Q]
    while not work.done():
        brokers.run_for(0.001)
        if state.queue.resting and since is None:
            since = brokers.world.now_ms
        if other.here and resting is None and since is not None:
            resting = brokers.world.now_ms - since
    assert resting is not None and resting < 100
    whole(brokers, "two")


@pytest.mark.parametrize("decided", [False, True])
def test_an_operator_is_told_what_came_of_a_move_whose_old_owner_died(decided: bool) -> None:
    """He has asked a third node, and the old owner dies before or behind the transaction. That node's feed shows which,
    when the lease has ended."""
    brokers = serving(*NAMES)
    share(brokers, "one")
    fill(brokers, connected(brokers, "three", "p"), 50)
    moves, driver = brokers.processes["one"].cluster.holdings.queue_moves, brokers.processes["one"].process.driver
    writer = moves._writer

    class Held:
        asked = False

        async def change(self, *what: Any) -> Any:
            if decided:
                await writer.change(*what)
            self.asked = True
            await driver.sleep(3600.0)

    moves._writer = held = Held()  # type: ignore[assignment]
    work = move(brokers, "two", at="three")
    brokers.run_until(lambda: held.asked)
    brokers.kill("one")
    brokers.run_for(1.0)
    if not decided:
        assert not work.done(), "nobody can know yet"
        brokers.end_lease_of("one")
    brokers.run_until(work.done, 30.0)
    if decided:
        assert work.result() is None
    else:
        assert work.result().startswith("queue q has not moved to node two: node one, which has it, has failed "
                                        "meanwhile (")
        brokers.start("one")
        brokers.run_for(3.0)
    brokers.run_until(lambda: brokers.processes["two"].node.manager.queues[Q].queue.relay is None or not decided)
    reader = consumer(brokers, "three", "r")
    brokers.run_until(lambda: len(reader.messages) == 50, 30.0)
    assert numbers(reader) == list(range(50))


def test_an_operator_is_told_why_another_node_does_not_move_its_queue() -> None:
    """The same as at the node that has it, and as a conflict."""
    brokers = serving(*NAMES)
    share(brokers, "one")
    brokers.processes["one"].node.manager.queues[Q].queue.damage = "a file of it is damaged"
    broker = brokers.processes["three"]

    async def asked() -> QueueRefused:
        with pytest.raises(QueueRefused) as refused:
            await broker.cluster.holdings.queue_moves.move(Q, "two")
        return refused.value

    work = broker.process.driver.start(asked())
    brokers.run_until(work.done, 10.0)
    assert (work.result().kind, work.result().text) == (
        "conflict", "queue q cannot be moved: it is damaged: a file of it is damaged")


@pytest.mark.parametrize("back", [True, False])
def test_the_new_owner_dies_before_the_old_one_hears_that_it_has_the_queue(back: bool) -> None:
    """The watch of the old owner is late: the move, the death, and that the new owner is back, come at once."""
    brokers = serving(*NAMES)
    share(brokers, "one")
    reader = consumer(brokers, "one", "r")
    publisher = connected(brokers, "three", "p")
    work = move(brokers, "two")
    brokers.run_until(lambda: brokers.processes["one"].node.manager.queues[Q].moving is not None)
    store = brokers.processes["one"].cluster._store
    store.late_s = 2.0      # type: ignore[attr-defined]
    brokers.run_until(lambda: brokers.processes["two"].node.manager.queues[Q].here)
    brokers.kill("two")
    brokers.end_lease_of("two")
    if back:
        brokers.start("two")
    brokers.run_until(work.done, 60.0)
    brokers.run_for(3.0)
    store.late_s = 0.0      # type: ignore[attr-defined]
    if not back:
        assert len(brokers.processes["one"].node.manager.away) == 1
        brokers.start("two")
    brokers.run_for(3.0)
    whole(brokers, "two")
    publisher.publish("$queue/q", b"body", 2)
    brokers.run_until(lambda: reader.messages)
