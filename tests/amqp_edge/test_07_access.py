"""What the access list allows clients of AMQP: to publish, to bind, and to arrange where messages go by themselves."""
from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from amqp_edge.conftest import PLAIN, Start
from kit.amqp_wire import Refused, Wire
from oracle.amqp091 import HEADER, METHOD, encode_frame, encode_header

RULES = """version: 1
rules:
  - {allow: all, topics: ["$queue/mine", "$exchange/own", "$exchange/own/#", "free/#"]}
"""


@pytest.fixture
def wire(tmp_path: Path, start_broker: Start) -> Iterator[Callable[[], Wire]]:
    """wire(): a connection with channel 1; one for each refusal, which closes the channel."""
    rules = tmp_path / "acl.yaml"
    rules.write_text(RULES)
    broker = start_broker({"auth.acl_file": rules})
    opened: list[Wire] = []

    def connect() -> Wire:
        opened.append(Wire(broker.addresses[PLAIN]).login())
        opened[-1].open_channel(1)
        return opened[-1]

    yield connect
    for one in opened:
        one.drop()


def own_things(wire: Wire) -> Wire:
    wire.call(1, "queue.declare", queue="mine")
    wire.call(1, "exchange.declare", exchange="own", type="topic")
    return wire


@pytest.mark.parametrize(("method", "arguments"), [
    ("queue.declare", {"queue": "other"}),
    ("exchange.declare", {"exchange": "other", "type": "fanout"}), ("exchange.delete", {"exchange": "other"}),
    ("queue.bind", {"queue": "mine", "exchange": "amq.topic", "routing_key": "secret.#"}),
    ("queue.bind", {"queue": "mine", "exchange": "amq.topic", "routing_key": "#"}),
    ("queue.bind", {"queue": "mine", "exchange": "amq.direct", "routing_key": "a"}),
    ("exchange.bind", {"destination": "amq.topic", "source": "own", "routing_key": "#"}),
    ("exchange.bind", {"destination": "own", "source": "amq.topic", "routing_key": "secret.a"}),
    ("queue.declare", {"queue": "mine", "arguments": {"x-dead-letter-exchange": "amq.topic"}}),
    ("queue.declare", {"queue": "mine", "arguments": {"x-dead-letter-exchange": ""}}),
    ("queue.declare", {"queue": "mine", "arguments": {"x-dead-letter-exchange": "",
                                                      "x-dead-letter-routing-key": "other"}}),
    ("exchange.declare", {"exchange": "own", "type": "topic", "arguments": {"alternate-exchange": "amq.topic"}}),
    ("basic.get", {"queue": "other"}), ("basic.consume", {"queue": "other"}), ("queue.purge", {"queue": "other"}),
], ids=lambda given: given if isinstance(given, str) else "-".join(str(one) for one in given.values())[:40])
def test_what_is_refused(wire: Callable[[], Wire], method: str, arguments: dict[str, Any]) -> None:
    """403, and the channel is closed; the connection is not."""
    own_things(wire())
    with pytest.raises(Refused) as refused:
        wire().call(1, method, **arguments)
    assert refused.value.code == 403


@pytest.mark.parametrize(("exchange", "key"), [("", "other"), ("amq.topic", "secret.a"), ("amq.fanout", "")])
def test_where_nothing_may_be_published(wire: Callable[[], Wire], exchange: str, key: str) -> None:
    one = wire()
    one.publish(1, exchange, key, b"x")
    assert one.expect_refusal(1).code == 403


def test_what_is_allowed(wire: Callable[[], Wire]) -> None:
    one = own_things(wire())
    one.call(1, "queue.bind", queue="mine", exchange="amq.topic", routing_key="free.*")
    one.call(1, "queue.bind", queue="mine", exchange="own", routing_key="a.#")
    for exchange, key in (("", "mine"), ("amq.topic", "free.a"), ("own", "a.b")):
        one.publish(1, exchange, key, key.encode())
    assert [one.get(1, "mine").body for _ in range(3)] == [b"mine", b"free.a", b"a.b"]  # type: ignore[union-attr]
    one.call(1, "queue.delete", queue="mine")
    one.call(1, "queue.declare", queue="mine", arguments={"x-dead-letter-exchange": "own"})


@pytest.mark.parametrize(("method", "arguments"), [
    ("queue.bind", {"queue": "mine", "exchange": "amq.\ntopic", "routing_key": "#"}),
    ("exchange.bind", {"destination": "own", "source": "amq.topic\r\n", "routing_key": "#"}),
    ("exchange.declare", {"exchange": "\nsecret", "type": "fanout"}),
    ("exchange.delete", {"exchange": "sec\rret"}),
    ("exchange.bind", {"destination": "sec\nret", "source": "own", "routing_key": "#"}),
    ("exchange.unbind", {"destination": "sec\nret", "source": "own", "routing_key": "#"}),
    ("queue.declare", {"queue": "sec\nret"}),
], ids=lambda given: given if isinstance(given, str) else "-".join(repr(one) for one in given.values())[:40])
def test_a_line_end_in_a_name_hides_nothing(tmp_path: Path, start_broker: Start, method: str,
                                            arguments: dict[str, Any]) -> None:
    """Names lose their line ends, as RabbitMQ's do; it is the name that is left that must be allowed. Else who may use
    all exchanges and no topic of MQTT would read them all."""
    rules = tmp_path / "acl.yaml"
    rules.write_text("""version: 1
rules:
  - {deny: all, topics: ["$queue/secret", "$exchange/secret", "$exchange/secret/#"]}
  - {allow: all, topics: ["$queue/#", "$exchange/#"]}
""")
    wire = Wire(start_broker({"auth.acl_file": rules}).addresses[PLAIN]).login()
    wire.open_channel(1)
    own_things(wire)
    with pytest.raises(Refused) as refused:
        wire.call(1, method, **arguments)
    assert refused.value.code == 403
    wire.drop()


def test_a_refusal_names_an_exchange_that_is_no_text(tmp_path: Path, start_broker: Start) -> None:
    """403 for the channel, and not the end of the connection."""
    rules = tmp_path / "acl.yaml"
    rules.write_text("""version: 1
rules:
  - {deny: publish, topics: ["$exchange/+/k"]}
  - {allow: all, topics: ["$queue/#", "$exchange/#"]}
""")
    wire = Wire(start_broker({"auth.acl_file": rules}).addresses[PLAIN]).login()
    wire.open_channel(1)
    declare = struct.pack(">HHH", 40, 10, 0) + b"\x01\xfe" + b"\x06direct" + b"\x00" + bytes(4)
    wire.send_raw(encode_frame(METHOD, 1, declare))
    wire.expect(1, "exchange.declare-ok")
    wire.send_raw(encode_frame(METHOD, 1, struct.pack(">HHH", 60, 40, 0) + b"\x01\xfe" + b"\x01k" + b"\x00")
                  + encode_frame(HEADER, 1, encode_header(0)))
    assert wire.expect_refusal(1).code == 403
    wire.open_channel(1)
    wire.drop()
