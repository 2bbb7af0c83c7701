"""The PROXY protocol: what its headers say, how they come in pieces, and what is refused."""
from __future__ import annotations

import ipaddress
import socket
import struct
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st
from oracle.stored import crc32c

from fluxmq.access.certificate_names import peer_username
from fluxmq.edge.proxy_protocol import HEADER_BYTES_MAX, SIGNATURE, NotProxied, Proxied, Reading

FOUR, SIX = ipaddress.ip_address("203.0.113.7").packed, ipaddress.ip_address("2001:db8::7").packed
BEHIND = b"\x10\x0c\x00\x04MQTT"        # what the client sends


def tlv(kind: int, value: bytes) -> bytes:
    return struct.pack(">BH", kind, len(value)) + value


def binary(command: int = 0x21, family: int = 0x11, body: bytes = FOUR + FOUR + struct.pack(">HH", 50411, 1883),
           tlvs: bytes = b"") -> bytes:
    return SIGNATURE + bytes((command, family)) + struct.pack(">H", len(body) + len(tlvs)) + body + tlvs


def of_six(tlvs: bytes = b"") -> bytes:
    return binary(family=0x21, body=SIX + SIX + struct.pack(">HH", 50411, 1883), tlvs=tlvs)


def with_checksum(wrong: int = 0) -> bytes:
    at = len(binary()) + 3
    whole = bytearray(binary(tlvs=tlv(0x03, bytes(4)) + tlv(0x04, b"padding")))
    whole[at:at + 4] = struct.pack(">I", crc32c(bytes(whole)) ^ wrong)
    return bytes(whole)


def tls(flags: int = 7, verify: int = 0, *more: bytes) -> bytes:
    return tlv(0x20, struct.pack(">BI", flags, verify) + b"".join(more or (tlv(0x21, b"TLSv1.3"), tlv(0x22, b"anna"))))


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    """(the balancer's end, ours)."""
    theirs, ours = socket.socketpair()
    ours.setblocking(False)
    yield theirs, ours
    theirs.close()
    ours.close()


