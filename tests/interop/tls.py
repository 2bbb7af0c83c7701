"""The client of bytes over TLS, and certificates as they are presented."""
from __future__ import annotations

import contextlib
import socket
import ssl
import time
from collections.abc import Callable

from cryptography import x509
from interop.peers.base import Endpoint
from kit.broker import Broker
from kit.client import TIMEOUT, Client


def open_tls(where: Endpoint, version: int = 5, *, context: ssl.SSLContext | None = None,
             receive_buffer: int = 0) -> Client:
    """A Client after its handshake. receive_buffer: bytes of the kernel's buffer, 0 = as it is."""
    raw = socket.socket()
    if receive_buffer:
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    raw.settimeout(TIMEOUT)
    raw.connect((where.host, where.port))
    raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    try:
        return Client((context or where.context()).wrap_socket(raw, server_hostname="localhost"), version)
    except BaseException:
        raw.close()
        raise


def serial_of_server(where: Endpoint) -> int:
    """Serial number of the certificate that a new connection is shown."""
    with socket.create_connection((where.host, where.port), TIMEOUT) as raw, \
            where.context().wrap_socket(raw, server_hostname="localhost") as encrypted:
        shown = encrypted.getpeercert(binary_form=True)
    assert shown is not None
    return x509.load_der_x509_certificate(shown).serial_number


def serial_in(file: str) -> int:
    with open(file, "rb") as pem:
        return x509.load_pem_x509_certificate(pem.read()).serial_number


def wait_until(what: Callable[[], bool], problem: str) -> None:
    """Ask again and again for what comes soon; AssertionError(problem) when it does not."""
    deadline = time.monotonic() + TIMEOUT
    while not what():
        assert time.monotonic() < deadline, problem
        time.sleep(0.01)


def reload(broker: Broker) -> str:
    """SIGHUP, and what the broker says about it: "" when all was read again."""
    since = broker.stderr_size()
    broker.reload()
    wait_until(lambda: "reload" in broker.stderr(since) and broker.stderr(since).endswith("\n"),
               "the broker says nothing about SIGHUP")
    said = broker.stderr(since)
    return "" if "reloaded certificates, users and ACL" in said else said


def closed_by_peer(raw: socket.socket) -> bool:
    """Reads to the end of the stream, however it ends; False when it stays open."""
    raw.settimeout(TIMEOUT)
    with contextlib.suppress(ConnectionError, ssl.SSLError):
        try:
            while raw.recv(65536):
                pass
        except TimeoutError:
            return False
    return True


__all__ = ["closed_by_peer", "open_tls", "reload", "serial_in", "serial_of_server", "wait_until"]
