"""Histories in which the disk of a node hangs: calls do not return, and nothing errs.

A short time holds up what waits for the disk, and nothing else. After `disk_timeout` the node gives its lease up and
serves nobody, the others take over, and nothing that was acknowledged is lost. When the disk goes on the node comes
back as after a crash.
"""
from __future__ import annotations

import pytest
from kit.sizes import some
from simulator.cluster.test_adoption import NAMES, History, back

__all__ = ["run"]

LIMIT_S = 4.0
WRITER_S = 0.01  # between two steps of the journal's writer: the history is long
LOOKS_S = 2.0   # between the looks of the keeper and of the membership, together


def _limit(history: History) -> None:
    """How long the disks of all nodes may hang, in this life and in later ones."""
    history.brokers.disk_s, history.brokers.writer_s = LIMIT_S, WRITER_S
    for broker in history.brokers.processes.values():
        broker.cluster.settings = broker.cluster.settings._replace(disk_s=LIMIT_S)


def _last_for(history: History, seconds: float) -> None:
    """Publishers go on for so long."""
    end = history.brokers.world.now + seconds
    while history.brokers.world.now < end:
        history.publish_somewhere()
        history.brokers.run_for(history.chance.choice((0.001, 0.1, 0.4)))


def run(seed: int) -> None:
    """The disk of the node hangs that has the reader's session, connected or not."""
    history = History(seed)
    brokers, chance = history.brokers, history.chance
    _limit(history)
    one = brokers.processes["one"]
    history.pass_time(8)
    if chance.random() < 0.5:
        history.reader.leave()
        history.pass_time(chance.randrange(4))
    # A batch may be on its way to the disk, and another gather, or neither.
    brokers.run_for(chance.choice((0.0, 0.0005, 0.02)))
    one.hang()
    known = {payload for series in history.sent.values() for payload in series}
    history.publish("one", 2)
    brokers.run_for(0.01)
    long = chance.random() < 0.7
    if not long:
        _last_for(history, chance.uniform(0.0, LIMIT_S - LOOKS_S))
        assert not one.fences, "a short pause of the disk has cost the node its lease"
        told = {payload for payload in history.acknowledged - known if payload.startswith(b"one")}
        assert not told, f"acknowledged without the disk: {told}"
    else:
        _last_for(history, LIMIT_S + LOOKS_S)
        assert one.fences == 1 and not one.cluster.membership.may_serve(), "the lease outlives the disk"
        told = {payload for payload in history.acknowledged - known if payload.startswith(b"one")}
        assert not told, f"acknowledged without the disk: {told}"
        if chance.random() < 0.7:       # the others have the session, while the disk still hangs
            back(brokers, history.reader, lambda: chance.choice(("two", "three")))
            _last_for(history, chance.uniform(0.0, 3.0))
    one.go_on()
    brokers.run_until(lambda: all(broker.serving for broker in brokers.processes.values()), 60.0)
    if long:
        publisher = brokers.client("one", "p-one")
        publisher.packet_id = history.publishers["one"].packet_id
        publisher.connect()
        brokers.run_until(lambda: publisher.connected)
        history.publishers["one"] = publisher
    history.pass_time(chance.randrange(8))
    back(brokers, history.reader, lambda: chance.choice(NAMES))
    history.pass_time(4)
    brokers.run_for(4.0)
    assert one.fences == int(long)
    history.check(ordered=False)


@pytest.mark.parametrize("seed", some(6, range(40)))
def test_a_disk_hangs_and_goes_on(seed: int) -> None:
    run(seed)


def test_a_slow_disk_costs_no_lease() -> None:
    """Six seconds, with the default: what waits for the disk waits, and is acknowledged then."""
    history = History(1)
    brokers = history.brokers
    brokers.writer_s = WRITER_S
    one = brokers.processes["one"]
    history.pass_time(4)
    for _ in range(2):
        one.hang()
        history.publish("one", 3)
        _last_for(history, 6.0)
        one.go_on()
        history.pass_time(4)
    brokers.run_for(2.0)
    assert not any(broker.fences for broker in brokers.processes.values())
    assert not [payload for payload, _ in history.waits.values() if payload.startswith(b"one")]
    assert [level for level, text, _ in one.log if "disk has not completed" in text] == ["warning"] * 2
    assert sum("completes writes again" in text for _, text, _ in one.log) == 2
    history.check()
