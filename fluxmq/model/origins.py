"""Where a connection comes from, as limits count it: one IPv4 address, or the /64 of an IPv6 address.

A provider assigns at least a /64, and a host may use any number of its addresses, so a limit per
address would not hold. An IPv4 address on an IPv6 socket (::ffff:a.b.c.d) counts as that IPv4 address.
"""
import ipaddress
from collections.abc import Iterable

__all__ = ["Networks", "origin_of", "read_address", "read_network", "read_origin", "show_origin"]

_MAPPED = bytes(10) + b"\xff\xff"  # RFC 4291 section 2.5.5.2
_PREFIX_BYTES = 8

Network = ipaddress.IPv4Network | ipaddress.IPv6Network


def _unmapped(address: bytes) -> bytes:
    return address[12:] if len(address) == 16 and address.startswith(_MAPPED) else address


def origin_of(address: bytes) -> bytes:
    """address: 4 or 16 bytes in network order. 4 bytes of an IPv4 address, 8 of an IPv6 prefix; b"" of what is none."""
    address = _unmapped(address)
    return address[:_PREFIX_BYTES] if len(address) == 16 else address


def show_origin(origin: bytes) -> str:
    """As people write it: 192.0.2.1, or 2001:db8:0:1::/64."""
    if len(origin) == _PREFIX_BYTES:
        return f"{ipaddress.IPv6Address(origin + bytes(8))}/64"
    return str(ipaddress.IPv4Address(origin)) if origin else "unknown"


def read_address(text: str) -> bytes:
    """4 or 16 bytes of an address, or of what show_origin wrote. Raises ValueError with what to write."""
    try:
        return ipaddress.ip_address(text.removesuffix("/64") if ":" in text else text).packed
    except ValueError:
        raise ValueError(f"{text!r} is no address: write one such as 192.0.2.1 or 2001:db8::1") from None


def read_origin(text: str) -> bytes:
    """The origin that an address belongs to, or that show_origin wrote. Raises ValueError with what to write."""
    return origin_of(read_address(text))


def read_network(text: str) -> Network:
    """An address or a network, as 10.0.0.0/8. Raises ValueError with what to write."""
    try:
        return ipaddress.ip_network(text)
    except ValueError as error:
        raise ValueError(f"{error}: write an address or a network, such as 10.1.2.3, 10.0.0.0/8 or fd00::/8") from None


class Networks:
    """A set of networks that tells whether it contains an address. networks: as read_network takes them."""

    def __init__(self, networks: Iterable[str]) -> None:
        # bytes of an address -> (mask, what it must be then)
        self._masks: dict[int, list[tuple[int, int]]] = {4: [], 16: []}
        for text in networks:
            network = read_network(text)
            mapped = network.network_address.ipv4_mapped if network.version == 6 and network.prefixlen >= 96 else None
            if mapped is not None:  # such an address is looked up as an IPv4 address
                network = ipaddress.IPv4Network((mapped, network.prefixlen - 96))
            self._masks[len(network.network_address.packed)].append(
                (int(network.netmask), int(network.network_address)))

    def __contains__(self, address: bytes) -> bool:
        """address: 4 or 16 bytes in network order."""
        address = _unmapped(address)
        number = int.from_bytes(address)
        for mask, wanted in self._masks.get(len(address), ()):  # noqa: SIM110 (of each connection, and any() is slower)
            if number & mask == wanted:
                return True
        return False
