"""Shared subscriptions, `$share/name/filter`. A thing of MQTT 5.0 that is served to 3.1.1 clients too."""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from kit.client import Client
from oracle.mqtt import Pingreq, Puback, Publish, Subscribe

ClientFactory = Callable[..., Client]
Offline = Callable[..., None]


def _gather(members: list[Client], count: int) -> list[list[bytes]]:
    """`count` messages in all, whoever gets them: rounds of pings, each of which ends what had arrived before it."""
    got: list[list[bytes]] = [[] for _ in members]
    for _ in range(50):
        for member, mine in zip(members, got, strict=True):
            member.send(Pingreq())
            while isinstance(packet := member.recv(), Publish):
                mine.append(packet.payload)
                if packet.qos:
                    member.send(Puback(packet_id=packet.packet_id or 0))
        if sum(map(len, got)) >= count:
            break
    assert sum(map(len, got)) == count, got
    return got


@pytest.mark.parametrize("qos", [0, 1])
def test_each_message_goes_to_one_member(client: ClientFactory, topic: str, qos: int) -> None:
    members = [client(f"member{number}") for number in range(3)]
    for member in members:
        member.subscribe(f"$share/group/{topic}/+", qos=qos)
    p = client("pub")
    for number in range(60):
        p.publish(f"{topic}/a", b"%d" % number, qos)
    p.expect_quiet()
    got = _gather(members, 60)
    assert sorted(int(payload) for mine in got for payload in mine) == list(range(60))
    assert all(got), "a member that is connected got nothing"
    for member in members:
        member.expect_quiet()


def test_groups_and_plain_subscribers_get_their_own_copies(client: ClientFactory, topic: str) -> None:
    one, two, plain = client("one"), client("two"), client("plain")
    one.subscribe(f"$share/one/{topic}")
    two.subscribe(f"$share/two/{topic}")
    plain.subscribe(topic)
    client("pub").publish(topic, b"x")
    for c in (one, two, plain):
        c.receive(topic, b"x")
        c.expect_quiet()


def test_a_member_leaves_by_unsubscribing_the_whole_filter(client: ClientFactory, topic: str) -> None:
    one, two = client("one"), client("two")
    for member in (one, two):
        member.subscribe(f"$share/group/{topic}", qos=1)
    one.unsubscribe(topic)                                  # not this
    one.unsubscribe(f"$share/group/{topic}")
    p = client("pub")
    for number in range(6):
        p.publish(topic, b"%d" % number, 1)
        two.receive(topic, b"%d" % number)
    one.expect_quiet()
    two.unsubscribe(f"$share/group/{topic}")
    p.publish(topic, b"x", 1)
    two.expect_quiet()


def test_each_member_has_its_own_qos(client: ClientFactory, topic: str) -> None:
    one, two = client("one"), client("two")
    one.subscribe(f"$share/group/{topic}", qos=0)
    two.subscribe(f"$share/group/{topic}", qos=1)
    p = client("pub")
    for number in range(20):
        p.publish(topic, b"%d" % number, 1)
    for member, qos in ((one, 0), (two, 1)):
        assert member.expect(Publish, qos=qos).packet_id is None or qos


def test_no_retained_message_is_sent(client: ClientFactory, topic: str) -> None:
    p = client("pub")
    p.publish(topic, b"kept", 1, retain=True)
    member = client("member")
    member.subscribe(f"$share/group/{topic}", qos=1)
    member.expect_quiet()
    p.publish(topic, b"live", 1, retain=True)
    member.receive(topic, b"live", retain=False)


def test_connected_members_come_first(client: ClientFactory, offline: Offline, topic: str) -> None:
    """A stored session that is away gets nothing while another member is there."""
    offline("away", f"$share/group/{topic}", qos=1)
    here = client("here")
    here.subscribe(f"$share/group/{topic}", qos=1)
    p = client("pub")
    for number in range(10):
        p.publish(topic, b"%d" % number, 1)
        here.receive(topic, b"%d" % number)
    client("away", clean_start=False).expect_quiet()


def test_a_group_that_is_away_keeps_its_messages(client: ClientFactory, offline: Offline, interruption: Any, topic: str
                                                 ) -> None:
    where = interruption.where
    offline("away", f"$share/group/{topic}", qos=1, where=where)
    p = client("pub", where=where)
    p.publish(topic, b"before", 1)
    interruption(p)
    client("pub", where=where).publish(topic, b"after", 1)
    member = client("away", where=where, clean_start=False)
    member.receive(topic, b"before", qos=1)
    member.receive(topic, b"after", qos=1)
    member.expect_quiet()


@pytest.mark.parametrize("wrong", ["$share/group", "$share/group/", "$share//a"])
def test_a_wrong_share_filter_gets_0x80(client: ClientFactory, wrong: str) -> None:
    """For 3.1.1 it is a topic filter like any other, which this broker does not take."""
    client().subscribe((wrong, 1), expect=[0x80])


@pytest.mark.parametrize("wrong", ["$share/g+/a", "$share/#/a", "$share/g/a#"])
def test_misplaced_wildcards_in_a_share_filter_close(client: ClientFactory, wrong: str) -> None:
    c = client()
    c.send(Subscribe(packet_id=1, filters=[(wrong, 1)]))
    c.expect_closed()
