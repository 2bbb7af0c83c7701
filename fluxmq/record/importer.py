"""Makes a recording of a capture: reassembles its TCP connections and writes them as the entries that a broker's tap
would have made, which are then handled like those of a tap.

    segments ──► streams ──► which protocol? who is the broker? ──► whole packets ──► entries ──► RecordRows ──► parts

What is not in the capture is a LOST entry of that connection; behind it, and where a connection's beginning is missing,
a direction goes on at a segment that holds whole packets and nothing else. Times are those of the capture.

The recorded broker may have accepted what FluxMQ does not: an invalid packet whose fixed header (AMQP: frame header and
frame end) is in order is one row `malformed`, and the next one is read. Otherwise no packet of that direction has a
certain beginning any more.
"""
import struct
from collections import Counter
from collections.abc import Callable, Collection
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from fluxmq._core.amqp091.methods import (
    ConnectionOpen,
    ConnectionOpenOk,
    ConnectionStartOk,
    Method,
    decode_method,
)
from fluxmq._core.errors import ProtocolError
from fluxmq._core.mqtt.decode import decode_packet
from fluxmq._core.mqtt.packets import ConnAck, Connect
from fluxmq._core.record.rows import whole_packets
from fluxmq.record.files import prepare_directory
from fluxmq.record.imported import Imported, Invalid, invalid_notes
from fluxmq.record.manifest import MANIFEST, RecordingError, new_manifest
from fluxmq.record.options import BrokerAbout, RecordOptions
from fluxmq.record.pcap import ACK, FIN, RST, SYN, Capture
from fluxmq.record.tcp import Piece, Stream
from fluxmq.record.writer import RowsWriter, rows_for

__all__ = ["AMQP_PORTS", "MQTT_PORTS", "Imported", "import_capture"]

MQTT_PORTS = (1883,)
AMQP_PORTS = (5672,)
_OPENED, _ACCEPTED, _IN, _OUT, _CLOSED, _LOST = range(1, 7)
_MQTT, _AMQP091 = 1, 2
_PRESENT = 1
_HELD_MAX = 1 << 16             # bytes of a connection while its protocol is unknown,
_HELD_PIECES_MAX = 4096         # in so many pieces
_FIRST_BYTES = 64               # bytes of a direction that suffice to tell its protocol
# Flags that each MQTT packet type must have in its first byte; PUBLISH has its own.
_FLAGS = {kind: 2 if kind in (6, 8, 10) else 0 for kind in range(1, 16) if kind != 3}

End = tuple[str, int]
Emit = Callable[[int, int, int, int, int, bytes], None]    # kind, protocol, flags, connection, time, data


def _looks_like_mqtt(data: bytes) -> bool:
    """Whole packets and nothing else, each with flags and a beginning that its type may have."""
    if whole_packets(data) != len(data):
        return False
    at = 0
    while at < len(data):
        kind, flags, length, shift = data[at] >> 4, data[at] & 15, 0, 0
        at += 1
        while True:
            length |= (data[at] & 127) << shift
            shift += 7
            at += 1
            if data[at - 1] < 128:
                break
        if kind == 3:
            topic = int.from_bytes(data[at:at + 2], "big")
            good = flags & 6 != 6 and 2 + topic + (2 if flags & 6 else 0) <= length
        else:
            good = flags == _FLAGS[kind] and (length > 1 if kind not in (12, 13, 14, 15) else True)
        if not good:
            return False
        at += length
    return True


def _protocol_of(first: bytes) -> int | str:
    """Of the first bytes that a client sends; a str: what it is instead."""
    if first.startswith(b"AMQP"):
        return _AMQP091 if first[4:8] == b"\0\0\x09\x01" else "connections of another version of AMQP"
    if first[:1] == b"\x10" and (b"\0\x04MQTT" in first[2:11] or b"\0\x06MQIsdp" in first[2:13]):
        return _MQTT
    if first[:2] == b"\x16\x03":
        return "connections with TLS, whose bytes say nothing"
    if first.startswith((b"GET ", b"POST ", b"HEAD ")):
        return "connections of HTTP (also MQTT over WebSocket)"
    return "connections of other protocols"


class _Way:
    """One direction of a connection. synced: the next byte begins a packet."""

    def __init__(self) -> None:
        self.stream = Stream()
        self.buffer = bytearray()
        self.synced = False
        self.over = False           # no packet begins here: everything that follows is passed on unchanged
        self.first = b""            # bytes received while the protocol is unknown


