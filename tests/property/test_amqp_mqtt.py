"""A message that crosses between AMQP 0-9-1 and MQTT and comes back is what it was; where it is not, docs/interop.md
says so, and so do these tests."""
from __future__ import annotations

import struct
from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st
from oracle.amqp_mqtt import (
    decode_amqp,
    decode_mqtt,
    encode_amqp,
    encode_item,
    encode_mqtt,
    encode_table,
    swapped,
)
from oracle.exchange import topic_matches

from fluxmq._core.amqp091.topics import (
    address_of,
    address_of_publish,
    filter_of,
    matches,
    topic_of_address,
)
from fluxmq._core.amqp091.values import read_text, write_text
from fluxmq._core.bridge.translate import amqp_to_mqtt, mqtt_to_amqp
from fluxmq._core.wire.text import check_topic

OURS = ["amqp-type", "amqp-type64", "amqp-priority", "amqp-is:a", "amqp-is:b", "amqp-header64", "amqp-header64+",
        "amqp-reply-to", "amqp-delivery-mode", "amqp-timestamp", "amqp-expiration", "amqp-correlation-id64",
        "amqp-content-type", "amqp-content-type64", "amqp-exchange", "amqp-user-id", "amqp-other", "x-mqtt-topic",
        "x-mqtt-user-properties", "x-mqtt-other"]
BAD = [b"\xff", b"a\0b", b"\xc3\x28\xed\xa0\x80"]

chars = st.characters(exclude_characters="\0", exclude_categories=["Cs"])
texts = st.text(chars, max_size=12).map(str.encode)
shorts = st.one_of(texts, st.sampled_from([*BAD, b"x" * 255, b"q", b"amq.topic/a.b", b"amq.topic/$queue.x", b"a/b",
                                           b"a+b", b"amq.topic/", b"amq.gen-1"]))
names = st.one_of(st.text(chars, min_size=1, max_size=6).map(str.encode), st.sampled_from([b"a", b"b", b"t", b"F"]),
                  st.sampled_from([name.encode() for name in OURS if not name.startswith("x-mqtt")] + BAD))


def integers(bits: int, *, signed: bool) -> st.SearchStrategy[int]:
    low, high = (-(1 << bits - 1), (1 << bits - 1) - 1) if signed else (0, (1 << bits) - 1)
    return st.one_of(st.integers(low, high), st.sampled_from([low, high, 0]))


scalars = st.one_of(
    st.tuples(st.just("t"), integers(8, signed=False) | st.integers(0, 1)),
    st.tuples(st.just("b"), integers(8, signed=True)), st.tuples(st.just("B"), integers(8, signed=False)),
    st.tuples(st.sampled_from("sU"), integers(16, signed=True)), st.tuples(st.just("u"), integers(16, signed=False)),
    st.tuples(st.just("I"), integers(32, signed=True)), st.tuples(st.just("i"), integers(32, signed=False)),
    st.tuples(st.sampled_from("lL"), integers(64, signed=True)), st.tuples(st.just("T"), integers(64, signed=False)),
    st.tuples(st.just("f"), st.binary(min_size=4, max_size=4)),
    st.tuples(st.just("d"), st.binary(min_size=8, max_size=8)
              | st.floats(allow_nan=False).map(lambda value: struct.pack(">d", value))),
    st.tuples(st.just("D"), st.tuples(st.integers(0, 255), integers(32, signed=True))),
    st.tuples(st.sampled_from("Sx"), texts | st.sampled_from(BAD)), st.just(("V", None)))
items = st.recursive(scalars, lambda inner: st.one_of(
    st.tuples(st.just("A"), st.lists(inner, max_size=3)),
    st.tuples(st.just("F"), st.dictionaries(names, inner, max_size=3).map(
        lambda table: [(name, *item) for name, item in table.items()]))), max_leaves=6)
tables = st.dictionaries(names, items, max_size=5).map(lambda table: [(name, *item) for name, item in table.items()])

amqp_properties = st.fixed_dictionaries({}, optional={
    "content_type": shorts, "content_encoding": shorts, "headers": tables.filter(bool),
    "delivery_mode": st.sampled_from([1, 2, 0, 255]), "priority": st.integers(0, 255), "correlation_id": shorts,
    "reply_to": shorts, "message_id": shorts, "timestamp": integers(64, signed=False), "type": shorts,
    "user_id": shorts, "app_id": shorts, "cluster_id": shorts, "expiration": shorts})

topics = st.one_of(
    st.text(st.sampled_from("ab./$é"), min_size=1, max_size=8),
    st.sampled_from(["$queue/q", "$queue/a.b", "$queue/q/x"]),
    st.sampled_from(["é" * 200, "$queue/" + "q" * 300, "a/" * 300])).map(str.encode)
