"""AMQP 0-9-1 byte by byte: the handshake, what is malformed, and what a broker answers to it.

What RabbitMQ answers is written down in docs/internals/amqp-0-9-1.md, "What RabbitMQ does". Where it breaks a
connection without a word, we say what was wrong; such tests accept both.
"""
from __future__ import annotations

import contextlib
import random
import socket
import struct
from collections.abc import Callable
from typing import Any

import pytest
from kit.amqp_wire import CAPABILITIES, Closed, Refused, Wire
from oracle.amqp091 import (
    BODY,
    HEADER,
    HEARTBEAT,
    METHOD,
    PROTOCOL,
    Field,
    encode_frame,
    encode_header,
    encode_method,
)

Login = Callable[..., Wire]
Open = Callable[[], Wire]

PUBLISH = encode_method("basic.publish", routing_key="nobody")


def method(channel: int, name: str, /, **arguments: Any) -> bytes:
    return encode_frame(METHOD, channel, encode_method(name, **arguments))


def expect_close(wire: Wire, *codes: int, number: tuple[int, int] | None = None) -> Refused:
    """The connection is closed with one of these codes, and then the socket."""
    refused = wire.expect_refusal(0)
    assert refused.scope == "connection" and refused.code in codes, refused
    if number is not None:
        assert refused.method == number
    wire.expect_end()
    return refused


def close_or_end(wire: Wire, *codes: int) -> None:
    """The connection is closed with one of these codes, or ends without a word (as RabbitMQ does, where it does)."""
    try:
        refused = wire.expect_refusal(0)
    except Closed:
        return
    assert refused.scope == "connection" and refused.code in codes, refused
    wire.expect_end()


# ── protocol header ──────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("header", [b"AMQP\x00\x01\x00\x00", b"AMQP\x00\x00\x09\x00", b"AMQP\x00\x00\x09\x02",
                                    b"AMQP\x00\x00\x0a\x01", b"AMQP\x02\x01\x00\x00", b"GET / HT",
                                    b"\x10\x0c\x00\x04MQTT"],
                         ids=repr)
def test_another_protocol(open_wire: Open, header: bytes) -> None:
    """Who speaks something else is told what is spoken here, and cut. (AMQP 1.0 will share the port in a later
    version.)"""
    wire = open_wire()
    wire.send_raw(header)
    assert wire.read_raw(8) == PROTOCOL
    wire.expect_end()


def test_start_says_who_and_what(open_wire: Open) -> None:
    """Mechanisms, locale, and the properties that clients look at."""
    wire = open_wire()
    wire.send_raw(PROTOCOL)
    start = wire.expect(0, "connection.start")
    assert {b"PLAIN", b"AMQPLAIN"} <= set(start["mechanisms"].split())
    assert b"en_US" in start["locales"].split()
    properties = start["server_properties"]
    assert {"product", "version", "platform", "capabilities"} <= set(properties)
    assert all(properties["capabilities"][name] is True for name in (*CAPABILITIES, "consumer_priorities",
                                                                     "per_consumer_qos", "direct_reply_to"))


# ── who may ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_plain(login: Login) -> None:
    """User and password, the way every client does it."""
    assert login(mechanism="PLAIN").call(1, "queue.declare", exclusive=True)["queue"].startswith("amq.gen-")


def test_amqplain(login: Login) -> None:
    """The older way of py-amqp and others: a table without its length."""
    assert login(mechanism="AMQPLAIN").call(1, "queue.declare", exclusive=True)


@pytest.mark.parametrize("mechanism", ["PLAIN", "AMQPLAIN"])
def test_wrong_password(guarded_broker: Any, mechanism: str) -> None:
    """403 for a client that says it understands that; the right one gets in."""
    Wire(guarded_broker.amqp).login().close()
    wire = Wire(guarded_broker.amqp)
    wire.greet().start_ok(password="wrong", mechanism=mechanism)
    refused = wire.expect_refusal(0)
    assert (refused.code, refused.method) == (403, (0, 0))
    assert refused.text.startswith("ACCESS_REFUSED - ") and mechanism in refused.text


