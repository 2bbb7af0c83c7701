"""An authority that is asked over a Unix socket (decision 0008): whatever it is asked about waits in front of its
connection, as if it had not come yet, and nothing else waits."""
from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kit.amqp_wire import Wire
from kit.client import KEPT, Client
from kit.deciding import Asked, Decider, SocketAuthority
from kit.left_behind import Census
from kit.watch import grown
from kit.world import World
from oracle.mqtt import (
    Connack,
    Connect,
    Pingreq,
    Pingresp,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Suback,
    Subscribe,
    Will,
)

from fluxmq._core.net.amqp091_connection import AmqpConnection
from fluxmq._core.net.connection import Connection
from fluxmq._core.testing.probes import live_objects
from fluxmq.app.server import Server
from fluxmq.edge.asking import ASKED_AT_ONCE_MAX

BIG = b"x" * 100_000  # more than a connection carries: it comes into memory of its own
DENIED, SHORT_S = 0x87, 1.0


class AskingWorld(World):
    """A broker, who decides for it, and clients that are let go of at the end."""

    def __init__(self, folder: Path) -> None:
        self.decider = Decider(folder / "decider")
        super().__init__(folder, {"amqp091.virtual_hosts": "[/, other]", "storage.type": "memory",
                                  "auth.ask_timeout": "1h"}, SocketAuthority(folder / "decider"))
        self.lines: list[tuple[str, dict[str, Any]]] = []
        self.node.call(self._listen)

    def _listen(self, server: Server) -> None:
        before = server.permissions.asking.on_log

        def note(level: str, cause: str, text: str, fields: dict[str, Any]) -> None:
            self.lines.append((text, fields))
            before(level, cause, text, fields)

        server.permissions.asking.on_log = note

    def subscriber(self, *filters: str) -> Client:
        """One that gets what others publish; it was asked about before."""
        client = self.mqtt("subscriber", **KEPT)
        client.send(Subscribe(packet_id=1, filters=[(filter_, 2) for filter_ in filters]))
        for _ in filters:
            self.decider.answer(self.decider.take(), True)
        client.expect(Suback)
        return client

    def takes(self, action: str, topic: str, allowed: bool | None = None) -> Asked:
        """The next question, which must be this; and its answer."""
        asked = self.decider.take()
        assert (asked.action, asked.topic) == (action, topic)
        if allowed is not None:
            self.decider.answer(asked, allowed)
        return asked

    def counters(self) -> dict[str, Any]:
        return self.node.call(lambda server: server.hub.counters())

    def stop(self) -> None:
        super().stop()
        self.decider.stop()


@pytest.fixture
def world(tmp_path: Path) -> Iterator[AskingWorld]:
    connections, before = Census(AmqpConnection | Connection), live_objects()
    made = AskingWorld(tmp_path)
    try:
        yield made
    finally:
        made.stop()
        del made.node, made
    assert not connections.made()
    assert not grown(before, live_objects())


def connection_of(server: Server, client_id: str) -> Connection:
    return next(one for one in server.poller.connections
                if one.state is not None and one.state.client_id == client_id)


# ── publishes of MQTT ────────────────────────────────────────────────────────────────────────────────────────


def test_a_publish_and_all_behind_it_wait_for_the_answer(world: AskingWorld) -> None:
    subscriber = world.subscriber("#")
    client, other = world.mqtt("client"), world.mqtt("other")
    before = world.counters()
    client.send(Publish(topic="asked", payload=b"1", qos=1, packet_id=1), Publish(topic="open/a", payload=b"2"),
                Pingreq())
    asked = world.takes("publish", "asked")
    assert (asked.client_id, asked.identity) == ("client", None)
    other.publish("open/a", b"other's", 1)
    subscriber.receive("open/a", b"other's")
    subscriber.expect_quiet()
    client.expect_nothing()
    after = world.counters()
    # Publish and ping of this client have not been counted; those of the others have.
    assert after["packets_received"][3] - before["packets_received"][3] == 1
    assert after["messages_received"][1] - before["messages_received"][1] == 1
    world.decider.answer(asked, True)
    client.expect(Puback, packet_id=1)
    client.expect(Pingresp)
    subscriber.receive("asked", b"1")
    subscriber.receive("open/a", b"2")
    for qos in (0, 1, 2):       # remembered: nobody is asked
        client.publish("asked", b"again", qos)
        subscriber.receive("asked", b"again")
    assert world.decider.questions.empty()


