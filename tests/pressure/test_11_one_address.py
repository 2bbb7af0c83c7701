"""One host opens all the connections it can: others are served all the same. Hosts are addresses of 127.0.0.0/8, which
is not exempt here."""
from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable

from kit.broker import Broker
from kit.client import Client
from kit.watch import a_handful, metric, wait_until
from pressure.address_keys import come_from

Start = Callable[..., Broker]
SLOTS = ("mqtt/tcp/plain", "mqtt/websocket/plain", "amqp091/plain")
MOST = 6
STRANGER = "127.0.0.2"


def refused(broker: Broker, reason: str = "connections_per_address") -> float:
    return sum(metric(broker, f"fluxmq_{name}_refused_total", reason=reason) for name in ("connect", "amqp"))


def is_closed(each: socket.socket) -> bool:
    with contextlib.suppress(BlockingIOError):
        each.setblocking(False)
        try:
            return each.recv(1) == b""
        except ConnectionResetError:
            return True
    return False


def test_one_host_leaves_room_for_others(start_broker: Start) -> None:
    broker = start_broker({"server.exempt_networks": "[]", "server.max_connections_per_address": MOST,
                           "server.mqtt.websocket.plain.addr": "127.0.0.1:0",
                           "server.amqp091.plain.addr": "127.0.0.1:0"})
    idle = [come_from(broker, STRANGER, SLOTS[number % len(SLOTS)]) for number in range(60)]
    try:
        wait_until(lambda: refused(broker) == 60 - MOST)
        assert sum(map(is_closed, idle)) == 60 - MOST
        bystander = Client(come_from(broker, "127.0.0.3"))
        bystander.connect("bystander")
        bystander.subscribe("t")
        lines = [line for line in broker.stderr().splitlines() if "max_connections_per_address" in line]
        assert f"{STRANGER} has {MOST} open (server.max_connections_per_address)" in lines[0]
        assert len(lines) <= len(SLOTS) * a_handful(lines)      # one a second of each listener
        # a client that leaves makes room for one of its own address
        for each in [each for each in idle if not is_closed(each)][:2]:
            each.close()
        before = refused(broker)
        taken: list[Client] = []

        def again() -> bool:
            client = Client(come_from(broker, STRANGER))
            try:
                client.connect()
            except (AssertionError, OSError):
                client.close()
                return False
            taken.append(client)
            return len(taken) == 2

        wait_until(again)
        extra = come_from(broker, STRANGER)
        wait_until(lambda: is_closed(extra))
        assert refused(broker) > before
        bystander.expect_quiet()
        bystander.close()
        for client in taken:
            client.close()
        extra.close()
    finally:
        for each in idle:
            each.close()


def test_by_default_this_machine_is_exempt(start_broker: Start) -> None:
    broker = start_broker({"server.max_connections_per_address": 1})
    clients = [Client(come_from(broker, host)) for host in ("127.0.0.1", STRANGER) for _ in range(5)]
    for client in clients:
        client.connect()
    assert refused(broker) == 0
    for client in clients:
        client.close()
