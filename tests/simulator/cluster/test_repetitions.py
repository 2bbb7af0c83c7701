"""QoS 2 across nodes: a publisher whose node dies between any two packets of an exchange goes on at another one, uses
the same packet identifier again at once, and every subscriber gets each message once."""
from __future__ import annotations

import random
from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import Any

import pytest
from kit.sizes import some
from oracle.mqtt import Packet, Pubcomp, Publish, Pubrec, Pubrel
from simulator.cluster.brokers import Brokers, Client
from simulator.cluster.test_brokers import connected, serving

from fluxmq.cluster.messages import Switch, tail_of
from fluxmq.cluster.peers import Peer
from fluxmq.cluster.takeover import Takeovers
from fluxmq.engine.sessions.transfer import Departure

NAMES = ("one", "two", "three")
ID = 1
GIVEN_UP_S = 35.0       # behind route_publish_timeout


class Publisher(Client):
    """Sends a PUBREL only when the test says so."""

    releasing = False

    def send(self, packet: Packet) -> None:
        if not isinstance(packet, Pubrel) or self.releasing:
            super().send(packet)

    def offer(self, payload: bytes, *, again: bool = False) -> None:
        self.send(Publish(topic="t", payload=payload, qos=2, packet_id=ID, dup=again))

    def release(self) -> None:
        self.releasing = True
        self.send(Pubrel(packet_id=ID))
        self.releasing = False

    def has(self, kind: type[Packet]) -> bool:
        return any(packet.packet_id == ID for packet in self.of(kind))

    def forget(self, *kinds: type[Packet]) -> None:
        self.got = [packet for packet in self.got if not isinstance(packet, kinds)]


def persistent(brokers: Brokers, at: str, name: str, filter_: str = "t") -> Client:
    client = connected(brokers, at, name, clean_start=False, expiry_s=1000)
    packet_id = client.subscribe(filter_, 2)
    brokers.run_until(lambda: client.acknowledged(packet_id))
    return client


def publisher_at(brokers: Brokers, at: str) -> Publisher:
    client = Publisher(brokers, at, "p")
    brokers.clients.append(client)
    client.connect(clean_start=False, expiry_s=1000)
    brokers.run_until(lambda: client.connected)
    return client


def comes_back(brokers: Brokers, client: Client, names: list[str]) -> None:
    """To one of these nodes, to the first that takes it."""
    for _ in range(60):
        before = len(client.connacks)
        client.connect(at=names[0], clean_start=False, expiry_s=1000)
        brokers.world.holds_within(lambda: len(client.connacks) > before or not client.open, 5.0)   # noqa: B023
        if client.connected:
            assert client.connacks[-1].session_present
            return
        names = [*names[1:], names[0]]
        brokers.run_for(0.5)
    raise AssertionError("no node takes the client")


def until(brokers: Brokers, client: Publisher, kind: type[Packet]) -> bool:
    """Whether the answer comes before the connection ends."""
    brokers.run_until(lambda: client.has(kind) or not client.open, 40.0)
    return client.has(kind)


def received(client: Client) -> list[bytes]:
    """The messages that a client passes on: a PUBLISH under an identifier without PUBREL is a repetition."""
    found, unreleased = [], set()
    for packet in client.got:
        if isinstance(packet, Publish) and packet.packet_id not in unreleased:
            found.append(packet.payload)
            unreleased.add(packet.packet_id)
        elif isinstance(packet, Pubrel):
            unreleased.discard(packet.packet_id)
    return found


