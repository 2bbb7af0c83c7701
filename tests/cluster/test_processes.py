"""A cluster as its users run it: three processes with their etcd members, and clients that hop between them."""
from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from kit.amqp_wire import wire
from kit.broker import Broker, BrokerDied
from kit.client import Nothing
from kit.cluster import Cluster
from oracle.mqtt import Publish, Suback, Subscribe, Unsuback, Unsubscribe

from fluxmq._core.client.message import Message
from fluxmq.bench.load.mqtt_session import MqttSession

SUBACKS, SUBACKS_AT_ONCE = 10_000, 50
LARGE = 65 << 20


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    settings = {"broker.max_message_size": 255 << 20}
    with Cluster(tmp_path_factory.mktemp("cluster"), 3, settings=settings) as cluster:
        yield cluster


def test_a_cluster_of_which_one_node_does_not_start_leaves_nothing_running(tmp_path: Path) -> None:
    broken = Cluster(tmp_path, 3)
    broken.brokers[2].settings["cluster.etcd.binary"] = str(tmp_path / "nothing")
    with pytest.raises(BrokerDied, match="nothing"), broken:
        pass
    assert [bool(broker.addresses) for broker in broken.brokers] == [True, True, False]     # those that had started
    assert not any(broker.running for broker in broken.brokers)
    assert [broken.member_pid(number) for number in range(3)] == [0, 0, 0]


def test_one_leader_and_every_node_known_to_all(cluster: Cluster) -> None:
    for number in range(3):
        cluster.wait(lambda number=number: len(cluster.nodes(number)) == 3)  # type: ignore[misc]
        assert cluster.view(number)["state"] == "serving"
    cluster.wait(lambda: len({cluster.view(number)["leader"] for number in range(3)} - {""}) == 1)
    assert {cluster.view(number)["env"] for number in range(3)} == {cluster.view(0)["env"]}


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_publishes_reach_subscribers_on_other_nodes(cluster: Cluster, qos: int) -> None:
    subscribers = [cluster.client(number) for number in range(3)]
    for number, subscriber in enumerate(subscribers):
        subscriber.connect(f"s{qos}-{number}")
        subscriber.subscribe(f"all/{qos}/#", qos=qos)
    publisher = cluster.client(1)
    publisher.connect(f"p{qos}")
    for count in range(20):
        publisher.publish(f"all/{qos}/x", b"%d" % count, qos)
    for subscriber in subscribers:
        for count in range(20):
            subscriber.receive(f"all/{qos}/x", b"%d" % count)


class Sizes(MqttSession):
    """A client, faster than the kit's, that keeps the sizes of payloads."""

    def __init__(self, address: tuple[str, int], name: str) -> None:
        self.sizes: list[int] = []
        super().__init__("{}:{}".format(*address), name, acknowledges=True)

    def _came(self, message: Message) -> None:
        super()._came(message)
        self.sizes.append(len(message.payload))


def test_a_large_message_reaches_another_node(cluster: Cluster) -> None:
    """And what comes behind it is not held up."""
    with (Sizes(cluster[2].addresses["mqtt/tcp/plain"], "large-subscriber") as subscriber,
          Sizes(cluster[0].addresses["mqtt/tcp/plain"], "large-publisher") as publisher):
        subscriber.subscribe_to("large", 1)
        for size in (LARGE, 5):
            publisher.publish_all(["large"], bytes(size), retain=False)
        subscriber.until_delivered(2)
        assert subscriber.sizes == [LARGE, 5]