def test_a_publish_that_is_refused(world: AskingWorld) -> None:
    subscriber = world.subscriber("#")
    client, old = world.mqtt("client"), world.mqtt("old", 4)
    client.send(Publish(topic="asked", qos=1, packet_id=1), Publish(topic="asked", qos=2, packet_id=2),
                Publish(topic="asked"), Publish(topic="open/a", payload=b"after"))
    world.takes("publish", "asked", False)
    client.expect(Puback, packet_id=1, reason=DENIED)
    client.expect(Pubrec, packet_id=2, reason=DENIED)
    old.send(Publish(topic="asked"))
    world.takes("publish", "asked", False)
    old.expect_closed()
    subscriber.receive("open/a", b"after")
    subscriber.expect_quiet()


def test_an_alias_is_learned_with_its_packet_and_not_before(world: AskingWorld) -> None:
    subscriber = world.subscriber("#")
    client = world.mqtt("client")

    def aliases() -> list[tuple[int, str]]:
        return world.node.call(lambda server: connection_of(server, "client").topic_aliases[0])

    client.publish("open/a", b"1", properties={"topic_alias": 1})
    client.send(Publish(topic="asked", payload=b"2", properties={"topic_alias": 1}),
                Publish(topic="", payload=b"3", properties={"topic_alias": 1}))
    asked = world.takes("publish", "asked")
    assert aliases() == [(1, "open/a")]
    world.decider.answer(asked, True)
    for topic, payload in (("open/a", b"1"), ("asked", b"2"), ("asked", b"3")):
        subscriber.receive(topic, payload)
    assert aliases() == [(1, "asked")]


def test_nothing_of_a_qos_2_publish_is_known_before_its_answer(world: AskingWorld) -> None:
    subscriber = world.subscriber("#")
    client = world.mqtt("client", **KEPT)
    client.send(Publish(topic="asked", payload=b"1", qos=2, packet_id=7))
    asked = world.takes("publish", "asked")
    client.close()
    world.wait_until(lambda server: server.permissions.asking.waiting == 1)
    again = world.mqtt("client", **KEPT)       # takes the session over, and with it the end of what was asked
    world.wait_until(lambda server: server.permissions.asking.waiting == 0)
    again.send(Pubrel(packet_id=7))
    again.expect(Pubcomp, packet_id=7, reason=0x92)     # packet identifier not found
    again.send(Publish(topic="asked", payload=b"1", qos=2, packet_id=7, dup=True))
    world.decider.answer(asked, True)           # whoever asked that is gone
    world.takes("publish", "asked", True)
    again.expect(Pubrec, packet_id=7)
    subscriber.receive("asked", b"1")
    subscriber.expect_quiet()


@pytest.mark.parametrize("allowed", [True, False])
def test_a_large_publish(world: AskingWorld, allowed: bool) -> None:
    subscriber = world.subscriber("#")
    client = world.mqtt("client")
    client.send(Publish(topic="asked", payload=BIG, qos=1, packet_id=1), Publish(topic="open/a", payload=b"after"))
    world.takes("publish", "asked", allowed)
    client.expect(Puback, packet_id=1, reason=0 if allowed else DENIED)
    if allowed:
        subscriber.receive("asked", BIG)
    subscriber.receive("open/a", b"after")
    client.send(Publish(topic="other", payload=BIG))
    world.takes("publish", "other")
    client.reset()
    world.wait_until(lambda server: server.permissions.asking.waiting == 0)


def test_a_topic_too_long_to_be_remembered_is_asked_about_each_time(world: AskingWorld) -> None:
    client, topic = world.mqtt("client"), "long/" + "x" * 2000
    for number in (1, 2):
        client.send(Publish(topic="open/a"), Publish(topic=topic, qos=1, packet_id=number))
        world.takes("publish", topic, True)
        client.answer(Puback, packet_id=number)


