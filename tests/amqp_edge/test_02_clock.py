"""Who is silent, and who does not read: heartbeats, read_timeout, write_timeout."""
from __future__ import annotations

from collections.abc import Callable

import pytest
from kit.amqp import AmqpClient
from kit.broker import Broker
from kit.watch import metric
from oracle.amqp091 import HEARTBEAT, encode_frame

Start = Callable[..., Broker]
Open = Callable[..., AmqpClient]


def ended(broker: Broker, reason: str) -> float:
    return metric(broker, "fluxmq_amqp_disconnections_total", reason=reason)


def test_who_is_silent_is_closed(broker: Broker, client: Open) -> None:
    before = ended(broker, "heartbeat")
    one = client(broker).connect(heartbeat=1)
    with pytest.raises(ConnectionError):
        while True:
            assert one.recv().name == "heartbeat"
    assert ended(broker, "heartbeat") == before + 1
    assert "nothing heard for two heartbeats" in broker.stderr()


def test_heartbeats_both_ways_keep_it(broker: Broker, client: Open) -> None:
    """Six of the broker's are six seconds, longer than two intervals."""
    one = client(broker).connect(heartbeat=2)
    for _ in range(6):
        one.expect("heartbeat")
        one.send_bytes(encode_frame(HEARTBEAT, 0, b""))
    one.disconnect()


def test_without_heartbeats_nothing_is_sent(broker: Broker, client: Open) -> None:
    quiet, ticking = client(broker).connect(heartbeat=0), client(broker).connect(heartbeat=2)
    for _ in range(3):
        ticking.expect("heartbeat")
        ticking.send_bytes(encode_frame(HEARTBEAT, 0, b""))
    quiet.send("connection.close", 200, b"", 0, 0)
    assert quiet.recv().name == "connection.close-ok"
    ticking.disconnect()


@pytest.mark.parametrize("steps", [0, 1, 2])
def test_who_does_not_say_who_he_is(start_broker: Start, client: Open, steps: int) -> None:
    """Silent from the start, after the header, after the login: the time is that of all steps together."""
    broker = start_broker({"server.amqp091.plain.read_timeout": "2s"})
    kept = client(broker).connect()
    one = client(broker)
    if steps:
        one.greet()
    if steps == 2:
        one.log_in().expect("connection.tune")
    one.expect_end()
    assert metric(broker, "fluxmq_amqp_refused_total", reason="timeout") == 1
    kept.disconnect()
