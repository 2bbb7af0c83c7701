"""Sessions: clean and stored, resumed, taken over, and what is kept for a client that is away."""
from __future__ import annotations

from collections.abc import Callable

import pytest
from kit.client import Client
from oracle.mqtt import Puback, Publish, Subscribe

ClientFactory = Callable[..., Client]
Offline = Callable[..., None]
Take = Callable[[Client, int], list[Publish]]


def _present(c: Client) -> bool:
    assert c.connack is not None
    return c.connack.session_present


@pytest.mark.normative("MQTT311-3.1.2-4", "MQTT311-3.1.4-3", "MQTT311-3.2.2-2", "MQTT311-3.2.2-3")
def test_clean_session_0_makes_then_resumes(client: ClientFactory, topic: str) -> None:
    first = client("c", clean_start=False)
    assert not _present(first)
    first.subscribe(topic, qos=1)
    first.disconnect()
    again = client("c", clean_start=False)
    assert _present(again)
    again.publish(topic, b"x")
    again.expect(Publish, topic=topic, payload=b"x")
    again.close()
    assert _present(client("c", clean_start=False))


@pytest.mark.normative("MQTT311-3.2.2-2")
def test_an_empty_session_is_a_session(client: ClientFactory) -> None:
    client("c", clean_start=False).disconnect()
    assert _present(client("c", clean_start=False))


@pytest.mark.normative("MQTT311-3.1.2-6", "MQTT311-3.1.4-3", "MQTT311-3.2.2-1", "MQTT311-3.2.2-3")
def test_clean_session_1_discards_and_leaves_nothing(client: ClientFactory, offline: Offline, topic: str) -> None:
    offline("c", topic, qos=1)
    p = client("pub")
    p.publish(topic, b"for the old session", 1)
    clean = client("c")
    assert not _present(clean)
    p.publish(topic, b"for nobody", 1)
    clean.expect_quiet()
    clean.subscribe(topic, qos=1)
    clean.disconnect()
    stored = client("c", clean_start=False)
    assert not _present(stored)
    p.publish(topic, b"for nobody", 1)
    stored.expect_quiet()


@pytest.mark.normative("MQTT311-3.1.2-6", "MQTT311-3.2.2-1")
def test_clean_session_1_knows_nothing_of_its_predecessor(client: ClientFactory, topic: str) -> None:
    first = client("c")
    first.subscribe(topic, qos=1)
    client("pub").publish(topic, b"unacknowledged", 1)
    first.expect(Publish)
    first.close()
    second = client("c")
    assert not _present(second)
    second.expect_quiet()


@pytest.mark.normative("MQTT311-3.1.2-5", "MQTT311-4.5.0-1", "MQTT311-4.1.0-1", "MQTT311-4.6.0-6")
@pytest.mark.parametrize("qos", [1, 2])
def test_messages_wait_for_a_stored_session(client: ClientFactory, offline: Offline, take: Take, topic: str, qos: int
                                            ) -> None:
    """More than ten, so that an order of numbers as text would show."""
    offline("sub", f"{topic}/+", qos=qos)
    p = client("pub")
    for number in range(25):
        p.publish(f"{topic}/a", b"%d" % number, qos)
    s = client("sub", clean_start=False)
    for number, packet in enumerate(take(s, 25)):
        assert (packet.topic, packet.payload, packet.qos) == (f"{topic}/a", b"%d" % number, qos)
        assert not packet.dup and not packet.retain
    s.expect_quiet()
    s.disconnect()
    client("sub", clean_start=False).expect_quiet()


@pytest.mark.normative("MQTT311-3.1.2-5", "MQTT311-4.5.0-1")
def test_more_messages_wait_than_may_be_in_flight(client: ClientFactory, offline: Offline, topic: str) -> None:
    offline("sub", topic, qos=1)
    p = client("pub")
    for number in range(600):
        p.send(Publish(topic=topic, payload=b"%d" % number, qos=1, packet_id=number + 1))
    for number in range(600):
        p.expect(Puback, packet_id=number + 1)
    s = client("sub", clean_start=False)
    for number in range(600):
        s.receive(topic, b"%d" % number, qos=1)
    s.expect_quiet()


@pytest.mark.normative("MQTT311-4.5.0-1")
def test_a_message_goes_to_every_session_that_matches(client: ClientFactory, offline: Offline, topic: str) -> None:
    offline("away", topic, qos=1)
    offline("away-too", f"{topic}/#", qos=2)
    here = client("here")
    here.subscribe(topic, qos=1)
    client("pub").publish(topic, b"x", 1)
    here.receive(topic, b"x")
    for role in ("away", "away-too"):
        client(role, clean_start=False).receive(topic, b"x", qos=1)


@pytest.mark.normative("MQTT311-3.1.2-5")
def test_only_what_a_subscription_asks_for_waits(client: ClientFactory, offline: Offline, topic: str) -> None:
    offline("sub", topic, qos=1)
    p = client("pub")
    p.publish(f"{topic}/other", b"x", 1)
    p.publish(topic, b"x", 1)
    s = client("sub", clean_start=False)
    s.receive(topic, b"x")
    s.expect_quiet()


@pytest.mark.normative("MQTT311-3.1.3-2")
def test_the_client_id_names_the_session(client: ClientFactory, offline: Offline, topic: str, name: Callable[[str], str]
                                         ) -> None:
    """Ids that differ a little are different, among them those in which one begins with the other and a separator."""
    ids = [name("c") + tail for tail in ("", ":", ":b", "/b", " ", "B", "b", "\ufeff", ".")]
    for number, client_id in enumerate(ids):
        offline("", f"{topic}/{number}", qos=1, client_id=client_id)
    client(client_id=ids[0]).disconnect()                   # discards the first session, and only that
    p = client("pub")
    for number in range(len(ids)):
        p.publish(f"{topic}/{number}", b"x", 1)
    assert not _present(client(client_id=ids[0], clean_start=False))
    for number, client_id in enumerate(ids[1:], 1):
        c = client(client_id=client_id, clean_start=False)
        assert _present(c)
        c.receive(f"{topic}/{number}", b"x")
        c.expect_quiet()


