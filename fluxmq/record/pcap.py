"""Captures of network traffic: pcap and pcapng files, and the TCP segments in them.

    pcap      24 bytes of header, then packets: time (s, µs or ns), length captured, length sent, bytes
    pcapng    blocks: type, length, body, length again; interfaces say their link and the unit of their times

Both byte orders. Links: Ethernet (with VLAN tags), Linux cooked 1 and 2, loopback, raw IP. A file that ends within a
packet gives what came before (`cut`). What is no TCP is passed over and counted.

Our own, because dpkt reads all packets of a pcapng file as of its first interface, in times rounded to floats, and does
not say that a file is cut; libpcap refuses interfaces of two link types; and scapy is under the GPL.
"""
import struct
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, NamedTuple

from fluxmq.record.manifest import RecordingError

__all__ = ["ACK", "FIN", "RST", "SYN", "Capture", "Segment"]

FIN, SYN, RST, ACK = 1, 2, 4, 16
_LOOK = 512                    # packets between two reports of progress
_BLOCK_MAX = 64 << 20          # a larger packet is damage, not traffic
_PCAP = {0xA1B2C3D4: 1_000, 0xA1B23C4D: 1}
_SECTION = 0x0A0D0D0A
_ORDER = 0x1A2B3C4D
# Link types, tcpdump.org/linktypes.html.
_NULL, _ETHERNET, _RAW, _LOOP, _COOKED, _IPV4, _IPV6, _COOKED2 = 0, 1, 101, 108, 113, 228, 229, 276
_LINKS = {_NULL, _ETHERNET, _RAW, _LOOP, _COOKED, _IPV4, _IPV6, _COOKED2, 12, 14}
_TYPE_IP4, _TYPE_IP6, _TYPES_VLAN = 0x0800, 0x86DD, (0x8100, 0x88A8, 0x9100)
_TCP = 6
_EXTENSIONS = {0, 43, 60}      # headers of IPv6 that may stand before TCP


class Segment(NamedTuple):
    """One TCP segment. time: ns since 1970. missing: bytes of its data that the capture cut off."""

    time: int
    source: tuple[str, int]
    target: tuple[str, int]
    seq: int
    flags: int
    data: bytes
    missing: int