class _Connection:
    """client, server: addresses; protocol 0: not known yet."""

    def __init__(self, number: int, client: End, server: End, present: bool) -> None:
        self.number = number
        self.client = client
        self.server = server
        self.present = present
        self.protocol = 0
        self.skipped = ""
        self.ways = {_IN: _Way(), _OUT: _Way()}
        self.held: list[tuple[int, int, Piece]] = []
        self.held_bytes = 0
        self.client_details: dict[str, Any] = {}
        self.accepted = False
        self.fins: set[int] = set()
        self.rows = False


class _Connections:
    """All of a capture. emit: takes entries."""

    def __init__(self, emit: Emit, mqtt: Collection[int], amqp: Collection[int]) -> None:
        self.emit = emit
        self.ports = dict.fromkeys(mqtt, _MQTT) | dict.fromkeys(amqp, _AMQP091)
        self.known: dict[tuple[End, End], _Connection] = {}
        self.count = 0
        self.skipped: Counter[str] = Counter()
        self.unfinished = 0         # bytes of packets whose rest never came

    # ── segments ─────────────────────────────────────────────────────────────────────────────────────────────

    def of(self, source: End, target: End, flags: int) -> _Connection:
        pair = (min(source, target), max(source, target))
        found = self.known.get(pair)
        if found is not None and not (flags & SYN and not flags & ACK and (found.rows or found.skipped)):
            return found
        if found is not None:
            self.end(found, 0)                  # the same ports again
        self.count += 1
        if flags & SYN:
            client, server = (target, source) if flags & ACK else (source, target)
        elif source[1] in self.ports or (target[1] not in self.ports and source[1] < target[1]):
            client, server = target, source
        else:
            client, server = source, target
        self.known[pair] = _Connection(self.count, client, server, not flags & SYN)
        return self.known[pair]

    def take(self, time: int, source: End, target: End, seq: int, flags: int, data: bytes, missing: int) -> None:
        connection = self.of(source, target, flags)
        kind = _IN if source == connection.client else _OUT
        way = connection.ways[kind]
        if flags & SYN:
            way.stream.begin(seq + 1)
            way.synced = True
            seq += 1
        elif way.stream.next is None and not connection.present and not data:
            way.stream.begin(seq)
        for piece in way.stream.segment(seq, data, missing):
            self.piece(connection, kind, time, piece)
        if flags & (FIN | RST):
            connection.fins.add(kind)
            if flags & RST or len(connection.fins) == 2:
                self.end(connection, time, kind, "reset" if flags & RST else "closed")

    def end(self, connection: _Connection, time: int, kind: int = 0, why: str = "") -> None:
        """No more of it comes. kind 0: the capture has no end of it."""
        for way in connection.ways:
            for piece in connection.ways[way].stream.rest():
                self.piece(connection, way, time, piece)
        self.decide(connection, True)
        self.unfinished += sum(len(way.buffer) for way in connection.ways.values())
        if connection.skipped:
            self.skipped[connection.skipped] += 1
        elif connection.rows and kind:
            self.emit(_CLOSED, connection.protocol, 0, connection.number, time, msgspec.json.encode(
                {"by": "client" if kind == _IN else "broker", "reason": why, "code": 0}))
        elif not connection.rows and connection.protocol:
            self.skipped["connections that began before the capture, and were not picked up"] += 1
        self.known.pop((min(connection.client, connection.server), max(connection.client, connection.server)), None)

    # ── what it is ───────────────────────────────────────────────────────────────────────────────────────────

    def piece(self, connection: _Connection, kind: int, time: int, piece: Piece) -> None:
        if connection.skipped:
            return
        if connection.protocol:
            self.packets(connection, kind, time, piece)
            return
        way = connection.ways[kind]
        before = len(way.first)
        way.first += piece.data[:_FIRST_BYTES - before]
        connection.held.append((kind, time, piece))
        connection.held_bytes += len(piece.data)
        last = connection.held_bytes > _HELD_MAX or len(connection.held) > _HELD_PIECES_MAX
        if last or len(way.first) > before:
            self.decide(connection, last)

    def decide(self, connection: _Connection, last: bool) -> None:
        """Protocol and sides, as soon as the first bytes tell. last: no more are waited for."""
        if connection.protocol or connection.skipped or not connection.held:
            return
        first = {way: connection.ways[way].first for way in (_IN, _OUT)}
        for way in (_IN, _OUT):
            decided = _protocol_of(first[way]) if first[way] else "connections without data"
            if isinstance(decided, int):
                # An AMQP broker answers an unknown header with its own, so the client is the side that sent first.
                if way == _OUT and connection.present:
                    connection.client, connection.server = connection.server, connection.client
                    connection.held = [(_OUT if kind == _IN else _IN, time, piece)
                                       for kind, time, piece in connection.held]
                    ways = connection.ways
                    ways[_IN], ways[_OUT] = ways[_OUT], ways[_IN]
                    way = _IN
                if way == _IN:
                    connection.protocol = decided
                    connection.ways[_IN].synced = connection.ways[_OUT].synced = True
                    connection.present = False
                break
            if way == _IN and first[way] and not connection.present and len(first[way]) > 12:
                connection.skipped = decided
                return
        if not connection.protocol and connection.present:
            connection.protocol = self.ports.get(connection.server[1], 0)
        if connection.protocol:
            held, connection.held = connection.held, []
            for kind, time, piece in held:
                self.packets(connection, kind, time, piece)
        elif last:
            decided = _protocol_of(first[_IN] or first[_OUT])
            connection.skipped = decided if isinstance(decided, str) else "connections cut off at their first bytes"

    # ── packets ──────────────────────────────────────────────────────────────────────────────────────────────

    def packets(self, connection: _Connection, kind: int, time: int, piece: Piece) -> None:
        way = connection.ways[kind]
        if piece.gap:
            lost_bytes = piece.gap + len(way.buffer)
            way.buffer.clear()
            way.synced = False
            if connection.rows:
                self.emit(_LOST, 0, 0, connection.number, time, struct.pack("<QQ", 1, lost_bytes))
            return
        if not way.synced:
            good = (_looks_like_mqtt(piece.data) if connection.protocol == _MQTT
                    else whole_packets(piece.data, True) == len(piece.data))
            if not good:
                if connection.rows:
                    self.emit(_LOST, 0, 0, connection.number, time, struct.pack("<QQ", 1, len(piece.data)))
                return
            way.synced = True
        way.buffer += piece.data
        while way.buffer:
            whole = len(way.buffer) if way.over else whole_packets(way.buffer, connection.protocol == _AMQP091)
            if whole < 0:
                way.over = True
                whole = len(way.buffer)
            if whole == 0:
                return
            data = bytes(way.buffer[:whole])
            del way.buffer[:whole]
            self.entry(connection, kind, time, data)

    def entry(self, connection: _Connection, kind: int, time: int, data: bytes) -> None:
        if not connection.rows:
            connection.rows = True
            self.emit(_OPENED, connection.protocol, _PRESENT * connection.present, connection.number, time,
                      msgspec.json.encode({"listener": f"{connection.server[0]}:{connection.server[1]}",
                                           "peer": f"{connection.client[0]}:{connection.client[1]}", "tls": False,
                                           "websocket": False}))
        if not connection.accepted and not connection.present:
            self.listen(connection, kind, time, data)
        self.emit(kind, connection.protocol, 0, connection.number, time, data)

    def listen(self, connection: _Connection, kind: int, time: int, data: bytes) -> None:
        """Tells ACCEPTED before the entry with CONNACK, or with connection.open-ok."""
        if connection.protocol == _MQTT:
            with suppress(ProtocolError):
                self.listen_mqtt(connection, kind, data)
        else:
            self.listen_amqp(connection, data)
        if connection.accepted:
            self.emit(_ACCEPTED, connection.protocol, 0, connection.number, time,
                      msgspec.json.encode(connection.client_details))

    def listen_mqtt(self, connection: _Connection, kind: int, data: bytes) -> None:
        if data[0] >> 4 != (1 if kind == _IN else 2) or whole_packets(data) < 0:
            return
        start, length = 1, 0
        while True:
            length |= (data[start] & 127) << 7 * (start - 1)
            start += 1
            if data[start - 1] < 128:
                break
        packet = decode_packet(data[0], data[start:start + length], connection.client_details.get("version", 0))
        if isinstance(packet, Connect) and kind == _IN:
            connection.client_details = {"client_id": packet.client_id, "version": packet.protocol_level,
                                         "clean_start": packet.clean_start, "session_present": False,
                                         "keep_alive_s": packet.keep_alive, "session_expiry_s": packet.get(0x11, 0)}
        elif isinstance(packet, ConnAck) and kind == _OUT and packet.reason_code == 0 and connection.client_details:
            connection.client_details["session_present"] = packet.session_present
            connection.client_details["client_id"] = packet.get(0x12) or connection.client_details["client_id"]
            connection.accepted = True

    def listen_amqp(self, connection: _Connection, data: bytes) -> None:
        at = 8 if data.startswith(b"AMQP") else 0
        while at < len(data) and not connection.accepted:
            size = int.from_bytes(data[at + 3:at + 7], "big")
            code = int.from_bytes(data[at + 7:at + 11], "big")
            if data[at] == 1 and code >> 16 == 10:
                with suppress(ProtocolError):       # of this method; the next one is another matter
                    self.listen_method(connection, decode_method(data[at + 7:at + 7 + size]))
            at += size + 8

    def listen_method(self, connection: _Connection, method: Method) -> None:
        if isinstance(method, ConnectionStartOk):
            # In a malformed response the password's position is unknown.
            parts = method.response.split(b"\0") if method.mechanism == "PLAIN" else []
            connection.client_details["user"] = parts[1].decode("utf-8", "replace") if len(parts) == 3 else ""
        elif isinstance(method, ConnectionOpen):
            connection.client_details["vhost"] = method.virtual_host
        elif isinstance(method, ConnectionOpenOk):
            connection.client_details = {"client_id": f"amqp091-{connection.number}",
                                         **connection.client_details, "version": 91}
            connection.accepted = True


