"""The client's machine, transition by transition, without sockets; and values that people give and get."""
from __future__ import annotations

import pickle
from typing import Any

import pytest
from oracle.mqtt import (
    Connack,
    Connect,
    Disconnect,
    Packet,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Suback,
    Subscribe,
    Unsuback,
    parse,
)

from fluxmq._core.client.machine import (
    SESSION_LOST,
    STATE_CLOSED,
    STATE_CONNECTING,
    STATE_NEW,
    STATE_OPEN,
    ClientMachine,
)
from fluxmq._core.client.message import Message
from fluxmq._core.client.properties import Properties
from fluxmq._core.client.session import Session
from fluxmq._core.errors import NotConnected, ProtocolError, UsageError, WindowFull
from fluxmq._core.mqtt import packets as mqtt_packets
from fluxmq.client.errors import ConnectRefused, PublishRefused
from fluxmq.client.options import Address


class Machine(ClientMachine):
    """With what it did written down. woken: how often it said that there is something to take."""

    def __init__(self, version: int = 5, properties: dict[str, Any] | None = None, present: bool = False,
                 connect: list[tuple[int, Any]] | None = None, clean: bool = False, **options: Any) -> None:
        self.got: list[Message] = []
        self.heard: list[tuple[int, Any]] = []
        self.woken = 0
        super().__init__(self.got.append, **options)
        assert self.state == STATE_NEW
        self.start(mqtt_packets.Connect(client_id="c", protocol_level=version, clean_start=clean,
                                        properties=connect or []))
        assert self.state == STATE_CONNECTING
        assert isinstance(self.said()[0], Connect)
        self.feed(Connack(session_present=present, properties=properties or {}).encode(version))

    def done(self, packet_id: int, reason: Any) -> None:
        self.heard.append((packet_id, reason))

    def output_ready(self) -> None:
        self.woken += 1

    def said(self) -> list[Packet]:
        data, packets = self.take_output(), []
        while data:
            found = parse(data, self.version)
            assert found is not None
            packet, data = found
            packets.append(packet)
        return packets

    def hear(self, *packets: Packet) -> None:
        for packet in packets:
            self.feed(packet.encode(self.version))


def test_output_is_announced_once_until_it_is_taken() -> None:
    machine = Machine()
    woken = machine.woken
    for _ in range(3):
        machine.publish("a", b"1")
    assert machine.woken == woken + 1 and machine.pending_bytes
    assert len(machine.said()) == 3 and not machine.pending_bytes
    machine.publish("a", b"1")
    assert machine.woken == woken + 2


def test_qos_1_and_2_to_their_ends() -> None:
    machine = Machine()
    assert [machine.publish("a", b"", 1, done=machine.done), machine.publish("a", b"", 2, done=machine.done)] == [1, 2]
    machine.said()
    machine.hear(Pubrec(packet_id=2, reason=0x10), Puback(packet_id=1, reason=0))
    assert machine.heard == [(1, 0)]
    release, = machine.said()
    assert isinstance(release, Pubrel) and release.packet_id == 2
    machine.hear(Pubrec(packet_id=2))                    # said twice: PUBREL again
    assert isinstance(machine.said()[0], Pubrel)
    machine.hear(Pubcomp(packet_id=2))
    assert machine.heard == [(1, 0), (2, 0x10)] and machine.window == machine.receive_maximum
    # Nothing depends on what is unknown
    machine.hear(Puback(packet_id=9), Pubcomp(packet_id=9), Pubrec(packet_id=9))
    unknown, = machine.said()
    assert isinstance(unknown, Pubrel) and (unknown.packet_id, unknown.reason) == (9, 0x92)


@pytest.mark.parametrize(("verb", "packet"), [
    (lambda machine: machine.publish("a", b"", 1), Pubrec(packet_id=1)),
    (lambda machine: machine.publish("a", b"", 1), Pubcomp(packet_id=1)),
    (lambda machine: machine.publish("a", b"", 2), Puback(packet_id=1)),
    (lambda machine: machine.publish("a", b"", 2), Pubcomp(packet_id=1)),
    (lambda machine: machine.publish("a", b"", 1), Suback(packet_id=1, reasons=[0])),
    (lambda machine: machine.subscribe([("a", 0)]), Puback(packet_id=1)),
    (lambda machine: machine.subscribe([("a", 0)]), Unsuback(packet_id=1, reasons=[0])),
    (lambda machine: machine.subscribe([("a", 0)]), Suback(packet_id=1, reasons=[0, 0])),
    (lambda machine: machine.unsubscribe(["a"]), Suback(packet_id=1, reasons=[0])),
])
def test_an_acknowledgement_of_the_wrong_kind(verb: Any, packet: Packet) -> None:
    machine = Machine()
    verb(machine)
    machine.said()
    with pytest.raises(ProtocolError):
        machine.hear(packet)
    told, = machine.said()
    assert isinstance(told, Disconnect) and told.reason == 0x82 and machine.state == STATE_CLOSED
    machine.hear(Publish(topic="a"))                     # nothing is read any more
    assert machine.got == []
    with pytest.raises(NotConnected):
        machine.publish("a")


