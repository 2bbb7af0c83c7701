"""What operators read of a node that joins: why it waits, in its log and in the overview; and what others say of it."""
from __future__ import annotations

import pytest
from kit.metadata import MetadataInMemory
from simulator.cluster.brokers import Brokers
from simulator.cluster.test_definitions import do

from fluxmq.cluster.overview import Overview
from fluxmq.cluster.ports import StoreError
from fluxmq.engine.ports.overview import ClusterView
from fluxmq.engine.ports.queues import Publish, QueueRefused
from fluxmq.engine.queues.admin import QueueAdmin
from fluxmq.model.queues import QueueSpec


@pytest.fixture
def brokers() -> Brokers:
    brokers = Brokers(1, ["one", "two"], lambda process: brokers.store.seen_by(process.driver))
    brokers.store = MetadataInMemory(brokers.world.events)
    return brokers


def view(brokers: Brokers, seen_by: str) -> ClusterView:
    return Overview(brokers.processes[seen_by].cluster, {}, None).snapshot()


def state(brokers: Brokers, of: str, seen_by: str) -> str:
    return next(node.state for node in view(brokers, seen_by).nodes if node.id == of)


def test_a_node_says_that_it_waits_for_etcd(brokers: Brokers, monkeypatch: pytest.MonkeyPatch) -> None:
    """It tries twice a second, and repeats itself once a minute."""
    problem = "no leader"

    async def refuses(store: MetadataInMemory, ttl_s: int) -> int:
        raise StoreError(problem)

    monkeypatch.setattr(MetadataInMemory, "grant", refuses)
    one = brokers.processes["one"]
    one.start()
    brokers.run_for(10.0)
    waits = "waits for etcd, of whose members a majority must run and reach each other: "
    assert view(brokers, "one").state == "joining" and view(brokers, "one").reason == waits + "no leader"
    problem = "no connection"
    brokers.run_for(100.0)
    assert view(brokers, "one").reason == waits + "no connection"
    said = [text for level, text, _ in one.log if level == "warning"]
    assert said == [f"this node {waits}{why}. It goes on trying" for why in (
        "no leader", "no connection", "no connection")]
    monkeypatch.undo()
    brokers.run_until(lambda: one.serving)
    assert view(brokers, "one").reason == "" and not one.cluster.waits


def test_a_node_that_cannot_register_says_that_etcd_is_full(brokers: Brokers) -> None:
    brokers.store.counts.full = True
    brokers.processes["one"].start()
    brokers.run_for(2.0)
    assert view(brokers, "one").reason == "cannot register in etcd: the store has no space"


def test_the_others_say_whether_a_node_joins_serves_or_leaves(brokers: Brokers) -> None:
    brokers.start("one")
    two = brokers.processes["two"]
    two.start()
    brokers.run_until(lambda: "two" in brokers.processes["one"].cluster.membership.nodes)
    states = [state(brokers, "two", "one")]
    brokers.run_until(lambda: two.serving)
    brokers.run_for(1.0)
    states.append(state(brokers, "two", "one"))
    assert state(brokers, "one", "two") == "serving"
    two.cluster.begin_leaving()
    brokers.run_for(1.0)
    states.append(state(brokers, "two", "one"))
    brokers.kill("two")
    brokers.store.end_lease(two.cluster.membership.lease)
    brokers.run_for(1.0)
    assert [*states, *(node.id for node in view(brokers, "one").nodes)] == ["joining", "serving", "leaving", "one"]


def test_what_the_disk_says_of_queues_is_not_the_cluster_s_word(brokers: Brokers, monkeypatch: pytest.MonkeyPatch,
                                                                ) -> None:
    """While this node was away, a queue may have been deleted, and another one made: until it has joined, nothing is
    promised, and no queue is said to be missing."""
    for name in ("one", "two"):
        brokers.start(name)
    brokers.run_until(lambda: all(process.serving for process in brokers.processes.values()))
    one = brokers.processes["one"]
    here = QueueAdmin(one.node.manager)
    for number in range(4):
        do(brokers, "two", lambda node, number=number: node.manager.declare(QueueSpec(name=f"q{number}")))
    name = next(f"q{number}" for number in range(4) if one.node.manager.queues[b"/", b"q%d" % number].here)
    here.publish(name, Publish(payload=b"x"))
    brokers.run_for(1.0)
    brokers.kill("one")

    async def refuses(store: MetadataInMemory, ttl_s: int) -> int:
        raise StoreError("no leader")

    monkeypatch.setattr(MetadataInMemory, "grant", refuses)
    one.start()
    brokers.run_for(2.0)
    here = QueueAdmin(one.node.manager)
    assert here.describe(name)["messages"] == 1     # it is on its disk
    for ask in (lambda: here.publish(name, Publish(payload=b"y")), lambda: here.purge(name),
                lambda: here.describe("other"), lambda: here.seek(name, "g", "first", None),
                lambda: here.delete_group(name, "g"), lambda: here.dead_replay(name, None, 1),
                lambda: here.dead_purge(name)):
        with pytest.raises(QueueRefused, match="is joining its cluster") as refused:
            ask()
        assert refused.value.kind == "unavailable"
    monkeypatch.undo()
    brokers.run_until(lambda: one.serving)
    here = QueueAdmin(one.node.manager)
    here.publish(name, Publish(payload=b"y"))
    with pytest.raises(QueueRefused, match="there is no queue other"):
        here.describe("other")
