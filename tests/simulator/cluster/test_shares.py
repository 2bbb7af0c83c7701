"""Share groups whose members are on several nodes: each message reaches one of them. MQTT 5.0 section 4.8.2."""
from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest
from kit.sizes import some
from oracle.mqtt import Puback, Pubcomp
from simulator.cluster.brokers import Brokers, Client
from simulator.cluster.test_brokers import connected, serving

from fluxmq._core.hub.group_messages import give
from fluxmq._core.peer.outbox import PeerOutbox
from fluxmq.cluster import lost
from fluxmq.cluster.overview import Overview
from fluxmq.engine.ports.overview import ClusterView
from fluxmq.engine.sessions import parked

NAMES = ("one", "two", "three")
SHARE = "$share/g/t/#"


def member(brokers: Brokers, at: str, name: str, qos: int = 1, **how: Any) -> Client:
    client = connected(brokers, at, name, **how)
    join(brokers, client, qos)
    return client


def join(brokers: Brokers, client: Client, qos: int = 1) -> None:
    packet_id = client.subscribe(SHARE, qos)
    brokers.run_until(lambda: client.acknowledged(packet_id))


def publish(brokers: Brokers, client: Client, payload: bytes, qos: int = 1) -> int:
    """Waits until it is acknowledged."""
    packet_id = client.publish("t/x", payload, qos)
    if qos:
        brokers.run_until(lambda: client.acknowledged(packet_id))
    return packet_id


def got(*clients: Client) -> list[bytes]:
    return sorted(payload for client in clients for _, payload in client.messages)


def known(brokers: Brokers, at: str) -> dict[str, tuple[int, int]]:
    """(connected, away) members by node, as one of them knows it; of itself the connected ones and all others."""
    hub = brokers.processes[at].node.hub
    group = hub.groups.get((hub.root, b"g", b"t/#"))
    if group is None:
        return {}
    found = {taker.node: (here, away) for taker, here, away in group.told() if isinstance(taker, PeerOutbox)}
    if len(group):
        found[at] = group.connected, len(group) - group.connected
    return found


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_each_message_reaches_one_member_of_the_whole_cluster(qos: int) -> None:
    brokers = serving(*NAMES)
    members = [member(brokers, at, f"{at}-{number}", qos) for at in NAMES for number in range(2)]
    publishers = [connected(brokers, at, f"p-{at}") for at in NAMES]
    sent = []
    for number in range(90):
        sent.append(b"%d" % number)
        publishers[number % 3].publish("t/x", sent[-1], qos)
    brokers.run_for(2.0)
    assert got(*members) == sorted(sent)
    assert all(client.messages for client in members)


@pytest.mark.parametrize("at", NAMES)
def test_each_node_gets_its_share(at: str) -> None:
    brokers = serving(*NAMES)
    members = {name: [member(brokers, name, f"{name}-{number}") for number in range(count)]
               for name, count in zip(NAMES, (1, 2, 3), strict=True)}
    publisher = connected(brokers, at, "p")
    for number in range(600):
        publisher.publish("t/x", b"%d" % number, 1)
        if number % 50 == 49:
            brokers.run_for(0.2)
    brokers.run_for(1.0)
    for name, share in zip(NAMES, (100, 200, 300), strict=True):
        assert abs(len(got(*members[name])) - share) < share // 10
        each = [len(client.messages) for client in members[name]]
        assert max(each) - min(each) <= share // 10
    assert len(got(*(client for clients in members.values() for client in clients))) == 600


def test_every_node_knows_who_is_connected_where() -> None:
    brokers = serving(*NAMES)
    kept = member(brokers, "one", "kept", expiry_s=1000)
    other = member(brokers, "two", "other")
    brokers.run_for(0.5)
    for at in NAMES:
        assert known(brokers, at) == {"one": (1, 0), "two": (1, 0)}
    kept.leave()
    brokers.run_for(0.5)
    for at in NAMES:
        assert known(brokers, at) == {"one": (0, 1), "two": (1, 0)}
    kept.connect(at="three", clean_start=False, expiry_s=1000)
    brokers.run_until(lambda: kept.connected)
    brokers.run_for(1.0)
    for at in NAMES:
        assert known(brokers, at) == {"three": (1, 0), "two": (1, 0)}
    other.leave()
    kept.unsubscribe(SHARE)
    brokers.run_for(0.5)
    assert [known(brokers, at) for at in NAMES] == [{}, {}, {}]


