"""Which data is the queue's, with whole brokers: what a start finds on a real disk. The table: tests/cluster."""
from __future__ import annotations

import random
from typing import Any

import pytest
from simulator.cluster.brokers import Brokers
from simulator.cluster.test_brokers import connected, serving
from simulator.cluster.test_queue_moves import Q, fill, move, moved, numbers
from simulator.cluster.test_queues import consumer, reasons, share

from fluxmq.cluster.definition_values import QueueData, data_of, encode_data
from fluxmq.cluster.keys import QUEUE_DATA, queue_key, storage_key
from fluxmq.cluster.ports import Change
from fluxmq.engine.ports.definitions import FIRST, Placement
from fluxmq.engine.ports.queues import QueueRefused
from fluxmq.engine.queues.admin import QueueAdmin

DATA = queue_key(QUEUE_DATA, *Q)
NAMES = ("one", "two")


def stop(brokers: Brokers, *names: str) -> None:
    brokers.run_for(0.5)
    for name in names:
        brokers.kill(name)
        brokers.end_lease_of(name)
    brokers.run_for(2.0)


def say(brokers: Brokers, value: bytes) -> None:
    brokers.store.apply([Change(DATA, value, 0)])
    brokers.run_for(0.5)


def placed(brokers: Brokers, at: str) -> Placement:
    """What this node has of the queue."""
    state = brokers.processes[at].node.manager.queues[Q]
    assert state.here and data_of(brokers.store.items[DATA].value).node == at
    return state.placement


def depths(brokers: Brokers, at: str) -> dict[str, int]:
    """By names, of the queues that are here."""
    return {state.spec.name: state.queue.depth for state in brokers.processes[at].node.manager.queues.values()
            if state.here}


def warnings(brokers: Brokers, at: str) -> list[str]:
    return [text for level, text, _ in brokers.processes[at].log if level == "warning"]


@pytest.mark.parametrize("checkpoint", [False, True])
def test_a_disk_says_which_data_it_has(checkpoint: bool) -> None:
    brokers = serving(*NAMES)
    share(brokers, "one")
    fill(brokers, connected(brokers, "one", "p"), 20)
    for number, to in enumerate(("two", "one", "two"), 1):
        moved(brokers, to)
        assert placed(brokers, to) == (1, number) == data_of(brokers.store.items[DATA].value).placement
        if checkpoint:
            brokers.run_for(70.0)
        stop(brokers, *NAMES)
        brokers.start(*NAMES)
        brokers.run_for(1.0)
        assert placed(brokers, to) == (1, number) and depths(brokers, to) == {"q": 20}
        assert depths(brokers, "one" if to == "two" else "two") == {}


def test_an_old_copy_of_a_directory_is_not_the_queue() -> None:
    """etcd was recovered, and does not know how far the directory had come: so the copy is not told by its
    generation."""
    brokers = serving(*NAMES)
    share(brokers, "one")
    publisher = connected(brokers, "two", "p")
    fill(brokers, publisher, 5)
    brokers.run_for(1.0)
    one = brokers.processes["one"]
    old = one.disk.copy(random.Random(1))
    moved(brokers, "two")
    moved(brokers, "one")
    reader = consumer(brokers, "two", "r")
    brokers.run_until(lambda: len(reader.messages) == 5)
    stop(brokers, "one")
    one.disk = old
    del brokers.store.items[storage_key("one")]
    brokers.start("one")
    brokers.run_for(3.0)
    assert depths(brokers, "one") == {"q": 0} and placed(brokers, "one") == (2, 0)
    assert any("an old copy of the directory" in text for text in warnings(brokers, "one"))
    fill(brokers, publisher, 3, 5)
    brokers.run_until(lambda: len(reader.messages) == 8)
    assert numbers(reader) == list(range(8))        # none comes again
    stop(brokers, "one")
    brokers.start("one")
    brokers.run_for(1.0)
    kept = depths(brokers, "one")
    assert kept.pop("q") == 0 and list(kept.values()) == [5] and placed(brokers, "one") == (2, 0)