class History:
    """Of one publisher, on nodes that die and come back at once. Readers are on another node: what a node had not
    acknowledged when it died is kept for its sessions, and it may have had it."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.brokers = serving(*NAMES, seed=seed)
        self.readers = {"three": persistent(self.brokers, "three", "s")}
        self.publisher = publisher_at(self.brokers, "one")

    def strike(self) -> None:
        """Perhaps a node dies now, and comes back at once."""
        chance, brokers = self.chance, self.brokers
        brokers.run_for(chance.choice((0, 0.0005, 0.001, 0.0015, 0.002, 0.003, 0.005)))
        if chance.random() < 0.4:
            brokers.kill(self.publisher.at)
            brokers.run_for(0.05)
            brokers.start(self.publisher.at)
        elif chance.random() < 0.2:
            brokers.break_streams()

    def restart(self) -> None:
        """Perhaps a reader's node: it has the message, and has said so."""
        if self.chance.random() < 0.15:
            victim = self.chance.choice(list(self.readers))
            self.brokers.run_for(0.1)
            self.brokers.kill(victim)
            self.brokers.run_for(0.05)
            self.brokers.start(victim)
            comes_back(self.brokers, self.readers[victim], [victim])

    def again(self) -> None:
        if not self.publisher.open:
            comes_back(self.brokers, self.publisher, self.chance.sample(("one", "two"), 2))

    def offer(self, payload: bytes, *, again: bool) -> int:
        """Until PUBREC. Returns how often that took."""
        publisher, times = self.publisher, 0
        while not publisher.has(Pubrec):
            self.again()
            publisher.offer(payload, again=again)
            again, times = True, times + 1
            self.strike()
            until(self.brokers, publisher, Pubrec)
        assert [packet.reason for packet in publisher.of(Pubrec) if packet.reason >= 0x80] == []
        return times

    def one(self, payload: bytes) -> None:
        publisher = self.publisher
        publisher.forget(Pubrec, Pubcomp)
        times = self.offer(payload, again=False)
        # Not when the publisher's node has died in this exchange, too: docs/internals/cluster.md, Limits.
        if repeats := times == 1 and publisher.open and self.chance.random() < 0.5:
            self.brokers.run_for(3.0)
        self.restart()
        if repeats:
            self.brokers.run_for(3.0)
            publisher.forget(Pubrec)            # as if it had not reached the client
            self.offer(payload, again=True)
        while not publisher.has(Pubcomp):
            self.again()
            publisher.release()
            self.strike()
            until(self.brokers, publisher, Pubcomp)