def test_counts_are_right_after_a_node_has_come_back() -> None:
    brokers = serving(*NAMES)
    for number in range(3):
        member(brokers, "one", f"m{number}", expiry_s=1000)
    member(brokers, "two", "m3")
    brokers.kill("two")
    brokers.end_lease_of("two")
    brokers.run_for(1.0)
    assert known(brokers, "three") == {"one": (3, 0)}
    brokers.start("two")
    assert known(brokers, "two") == {"one": (3, 0)}
    brokers.kill("one")
    brokers.end_lease_of("one")
    brokers.run_for(0.3)
    assert known(brokers, "two") == known(brokers, "three") == {}
    brokers.run_for(2.0)                        # others have adopted them
    counts = known(brokers, "two")
    assert counts == known(brokers, "three") and "one" not in counts
    assert sum(away for _, away in counts.values()) == 3
    brokers.start("one")
    brokers.run_for(1.0)
    assert known(brokers, "one") == known(brokers, "two") == known(brokers, "three") == counts
    brokers.break_streams()
    member(brokers, "one", "m9")
    brokers.run_for(1.0)
    assert known(brokers, "two") == known(brokers, "three") == {"one": (1, 0), **counts}


def test_the_connected_go_before_the_absent_wherever_they_are() -> None:
    brokers = serving(*NAMES)
    away = member(brokers, "one", "away", expiry_s=1000)
    away.leave()
    here = member(brokers, "two", "here")
    publisher = connected(brokers, "one", "p")
    brokers.run_for(0.5)
    for number in range(10):
        publish(brokers, publisher, b"%d" % number)
    brokers.run_for(0.5)
    assert len(here.messages) == 10


@pytest.mark.parametrize("qos", [1, 2])
def test_with_nobody_connected_an_absent_member_keeps_it_and_takes_it_along(qos: int) -> None:
    brokers = serving(*NAMES)
    members = [member(brokers, at, f"m-{at}", qos, expiry_s=1000) for at in ("one", "two")]
    for client in members:
        client.leave()
    brokers.run_for(0.5)
    publisher = connected(brokers, "three", "p")
    for number in range(10):
        publish(brokers, publisher, b"%d" % number, qos)
    assert publish(brokers, publisher, b"to nobody", 0) is not None
    for client in members:
        client.connect(at="three", clean_start=False, expiry_s=1000)
    brokers.run_for(3.0)
    assert got(*members) == [b"%d" % number for number in range(10)]
    assert all(client.messages for client in members)


# ---------------------------------------------------------------- a member does not acknowledge

def unacknowledged(brokers: Brokers, qos: int, expiry_s: int = 0) -> tuple[Client, Client]:
    """A member that has got a message and not acknowledged it, and one on another node."""
    silent = member(brokers, "one", "silent", qos, expiry_s=expiry_s)
    silent.acks = False
    publish(brokers, connected(brokers, "one", "p"), b"x", qos)
    brokers.run_until(lambda: silent.messages)
    return silent, member(brokers, "two", "other", qos)


@pytest.mark.parametrize("expiry_s", [0, 1])
def test_what_a_session_that_ended_had_not_acknowledged_goes_to_another_node(expiry_s: int) -> None:
    brokers = serving(*NAMES)
    silent, other = unacknowledged(brokers, 1, expiry_s)
    silent.leave()
    brokers.run_until(lambda: other.messages, 5.0)
    brokers.run_for(2.0)
    assert got(other) == [b"x"]
    assert not brokers.processes["one"].node.broker.share_groups.parked


def test_it_waits_for_its_member_as_long_as_the_session_lives() -> None:
    brokers = serving(*NAMES)
    silent, other = unacknowledged(brokers, 1, 1000)
    silent.leave()
    brokers.run_for(5.0)
    assert not other.messages
    silent.acks = True
    silent.connect(at="three", clean_start=False, expiry_s=1000)
    brokers.run_for(2.0)
    assert got(silent) == [b"x", b"x"] and not other.messages


def test_a_delivery_of_qos_2_ends_with_the_session_of_its_member() -> None:
    brokers = serving(*NAMES)
    silent, other = unacknowledged(brokers, 2)
    silent.leave()
    brokers.run_for(5.0)
    assert not other.messages