def test_what_the_server_cannot() -> None:
    machine = Machine(properties={"maximum_qos": 1, "retain_available": 0, "maximum_packet_size": 100,
                                  "receive_maximum": 1, "topic_alias_maximum": 0}, topic_aliases=5)
    with pytest.raises(UsageError, match="qos must be 0 to 1"):
        machine.publish("a", b"", 2)
    with pytest.raises(UsageError, match="no retained"):
        machine.publish("a", b"", 0, True)
    with pytest.raises(UsageError, match="the server takes 100"):
        machine.publish("a", bytes(100))
    with pytest.raises(UsageError, match="the server takes 100"):
        machine.subscribe([("a" * 200, 0)])
    machine.publish("a", bytes(90), 1)
    with pytest.raises(WindowFull):
        machine.publish("a", b"", 1)
    assert len(machine.said()) == 1


def test_aliases_both_ways() -> None:
    machine = Machine(properties={"topic_alias_maximum": 2}, topic_aliases=5, connect=[(0x22, 2)])
    for topic in ("a", "b", "c", "a", "b", "c"):
        machine.publish(topic, b"x")
    written = [(packet.topic, packet.prop("topic_alias")) for packet in machine.said() if isinstance(packet, Publish)]
    assert written == [("a", 1), ("b", 2), ("c", None), ("", 1), ("", 2), ("c", None)]
    machine.hear(Publish(topic="x", properties={"topic_alias": 1}), Publish(topic="", properties={"topic_alias": 1}),
                 Publish(topic="y", properties={"topic_alias": 1}), Publish(topic="", properties={"topic_alias": 1}))
    assert [message.topic for message in machine.got] == [b"x", b"x", b"y", b"y"]
    with pytest.raises(ProtocolError, match="was not set"):
        machine.hear(Publish(topic="", properties={"topic_alias": 2}))


@pytest.mark.parametrize(("present", "republish"), [(True, True), (False, True), (False, False)])
def test_the_next_connection(present: bool, republish: bool) -> None:
    """What was sent, what was released, what was asked: each in each case."""
    first = Machine()
    for number, qos in enumerate((1, 2, 2, 1)):
        first.publish("a", str(number), qos, properties=[(0x03, "t")], done=first.done)
    first.subscribe([("a", 0)], first.done)
    first.hear(Pubrec(packet_id=3))
    first.end()
    second = Machine(present=present, session=first.session, republish=republish)
    said = [(type(packet).__name__, packet.packet_id, getattr(packet, "dup", None))     # type: ignore[attr-defined]
            for packet in second.said()]
    publishes = [("Publish", number, present) for number in (1, 2, 4)]
    if present:
        assert said == [("Pubrel", 3, None), *publishes] and first.heard == []
    elif republish:
        assert said == publishes and first.heard == [(3, 0)]
    else:
        assert said == [] and first.heard == [(1, SESSION_LOST), (2, SESSION_LOST), (3, 0), (4, SESSION_LOST)]
    assert second.publish("b", b"", 1) not in {1, 2, 4} or not republish


def test_a_smaller_window_after_coming_back() -> None:
    first = Machine()
    for _ in range(4):
        first.publish("a", b"", 1, done=first.done)
    first.end()
    second = Machine(present=True, session=first.session, properties={"receive_maximum": 2})
    assert len(second.said()) == 2 and second.window == 0 and second.session.waiting_count == 2
    with pytest.raises(WindowFull):
        second.publish("a", b"", 1)
    second.hear(Puback(packet_id=1), Puback(packet_id=2))
    again = second.said()
    assert [packet.packet_id for packet in again if isinstance(packet, Publish) and packet.dup] == [3, 4]
    second.hear(Puback(packet_id=3), Puback(packet_id=4))
    assert second.window == 2 and [reason for _, reason in first.heard] == [0] * 4


def test_a_session_that_nobody_asked_for() -> None:
    with pytest.raises(ProtocolError, match="none was asked for"):
        Machine(present=True, clean=True)


