"""Exclusive groups over MQTT: a partition belongs to one member at a time. And what a delivery says of those before."""
from __future__ import annotations

import time
from collections.abc import Callable

import pytest
from kit.broker import Broker
from kit.client import TIMEOUT, Client, Nothing
from kit.watch import wait_until
from oracle.mqtt import Pubcomp, Publish, Pubrec, Pubrel
from queues.conftest import ack, consume, lag, order, put, take, users

Start = Callable[..., Broker]
Connect = Callable[..., Client]

SPREAD = {"name": "work", "partitions": 4}


def gather(count: int, *clients: Client) -> list[list[Publish]]:
    """So many deliveries, whoever gets them: one list for each client."""
    found: list[list[Publish]] = [[] for _ in clients]
    deadline = time.monotonic() + TIMEOUT
    while sum(map(len, found)) < count:
        assert time.monotonic() < deadline, f"{sum(map(len, found))} of {count} came"
        for client, list_ in zip(clients, found, strict=True):
            try:
                packet = client.recv(0.01)
            except Nothing:
                continue
            assert isinstance(packet, Publish)
            list_.append(packet)
    return found


def partition(packet: Publish) -> int:
    return int(users(packet)["message-id"].split(":")[0])


def owners(publisher: Client, *clients: Client) -> list[set[int]]:
    """Which partitions each client has: one message to each partition (without a key they take turns), settled."""
    put(publisher, "work", *(b"%d" % number for number in range(4)))
    found = gather(4, *clients)
    for client, packets in zip(clients, found, strict=True):
        ack(client, *packets)
        client.expect_quiet()
    return [{partition(packet) for packet in packets} for packets in found]


def test_partitions_are_balanced_over_members_and_stay_where_they_are(start_broker: Start, connect: Connect) -> None:
    broker = start_broker(SPREAD)
    publisher, clients = connect(broker), [connect(broker) for _ in range(5)]
    before = [{0, 1, 2, 3}]
    for count, sizes in ((1, [4]), (2, [2, 2]), (3, [1, 1, 2]), (4, [1, 1, 1, 1]), (5, [0, 1, 1, 1, 1])):
        consume(clients[count - 1], "work", exclusive="true")
        now = owners(publisher, *clients[:count])
        assert sorted(map(len, now)) == sizes
        assert set().union(*now) == {0, 1, 2, 3}
        for had, has in zip(before, now, strict=False):
            assert has <= had, "what a member keeps it had before"
        before = now
    assert not before[4], "the last one stands by"
    # One leaves, in whatever way: its partition goes to the one that stood by, the others keep theirs.
    clients[1].drop()
    now = owners(publisher, clients[0], *clients[2:])
    assert now == [before[0], before[2], before[3], before[1]]
    clients[2].unsubscribe("$queue/work")
    now = owners(publisher, clients[0], *clients[3:])
    assert sorted(map(len, now)) == [1, 1, 2]
    assert before[0] <= now[0] and before[3] <= now[1] and before[1] <= now[2]


@pytest.mark.parametrize("how", ["drop", "kill"])
def test_a_hot_standby_takes_over(how: str, start_broker: Start, connect: Connect) -> None:
    """One partition: one member gets everything, in order. When it dies the next one gets what was not settled."""
    broker = start_broker({"name": "work"})
    active, standby = connect(broker), connect(broker)
    consume(active, "work", exclusive="true", prefetch=3)
    consume(standby, "work", exclusive="true")
    publisher = connect(broker)
    put(publisher, "work", *(b"%d" % number for number in range(6)))
    first = take(active, b"0", b"1", b"2")
    ack(active, first[0])
    take(active, b"3")
    standby.expect_quiet()
    if how == "drop":
        active.drop()
    else:
        broker.kill()
        broker.start()
        standby, another = connect(broker), connect(broker)
        consume(standby, "work", exclusive="true")
        consume(another, "work", exclusive="true")
    found = take(standby, b"1", b"2", b"3", b"4", b"5")
    assert [users(packet)["delivery-count"] for packet in found] == ["2", "2", "2", "1", "1"]
    assert [users(packet).get("redelivered") for packet in found] == ["true", "true", "true", None, None]
    if how == "kill":
        another.expect_quiet()


def test_a_partition_changes_hands_when_the_hands_are_empty(start_broker: Start, connect: Connect) -> None:
    """A new member waits until what the old owner has of the partition is settled: no two have messages of it."""
    broker = start_broker({"name": "work", "partitions": 2})
    old, new, publisher = connect(broker), connect(broker), connect(broker)
    consume(old, "work", exclusive="true")
    put(publisher, "work", b"a0", b"b0")
    held = {partition(packet): packet for packet in gather(2, old)[0]}
    consume(new, "work", exclusive="true")
    put(publisher, "work", b"a1", b"b1")
    mine = gather(1, old)[0][0]                     # of the partition that it keeps
    kept = partition(mine)
    moved = 1 - kept
    new.expect_quiet()
    ack(old, held[moved])
    packet = new.receive()
    assert partition(packet) == moved and users(packet)["delivery-count"] == "1"
    ack(old, held[kept], mine)
    wait_until(lambda: lag(broker, "work") == 0)
    old.expect_quiet()
    new.expect_quiet()