@pytest.mark.parametrize("qos", [1, 2])
def test_what_a_member_refuses_goes_to_nobody(qos: int) -> None:
    brokers = serving(*NAMES)
    picky = member(brokers, "one", "picky", qos)
    picky.refuses = 0x97
    publisher = connected(brokers, "three", "p")
    publish(brokers, publisher, b"x", qos)
    brokers.run_until(lambda: picky.messages)
    other = member(brokers, "two", "other", qos)
    brokers.run_for(0.5)
    picky.leave()
    brokers.run_for(3.0)
    assert not other.messages


def test_it_is_kept_until_the_other_node_has_it() -> None:
    brokers = serving(*NAMES)
    silent, other = unacknowledged(brokers, 1)
    brokers.network.stall("one", "two")
    silent.leave()
    brokers.run_for(1.0)
    assert brokers.processes["one"].node.broker.share_groups.parked
    brokers.kill("one")
    brokers.network.heal()
    brokers.end_lease_of("one")
    brokers.run_for(1.0)
    brokers.start("one")
    brokers.run_until(lambda: other.messages, 10.0)
    brokers.run_for(1.0)
    assert set(got(other)) == {b"x"}
    assert not brokers.processes["one"].node.broker.share_groups.parked


def test_messages_for_a_member_that_has_left_meanwhile_are_given_on() -> None:
    brokers = serving(*NAMES)
    leaver = member(brokers, "two", "leaver")
    publisher = connected(brokers, "one", "p")
    stays = member(brokers, "three", "stays")
    brokers.network.stall("two", "one")         # node one does not hear that it leaves
    packet_id = leaver.unsubscribe(SHARE)
    brokers.run_for(0.3)
    for number in range(10):
        publisher.publish("t/x", b"%d" % number, number % 3)
    brokers.run_for(0.5)
    brokers.network.heal()
    brokers.run_for(3.0)
    assert leaver.acknowledged(packet_id) and not leaver.messages
    assert got(stays) == [b"%d" % number for number in range(10)]


# ---------------------------------------------------------------- nodes that die

def test_what_a_dead_node_had_not_acknowledged_goes_to_other_members() -> None:
    brokers = serving(*NAMES)
    lost = [member(brokers, "two", f"lost{number}", expiry_s=1000) for number in range(2)]
    stays = member(brokers, "three", "stays")
    publisher = connected(brokers, "one", "p")
    brokers.kill("two")
    ids = [publisher.publish("t/x", b"%d" % number, 1) for number in range(30)]
    brokers.run_for(1.0)
    assert not all(publisher.acknowledged(packet_id) for packet_id in ids)
    assert not got(*lost)
    brokers.end_lease_of("two")
    brokers.run_until(lambda: all(publisher.acknowledged(packet_id) for packet_id in ids), 5.0)
    brokers.run_for(1.0)
    assert got(stays) == sorted(b"%d" % number for number in range(30))
    assert {ack.reason for ack in publisher.of(Puback)} == {0}


def test_qos_2_that_may_have_been_delivered_is_not_given_to_another() -> None:
    brokers = serving(*NAMES)
    member(brokers, "two", "lost", 2)
    publisher = connected(brokers, "one", "p")
    brokers.network.stall("one", "two")
    publisher.publish("t/x", b"handed over", 2)
    brokers.run_for(0.5)
    stays = member(brokers, "three", "stays", 2)
    brokers.kill("two")
    brokers.network.heal()
    brokers.end_lease_of("two")
    brokers.run_for(3.0)
    assert not stays.messages


