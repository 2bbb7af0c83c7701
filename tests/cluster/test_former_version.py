"""Nodes of the former version and of this one are one cluster: all that crosses from one to the other, both ways, while
either is killed and started again, and when the former ones are upgraded one after the other.

Skipped where there is no former version (kit/former.py). The tests share a cluster, and the last one upgrades it.
"""
from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kit.amqp_wire import Wire, wire
from kit.client import Client
from kit.faulty import Load
from kit.former import MixedCluster, former_home
from kit.python import HOME
from oracle.mqtt import Publish, Pubrec, Pubrel

from fluxmq.app.admin_client import AdminClient

FORMER = former_home()
pytestmark = pytest.mark.timeout(400)      # each wait has a limit of its own
OLD, NEW, ALSO_OLD = 0, 1, 2
MIB = 1 << 20
SIZES = (5, MIB - 100, MIB + 100, 3 * MIB)
ways = pytest.mark.parametrize(("source", "target"), [(OLD, NEW), (NEW, OLD)], ids=["to-new", "to-old"])
PERSISTENT = {"delivery_mode": 2}
KEPT: dict[str, Any] = {"clean_start": False, "properties": {"session_expiry_interval": 3600}}
AT_ONCE = 20


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MixedCluster]:
    with MixedCluster(tmp_path_factory.mktemp("mixed"), FORMER, former=(OLD, ALSO_OLD), ttl_s=6, settings={
            "broker.max_message_size": 4 * MIB}) as cluster:
        yield cluster


@pytest.fixture
def cluster(shared: MixedCluster) -> Iterator[MixedCluster]:
    shared.wait(shared.everybody_serves)
    yield shared
    for broker in shared.brokers:
        broker.check()


def connected(cluster: MixedCluster, number: int, name: str) -> Client:
    client = cluster.client(number)
    client.connect(name)
    return client


def queue_of(cluster: MixedCluster, owner: int, client: Wire, name: str) -> str:
    """A durable queue that this node has: each new one goes to where there are fewest, so three go to three nodes."""
    names = [f"{name}-{number}" for number in range(len(cluster.brokers))]
    for each in names:
        client.call(1, "queue.declare", queue=each, durable=True)
    with contextlib.closing(AdminClient(cluster[owner].directory / "data" / "admin.sock")) as admin:
        rows = {row["name"]: row["node"] for row in admin.ask("GET", "queues")["queues"]}
    return next(each for each in names if rows[each] == cluster.names[owner])


def test_each_node_runs_its_own_version(cluster: MixedCluster) -> None:
    """Else the others would show nothing."""
    assert Path(HOME) != FORMER
    assert [cluster.home(number) for number in range(3)] == [FORMER, Path(HOME), FORMER]


@ways
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_messages_cross(cluster: MixedCluster, source: int, target: int, qos: int) -> None:
    """Small ones, and some of many frames of HTTP/2, in order and whole."""
    topic = f"cross/{source}/{qos}"
    subscriber, publisher = connected(cluster, target, "subscriber"), connected(cluster, source, "publisher")
    subscriber.subscribe(topic, qos=qos)
    payloads = [random.Random(size).randbytes(size) for size in SIZES for _ in range(2)]
    payloads += [b"%d" % number for number in range(AT_ONCE)]
    for payload in payloads:
        publisher.publish(topic, payload, qos)
    for payload in payloads:
        got = subscriber.receive(topic, qos=qos)
        assert got.payload == payload, f"{len(got.payload)} bytes for {len(payload)}"
    subscriber.expect_quiet()


@ways
def test_retained_messages_are_the_same_at_both(cluster: MixedCluster, source: int, target: int) -> None:
    """What one has acknowledged the other has: a value, one in its place that a client of the other sets, and none."""
    topic = f"kept/{source}"
    values = [(source, b"first"), (target, b"second"), (source, random.Random(1).randbytes(MIB)), (target, b"")]
    publishers = {number: connected(cluster, number, f"publisher-{number}") for number in (source, target)}
    for number, payload in values:
        publishers[number].publish(topic, payload, 1, retain=True)
        for other in (target, source):
            reader = connected(cluster, other, f"reader-{other}")
            reader.subscribe(topic, qos=1)
            if payload:
                assert reader.receive(topic, retain=True).payload == payload
            reader.expect_quiet()
            reader.disconnect()


