"""Dead-letter queues that the broker makes, in a simulated cluster: two nodes may need the same one, etcd may not take
it when it is needed, and nodes die meanwhile. Each letter is in it once."""
from __future__ import annotations

import pytest
from oracle.mqtt import Suback
from simulator.cluster.brokers import Brokers, Client
from simulator.cluster.test_brokers import connected, serving
from simulator.cluster.test_definitions import do
from simulator.cluster.test_order_in_moves import with_views
from simulator.cluster.test_queues import reasons

from fluxmq.model.queues import DeadLetters, QueueLimits, QueueSpec

NAMES = ("one", "two", "three")
LETTERS = 20  # of each queue


def share(brokers: Brokers, *owners: str) -> None:
    """Each declares a queue of its own name. It keeps one message; the one before it dies. They share a queue for dead
    letters."""
    for at in owners:
        do(brokers, at, lambda node, at=at: node.manager.declare(QueueSpec(
            name=f"of-{at}", dlq=DeadLetters(topic="dead"), limits=QueueLimits(max_depth=1), overflow="drop-head")))
        assert brokers.processes[at].node.manager.queues[b"/", b"of-" + at.encode()].here


def fill(brokers: Brokers, publisher: Client, *owners: str, first: int = 0) -> set[bytes]:
    """Returns what has died: all but the last."""
    before = len(reasons(publisher))
    sent = {b"%s %d" % (at.encode(), number): at for number in range(first, first + LETTERS + 1) for at in owners}
    for payload, at in sent.items():
        publisher.publish(f"$queue/of-{at}", payload, 1)
    brokers.run_until(lambda: len(reasons(publisher)) == before + len(sent))
    assert set(reasons(publisher).values()) == {0}
    return set(sent) - {b"%s %d" % (at.encode(), first + LETTERS) for at in owners}


def dead(brokers: Brokers) -> list[bytes]:
    """What the queue has, at the one node that has it."""
    found = [state.queue for broker in brokers.processes.values() if broker.process.alive
             for (_, name), state in broker.node.manager.queues.items() if name == b"dead" and state.here]
    if not found:
        return []
    [queue] = found
    log = queue.logs[0]
    return [log.get(offset).payload for offset in range(log.first, log.next)]


def under_way(brokers: Brokers) -> int:
    return sum(state.queue.waiting for broker in brokers.processes.values()
               for (_, name), state in broker.node.manager.queues.items() if name.startswith(b"$under-way-"))


def in_order(found: list[bytes], owners: tuple[str, ...]) -> None:
    for at in owners:
        assert [payload for payload in found if payload.startswith(at.encode())] == [
            b"%s %d" % (at.encode(), number) for number in range(LETTERS)]


@pytest.mark.parametrize("seed", range(8))
def test_two_nodes_need_the_same_one_at_once(seed: int) -> None:
    brokers = serving(*NAMES, seed=seed)
    share(brokers, "one", "two")
    sent = fill(brokers, connected(brokers, "three", "p"), "one", "two")
    brokers.run_until(lambda: len(dead(brokers)) >= len(sent))
    brokers.run_for(2.0)
    assert len(dead(brokers)) == len(sent) and under_way(brokers) == 0
    in_order(dead(brokers), ("one", "two"))
    for name in NAMES:
        assert not [entry for entry in brokers.processes[name].log if entry[0] == "error"]
        assert (b"/", b"dead") in brokers.processes[name].node.manager.queues


@pytest.mark.parametrize("seed", range(8))
def test_letters_wait_for_etcd_and_survive_their_node(seed: int) -> None:
    """The queue cannot be defined when the messages die; later ones come behind them."""
    brokers = serving(*NAMES, seed=seed)
    share(brokers, "one")
    publisher = connected(brokers, "three", "p")
    brokers.store.counts.full = True  # nothing new can be defined
    sent = fill(brokers, publisher, "one")
    brokers.run_until(lambda: under_way(brokers) == len(sent))
    brokers.run_for(2.0)
    assert dead(brokers) == [] and under_way(brokers) == len(sent)
    brokers.kill("one")
    brokers.end_lease_of("one")
    brokers.run_for(0.5)
    brokers.store.counts.full = False
    brokers.start("one")
    brokers.run_until(lambda: len(dead(brokers)) >= len(sent))
    brokers.run_until(lambda: under_way(brokers) == 0)
    brokers.run_for(2.0)
    in_order(dead(brokers), ("one",))
    assert len(dead(brokers)) == len(sent)