class Adopted(History):
    """The publisher's node stays dead until the exchange has ended, so its session is adopted."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.brokers = serving(*NAMES, "four", seed=seed)
        self.readers = {at: persistent(self.brokers, at, f"s-{at}") for at in ("three", "four")}
        self.publisher = publisher_at(self.brokers, "one")
        self.dead = ""
        self.struck = False

    def strike(self) -> None:
        chance, brokers, at = self.chance, self.brokers, self.publisher.at
        brokers.run_for(chance.choice((0, 0.0005, 0.001, 0.0015, 0.002, 0.003, 0.005)))
        if self.struck or chance.random() < 0.5:
            return
        self.struck = True
        self.dead = at
        brokers.kill(at)
        brokers.run_for(0.2)
        brokers.end_lease_of(at)

    def again(self) -> None:
        if not self.publisher.open:
            comes_back(self.brokers, self.publisher, ["two" if self.dead == "one" else "one"])

    def one(self, payload: bytes) -> None:
        super().one(payload)
        self.struck = False
        if self.dead:
            self.brokers.start(self.dead)
            self.dead = ""


@pytest.mark.parametrize("seed", some(6, range(16)))
def test_a_publisher_whose_session_is_adopted_is_heard_once(seed: int) -> None:
    history = Adopted(seed)
    sent = [b"%d" % number for number in range(6)]
    for payload in sent:
        history.one(payload)
    history.brokers.run_for(3.0)
    assert {at: received(reader) for at, reader in history.readers.items()} == {
        at: sent for at in history.readers}


def test_what_was_refused_does_not_count_as_the_next_message_under_its_identifier() -> None:
    """It comes late, from the node that the session was on before, and its release behind it."""
    brokers = serving(*NAMES)
    reader = persistent(brokers, "two", "s")
    publisher = publisher_at(brokers, "one")
    brokers.network.stall("one", "two")
    publisher.offer(b"refused")
    assert until(brokers, publisher, Pubrec) and publisher.of(Pubrec)[0].reason == 0x80
    publisher.forget(Pubrec)
    comes_back(brokers, publisher, ["three"])
    publisher.offer(b"next")
    assert until(brokers, publisher, Pubrec) and not publisher.of(Pubrec)[0].reason
    brokers.network.heal()
    brokers.run_for(1.0)
    brokers.kill("three")                       # before the client has heard anything, as far as it knows
    brokers.run_for(0.2)
    brokers.end_lease_of("three")
    comes_back(brokers, publisher, ["one"])
    publisher.offer(b"next", again=True)
    publisher.forget(Pubrec)
    assert until(brokers, publisher, Pubrec)
    brokers.run_for(1.0)
    assert sorted(received(reader)) == [b"next", b"refused"]


@pytest.mark.parametrize("to", NAMES)
def test_what_was_given_up_after_its_client_had_left_is_heard_once(to: str) -> None:
    """A node that has it did not acknowledge it in time, and the client does not know that."""
    brokers = serving(*NAMES)
    readers = [persistent(brokers, at, f"s-{at}") for at in NAMES]
    publisher = publisher_at(brokers, "one")
    brokers.network.stall("two", "one")
    publisher.offer(b"x")
    brokers.run_for(0.1)
    publisher.leave()
    brokers.run_for(GIVEN_UP_S)
    brokers.network.heal()
    brokers.run_for(1.0)
    comes_back(brokers, publisher, [to])
    publisher.offer(b"x", again=True)
    brokers.run_until(lambda: publisher.has(Pubrec))
    brokers.run_for(1.0)
    assert [[payload for _, payload in reader.messages] for reader in readers] == [[b"x"]] * 3


@pytest.mark.parametrize("to", NAMES)
def test_what_was_given_up_behind_what_ended_the_connection_is_heard_once(to: str) -> None:
    """The connection ends because PUBCOMP of another exchange cannot be sent. The client hears nothing of the PUBLISH
    behind it, so that one is not refused: it comes again, to the same node or to another one."""
    brokers = serving(*NAMES)
    subscriber = persistent(brokers, "two", "s")
    publisher = publisher_at(brokers, "one")
    brokers.network.stall("two", "one", back=False)
    publisher.releasing = True
    publisher.send(Pubrel(packet_id=99))        # of an exchange that a node may know of which died
    publisher.releasing = False
    publisher.offer(b"1")
    brokers.run_until(lambda: not publisher.open, limit_s=GIVEN_UP_S)
    brokers.network.heal()
    assert not publisher.has(Pubrec)
    publisher.connect(at=to, clean_start=False, expiry_s=1000)
    brokers.run_until(lambda: publisher.connected)
    publisher.offer(b"1", again=True)
    brokers.run_until(lambda: publisher.has(Pubrec))
    publisher.release()
    brokers.run_for(2.0)
    assert [payload for _, payload in subscriber.messages] == [b"1"]


@pytest.mark.parametrize("shared", [False, True])
def test_a_copy_that_is_late_counts_for_nothing_when_its_publisher_has_moved_and_released_it(shared: bool) -> None:
    """The former node's copies stand still on their way, the next node's do not."""
    brokers = serving(*NAMES)
    reader = persistent(brokers, "two", "s", "$share/g/t" if shared else "t")
    publisher = publisher_at(brokers, "one")
    brokers.run_for(0.5)
    brokers.network.stall("one", "two", back=False)
    publisher.offer(b"first")
    brokers.run_for(0.1)
    publisher.leave()
    comes_back(brokers, publisher, ["three"])
    for payload, again in ((b"first", True), (b"second", False)):
        exchange(brokers, publisher, payload, again=again)
        released(brokers, publisher)
    brokers.network.heal()
    brokers.run_for(2.0)
    assert sorted(received(reader)) == [b"first", b"second"]
    takeovers = brokers.processes["two"].cluster.holdings.takeovers
    assert not takeovers.late_copies and not brokers.processes["two"].node.hub.origins.expecting


def test_no_copies_are_expected_when_the_former_node_was_faster_than_the_next_one() -> None:
    """Its Cut comes ahead of the Switch of the node to which the publisher has moved."""
    brokers = serving(*NAMES)
    publisher = publisher_at(brokers, "one")
    brokers.run_for(0.5)
    brokers.network.stall("three", "two", back=False)
    publisher.leave()
    comes_back(brokers, publisher, ["three"])
    takeovers = brokers.processes["two"].cluster.holdings.takeovers
    brokers.run_until(lambda: takeovers._cut_early)
    brokers.network.heal()
    brokers.run_for(2.0)
    assert not takeovers._cut_early and not takeovers.late_copies
    assert not brokers.processes["two"].node.hub.origins.expecting


def test_a_node_that_does_not_hear_that_a_message_was_refused_takes_the_next_one() -> None:
    """It has the message, and could not say so. The publisher's node dies; the next one does not know the uses."""
    brokers = serving(*NAMES)
    reader = persistent(brokers, "two", "s")
    publisher = publisher_at(brokers, "one")
    brokers.network.stall("two", "one", back=False)
    publisher.offer(b"refused")
    brokers.run_until(lambda: reader.messages)
    brokers.network.stall("one", "two")
    assert until(brokers, publisher, Pubrec) and publisher.of(Pubrec)[0].reason == 0x80
    brokers.kill("one")
    brokers.network.heal()
    brokers.run_for(0.2)
    brokers.end_lease_of("one")
    comes_back(brokers, publisher, ["three"])
    publisher.forget(Pubrec)
    publisher.offer(b"next")
    assert until(brokers, publisher, Pubrec) and not publisher.of(Pubrec)[0].reason
    brokers.run_for(1.0)
    assert received(reader) == [b"refused", b"next"]