@pytest.mark.parametrize(("mechanism", "response"), [("DIGEST", b""), ("PLAIN", b"no zeros"),
                                                     ("plain", b"\0guest\0guest"),
                                                     ("AMQPLAIN", b"\x05LOGIN?")])
def test_login_that_makes_no_sense(open_wire: Open, mechanism: str, response: bytes) -> None:
    """An unknown mechanism or a malformed response does not get in. RabbitMQ cuts; a word about it is welcome."""
    wire = open_wire()
    wire.greet().start_ok(mechanism=mechanism, response=response)
    close_or_end(wire, 403, 501, 502, 503, 504, 530)


def test_wrong_password_without_the_capability(guarded_broker: Any) -> None:
    """A client that does not say `authentication_failure_close` sees the end of the connection, as the specification
    has it."""
    wire = Wire(guarded_broker.amqp)
    wire.greet().start_ok(password="wrong", capabilities={})
    wire.expect_end()


# ── tune ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_tune_offers_what_rabbitmq_does(login: Login) -> None:
    """Clients that have no wish of their own get these."""
    assert login().tune == {"channel_max": 2047, "frame_max": 131072, "heartbeat": 60}


@pytest.mark.parametrize("tune", [{"frame_max": 4095}, {"frame_max": 131073}, {"channel_max": 3000}], ids=str)
def test_tune_that_was_not_offered(open_wire: Open, tune: dict[str, int]) -> None:
    """Smaller than the protocol's least, or more than was offered: refused."""
    wire = open_wire()
    wire.greet().start_ok()
    offered = wire.expect(0, "connection.tune")
    wire.send(0, "connection.tune-ok", **offered | tune)
    wire.send(0, "connection.open", virtual_host="/")
    close_or_end(wire, 501, 530)


@pytest.mark.parametrize("frame_max", [4096, 5000])
def test_small_frames(login: Login, frame_max: int) -> None:
    """Who asks for small frames gets no larger ones; a body is cut at that size, minus the eight bytes around it."""
    wire = login(frame_max=frame_max)
    queue = wire.call(1, "queue.declare", exclusive=True)["queue"]
    for size in (frame_max - 9, frame_max - 8, frame_max - 7, 3 * frame_max):
        body = random.Random(size).randbytes(size)
        wire.publish(1, "", queue, body)
        message = wire.get(1, queue)
        assert message is not None and message.body == body     # the kit refuses larger frames


def test_channels_up_to_channel_max(login: Login) -> None:
    """As many channels as were agreed, and not one more. They are counted: their numbers may be any, as clients need
    that number upwards and never come back to a low one."""
    wire = login(channel_max=3)
    for number in (2, 7, 65_535, 4000):
        wire.call(number, "channel.open")
        wire.call(number, "channel.close", reply_code=200)
    wire.open_channel(2)
    wire.open_channel(65_535)
    wire.send(4, "channel.open")
    assert "channel" in expect_close(wire, 530).text


def test_a_channel_that_was_closed_can_be_opened_again(login: Login) -> None:
    """Numbers are free for use again, after either side closed."""
    wire = login(channel_max=1)
    for _ in range(3):
        wire.call(1, "channel.close", reply_code=200)
        wire.open_channel(1)
    wire.send(1, "queue.purge", queue="missing")
    assert wire.expect_refusal(1).code == 404
    wire.open_channel(1)


@pytest.mark.parametrize("bytewise", [False, True])
def test_everything_ahead_of_the_answers(open_wire: Open, bytewise: bool) -> None:
    """A client need not wait for the answers of the handshake, nor for those of its first methods; its bytes may come
    one by one."""
    wire = open_wire()
    sent = (PROTOCOL + method(0, "connection.start-ok", mechanism="PLAIN", response=b"\0guest\0guest",
                              locale="en_US", client_properties={"capabilities": CAPABILITIES})
            + method(0, "connection.tune-ok", channel_max=5, frame_max=131072, heartbeat=0)
            + method(0, "connection.open", virtual_host="/") + method(1, "channel.open")
            + method(1, "queue.declare", exclusive=True))
    for piece in ([sent[at:at + 1] for at in range(len(sent))] if bytewise else [sent]):
        wire.send_raw(piece)
    start = wire.expect(0, "connection.start")
    assert (start["version_major"], start["version_minor"]) == (0, 9)
    for channel, name in ((0, "connection.tune"), (0, "connection.open-ok"),
                          (1, "channel.open-ok"), (1, "queue.declare-ok")):
        wire.expect(channel, name)