class Away:
    """A member at node "two", which stands still until its lease has ended; a publisher at "one" has sent QoS 2 to it
    and been answered; another member is at "three"."""

    def __init__(self, expiry_s: int = 1000, arrives: bool = False) -> None:
        """arrives: the node gets the message and gives it to its member, but its acknowledgement does not come."""
        self.brokers = brokers = serving(*NAMES)
        self.lost = member(brokers, "two", "lost", 2, expiry_s=expiry_s)
        self.publisher = connected(brokers, "one", "p")
        brokers.run_for(0.1)
        if arrives:
            brokers.network.stall("two", "one", back=False)
        else:
            brokers.processes["two"].process.pause()
        packet_id = self.publisher.publish("t/x", b"x", 2)
        brokers.run_for(0.5)
        self.other = connected(brokers, "three", "other")
        joined = self.other.subscribe(SHARE, 2)     # SUBACK waits for the other nodes, too
        if arrives:
            assert got(self.lost) == [b"x"]
            brokers.kill("two")
            brokers.network.heal()
        brokers.end_lease_of("two")
        brokers.run_until(lambda: self.publisher.acknowledged(packet_id) and self.other.acknowledged(joined), 5.0)
        brokers.run_for(2.0)
        assert not self.other.messages      # perhaps the first member has it

    def back(self) -> None:
        if self.brokers.processes["two"].process.alive:
            self.brokers.run_for(self.brokers.ttl_s)    # it knows by its own clock that it reads nothing any more
            self.brokers.processes["two"].process.resume()
        else:
            self.brokers.processes["two"].start()
        self.brokers.run_for(3.0)

    def seen(self) -> ClusterView:
        return Overview(self.brokers.processes["one"].cluster, {}, None).snapshot()

    def parked(self, at: str = "one") -> bool:
        return bool(self.brokers.processes[at].node.broker.share_groups.parked)


@pytest.mark.parametrize("expiry_s", [0, 1000])
def test_qos_2_that_a_node_never_got_goes_to_another_member_when_it_is_back(expiry_s: int) -> None:
    away = Away(expiry_s)
    assert away.seen().share_in_doubt == 1
    away.back()
    assert got(away.other, away.lost) == [b"x"] and not away.parked()
    assert away.seen().share_in_doubt == 0


@pytest.mark.parametrize("expiry_s", [0, 1000])
def test_qos_2_that_a_node_gave_to_its_member_goes_to_nobody_else_when_it_is_back(expiry_s: int) -> None:
    """Also to a member whose session is not stored: its node has recorded the frame all the same."""
    away = Away(expiry_s, arrives=True)
    away.back()
    assert got(away.other) == [] and not away.parked()


def test_qos_2_in_doubt_goes_to_another_member_when_its_node_stays_away(monkeypatch: pytest.MonkeyPatch) -> None:
    away = Away()
    away.brokers.run_for(5.0)
    assert not away.other.messages
    monkeypatch.setattr(lost, "DOUBT_S", 4.0)
    away.brokers.run_until(lambda: away.other.messages, 5.0)
    assert got(away.other) == [b"x"]
    assert any(level == "warning" and "not back after" in text and fields["messages"] == 1
               for level, text, fields in away.brokers.processes["one"].log)
    assert away.seen().share_repeated == 1
    away.back()
    assert got(away.other, away.lost) == [b"x"] and not away.parked()


def test_qos_2_in_doubt_survives_the_node_that_keeps_it() -> None:
    away = Away()
    away.brokers.kill("one")
    away.brokers.end_lease_of("one")
    away.brokers.run_for(1.0)
    away.brokers.start("one")
    away.brokers.run_until(lambda: away.other.messages, 5.0)
    away.back()
    assert got(away.other, away.lost) == [b"x"] and not away.parked()


@pytest.mark.parametrize("qos", [1, 2])
def test_what_is_stored_for_a_session_that_has_ended_elsewhere_goes_to_another_member(qos: int) -> None:
    """Node "two" has it on its disk, and had not sent it to its member, which was away."""
    brokers = serving(*NAMES)
    member(brokers, "two", "gone", qos, expiry_s=1000).leave()
    brokers.run_for(0.1)
    publish(brokers, connected(brokers, "one", "p"), b"x", qos)
    other = member(brokers, "three", "other", qos)
    brokers.kill("two")
    brokers.end_lease_of("two")
    brokers.run_for(2.0)                        # its session is adopted
    connected(brokers, "three", "gone", clean_start=True)
    brokers.run_for(1.0)
    assert not other.messages
    brokers.start("two")
    brokers.run_until(lambda: other.messages, 10.0)
    brokers.run_for(1.0)
    assert got(other) == [b"x"]


