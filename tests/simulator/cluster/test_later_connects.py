"""Of the CONNECTs of one client identifier the latest gets the session, at whatever nodes they are, and whichever is
faster; and one whose connection has ended displaces nobody."""
from __future__ import annotations

import random

import pytest
from kit.sizes import some
from simulator.cluster.brokers import Brokers, Client
from simulator.cluster.test_takeover import NAMES, connected, serving

from fluxmq._core.errors import ProtocolError
from fluxmq.cluster.takes import NOBODY

DELAY_MS = 30       # of a message between two nodes, at most: for so long a CONNECT may seem to be later than it is


def with_session(brokers: Brokers, at: str = "one") -> None:
    """There is a session of c, whose client has left."""
    client = connected(brokers, at, "c", clean_start=False, expiry_s=1000)
    packet_id = client.subscribe("t", 1)
    brokers.run_until(lambda: client.acknowledged(packet_id))
    client.leave()
    brokers.run_for(0.5)


def asking(brokers: Brokers, at: str, **how: bool) -> Client:
    """A client that has sent CONNECT there."""
    client = brokers.client(at, "c")
    client.connect(**{"clean_start": False, **how}, expiry_s=1000)
    return client


def served_by(brokers: Brokers) -> list[str]:
    return [name for name, broker in brokers.processes.items()
            for session in broker.node.broker.sessions.values()
            if session.name == b"c" and session.data.connection is not None]


@pytest.mark.parametrize("clean", [False, True], ids=["", "clean start"])
def test_a_connect_that_is_slower_than_a_later_one_does_not_displace_it(clean: bool) -> None:
    brokers = serving()
    with_session(brokers)
    brokers.network.stall("two", "one")
    slow = asking(brokers, "two", clean_start=clean)
    brokers.run_for(0.2)
    later = asking(brokers, "three")
    brokers.run_for(1.0)
    brokers.network.heal()
    brokers.run_for(5.0)
    assert later.connected and not later.ended
    assert served_by(brokers) == ["three"]
    assert [connack.reason for connack in slow.connacks] == [0x89] and not slow.open


def test_a_client_that_connects_again_to_the_owner_keeps_the_session() -> None:
    """The call of the other node is on its way meanwhile."""
    brokers = serving()
    with_session(brokers)
    brokers.network.stall("two", "one")
    slow = asking(brokers, "two")
    brokers.run_for(0.2)
    later = connected(brokers, "one", "c", clean_start=False, expiry_s=1000)
    brokers.network.heal()
    brokers.run_for(5.0)
    assert later.connected and served_by(brokers) == ["one"]
    assert [connack.reason for connack in slow.connacks] == [0x89]


def test_the_later_one_gets_the_session_from_the_earlier_one_that_was_faster() -> None:
    brokers = serving()
    with_session(brokers)
    brokers.network.link("three", "one").delay_ms = (500, 500)      # so the first takeover takes so long
    first = asking(brokers, "two")
    brokers.run_for(0.05)
    later = asking(brokers, "one")
    brokers.run_for(5.0)
    assert later.connected and served_by(brokers) == ["one"]
    assert not first.open


def test_for_a_client_that_has_gone_nothing_is_taken_from_one_that_is_there() -> None:
    brokers = serving()
    with_session(brokers)
    brokers.network.link("three", "one").delay_ms = (500, 500)
    first = asking(brokers, "two")
    brokers.run_for(0.05)
    gone = asking(brokers, "one")
    brokers.run_for(0.05)
    gone.leave()
    brokers.run_for(5.0)
    assert first.connected and not first.ended
    assert served_by(brokers) == ["two"]
    assert not brokers.processes["one"].cluster.holdings.owners.takes.attempts