def test_frames_in_pieces(login: Login) -> None:
    """Frames come as TCP pleases: byte by byte is the same conversation."""
    wire = login()
    queue = wire.call(1, "queue.declare", exclusive=True)["queue"]
    for byte in wire.encode_publish(1, "", queue, b"slowly", {"headers": {"k": "v"}}):
        wire.send_raw(bytes([byte]))
    message = wire.get(1, queue)
    assert message is not None and message.body == b"slowly"


# ── malformed frames ─────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(("frame", "code"), [
    (encode_frame(METHOD, 1, encode_method("tx.select"), end=0), 501),
    (encode_frame(4, 1, b"x"), 501),
    (encode_frame(255, 1, b""), 501),
    (encode_frame(METHOD, 1, b""), 501),
    (encode_frame(METHOD, 1, b"\0\x0a\0"), 501),
    (encode_frame(METHOD, 1, encode_method("queue.declare", queue="abc")[:-5]), 501),
    (encode_frame(METHOD, 1, encode_method("queue.declare", queue="abc") + b"more"), 501),
    (encode_frame(METHOD, 1, encode_method("queue.declare", queue="abc")[:-4] + b"\x7f\xff\xff\xff"), 501),
    (encode_frame(METHOD, 1, encode_method("queue.declare", queue="abc")[:-4] + b"\xff\xff\xff\xff"), 501),
    (encode_frame(HEARTBEAT, 0, b"lub dub"), 501),
    (encode_frame(HEARTBEAT, 1, b""), 505),
    (encode_frame(HEADER, 1, encode_header(3)), 505),
    (encode_frame(BODY, 1, b"abc"), 505),
    (encode_frame(HEADER, 0, encode_header(3)), 505),
    (encode_frame(BODY, 9, b"abc"), 505),
], ids=["frame-end", "type-4", "type-255", "no-method", "half-a-method", "cut-short", "too-long",
        "table-2GiB", "table-4GiB", "heartbeat-with-payload", "heartbeat-on-channel", "header-of-nothing",
        "body-of-nothing", "header-on-0", "body-on-unopened"])
def test_malformed_frames(login: Login, frame: bytes, code: int) -> None:
    """A client with a fault hears which: 501 what cannot be read, 505 what must not come now. Where RabbitMQ says 501
    for the arguments of a method, 502 is what the specification has for it; where it says 505, the frame itself (501)
    or its channel (504) may be what is wrong."""
    wire = login()
    wire.send_raw(frame)
    expect_close(wire, code, *((502,) if code == 501 else (501, 504)))


def test_names_that_are_not_utf8(login: Login, amqp_broker: Any) -> None:
    """They are names like others; RabbitMQ refuses them."""
    wire = login()
    wire.send_raw(encode_frame(METHOD, 1, encode_method("queue.declare", queue=b"\xff\xfe", exclusive=True)))
    if amqp_broker.kind == "rabbitmq":
        expect_close(wire, 501)
    else:
        assert wire.read_frame().payload.endswith(b"\x02\xff\xfe" + bytes(8))


@pytest.mark.parametrize("size", [131072 + 1, 1 << 20, 0x7FFFFFFF, 0xFFFFFFFF])
def test_a_frame_larger_than_was_agreed(login: Login, size: int) -> None:
    """It is refused at its first bytes: nobody waits for two gigabytes to come, or makes room for them. (RabbitMQ
    forgives payloads of up to eight bytes more than frame_max allows.)"""
    wire = login()
    wire.send_raw(struct.pack(">BHI", METHOD, 1, size))
    expect_close(wire, 501)