user_names = st.one_of(texts, st.sampled_from([b"a", b"b", b"a" * 300, *(name.encode() for name in OURS)]))
user_values = st.one_of(texts, st.sampled_from([
    b"1", b"I", b"S", b"007", b"x", b"YQ==", b"/w==", b"q", b"2", b"A", b"[]", b"[1, 2]", b"t", b"true",
    b"AWFJAAAABQ==", b"a" * 300]))
mqtt_properties = st.fixed_dictionaries({"users": st.lists(st.tuples(user_names, user_values), max_size=8)}, optional={
    "payload_format": st.integers(0, 1), "content_type": texts | st.just(b"t" * 300), "response_topic": topics,
    "correlation_data": st.binary(max_size=12) | texts | st.just(b"c" * 300)})


@given(items)
def test_a_value_as_text_comes_back(item: tuple[str, Any]) -> None:
    raw = encode_item(*item)
    code, text = write_text(raw)
    assert "\0" not in text.decode()
    assert read_text(code or b"S", text) == raw
    assert (code == b"") == (item[0] == "S" and item[1] not in BAD)


@given(st.binary(max_size=3), texts)
def test_a_text_is_a_value_or_none(code: bytes, text: bytes) -> None:
    raw = read_text(code, text)
    if raw is not None:
        again = write_text(raw)
        assert read_text(again[0] or b"S", again[1]) == raw


@settings(max_examples=400)
@given(st.sampled_from([b"amq.topic"]), topics.filter(lambda topic: len(topic) <= 255), amqp_properties)
def test_from_amqp_to_mqtt_and_back(exchange: bytes, key: bytes, properties: dict[str, Any]) -> None:
    address = address_of(exchange, key)
    topic, crossed, qos, retain = amqp_to_mqtt(address, encode_amqp(properties))
    assert check_topic(topic) == 1 and not retain
    decode_mqtt(crossed)
    back, returned = mqtt_to_amqp(topic, crossed, qos)
    expected = dict(properties)
    exchange_said = {(b"amqp-exchange", b"amq.topic")} & set(decode_mqtt(crossed)["users"])
    more = [(b"amqp-exchange", "S", b"amq.topic")] if exchange_said else []
    if not exchange_said:
        assert back == address
    if "user_id" in expected:           # only the broker vouches for it
        user = expected.pop("user_id")
        if user in BAD:
            more.append((b"amqp-user-id64", "S", dict(decode_mqtt(crossed)["users"])[b"amqp-user-id64"]))
        else:
            more.append((b"amqp-user-id", "S", user))
    if more:
        expected["headers"] = more + expected.get("headers", [])
    found = decode_amqp(returned)
    headers = [entry for entry in found.get("headers", []) if entry[0] != b"x-mqtt-user-properties"]
    if headers or "headers" in found:
        found["headers"] = headers
    assert found == expected or (repeated(more, properties) and found.keys() == expected.keys())


def repeated(more: list[tuple[bytes, str, Any]], properties: dict[str, Any]) -> bool:
    """Whether a header has the name that something else is told under."""
    return bool({name for name, _, _ in more} & {name for name, _, _ in properties.get("headers", [])})


@settings(max_examples=600)
@given(topics.filter(lambda topic: topic != b"$"), mqtt_properties, st.integers(0, 2))
@example(b"a", {"users": [(b"a", b"1"), (b"b", b"2"), (b"a", b"3")]}, 0)
@example(b"a", {"users": [(b"a", b"007"), (b"amqp-is:a", b"I")]}, 1)
@example(b"a", {"users": [(b"a%d" % number, b"1") for number in range(200)]}, 1)
@example(b"a", {"users": [(b"a%d" % (number % 100), b"%d" % number) for number in range(200)]}, 1)
def test_from_mqtt_to_amqp_and_back(topic: bytes, properties: dict[str, Any], qos: int) -> None:
    address, crossed = mqtt_to_amqp(topic, encode_mqtt(properties), qos)
    found = decode_amqp(crossed)
    named = [name for name, _, _ in found.get("headers", [])]
    if not any(name.startswith(b"amqp-header64") for name, _ in properties["users"]):
        assert len(named) == len(set(named)), "a table does not say a name twice"
    assert all(len(name) <= 255 for name in named)
    assert address == address_of_publish(topic)
    back, returned, _, retain = amqp_to_mqtt(address, crossed)
    assert (back, retain) == (topic, False)
    assert decode_mqtt(returned) == properties


@given(topics)
def test_what_has_an_equal_in_amqp_is_that(topic: bytes) -> None:
    """The oracle's own words for the plain case."""
    users = [(b"one", b"1"), (b"two", "zwölf".encode())]
    _, crossed = mqtt_to_amqp(topic, encode_mqtt({
        "users": users, "content_type": b"text/plain", "correlation_data": b"c-1", "response_topic": b"a/b.c"}),
        1, expires_at=61_000, now_ms=1_000)
    headers = [(name, "S", value) for name, value in users]
    if len(topic) > 255 and not address_of_publish(topic).startswith(b"\0"):
        headers.insert(0, (b"x-mqtt-topic", "S", topic))
    assert decode_amqp(crossed) == {
        "content_type": b"text/plain", "headers": headers, "delivery_mode": 2, "correlation_id": b"c-1",
        "reply_to": b"amq.topic/a.b/c", "expiration": b"60000"}