def test_the_only_letter_is_known_again_after_minutes() -> None:
    """Its source does not hear that it has arrived, and sends it again and again."""
    brokers = serving(*NAMES)
    share(brokers, "one")
    do(brokers, "two", lambda node: node.manager.declare(QueueSpec(name="dead")))
    assert brokers.processes["two"].node.manager.queues[b"/", b"dead"].here
    publisher = connected(brokers, "one", "p")
    brokers.network.stall("two", "one", back=False)
    for number in range(2):
        publisher.publish("$queue/of-one", b"%d" % number, 1)
    brokers.run_until(lambda: dead(brokers) == [b"0"])
    brokers.run_for(200.0)
    assert under_way(brokers) == 1
    brokers.network.heal()
    brokers.run_until(lambda: under_way(brokers) == 0)
    assert dead(brokers) == [b"0"]


@pytest.mark.parametrize("seed", range(12))
def test_a_node_dies_while_letters_arrive(seed: int) -> None:
    brokers = serving(*NAMES, seed=seed)
    share(brokers, "one", "two")
    sent = fill(brokers, connected(brokers, "three", "p"), "one", "two")
    brokers.run_until(lambda: under_way(brokers) or dead(brokers))
    brokers.run_for(seed * 0.002)
    brokers.kill("one")
    brokers.end_lease_of("one")
    brokers.run_for(0.5)
    brokers.start("one")
    brokers.run_until(lambda: len(dead(brokers)) >= len(sent))
    brokers.run_until(lambda: under_way(brokers) == 0)
    brokers.run_for(3.0)
    assert sorted(dead(brokers)) == sorted(sent)


@pytest.mark.parametrize("after_s", [0.0, 0.3, 0.5, 0.6])
def test_letters_that_die_while_the_queue_is_made_come_behind(after_s: float) -> None:
    brokers = serving(*NAMES)
    share(brokers, "one")
    publisher = connected(brokers, "three", "p")
    brokers.store.counts.full = True
    fill(brokers, publisher, "one")
    brokers.store.counts.full = False
    brokers.run_for(after_s)
    fill(brokers, publisher, "one", first=LETTERS + 1)
    brokers.run_until(lambda: len(dead(brokers)) > 2 * LETTERS)
    assert dead(brokers) == [b"one %d" % number for number in range(2 * LETTERS + 1)]


@pytest.mark.parametrize("seed", range(8))
def test_letters_that_die_one_by_one_keep_their_order(seed: int) -> None:
    brokers = serving(*NAMES, seed=seed)
    share(brokers, "one")
    publisher = connected(brokers, "three", "p")
    for number in range(2 * LETTERS + 1):
        publisher.publish("$queue/of-one", b"one %d" % number, 1)
        brokers.run_for(0.001)
    brokers.run_until(lambda: len(dead(brokers)) >= 2 * LETTERS)
    assert dead(brokers) == [b"one %d" % number for number in range(2 * LETTERS)]


def test_letters_go_on_when_an_operator_has_deleted_the_queue_under_way() -> None:
    """And the dead-letter queue: as a harness does that deletes all queues."""
    brokers = serving(*NAMES)
    share(brokers, "one")
    publisher = connected(brokers, "three", "p")
    sent = fill(brokers, publisher, "one")
    brokers.run_until(lambda: len(dead(brokers)) == len(sent))
    brokers.run_for(2.0)
    manager = brokers.processes["one"].node.manager
    [name] = [name for _, name in manager.queues if name.startswith(b"$under-way-")]
    manager.delete((b"/", name))
    target = b"/", b"dead"
    do(brokers, "one", lambda node: target in node.manager.queues and node.manager.delete_for(target, 0))
    brokers.run_for(1.0)
    again = fill(brokers, publisher, "one", first=100)
    brokers.run_until(lambda: again <= {*dead(brokers)})


def test_an_owner_that_does_not_know_a_new_queue_yet_is_asked_again() -> None:
    """A consumer's node has heard of the queue before the node that has it: the broker makes it there for a letter."""
    brokers, views = with_views(7)
    views[NAMES.index("one")].late_s = 3.0
    node = brokers.processes["one"].node
    node.manager.definer.make_known(QueueSpec(name="q"), lambda: None)
    brokers.run_until(lambda: (b"/", b"q") in brokers.processes["two"].node.manager.queues)
    assert (b"/", b"q") not in node.manager.queues
    reader = connected(brokers, "two", "r")
    packet_id = reader.subscribe("$queue/q", 1)
    brokers.run_until(lambda: reader.acknowledged(packet_id))
    assert [packet.reasons for packet in reader.of(Suback)] == [[1]]
    connected(brokers, "three", "p").publish("$queue/q", b"x", 1)
    brokers.run_until(lambda: reader.messages)