@pytest.mark.parametrize(("frame", "code", "number"), [
    (method(5, "tx.select"), 504, (90, 10)),
    (method(0, "tx.select"), 504, (90, 10)),
    (method(1, "channel.open"), 504, (20, 10)),
    (method(0, "connection.tune-ok"), 504, (10, 31)),
    (method(0, "connection.open", virtual_host="/"), 504, (10, 40)),
    (method(1, "connection.open", virtual_host="/"), 503, (10, 40)),
    (method(1, "queue.declare-ok", queue="q"), 503, (50, 11)),
    (method(1, "basic.qos", prefetch_size=5), 540, (60, 10)),
    (method(1, "basic.recover", requeue=False), 540, (60, 110)),
    (method(1, "exchange.declare", exchange="e", type="swimming-pool"), 503, (40, 10)),
], ids=["unopened", "channel-0", "open-twice", "tune-twice", "connection-open-twice", "connection-on-1", "answers",
        "prefetch-size", "recover-without-requeue", "exchange-type"])
def test_methods_that_may_not_come(login: Login, frame: bytes, code: int, number: tuple[int, int]) -> None:
    """The connection is closed; code, class and method say why."""
    wire = login()
    wire.send_raw(frame)
    expect_close(wire, code, number=number)


@pytest.mark.parametrize("channel", [0, 1])
@pytest.mark.parametrize("number", [(99, 10), (60, 99), (10, 99), (0, 0), (0xFFFF, 0xFFFF)], ids=str)
def test_methods_that_do_not_exist(login: Login, number: tuple[int, int], channel: int) -> None:
    """503 or 540; RabbitMQ breaks the connection without a word."""
    wire = login()
    wire.send_raw(encode_frame(METHOD, channel, struct.pack(">HH", *number)))
    close_or_end(wire, 501, 503, 504, 540)


def test_flow_off(login: Login) -> None:
    """A client that asks for a pause gets it, or is told that there is none (RabbitMQ: 540)."""
    wire = login()
    wire.send(1, "channel.flow", active=False)
    name, arguments = wire.next(1)
    assert name == "channel.flow-ok" or arguments["reply_code"] == 540      # type: ignore[index]


def test_immediate_is_not_there(login: Login) -> None:
    """`immediate` was taken out of RabbitMQ long ago: 540 and not silence."""
    wire = login()
    wire.send_raw(method(1, "basic.publish", routing_key="q", immediate=True))
    wire.send_raw(encode_frame(HEADER, 1, encode_header(0)))
    expect_close(wire, 540, number=(60, 40))


# ── content ──────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("frames", [
    [encode_frame(METHOD, 1, encode_method("tx.select"))],
    [encode_frame(BODY, 1, b"abc")],
    [encode_frame(HEADER, 1, encode_header(3, class_id=50))],
    [encode_frame(HEADER, 1, encode_header(3, weight=1))],
    [encode_frame(HEADER, 1, encode_header(3)), encode_frame(METHOD, 1, encode_method("tx.select"))],
    [encode_frame(HEADER, 1, encode_header(3)), encode_frame(HEADER, 1, encode_header(3))],
    [encode_frame(HEADER, 1, encode_header(3)), encode_frame(BODY, 1, b"abcd")],
    [encode_frame(HEADER, 1, encode_header(3)), encode_frame(BODY, 1, b"ab"), encode_frame(BODY, 1, b"cd")],
    [encode_frame(HEADER, 1, encode_header(0)), encode_frame(BODY, 1, b"x")],
], ids=["no-header", "body-first", "header-of-class-50", "weight", "no-body", "two-headers", "body-too-long",
        "bodies-too-long", "body-of-empty"])
def test_content_out_of_order(login: Login, frames: list[bytes]) -> None:
    """A publish is its method, its header, and exactly the body that the header says: else 505. RabbitMQ notices a body
    that is too long at the next frame that is none; 501 is as good for that."""
    wire = login()
    wire.send_raw(encode_frame(METHOD, 1, PUBLISH) + b"".join(frames) + method(1, "tx.select"))
    expect_close(wire, 505, 501)


@pytest.mark.parametrize("payload", [
    struct.pack(">HHQH", 60, 0, 0, 0x8000) + b"\xffabc",
    struct.pack(">HHQH", 60, 0, 0, 0x8000),
    encode_header(0) + b"abc",
    struct.pack(">HHQHI", 60, 0, 0, 0x2000, 0x7FFFFFFF),
    struct.pack(">HHQHI", 60, 0, 0, 0x2000, 7) + b"\x01aS\x7f\xff\xff\xff",
    struct.pack(">HHQHI", 60, 0, 0, 0x2000, 8) + b"\x01aA\x7f\xff\xff\xff\x00",
    struct.pack(">HHQHI", 60, 0, 0, 0x2000, 3) + b"\x01a?",
    struct.pack(">HHQHH", 60, 0, 0, 1, 0),
], ids=["short-string-lies", "nothing-there", "left-over", "table-2GiB", "string-2GiB", "array-2GiB", "unknown-type",
        "more-flags"])