def test_what_finds_no_member_for_an_hour_is_dropped_and_logged(monkeypatch: pytest.MonkeyPatch) -> None:
    brokers = serving(*NAMES)
    member(brokers, "two", "lost", expiry_s=1000)
    publisher = connected(brokers, "one", "p")
    brokers.kill("two")
    packet_id = publisher.publish("t/x", b"x", 1)
    brokers.run_for(0.5)
    brokers.end_lease_of("two")
    brokers.kill("three")                       # nobody adopts the member but "one", whose session is then left behind
    brokers.end_lease_of("three")
    brokers.run_until(lambda: publisher.acknowledged(packet_id), 5.0)
    monkeypatch.setattr(parked, "UNWANTED_S", 0)
    connected(brokers, "one", "lost", clean_start=True)
    brokers.run_until(lambda: not brokers.processes["one"].node.broker.share_groups.parked, 5.0)
    broker = brokers.processes["one"]
    assert Overview(broker.cluster, {}, None).snapshot().share_unwanted == 1
    assert any(level == "warning" and "no member came" in text and fields["filter"] == SHARE
               for level, text, fields in broker.log)


def test_what_nobody_can_get_waits_for_the_first_member() -> None:
    brokers = serving(*NAMES)
    member(brokers, "two", "lost", expiry_s=1000)
    publisher = connected(brokers, "one", "p")
    brokers.kill("two")
    packet_id = publisher.publish("t/x", b"x", 1)
    brokers.run_for(0.5)
    brokers.end_lease_of("two")
    brokers.run_until(lambda: publisher.acknowledged(packet_id), 5.0)
    brokers.kill("one")
    brokers.end_lease_of("one")
    brokers.run_for(1.0)
    brokers.start("one")
    late = member(brokers, "three", "late")
    brokers.run_until(lambda: late.messages, 5.0)
    assert got(late) == [b"x"]
    brokers.run_for(1.0)
    assert not brokers.processes["one"].node.broker.share_groups.parked


@pytest.mark.parametrize("qos", [1, 2])
def test_what_is_published_while_all_members_are_on_a_dead_node_waits_for_one(qos: int) -> None:
    brokers = serving(*NAMES)
    lost = member(brokers, "two", "lost", qos, expiry_s=1000)
    publisher = connected(brokers, "one", "p")
    brokers.kill("two")
    brokers.end_lease_of("two")
    brokers.run_for(1.0)
    for number in range(5):
        publish(brokers, publisher, b"%d" % number, qos)
    brokers.start("two")
    brokers.run_for(1.0)
    publish(brokers, publisher, b"5", qos)
    lost.connect(clean_start=False, expiry_s=1000)
    brokers.run_until(lambda: len(lost.messages) == 6, 5.0)
    assert got(lost) == [b"%d" % number for number in range(6)]
    brokers.run_for(1.0)
    assert not brokers.processes["one"].node.broker.share_groups.parked
    packet_id = lost.unsubscribe(SHARE)
    brokers.run_until(lambda: lost.acknowledged(packet_id))
    brokers.run_for(0.5)
    assert known(brokers, "one") == {} and not brokers.processes["one"].node.hub.groups


def keeper(brokers: Brokers, payloads: list[bytes]) -> None:
    """Node "one" keeps messages of QoS 2, because all members were on a node that has died."""
    member(brokers, "two", "lost", 2, expiry_s=1000)
    publisher = connected(brokers, "one", "p")
    brokers.kill("two")
    brokers.end_lease_of("two")
    brokers.run_for(0.05)
    for payload in payloads:
        publish(brokers, publisher, payload, 2)


