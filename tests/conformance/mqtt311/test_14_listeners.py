"""Listeners: both versions on one port, ports for one version, and both versions in one conversation."""
from __future__ import annotations

from collections.abc import Callable

import pytest
from kit.broker import Broker
from kit.client import Client
from oracle.mqtt import V5, V311, Connack, Connect, Disconnect

ClientFactory = Callable[..., Client]


@pytest.mark.normative("MQTT311-3.1.2-2", "MQTT311-7.1.1-1")
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_both_versions_on_one_port(client: ClientFactory, topic: str, qos: int) -> None:
    old, new = client("old", version=V311), client("new", version=V5)
    for c in (old, new):
        c.subscribe(topic, qos=qos)
    for sender, payload in ((old, b"from the old"), (new, b"from the new")):
        p = client("pub", version=sender.version)
        p.publish(topic, payload, qos)
        for c in (old, new):
            c.receive(topic, payload, qos=qos)


def test_the_properties_of_5_stay_out_of_3_1_1(client: ClientFactory, topic: str) -> None:
    old = client("old")
    old.subscribe(topic, qos=1)
    client("pub", version=V5).publish(topic, b"x", 1, properties={
        "user_property": [("a", "b")], "content_type": "text/plain", "message_expiry_interval": 60})
    old.receive(topic, b"x")


@pytest.mark.normative("MQTT311-3.1.4-2")
def test_the_client_id_is_one_across_versions(client: ClientFactory) -> None:
    old = client("c", version=V311)
    new = client("c", version=V5)
    old.expect_closed()
    client("c", version=V311)
    packet = new.expect_closed(0x8E)
    assert isinstance(packet, Disconnect)


def test_a_session_may_change_its_version(client: ClientFactory, offline: Callable[..., None], topic: str) -> None:
    offline("c", topic, qos=1)
    client("pub").publish(topic, b"x", 1)
    new = client("c", version=V5, clean_start=False, properties={"session_expiry_interval": 600})
    assert new.connack is not None and new.connack.session_present
    new.receive(topic, b"x", qos=1)
    new.disconnect()
    client("pub").publish(topic, b"y", 1)
    client("c", clean_start=False).receive(topic, b"y", qos=1)


@pytest.fixture
def pinned(start_broker: Callable[..., Broker]) -> Broker:
    return start_broker({"server.mqtt.tcp.v3.addr": "127.0.0.1:0", "server.mqtt.tcp.v5.addr": "127.0.0.1:0"})


@pytest.mark.normative("MQTT311-3.1.2-2", "MQTT311-3.2.2-5")
def test_a_listener_for_one_version_refuses_the_other(pinned: Broker, open_client: ClientFactory) -> None:
    old = open_client(pinned.addresses["mqtt/tcp/v5"], V311)
    old.send(Connect(client_id="old"))
    old.expect(Connack, reason=1, session_present=False)
    assert old.expect_closed() is None
    new = open_client(pinned.addresses["mqtt/tcp/v3"], V5)
    new.send(Connect(client_id="new"))
    assert isinstance(new.expect_closed(0x84), Connack)


def test_a_listener_for_one_version_serves_it(pinned: Broker, open_client: ClientFactory, topic: str) -> None:
    """3.1 goes with 3.1.1, and clients of all listeners meet."""
    plain = open_client(pinned, V311)
    plain.connect("plain")
    plain.subscribe(topic)
    for slot, version in (("mqtt/tcp/v3", V311), ("mqtt/tcp/v5", V5)):
        c = open_client(pinned.addresses[slot], version)
        c.connect(f"v{version}")
        c.publish(topic, b"x")
        c.disconnect()
        plain.receive(topic, b"x")
    ancient = open_client(pinned.addresses["mqtt/tcp/v3"], V311)
    ancient.send(Connect(client_id="ancient", protocol_name="MQIsdp", protocol_level=3))
    ancient.expect(Connack, reason=0)