def test_properties_that_cannot_be_read(login: Login, payload: bytes) -> None:
    """A content header that lies ends the connection: 501, 502 or 505 here, 541 in RabbitMQ. No memory is taken for
    what is announced and never came."""
    wire = login()
    wire.send_raw(encode_frame(METHOD, 1, PUBLISH) + encode_frame(HEADER, 1, payload) + method(1, "tx.select"))
    close_or_end(wire, 501, 502, 505, 541)


@pytest.mark.parametrize("size", [2**31, 2**63, 2**64 - 1])
def test_a_body_size_is_only_a_promise(login: Login, size: int) -> None:
    """A header that announces exabytes costs no memory. RabbitMQ waits for them; to refuse at once (with 501, 502, or
    406 or 311 on the channel, for it is more than is allowed) is as good."""
    wire = login()
    wire.send_raw(encode_frame(METHOD, 1, PUBLISH) + encode_frame(HEADER, 1, encode_header(size))
                  + encode_frame(BODY, 1, b"x" * 1000) + method(1, "tx.select"))
    refused = wire.expect_refusal(1)
    assert (refused.scope, refused.code) in {("connection", 505), ("connection", 501), ("connection", 502),
                                             ("channel", 406), ("channel", 311)}


def test_empty_body_frames(login: Login) -> None:
    """Body frames of no bytes are allowed between others."""
    wire = login()
    queue = wire.call(1, "queue.declare", exclusive=True)["queue"]
    wire.send_raw(method(1, "basic.publish", routing_key=queue) + encode_frame(HEADER, 1, encode_header(2))
                  + b"".join(encode_frame(BODY, 1, part) for part in (b"", b"a", b"", b"b")))
    message = wire.get(1, queue)
    assert message is not None and message.body == b"ab"


def test_content_of_two_channels_interleaved(login: Login) -> None:
    """Frames of a message may alternate with those of another channel, not with others of its own."""
    wire = login()
    wire.open_channel(2)
    queue = wire.call(1, "queue.declare", exclusive=True)["queue"]
    publish = encode_method("basic.publish", routing_key=queue)
    for kind, one, two in ((METHOD, publish, publish), (HEADER, encode_header(6), encode_header(6)),
                           (BODY, b"one", b"two"), (BODY, b"-on", b"-tw")):
        wire.send_raw(encode_frame(kind, 1, one) + encode_frame(kind, 2, two))
    wire.call(2, "queue.declare", queue=queue, passive=True)
    assert {wire.get(1, queue).body, wire.get(1, queue).body} == {b"one-on", b"two-tw"}      # type: ignore[union-attr]


def test_every_property_and_every_type_of_header_byte_for_byte(login: Login) -> None:
    """What a client puts into a message's header comes out as it was, each byte, for get and for a consumer."""
    wire = login()
    queue = wire.call(1, "queue.declare", exclusive=True)["queue"]
    every = {
        "bool": True, "no": False, "b": Field("b", -7), "B": Field("B", 200), "s": Field("s", -30000),
        "u": Field("u", 60000), "I": Field("I", -2**31), "i": Field("i", 2**32 - 1), "l": Field("l", -2**63),
        "L": Field("L", 2**40),
        "f": Field("f", 0.5), "d": Field("d", 1e300), "D": Field("D", (2, 314)), "S": Field("S", b"\xff\xfe not text"),
        "text": "grüße", "x": Field("x", bytes(range(256))), "T": Field("T", 1_700_000_000), "V": None,
        "A": [1, "two", [3.0, {"four": None}], True], "F": {"a": {"b": {"c": [Field("l", 1)]}}}, "empty": {},
        "none": [],
        "": "an empty name", "n" * 128: "a long name",
    }
    properties = {
        "content_type": "application/json", "content_encoding": "gzip", "headers": every, "delivery_mode": 2,
        "priority": 9,
        "correlation_id": "c", "reply_to": "r", "expiration": "60000", "message_id": "m", "timestamp": 1_700_000_000,
        "type": "t", "user_id": "guest", "app_id": "a", "cluster_id": "cl"}
    header = encode_header(4, properties)
    wire.send_raw(method(1, "basic.publish", routing_key=queue) + encode_frame(HEADER, 1, header)
                  + encode_frame(BODY, 1, b"body"))
    message = wire.get(1, queue, no_ack=False)
    assert message is not None and (message.raw_header, message.body) == (header, b"body")
    wire.send(1, "basic.reject", delivery_tag=1, requeue=True)
    wire.call(1, "basic.consume", queue=queue, no_ack=True)
    assert wire.expect_content(1).raw_header == header


