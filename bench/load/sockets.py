"""Connections of the load generator up to the first byte of MQTT: TCP, TLS, the WebSocket upgrade, source addresses."""
from __future__ import annotations

import base64
import hashlib
import ipaddress
import os
import resource
import socket
import ssl

from fluxmq.bench.load.options import LoadOptions

__all__ = ["SourceAddresses", "TransportError", "client_context", "open_socket", "raise_descriptor_limit"]

PORTS_PER_ADDRESS = 25_000  # fewer than net.ipv4.ip_local_port_range has by default
# The kernel looks for a free port in one half of that range (14 116 ports), and in the other once the first is full:
# then every connection begins with a search of the whole first half. This many leave the first half some room.
PORTS_AT_EASE = 10_000
WEBSOCKET_GUID = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
UPGRADE_ANSWER_MAX = 16 * 1024


class TransportError(OSError):
    """The connection could not be prepared for MQTT. The text has the peer's answer."""


def raise_descriptor_limit(wanted: int) -> int:
    """Raise the soft limit of open files to what is wanted, as far as the hard limit goes; the limit now."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    goal = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < goal:
        resource.setrlimit(resource.RLIMIT_NOFILE, (goal, hard))
        return goal
    return soft


class SourceAddresses:
    """Loopback addresses to connect from, one per 10 000 connections: a port is used up per source and target."""

    def __init__(self, host: str) -> None:
        try:
            self.loopback = ipaddress.ip_address(host).is_loopback and ":" not in host
        except ValueError:
            self.loopback = False
        self.taken = 0

    def next(self) -> tuple[str, int] | None:
        """The address to bind to, or None to leave it to the system (not loopback, or the first 10 000)."""
        block = self.taken // PORTS_AT_EASE
        self.taken += 1
        return (f"127.0.0.{1 + block}", 0) if self.loopback and block else None


def open_socket(options: LoadOptions, context: ssl.SSLContext | None,
                source: tuple[str, int] | None = None, addr: str = "") -> socket.socket:
    """A connected, non-blocking socket over which MQTT can be spoken. addr: HOST:PORT, "" for that of the options.
    Raises OSError, TransportError among them."""
    addr = addr or options.addr
    host, _, port = addr.rpartition(":")
    try:
        sock = socket.create_connection((host.strip("[]"), int(port)), options.connect_timeout, source)
    except OSError as error:
        raise TransportError(f"cannot connect to {addr}: {error.strerror or error}") from error
    try:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if context is not None:
            sock = context.wrap_socket(sock, server_hostname=options.host)
        if options.transport in ("ws", "wss"):
            upgrade(sock, options)
    except BaseException:
        sock.close()
        raise
    sock.setblocking(False)
    return sock


def client_context(options: LoadOptions) -> ssl.SSLContext | None:
    """What TLS is verified against; None without TLS."""
    if options.transport not in ("tls", "wss"):
        return None
    context = ssl.create_default_context(cafile=options.cafile)
    if options.insecure:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


def upgrade(sock: socket.socket, options: LoadOptions) -> None:
    """The opening handshake (RFC 6455 section 4.1) with subprotocol mqtt. Raises TransportError when it fails."""
    key = base64.b64encode(os.urandom(16)).decode()
    sock.sendall((f"GET {options.path} HTTP/1.1\r\nHost: {options.addr}\r\nUpgrade: websocket\r\n"
                  f"Connection: Upgrade\r\nSec-WebSocket-Key: {key}\r\nSec-WebSocket-Protocol: mqtt\r\n"
                  f"Sec-WebSocket-Version: 13\r\n\r\n").encode())
    answer = b""
    while not answer.endswith(b"\r\n\r\n"):
        # Byte by byte at the end would be slow; a server says nothing after its answer before it has our CONNECT.
        got = sock.recv(4096)
        answer += got
        if not got or len(answer) > UPGRADE_ANSWER_MAX:
            raise TransportError(f"{options.addr} did not answer the WebSocket upgrade")
    lines = answer.decode("latin-1").split("\r\n")
    headers = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines[1:])}
    expected = base64.b64encode(hashlib.sha1((key + WEBSOCKET_GUID).encode()).digest()).decode()
    if not lines[0].startswith("HTTP/1.1 101") or headers.get("sec-websocket-accept") != expected:
        raise TransportError(f"{options.addr} refused the WebSocket upgrade of {options.path}: {lines[0]}")
    if headers.get("sec-websocket-protocol", "").lower() != "mqtt":
        raise TransportError(f"{options.addr} did not accept the WebSocket subprotocol mqtt")