def test_thousands_of_publishes_of_which_some_are_asked_about(world: AskingWorld) -> None:
    subscriber = world.subscriber("#")
    client = world.mqtt("client")
    sent = [(f"asked/{number}" if number % 100 == 0 else "open/a", b"%d" % number) for number in range(3000)]
    client.send(*[Publish(topic=topic, payload=payload) for topic, payload in sent])
    for number in range(0, 3000, 100):
        world.takes("publish", f"asked/{number}", number % 200 == 0)
    for topic, payload in sent:
        if topic == "open/a" or int(payload) % 200 == 0:
            subscriber.receive(topic, payload)
    subscriber.expect_quiet()


# ── subscriptions and wills ──────────────────────────────────────────────────────────────────────────────────


def test_filters_are_asked_about_together_and_answered_in_any_order(world: AskingWorld) -> None:
    client = world.mqtt("client")
    filters = [f"f/{number}" for number in range(5)]
    client.send(Subscribe(packet_id=1, filters=[(filter_, 1) for filter_ in filters]), Pingreq())
    asked = [world.decider.take() for _ in filters]
    assert sorted(one.topic for one in asked) == filters
    for one in reversed(asked):
        client.expect_nothing(0.01)
        world.decider.answer(one, one.topic != "f/2")
    client.expect(Suback, packet_id=1, reasons=[1, 1, DENIED, 1, 1])
    client.expect(Pingresp)


def test_more_filters_than_are_asked_about_at_once(world: AskingWorld) -> None:
    client = world.mqtt("client")
    filters = [f"f/{number}" for number in range(2 * ASKED_AT_ONCE_MAX + 10)]
    client.send(Subscribe(packet_id=1, filters=[(filter_, 0) for filter_ in filters]))
    for _ in filters:
        asked = world.decider.take()
        world.decider.answer(asked, not asked.topic.endswith("7"))
    client.expect(Suback, reasons=[DENIED if filter_.endswith("7") else 0 for filter_ in filters])
    assert world.decider.questions.empty()


@pytest.mark.parametrize("allowed", [True, False])
def test_a_will(world: AskingWorld, allowed: bool) -> None:
    subscriber = world.subscriber("#")
    client = Client(world.node.listens("mqtt.tcp.plain"))
    world.clients.append(client)
    client.send(Connect(client_id="client", will=Will(topic="asked", payload=b"gone")), Pingreq())
    world.takes("publish", "asked", allowed)
    if not allowed:
        client.expect(Connack, reason=DENIED)
        client.expect_closed()
        return
    client.expect(Connack, reason=0)
    client.expect(Pingresp)
    client.reset()
    subscriber.receive("asked", b"gone")


# ── AMQP 0-9-1 ───────────────────────────────────────────────────────────────────────────────────────────────


def test_a_publish_of_amqp_and_all_behind_it_wait(world: AskingWorld) -> None:
    subscriber = world.subscriber("#")
    wire = world.amqp(2)
    wire.call(1, "confirm.select")
    wire.publish(1, "amq.topic", "asked.key", b"1")
    wire.publish(2, "amq.topic", "open.a", b"2")
    asked = world.takes("publish", "asked/key")
    subscriber.expect_quiet()
    world.decider.answer(asked, True)
    subscriber.receive("asked/key", b"1")
    subscriber.receive("open/a", b"2")
    assert wire.expect(1, "basic.ack")["delivery_tag"] == 1
    wire.publish(1, "amq.topic", "asked.other", b"3")
    wire.publish(2, "amq.topic", "open.a", b"4")
    world.takes("publish", "asked/other", False)
    assert wire.expect_refusal(1).code == 403
    subscriber.receive("open/a", b"4")
    subscriber.expect_quiet()


@pytest.mark.parametrize("size", [0, 10, 100_000, 300_000])
def test_contents_of_every_form_wait(world: AskingWorld, size: int) -> None:
    """None, one frame, one large frame, several frames: what came of it before stays, its last frame comes again."""
    subscriber = world.subscriber("#")
    wire = world.amqp(2)
    wire.call(1, "confirm.select")
    for number in range(2):
        body = bytes((number,)) * size
        wire.publish(1, "amq.topic", f"asked.{number}", body, {"content_type": "text/plain"})
        wire.publish(2, "amq.topic", "open.a", b"behind")
        world.takes("publish", f"asked/{number}", True)
        subscriber.receive(f"asked/{number}", body)
        subscriber.receive("open/a", b"behind")
        assert wire.expect(1, "basic.ack")["delivery_tag"] == number + 1