def test_keys_keep_their_order_while_members_come_and_go(start_broker: Start, connect: Connect) -> None:
    broker = start_broker(SPREAD)
    publisher = connect(broker)
    for number in range(120):
        put(publisher, "work", b"%d" % number, partition_key=f"k{number % 6}")
    clients = [connect(broker) for _ in range(3)]
    settled: list[int] = []
    for joining, upto in zip(clients, (40, 80, 120), strict=True):
        consume(joining, "work", exclusive="true", prefetch=5)
        while len(settled) < upto:
            for client, packets in zip(clients, gather(min(5, upto - len(settled)), *clients), strict=True):
                settled += [int(packet.payload) for packet in packets]
                ack(client, *packets)
    assert sorted(settled) == list(range(120))
    for key in range(6):
        mine = [number for number in settled if number % 6 == key]
        assert mine == sorted(mine)


def test_exclusive_and_shared_do_not_mix(start_broker: Start, connect: Connect) -> None:
    broker = start_broker(SPREAD)
    shared, other = connect(broker), connect(broker)
    consume(shared, "work")
    asked = [("user_property", ("exclusive", "true"))]
    other.subscribe("$queue/work", qos=1, properties=asked, expect=[0x83])
    other.subscribe("$queue/work", qos=1, properties=[*asked, ("user_property", ("consumer-group", "mine"))])
    shared.drop()
    third, fourth = connect(broker), connect(broker)
    third.subscribe("$queue/work", qos=1, properties=asked)
    consume(fourth, "work")                     # takes part as the others do: 3.1.1 cannot ask
    assert sorted(map(len, owners(connect(broker), third, fourth))) == [2, 2]
    broker.restart()
    again = connect(broker)
    again.subscribe("$queue/work", qos=1, properties=asked)
    assert len(owners(connect(broker), again)[0]) == 4


# ---------------------------------------------------------------- what a delivery says of those before


def test_counts_on_the_wire_whatever_brought_it_back(start_broker: Start, connect: Connect) -> None:
    """nack, an error as PUBACK, a lease, a lost connection, a killed broker: each counts one, for everybody to see."""
    broker = start_broker({"name": "work", "retry": {"max_retries": 0, "initial_backoff": "1ms"}})
    put(connect(broker), "work", b"x")
    consumer = connect(broker)
    consume(consumer, "work", ack="manual")
    order(consumer, "nack", consumer.receive(), delay=0)
    packet = consumer.expect(Publish)
    assert users(packet)["delivery-count"] == "2"
    consumer.drop()
    consumer = connect(broker)
    consume(consumer, "work")
    packet = consumer.expect(Publish)
    assert users(packet)["delivery-count"] == "3"
    ack(consumer, packet, reason=0x80)
    packet = consumer.expect(Publish)
    assert users(packet)["delivery-count"] == "4"
    consumer.unsubscribe("$queue/work")
    consume(consumer, "work", visibility_timeout=0.1)
    assert [users(consumer.expect(Publish))["delivery-count"] for _ in range(2)] == ["5", "6"]
    broker.kill()
    broker.start()
    consumer = connect(broker)
    consume(consumer, "work")
    packet = consumer.receive()
    told = users(packet)
    assert int(told["delivery-count"]) >= 7 and told["redelivered"] == "true" and not packet.dup
    wait_until(lambda: lag(broker, "work") == 0)


@pytest.mark.parametrize("after", ["PUBLISH", "PUBREC", "PUBREL"])
def test_qos_2_comes_again_until_pubcomp(after: str, start_broker: Start, connect: Connect) -> None:
    broker = start_broker({"name": "work"})
    put(connect(broker), "work", b"x")
    consumer = connect(broker)
    consume(consumer, "work", qos=2)
    packet = consumer.expect(Publish, qos=2)
    if after != "PUBLISH":
        consumer.send(Pubrec(packet_id=packet.packet_id))
        consumer.expect(Pubrel, packet_id=packet.packet_id)
    if after == "PUBREL":
        consumer.send(Pubcomp(packet_id=packet.packet_id))
        consumer.expect_quiet()
    consumer.drop()
    again = connect(broker)
    consume(again, "work", qos=2)
    if after == "PUBREL":
        again.expect_quiet()
        assert lag(broker, "work") == 0
    else:
        assert users(again.receive())["delivery-count"] == "2"


def test_3_1_1_takes_part_without_a_word(start_broker: Start, connect: Connect) -> None:
    """No user properties, so no group and no count; but PUBACK settles, and what it left comes again to others."""
    broker = start_broker({"name": "work"})
    old = connect(broker, version=4)
    consume(old, "work")
    put(connect(broker), "work", b"1", b"2")
    one, two = take(old, b"1", b"2")
    ack(old, two)
    old.drop()
    new = connect(broker)
    consume(new, "work")
    packet = new.receive(payload=b"1")
    assert users(packet)["delivery-count"] == "2"
    new.expect_quiet()
    assert one.payload == b"1" and lag(broker, "work") == 0
