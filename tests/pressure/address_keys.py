"""For each key about what one address may do, what differs between two of its values. Loopback is not exempt here, so
127.0.0.1, .2 and so on are as many hosts."""
from __future__ import annotations

import socket
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from kit.broker import Broker
from kit.client import TIMEOUT, Client

if TYPE_CHECKING:
    from test_07_configuration_keys import Pair

__all__ = ["ADDRESSES", "come_from"]


def come_from(broker: Broker, host: str, slot: str = "mqtt/tcp/plain") -> socket.socket:
    """A connection from that address of the loopback network."""
    return socket.create_connection(broker.addresses[slot], TIMEOUT, source_address=(host, 0))


def is_taken(pair: Pair, broker: Broker, host: str) -> bool:
    """Whether one more client from there gets in; it stays."""
    client = Client(come_from(broker, host))
    pair.clients.append(client)
    try:
        client.connect()
    except (AssertionError, OSError):
        return False
    return True


def max_connections_per_address(pair: Pair) -> None:
    for value, wanted in ((2, [True, True, False]), (3, [True] * 3)):
        broker = pair.start(value, server__exempt_networks="[]")
        assert [is_taken(pair, broker, "127.0.0.2") for _ in range(3)] == wanted


def exempt_networks(pair: Pair) -> None:
    for value, wanted in (('["127.0.0.2"]', [True, False]), ("[127.0.0.0/8]", [True, True]), ("[]", [False, False])):
        broker = pair.start(value, server__max_connections_per_address=1)
        for host, taken in zip(("127.0.0.2", "127.0.0.3"), wanted, strict=True):
            assert is_taken(pair, broker, host)
            assert is_taken(pair, broker, host) is taken


ADDRESSES: dict[str, Callable[[Any], None]] = {
    "server.max_connections_per_address": max_connections_per_address,
    "server.exempt_networks": exempt_networks,
}
