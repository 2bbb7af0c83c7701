"""Connections from server.proxy_networks before their PROXY header is there: how many wait, for how long, and that the
end of the listener is theirs. With Debian's haproxy: tests/interop/test_09_haproxy.py."""
from __future__ import annotations

import socket
from collections.abc import Callable

from kit.broker import Broker
from kit.client import Client
from kit.watch import metric, wait_until

Start = Callable[..., Broker]
BALANCER = "127.0.0.2"
HEADER = b"PROXY TCP4 192.0.2.7 192.0.2.1 50411 1883\r\n"


def refused(broker: Broker, reason: str) -> float:
    return metric(broker, f'fluxmq_connect_refused_total{{reason="{reason}"}}')


def dial(broker: Broker) -> socket.socket:
    return socket.create_connection(broker.address, 10, source_address=(BALANCER, 0))


def test_a_header_that_comes_in_pieces_and_ahead_of_everything(start_broker: Start) -> None:
    broker = start_broker({"server.proxy_networks": [BALANCER]})
    raw = dial(broker)
    for at in range(len(HEADER) - 1):
        raw.sendall(HEADER[at:at + 1])
    client = Client(raw)
    client.send(HEADER[-1:])
    client.connect("c")     # goes on as any other
    client.subscribe("a")
    client.publish("a", b"x", 1)
    assert client.receive("a").payload == b"x"
    other = Client(dial(broker))
    connect = b"\x10\x0d\x00\x04MQTT\x05\x02\x00\x00\x00\x00\x00"
    other.send(HEADER + connect)      # in one piece
    assert other.recv().reason == 0     # type: ignore[union-attr]


def test_who_says_nothing_is_closed_in_time_and_counts_until_then(start_broker: Start) -> None:
    broker = start_broker({"server.proxy_networks": [BALANCER], "server.mqtt.tcp.plain.read_timeout": "2s",
                           "server.mqtt.tcp.plain.max_connections": 2})
    silent = [Client(dial(broker)) for _ in range(2)]
    late = Client(dial(broker))
    late.expect_closed()
    assert refused(broker, "max_connections") == 1
    for each in silent:
        each.expect_closed()
    wait_until(lambda: refused(broker, "proxy") == 2)
    assert "nothing came within 2 s" in broker.stderr()
    client = Client(dial(broker))       # there is room again
    client.send(HEADER)
    client.connect("c")


def test_a_broker_that_stops_waits_for_nobody(start_broker: Start) -> None:
    broker = start_broker({"server.proxy_networks": [BALANCER]})
    silent = Client(dial(broker))
    silent.send(HEADER[:10])
    assert broker.terminate() == 0
    silent.expect_closed()