@pytest.mark.parametrize("seed", some(8, range(24)))
def test_a_publisher_whose_node_dies_between_two_packets_is_heard_once(seed: int) -> None:
    history = History(seed)
    sent = [b"%d" % number for number in range(8)]
    for payload in sent:
        history.one(payload)
    history.brokers.run_for(3.0)
    assert {at: received(reader) for at, reader in history.readers.items()} == {
        at: sent for at in history.readers}


def test_pubcomp_waits_until_the_nodes_that_have_the_message_know_of_the_release() -> None:
    brokers = serving(*NAMES)
    reader = persistent(brokers, "two", "s")
    publisher = publisher_at(brokers, "one")
    publisher.offer(b"x")
    assert until(brokers, publisher, Pubrec) and len(brokers.processes["two"].node.hub.origins) == 1
    brokers.network.stall("one", "two")
    publisher.release()
    brokers.run_for(0.8)
    assert not publisher.has(Pubcomp)
    brokers.network.heal()
    assert until(brokers, publisher, Pubcomp)
    assert not any(len(broker.node.hub.origins) for broker in brokers.processes.values())
    assert received(reader) == [b"x"]


def test_nobody_is_asked_about_what_no_other_node_got() -> None:
    brokers = serving(*NAMES)
    reader = persistent(brokers, "one", "s")
    publisher = publisher_at(brokers, "one")
    brokers.network.stall("one", "two")
    for _ in range(2):
        publisher.offer(b"x")
        assert until(brokers, publisher, Pubrec)
        publisher.release()
        brokers.run_until(partial(publisher.has, Pubcomp), 0.5)
        publisher.forget(Pubrec, Pubcomp)
    assert len(received(reader)) == 2 and not len(brokers.processes["one"].node.hub.origins)


def test_publishers_without_a_persistent_session_have_no_origin() -> None:
    brokers = serving(*NAMES)
    persistent(brokers, "two", "s")
    publisher = Publisher(brokers, "one", "p")
    brokers.clients.append(publisher)
    publisher.connect()
    brokers.run_until(lambda: publisher.connected)
    publisher.offer(b"x")
    assert until(brokers, publisher, Pubrec)
    assert not any(len(broker.node.hub.origins) for broker in brokers.processes.values())


# ---------------------------------------------------------------- sessions that move

def moves(brokers: Brokers, client: Client, to: str) -> None:
    client.connect(at=to, clean_start=False, expiry_s=1000)
    brokers.run_until(lambda: client.connected)
    assert client.connacks[-1].session_present


def dies(brokers: Brokers, name: str) -> None:
    brokers.kill(name)
    brokers.run_for(0.2)
    brokers.end_lease_of(name)


def exchange(brokers: Brokers, publisher: Publisher, payload: bytes, *, again: bool = False) -> None:
    """Up to PUBREC."""
    publisher.forget(Pubrec, Pubcomp)
    publisher.offer(payload, again=again)
    assert until(brokers, publisher, Pubrec) and not publisher.of(Pubrec)[0].reason


def released(brokers: Brokers, publisher: Publisher) -> None:
    publisher.release()
    assert until(brokers, publisher, Pubcomp)


