"""The same fault thousands of times is a handful of lines that say who, why and how often."""
from __future__ import annotations

import contextlib
import re
import socket
from collections.abc import Callable
from pathlib import Path

from kit.broker import Broker
from kit.client import TIMEOUT, Client
from kit.watch import a_handful, metric, wait_until
from oracle.mqtt import Puback, Publish

Start = Callable[..., Broker]
Connected = Callable[..., Client]


def lines(broker: Broker, text: str) -> list[str]:
    return [line for line in broker.stderr().splitlines() if text in line]


def total(found: list[str]) -> int:
    """How many they stand for: each one, or as many as it says were suppressed. (A line in between stands for itself
    as well, so the sum may be too small by the number of lines.)"""
    return sum(int(match[1]) if (match := re.search(r"suppressed=(\d+)", line)) else 1 for line in found)


def test_ten_thousand_messages_dropped(start_broker: Start, connect: Connected) -> None:
    broker = start_broker({"session.max_offline_queue_size": 10, "session.max_inflight_messages": 1})
    slow, publisher = connect(broker, "lamp"), connect(broker)
    slow.subscribe("t", qos=1)
    for _ in range(20):
        publisher.send(*(Publish(topic="t", qos=1, packet_id=number) for number in range(1, 501)))
        for number in range(1, 501):
            publisher.expect(Puback, packet_id=number)
        publisher.transcript.clear()
    dropped = metric(broker, "fluxmq_messages_dropped_total", reason="queue_full")
    assert dropped == 10_000 - 11
    told = lambda: lines(broker, "messages dropped")       # noqa: E731
    wait_until(lambda: sum(int(found) for line in told() for found in re.findall(r"dropped=(\d+)", line)) == dropped)
    assert len(told()) <= a_handful(told()) and all("client_id=lamp" in line for line in told())


def test_a_crowd_that_loses_messages(start_broker: Start, connect: Connected) -> None:
    """A hundred clients at once: the worst by name, the others as a number."""
    broker = start_broker({"session.max_offline_queue_size": 10, "session.max_inflight_messages": 1})
    crowd = [connect(broker, f"crowd{number}") for number in range(100)]
    for client in crowd:
        client.subscribe("t", qos=1)
    publisher = connect(broker)
    for _ in range(20):
        publisher.publish("t", qos=1)
    dropped = metric(broker, "fluxmq_messages_dropped_total", reason="queue_full")
    assert dropped == 100 * 9
    told = lambda: lines(broker, "messages dropped")       # noqa: E731
    wait_until(lambda: sum(int(found) for line in told() for found in re.findall(r"dropped=(\d+)", line)) == dropped)
    assert any("further clients" in line for line in told())
    assert len(told()) <= 11 * a_handful(told())


def test_thousands_of_bad_connections(start_broker: Start) -> None:
    broker = start_broker()
    for _ in range(2000):
        raw = socket.create_connection(broker.address, TIMEOUT)
        with contextlib.suppress(ConnectionError):
            raw.sendall(b"\xe0\x00")
            raw.recv(10)
        raw.close()
    assert metric(broker, "fluxmq_connect_refused_total", reason="malformed") == 2000
    told = lambda: lines(broker, "the first packet is not CONNECT")         # noqa: E731
    wait_until(lambda: total(told()) + len(told()) >= 2000)
    assert len(told()) <= a_handful(told())


def test_thousands_of_denied_publishes(start_broker: Start, connect: Connected, tmp_path: Path) -> None:
    acl = tmp_path / "acl.yaml"
    acl.write_text("version: 1\nrules:\n  - {deny: publish, topics: ['no/#']}\n  - {allow: all, topics: ['#']}\n")
    broker = start_broker({"auth.acl_file": acl, "auth.allow_anonymous": True})
    client = connect(broker, "spy")
    client.send(*(Publish(topic=f"no/{number}") for number in range(10_000)))
    client.expect_quiet()
    assert metric(broker, "fluxmq_acl_denied_total", action="publish") == 10_000
    told = lambda: lines(broker, "publish denied")         # noqa: E731
    wait_until(lambda: total(told()) + len(told()) >= 10_000)
    found = told()
    assert len(found) <= a_handful(found) and all("client_id=spy" in line and "topic=no/" in line for line in found)