def read(pair: tuple[socket.socket, socket.socket], data: bytes, pieces: int = 1) -> Proxied:
    theirs, ours = pair
    reading = Reading(ours.detach())
    found = None
    try:
        for at in range(0, len(data), -(-len(data) // pieces)):
            assert found is None
            theirs.sendall(data[at:at + -(-len(data) // pieces)])
            found = reading.go_on()
        assert found is not None
        theirs.sendall(BEHIND)
    finally:
        rest = socket.socket(fileno=reading.detach())
    assert rest.recv(100) == BEHIND       # nothing of it was taken
    rest.close()
    return found


GOOD = [
    (b"PROXY TCP4 203.0.113.7 192.0.2.1 50411 1883\r\n", Proxied(FOUR, 50411), "203.0.113.7:50411"),
    (b"PROXY TCP6 2001:db8::7 ::1 50411 1883\r\n", Proxied(SIX, 50411), "[2001:db8::7]:50411"),
    (b"PROXY UNKNOWN\r\n", Proxied(), ""), (b"PROXY UNKNOWN ffff::1 ::2 1 2\r\n", Proxied(), ""),
    (binary(), Proxied(FOUR, 50411), "203.0.113.7:50411"), (of_six(), Proxied(SIX, 50411), "[2001:db8::7]:50411"),
    (binary(0x20), Proxied(), ""), (binary(0x20, 0, b""), Proxied(), ""),
    (binary(family=0, body=b"x" * 9), Proxied(), ""),
    (binary(family=0, body=b""), Proxied(), ""), (binary(family=0x31, body=b"u" * 216), Proxied(), ""),
    (binary(tlvs=tlv(0x02, b"broker.example") + tlv(0xEE, b"")), Proxied(FOUR, 50411), ""),
    (with_checksum(), Proxied(FOUR, 50411), ""),
    (binary(tlvs=tls()), Proxied(FOUR, 50411, "TLSv1.3", "anna"), ""),
    (of_six(tls(1)), Proxied(SIX, 50411, "TLSv1.3", ""), ""),           # no certificate came
    (binary(tlvs=tls(7, 1)), Proxied(FOUR, 50411, "TLSv1.3", ""), ""),  # it was not verified
    (binary(tlvs=tls(0)), Proxied(FOUR, 50411), ""),
]


@pytest.mark.parametrize(("data", "wanted", "shown"), GOOD)
@pytest.mark.parametrize("pieces", [1, 2, 7, 1000])
def test_what_a_header_says(pair: tuple[socket.socket, socket.socket], data: bytes, wanted: Proxied, shown: str,
                            pieces: int) -> None:
    found = read(pair, data, min(pieces, len(data)))
    assert found == wanted
    assert peer_username(found.certificate, "cn") == (wanted.certificate_name or None)
    if shown:
        assert str(found) == shown


@pytest.mark.parametrize(("data", "why"), [
    (BEHIND, "does not begin with"), (b"PROXX", "does not begin with"), (b"\r\n\r\n\x00\r\nQUIZ\n....", "not begin"),
    (b"GET / HTTP/1.1\r\n", "does not begin with"), (b"PROXY TCP4 203.0.113.7 192.0.2.1 50411 1883\n", "CR LF"),
    (b"PROXY " + b"x" * 200, "at most 107"), (b"PROXY TCP4 203.0.113.7 192.0.2.1 50411\r\n", "cannot be read"),
    (b"PROXY TCP4 2001:db8::7 ::1 1 2\r\n", "cannot be read"), (b"PROXY TCP4 203.0.113.7 192.0.2.1 70000 1\r\n", "be"),
    (b"PROXY TCP4 203.0.113.7 192.0.2.1 +1 1\r\n", "cannot be read"), (b"PROXY UDP4 a b 1 2\r\n", "cannot be read"),
    (b"PROXY  TCP4 203.0.113.7 192.0.2.1 1 1\r\n", "cannot be read"), (b"PROXY \xff\r\n", "cannot be read"),
    (binary(0x22), "version 2, command 2"), (binary(0x11), "version 1, command 1"), (binary(family=0x12), "0x12"),
    (binary(body=b"short"), "shorter than its addresses"), (with_checksum(1), "checksum is wrong"),
    (binary(tlvs=b"\x02\x00"), "longer than it"), (binary(tlvs=b"\x02\x00\x09x"), "longer than it"),
    (binary(tlvs=tls(7, 0, b"\x21\xff\xff")), "longer than it"),
    (binary(tlvs=tlv(0x02, b"x" * HEADER_BYTES_MAX)), "is more than the 4096"),
])
def test_what_is_refused(pair: tuple[socket.socket, socket.socket], data: bytes, why: str) -> None:
    with pytest.raises(NotProxied, match=why):
        read(pair, data)


@pytest.mark.parametrize("data", [b"", b"PROXY TCP4", SIGNATURE, binary()[:-1]])
def test_an_end_in_the_middle(pair: tuple[socket.socket, socket.socket], data: bytes) -> None:
    theirs, ours = pair
    reading = Reading(ours.fileno())
    theirs.sendall(data)
    assert not data or reading.go_on() is None
    theirs.close()
    with pytest.raises(NotProxied, match="ended before"):
        reading.go_on()
    reading.detach()


@given(st.binary(max_size=300), st.sampled_from([b"", b"PROXY ", SIGNATURE, SIGNATURE + b"\x21\x11"]))
def test_any_bytes_are_read_or_refused(data: bytes, begin: bytes) -> None:
    theirs, ours = socket.socketpair()
    ours.setblocking(False)
    reading = Reading(ours.detach())
    with theirs:
        theirs.sendall(begin + data)
        theirs.shutdown(socket.SHUT_WR)
        try:
            found = reading.go_on()
            assert found is not None and len(found.address) in (0, 4, 16)
        except NotProxied as error:
            assert str(error)
        finally:
            socket.socket(fileno=reading.detach()).close()
