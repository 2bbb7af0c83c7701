"""The PROXY protocol, versions 1 and 2: what a load balancer says ahead of a client's first byte (the HAProxy project's
specification, "The PROXY protocol"; section numbers below are its own).

    PROXY TCP4 203.0.113.7 192.0.2.1 50411 1883\\r\\n        version 1 (2.1)
    \\r\\n\\r\\n\\0\\r\\nQUIT\\n 21 11 000C …                     version 2 (2.2), with TLVs behind the addresses

A connection whose beginning is neither is refused. LOCAL and UNKNOWN are of the balancer itself, which looks whether
the broker is alive: such a connection keeps the address that it has.
"""
from __future__ import annotations

import ipaddress
import socket
import struct
from typing import Any, NamedTuple

from fluxmq._core.disk.journal_format import crc32c

__all__ = ["HEADER_BYTES_MAX", "NotProxied", "Proxied", "Reading"]

SIGNATURE = b"\r\n\r\n\x00\r\nQUIT\n"
LINE = b"PROXY "
LINE_BYTES_MAX = 107        # 2.1, with its CRLF
BEGIN_BYTES = 16            # of version 2: signature, version and command, family, length
HEADER_BYTES_MAX = 4096     # of version 2: addresses and TLVs; a chain of certificates is not among them
LOCAL, PROXY = 0x20, 0x21
UNSPECIFIED, TCP4, TCP6, UNIX = 0x00, 0x11, 0x21, 0x31
# Of each family: bytes of its addresses and ports.
ADDRESSES = {UNSPECIFIED: 0, TCP4: 12, TCP6: 36, UNIX: 216}
KINDS: dict[str, type[ipaddress.IPv4Address] | type[ipaddress.IPv6Address]] = {
    "TCP4": ipaddress.IPv4Address, "TCP6": ipaddress.IPv6Address}
# Types of TLVs (2.2.1 to 2.2.8).
CRC32C, SSL, SSL_VERSION, SSL_CN = 0x03, 0x20, 0x21, 0x22
CLIENT_SSL, CLIENT_CERTIFICATE = 0x01, 0x06     # the latter: of this connection, or of its TLS session


class NotProxied(ValueError):
    """What came is no header of this protocol, or one that may not be."""


class Proxied(NamedTuple):
    """Who a connection is from. address: 4 or 16 bytes; empty: the balancer itself, or a client of a Unix socket. tls:
    the version of TLS between client and balancer, "" for none. certificate_name: the Common Name of a client's
    certificate that the balancer has verified."""

    address: bytes = b""
    port: int = 0
    tls: str = ""
    certificate_name: str = ""

    @property
    def certificate(self) -> dict[str, Any] | None:
        """As ssl.SSLSocket.getpeercert(): of a client that has shown the balancer one. None: it has not."""
        return {"subject": ((("commonName", self.certificate_name),),)} if self.certificate_name else None

    def __str__(self) -> str:
        """As a connection's `peer`."""
        host = ipaddress.ip_address(self.address)
        return f"[{host}]:{self.port}" if host.version == 6 else f"{host}:{self.port}"


class Reading:
    """Takes the header from a socket that does not block, and not a byte of what follows it: that is the client's, and
    may be TLS."""

    def __init__(self, fd: int) -> None:
        self._socket = socket.socket(fileno=fd)
        self._data = bytearray()

    def detach(self) -> int:
        """The descriptor, which is the caller's again."""
        return self._socket.detach()

    def go_on(self) -> Proxied | None:
        """Reads what has come; None: there is more to come. Raises NotProxied, also if it has ended."""
        while (wanted := self._wanted()) > 0:
            try:
                # A line ends somewhere in what is there.
                of_line = self._data[:len(LINE)] == LINE
                came = self._socket.recv(wanted, socket.MSG_PEEK if of_line else 0)
                if of_line:
                    end = came.find(b"\n") + 1
                    came = self._socket.recv(end or len(came))
            except BlockingIOError:
                return None
            except OSError as error:
                raise NotProxied(f"it broke: {error.strerror}") from None
            if not came:
                raise NotProxied("it ended before its header was there")
            self._data += came
        data = bytes(self._data)
        return _read_line(data) if data.startswith(LINE) else _read_binary(data)

    def _wanted(self) -> int:
        """How many bytes certainly belong to the header; 0: it is there."""
        data = self._data
        if data[:len(LINE)] == LINE:
            if data.endswith(b"\n"):
                return 0
            if len(data) >= LINE_BYTES_MAX:
                raise NotProxied(f"a header of version 1 has at most {LINE_BYTES_MAX} bytes")
            return LINE_BYTES_MAX - len(data)
        if len(data) < len(LINE):
            if not (SIGNATURE.startswith(data) or LINE.startswith(data)):
                raise NotProxied("it does not begin with a PROXY header")
            return len(LINE) - len(data)
        if not (data.startswith(SIGNATURE) or SIGNATURE.startswith(data)):
            raise NotProxied("it does not begin with a PROXY header")
        if len(data) < BEGIN_BYTES:
            return BEGIN_BYTES - len(data)
        size = BEGIN_BYTES + int.from_bytes(data[14:16], "big")
        if size > HEADER_BYTES_MAX:
            raise NotProxied(f"a header of {size} bytes is more than the {HEADER_BYTES_MAX} that are taken")
        return size - len(data)