@pytest.mark.parametrize("then", ["two", "four"])
def test_a_subscriber_that_has_moved_does_not_get_a_message_again(then: str) -> None:
    """Its former node knows the message, and the new one does not."""
    brokers = serving(*NAMES, "four")
    reader = persistent(brokers, "two", "s")
    publisher = publisher_at(brokers, "one")
    exchange(brokers, publisher, b"1")
    brokers.run_until(lambda: reader.messages)
    moves(brokers, reader, "three")
    dies(brokers, "one")
    comes_back(brokers, publisher, [then])
    exchange(brokers, publisher, b"1", again=True)
    released(brokers, publisher)
    exchange(brokers, publisher, b"2")
    released(brokers, publisher)
    brokers.run_for(1.0)
    assert received(reader) == [b"1", b"2"]
    assert not any(len(brokers.processes[name].node.hub.origins) for name in (*NAMES[1:], "four"))


def test_a_subscriber_that_moves_on_does_not_get_a_message_again() -> None:
    brokers = serving(*NAMES, "four")
    reader = persistent(brokers, "two", "s")
    publisher = publisher_at(brokers, "one")
    exchange(brokers, publisher, b"1")
    for to in ("three", "four", "two", "three"):
        moves(brokers, reader, to)
    dies(brokers, "one")
    comes_back(brokers, publisher, ["four"])
    exchange(brokers, publisher, b"1", again=True)
    brokers.run_for(1.0)
    assert received(reader) == [b"1"]