@given(st.binary(max_size=60), st.binary(max_size=80))
def test_no_bytes_at_all_do_harm(address: bytes, properties: bytes) -> None:
    _, crossed, _, _ = amqp_to_mqtt(address, properties)
    decode_mqtt(crossed)


@given(topics, st.binary(max_size=80))
def test_no_properties_at_all_do_harm(topic: bytes, properties: bytes) -> None:
    _, crossed = mqtt_to_amqp(topic, properties)
    decode_amqp(crossed)


def test_long_headers_come_in_pieces() -> None:
    table = [(b"long", "S", b"x" * 200_000), (b"bytes", "x", bytes(range(256)) * 300), (b"after", "I", 5)]
    raw = encode_amqp({"headers": table})
    topic, crossed, _, _ = amqp_to_mqtt(address_of(b"amq.topic", b"k"), raw)
    assert [name for name, _ in decode_mqtt(crossed)["users"]] == [
        *[b"amqp-header64+"] * 4, b"amqp-header64", b"amqp-header64+", b"amqp-header64", b"after", b"amqp-is:after"]
    assert mqtt_to_amqp(topic, crossed) == (address_of(b"amq.topic", b"k"), raw)


def test_a_table_as_deep_as_a_frame_allows_is_taken_over() -> None:
    table = b""
    for _ in range(2000):
        table = encode_item("A", []) [:1] + struct.pack(">I", len(table)) + table
    raw = struct.pack(">H", 1 << 13) + struct.pack(">I", len(table) + 2) + b"\x01a" + table
    _, crossed, _, _ = amqp_to_mqtt(address_of(b"amq.topic", b"k"), raw)
    assert dict(decode_mqtt(crossed)["users"])[b"amqp-is:a"] == b"A64"


def test_what_a_client_makes_up_is_looked_through() -> None:
    """Entries that are none are not passed on to clients of AMQP as bytes."""
    for value in (b"AA==", b"AWFJ", b"AWE/AAAA", b"!", b"AWFJAAAABQAA"):
        _, crossed = mqtt_to_amqp(b"a", encode_mqtt({"users": [(b"amqp-header64", value)]}))
        assert decode_amqp(crossed)["headers"] == [
            (b"x-mqtt-user-properties", "A", [("S", b"amqp-header64"), ("S", value)])]


# ---------------------------------------------------------------- addresses and patterns

words = st.lists(st.sampled_from(["a", "b", "*", "#", "", "a/b", "$x", "a*"]), min_size=1, max_size=5).map(".".join)
keys = st.lists(st.sampled_from(["a", "b", "", "a/b", "$x", "a*"]), min_size=1, max_size=5).map(".".join)


def mqtt_match(levels: list[str], topic: list[str]) -> bool:
    if levels and levels[0] == "#":
        return True
    if not levels or not topic:
        return not levels and not topic
    return levels[0] in ("+", topic[0]) and mqtt_match(levels[1:], topic[1:])


@settings(max_examples=1000)
@given(words, keys)
@example("a.#.b.#.c", "a.b.b.c.c")
@example("#.a", "a")
@example("a.#", "a")
def test_a_binding_is_a_filter_and_what_it_does_not_say(pattern: str, key: str) -> None:
    topic = topic_of_address(address_of(b"amq.topic", key.encode()))
    wanted = topic_matches(pattern.encode().split(b"."), key.encode().split(b"."))
    found = filter_of(pattern.encode())
    if key.startswith("$") or not topic:
        return
    if found is None:
        assert not wanted
        return
    filter_, more = (part.decode() for part in found)
    reached = mqtt_match(filter_.split("/"), topic.decode().split("/"))
    assert (reached and (not more or matches(more.encode(), topic))) == wanted


@given(st.text(st.sampled_from("ab./"), min_size=1, max_size=9).map(str.encode))
def test_topics_and_routing_keys_are_one_to_one(key: bytes) -> None:
    topic = topic_of_address(address_of(b"amq.topic", key))
    assert topic == swapped(key)
    assert address_of_publish(topic) == address_of(b"amq.topic", key)


@given(texts, texts)
def test_headers_and_user_properties_one_to_one(name: bytes, value: bytes) -> None:
    raw = encode_table([(name or b"n", "S", value)])
    properties = struct.pack(">H", 1 << 13) + struct.pack(">I", len(raw)) + raw
    assert decode_mqtt(amqp_to_mqtt(address_of(b"amq.topic", b"k"), properties)[1])["users"] == [(name or b"n", value)]