@pytest.mark.parametrize("owner", [OLD, NEW])
@pytest.mark.parametrize("publisher", [OLD, NEW])
def test_a_queue_of_one_has_clients_at_the_other(cluster: MixedCluster, owner: int, publisher: int) -> None:
    """Its consumer is at the node that does not have it."""
    with contextlib.ExitStack() as ends:
        at = {number: ends.enter_context(contextlib.closing(wire(cluster, number))) for number in (OLD, NEW)}
        name = queue_of(cluster, owner, at[OLD], f"work-{owner}-{publisher}")
        consumer = at[NEW if owner == OLD else OLD]
        consumer.call(1, "basic.qos", prefetch_count=AT_ONCE // 2)
        consumer.call(1, "basic.consume", queue=name)
        at[publisher].call(1, "confirm.select")
        bodies = [b"%d" % number * (1 if number else MIB) for number in range(AT_ONCE)]
        for body in bodies:
            at[publisher].publish(1, "", name, body, PERSISTENT)
        for body in bodies:
            got = consumer.expect_content(1)
            assert got.body == body and not got.arguments["redelivered"]
            consumer.send(1, "basic.ack", delivery_tag=got.arguments["delivery_tag"])
        assert consumer.call(1, "queue.declare", queue=name, passive=True)["message_count"] == 0


@ways
def test_a_session_goes_on_at_the_other(cluster: MixedCluster, source: int, target: int) -> None:
    """What came while its client was away, and what it has not acknowledged when it connects elsewhere."""
    name, topic = f"session-{source}", f"session/{source}"
    first, publisher = cluster.client(source), connected(cluster, source, f"publisher-{source}")
    first.connect(name, **KEPT)
    first.subscribe(topic, qos=2)
    first.drop()
    for number in range(AT_ONCE):
        publisher.publish(topic, b"%d" % number, 1 + number % 2)
    second = cluster.client(target)
    assert second.connect(name, **KEPT).session_present
    for number in range(AT_ONCE):
        second.receive(topic, b"%d" % number, qos=1 + number % 2)
    publisher.publish(topic, b"not acknowledged", 1)
    publisher.publish(topic, b"not released", 2)
    second.expect(Publish, payload=b"not acknowledged")
    packet_id = second.expect(Publish, payload=b"not released").packet_id
    assert packet_id is not None
    second.send(Pubrec(packet_id=packet_id))
    second.expect(Pubrel, packet_id=packet_id)
    third = cluster.client(source)
    assert third.connect(name, **KEPT).session_present
    second.expect_closed(0x8E)
    again = {type(packet): packet for packet in (third.recv(), third.recv())}
    assert again[Publish].payload == b"not acknowledged" and again[Pubrel].packet_id == packet_id


@pytest.mark.parametrize("number", [OLD, NEW], ids=["old", "new"])
def test_a_node_is_killed_and_started_again(cluster: MixedCluster, number: int) -> None:
    """Under load of clients at all nodes: nothing that was acknowledged is lost (Load says it)."""
    with Load(cluster, f"killed-{number}", [number]) as load:
        cluster[number].kill()
        load.goes_on()
        cluster[number].start()
        cluster.wait(cluster.everybody_serves)
        load.goes_on()


def test_the_former_nodes_are_upgraded(cluster: MixedCluster) -> None:
    """One after the other, under load: what they have kept is there, and nobody loses more than a connection."""
    home = Path(HOME)
    payloads = {number: random.Random(number).randbytes(MIB) for number in (OLD, ALSO_OLD)}
    queues = {}
    for number, payload in payloads.items():
        client = connected(cluster, number, f"before-{number}")
        client.publish(f"stays/{number}", payload, 1, retain=True)
        sleeper = cluster.client(number)
        sleeper.connect(f"sleeper-{number}", **KEPT)
        sleeper.subscribe(f"sleeper/{number}", qos=1)
        sleeper.drop()
        client.publish(f"sleeper/{number}", b"before", 1)
        with contextlib.closing(wire(cluster, number)) as amqp:
            queues[number] = queue_of(cluster, number, amqp, f"stays-{number}")
            amqp.call(1, "confirm.select")
            amqp.publish(1, "", queues[number], payload, PERSISTENT)
            amqp.expect(1, "basic.ack")
    with Load(cluster, "upgraded") as load:
        for number, others in ((OLD, [home, FORMER]), (ALSO_OLD, [home, home])):
            cluster.upgrade(number)
            cluster.wait(cluster.everybody_serves)
            load.goes_on()
            assert [cluster.home(one) for one in range(3)] == [home, *others]
    for number, payload in payloads.items():
        for at in (number, NEW):
            reader = connected(cluster, at, f"after-{number}-{at}")
            reader.subscribe(f"stays/{number}", qos=1)
            assert reader.receive(f"stays/{number}", retain=True).payload == payload
        client = cluster.client(number)
        assert client.connect(f"sleeper-{number}", **KEPT).session_present
        reader.publish(f"sleeper/{number}", b"after", 1)
        for said in (b"before", b"after"):
            client.receive(f"sleeper/{number}", said)
        with contextlib.closing(wire(cluster, NEW)) as amqp:
            got = amqp.get(1, queues[number])
            assert got is not None and got.body == payload