def test_a_subscription_counts_on_every_node_when_its_suback_has_come(cluster: Cluster) -> None:
    """Each publish leaves when the SUBACK of its topic is there; with QoS 0 it is lost if nobody there knows of it."""
    subscriber, publisher = cluster.client(0), cluster.client(1)
    subscriber.connect("suback-subscriber")
    publisher.connect("suback-publisher")
    for first in range(0, SUBACKS, SUBACKS_AT_ONCE):
        topics = {number - first + 1: f"suback/{number}" for number in range(first, first + SUBACKS_AT_ONCE)}
        subscriber.send(*(Subscribe(packet_id=packet_id, filters=[(topic, 0)]) for packet_id, topic in topics.items()))
        missing = set(topics.values())
        while missing:
            packet = subscriber.recv()
            if isinstance(packet, Suback):
                publisher.send(Publish(topic=topics[packet.packet_id], payload=b""))
            else:
                assert isinstance(packet, Publish)
                missing.remove(str(packet.topic))
        subscriber.send(Unsubscribe(packet_id=1, filters=list(topics.values())))
        subscriber.expect(Unsuback, packet_id=1)


def test_a_session_is_where_its_client_connects(cluster: Cluster) -> None:
    first, publisher = cluster.client(0), cluster.client(1)
    first.connect("hopper", clean_start=False, properties={"session_expiry_interval": 1000})
    first.subscribe("hop/#", qos=1)
    first.drop()
    publisher.connect("hop-publisher")
    for count in range(10):
        publisher.publish("hop/x", b"%d" % count, 1)
    second = cluster.client(2)
    assert second.connect("hopper", clean_start=False,
                          properties={"session_expiry_interval": 1000}).session_present
    for count in range(10):
        second.receive("hop/x", b"%d" % count)


def test_a_client_that_connects_elsewhere_is_disconnected_where_it_was(cluster: Cluster) -> None:
    first, second = cluster.client(0), cluster.client(1)
    first.connect("twice")
    second.connect("twice")
    first.expect_closed(0x8E)


def test_a_shared_subscription_has_members_on_every_node(cluster: Cluster) -> None:
    members = {name: cluster.client(number) for name, number in
               (("m0", 0), ("m1", 1), ("m2", 1), ("m3", 2), ("m4", 2), ("m5", 2))}
    for name, member in members.items():
        member.connect(name, properties={"receive_maximum": 1000})
        member.subscribe("$share/g/share/#", qos=1)
    publisher = cluster.client(0)
    publisher.connect("share-publisher")
    for count in range(60):
        publisher.publish("share/x", b"%d" % count, 1)
    came: dict[str, list[bytes]] = {}
    for name, member in members.items():
        came[name] = []
        with contextlib.suppress(Nothing):
            while True:
                packet = member.recv(0.5)
                assert isinstance(packet, Publish)
                came[name].append(packet.payload)
    everything = [payload for some in came.values() for payload in some]
    assert sorted(everything) == sorted(b"%d" % count for count in range(60))
    assert all(8 <= len(some) <= 12 for some in came.values()), came        # ten each, more or less
    for name in ("m1", "m2", "m3", "m4", "m5"):
        members[name].drop()                            # without having acknowledged anything
    left = set(everything) - set(came["m0"])
    again = {members["m0"].receive("share/x").payload for _ in left}
    assert again == left


def test_a_killed_node_is_given_up_and_comes_back(cluster: Cluster) -> None:
    epoch = cluster.nodes(1)["n0"]["epoch"]
    client = cluster.client(0)
    client.connect("of-n0")
    client.subscribe("kill/#", qos=1)
    cluster[0].kill()
    cluster.wait(lambda: "n0" not in cluster.nodes(1) and "n0" not in cluster.nodes(2))
    again, publisher = cluster.client(1), cluster.client(2)
    again.connect("of-n0")
    again.subscribe("kill/#", qos=1)
    publisher.connect("kill-publisher")
    publisher.publish("kill/x", b"while it is away", 1)
    again.receive("kill/x", b"while it is away")
    cluster[0].start()
    cluster.wait(lambda: cluster.nodes(1).get("n0", {}).get("epoch", 0) > epoch)
    third = cluster.client(0)
    third.connect("of-n0")
    third.subscribe("kill/#", qos=1)
    publisher.publish("kill/x", b"when it is back", 1)
    third.receive("kill/x", b"when it is back")