class Capture:
    """A file, opened. Raises RecordingError when it is no capture. After segments(): cut, the file ended within a
    packet; passed, what was passed over, by reason. While they are read: share of the file, packets."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.cut = False
        self.damaged = ""
        self.packets = 0
        self.share = 0.0            # of the file, read so far
        self.passed: Counter[str] = Counter()
        try:
            with path.open("rb") as file:
                start = file.read(24)
        except OSError as error:
            raise RecordingError(f"{path}: cannot be read: {error.strerror}") from error
        little, big = int.from_bytes(start[:4], "little"), int.from_bytes(start[:4], "big")
        if little == _SECTION:
            self._order, self._next = "", True
        elif (little in _PCAP or big in _PCAP) and len(start) == 24:
            self._order, self._next = "<" if little in _PCAP else ">", False
            self._unit = _PCAP[little if little in _PCAP else big]
            self._link = struct.unpack(self._order + "I", start[20:24])[0] & 0xFFFF
            self._known(self._link)
        else:
            raise RecordingError(f"{path}: this is neither a pcap nor a pcapng file")

    def _known(self, link: int) -> None:
        if link not in _LINKS:
            raise RecordingError(f"{self.path}: captures of link type {link} are not read; Ethernet, Linux cooked, "
                                 "loopback and raw IP are")

    def segments(self) -> Iterator[Segment]:
        """In the order of the file."""
        with self.path.open("rb") as file:
            size = max(self.path.stat().st_size, 1)
            for time, link, data in self._blocks(file) if self._next else self._records(file):
                self.packets += 1
                if self.packets % _LOOK == 0:
                    self.share = file.tell() / size
                segment = self._segment(time, link, data)
                if segment is not None:
                    yield segment

    # ── files ────────────────────────────────────────────────────────────────────────────────────────────────

    def _exactly(self, file: BinaryIO, count: int) -> bytes:
        """b"" at the end of the file, or when it ends within."""
        data = file.read(count)
        if len(data) < count:
            self.cut = self.cut or bool(data)
            return b""
        return data

    def _records(self, file: BinaryIO) -> Iterator[tuple[int, int, bytes]]:
        file.seek(24)
        head = struct.Struct(self._order + "IIII")
        while raw := self._exactly(file, 16):
            seconds, fraction, captured, _ = head.unpack(raw)
            if captured > _BLOCK_MAX:
                self.damaged = f"a packet claims to have {captured} bytes"
                return
            data = file.read(captured)
            if len(data) < captured:
                self.cut = True
                return
            yield seconds * 1_000_000_000 + fraction * self._unit, self._link, data

    def _blocks(self, file: BinaryIO) -> Iterator[tuple[int, int, bytes]]:
        order = "<"
        links: list[tuple[int, int, int]] = []          # link, units per second, offset in seconds
        while raw := self._exactly(file, 8):
            kind, length = struct.unpack(order + "II", raw)
            if kind == _SECTION:
                magic = self._exactly(file, 4)
                order = "<" if int.from_bytes(magic, "little") == _ORDER else ">"
                length = struct.unpack(order + "I", raw[4:])[0] - 4
                links = []
            if not 12 <= length + 4 * (kind == _SECTION) <= _BLOCK_MAX or length % 4:
                self.damaged = f"a block claims to have {length} bytes"
                return
            body = file.read(length - 8)
            if len(body) < length - 8:
                self.cut = True
                return
            if kind == 1 and len(body) >= 12:
                links.append(_interface(body[:-4], order))
                self._known(links[-1][0])
            elif kind in (2, 6) and len(body) >= 24:
                yield from self._enhanced(body, order, links, kind)
            elif kind == 3:
                self.passed["packets without a time"] += 1

    def _enhanced(self, body: bytes, order: str, links: list[tuple[int, int, int]],
                  kind: int) -> Iterator[tuple[int, int, bytes]]:
        interface, high, low, captured = struct.unpack_from(order + "IIII", body)
        if kind == 2:           # the packet block that this one replaced: a short interface, and drops
            interface = struct.unpack_from(order + "H", body)[0]
        if interface >= len(links) or captured > len(body) - 20:
            self.passed["packets of no interface"] += 1
            return
        link, units, offset = links[interface]
        time = offset * 1_000_000_000 + (high << 32 | low) * 1_000_000_000 // units
        if not 0 <= time < 1 << 63:
            self.passed["packets of a time that cannot be"] += 1
            return
        yield time, link, body[20:20 + captured]

    # ── packets ──────────────────────────────────────────────────────────────────────────────────────────────

    def _segment(self, time: int, link: int, data: bytes) -> Segment | None:
        at = _network(link, data)
        if at < 0:
            self.passed["packets that are no IP"] += 1
            return None
        segment = _transport(data, at)
        if isinstance(segment, str):
            self.passed[segment] += 1
            return None
        source, target, at, end = segment
        if len(data) - at < 20:
            self.passed["packets cut within their headers"] += 1
            return None
        ports, seq, offset, flags = data[at:at + 4], data[at + 4:at + 8], data[at + 12] >> 4, data[at + 13]
        if offset < 5:
            self.passed["packets cut within their headers"] += 1
            return None
        start = at + offset * 4
        whole = max(end - start, 0)
        payload = data[start:min(end, len(data))]
        return Segment(time, (source, int.from_bytes(ports[:2], "big")), (target, int.from_bytes(ports[2:], "big")),
                       int.from_bytes(seq, "big"), flags, payload, whole - len(payload))


def _interface(body: bytes, order: str) -> tuple[int, int, int]:
    """Link, units per second, offset in seconds, of an interface description block."""
    link, units, offset = struct.unpack_from(order + "H", body)[0], 1_000_000, 0
    at = 8
    while at + 4 <= len(body):
        code, length = struct.unpack_from(order + "HH", body, at)
        value = body[at + 4:at + 4 + length]
        if code == 0:
            break
        if code == 9 and value:
            units = 1 << (value[0] & 0x7F) if value[0] & 0x80 else 10 ** value[0]
        elif code == 14 and len(value) == 8:
            offset = struct.unpack(order + "q", value)[0]
        at += 4 + (length + 3 & ~3)
    return link, units, offset


def _network(link: int, data: bytes) -> int:
    """Where the IP header begins; -1: there is none."""
    if link in (_RAW, _IPV4, _IPV6, 12, 14):
        return 0 if data else -1
    if link in (_NULL, _LOOP):
        return 4 if len(data) > 4 and data[4] >> 4 in (4, 6) else -1
    at = {_ETHERNET: 12, _COOKED: 14, _COOKED2: 0}[link]
    kind = int.from_bytes(data[at:at + 2], "big")
    at = 20 if link == _COOKED2 else at + 2
    while kind in _TYPES_VLAN and link != _COOKED2:
        kind = int.from_bytes(data[at + 2:at + 4], "big")
        at += 4
    return at if kind in (_TYPE_IP4, _TYPE_IP6) and len(data) > at else -1


def _transport(data: bytes, at: int) -> tuple[str, str, int, int] | str:
    """Addresses, and where TCP begins and the packet ends; or why there is none."""
    version = data[at] >> 4
    if version == 4 and len(data) - at >= 20:
        if int.from_bytes(data[at + 6:at + 8], "big") & 0x3FFF:
            return "fragments of IP packets"
        if data[at + 9] != _TCP:
            return "packets that are no TCP"
        # 0: the card was to cut it into pieces, and its length was not written yet.
        length = int.from_bytes(data[at + 2:at + 4], "big") or len(data) - at
        return (".".join(map(str, data[at + 12:at + 16])), ".".join(map(str, data[at + 16:at + 20])),
                at + (data[at] & 15) * 4, at + length)
    if version == 6 and len(data) - at >= 40:
        length = int.from_bytes(data[at + 4:at + 6], "big") + 40 if data[at + 4:at + 6] != b"\0\0" else len(data) - at
        kind, inner = data[at + 6], at + 40
        while kind in _EXTENSIONS and len(data) - inner >= 8:
            kind, inner = data[inner], inner + 8 + data[inner + 1] * 8
        if kind == 44:
            return "fragments of IP packets"
        if kind != _TCP:
            return "packets that are no TCP"
        return _ipv6(data[at + 8:at + 24]), _ipv6(data[at + 24:at + 40]), inner, at + length
    return "packets that are no IP"


def _ipv6(address: bytes) -> str:
    return "[" + ":".join(f"{int.from_bytes(address[n:n + 2], 'big'):x}" for n in range(0, 16, 2)) + "]"
