"""Captures written by tests: TCP connections as packets, in every form that the reader must know.

    talk = Talk(client=("10.0.0.1", 40000), server=("10.0.0.2", 1883))
    talk.opened(); talk.sent(IN, b"..."); talk.closed()         # talk.packets: [(time, IP packet)]
    write_capture(path, talk.packets, form="pcapng-big", link="cooked2")
"""
from __future__ import annotations

import struct
from collections.abc import Iterable
from ipaddress import ip_address
from pathlib import Path

IN, OUT = 3, 4
START = 1_700_000_000_000_000_000
FIN, SYN, RST, ACK = 1, 2, 4, 16
FORMS = ("pcap", "pcap-big", "pcap-ns", "pcap-ns-big", "pcapng", "pcapng-big")
LINKS = {"ethernet": 1, "vlan": 1, "cooked": 113, "cooked2": 276, "null": 0, "loop": 108, "raw": 101}
Packet = tuple[int, bytes]      # ns since 1970, IP packet


def ip_packet(source: str, target: str, tcp: bytes) -> bytes:
    one, other = ip_address(source), ip_address(target)
    if one.version == 4:
        return struct.pack(">BBHHHBBH", 0x45, 0, 20 + len(tcp), 1, 0, 64, 6, 0) + one.packed + other.packed + tcp
    return struct.pack(">IHBB", 6 << 28, len(tcp), 6, 64) + one.packed + other.packed + tcp


class Talk:
    """One TCP connection. Sequence numbers begin shortly before they wrap, so that every test passes there."""

    def __init__(self, client: tuple[str, int] = ("127.0.0.1", 40000), server: tuple[str, int] = ("127.0.0.1", 1883),
                 step: int = 1_000, start: int = START) -> None:
        self.ends = {IN: (client, server), OUT: (server, client)}
        self.seq = {IN: 0xFFFFFFF0, OUT: 0xFFFFFF00}
        self.step = step
        self.clock = start
        self.packets: list[Packet] = []

    def packet(self, kind: int, flags: int, data: bytes = b"", *, seq: int | None = None,
               time: int | None = None) -> None:
        self.clock = self.clock + self.step if time is None else time
        (source, port), (target, other) = self.ends[kind]
        at = self.seq[kind] if seq is None else seq
        tcp = struct.pack(">HHIIBBHHH", port, other, at & 0xFFFFFFFF, self.seq[7 - kind] & 0xFFFFFFFF, 5 << 4, flags,
                          65535, 0, 0) + data
        self.packets.append((self.clock, ip_packet(source, target, tcp)))
        if seq is None:
            self.seq[kind] = at + len(data) + bool(flags & (SYN | FIN))

    def opened(self) -> None:
        self.packet(IN, SYN)
        self.packet(OUT, SYN | ACK)
        self.packet(IN, ACK)

    def sent(self, kind: int, data: bytes, *, sizes: Iterable[int] = (), time: int | None = None) -> None:
        """As one segment, or cut where the sizes say."""
        for size in sizes:
            if 0 < size < len(data):
                self.packet(kind, ACK, data[:size], time=time)
                data = data[size:]
        if data:
            self.packet(kind, ACK, data, time=time)

    def closed(self) -> None:
        self.packet(IN, FIN | ACK)
        self.packet(OUT, FIN | ACK)


def framed(packet: bytes, link: str, big: bool) -> bytes:
    kind = struct.pack(">H", 0x0800 if packet[0] >> 4 == 4 else 0x86DD)
    if link == "ethernet":
        return bytes(12) + kind + packet + (bytes(60 - 14 - len(packet)) if len(packet) < 46 else b"")
    if link == "vlan":
        return bytes(12) + b"\x88\xa8\x00\x07\x81\x00\x00\x05" + kind + packet
    if link == "cooked":
        return bytes(14) + kind + packet
    if link == "cooked2":
        return kind + bytes(18) + packet
    if link in ("null", "loop"):
        return struct.pack(">I" if big or link == "loop" else "<I", 2) + packet
    return packet


def write_capture(path: Path, packets: Iterable[Packet], *, form: str = "pcap", link: str = "ethernet",
                  snap: int = 0) -> None:
    """snap: bytes of a packet that are kept, 0: all."""
    big = form.endswith("-big")
    order = ">" if big else "<"
    out = bytearray()
    nano = "ns" in form
    if form.startswith("pcapng"):
        out += struct.pack(order + "IIIHHqI", 0x0A0D0D0A, 28, 0x1A2B3C4D, 1, 0, -1, 28)
        options = struct.pack(order + "HHB3xHH", 9, 1, 9, 0, 0)
        out += struct.pack(order + "IIHHI", 1, 20 + len(options), LINKS[link], 0, snap) + options
        out += struct.pack(order + "I", 20 + len(options))
        out += struct.pack(order + "II", 5, 24) + bytes(12) + struct.pack(order + "I", 24)      # a block of statistics
    else:
        out += struct.pack(order + "IHHiIII", 0xA1B23C4D if "-ns" in form else 0xA1B2C3D4, 2, 4, 0, 0, snap or 65535,
                           LINKS[link])
    for time, packet in packets:
        whole = framed(packet, link, big)
        data = whole[:snap] if snap else whole
        if form.startswith("pcapng"):
            padded = data + bytes(-len(data) % 4)
            length = 32 + len(padded)
            out += struct.pack(order + "IIIIIII", 6, length, 0, time >> 32, time & 0xFFFFFFFF, len(data), len(whole))
            out += padded + struct.pack(order + "I", length)
        else:
            unit = 1 if nano else 1_000
            out += struct.pack(order + "IIII", time // 10**9, time % 10**9 // unit, len(data), len(whole)) + data
    path.write_bytes(out)