def import_capture(capture: Path, directory: Path, options: RecordOptions, *,
                   mqtt_ports: Collection[int] = MQTT_PORTS, amqp_ports: Collection[int] = AMQP_PORTS,
                   progress: Callable[[float, int], None] | None = None) -> Imported:
    """Makes a recording of what the capture has of MQTT and AMQP 0-9-1.

    The ports say which protocol a connection speaks, and which side is the broker, only where its beginning is not
    in the capture. progress: told how much of the file was read, 0 to 1, and how many packets that were. Raises
    RecordingError for a file that is no capture, one that has nothing for a recording, and a directory that cannot be
    used; a file that is cut off gives what is there.
    """
    opened = Capture(capture)
    prepare_directory(directory)
    rows = rows_for(options, go_on=True)
    writer = RowsWriter(directory, new_manifest(options, BrokerAbout(name=""), source="pcap"), options, rows)

    def emit(kind: int, protocol: int, flags: int, connection: int, time: int, data: bytes) -> None:
        size = 32 + (len(data) + 7 & ~7)
        head = struct.pack("<IBBHQqII", size, kind, protocol, flags, connection, time, len(data), 0)
        writer.feed((head + data).ljust(size, b"\0"))

    connections = _Connections(emit, mqtt_ports, amqp_ports)
    end = "cut off"
    time = 0
    try:
        for segment in opened.segments():
            time = segment.time
            connections.take(time, segment.source, segment.target, segment.seq, segment.flags, segment.data,
                             segment.missing)
            if progress is not None:
                progress(opened.share, opened.packets)
            if writer.error is not None or writer.capped:
                break
        for connection in list(connections.known.values()):
            connections.end(connection, time)
        end = "cap reached" if writer.capped else "capture ended"
    finally:
        manifest = writer.close(end)
    if writer.error is not None:
        raise RecordingError(f"{directory}: the recording ended before the capture did: {manifest.end}")
    invalid = [Invalid(connection=number, direction=direction, packets=packets, bytes=passed, dropped=dropped,
                       dropped_bytes=left) for number, direction, packets, passed, dropped, left in rows.invalid]
    done = Imported(manifest=manifest, packets=opened.packets, connections=connections.count,
                    skipped=dict(connections.skipped), invalid=invalid,
                    notes=[*_notes(opened, connections, rows.lost_bytes), *invalid_notes(invalid)])
    if not manifest.rows:
        (directory / MANIFEST).unlink()     # so that the next attempt can use the directory
        raise RecordingError(f"{capture}: there is no MQTT and no AMQP 0-9-1 in it that could be read"
                             + "".join(f"; {note}" for note in done.notes))
    return done


def _notes(opened: Capture, connections: _Connections, lost_bytes: int) -> list[str]:
    notes = []
    if opened.cut:
        notes.append("the file ends within a packet; what came before it is there")
    if opened.damaged:
        notes.append(f"the file is damaged: {opened.damaged}; what came before is there")
    if lost_bytes:
        notes.append(f"{lost_bytes} bytes of these connections are not in the capture")
    if connections.unfinished:
        notes.append(f"{connections.unfinished} bytes are beginnings of packets whose rest is not in the capture")
    notes += [f"passed over: {count} {what}" for what, count in sorted(opened.passed.items())]
    notes += [f"skipped: {count} {what}" for what, count in sorted(connections.skipped.items())]
    return notes