def test_what_was_released_while_a_subscriber_moves_is_not_brought(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next message under the identifier is new, although its publisher's node does not know its use."""
    brokers = serving(*NAMES)
    reader = persistent(brokers, "two", "s")
    publisher = publisher_at(brokers, "one")
    exchange(brokers, publisher, b"1")
    brokers.run_until(lambda: reader.messages)
    brought, had = [], Departure.had

    def had_and_stalled(departure: Departure) -> list[tuple[int, int, int]]:
        brokers.network.stall("two", "three")
        brought.append(had(departure))
        return brought[-1]

    monkeypatch.setattr(Departure, "had", had_and_stalled)
    reader.connect(at="three", clean_start=False, expiry_s=1000)
    brokers.run_until(lambda: brought)
    assert len(brought[0]) == 1
    released(brokers, publisher)
    brokers.network.heal()
    brokers.run_until(lambda: reader.connected)
    dies(brokers, "one")
    comes_back(brokers, publisher, ["two"])
    exchange(brokers, publisher, b"2")
    brokers.run_for(1.0)
    assert received(reader) == [b"1", b"2"]


@pytest.mark.parametrize("late", [False, True])
def test_a_subscriber_that_was_let_in_without_a_node_does_not_get_what_that_one_has_sent_again(late: bool) -> None:
    """One node does not hear that the session has moved: what it sends comes by the former owner, ahead of its client's
    CONNACK or (late) with what is left when the link is well. Then its publisher repeats it through another node."""
    brokers = serving(*NAMES)
    reader = persistent(brokers, "two", "s")
    publisher = publisher_at(brokers, "one")
    brokers.network.stall("one", "three")
    reader.connect(at="three", clean_start=False, expiry_s=1000)
    brokers.run_for(1.0)
    if late:
        brokers.run_until(lambda: reader.connected, limit_s=GIVEN_UP_S)
    publisher.offer(b"1")
    brokers.run_until(lambda: publisher.has(Pubrec))
    brokers.run_until(lambda: reader.connected, limit_s=GIVEN_UP_S)
    if late:
        assert not reader.messages
        brokers.network.heal()
    brokers.run_until(lambda: reader.messages, limit_s=GIVEN_UP_S)
    brokers.run_for(1.0)
    publisher.forget(Pubrec)
    comes_back(brokers, publisher, ["two"])
    publisher.offer(b"1", again=True)
    brokers.run_until(lambda: publisher.has(Pubrec), limit_s=GIVEN_UP_S)
    brokers.network.heal()
    brokers.run_for(GIVEN_UP_S)
    assert [payload for _, payload in reader.messages] == [b"1"]
    released(brokers, publisher)
    brokers.run_for(1.0)
    assert all(broker.node.hub.origins.watching == 0 for broker in brokers.processes.values())


@pytest.mark.parametrize("over", [False, True])
def test_a_publisher_goes_where_a_subscriber_is_going(monkeypatch: pytest.MonkeyPatch, over: bool) -> None:
    """It repeats a message there before the subscriber's session is whole. over: or it has released it meanwhile."""
    brokers = serving(*NAMES)
    reader = persistent(brokers, "two", "s")
    publisher = publisher_at(brokers, "one")
    exchange(brokers, publisher, b"1")
    brokers.run_until(lambda: reader.messages)
    held, send_tail = [True], Takeovers._send_tail

    async def send_later(takeovers: Takeovers, session: tuple[bytes, bytes], *rest: Any) -> None:
        while held and session[1] == b"s":
            await takeovers._driver.sleep(0.01)
        await send_tail(takeovers, session, *rest)

    monkeypatch.setattr(Takeovers, "_send_tail", send_later)
    reader.connect(at="three", clean_start=False, expiry_s=1000)
    brokers.run_for(1.0)
    if over:
        released(brokers, publisher)
    moves(brokers, publisher, "three")
    if not over:
        exchange(brokers, publisher, b"1", again=True)
    assert not reader.connected
    held.clear()
    brokers.run_until(lambda: reader.connected)
    if not over:
        released(brokers, publisher)
    exchange(brokers, publisher, b"2")
    released(brokers, publisher)
    brokers.run_for(1.0)
    assert received(reader) == [b"1", b"2"]
    assert not any(len(broker.node.hub.origins) for broker in brokers.processes.values())


def hold_switches(brokers: Brokers) -> tuple[list[Callable[[], None]], Callable[[], None]]:
    """Node three does not hear that the session "s" has moved, and so does not cut. Returns what it has not heard, and
    what lets it hear."""
    held: list[Callable[[], None]] = []
    handlers = brokers.processes["three"].cluster.peers.handlers
    switches, on_switch = [True], handlers[Switch]

    def switches_late(peer: Peer, switch: Switch) -> None:
        if switches and switch.client_id == b"s":
            held.append(partial(on_switch, peer, switch))
        else:
            on_switch(peer, switch)

    handlers[Switch] = switches_late

    def let_go() -> None:
        switches.clear()
        held.pop()()

    return held, let_go


@pytest.mark.parametrize("over", [False, True])
@pytest.mark.parametrize(("first", "second"), [("two", "three"), ("three", "two")])
def test_a_copy_counts_at_the_old_owner_and_another_at_the_new_one(first: str, second: str, over: bool) -> None:
    """A subscriber's session is on its way to a node, for which another one has not cut yet: what the first of these
    publishes counts there already, and what the other one does still counts at the old owner. over: and its publisher
    has released it before the rest of the session has come."""
    brokers = serving(*NAMES)
    reader = persistent(brokers, "one", "s")
    publisher = publisher_at(brokers, first)
    exchange(brokers, publisher, b"0")
    released(brokers, publisher)
    held, let_go = hold_switches(brokers)
    reader.connect(at="two", clean_start=False, expiry_s=1000)
    brokers.run_until(lambda: bool(held))
    exchange(brokers, publisher, b"1")
    moves(brokers, publisher, second)
    exchange(brokers, publisher, b"1", again=True)
    if over:
        released(brokers, publisher)
    assert not reader.connected
    let_go()
    brokers.run_until(lambda: reader.connected)
    if not over:
        released(brokers, publisher)
    exchange(brokers, publisher, b"2")
    released(brokers, publisher)
    brokers.run_for(1.0)
    assert received(reader) == [b"0", b"1", b"2"]
    assert not any(len(broker.node.hub.origins) for broker in brokers.processes.values())


def test_a_copy_comes_between_two_parts_of_a_tail(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the first part has is known at the new owner before the last one says what the session has had."""
    tail, take_tail, calls, waits = Departure.tail, Takeovers.take_tail, list[bytes](), [True]

    async def take_late(takeovers: Takeovers, body: bytes) -> AsyncIterator[bytes]:
        if tail_of(body).client_id == b"s":
            calls.append(body)
            while waits and len(calls) > 1:
                await takeovers._driver.sleep(0.01)
        async for part in take_tail(takeovers, body):
            yield part

    monkeypatch.setattr(Departure, "tail", lambda departure, after=None: tail(departure, after, 1))
    monkeypatch.setattr(Takeovers, "take_tail", take_late)
    brokers = serving(*NAMES)
    reader, other = persistent(brokers, "one", "s"), connected(brokers, "three", "other")
    publisher = publisher_at(brokers, "three")
    _, let_go = hold_switches(brokers)
    reader.connect(at="two", clean_start=False, expiry_s=1000)
    brokers.run_for(0.5)
    exchange(brokers, publisher, b"1")
    packet_id = other.publish("t", b"behind it", 1)
    brokers.run_until(lambda: other.acknowledged(packet_id))
    let_go()
    brokers.run_until(lambda: len(calls) == 2)
    moves(brokers, publisher, "two")
    exchange(brokers, publisher, b"1", again=True)
    assert not reader.connected
    waits.clear()
    brokers.run_until(lambda: reader.connected)
    released(brokers, publisher)
    brokers.run_for(1.0)
    assert received(reader) == [b"1", b"behind it"]


@pytest.mark.parametrize("to", ["two", "three"])
def test_a_publisher_that_moves_repeats_nothing_to_share_groups(to: str) -> None:
    brokers = serving(*NAMES)
    members = [persistent(brokers, at, f"m-{at}", "$share/g/t") for at in NAMES]
    publisher = publisher_at(brokers, "one")
    sent = [b"%d" % number for number in range(6)]
    for payload in sent:
        exchange(brokers, publisher, payload)
        moves(brokers, publisher, to if publisher.at == "one" else "one")
        exchange(brokers, publisher, payload, again=True)
        released(brokers, publisher)
    brokers.run_for(1.0)
    assert sorted(payload for member in members for payload in received(member)) == sent
    assert not any(len(broker.node.hub.origins) for broker in brokers.processes.values())


# ---------------------------------------------------------------- receivers that restart

@pytest.mark.parametrize("then", ["three", "four"])
def test_a_receiver_that_has_restarted_knows_what_was_not_released(then: str) -> None:
    """Its clients come back to it, and the publisher's node dies: the next one does not know the use."""
    brokers = serving(*NAMES, "four")
    reader = persistent(brokers, "two", "s")
    publisher = publisher_at(brokers, "one")
    exchange(brokers, publisher, b"1")
    brokers.run_until(lambda: reader.messages)
    brokers.kill("two")
    brokers.start("two")
    comes_back(brokers, reader, ["two"])
    dies(brokers, "one")
    comes_back(brokers, publisher, [then])
    exchange(brokers, publisher, b"1", again=True)
    released(brokers, publisher)
    exchange(brokers, publisher, b"2")
    released(brokers, publisher)
    brokers.run_for(1.0)
    assert received(reader) == [b"1", b"2"]


def test_a_receiver_that_was_away_forgets_what_was_released_meanwhile() -> None:
    brokers = serving(*NAMES)
    reader = persistent(brokers, "two", "s")
    publisher = publisher_at(brokers, "one")
    exchange(brokers, publisher, b"1")
    brokers.run_until(lambda: reader.messages)
    dies(brokers, "two")
    released(brokers, publisher)
    brokers.start("two")
    comes_back(brokers, reader, ["two"])
    exchange(brokers, publisher, b"2")
    dies(brokers, "one")
    comes_back(brokers, publisher, ["three"])
    exchange(brokers, publisher, b"2", again=True)
    released(brokers, publisher)
    exchange(brokers, publisher, b"3")
    brokers.run_for(1.0)
    assert received(reader) == [b"1", b"2", b"3"]


@pytest.mark.parametrize("qos", [1, 2])
def test_what_a_receiver_has_on_its_disk_does_not_come_again_when_it_restarts(qos: int) -> None:
    """It had not acknowledged it, and the publisher's session is not persistent, so the message has no origin."""
    brokers = serving(*NAMES)
    reader = persistent(brokers, "two", "s")
    publisher = connected(brokers, "one", "p")
    brokers.network.stall("two", "one", back=False)
    publisher.publish("t", b"1", qos)
    brokers.run_until(lambda: reader.messages)
    brokers.run_for(0.2)
    brokers.kill("two")
    brokers.network.heal()
    brokers.start("two")
    comes_back(brokers, reader, ["two"])
    brokers.run_until(lambda: publisher.acknowledged(publisher.packet_id) or publisher.of(Pubcomp), 40.0)
    brokers.run_for(3.0)
    assert reader.messages == [("t", b"1")]


@pytest.mark.parametrize("seed", range(12))
def test_a_receiver_that_restarts_gets_each_message_once(seed: int) -> None:
    """From a publisher without a persistent session, whose messages have no origin."""
    chance = random.Random(seed)
    brokers = serving(*NAMES, seed=seed)
    reader = persistent(brokers, "two", "s")
    publisher = connected(brokers, "one", "p")
    store = brokers.processes["one"].cluster.feed._store
    sent = [b"%d" % number for number in range(12)]
    for payload in sent:
        publisher.publish("t", payload, 2)
        if chance.random() < 0.4:
            brokers.run_for(chance.choice((0.0005, 0.001, 0.0015, 0.002, 0.003, 0.005)))
            store.late_s = chance.choice((0.0, 1.0))        # the other node hears of the restart before, or not
            brokers.kill("two")
            brokers.run_for(0.05)
            brokers.start("two")
            comes_back(brokers, reader, ["two"])
            store.late_s = 0.0
        brokers.run_for(chance.choice((0, 0.002, 0.5)))
    brokers.run_until(lambda: len(publisher.of(Pubcomp)) == len(sent), 40.0)
    brokers.run_for(3.0)
    assert [payload for _, payload in reader.messages] == sent


# ---------------------------------------------------------------- share groups

def members_at(brokers: Brokers, *names: str) -> list[Client]:
    return [persistent(brokers, at, f"m-{at}", "$share/g/t") for at in names]


def all_received(members: list[Client]) -> list[bytes]:
    return sorted(payload for member in members for payload in received(member))


@pytest.mark.parametrize("back", [False, True])
@pytest.mark.parametrize("then", ["two", "four"])
def test_a_publisher_whose_node_dies_repeats_nothing_to_share_groups(then: str, back: bool) -> None:
    """back: the node comes back at once, with the session, and does not know to whom it gave the message."""
    brokers = serving(*NAMES, "four")
    members = members_at(brokers, "two", "three", "four")
    publisher = publisher_at(brokers, "one")
    sent = []
    for number in range(6):
        sent.append(b"%d" % number)
        at = publisher.at
        exchange(brokers, publisher, sent[-1])
        brokers.run_for(0.1)
        assert all_received(members) == sent
        if at == "one":
            dies(brokers, "one")
        if at == "one" and back:
            brokers.start("one")
        comes_back(brokers, publisher, ["one" if back else then])
        exchange(brokers, publisher, sent[-1], again=True)
        released(brokers, publisher)
    brokers.run_for(1.0)
    assert all_received(members) == sent
    assert not any(len(broker.node.hub.origins) for broker in brokers.processes.values() if broker.process.alive)


@pytest.mark.parametrize("seed", range(4))
def test_a_share_group_gets_what_its_dead_node_had_not_given(seed: int) -> None:
    """The publisher's node dies before the message has left it; a repetition is all that there is of it."""
    brokers = serving(*NAMES, "four", seed=seed)
    members = members_at(brokers, "two", "three", "four")
    publisher = publisher_at(brokers, "one")
    for other in ("two", "three", "four"):
        brokers.network.stall("one", other)
    publisher.offer(b"1")
    brokers.run_for(0.01)
    brokers.kill("one")
    brokers.network.heal()
    brokers.run_for(0.2)
    brokers.end_lease_of("one")
    comes_back(brokers, publisher, ["two"])
    exchange(brokers, publisher, b"1", again=True)
    released(brokers, publisher)
    exchange(brokers, publisher, b"2")
    brokers.run_for(1.0)
    assert all_received(members) == [b"1", b"2"]
    assert not any(broker.node.broker.share_groups.parked for broker in brokers.processes.values()
                   if broker.process.alive)


def test_who_has_a_message_of_a_share_group_may_die_before_it_says_so() -> None:
    brokers = serving(*NAMES, "four")
    members = members_at(brokers, "two", "three")
    publisher = publisher_at(brokers, "one")
    dies(brokers, "one")
    comes_back(brokers, publisher, ["four"])
    brokers.network.stall("four", "three")
    publisher.offer(b"1", again=True)
    brokers.run_for(0.3)
    assert all_received(members) == []
    dies(brokers, "three")
    brokers.network.heal()
    brokers.run_for(3.0)
    assert received(members[0]) == [b"1"]