@pytest.mark.normative("MQTT311-3.1.4-2")
@pytest.mark.parametrize("clean", [True, False])
def test_a_second_connection_takes_over(client: ClientFactory, topic: str, clean: bool) -> None:
    first = client("c", clean_start=clean)
    first.subscribe(topic, qos=1)
    second = client("c", clean_start=clean)
    assert first.expect_closed() is None
    assert _present(second) is not clean
    client("pub").publish(topic, b"x", 1)
    if not clean:
        second.receive(topic, b"x")
    second.expect_quiet()


@pytest.mark.normative("MQTT311-3.1.4-2", "MQTT311-4.4.0-1")
def test_a_takeover_carries_what_was_under_way(client: ClientFactory, topic: str) -> None:
    first = client("c", clean_start=False)
    first.subscribe(topic, qos=1)
    client("pub").publish(topic, b"x", 1)
    packet_id = first.expect(Publish, payload=b"x", dup=False).packet_id
    second = client("c", clean_start=False)
    first.expect_closed()
    second.receive(topic, b"x", dup=True, packet_id=packet_id)
    second.expect_quiet()


@pytest.mark.normative("MQTT311-3.1.4-2")
def test_many_takeovers_leave_one_connection(client: ClientFactory, topic: str) -> None:
    connections = [client("c", clean_start=False) for _ in range(8)]
    for earlier in connections[:-1]:
        earlier.expect_closed()
    connections[-1].subscribe(topic)
    connections[-1].publish(topic, b"x")
    connections[-1].expect(Publish, payload=b"x")
    connections[-1].expect_quiet()


@pytest.mark.normative("MQTT311-4.1.0-1", "MQTT311-4.1.0-2")
@pytest.mark.parametrize("clean", [True, False])
def test_a_session_lasts_as_long_as_its_connection(client: ClientFactory, topic: str, clean: bool) -> None:
    """Whatever others do meanwhile: their connecting, cleaning and leaving does not touch it."""
    c = client("c", clean_start=clean)
    c.subscribe(topic, f"{topic}/#", qos=1)
    c.unsubscribe(f"{topic}/#")
    for number in range(5):
        other = client(f"other{number}", clean_start=number % 2 == 0)
        other.subscribe(topic)
        other.unsubscribe(topic)
        other.publish(topic, b"%d" % number, 1)
        other.disconnect()
        c.receive(topic, b"%d" % number, qos=1)
    c.expect_quiet()


@pytest.mark.normative("MQTT311-4.1.0-1")
def test_changes_made_while_connected_are_stored(client: ClientFactory, offline: Offline, topic: str) -> None:
    offline("c", f"{topic}/a", f"{topic}/b", qos=1)
    c = client("c", clean_start=False)
    c.unsubscribe(f"{topic}/a")
    c.subscribe(f"{topic}/c", qos=2)
    c.close()
    p = client("pub")
    for level in "abc":
        p.publish(f"{topic}/{level}", b"x", 2)
    c = client("c", clean_start=False)
    c.receive(f"{topic}/b", b"x", qos=1)
    c.receive(f"{topic}/c", b"x", qos=2)
    c.expect_quiet()


@pytest.mark.normative("MQTT311-3.1.2-7")
@pytest.mark.parametrize("clean", [True, False])
def test_retained_messages_outlive_the_session(client: ClientFactory, topic: str, clean: bool) -> None:
    p = client("pub", clean_start=clean)
    p.publish(topic, b"kept", 1, retain=True)
    p.disconnect()
    client("pub").disconnect()                              # discards the session, if one was stored
    s = client("sub")
    s.subscribe(topic, qos=1)
    s.receive(topic, b"kept", retain=True)


@pytest.mark.normative("MQTT311-3.14.4-1", "MQTT311-3.14.4-2")
def test_what_follows_disconnect_is_not_processed(client: ClientFactory, topic: str) -> None:
    witness = client("witness")
    witness.subscribe(topic)
    c = client()
    c.send(b"\xe0\x00", Publish(topic=topic, payload=b"x"), Subscribe(packet_id=1, filters=[("a", 0)]))
    assert c.expect_closed() is None
    witness.expect_quiet()


def test_a_stored_session_is_kept_until_cleaned(client: ClientFactory, offline: Offline, topic: str) -> None:
    """No expiry unless one is configured, and no limit to how often it is resumed."""
    offline("sub", topic, qos=1)
    p = client("pub")
    for number in range(12):
        p.publish(topic, b"%d" % number, 1)
        s = client("sub", clean_start=False)
        assert _present(s)
        s.receive(topic, b"%d" % number)
        s.expect_quiet()
        s.close()
    client("sub").disconnect()
    assert not _present(client("sub", clean_start=False))


@pytest.mark.normative("MQTT311-7.0.0-2")
def test_nothing_but_the_specification_is_needed(client: ClientFactory, topic: str) -> None:
    """No user name, no special topic, no property: an ordinary client connects, subscribes, publishes and leaves."""
    c = client()
    c.subscribe(topic, qos=2)
    p = client("pub")
    for qos in (0, 1, 2):
        p.publish(topic, b"x", qos)
        c.receive(topic, b"x", qos=qos)
    c.unsubscribe(topic)
    c.disconnect()
    p.disconnect()
