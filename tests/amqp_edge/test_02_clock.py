"""Who is silent, and who does not read: heartbeats, read_timeout, write_timeout."""
from __future__ import annotations

from collections.abc import Callable

import pytest
from kit.amqp_wire import Wire
from kit.broker import Broker
from kit.watch import metric
from oracle.amqp091 import HEARTBEAT, METHOD, Frame, encode_frame, encode_method

Start = Callable[..., Broker]
Open = Callable[..., Wire]


def ended(broker: Broker, reason: str) -> float:
    return metric(broker, "fluxmq_amqp_disconnections_total", reason=reason)


def test_who_is_silent_is_closed(broker: Broker, client: Open) -> None:
    before = ended(broker, "heartbeat")
    one = client(broker).login(heartbeat=1)
    one.expect_end()
    assert ended(broker, "heartbeat") == before + 1
    assert "nothing heard for two heartbeats" in broker.stderr()


def test_heartbeats_both_ways_keep_it(broker: Broker, client: Open) -> None:
    """Five of the broker's are twelve seconds, longer than two intervals; who is late by less than ten may be."""
    one = client(broker).login(heartbeat=5)
    for _ in range(5):
        assert one.read_frame().kind == HEARTBEAT
        one.send_raw(encode_frame(HEARTBEAT, 0, b""))
    one.close()


def test_without_heartbeats_nothing_is_sent(broker: Broker, client: Open) -> None:
    quiet, ticking = client(broker).login(heartbeat=0), client(broker).login(heartbeat=8)
    assert ticking.read_frame().kind == HEARTBEAT
    quiet.send(0, "connection.close", reply_code=200)
    assert quiet.read_frame() == Frame(METHOD, 0, encode_method("connection.close-ok"))
    ticking.close()


@pytest.mark.parametrize("steps", [0, 1, 2])
def test_who_does_not_say_who_he_is(start_broker: Start, client: Open, steps: int) -> None:
    """Silent from the start, after the header, after the login: the time is that of all steps together."""
    broker = start_broker({"server.amqp091.plain.read_timeout": "2s"})
    kept = client(broker).login()
    one = client(broker)
    if steps:
        one.greet()
    if steps == 2:
        one.start_ok().expect(0, "connection.tune")
    one.expect_end()
    assert metric(broker, "fluxmq_amqp_refused_total", reason="timeout") == 1
    kept.close()