def test_copies_are_asked_about_before_any_is_delivered(world: AskingWorld) -> None:
    wire = world.amqp()
    for name in ("open1", "open2"):
        wire.call(1, "queue.declare", queue=name)
    wire.call(1, "queue.declare", queue="open3")
    for key, allowed in (("asked1", True), ("asked2", False)):
        wire.publish(1, "", "open1", b"copied", {"headers": {"CC": ["open2", key]}})
        asked = world.takes("publish", f"$queue/{key}")
        assert world.node.call(lambda server: [
            server.amqp091.queues.counts(server.amqp091.queues.find(b"/", name, None))[0]
            for name in (b"open1", b"open2")]) == [0, 0]
        world.decider.answer(asked, allowed)
        if allowed:
            for name in ("open1", "open2"):
                found = wire.get(1, name)
                assert found is not None and found.body == b"copied"
        else:
            assert wire.expect_refusal(1).code == 403


def test_every_method_that_needs_a_permission_asks_for_it(world: AskingWorld) -> None:
    wire = world.amqp()
    methods: list[tuple[str, dict[str, Any], list[tuple[str, str]]]] = [
        ("queue.declare", {"queue": "q", "arguments": {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "d"}},
         [("subscribe", "$queue/q"), ("publish", "$queue/d")]),
        ("exchange.declare", {"exchange": "e", "type": "direct", "arguments": {"alternate-exchange": "amq.fanout"}},
         [("publish", "$exchange/e"), ("publish", "$exchange/amq.fanout")]),
        ("exchange.bind", {"destination": "e", "source": "amq.direct", "routing_key": "k"},
         [("subscribe", "$exchange/amq.direct/k"), ("publish", "$exchange/e")]),
        ("exchange.unbind", {"destination": "e", "source": "amq.direct", "routing_key": "k"},
         [("publish", "$exchange/e")]),
        ("queue.bind", {"queue": "q", "exchange": "e", "routing_key": "k"},
         [("subscribe", "$queue/q"), ("subscribe", "$exchange/e/k")]),
        ("queue.unbind", {"queue": "q", "exchange": "e", "routing_key": "k"}, [("subscribe", "$queue/q")]),
        ("queue.purge", {"queue": "q"}, [("subscribe", "$queue/q")]),
        ("basic.consume", {"queue": "q", "consumer_tag": "c"}, [("subscribe", "$queue/q")]),
        ("queue.delete", {"queue": "q"}, [("subscribe", "$queue/q")]),
        ("exchange.delete", {"exchange": "e"}, [("publish", "$exchange/e")]),
    ]
    for name, arguments, questions in methods:
        wire.send(1, name, **arguments)
        for action, topic in questions:
            world.takes(action, topic, True)
        wire.expect(1, name + "-ok")
    wire.expect(1, "basic.cancel")      # its queue was deleted
    wire.call(1, "queue.declare", queue="open1")
    wire.send(1, "queue.declare", queue="other")
    world.takes("subscribe", "$queue/other", True)
    wire.expect(1, "queue.declare-ok")
    wire.send(1, "basic.get", queue="other", no_ack=True)
    world.takes("subscribe", "$queue/other", True)
    assert wire.next(1)[0] == "basic.get-empty"
    for name, arguments, _ in methods[:1]:
        wire.send(1, name, **arguments)
        world.takes("subscribe", "$queue/q", False)
        refused = wire.expect_refusal(1)
        assert (refused.code, refused.method) == (403, (50, 10))


def test_a_virtual_host(world: AskingWorld) -> None:
    for verdicts, code in (([True], 0), ([False, True], 0), ([False, False], 530)):
        wire = Wire(world.node.listens("amqp091.plain"))
        world.clients.append(wire)
        wire.greet().start_ok()
        wire.expect(0, "connection.tune")
        wire.send(0, "connection.tune-ok", frame_max=131072, heartbeat=0, channel_max=10)
        wire.send(0, "connection.open", virtual_host="other")
        for action, allowed in zip(("publish", "subscribe"), verdicts, strict=False):
            world.takes(action, "$vhost/other", allowed)
        if code:
            assert wire.expect_refusal(0).code == code
        else:
            wire.expect(0, "connection.open-ok")