def test_a_server_that_takes_less_than_the_last_one() -> None:
    """However many there are: each `done` hears why, and none of them goes out. What fits is sent."""
    first = Machine()
    many = 20_000       # a call within a call for each would be the end of the stack
    for _ in range(many):
        first.publish("a", bytes(100), 1, done=first.done)
    first.publish("a", b"", 2, done=first.done)
    first.publish("a", b"", 1, True, done=first.done)
    last = first.publish("a", b"", 1, done=first.done)
    first.end()
    second = Machine(present=True, session=first.session,
                     properties={"maximum_packet_size": 50, "maximum_qos": 1, "retain_available": 0})
    sent, = second.said()
    assert isinstance(sent, Publish) and sent.packet_id == last and second.session.outstanding == 1
    assert [reason for _, reason in first.heard] == [0x95] * many + [0x9B, 0x9A]


def test_nothing_is_sent_again_behind_a_disconnect() -> None:
    """A `done` that hears of the first one ends the connection: the others stay in the session."""
    first = Machine()
    first.publish("a", bytes(100), 1, done=lambda packet_id, reason: second.leave())
    first.publish("a", b"", 1)
    first.end()
    second = Machine.__new__(Machine)
    second.__init__(present=True, session=first.session, properties={"maximum_packet_size": 50})  # type: ignore[misc]
    assert [type(packet) for packet in second.said()] == [Disconnect] and second.session.waiting_count == 1


def test_an_old_connection_that_ends_late() -> None:
    """The session is the next one's by then."""
    first = Machine()
    first.leave()
    second = Machine(present=True, session=first.session)
    asked = second.subscribe([("a", 0)], second.done)
    first.end()
    second.hear(Suback(packet_id=asked, reasons=[0]))
    assert second.heard == [(asked, [0])]


def test_there_is_an_identifier_left_to_subscribe_with() -> None:
    machine = Machine(4)
    while machine.window:
        machine.publish("a", b"", 1)
    assert machine.subscribe([("a", 0)]) > 0


def test_acknowledged_from_within_on_message() -> None:
    """Once, and as it was said there."""
    machine = Machine()
    machine.on_message = lambda message: machine.acknowledge(message, 0x80)
    machine.hear(Publish(topic="a", qos=2, packet_id=3))
    answer, = machine.said()
    assert isinstance(answer, Pubrec) and answer.reason == 0x80
    got: list[Message] = []

    def goes(message: Message) -> None:
        got.append(message)
        machine.end()

    machine.on_message = goes
    machine.hear(Publish(topic="a", qos=1, packet_id=3))
    assert machine.said() == [] and not got[0].acknowledged


@pytest.mark.parametrize(("code", "reason"), [(1, 0x84), (2, 0x85), (3, 0x88), (4, 0x86), (5, 0x87)])
def test_a_server_that_knows_nothing_of_mqtt_5(code: int, reason: int) -> None:
    """It refuses in the words of MQTT 3.1.1, without properties."""
    answers: list[int] = []

    class Asking(ClientMachine):
        def connected(self, connack: mqtt_packets.ConnAck) -> None:
            answers.append(connack.reason_code)

    machine = Asking()
    machine.start(mqtt_packets.Connect(client_id="c", protocol_level=5))
    machine.feed(bytes((0x20, 2, 0, code)))
    assert answers == [reason] and machine.state == STATE_CLOSED


@pytest.mark.parametrize("version", [4, 5])
def test_every_spoiled_answer_to_connect(version: int) -> None:
    """Each bit turned, each end cut off: accepted, refused, waited for, or a breach. Never anything else."""
    whole = Connack(properties={"receive_maximum": 9, "maximum_qos": 1, "maximum_packet_size": 99, "reason_string": "x",
                                "assigned_client_identifier": "me", "server_keep_alive": 3} if version == 5 else {})
    wire = whole.encode(version)
    spoiled = [wire[:end] for end in range(len(wire) + 1)]
    spoiled += [wire[:at] + bytes((wire[at] ^ 1 << bit,)) + wire[at + 1:]
                for at in range(len(wire)) for bit in range(8)]
    ends = set()
    for data in spoiled:
        machine = ClientMachine()
        machine.start(mqtt_packets.Connect(client_id="c", protocol_level=version))
        machine.take_output()
        try:
            machine.feed(data)
        except ProtocolError as error:
            assert error.text and machine.state == STATE_CLOSED and machine.take_output() == b""
        ends.add(machine.state)
        machine.feed(bytes(9)) if machine.state == STATE_CLOSED else machine.end()
    assert ends == {STATE_CONNECTING, STATE_OPEN, STATE_CLOSED}


