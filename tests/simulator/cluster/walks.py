"""The walks of two operations through three simulated nodes: which files they enter how often (kit/walk.py).

    cd tests && python -m simulator.cluster.walks [rows]

`takeover`: a CONNECT at node two takes a persistent session with one subscription over from node one, from its bytes to
its CONNACK. `move`: at node one, `queue move` brings a queue with ten messages from there to node two. Node three takes
no part in either, but hears of both.
"""
from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from types import FrameType

from kit.walk import Walk
from simulator.cluster.brokers import BrokerProcess
from simulator.cluster.test_brokers import connected, serving
from simulator.cluster.test_queue_moves import fill, move
from simulator.cluster.test_queues import NAMES, share

__all__ = ["PART", "WALKS"]

PART = frozenset({"one", "two"})  # nodes that take part


def takeover() -> Walk:
    """See the top of the file."""
    brokers = serving(*NAMES)
    client = connected(brokers, "one", "c", clean_start=False, expiry_s=1000)
    packet_id = client.subscribe("t/#", 1)
    brokers.run_until(lambda: client.acknowledged(packet_id))
    brokers.run_for(1.0)
    with Walk(_node_of(brokers.processes.values())) as walk:
        client.connect(at="two", clean_start=False, expiry_s=1000)
        brokers.run_until(lambda: client.connected)
    return walk


def queue_move() -> Walk:
    """See the top of the file."""
    brokers = serving(*NAMES)
    share(brokers, "one")
    fill(brokers, connected(brokers, "three", "p"), 10)
    brokers.run_for(1.0)
    with Walk(_node_of(brokers.processes.values())) as walk:
        work = move(brokers, "two")
        brokers.run_until(work.done)
    assert work.result() is None
    return walk


WALKS: dict[str, Callable[[], Walk]] = {"takeover": takeover, "move": queue_move}


def _node_of(brokers: Iterable[BrokerProcess]) -> Callable[[FrameType], str]:
    """A frame belongs to a node whose driver, broker or process it is a method of."""
    names = {id(part): broker.name for broker in brokers for part in (
        broker, broker.process, broker.process.driver, broker.node)}
    return lambda frame: names.get(id(frame.f_locals.get("self")), "")


if __name__ == "__main__":
    for name, walk_of in WALKS.items():
        walk = walk_of()
        for who, nodes in (("all nodes", None), ("nodes that take part", PART)):
            print(f"\n{name}, {who}:")
            print(*walk.table(nodes, int(sys.argv[1]) if sys.argv[1:] else 25), sep="\n")