def test_a_commit_waits_for_all_its_answers(world: AskingWorld) -> None:
    """Under permissions that are new since it published; nothing of it is done before."""
    subscriber = world.subscriber("#")
    wire = world.amqp()
    wire.call(1, "tx.select")
    keys = [f"k{number}" for number in range(300)]    # more than are asked about at once
    for key in keys:
        wire.publish(1, "amq.topic", key, key.encode())
        world.takes("publish", key, True)
    wire.call(1, "channel.flow", active=True)       # all have been handled
    world.node.call(Server.reload)
    world.takes("subscribe", "#", True)
    wire.send(1, "tx.commit")
    for first, last in ((0, 256), (256, 300)):
        asked = [world.decider.take() for _ in range(first, last)]
        assert [one.topic for one in asked] == keys[first:last]
        subscriber.expect_quiet()
        for one in reversed(asked):
            world.decider.answer(one, one.topic != "k7")
    wire.expect(1, "tx.commit-ok")
    for key in keys:
        if key != "k7":
            subscriber.receive(key, key.encode())
    subscriber.expect_quiet()


# ── answers that do not come, or not as they should ──────────────────────────────────────────────────────────


def test_who_does_not_answer_in_time_is_named_and_taken_for_a_refusal_once(world: AskingWorld) -> None:
    subscriber = world.subscriber("#")
    world.node.call(lambda server: setattr(server.permissions.asking, "limit_s", SHORT_S))
    client, wire = world.mqtt("client"), world.amqp()
    client.send(Publish(topic="asked", qos=1, packet_id=1))
    late = world.takes("publish", "asked")
    client.expect(Puback, packet_id=1, reason=DENIED)
    assert world.lines[-1] == (f"the test's decider did not answer within {SHORT_S:g} s: publish refused",
                               {"client_id": "client", "user": None, "topic": "asked"})
    client.send(Subscribe(packet_id=2, filters=[("f", 0), ("g", 0)]))
    known = world.takes("subscribe", "f", True)
    world.takes("subscribe", "g")
    client.expect(Suback, reasons=[0, DENIED])
    wire.publish(1, "amq.topic", "asked")
    world.takes("publish", "asked")
    assert wire.expect_refusal(1).code == 403
    assert world.node.call(lambda server: server.permissions.asking.answers) == {
        "allowed": 2, "refused": 0, "late": 3, "failed": 0}
    world.node.call(lambda server: setattr(server.permissions.asking, "limit_s", 3600))
    world.decider.answer(late, True)        # too late; and so is what was never asked
    world.decider.answer(known, False)
    client.send(Publish(topic="asked", payload=b"1", qos=1, packet_id=1))
    world.takes("publish", "asked", True)
    client.expect(Puback, packet_id=1)
    subscriber.receive("asked", b"1")


@pytest.mark.parametrize("how", ["closed", "nonsense", "half"])
def test_a_decider_that_breaks(world: AskingWorld, how: str) -> None:
    client, other = world.mqtt("client"), world.mqtt("other")
    for one in (client, other):
        one.send(Publish(topic="asked", qos=1, packet_id=1))
        world.takes("publish", "asked")
    if how == "nonsense":
        world.decider.say(b"\0\0\0\x01\xc1")
    elif how == "half":
        world.decider.say(b"\0\0\0\x09\x92")
    if how != "nonsense":
        world.decider.break_off()
    for one in (client, other):
        one.expect(Puback, packet_id=1, reason=DENIED)
    assert world.node.call(lambda server: server.permissions.asking.answers["failed"]) == 2
    assert "could not decide (ConnectionError" in world.lines[-1][0]
    client.send(Publish(topic="asked", qos=1, packet_id=2))     # a new connection to it
    world.takes("publish", "asked", True)
    client.answer(Puback, packet_id=2)


def test_answers_of_two_connections_that_overtake_each_other(world: AskingWorld) -> None:
    subscriber = world.subscriber("#")
    first, second = world.mqtt("first"), world.mqtt("second")
    first.send(Publish(topic="one", payload=b"1"))
    one = world.takes("publish", "one")
    second.send(Publish(topic="two", payload=b"2"))
    world.takes("publish", "two", True)
    subscriber.receive("two", b"2")
    world.decider.answer(one, True)
    subscriber.receive("one", b"1")