@pytest.mark.parametrize("name", ["content_type", "headers", "delivery_mode", "priority", "correlation_id", "reply_to",
                                  "message_id", "timestamp", "type", "app_id", "cluster_id"])
def test_each_property_alone(login: Login, name: str) -> None:
    """Only what was sent comes; an empty text or table is not the same as none."""
    wire = login()
    queue = wire.call(1, "queue.declare", exclusive=True)["queue"]
    empty = {"headers": {}, "delivery_mode": 1, "priority": 0, "timestamp": 0}.get(name, "")
    wire.publish(1, "", queue, b"", {name: empty})
    message = wire.get(1, queue)
    assert message is not None and message.properties == {name: empty}


# ── ends ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_close_of_the_client_is_answered(login: Login) -> None:
    """close-ok comes also when channels were open and messages on their way."""
    wire = login()
    queue = wire.call(1, "queue.declare", exclusive=True)["queue"]
    for number in range(100):
        wire.publish(1, "", queue, b"%d" % number)
    wire.call(1, "basic.consume", queue=queue)
    wire.call(0, "connection.close", reply_code=200, reply_text="bye")


def test_consume_ok_comes_before_what_the_consumer_gets(login: Login, name: Callable[[str], str]) -> None:
    """Also while the disk has something to write for others: py-amqp rejects what comes for a consumer that it does not
    know yet."""
    wire, durable = login(), name("d")
    wire.call(1, "queue.declare", queue=durable, durable=True)
    queue = wire.call(1, "queue.declare", exclusive=True)["queue"]
    wire.publish(1, "", queue, b"waits")
    for number in range(50):
        wire.publish(1, "", durable, b"to the disk", {"delivery_mode": 2})
        wire.send(1, "basic.consume", queue=queue, consumer_tag=f"c{number}")
        assert wire.next(1)[0] == "basic.consume-ok"
        wire.send(1, "basic.reject", delivery_tag=wire.expect_content(1).arguments["delivery_tag"], requeue=True)
        wire.call(1, "basic.cancel", consumer_tag=f"c{number}")
        while not wire.nothing_waits(1):
            wire.send(1, "basic.reject", delivery_tag=wire.expect_content(1).arguments["delivery_tag"], requeue=True)


def test_after_a_channel_error_frames_on_their_way_are_ignored(login: Login) -> None:
    """Until the client has answered with close-ok, what it still sends on that channel is dropped, not an error."""
    wire = login()
    wire.publish(1, "missing-exchange", "k", b"x")
    for _ in range(50):
        wire.publish(1, "", "nobody", b"on its way")
    wire.send(1, "queue.declare", exclusive=True)
    assert wire.expect_refusal(1).code == 404
    wire.open_channel(1)
    assert wire.call(1, "queue.declare", exclusive=True)["message_count"] == 0


def test_close_ok_that_nobody_asked_for(login: Login, name: Callable[[str], str]) -> None:
    """503, and what the channel had is ready again: no consumer is left behind by it."""
    wire, other = login(), login()
    queue = name("q")
    other.call(1, "queue.declare", queue=queue, auto_delete=True)
    other.publish(1, "", queue, b"held")
    wire.call(1, "basic.consume", queue=queue)
    wire.expect_content(1)
    other.call(1, "basic.consume", queue=queue, no_ack=True)
    wire.send(1, "channel.close-ok")
    assert wire.expect_refusal(0).code == 503
    assert other.expect_content(1).redelivered
    assert other.call(1, "queue.declare", queue=queue, passive=True)["consumer_count"] == 1


