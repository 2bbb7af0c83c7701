"""A client of bytes: blocking, without a mind of its own, so that a test reads like a transcript.

    c = Client(broker.address)
    c.send(Connect(client_id="a"))
    c.expect(Connack, reason=0)
    c.send(b"\\xc0\\x00")
    c.expect(Pingresp)
    c.expect_closed()

Nothing is acknowledged unless the test does it. The verbs with a name (`connect`, `subscribe`, `publish`, …) only
send a packet and expect its answers; since messages may come before those, PUBLISH packets that do are put aside, and
are the next that `recv` gives. What arrives is parsed by the naive codec, which refuses every packet that the
specification does not allow a broker to send.
"""
from __future__ import annotations

import contextlib
import itertools
import os
import socket
import ssl
import struct
import time
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

from oracle.mqtt import (
    V5,
    Connack,
    Connect,
    Disconnect,
    Malformed,
    Packet,
    Pingreq,
    Pingresp,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Suback,
    Subscribe,
    Unsuback,
    Unsubscribe,
    parse,
)

# For what must come: generous, only a failing test waits for it
TIMEOUT = float(os.environ.get("FLUXMQ_TEST_TIMEOUT", "30"))
SILENCE = 0.1                   # for what must not come

# CONNECT with a session that outlives the connection: client("sub", **KEPT)
KEPT: dict[str, Any] = {"clean_start": False, "properties": {"session_expiry_interval": 120}}

P = TypeVar("P", bound=Packet)


class Transport(Protocol):
    """What a socket has and a WebSocket imitates."""

    def sendall(self, data: bytes, /) -> None: ...
    def recv(self, count: int, /) -> bytes: ...
    def settimeout(self, seconds: float | None, /) -> None: ...
    def shutdown(self, how: int, /) -> None: ...
    def close(self) -> None: ...


class Unexpected(AssertionError):
    """The broker did something else than the script says; the text holds the transcript of the connection."""


class Nothing(Unexpected):
    """Nothing came in time."""


class Closed(Unexpected):
    """The broker closed the connection."""


