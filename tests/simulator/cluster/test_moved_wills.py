"""The will of a session that moves to another node: it is published once, wherever its session is when it is due."""
from __future__ import annotations

import pytest
from simulator.cluster.brokers import Brokers
from simulator.cluster.test_brokers import connected, serving
from simulator.cluster.test_takeover import hop
from simulator.cluster.test_wills import KEY, died, lose_connection, will

from fluxmq.cluster.will_table import StoredWill, _decode


def stored(brokers: Brokers) -> StoredWill | None:
    item = brokers.store.items.get(KEY)
    return None if item is None else _decode(item.value)


@pytest.mark.parametrize("dies", ["one", "two"])
@pytest.mark.parametrize("delay_s", [0, 10])
def test_a_will_is_published_once_by_whoever_has_the_session(delay_s: int, dies: str) -> None:
    brokers = serving("one", "two", "three")
    reader = connected(brokers, "three", "r")
    reader.subscribe("w", 1)
    client = connected(brokers, "one", "c", clean_start=False, expiry_s=1000, will=will(delay_s))
    hop(brokers, client, "two")
    brokers.run_for(2.0)
    # A will without delay is published at a takeover; one with a delay is replaced by what CONNECT has: none.
    assert reader.messages == ([] if delay_s else [("w", b"gone")])
    assert stored(brokers) is None
    died(brokers, dies)
    brokers.run_for(30.0)
    assert reader.messages == ([] if delay_s else [("w", b"gone")])


def test_a_will_whose_delay_runs_moves_with_the_session() -> None:
    """The client that moves the session does not stay until its CONNACK: nobody is there when the delay ends."""
    brokers = serving("one", "two", "three")
    reader = connected(brokers, "three", "r")
    reader.subscribe("w", 1)
    client = connected(brokers, "one", "c", clean_start=False, expiry_s=1000, will=will(5))
    lose_connection(client)
    brokers.run_for(2.0)
    two = brokers.processes["two"]
    two.process.driver.start(two.cluster.holdings.owners.take((b"/", b"c"), False, two.process.now_ms()))
    brokers.run_for(2.0)
    kept = stored(brokers)
    assert kept is not None and kept.node == "two" and not reader.messages
    brokers.run_for(2.0)
    assert reader.messages == [("w", b"gone")] and stored(brokers) is None
    died(brokers, "one")
    brokers.run_for(30.0)
    assert reader.messages == [("w", b"gone")]