@pytest.mark.parametrize("arguments", [{}, {"x-queue-type": "stream"}], ids=["classic", "stream"])
def test_what_came_from_a_queue_that_is_deleted(login: Login, name: Callable[[str], str],
                                                arguments: dict[str, Any]) -> None:
    """It may still be acknowledged, in vain: the channel goes on."""
    wire, other = login(), login()
    queue = name("q")
    other.call(1, "queue.declare", queue=queue, durable=True, arguments=arguments)
    other.call(1, "confirm.select")
    other.publish(1, "", queue, b"x")
    other.expect(1, "basic.ack")
    wire.call(1, "basic.qos", prefetch_count=10)
    wire.call(1, "basic.consume", queue=queue, consumer_tag="c",
              arguments={"x-stream-offset": "first"} if arguments else {})
    tag = wire.expect_content(1).arguments["delivery_tag"]
    other.call(1, "queue.delete", queue=queue)
    assert wire.expect(1, "basic.cancel")["consumer_tag"] == "c"
    wire.send(1, "basic.ack", delivery_tag=tag)
    assert wire.call(1, "queue.declare", exclusive=True)["message_count"] == 0
    wire.send(1, "basic.ack", delivery_tag=tag)
    assert wire.expect_refusal(1).code == 406


def test_what_came_before_a_stream_was_cancelled(login: Login, name: Callable[[str], str]) -> None:
    """It may still be acknowledged."""
    wire, queue = login(), name("q")
    wire.call(1, "queue.declare", queue=queue, durable=True, arguments={"x-queue-type": "stream"})
    wire.call(1, "confirm.select")
    wire.publish(1, "", queue, b"x")
    wire.expect(1, "basic.ack")
    wire.call(1, "basic.qos", prefetch_count=10)
    wire.call(1, "basic.consume", queue=queue, consumer_tag="c", arguments={"x-stream-offset": "first"})
    tag = wire.expect_content(1).arguments["delivery_tag"]
    wire.call(1, "basic.cancel", consumer_tag="c")
    wire.send(1, "basic.ack", delivery_tag=tag)
    assert wire.call(1, "queue.declare", exclusive=True)["message_count"] == 0


def test_heartbeats_come(login: Login) -> None:
    """A client that agreed on heartbeats sees them when there is nothing else."""
    wire = login(heartbeat=1)
    frame = wire.read_frame()
    assert (frame.kind, frame.channel, frame.payload) == (HEARTBEAT, 0, b"")
    wire.send_raw(encode_frame(HEARTBEAT, 0, b""))


def test_a_silent_client_is_cut(login: Login, amqp_broker: Any) -> None:
    """Who agreed on heartbeats and says nothing loses the connection; what it held goes to others."""
    other = login()
    other.call(1, "queue.declare", queue="held-by-the-silent", auto_delete=True)
    other.publish(1, "", "held-by-the-silent", b"x")
    wire = login(heartbeat=2)
    wire.call(1, "basic.consume", queue="held-by-the-silent")
    wire.expect_content(1)
    other.call(1, "basic.consume", queue="held-by-the-silent", no_ack=True)
    wire.expect_end()
    message = other.expect_content(1)
    assert (message.body, message.redelivered) == (b"x", True)


def test_no_wait(login: Login) -> None:
    """Methods with no-wait get no answer; what they did is there."""
    wire = login()
    wire.send(1, "queue.declare", queue="quiet", exclusive=True, no_wait=True)
    wire.send(1, "exchange.declare", exchange="quiet-x", type="direct", auto_delete=True, no_wait=True)
    wire.send(1, "queue.bind", queue="quiet", exchange="quiet-x", routing_key="k", no_wait=True)
    wire.send(1, "basic.consume", queue="quiet", consumer_tag="c", no_ack=True, no_wait=True)
    wire.send(1, "confirm.select", no_wait=True)
    wire.publish(1, "quiet-x", "k", b"heard")
    assert wire.expect_content(1).body == b"heard"
    assert wire.expect(1, "basic.ack") == {"delivery_tag": 1, "multiple": False}
    wire.send(1, "basic.cancel", consumer_tag="c", no_wait=True)
    wire.send(1, "queue.purge", queue="quiet", no_wait=True)
    wire.send(1, "queue.delete", queue="quiet", no_wait=True)
    assert wire.nothing_waits()