class Client:
    """One Network Connection.

    where: (host, port), or a transport that is open already. version: 4 or 5, in which packets are written and read.
    """

    def __init__(self, where: tuple[str, int] | Transport, version: int = V5, *, timeout: float = TIMEOUT) -> None:
        self.version = version
        self.timeout = timeout
        self.connack: Connack | None = None
        self.transcript: list[str] = []
        self._buffer = b""
        self._aside: list[Packet] = []
        self.settle: Callable[[], None] | None = None        # of brokers that are several nodes (kit/three_nodes.py)
        self.last_size = 0                   # bytes of the packet that was read last
        self._eof = False
        self._packet_ids = itertools.cycle(range(1, 0x10000))
        if isinstance(where, tuple):
            raw = socket.create_connection(where, TIMEOUT)
            raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self.transport: Transport = raw
        else:
            self.transport = where

    # ── bytes and packets ────────────────────────────────────────────────────────────────────────────────

    def send(self, *items: Packet | bytes) -> None:
        """Write packets, or bytes as they are, all in one system call."""
        for item in items:
            self.transcript.append(f"→ {item!r}")
        self.transport.sendall(b"".join(i if isinstance(i, bytes) else i.encode(self.version) for i in items))

    def send_to_the_end(self, *items: Packet | bytes) -> None:
        """`send` to a broker that may close the connection before it has read everything."""
        try:
            self.send(*items)
        except (BrokenPipeError, ConnectionResetError, ssl.SSLEOFError, ssl.SSLZeroReturnError):
            self.transcript.append("  (closed while sending)")

    def recv(self, timeout: float | None = None) -> Packet:
        """The next packet. Raises Nothing, Closed, or Unexpected for what is no packet."""
        if self._aside:
            return self._aside.pop(0)
        return self._receive(timeout)

    def _receive(self, timeout: float | None = None) -> Packet:
        deadline = time.monotonic() + (self.timeout if timeout is None else timeout)
        while True:
            try:
                found = parse(self._buffer, self.version)
            except Malformed as error:
                raise Unexpected(self._tell(f"not a packet of the specification: {error}: {self._buffer[:80]!r}")) \
                    from None
            if found is not None:
                packet, rest = found
                self.last_size = len(self._buffer) - len(rest)
                self._buffer = rest
                self.transcript.append(f"← {packet!r}")
                return packet
            self._read(deadline)

    def expect(self, kind: type[P], timeout: float | None = None, **wanted: Any) -> P:
        """The next packet, which is a `kind` whose attributes equal those given; a name of a property counts as one."""
        try:
            packet = self.recv(timeout)
        except (Nothing, Closed) as error:
            raise type(error)(f"{kind.__name__} {wanted or ''} expected: {error}") from None
        return self._check(packet, kind, wanted)

    def answer(self, kind: type[P], **wanted: Any) -> P:
        """`expect` for the answer to something sent: PUBLISH packets that come before it are put aside."""
        aside: list[Packet] = []
        try:
            while True:
                packet = self._receive()
                if not isinstance(packet, Publish):
                    return self._check(packet, kind, wanted)
                aside.append(packet)
        except (Nothing, Closed) as error:
            raise type(error)(f"{kind.__name__} {wanted or ''} expected: {error}") from None
        finally:
            self._aside += aside

    def _check(self, packet: Packet, kind: type[P], wanted: dict[str, Any]) -> P:
        if not isinstance(packet, kind):
            raise Unexpected(self._tell(f"{kind.__name__} {wanted or ''} expected, {packet!r} came"))
        for name, value in wanted.items():
            had = getattr(packet, name) if hasattr(packet, name) else packet.prop(name)
            if had != value:
                raise Unexpected(self._tell(f"{name}={value!r} expected, {name}={had!r} came in {packet!r}"))
        return packet

    def expect_nothing(self, seconds: float = SILENCE) -> None:
        """Nothing comes for a moment, and the connection stays open."""
        try:
            packet = self.recv(seconds)
        except Nothing:
            return
        raise Unexpected(self._tell(f"nothing expected, {packet!r} came"))

    def expect_quiet(self) -> None:
        """Nothing is under way: a PINGREQ is answered, and by nothing but its PINGRESP."""
        if self.settle is not None:
            self.settle()
        self.send(Pingreq())
        self.expect(Pingresp)

    def expect_closed(self, *reasons: int, timeout: float | None = None) -> Packet | None:
        """The broker closes. One CONNACK or DISCONNECT with a reason of 0x80 or more may come before; with reasons
        given it must come and carry one of them."""
        last: Packet | None = None
        try:
            while True:
                packet = self.recv(timeout)
                if last is not None or not isinstance(packet, Connack | Disconnect) or (
                        self.version == V5 and packet.reason < 0x80):
                    raise Unexpected(self._tell(f"a closed connection expected, {packet!r} came"))
                last = packet
        except Closed:
            pass
        except Nothing:
            raise Unexpected(self._tell("a closed connection expected, it stays open")) from None
        if reasons and (last is None or last.reason not in reasons):            # type: ignore[attr-defined]
            expected = ", ".join(f"{reason:#04x}" for reason in reasons)
            raise Unexpected(self._tell(f"closing with {expected} expected, {last!r} came"))
        return last

    def expect_refused(self, *reasons: int) -> None:
        """The broker does not take the CONNECT: it closes, if it likes with a CONNACK before (one of the reasons),
        never with a DISCONNECT [MQTT-3.14.0-1]."""
        last = self.expect_closed()
        if last is not None and (not isinstance(last, Connack) or (reasons and last.reason not in reasons)):
            raise Unexpected(self._tell(f"a refusal expected, {last!r} came"))

    def rest(self) -> bytes:
        """Every byte that comes until the broker closes, unparsed."""
        try:
            while True:
                self._read(time.monotonic() + self.timeout)
        except Closed:
            pass
        except Unexpected:
            if not self._eof:
                raise
        data, self._buffer = self._buffer, b""
        self.transcript.append(f"← {data!r}")
        return data

    def reset(self) -> None:
        """RST instead of FIN: the broker learns of it although it does not read."""
        assert isinstance(self.transport, socket.socket)
        self.transport.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.close()

    def drop(self) -> None:
        """Cut the connection without a DISCONNECT, as a failing network does, and wait until the broker has seen it.

        What the broker had sent and the test had not read is thrown away.
        """
        with contextlib.suppress(OSError):      # ENOTCONN, where the broker has reset it meanwhile
            self.transport.shutdown(socket.SHUT_WR)
        try:
            while True:
                self._read(time.monotonic() + self.timeout)
        except Closed:
            pass
        except Unexpected as error:
            if not self._eof:
                raise Unexpected(self._tell("the broker does not close a connection that the client left")) from error
        self.close()

    def close(self) -> None:
        """Let go of the connection; the broker will notice when it does."""
        self._eof = True
        self.transport.close()

    # ── verbs: a packet and its answers ──────────────────────────────────────────────────────────────────

    def connect(self, client_id: str | bytes = "", *, expect: int = 0, **options: Any) -> Connack:
        """CONNECT (options as for the packet) and its CONNACK, whose code must be `expect`."""
        self.send(Connect(client_id=client_id, **options))
        self.connack = self.expect(Connack, reason=expect)
        return self.connack

    def subscribe(self, *filters: str | tuple[str | bytes, int], qos: int = 0, properties: Any = (),
                  expect: list[int] | None = None) -> Suback:
        """SUBSCRIBE to filters, each a name or (name, Subscription Options); the SUBACK must grant what is asked,
        or hold the reasons `expect`. What others have sent is where it belongs before."""
        if self.settle is not None:
            self.settle()
        wanted = [(item, qos) if isinstance(item, str) else item for item in filters]
        packet_id = self.next_packet_id()
        self.send(Subscribe(packet_id=packet_id, filters=wanted, properties=properties))
        reasons = [bits & 3 for _, bits in wanted] if expect is None else expect
        return self.answer(Suback, packet_id=packet_id, reasons=reasons)

    def unsubscribe(self, *filters: str, properties: Any = (), expect: list[int] | None = None) -> Unsuback:
        """UNSUBSCRIBE and its UNSUBACK; in 5.0 every filter must have been subscribed, or `expect` says the reasons."""
        packet_id = self.next_packet_id()
        self.send(Unsubscribe(packet_id=packet_id, filters=list(filters), properties=properties))
        reasons = ([0] * len(filters) if expect is None else expect) if self.version == V5 else []
        return self.answer(Unsuback, packet_id=packet_id, reasons=reasons)

    def publish(self, topic: str | bytes, payload: bytes = b"", qos: int = 0, *, expect: int | None = None,
                **options: Any) -> int | None:
        """PUBLISH and, at QoS 1 and 2, the whole handshake. `expect`: the reason of PUBACK or PUBREC; None accepts 0x00
        and 0x10 (no matching subscribers). The answer is the Packet Identifier."""
        packet_id = self.next_packet_id() if qos else None
        self.send(Publish(topic=topic, payload=payload, qos=qos, packet_id=packet_id, **options))
        if not qos:
            return None
        answer = self.answer(Puback if qos == 1 else Pubrec, packet_id=packet_id)
        if answer.reason not in ((0x00, 0x10) if expect is None else (expect,)):
            raise Unexpected(self._tell(f"reason {expect} expected, {answer!r} came"))
        if qos == 2 and answer.reason < 0x80:
            assert packet_id is not None
            self.send(Pubrel(packet_id=packet_id))
            self.answer(Pubcomp, packet_id=packet_id, reason=0)
        return packet_id

    def receive(self, topic: str | None = None, payload: bytes | None = None, **wanted: Any) -> Publish:
        """A PUBLISH, acknowledged to the end as its QoS asks."""
        if topic is not None:
            wanted["topic"] = topic
        if payload is not None:
            wanted["payload"] = payload
        packet = self.expect(Publish, **wanted)
        if packet.qos == 1:
            assert packet.packet_id is not None
            self.send(Puback(packet_id=packet.packet_id))
        elif packet.qos == 2:
            assert packet.packet_id is not None
            self.send(Pubrec(packet_id=packet.packet_id))
            self.answer(Pubrel, packet_id=packet.packet_id, reason=0)
            self.send(Pubcomp(packet_id=packet.packet_id))
        return packet

    def disconnect(self, reason: int = 0, properties: Any = ()) -> None:
        """DISCONNECT, and the broker closes without a word."""
        self.send(Disconnect(reason=reason, properties=properties))
        if self.expect_closed() is not None:
            raise Unexpected(self._tell("a DISCONNECT must not be answered"))
        self.close()

    def next_packet_id(self) -> int:
        return next(self._packet_ids)

    # ── details ──────────────────────────────────────────────────────────────────────────────────────────

    def _read(self, deadline: float) -> None:
        left = deadline - time.monotonic()
        if self._eof:
            raise Closed(self._tell("the connection is closed"))
        if left <= 0:
            raise Nothing(self._tell("nothing came"))
        self.transport.settimeout(left)
        try:
            data = self.transport.recv(65536)
        except TimeoutError:
            raise Nothing(self._tell("nothing came")) from None
        except ConnectionError:
            data = b""
        finally:
            self.transport.settimeout(TIMEOUT)
        if not data:
            self._eof = True
            self.transcript.append("← (closed)")
            if self._buffer:
                raise Unexpected(self._tell(f"closed inside a packet: {self._buffer[:80]!r}"))
            raise Closed(self._tell("the broker closed the connection"))
        self._buffer += data

    def _tell(self, what: str) -> str:
        return "\n    ".join([what, *self.transcript[-40:]])


__all__ = ["KEPT", "SILENCE", "TIMEOUT", "Client", "Closed", "Nothing", "Transport", "Unexpected"]