# ── ends ─────────────────────────────────────────────────────────────────────────────────────────────────────


def test_connections_that_end_while_they_ask(world: AskingWorld) -> None:
    subscriber = world.subscriber("#")
    mqtt, taken, wire, administered = world.mqtt("client"), world.mqtt("taken"), world.amqp(), world.mqtt("admin")
    asked = []
    for client in (mqtt, taken, administered):
        client.send(Publish(topic="asked", payload=b"never", qos=1, packet_id=1), Publish(topic="open/a"))
        asked.append(world.takes("publish", "asked"))
    wire.publish(1, "amq.topic", "asked", b"never")
    asked.append(world.takes("publish", "asked"))
    assert world.node.call(lambda server: server.permissions.asking.waiting) == 4
    mqtt.reset()
    world.mqtt("taken")
    taken.expect_closed(0x8E)
    world.node.call(lambda server: connection_of(server, "admin").state.displaced(0x98))
    wire.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    wire.drop()
    world.wait_until(lambda server: server.permissions.asking.waiting == 0)
    assert world.node.call(lambda server: server.hub.awaited) == 0
    for one in asked:
        world.decider.answer(one, True)
    again = world.mqtt("client")
    again.send(Publish(topic="asked", payload=b"now"))
    world.takes("publish", "asked", True)       # behind all answers that came before
    subscriber.receive("asked", b"now")
    subscriber.expect_quiet()


def test_the_broker_stops_while_clients_ask(world: AskingWorld) -> None:
    client, wire = world.mqtt("client"), world.amqp()
    client.send(Publish(topic="asked", payload=BIG, qos=2, packet_id=1))
    world.takes("publish", "asked")
    wire.send(1, "queue.declare", queue="q")
    world.takes("subscribe", "$queue/q")
    connecting = Client(world.node.listens("mqtt.tcp.plain"))
    world.clients.append(connecting)
    connecting.send(Connect(client_id="c", will=Will(topic="w")))
    world.takes("publish", "w")
    world.node.stop()
    client.expect_closed(0x8B)
    assert world.node.server.permissions.asking.waiting == 0


# ── a reload ─────────────────────────────────────────────────────────────────────────────────────────────────


def test_an_answer_under_former_permissions_is_asked_for_again(world: AskingWorld) -> None:
    client = world.mqtt("client")
    client.send(Publish(topic="asked", qos=1, packet_id=1))
    asked = world.takes("publish", "asked")
    world.node.call(Server.reload)
    world.decider.answer(asked, True)
    world.takes("publish", "asked", False)
    client.expect(Puback, packet_id=1, reason=DENIED)
    client.publish("asked", qos=1, expect=DENIED)
    world.node.call(Server.reload)
    client.send(Publish(topic="asked", qos=1, packet_id=2))
    world.takes("publish", "asked", True)
    client.answer(Puback, packet_id=2)


def test_subscriptions_that_stand_are_asked_about_again(world: AskingWorld) -> None:
    subscriber = world.subscriber("kept", "gone")
    client = world.mqtt("client")
    for topic in ("kept", "gone"):
        client.send(Publish(topic=topic, payload=b"1", qos=1, packet_id=1))
        world.takes("publish", topic, True)
        client.answer(Puback)
        subscriber.receive(topic, b"1")
    for verdicts in ({"kept": True, "gone": False}, {"kept": True, "gone": True}):
        world.node.call(Server.reload)
        asked = {one.topic: one for one in (world.decider.take(), world.decider.take())}
        for topic, allowed in verdicts.items():
            world.decider.answer(asked[topic], allowed)
        world.wait_until(lambda server, resting=not verdicts["gone"]: (     # type: ignore[misc]
            bool(server.broker.sessions[b"/", b"subscriber"].data.resting) is resting))
        for topic, allowed in verdicts.items():
            client.send(Publish(topic=topic, payload=b"2", qos=1, packet_id=1))
            world.takes("publish", topic, True)
            client.answer(Puback)
            if allowed:
                subscriber.receive(topic, b"2")
        subscriber.expect_quiet()
