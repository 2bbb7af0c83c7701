"""The Will Message: when it is published, how, and when not."""
from __future__ import annotations

from collections.abc import Callable

import pytest
from kit.broker import Broker
from kit.client import Client
from oracle.mqtt import Connect, Publish, Will

ClientFactory = Callable[..., Client]


def _watch(client: ClientFactory, topic: str, qos: int = 2) -> Client:
    watcher = client("watcher")
    watcher.subscribe(f"{topic}/#", qos=qos)
    return watcher


@pytest.mark.normative("MQTT311-3.1.2-8", "MQTT311-3.1.2-9", "MQTT311-3.1.2-14")
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_lost_connection_publishes_the_will(client: ClientFactory, topic: str, qos: int) -> None:
    watcher = _watch(client, topic)
    client(will=Will(topic=f"{topic}/will", payload=b"gone", qos=qos)).close()
    watcher.receive(f"{topic}/will", b"gone", qos=qos, retain=False, dup=False)


@pytest.mark.normative("MQTT311-3.1.2-8")
@pytest.mark.parametrize("reason", ["violation", "takeover", "wrong-disconnect"])
def test_a_connection_closed_by_the_server_publishes_the_will(client: ClientFactory, topic: str, reason: str) -> None:
    watcher = _watch(client, topic)
    c = client("c", will=Will(topic=f"{topic}/will", payload=b"gone", qos=1))
    if reason == "takeover":
        client("c")
    else:
        c.send(b"\0\0" if reason == "violation" else b"\xe1\x00")
    c.expect_closed()
    watcher.receive(f"{topic}/will", b"gone")
    watcher.expect_quiet()


@pytest.mark.normative("MQTT311-3.1.2-8", "MQTT311-3.1.2-24")
def test_silence_publishes_the_will(client: ClientFactory, topic: str) -> None:
    watcher = _watch(client, topic)
    client(keep_alive=1, will=Will(topic=f"{topic}/will", payload=b"silent", qos=1)).expect_closed()
    watcher.receive(f"{topic}/will", b"silent")


@pytest.mark.normative("MQTT311-3.1.2-8", "MQTT311-3.1.2-10", "MQTT311-3.14.4-3")
def test_disconnect_discards_the_will(client: ClientFactory, topic: str) -> None:
    watcher = _watch(client, topic)
    client("c", will=Will(topic=f"{topic}/will", payload=b"never", qos=1)).disconnect()
    client("c").close()                                     # nor does it come with a later connection that is lost
    watcher.expect_nothing()
    watcher.expect_quiet()


@pytest.mark.normative("MQTT311-3.1.2-10")
def test_a_will_is_published_once(client: ClientFactory, topic: str) -> None:
    watcher = _watch(client, topic)
    client("c", clean_start=False, will=Will(topic=f"{topic}/will", payload=b"once", qos=1)).close()
    watcher.receive(f"{topic}/will", b"once")
    client("c", clean_start=False).close()
    client("c", clean_start=False).close()
    watcher.expect_nothing()


@pytest.mark.normative("MQTT311-3.1.2-12")
def test_without_a_will_nothing_is_published(client: ClientFactory, topic: str) -> None:
    """The connection before had one: it went out with that connection, and does not come back with the next."""
    watcher = _watch(client, topic)
    first = client("c", clean_start=False, will=Will(topic=f"{topic}/will", payload=b"the first's", qos=1))
    second = client("c", clean_start=False)
    first.expect_closed()
    watcher.receive(f"{topic}/will", b"the first's")
    second.close()
    watcher.expect_nothing()


@pytest.mark.normative("MQTT311-3.1.2-8")
def test_each_connection_has_its_own_will(client: ClientFactory, topic: str) -> None:
    watcher = _watch(client, topic)
    client("c", clean_start=False, will=Will(topic=f"{topic}/one", payload=b"1", qos=1)).disconnect()
    client("c", clean_start=False, will=Will(topic=f"{topic}/two", payload=b"2", qos=1)).close()
    watcher.receive(f"{topic}/two", b"2")
    watcher.expect_quiet()


@pytest.mark.normative("MQTT311-3.1.2-8")
def test_a_refused_connect_leaves_no_will(client: ClientFactory, open_client: ClientFactory, topic: str) -> None:
    watcher = _watch(client, topic)
    c = open_client()
    c.connect("", clean_start=False, expect=2, will=Will(topic=f"{topic}/will", payload=b"never"))
    c.expect_closed()
    watcher.expect_nothing()


@pytest.mark.normative("MQTT311-3.1.2-16")
def test_will_retain_0_is_not_retained(client: ClientFactory, topic: str) -> None:
    watcher = _watch(client, topic)
    client("p").publish(f"{topic}/will", b"retained before", 1, retain=True)
    watcher.receive(payload=b"retained before")
    client(will=Will(topic=f"{topic}/will", payload=b"gone", qos=1)).close()
    watcher.receive(f"{topic}/will", b"gone", retain=False)
    late = client("late")
    late.subscribe(f"{topic}/#", qos=1)
    late.receive(f"{topic}/will", b"retained before", retain=True)
    late.expect_quiet()


