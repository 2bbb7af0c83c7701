"""Addresses that listeners bind: `host:port`, `[ipv6]:port`, `:port` for every interface. Nothing is resolved here."""
import ipaddress
import re
from typing import NamedTuple

__all__ = ["Address", "parse_address"]

_HOST_NAME = re.compile(r"(?=.{1,253}\Z)[A-Za-z0-9]([A-Za-z0-9_-]*[A-Za-z0-9])?"
                        r"(\.[A-Za-z0-9]([A-Za-z0-9_-]*[A-Za-z0-9])?)*", re.ASCII)
_NUMERIC = re.compile(r"[0-9.]+", re.ASCII)
_PORT = re.compile(r"[0-9]{1,5}", re.ASCII)
_FORM = "write host:port, [ipv6]:port, or :port for every interface; port 0 picks a free one"


class Address(NamedTuple):
    """host: "" = every interface of both families, otherwise an IP address without brackets or a name, lower case.
    port: 0 = the system picks one."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def is_loopback(self) -> bool:
        """True when only this machine can reach it. A name other than localhost may resolve to anything: False."""
        if self.host == "localhost":
            return True
        ip = _ip(self.host)
        return ip is not None and ip.is_loopback

    @property
    def is_wildcard(self) -> bool:
        ip = _ip(self.host)
        return self.host == "" or (ip is not None and ip.is_unspecified)

    def overlaps(self, other: "Address") -> bool:
        """True when the two cannot be bound side by side. Names are compared, not resolved; `[::]` counts as every
        interface of both families, because whether it takes IPv4 as well is a switch of the system."""
        if self.port != other.port or self.port == 0:
            return False
        mine, theirs = _hosts(self.host), _hosts(other.host)
        return bool(mine & theirs) or _covers(self.host, theirs) or _covers(other.host, mine)


def _ip(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        ip = ipaddress.ip_address(host)
    except ValueError:
        return None
    if isinstance(ip, ipaddress.IPv6Address) and ip.ipv4_mapped is not None:
        return ip.ipv4_mapped
    return ip


def _hosts(host: str) -> set[str]:
    """What is bound: localhost is both loopback addresses, an IP address its canonical writing."""
    if host == "localhost":
        return {"127.0.0.1", "::1"}
    return {str(_ip(host) or host)}


def _covers(host: str, others: set[str]) -> bool:
    if host == "" or (host != "0.0.0.0" and Address(host, 1).is_wildcard):
        return True
    if host != "0.0.0.0":
        return False
    # a name may be an IPv4 address: that shows when it is bound; here only what is certain counts
    return any(isinstance(_ip(other), ipaddress.IPv4Address) for other in others)


def parse_address(text: str) -> Address:
    """Raises ValueError with a sentence that says what to write."""
    host, colon, port_text = text.rpartition(":")
    if not colon or not port_text:
        raise ValueError(f"{text!r} has no port: {_FORM}")
    if not _PORT.fullmatch(port_text) or int(port_text) > 65535:
        raise ValueError(f"port {port_text!r} is not a number from 0 to 65535")
    port = int(port_text)
    if host == "":
        return Address("", port)
    if host == "*":
        raise ValueError(f"host '*' is not an address: write :{port} for every interface")
    if host.startswith("[") and host.endswith("]"):
        inner = host[1:-1]
        try:
            ipaddress.IPv6Address(inner)
        except ValueError:
            raise ValueError(f"{inner!r} is not an IPv6 address") from None
        return Address(inner.lower(), port)
    if ":" in host:
        raise ValueError(f"an IPv6 address stands in brackets: write [{host}]:{port}")
    if _NUMERIC.fullmatch(host):
        try:
            ipaddress.IPv4Address(host)
        except ValueError:
            raise ValueError(f"{host!r} is not an IPv4 address") from None
    elif not _HOST_NAME.fullmatch(host):
        raise ValueError(f"{host!r} is neither an IP address nor a host name")
    return Address(host.lower(), port)
