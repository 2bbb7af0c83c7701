"""A bridge of Debian's mosquitto with default settings: messages in both directions, its state as a retained message
and will below $SYS, reconnecting after either side was away; to one node and to a cluster."""
from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from interop.tls import wait_until
from kit.broker import Broker, free_port
from kit.client import Client, Nothing
from kit.cluster import Cluster
from kit.tools import require_tool
from oracle.mqtt import V5, Puback, Publish

Start = Callable[..., Broker]
STATES = "$SYS/broker/connection/"


class Bridging:
    """A mosquitto with a bridge of the name `link`: up/# goes to the other broker, down/# comes from it."""

    def __init__(self, directory: Path, to: tuple[str, int], version: str, cleans: bool) -> None:
        require_tool("mosquitto", package="mosquitto")
        self.address = ("127.0.0.1", free_port())
        self._config = directory / "mosquitto.conf"
        self._config.write_text("\n".join([
            f"listener {self.address[1]} {self.address[0]}", "allow_anonymous true", "connection link",
            f"address {to[0]}:{to[1]}", f"bridge_protocol_version {version}", f"cleansession {str(cleans).lower()}",
            "restart_timeout 1", "topic up/# out 1", "topic down/# in 1", ""]))
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        self._process = subprocess.Popen(["mosquitto", "-c", str(self._config)], stdout=subprocess.DEVNULL,
                                         stderr=subprocess.DEVNULL)

        def listens() -> bool:
            with contextlib.suppress(OSError):
                Client(self.address).close()
                return True
            return False

        wait_until(listens, "mosquitto does not listen")

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


@pytest.fixture
def bridge(tmp_path: Path) -> Iterator[Callable[..., Bridging]]:
    made: list[Bridging] = []

    def make(to: tuple[str, int], version: str, cleans: bool = True) -> Bridging:
        made.append(Bridging(tmp_path, to, version, cleans))
        made[-1].start()
        return made[-1]

    yield make
    for each in made:
        each.kill()


def watching(address: tuple[str, int], name: str, filter_: str) -> Client:
    client = Client(address, V5)
    client.connect(name)
    client.subscribe(filter_, qos=1)
    return client


def has(watcher: Client, payload: bytes, wait_s: float = 0.2) -> str:
    """The topic of the next message, if that is its payload; or ""."""
    with contextlib.suppress(Nothing):
        packet = watcher.recv(wait_s)
        if isinstance(packet, Publish):
            if packet.packet_id:
                watcher.send(Puback(packet_id=packet.packet_id))
            return packet.topic if packet.payload == payload else ""
    return ""


def becomes(watcher: Client, payload: bytes) -> str:
    """Waits for it, and returns the topic."""
    found: list[str] = []
    wait_until(lambda: bool(found.append(has(watcher, payload)) or found[-1]), f"{payload!r} does not come")
    return found[-1]


def carries(one: tuple[str, int], other: tuple[str, int], topic: str, payload: bytes) -> None:
    """What is published at one comes to the other; as soon as the bridge is there again."""
    there = watching(other, f"there-{payload.decode()}", topic.partition("/")[0] + "/#")
    here = Client(one, V5)
    here.connect(f"here-{payload.decode()}")

    def comes() -> bool:
        here.publish(topic, payload, qos=1)
        return has(there, payload, 0.5) == topic

    wait_until(comes, f"{payload!r} does not come")
    here.disconnect()
    there.close()


@pytest.mark.parametrize(("version", "cleans"), [("mqttv311", True), ("mqttv50", True), ("mqttv50", False)])
def test_a_bridge_with_default_settings(start_broker: Start, bridge: Callable[..., Bridging], version: str,
                                        cleans: bool) -> None:
    broker = start_broker({})
    watcher = watching(broker.address, "watcher", STATES + "#")
    other = bridge(broker.address, version, cleans)
    topic = becomes(watcher, b"1")
    assert topic.startswith(STATES) and topic.endswith(".link/state")
    carries(other.address, broker.address, "up/one", b"1-up")
    carries(broker.address, other.address, "down/one", b"1-down")

    other.kill()
    assert becomes(watcher, b"0") == topic          # its will
    other.start()
    assert becomes(watcher, b"1") == topic
    carries(other.address, broker.address, "up/two", b"2-up")

    broker.kill()
    broker.start()
    watcher = watching(broker.address, "again", topic)
    becomes(watcher, b"1")
    carries(other.address, broker.address, "up/three", b"3-up")
    carries(broker.address, other.address, "down/three", b"3-down")


def test_who_may_not_publish_there_is_no_bridge(start_broker: Start, tmp_path: Path) -> None:
    """An access list decides as about other topics, and nothing else below $SYS is anybody's."""
    acl = tmp_path / "acl"
    acl.write_text("version: 1\nrules:\n  - {allow: all, topics: ['#']}\n"
                   "  - {allow: publish, client: bridge, topics: ['$SYS/broker/connection/+/state']}\n")
    broker = start_broker({"auth.acl_file": str(acl)})
    client = Client(broker.address, V5)
    client.connect("bridge")
    for topic, reason in ((STATES + "a.link/state", 0x10), (STATES + "a/state/x", 0x87), (STATES + "state", 0x87),
                          ("$SYS/broker/uptime", 0x87)):
        client.send(Publish(topic=topic, payload=b"1", qos=1, packet_id=1, retain=True))
        assert client.recv().reason == reason, topic        # 0x10: nobody has subscribed
    other = Client(broker.address, V5)
    other.connect("somebody")
    other.send(Publish(topic=STATES + "a.link/state", payload=b"1", qos=1, packet_id=1))
    assert other.recv().reason == 0x87


def test_the_state_is_known_on_all_nodes_of_a_cluster(tmp_path: Path, bridge: Callable[..., Bridging]) -> None:
    with Cluster(tmp_path / "nodes", 3) as cluster:
        cluster.wait(cluster.everybody_serves)
        addresses = [broker.address for broker in cluster.brokers]
        watchers = [watching(address, f"w{number}", STATES + "#") for number, address in enumerate(addresses)]
        other = bridge(addresses[0], "mqttv50")
        topics = {becomes(watcher, b"1") for watcher in watchers}
        assert len(topics) == 1
        carries(other.address, addresses[1], "up/one", b"1-up")
        carries(addresses[2], other.address, "down/one", b"1-down")
        late = watching(addresses[2], "late", STATES + "#")
        becomes(late, b"1")
        other.kill()
        assert {becomes(watcher, b"0") for watcher in (*watchers, late)} == topics
