"""What the judge admits and what it does not, by reports that are written here instead of by a broker."""
from __future__ import annotations

import random
from contextlib import AbstractContextManager, nullcontext
from typing import Any, cast

import pytest
from oracle.mqtt import Connack, Publish
from simulator.judge import Books, SessionBook, ShareBook, Wrong
from simulator.mqtt_client import MqttClient
from simulator.node import Pipe

SHARE, SHARED, PLAIN = "$share/one/g/x", "g/x", "t/a"


class Listener:
    """In the place of a node, which does nothing."""

    @staticmethod
    def accept_mqtt() -> Pipe:
        return Pipe()


@pytest.fixture
def books() -> Books:
    books = Books()
    books.shares["/", SHARE] = ShareBook("/", SHARE)
    return books


def refused(kind: str) -> AbstractContextManager[Any]:
    return pytest.raises(Wrong, match=f"^{kind}: ") if kind else nullcontext()


@pytest.mark.parametrize(("topic", "crash", "again", "kind"), [
    (SHARED, True, True, ""),           # another member had it before the crash, which took it from the broker
    (SHARED, False, True, "order"),     # the broker has it, and drops the repetition
    (SHARED, True, False, "order"),     # it is not chosen anew
    (PLAIN, True, True, "order"),       # there is nobody else who had it [MQTT-4.6.0-6]
])
def test_a_share_keeps_the_order_of_what_was_sent_once(books: Books, topic: str, crash: bool, again: bool,
                                                       kind: str) -> None:
    session = books.sessions["c"] = SessionBook("c", "/")
    session.subscriptions[SHARE if topic == SHARED else PLAIN] = 1, books.tick()
    first, second, third = (books.new("publisher", topic=topic, qos=2) for _ in range(3))
    for each in (first, second, third):
        each.sent(0, books.starts)
    books.came(session, third.payload, topic, 1, False)
    if crash:
        books.restarted()
    for each in (first, second, third) if again else ():
        each.sent(0, books.starts, 0)
    with refused(kind):
        books.came(session, second.payload, topic, 1, False)
    with refused("order"):      # of what the members were chosen for anew
        books.came(session, first.payload, topic, 1, False)


class Side:
    """A client, and what a broker says to it."""

    def __init__(self, books: Books) -> None:
        self.books = books
        self.client = MqttClient("c", 5, books, random.Random(1), lambda: 0)

    def connect(self, present: bool | None, *, clean: bool = False, kept: bool = True) -> None:
        """present: what CONNACK says of a session; None: the connection is lost before it comes."""
        self.client.connect(cast(Any, Listener()), clean=clean, kept=kept)
        if present is not None:
            self.client.handle(Connack(session_present=present))
            self.client.session.subscriptions[PLAIN] = 2, self.books.tick()

    def deliver(self) -> None:
        """A new message of QoS 2, as packet 1."""
        message = self.books.new("publisher", topic=PLAIN, qos=2)
        message.sent(0, self.books.starts)
        self.client.handle(Publish(topic=PLAIN, payload=message.payload, qos=2, packet_id=1))


@pytest.fixture
def side(books: Books) -> Side:
    return Side(books)


@pytest.mark.parametrize(("kept", "unanswered", "kind"), [
    (False, [{}], ""),                                  # the session ended with its connection, for both sides
    (True, [], "packet id"),
    (True, [{}], "packet id"),
    (True, [{"kept": False}], "packet id"),             # it did not arrive, or the session would be gone
    (True, [{"clean": True}], ""),
    (True, [{"clean": True, "kept": False}, {}], ""),
])
def test_an_identifier_is_free_in_another_session(side: Side, kept: bool, unanswered: list[dict[str, bool]],
                                                  kind: str) -> None:
    """The session is another one, perhaps, when one CONNECT that was not answered ended it and one made a new one."""
    side.connect(False, kept=kept)
    side.deliver()
    for each in unanswered:
        side.connect(None, **each)
    side.connect(True)
    with refused(kind):
        side.deliver()
    with refused("packet id"):
        side.deliver()


@pytest.mark.parametrize(("unanswered", "kind"), [
    ([], "session"),
    ([{"kept": False}], "session"),
    ([{}], ""),     # which made one
])
def test_a_session_that_ended_with_its_connection_is_not_gone_on_with(side: Side, unanswered: list[dict[str, bool]],
                                                                      kind: str) -> None:
    side.connect(False, kept=False)
    for each in unanswered:
        side.connect(None, **each)
    with refused(kind):
        side.connect(True)