@pytest.mark.normative("MQTT311-3.1.2-17")
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_will_retain_1_is_retained(client: ClientFactory, topic: str, qos: int) -> None:
    watcher = _watch(client, topic)
    client(will=Will(topic=f"{topic}/will", payload=b"gone", qos=qos, retain=True)).close()
    watcher.receive(f"{topic}/will", b"gone", retain=False)
    late = client("late")
    late.subscribe(f"{topic}/#", qos=2)
    late.receive(f"{topic}/will", b"gone", retain=True, qos=qos)


@pytest.mark.normative("MQTT311-3.1.2-17", "MQTT311-3.3.1-11")
def test_an_empty_retained_will_clears(client: ClientFactory, topic: str) -> None:
    watcher = _watch(client, topic)
    client("p").publish(f"{topic}/will", b"here", 1, retain=True)
    watcher.receive(payload=b"here")
    client(will=Will(topic=f"{topic}/will", retain=True)).close()
    watcher.receive(f"{topic}/will", b"", retain=False)
    late = client("late")
    late.subscribe(f"{topic}/#")
    late.expect_quiet()


@pytest.mark.normative("MQTT311-3.1.2-8")
@pytest.mark.parametrize("payload", [b"", b"\0", b"\xff" * 65535], ids=["empty", "null", "longest"])
def test_the_will_message_is_bytes(client: ClientFactory, topic: str, payload: bytes) -> None:
    watcher = _watch(client, topic)
    client(will=Will(topic=f"{topic}/will", payload=payload, qos=1)).close()
    watcher.receive(f"{topic}/will", payload)


@pytest.mark.normative("MQTT311-3.1.2-5", "MQTT311-3.1.2-8")
def test_a_will_waits_for_stored_sessions(client: ClientFactory, offline: Callable[..., None], topic: str) -> None:
    offline("sub", topic, qos=1)
    watcher = _watch(client, topic)
    client(will=Will(topic=topic, payload=b"gone", qos=1)).close()
    watcher.receive(topic, b"gone")                         # so it has been published
    client("sub", clean_start=False).receive(topic, b"gone", qos=1)


@pytest.mark.normative("MQTT311-4.7.1-1", "MQTT311-4.7.3-1", "MQTT311-3.3.2-2")
@pytest.mark.parametrize("will_topic", ["a/#", "a/+/b", "#", ""])
def test_a_will_topic_is_a_topic_name(open_client: ClientFactory, will_topic: str) -> None:
    """A CONNECT with another is refused by a return code or by silence, but it is refused."""
    c = open_client()
    c.send(Connect(client_id="a", will=Will(topic=will_topic)))
    answer = c.expect_closed()
    assert answer is None or answer.reason in (2, 5)        # type: ignore[attr-defined]


@pytest.mark.normative("MQTT311-3.1.2-8")
def test_a_will_outlives_the_broker_that_held_it(start_broker: Callable[..., Broker], client: ClientFactory,
                                                 offline: Callable[..., None], topic: str) -> None:
    """Broker and client die together; the client does not return within its keep alive and a half."""
    own = start_broker()
    if not own.ours:
        pytest.skip("only this tree's broker promises it")
    offline("sub", topic, qos=1, where=own)
    client("c", where=own, keep_alive=2, will=Will(topic=topic, payload=b"gone", qos=1)).publish(topic, b"alive", 1)
    own.kill()
    own.start()
    s = client("sub", where=own, clean_start=False)
    s.receive(topic, b"alive")
    s.receive(topic, b"gone", qos=1)
    s.expect_quiet()


@pytest.mark.normative("MQTT311-3.1.2-10")
def test_a_client_that_returns_after_the_crash_keeps_its_will(start_broker: Callable[..., Broker],
                                                              client: ClientFactory, topic: str) -> None:
    own = start_broker()
    if not own.ours:
        pytest.skip("only this tree's broker promises it")
    will = Will(topic=topic, payload=b"gone", qos=1)
    client("c", where=own, clean_start=False, keep_alive=600, will=will).publish(topic, b"x", 1)
    own.kill()
    own.start()
    watcher = client("watcher", where=own)
    watcher.subscribe(topic, qos=1)
    again = client("c", where=own, clean_start=False, keep_alive=600, will=will)
    assert again.connack is not None and again.connack.session_present
    watcher.expect_nothing()
    again.disconnect()
    watcher.expect_quiet()


def test_a_will_arrives_as_any_message(client: ClientFactory, topic: str) -> None:
    """The watcher's QoS bounds it, and a subscriber of its own client id is no exception."""
    watcher = _watch(client, topic, qos=0)
    client(will=Will(topic=f"{topic}/will", payload=b"gone", qos=2)).close()
    assert watcher.expect(Publish, payload=b"gone").qos == 0