# ── mutations ────────────────────────────────────────────────────────────────────────────────────────────────────────


def conversation() -> bytes:
    """What a client sends, from the handshake to the close."""
    wire = Wire.__new__(Wire)
    wire.frame_max = 131072
    return b"".join([
        PROTOCOL,
        method(0, "connection.start-ok", mechanism="PLAIN", response=b"\0guest\0guest", locale="en_US",
               client_properties={"product": "p", "capabilities": CAPABILITIES}),
        method(0, "connection.tune-ok", channel_max=100, frame_max=131072, heartbeat=0),
        method(0, "connection.open", virtual_host="/"),
        method(1, "channel.open"), method(2, "channel.open"),
        method(1, "exchange.declare", exchange="mutants", type="topic", auto_delete=True),
        method(1, "queue.declare", queue="", exclusive=True, arguments={"x-max-length": 10, "x-message-ttl": 1000}),
        method(1, "queue.bind", exchange="mutants", routing_key="a.*", arguments={"x-match": "all"}),
        method(1, "basic.qos", prefetch_count=3), method(1, "confirm.select"),
        method(1, "basic.consume", consumer_tag="c", arguments={"x-priority": 1}),
        wire.encode_publish(1, "mutants", "a.b", b"body" * 10,
                            {"headers": {"a": 1, "t": {"b": [1, "x", None]}}, "priority": 3, "expiration": "500"}),
        method(2, "tx.select"), wire.encode_publish(2, "mutants", "a.c", b"tx", mandatory=True), method(2, "tx.commit"),
        method(1, "basic.ack", delivery_tag=1), method(1, "basic.nack", delivery_tag=2, requeue=True),
        method(1, "basic.recover", requeue=True), method(1, "basic.get"), method(1, "basic.cancel", consumer_tag="c"),
        encode_frame(HEARTBEAT, 0, b""), method(2, "channel.close", reply_code=200),
        method(0, "connection.close", reply_code=200),
    ])


def mutate(chance: random.Random, raw: bytes) -> bytes:
    """Change, cut out, repeat or insert a few bytes, mostly after the handshake."""
    made = bytearray(raw)
    for _ in range(chance.randint(1, 4)):
        at = chance.randrange(8 if chance.random() < 0.1 else 230, len(made))
        match chance.randrange(5):
            case 0:
                made[at] = chance.randrange(256)
            case 1:
                made[at] ^= 1 << chance.randrange(8)
            case 2:
                del made[at:at + chance.randint(1, 20)]
            case 3:
                made[at:at] = chance.randbytes(chance.randint(1, 20))
            case _:
                made[at:at] = made[at:at + chance.randint(1, 60)]
    return bytes(made)


@pytest.mark.parametrize("seed", range(10))
def test_mutations_of_a_conversation(amqp_broker: Any, login: Login, seed: int) -> None:
    """A thousand conversations with faults in them: the broker lives, and others do not notice."""
    witness = login()
    queue = witness.call(1, "queue.declare", exclusive=True)["queue"]
    chance, valid = random.Random(seed), conversation()
    for number in range(20 if amqp_broker.kind == "fluxmq" else 1):         # RabbitMQ needs seconds to give up on some
        with contextlib.ExitStack() as stack:
            mutants = [stack.enter_context(socket.create_connection(amqp_broker.amqp, 15)) for _ in range(50)]
            for mutant in mutants:
                with contextlib.suppress(OSError):      # also ENOTCONN, where it has been reset meanwhile
                    mutant.sendall(mutate(chance, valid))
                    mutant.shutdown(socket.SHUT_WR)
            witness.publish(1, "", queue, b"%d" % number)
            message = witness.get(1, queue)
            assert message is not None and message.body == b"%d" % number
            for mutant in mutants:
                with contextlib.suppress(ConnectionError):
                    while mutant.recv(1 << 16):
                        pass
