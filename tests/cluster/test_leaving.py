"""Nodes that leave in good order, one after the other, under load: real processes."""
from __future__ import annotations

from pathlib import Path

import pytest
from kit.amqp_wire import wire
from kit.cluster import Cluster, cluster_command
from kit.hoppers import Publisher, Subscriber
from oracle.mqtt import Disconnect, Packet

KEPT = {"session_expiry_interval": 1000}


def reference_of(packet: Packet | None) -> str:
    """Where a DISCONNECT sends its client."""
    assert isinstance(packet, Disconnect)
    return str(dict(packet.properties)["server_reference"])


def test_clients_are_told_where_their_session_is(tmp_path: Path) -> None:
    with Cluster(tmp_path, 3) as cluster:
        clients = [cluster.client(0) for _ in range(12)]
        for number, client in enumerate(clients):
            client.connect(f"c{number}", clean_start=False, properties=KEPT if number < 10 else {})
            client.subscribe(f"own/{number}", qos=1)
        old = cluster.client(0, version=4)
        old.connect("old", clean_start=False)
        old.subscribe("own/old", qos=1)
        others = {"{}:{}".format(*cluster[number].address): number for number in (1, 2)}
        assert cluster[0].terminate() == 0
        told = []
        for client in clients:
            told.append(others[reference_of(client.expect_closed(0x9C))])
        assert set(told) == {1, 2}              # they are spread
        old.expect_closed()
        publisher = cluster.client(1)
        publisher.connect("p")
        for number in range(10):
            publisher.publish(f"own/{number}", b"while it is away", 1)
        publisher.publish("own/old", b"while it is away", 1)
        for number in range(10):
            client = cluster.client(told[number])
            assert client.connect(f"c{number}", clean_start=False, properties=KEPT).session_present
            client.receive(f"own/{number}", b"while it is away")
        again = cluster.client(2, version=4)
        assert again.connect("old", clean_start=False).session_present
        again.receive("own/old", b"while it is away")
        assert "not all sessions" not in cluster[0].stderr()


def test_a_rolling_restart_loses_nothing(tmp_path: Path) -> None:
    """Each node is stopped and started again under load: everything that was acknowledged arrives, and no client loses
    more than the connection to a node that stopped."""
    with Cluster(tmp_path, 3) as cluster:
        nodes = [cluster[number].address for number in range(3)]

        def beginning_at(number: int) -> list[tuple[str, int]]:
            return nodes[number:] + nodes[:number]

        subscribers = [Subscriber(f"s{number}", beginning_at(number % 3), "load/#") for number in range(6)]
        publishers = [Publisher(f"p{number}", beginning_at(number % 3), f"load/{number}") for number in range(6)]
        for hoppers in (subscribers, publishers):
            for hopper in hoppers:
                hopper.start()
            for hopper in hoppers:
                assert hopper.connected.wait(60)
        for number in range(3):
            before = [hopper.lost for hopper in (*subscribers, *publishers)]
            assert cluster[number].terminate() == 0
            cluster[number].start()
            cluster.wait(lambda: all(hopper.connected.is_set() for hopper in (*subscribers, *publishers)))
            counts = [len(publisher.acknowledged) for publisher in publishers]
            cluster.wait(lambda counts=counts: all(  # type: ignore[misc]
                len(publisher.acknowledged) > count + 10
                for publisher, count in zip(publishers, counts, strict=True)))
            after = [hopper.lost for hopper in (*subscribers, *publishers)]
            assert all(now - then <= 1 for then, now in zip(before, after, strict=True)), (before, after)
        for publisher in publishers:
            publisher.stop()
        everything = {payload for publisher in publishers for payload in publisher.acknowledged}
        cluster.wait(lambda: all(everything <= set(subscriber.got) for subscriber in subscribers))
        for subscriber in subscribers:
            subscriber.stop()
        for hopper in (*subscribers, *publishers):
            assert (hopper.absent, hopper.refused) == (0, 0), hopper.name
        assert not any(publisher.refusals for publisher in publishers)
        for broker in cluster.brokers:
            assert "not all sessions" not in broker.stderr()


def test_a_node_is_taken_out_by_command(tmp_path: Path) -> None:
    with Cluster(tmp_path, 2, settings={"server.amqp091.plain.addr": "127.0.0.1:0"}) as cluster:
        client, plain, amqp = cluster.client(0), cluster.client(0), wire(cluster, 0)
        for number in range(4):                 # two for each node
            amqp.call(1, "queue.declare", queue=f"q{number}", durable=True)
        amqp.call(1, "queue.declare", queue="mine", exclusive=True)
        client.connect("c", clean_start=False, properties=KEPT)
        client.subscribe("left/#", qos=1)
        plain.connect("plain")
        said = cluster_command(cluster[0], "leave", "--yes")
        # What it says meanwhile depends on when it looks: unit/test_cluster_views.py.
        assert "n0 has left, and 2 queues moved" in said
        assert "n0 has given back its vote in etcd: etcd has 1 member with a vote now, and needs 1 of it" in said
        assert "queue mine stays with it: it is exclusive to a connection of its node" in said
        for each in (client, plain):
            assert reference_of(each.expect_closed(0x9D)) == "{}:{}".format(*cluster[1].address)
        process = cluster[0].process
        assert process is not None and process.wait(30) == 0
        again = cluster.client(1)
        assert again.connect("c", clean_start=False, properties=KEPT).session_present
        # The lease was given up; the vote went before, so the other member may have had to elect itself first.
        cluster.wait(lambda: "n0" not in cluster.nodes(1))
        # The other node decides alone now, and has nobody to hand its sessions to.
        cluster.wait(lambda: cluster.votes(1) == {"n1": ("voter", True)})
        assert "no other node" in cluster_command(cluster[1], "leave", "--yes")


@pytest.mark.soak       # simulator/cluster/test_leaving.py plays it
def test_a_node_says_what_it_could_not_hand_over(tmp_path: Path) -> None:
    """The other node stands still, and its member of etcd does not."""
    with Cluster(tmp_path, 2, settings={"cluster.leave_timeout": 1}) as cluster:
        client = cluster.client(0)
        client.connect("c", clean_start=False, properties=KEPT)
        cluster.pause(1)
        assert cluster[0].terminate() == 0
        [line] = [line for line in cluster[0].stderr().splitlines() if "not all sessions were handed over" in line]
        assert "the other nodes adopt the rest" in line and "sessions=1" in line
        cluster.resume(1)
        cluster[0].start()
        assert cluster.client(0).connect("c", clean_start=False, properties=KEPT).session_present
