"""What the judge admits and what it does not, by reports that are written here instead of by a broker."""
from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pytest
from simulator.judge import Books, SessionBook, ShareBook, Wrong

SHARE, SHARED, PLAIN = "$share/one/g/x", "g/x", "t/a"


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