def test_a_client_that_goes_while_its_node_asks_displaces_nobody() -> None:
    """Its node hears of the other client, which has been there for longer, when it has gone itself."""
    brokers = serving()
    first = connected(brokers, "one", "c", clean_start=False, expiry_s=1000)
    brokers.network.link("one", "two").delay_ms = (100, 100)
    gone = asking(brokers, "two")
    brokers.run_for(0.05)
    gone.leave()
    brokers.run_for(5.0)
    assert first.connected and served_by(brokers) == ["one"]


def test_a_session_that_has_moved_for_a_client_that_has_gone_is_there_for_the_next() -> None:
    brokers = serving()
    with_session(brokers)
    brokers.network.link("three", "one").delay_ms = (500, 500)
    gone = asking(brokers, "two")
    brokers.run_for(0.05)
    gone.leave()
    brokers.run_for(0.05)
    later = asking(brokers, "three")
    brokers.run_until(lambda: later.connected, 2.0)
    assert later.connacks[-1].session_present
    brokers.run_for(15.0)
    assert later.connected and served_by(brokers) == ["three"]


def test_a_session_is_kept_for_a_client_that_is_about_to_get_it() -> None:
    """A call comes between the change of the owner's key and the CONNACK."""
    brokers = serving()
    with_session(brokers)
    brokers.network.stall("three", "one")
    earlier = asking(brokers, "three")
    brokers.run_for(0.1)
    two = brokers.processes["two"]
    brokers.network.heal()
    two.process.driver.start(two.cluster.holdings.owners.take((b"/", b"c"), False, two.process.now_ms()))
    brokers.run_until(lambda: earlier.connacks, 5.0)
    assert [connack.reason for connack in earlier.connacks] == [0x89]
    assert two.cluster.holdings.owners.owned_epoch((b"/", b"c"))
    later = asking(brokers, "three")
    brokers.run_until(lambda: later.connected, 5.0)


def test_what_a_leaving_node_asks_for_displaces_nobody() -> None:
    """Its client has connected to a third node before the second has heard of it."""
    brokers = serving()
    client = connected(brokers, "three", "c", clean_start=False, expiry_s=1000)
    two = brokers.processes["two"]
    said: list[str] = []

    async def take() -> None:
        try:
            await two.cluster.holdings.owners.take((b"/", b"c"), False, NOBODY)
        except ProtocolError as error:
            said.append(str(error))

    two.process.driver.start(take())
    brokers.run_until(lambda: said)
    assert said == ["the client has connected to node three since"]
    assert client.connected
    client.leave()
    brokers.run_for(0.5)
    two.process.driver.start(take())
    brokers.run_for(1.0)
    assert len(said) == 1 and two.cluster.holdings.owners.owned_epoch((b"/", b"c"))


@pytest.mark.parametrize("seed", some(16, range(40)))
def test_the_last_one_gets_it_whatever_the_others_do(seed: int) -> None:
    """Connections of the others are closed, or forgotten, before their CONNACK or behind it."""
    brokers = serving(seed)
    chance = random.Random(seed)
    for source in NAMES:
        for target in NAMES:
            brokers.network.link(source, target).delay_ms = (0, chance.choice((1, DELAY_MS)))
    for _ in range(4):
        others = []
        for _ in range(chance.randrange(1, 7)):
            others.append(asking(brokers, chance.choice(NAMES), clean_start=chance.random() < 0.2))
            brokers.run_for(chance.choice((0, 0.001, 0.01, 0.05)))
            if chance.random() < 0.3 and (closed := chance.choice(others)).open:
                closed.leave()
            if chance.random() < 0.05:
                brokers.break_streams()
        brokers.run_for(2 * DELAY_MS / 1000)
        last = asking(brokers, chance.choice(NAMES))
        brokers.run_for(chance.choice((0, 0.01, 0.1)))
        for other in others:
            if other.open and chance.random() < 0.5:
                other.leave()
        brokers.run_until(lambda last=last: last.connected)      # type: ignore[misc]
        brokers.run_for(chance.choice((0.1, 3.0)))
        assert last.connected, (last.at, last.ended)
        assert served_by(brokers) == [last.at]
