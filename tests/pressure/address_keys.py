"""For each key about what one address may do, what differs between two of its values. Loopback is not exempt here, so
127.0.0.1, .2 and so on are as many hosts."""
from __future__ import annotations

import socket
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from kit.broker import Broker, add_user
from kit.client import TIMEOUT, Client
from kit.watch import metric, wait_until
from oracle.mqtt import Connack, Connect

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


def proxy_networks(pair: Pair) -> None:
    """A connection without a PROXY header gets in where none is demanded."""
    for value, taken in (("[]", True), ('["127.0.0.2"]', False)):
        broker = pair.start(value)
        assert is_taken(pair, broker, "127.0.0.2") is taken and is_taken(pair, broker, "127.0.0.3")


# Version 2, PROXY, TCP over IPv4; with a certificate of the name anna, verified.
PROXIED = (b"\r\n\r\n\x00\r\nQUIT\n\x21\x11" + (12 + 3 + 5 + 7).to_bytes(2, "big") + bytes(12) + b"\x20\x00\x0c"
           b"\x07\x00\x00\x00\x00" + b"\x22\x00\x04anna")


def proxy_usernames(pair: Pair) -> None:
    """A certificate that the balancer has verified is a login."""
    add_user(pair.directory / "users", "bert", "secret")
    for value, reason in ((True, 0), (False, 0x87)):
        broker = pair.start(value, auth__users_file=pair.directory / "users", auth__allow_anonymous=False,
                            server__proxy_networks='["127.0.0.2"]')
        client = Client(come_from(broker, "127.0.0.2"))
        pair.clients.append(client)
        client.send(PROXIED, Connect(client_id="a"))
        assert client.expect(Connack).reason == reason


def log_in(pair: Pair, broker: Broker, user: str = "anna", password: bytes = b"x") -> int | None:
    """The answer to a login; None: not even the connection was taken."""
    client = Client(come_from(broker, "127.0.0.2"))
    pair.clients.append(client)
    try:
        client.send(Connect(client_id="a", username=user, password=password))
        return client.expect(Connack).reason
    except (AssertionError, OSError):
        return None


def guarded(pair: Pair, value: object, **more: object) -> Broker:
    add_user(pair.directory / "users", "anna", "secret")
    return pair.start(value, **({"auth__users_file": pair.directory / "users", "server__exempt_networks": "[]",
                                 "auth__delay_max": "0s"} | more))


def late(value: object, delayed: int, **more: object) -> Callable[[Any], None]:
    """How many of three failed logins are refused later."""
    def observe(pair: Pair) -> None:
        broker = guarded(pair, value, **({"auth__delay_max": "1ms"} | more))
        assert [log_in(pair, broker) for _ in range(3)] == [0x86] * 3
        assert metric(broker, "fluxmq_login_refusals_delayed_total") == delayed
    return observe


def both(one: Callable[[Any], None], other: Callable[[Any], None]) -> Callable[[Any], None]:
    def observe(pair: Pair) -> None:
        one(pair)
        other(pair)
    return observe


def ban_after(pair: Pair) -> None:
    for value, after in ((2, 0x8A), (3, 0x86)):
        broker = guarded(pair, value)
        assert [log_in(pair, broker) for _ in range(3)] == [0x86, 0x86, after]


def ban_address_after(pair: Pair) -> None:
    for value, after in ((2, None), (3, 0x86)):
        broker = guarded(pair, value)
        assert [log_in(pair, broker, name) for name in "abc"] == [0x86, 0x86, after]


def ban_time(pair: Pair) -> None:
    for value, ends in (("100ms", True), ("1h", False)):
        broker = guarded(pair, value, auth__ban_after=1)
        assert log_in(pair, broker) == 0x86
        if ends:
            wait_until(lambda: metric(broker, "fluxmq_login_bans") == 0)    # noqa: B023
        assert log_in(pair, broker, password=b"secret") == (0 if ends else 0x8A)


ADDRESSES: dict[str, Callable[[Any], None]] = {
    "server.max_connections_per_address": max_connections_per_address,
    "server.exempt_networks": exempt_networks,
    "server.proxy_networks": proxy_networks,
    "server.proxy_usernames": proxy_usernames,
    "auth.delay_after": both(late(0, 3), late(2, 1)),
    "auth.delay_max": both(late("1ms", 3, auth__delay_after=0, auth__delay_max="1ms"),
                           late("0s", 0, auth__delay_after=0, auth__delay_max="0s")),
    "auth.ban_after": ban_after,
    "auth.ban_address_after": ban_address_after,
    "auth.ban_time": ban_time,
}