@pytest.mark.parametrize("forwarded", [False, True])
def test_what_is_kept_is_given_once_although_its_node_crashes(forwarded: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """After it has recorded that it gives the messages: before any has left, or when all have come."""
    brokers = serving(*NAMES)
    sent = [b"%d" % number for number in range(3)]
    keeper(brokers, sent)
    given = []

    def give_and_crash(*args: Any, **how: Any) -> object:
        given.append(args[3])
        if not forwarded:
            if len(given) == 1:
                brokers.world.events.soon(lambda: brokers.kill("one"))
            return None
        return give(*args, **how)

    monkeypatch.setattr(parked, "give", give_and_crash)
    here = connected(brokers, "three", "here")
    here.subscribe(SHARE, 2)
    brokers.run_until(lambda: given)
    if forwarded:
        brokers.run_until(lambda: len(here.messages) == len(sent))
        assert brokers.processes["one"].node.broker.share_groups.parked
        brokers.kill("one")
    brokers.run_for(0.2)
    assert len(here.messages) == (len(sent) if forwarded else 0)
    monkeypatch.undo()
    brokers.end_lease_of("one")
    brokers.start("one")
    brokers.run_until(lambda: len(here.messages) >= len(sent), 5.0)
    brokers.run_for(2.0)
    assert got(here) == sent
    assert not brokers.processes["one"].node.broker.share_groups.parked
    assert not any(len(brokers.processes[name].node.hub.origins) for name in ("one", "three"))


def test_members_that_end_with_their_node_are_not_expected() -> None:
    brokers = serving(*NAMES)
    member(brokers, "two", "lost")
    brokers.kill("two")
    brokers.end_lease_of("two")
    brokers.run_for(1.0)
    assert not brokers.processes["one"].node.hub.groups and not brokers.processes["one"].node.broker.share_groups.parked


@pytest.mark.parametrize("seed", range(6))
def test_the_only_member_moves_while_messages_come(seed: int) -> None:
    brokers = serving(*NAMES, seed=seed)
    client = member(brokers, "one", "c", expiry_s=1000)
    publishers = [connected(brokers, at, f"p-{at}") for at in NAMES]
    sent = []
    for number in range(60):
        sent.append(b"%02d" % number)
        publishers[number % 3].publish("t/x", sent[-1], 1)
        if number % 15 == 7:
            client.connect(at=NAMES[(number // 15 + 1) % 3], clean_start=False, expiry_s=1000)
        brokers.run_for(brokers.world.chance.choice((0, 0.001, 0.05)))
    brokers.run_for(3.0)
    assert client.connected
    assert set(got(client)) == set(sent)


def test_members_of_a_dead_node_are_expected_although_the_last_other_one_ends_before_they_are_adopted() -> None:
    brokers = serving(*NAMES)
    lost = member(brokers, "two", "lost", expiry_s=1000)
    ends = member(brokers, "three", "ends")
    publisher = connected(brokers, "one", "p")
    brokers.kill("two")
    brokers.end_lease_of("two")
    brokers.run_for(0.1)
    ends.leave()
    brokers.run_for(0.1)
    publish(brokers, publisher, b"x")
    brokers.run_for(2.0)                        # it is adopted
    lost.connect(at="three", clean_start=False, expiry_s=1000)
    brokers.run_until(lambda: lost.messages, 5.0)
    assert got(lost) == [b"x"]


# ---------------------------------------------------------------- histories

class History:
    """Members on three nodes that come and go, nodes that are killed, streams that break, from one seed. All sessions
    are persistent, but their clients leave them behind with Clean Start now and then.

    What is acknowledged with QoS 1 must come to a member; what is sent with QoS 2 to one at most. While nothing has
    failed yet (no session was left behind, no node killed) each comes once."""

    MEMBERS = 5

    def __init__(self, seed: int, steps: int = 50) -> None:
        self.chance = random.Random(seed)
        self.brokers = serving(*NAMES, seed=seed)
        self.calm = self.chance.random() < 0.3      # nothing fails
        self.members = [member(self.brokers, NAMES[number % 3], f"m{number}", 2, expiry_s=1000)
                        for number in range(self.MEMBERS)]
        self.sent: dict[bytes, tuple[Client, int, int]] = {}      # payload: publisher, identifier, QoS
        self.publishers: list[Client] = []
        self.failed = self.left = False
        self.down: list[str] = []
        self.rejoins: set[Client] = set()
        for _ in range(steps):
            self.step()
            self.brokers.run_for(self.chance.choice((0, 0.001, 0.01, 0.1, 0.5)))
            self.join_again()
        self.end()

    # ------------------------------------------------------------------ steps

    def step(self) -> None:
        self.chance.choices((self.publish, self.leave, self.come, self.left_behind, self.kill, self.revive, self.tear,
                             self.silence, self.all_leave), (30, 4, 8, 2, 1, 2, 2, 3, 1))[0]()

    def up(self) -> list[str]:
        return [name for name in NAMES if self.brokers.processes[name].serving]

    def publisher(self) -> Client | None:
        self.publishers = [client for client in self.publishers if client.connected]
        up = self.up()
        if up and (not self.publishers or self.chance.random() < 0.3):
            client = self.brokers.client(self.chance.choice(up), f"p{len(self.brokers.clients)}")
            client.connect()
            self.brokers.run_for(0.3)
            if client.connected:
                self.publishers.append(client)
        return self.chance.choice(self.publishers) if self.publishers else None

    def publish(self) -> None:
        client = self.publisher()
        for _ in range(self.chance.choice((1, 3, 20)) if client else 0):
            assert client is not None
            qos, payload = self.chance.choice((1, 1, 2)), b"%d" % len(self.sent)
            self.sent[payload] = client, client.publish("t/x", payload, qos), qos

    def leave(self) -> None:
        client = self.chance.choice(self.members)
        if client.connected:
            client.leave()

    def all_leave(self) -> None:
        for client in self.members:
            if client.connected:
                client.leave()

    def come(self) -> None:
        """A member connects, wherever."""
        if up := self.up():
            client = self.chance.choice(self.members)
            self.go(client, self.chance.choice(up))

    def go(self, client: Client, at: str, *, clean_start: bool = False) -> None:
        """Connects. A connection that has no CONNACK yet is closed first; another one may be displaced."""
        if client.open and (not client.connected or self.chance.random() < 0.5):
            client.leave()
        client.acks = True
        client.connect(at=at, clean_start=clean_start, expiry_s=1000)
        self.rejoins.add(client)

    def left_behind(self) -> None:
        if not self.calm and (up := self.up()):
            client = self.chance.choice(self.members)
            self.left = True
            self.go(client, self.chance.choice(up), clean_start=True)

    def silence(self) -> None:
        """A member does not acknowledge any more, until it connects again."""
        self.chance.choice(self.members).acks = False

    def kill(self) -> None:
        if not self.calm and len(self.up()) == len(NAMES):
            name = self.chance.choice(NAMES)
            self.brokers.kill(name)
            self.down.append(name)
            self.failed = True
            if self.chance.random() < 0.7:
                self.brokers.run_for(self.chance.random())
                self.brokers.end_lease_of(name)

    def revive(self) -> None:
        for name in self.down:
            self.brokers.start(name)
        self.down.clear()

    def tear(self) -> None:
        if not self.calm:
            self.brokers.break_streams()

    def join_again(self) -> None:
        """Who has connected subscribes: a session may have been left without."""
        for client in list(self.rejoins):
            if client.connected:
                self.rejoins.discard(client)
                client.subscribe(SHARE, 2)

    # ------------------------------------------------------------------ the verdict

    def end(self) -> None:
        self.revive()
        for again in (False, True):     # the second time nothing of an earlier connection waits any more
            for number, client in enumerate(self.members):
                client.acks = True
                if again or not client.connected:
                    self.go(client, client.at if again else NAMES[number % 3])
            self.settle()
        for name in NAMES:
            assert not self.brokers.processes[name].node.broker.share_groups.parked
        came = Counter(payload for client in self.members for payload in set(payload for _, payload in client.messages))
        for payload, (client, packet_id, qos) in self.sent.items():
            acked = any(isinstance(packet, Puback | Pubcomp) and packet.packet_id == packet_id
                        and packet.reason < 0x80 for packet in client.got)
            if qos == 1 and acked:
                assert came[payload], f"{payload!r} was acknowledged and came to no member"
            if qos == 2 or not (self.left or self.failed):
                assert came[payload] <= 1, f"{payload!r} with QoS {qos} came to {came[payload]} members"
            if qos == 2 and acked and not (self.failed or self.left):
                assert came[payload], f"{payload!r} with QoS 2 came to no member"
        self.counts()
        for client in self.members[self.chance.randrange(5):]:
            client.leave()
        self.brokers.run_for(1.0)
        self.counts()

    def settle(self) -> None:
        """Until everybody is connected, and one second more. A CONNECT of an earlier connection that had to wait may
        displace a client; then that connects again."""
        calm = 0
        for _ in range(300):
            self.brokers.run_for(0.1)
            self.join_again()
            for client in self.members:
                if not client.open:
                    self.go(client, client.at)
            calm = calm + 1 if not self.rejoins else 0
            if calm == 10:
                return
        raise AssertionError(f"not connected: {[client.name for client in self.rejoins]}")

    def counts(self) -> None:
        """Each node knows what the others have."""
        for at in NAMES:
            found = known(self.brokers, at)
            for name in NAMES:
                here = [client.connected for client in self.members if client.at == name]
                away = len(here) - sum(here) if at == name or not any(here) else 0
                assert found.get(name, (0, 0)) == (sum(here), away), (at, name)


@pytest.mark.parametrize("part", some(2, range(4)))
def test_histories(part: int, seed: int) -> None:
    for number in range(10):
        this = seed * 1_000_000 + part * 10 + number
        try:
            History(this)
        except BaseException as error:
            error.add_note(f"History({this})")
            raise
