"""What `fluxmq sub` prints of a message, and which messages it knows again."""
from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest

from fluxmq.app.message_text import LETTERS, compiled
from fluxmq.app.printed import Printed
from fluxmq.client import Properties

NOW = 1_700_000_000.5


def message(topic: str = "a/b", payload: bytes = b"21.5", **more: Any) -> Any:
    """As a Delivery."""
    return SimpleNamespace(**{"topic": topic, "payload": payload, "qos": 1, "retain": False, "dup": False,
                              "packet_id": 1, "properties": Properties()} | more)


def queued(offset: int, payload: bytes = b"x", count: int | None = 1, partition: int = 0, **more: Any) -> Any:
    """As a QueueMessage; count: None: of a stream."""
    user = [("shop", "7"), ("partition-key", "k"), ("queue", "orders"), ("message-id", f"{partition}:{offset}"),
            ("offset", str(offset)), ("group-id", "billing")]
    user += [] if count is None else [("delivery-count", str(count))]
    return message("$queue/orders/eu", payload, properties=Properties(user=user), redelivered=(count or 1) > 1, **more)


FULL = message(payload=b"\xc3\xa4", qos=2, retain=True, dup=True, properties=Properties(
    content_type="text/plain", response_topic="answers", correlation_data=b"\xff", message_expiry_interval=60,
    user=[("a", "1"), ("b", "2"), ("a", "3")]))


@pytest.mark.parametrize(("text", "shown"), [
    ("%t %p", "a/b ä"), ("%x %b %l", "c3a4 w6Q= 2"), ("%q%r%d", "211"), ("%c%%", "7%"),
    ("%I", "2023-11-14T22:13:20.500Z"), ("%U", "1700000000.500"), ("%C|%R|%E", "text/plain|answers|60"),
    ("%P", "a:1 b:2 a:3"), ("%{a}%{none}", "3"), (r"%t\t%p\\n", "a/b\tä\\n"), ("%o%i%k%g%n", "")])
def test_letters(text: str, shown: str) -> None:
    for on_terminal in (False, True):
        assert compiled(text, on_terminal=on_terminal)(FULL, 7, NOW) == shown.encode() + b"\n"


def test_letters_of_queues() -> None:
    assert compiled("%o %i %k %g %n", on_terminal=False)(queued(17, partition=3), 1, NOW) == b"17 3:17 k billing 1\n"


def test_every_letter_prints_something_or_nothing() -> None:
    for letter in LETTERS:
        assert compiled(f"<%{letter}>", on_terminal=False)(message(), 1, NOW).startswith(b"<")


@pytest.mark.parametrize("text", ["%z", "%", "plain", "", r"%p\q", r"%p\ "[:-1]])
def test_what_is_no_format(text: str) -> None:
    with pytest.raises(ValueError, match=r"mean|same"):
        compiled(text, on_terminal=False)


def test_bytes_are_as_they_were_published() -> None:
    """To a file or a pipe; a terminal gets nothing that moves its cursor."""
    nasty = message("a\x1b", b"\x1b[2J\xff\tb\n\x9b")
    assert compiled("%p", on_terminal=False)(nasty, 1, NOW) == b"\x1b[2J\xff\tb\n\x9b\n"
    assert compiled("%t %p", on_terminal=True)(nasty, 1, NOW) == b"a\\x1b \\x1b[2J\\xff\tb\n\\x9b\n"
    assert compiled("%p", on_terminal=True)(message(payload="ä\x85".encode()), 1, NOW) == "ä\\x85\n".encode()
    assert compiled("raw", on_terminal=False)(nasty, 1, NOW) == nasty.payload
    assert compiled("hex", on_terminal=True)(nasty, 1, NOW) == b"1b5b324aff09620a9b\n"


def test_json() -> None:
    found = json.loads(compiled("json", on_terminal=False)(FULL, 1, NOW))
    assert found == {
        "topic": "a/b", "payload": "ä", "qos": 2, "retain": True, "dup": True, "time": "2023-11-14T22:13:20.500Z",
        "properties": {"message_expiry_interval": 60, "content_type": "text/plain", "response_topic": "answers",
                       "correlation_data": "/w==", "correlation_data_encoding": "base64"},
        "user_properties": [["a", "1"], ["b", "2"], ["a", "3"]]}
    found = json.loads(compiled("json", on_terminal=False)(queued(17, b"\xff"), 1, NOW))
    assert (found["payload"], found["encoding"]) == ("/w==", "base64")
    assert {name: found[name] for name in ("queue", "group", "message_id", "offset", "delivery_count",
                                           "partition_key")} == {
        "queue": "orders", "group": "billing", "message_id": "0:17", "offset": 17, "delivery_count": 1,
        "partition_key": "k"}


def test_json_on_a_terminal_is_json() -> None:
    data = compiled("json", on_terminal=True)(message("ä", "\x1b\x9b\x7fä".encode()), 1, NOW)
    assert data.decode().rstrip("\n").isprintable() and b"\xc3\xa4" in data
    assert json.loads(data)["payload"] == "\x1b\x9b\x7fä"


# ── printed already ──────────────────────────────────────────────────────────────────────────────────────────


def test_a_message_that_comes_again() -> None:
    printed = Printed()
    printed.add(message(packet_id=5))
    assert printed.has(message(packet_id=5, dup=True))
    assert not printed.has(message(packet_id=5)), "the broker has given its identifier to another one"
    assert not printed.has(message(packet_id=5, dup=True, payload=b"other"))
    assert not printed.has(message(packet_id=6, dup=True))
    assert not printed.has(message(packet_id=0, qos=0))
    printed.add(message(packet_id=5, payload=b"other"))
    assert not printed.has(message(packet_id=5, dup=True))


def test_a_retained_message_that_comes_again() -> None:
    """Because it was subscribed anew: it may have been printed when it was published."""
    printed = Printed()
    assert not printed.has(message(retain=True))
    printed.add(message())
    assert printed.has(message(retain=True, packet_id=9))
    assert not printed.has(message(retain=True, payload=b"other"))
    assert not printed.has(message(packet_id=9)), "the same may be published twice"


def test_a_message_of_a_queue_that_comes_again() -> None:
    printed = Printed()
    printed.add_queued(queued(17))
    assert printed.has_queued(queued(17, count=2))
    assert not printed.has_queued(queued(17)), "of a queue that was made anew"
    assert not printed.has_queued(queued(17, count=2, partition=1))
    assert not printed.has_queued(queued(17, b"other", count=2))
    assert not printed.has_queued(queued(16, count=2))


def test_a_stream_from_the_beginning() -> None:
    """After a broken connection only; what is above was not printed, and a stream that was made anew begins below."""
    printed = Printed(limit=2)
    for offset in range(5):
        printed.add_queued(queued(offset, count=None))
    assert not printed.has_queued(queued(4, count=None))
    printed.connection_lost()
    assert [printed.has_queued(queued(offset, count=None)) for offset in (0, 4, 5)] == [True, True, False]
    assert not printed.has_queued(queued(0, count=None, partition=1))
    assert not printed.has_queued(queued(4, b"other", count=None))
    assert not printed.has_queued(queued(0, count=None))


def test_the_memory_is_limited() -> None:
    printed = Printed(limit=2)
    for number in range(1, 4):
        printed.add(message(f"{number}", packet_id=number))
    assert [printed.has(message(f"{number}", packet_id=number, dup=True)) for number in (1, 2, 3)] == [
        False, True, True]
