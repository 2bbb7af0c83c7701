"""What one address may have: how addresses are told apart, and what is counted for each."""
from __future__ import annotations

import ipaddress
import os
import socket
from collections import Counter
from typing import Any

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from fluxmq._core.errors import ConfigError
from fluxmq._core.hub.hub import Hub
from fluxmq._core.net.poller import Poller
from fluxmq.app.config import load
from fluxmq.app.descriptors import connections_of_one_address
from fluxmq.edge.origins import Origin, Origins
from fluxmq.model.config import Config
from fluxmq.model.origins import Networks, origin_of, read_network, read_origin, show_origin

ADDRESSES = st.ip_addresses(v=4) | st.ip_addresses(v=6)


def packed(text: str) -> bytes:
    return ipaddress.ip_address(text).packed


@pytest.mark.parametrize(("address", "shown"), [
    ("192.0.2.1", "192.0.2.1"), ("::ffff:192.0.2.1", "192.0.2.1"), ("2001:db8::1", "2001:db8::/64"),
    ("2001:db8::ffff:0:0:1", "2001:db8::/64"), ("2001:db8:0:1::1", "2001:db8:0:1::/64"), ("::1", "::/64")])
def test_where_an_address_counts(address: str, shown: str) -> None:
    assert show_origin(origin_of(packed(address))) == shown
    assert read_origin(address) == read_origin(shown) == origin_of(packed(address))


def test_what_has_no_address_has_no_origin() -> None:
    assert origin_of(b"") == b""
    assert b"" not in Networks(["0.0.0.0/0", "::/0"])
    assert Origins(Networks([]), 1).find(b"") is None


@given(ADDRESSES)
def test_what_is_shown_is_read_again(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> None:
    origin = origin_of(address.packed)
    assert read_origin(show_origin(origin)) == origin


def as_ipv4(address: Any) -> Any:
    """An IPv4 address that came by an IPv6 socket is that IPv4 address."""
    return getattr(address, "ipv4_mapped", None) or address


@given(ADDRESSES, st.integers(0, 128))
@example(ipaddress.ip_address("::ffff:0:0"), 0)
@example(ipaddress.ip_address("::ffff:10.0.0.1"), 104)
@example(ipaddress.ip_address("203.0.113.1"), 32)
def test_networks_hold_what_ipaddress_says(address: Any, length: int) -> None:
    network = ipaddress.ip_network((address, min(length, address.max_prefixlen)), strict=False)
    networks = Networks([str(network), "203.0.113.0/24"])
    wanted = [ipaddress.ip_network("203.0.113.0/24"), network]
    if network.version == 6 and network.prefixlen >= 96 and network.network_address.ipv4_mapped is not None:
        wanted[1] = ipaddress.ip_network((network.network_address.ipv4_mapped, network.prefixlen - 96))
    around = {int(network.network_address) - 1, int(network.broadcast_address) + 1}
    for one in (address, network.network_address, network.broadcast_address, ipaddress.ip_address("203.0.112.255"),
                ipaddress.ip_address("203.0.113.0"), ipaddress.ip_address("203.0.114.0"),
                *(type(address)(number) for number in around if 0 <= number < 1 << address.max_prefixlen)):
        inside = any(as_ipv4(one) in each for each in wanted)
        assert (one.packed in networks) is inside, one
        if one.version == 4:
            assert (ipaddress.IPv6Address(f"::ffff:{one}").packed in networks) is inside


@pytest.mark.parametrize("text", ["10.0.0.1/8", "10.0.0", "host", "", "::1/129", "1.2.3.4/x"])
def test_what_is_no_network(text: str) -> None:
    with pytest.raises(ValueError, match="write an address or a network"):
        read_network(text)
    with pytest.raises(ConfigError, match="exempt_networks"):
        load(sets=[f'server.exempt_networks=["{text}"]'])


@pytest.mark.parametrize("text", ["10.0.0.1/32", "10.0.0.0/8", "x", "", "::1/128"])
def test_what_is_no_address(text: str) -> None:
    with pytest.raises(ValueError, match="no address"):
        read_origin(text)


@given(st.lists(st.tuples(st.sampled_from(["10.0.0.1", "10.0.0.2", "2001:db8::1", "2001:db8::2", "2001:db8:0:1::1",
                                           "::ffff:10.0.0.1"]), st.booleans()), max_size=60))
def test_the_count_is_that_of_open_connections(steps: list[tuple[str, bool]]) -> None:
    origins, opened = Origins(Networks([]), 5), []
    for address, comes in steps:
        if comes:
            origin = origins.find(packed(address))
            assert isinstance(origin, Origin)
            assert origin.connections == Counter(each.key for each in opened)[origin.key]
            origin.enter()
            opened.append(origin)
        elif opened:
            opened.pop(len(address) % len(opened)).leave()
        assert len(origins) == len({each.key for each in opened})  # nothing is kept of who has left
    for origin in opened:
        assert origins.find(origin.key + bytes(8) if len(origin.key) == 8 else origin.key) is origin


def test_who_is_exempt_is_not_counted() -> None:
    origins = Origins(Networks(Config().server.exempt_networks), 1)
    assert origins.find(packed("127.9.9.9")) is origins.find(packed("::1")) is None
    assert origins.find(packed("::ffff:127.0.0.1")) is None
    assert origins.find(packed("128.0.0.1")) is not None and origins.find(packed("::2")) is not None


def test_listeners_learn_the_address_of_each_connection() -> None:
    """Also where one socket takes both families: 127.0.0.1 is ::ffff:127.0.0.1 there, and exempt all the same."""
    class Listening:
        def __init__(self) -> None:
            self.addresses: list[bytes] = []

        def accepted(self, fd: int, address: bytes) -> None:
            os.close(fd)
            self.addresses.append(address)

        def accept_failed(self, code: int) -> None:
            raise AssertionError(code)

    poller, listener = Poller(Hub(None, 16, 0)), Listening()
    plain = socket.create_server(("127.0.0.1", 0))
    both = socket.create_server(("", 0), family=socket.AF_INET6, dualstack_ipv6=True)
    clients = []
    try:
        for listening in (plain, both):
            listening.setblocking(False)
            poller.add_listener(listening.fileno(), listener)
        for to, source in ((plain, "127.0.0.2"), (both, "127.0.0.3"), (both, "::1")):
            before = len(listener.addresses)
            clients.append(socket.create_connection(("::1" if ":" in source else "127.0.0.1", to.getsockname()[1]),
                                                    source_address=(source, 0)))
            while len(listener.addresses) == before:
                poller.turn()
        assert [show_origin(origin_of(each)) for each in listener.addresses] == ["127.0.0.2", "127.0.0.3", "::/64"]
        assert all(each in Networks(Config().server.exempt_networks) for each in listener.addresses)
    finally:
        for each in (*clients, plain, both):
            each.close()


def test_the_default_is_a_quarter_of_what_there_is() -> None:
    config = Config()
    assert connections_of_one_address(config, 20_000) == (20_000 - 576) // 4
    assert connections_of_one_address(config, 10_000_000) == 3 * 100_000 // 4  # three slots listen by default
    assert connections_of_one_address(config, 600) == 75
    assert connections_of_one_address(config, 100) == 64
    server = msgspec.structs.replace(config.server, max_connections_per_address=7)
    assert connections_of_one_address(msgspec.structs.replace(config, server=server), 20_000) == 7