def test_etcd_is_set_back_to_before_a_move() -> None:
    brokers = serving(*NAMES)
    share(brokers, "one")
    fill(brokers, connected(brokers, "one", "p"), 5)
    before = brokers.store.items[DATA].value
    moved(brokers, "two")
    fill(brokers, connected(brokers, "one", "p2"), 2)
    stop(brokers, *NAMES)
    say(brokers, before)
    brokers.start(*NAMES)
    brokers.run_for(1.0)
    assert placed(brokers, "one") == (2, 0) and depths(brokers, "one") == {"q": 0} and depths(brokers, "two") == {}
    assert any("Publish to the queue again" in text for text in warnings(brokers, "two"))
    assert any("begins anew, empty" in text for text in warnings(brokers, "one"))
    stop(brokers, "two")
    brokers.start("two")
    brokers.run_for(1.0)
    assert list(depths(brokers, "two").values()) == [7] and "q" not in depths(brokers, "two")


@pytest.mark.parametrize("while_it_serves", [False, True])
def test_what_a_group_has_is_left_and_comes_back(while_it_serves: bool) -> None:
    """No version before that writes such a value; here it is taken back in the end."""
    brokers = serving(*NAMES)
    share(brokers, "one")
    fill(brokers, connected(brokers, "one", "p"), 5)
    before = data_of(brokers.store.items[DATA].value)
    if not while_it_serves:
        stop(brokers, "one")
    say(brokers, encode_data(QueueData("", "", before.id, Placement(1), 3)))
    for _ in range(2):
        if not brokers.processes["one"].process.alive:
            brokers.start("one")
        brokers.run_for(2.0)
        for at in NAMES:
            manager, publisher = brokers.processes[at].node.manager, connected(brokers, at, f"to-group-{at}")
            entry: Any = QueueAdmin(manager).list_queues()[0]
            assert (entry["node"], entry["state"], entry["replication_group"]) == ("", "away", 3)
            assert QueueAdmin(manager).describe("q")["replication_group"] == 3
            with pytest.raises(QueueRefused, match="replication group 3 has the data of queue q") as refused:
                QueueAdmin(manager).purge("q")
            assert refused.value.kind == "unavailable"
            publisher.publish("$queue/q", b"lost", 1)
            brokers.run_until(lambda publisher=publisher: reasons(publisher))    # type: ignore[misc]
            assert set(reasons(publisher).values()) == {0x80}
        assert any("is left there as it is: replication group 3 has its data" in text
                   for text in warnings(brokers, "one"))
        stop(brokers, "one")
    say(brokers, encode_data(before))
    brokers.start("one")
    brokers.run_for(1.0)
    assert depths(brokers, "one") == {"q": 5} and placed(brokers, "one") == FIRST


def test_a_move_does_not_take_a_queue_from_a_group() -> None:
    """It has begun when a group gets the data. Its transaction compares that value, or finds that it is too late."""
    brokers = serving(*NAMES)
    share(brokers, "one")
    fill(brokers, connected(brokers, "one", "p"), 5)
    before = data_of(brokers.store.items[DATA].value)
    group = encode_data(QueueData("", "", before.id, Placement(1), 3))
    cluster = brokers.processes["one"].cluster
    change = cluster.writer.change

    class Late:
        async def change(self, *what: Any) -> Any:
            brokers.store.apply([Change(DATA, group, 0)])
            return await change(*what)

    cluster.holdings.queue_moves._writer = Late()  # type: ignore[assignment]
    work = move(brokers, "two")
    brokers.run_until(work.done)
    assert work.result() is not None and brokers.store.items[DATA].value == group
    work = move(brokers, "two")
    brokers.run_until(work.done)
    assert "cannot be moved: replication group 3 has its data" in work.result()