def _read_line(line: bytes) -> Proxied:
    if not line.endswith(b"\r\n"):
        raise NotProxied("a header of version 1 ends with CR LF")
    words = line[:-2].split(b" ")
    if words[1:2] == [b"UNKNOWN"]:
        return Proxied()
    try:
        _, family, source, destination, port, port_to = (word.decode("ascii") for word in words)
        kind = KINDS[family]
        kind(destination)
        if not all(one.isascii() and one.isdigit() and int(one) <= 0xFFFF for one in (port, port_to)):
            raise ValueError
        return Proxied(kind(source).packed, int(port))
    except (ValueError, KeyError):
        raise NotProxied("a header of version 1 that cannot be read") from None


def _read_binary(data: bytes) -> Proxied:
    command, family = data[12], data[13]
    if command == LOCAL:
        return Proxied()
    if command != PROXY:
        raise NotProxied(f"a header of version {command >> 4}, command {command & 0xF}")
    size = ADDRESSES.get(family)
    if size is None or len(data) < BEGIN_BYTES + size:
        raise NotProxied(f"a header of version 2 for another transport than TCP or Unix sockets (0x{family:02x})"
                         if size is None else "a header of version 2 that is shorter than its addresses")
    if family == UNSPECIFIED:
        return Proxied()    # whatever follows
    found = Proxied()
    at = BEGIN_BYTES
    if family == TCP4:
        found = Proxied(data[at:at + 4], int.from_bytes(data[at + 8:at + 10], "big"))
    elif family == TCP6:
        found = Proxied(data[at:at + 16], int.from_bytes(data[at + 32:at + 34], "big"))
    for kind, value, place in _tlvs(data, at + size):
        if kind == CRC32C:
            _check(data, value, place)
        elif kind == SSL and len(value) >= 5 and value[0] & CLIENT_SSL:
            version, name = _tls(value)
            found = found._replace(tls=version, certificate_name=name)
    return found


def _tlvs(data: bytes, at: int) -> list[tuple[int, bytes, int]]:
    """Type, value, and where that is."""
    found = []
    while at < len(data):
        end = at + 3 + int.from_bytes(data[at + 1:at + 3], "big")
        if at + 3 > len(data) or end > len(data):
            raise NotProxied("a header of version 2 with a TLV that is longer than it")
        found.append((data[at], data[at + 3:end], at + 3))
        at = end
    return found


def _check(data: bytes, value: bytes, place: int) -> None:
    """2.2.3: the checksum over the header, with zeros in its place."""
    whole = data[:place] + bytes(len(value)) + data[place + len(value):]
    if len(value) != 4 or crc32c(whole) != struct.unpack(">I", value)[0]:
        raise NotProxied("a header of version 2 whose checksum is wrong")


def _tls(value: bytes) -> tuple[str, str]:
    """2.2.6: the version of TLS; and the name of a certificate, if the balancer has verified it."""
    words = {kind: each.decode("utf-8", "replace") for kind, each, _ in _tlvs(value, 5)}
    verified = value[0] & CLIENT_CERTIFICATE and int.from_bytes(value[1:5], "big") == 0
    return words.get(SSL_VERSION, "TLS"), words.get(SSL_CN, "") if verified else ""