@pytest.mark.parametrize(("verb", "words"), [
    (lambda machine: machine.subscribe("a/#"), "a list of topic filters"),
    (lambda machine: machine.unsubscribe("abc"), "a list of topic filters"),
    (lambda machine: machine.unsubscribe(b"abc"), "a list of topic filters"),
    (lambda machine: machine.unsubscribe([5]), "bytes or str, not int"),
    (lambda machine: machine.subscribe([("a", 0)], None, b"\xff"), "properties as on the wire"),
    (lambda machine: machine.publish("a", 5), "payload must be str or bytes-like, not int"),
    (lambda machine: machine.publish(5, b""), "topic must be bytes or str"),
])
def test_mistakes_have_their_sentence(verb: Any, words: str) -> None:
    machine = Machine()
    with pytest.raises(UsageError, match=words):
        verb(machine)
    assert machine.said() == [] and machine.window == machine.receive_maximum


def test_abandoning_a_session() -> None:
    machine = Machine()
    for _ in range(3):
        machine.publish("a", b"", 1, done=machine.done)
    machine.publish("a", b"", 2)
    assert len(machine.session.abandon()) == 3 and machine.session.outstanding == 0
    assert Session().abandon() == []


def test_identifiers_are_used_again_and_never_twice() -> None:
    machine = Machine()
    held = {machine.publish("a", b"", 1) for _ in range(50)}
    assert len(held) == 50
    machine.take_output()
    for packet_id in (7, 9):
        machine.hear(Puback(packet_id=packet_id))
    assert {machine.publish("a", b"", 1), machine.subscribe([("a", 0)])} == {7, 9}
    assert machine.publish("a", b"", 1) == 51


@pytest.mark.parametrize("version", [3, 4])
def test_before_version_5(version: int) -> None:
    machine = Machine(version)
    with pytest.raises(UsageError, match="properties need MQTT 5"):
        machine.publish("a", b"", 0, False, [(3, "x")])
    with pytest.raises(UsageError, match="no options byte"):
        machine.subscribe([("a", 4)])
    machine.subscribe([("a", 2), (b"b/#", 1)])
    asked, = machine.said()
    assert isinstance(asked, Subscribe)
    with pytest.raises(ProtocolError):
        machine.feed(b"\xe0\x00")                        # DISCONNECT of a server
    assert machine.said() == []                          # and there is no word for why


def test_feeding_from_within_feed_is_a_mistake() -> None:
    machine = Machine()
    machine.on_message = lambda message: machine.feed(b"")
    with pytest.raises(UsageError, match="within feed"):
        machine.hear(Publish(topic="a"))
    assert machine.state == STATE_CLOSED


def test_leaving() -> None:
    machine = Machine()
    assert machine.state == STATE_OPEN
    machine.leave(0x04, Properties(reason_string="bye"))
    told, = machine.said()
    assert isinstance(told, Disconnect) and told.reason == 4 and told.prop("reason_string") == "bye"
    machine.leave()
    assert machine.said() == []


def test_properties_with_names() -> None:
    given = Properties(content_type="t", message_expiry_interval=5, payload_format_indicator=None, user={"a": "1"})
    assert list(given) == [(3, "t"), (2, 5), (0x26, ("a", "1"))]
    assert (given.content_type, given.message_expiry_interval, given.correlation_data) == ("t", 5, None)
    assert given.text("content_type") == "t" and given.text("reason_string") == ""
    assert given.wire(3).startswith(b"\x03\x00\x01t") and Properties().wire() == b""
    assert len(Properties(user=[("k", "v" * 200)]).wire()) == 206
    with pytest.raises(UsageError, match="no property 'colour'"):
        Properties(colour="red")
    with pytest.raises(AttributeError):
        _ = given.colour


@pytest.mark.parametrize(("text", "shown", "tls"), [
    ("localhost", "localhost:1883", False), ("10.0.0.1:99", "10.0.0.1:99", False), ("[::1]:7", "::1:7", False),
    ("mqtt://h", "h:1883", False), ("mqtts://h", "h:8883", True), ("mqtts://h:1/", "h:1", True),
    ("unix:/run/x", "unix:/run/x", False), ("unix:///run/x", "unix:/run/x", False),
])
def test_addresses(text: str, shown: str, tls: bool) -> None:
    found = Address.of(text)
    assert (str(found), found.tls) == (shown, tls)


@pytest.mark.parametrize("text", ["", ":1883", "h:x", "http://h", "mqtt://h/path", "unix:", "mqtt://user@h", "h:99999"])
def test_what_is_no_address(text: str) -> None:
    with pytest.raises(UsageError, match="is no address"):
        Address.of(text)


def test_errors_travel() -> None:
    for error in (ConnectRefused(0x87, "no"), PublishRefused(0x97, "full")):
        again = pickle.loads(pickle.dumps(error))
        assert type(again) is type(error) and (again.reason, again.text, str(again)) == (
            error.reason, error.text, str(error))