def test_the_sessions_of_a_killed_node_are_adopted_and_get_all_it_held(cluster: Cluster) -> None:
    """What is published while nobody has the session is acknowledged when a new owner has it."""
    kept = {"session_expiry_interval": 1000}
    first, publisher = cluster.client(0), cluster.client(1)
    first.connect("kept", clean_start=False, properties=kept)
    first.subscribe("kept/#", qos=1)
    first.drop()
    publisher.timeout = 60.0        # a PUBACK waits for a lease to end, and for who takes the session
    publisher.connect("kept-publisher")
    for count in range(5):
        publisher.publish("kept/x", b"held %d" % count, 1)
    epoch = cluster.nodes(1)["n0"]["epoch"]
    cluster[0].kill()
    for count in range(5):
        publisher.publish("kept/x", b"meanwhile %d" % count, 1)
    assert "n0" not in cluster.nodes(1)             # the first of them has waited for that
    second = cluster.client(2)
    second.timeout = 60.0
    assert second.connect("kept", clean_start=False, properties=kept).session_present
    for count in range(5):
        second.receive("kept/x", b"meanwhile %d" % count)
    cluster[0].start()
    cluster.wait(lambda: cluster.nodes(1).get("n0", {}).get("epoch", 0) > epoch)
    for count in range(5):
        second.receive("kept/x", b"held %d" % count)
    third = cluster.client(0)
    assert third.connect("kept", clean_start=False, properties=kept).session_present
    publisher.publish("kept/x", b"after", 1)
    third.receive("kept/x", b"after")


def pollers_of(broker: Broker) -> int:
    """How many lives' pollers the process has: each has a timer."""
    assert broker.process is not None
    return sum(os.readlink(one) == "anon_inode:[timerfd]" for one in Path(f"/proc/{broker.process.pid}/fd").iterdir()
               if one.is_symlink())


def test_a_node_that_stood_still_serves_nobody_and_joins_again(cluster: Cluster) -> None:
    """Nothing of its former life is left, although a queue still had something to do in it."""
    epoch = cluster.nodes(1)["n2"]["epoch"]
    assert pollers_of(cluster[2]) == 1
    amqp = wire(cluster, 2)
    amqp.call(1, "queue.declare", queue="of-n2", durable=True)
    amqp.publish(1, "", "of-n2", b"goes back to the queue")
    amqp.call(1, "basic.consume", queue="of-n2")
    amqp.expect_content(1)
    client = cluster.client(2)
    client.connect("of-n2")
    client.subscribe("still/#", qos=1)
    cluster.pause(2)
    cluster.wait(lambda: "n2" not in cluster.nodes(1))
    other = cluster.client(1)
    other.connect("of-n2")
    other.subscribe("still/#", qos=1)
    client.send(Publish(topic="still/x", payload=b"to a node that is fenced", qos=1, packet_id=9))
    cluster.resume(2)
    with contextlib.suppress(ConnectionError):
        assert client.rest() == b""
    cluster.wait(lambda: cluster.nodes(1).get("n2", {}).get("epoch", 0) > epoch)
    other.expect_quiet()
    amqp.drop()
    assert pollers_of(cluster[2]) == 1


def test_the_etcd_members_end_with_their_nodes(tmp_path: Path) -> None:
    with Cluster(tmp_path, 1) as cluster:
        member = f"--data-dir={cluster[0].directory}/data/etcd".encode()

        def command_of(process: Path) -> bytes:
            with contextlib.suppress(OSError):      # it has ended meanwhile
                return (process / "cmdline").read_bytes()
            return b""

        def lives() -> bool:
            return any(member in command_of(entry) for entry in Path("/proc").iterdir() if entry.name.isdigit())

        assert lives()
        cluster[0].kill()
        cluster.wait(lambda: not lives())
        cluster[0].start()
        assert lives()
        assert cluster[0].terminate() == 0
        cluster.wait(lambda: not lives())
