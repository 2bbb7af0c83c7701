"""Listening sockets, whatever protocol is spoken behind them: accepts, or refuses beyond `max_connections`, beyond
what the limit of open files leaves for all listeners, and beyond what one address may have.

Each edge has a Listener of its own, which makes the connections of its protocol (edge/mqtt/listener.py).
"""
from __future__ import annotations

import asyncio
import errno
import ipaddress
import os
import socket
from collections.abc import Callable
from ssl import SSLContext, SSLSocket
from typing import Any, Protocol

from fluxmq._core.hub.hub import Hub
from fluxmq._core.net.poller import Poller
from fluxmq._core.net.transport import Transport
from fluxmq.edge.origins import Origins
from fluxmq.edge.proxy_protocol import NotProxied, Proxied, Reading
from fluxmq.edge.recording import record_opened
from fluxmq.engine.ports.guard import Guard
from fluxmq.model.origins import Networks, show_origin

__all__ = ["Accepting", "Gate", "Refusals", "SocketListener"]

BACKLOG = 4096  # connections that wait to be accepted; the kernel caps it at net.core.somaxconn
PAUSE_S = 1.0  # delay after a failed accept, for instance when there are no descriptors left


class Refusals(Protocol):
    """Counts refused connections by reason."""

    refusals: dict[str, int]


class Gate:
    """Of all listeners. shut: why connections are refused for now; "": they are accepted."""

    shut = ""


class Accepting(Protocol):
    """What a listener needs from the handler of its connections. connections: open now; on_end subtracts those that
    end."""

    connections: int

    @property
    def hub(self) -> Hub: ...
    @property
    def name(self) -> str: ...
    @property
    def tally(self) -> Refusals: ...
    @property
    def on_log(self) -> Callable[[str, str, str, dict[str, Any]], None]: ...


class SocketListener:
    """One listener of the configuration, with a socket per address family. Abstract: `make` depends on the protocol.

    front: handler of the connections. all_connections_max: limit for all listeners of the poller together. context:
    called for each connection, so that renewed certificates are used at once; None = no TLS. origins: shared by all
    listeners. guard: the bans; None = none. gate: shared by all listeners. read_timeout_s: time until the client must
    have identified itself, and a balancer its client. later: schedules a call after some seconds. proxies: where
    balancers are, which name their clients by the PROXY protocol; None: there are none.
    """

    def __init__(self, front: Accepting, poller: Poller, *, context: Callable[[], SSLContext] | None,
                 max_connections: int, all_connections_max: int, origins: Origins, guard: Guard | None, gate: Gate,
                 read_timeout_s: float,
                 later: Callable[[float, Callable[[], None]], Any], proxies: Networks | None = None) -> None:
        self.front = front
        self.poller = poller
        self.context = context
        self.max_connections = max_connections
        self.all_connections_max = all_connections_max
        self.origins = origins
        self.guard = guard
        self.gate = gate
        self.read_timeout_ms = int(read_timeout_s * 1000)
        self.accept_failures = 0
        self._later = later
        self._sockets: list[socket.socket] = []
        self._proxies = proxies
        self._awaited: dict[Reading, Any] = {}      # connections whose header is to come, and the end of their patience

    def open(self, host: str, port: int) -> list[tuple[str, int]]:
        """Binds and listens. host: "" = every interface. Returns the addresses; raises OSError."""
        if host == "" and socket.has_dualstack_ipv6():
            found: list[Any] = [(socket.AF_INET6, None, None, None, ("::", port))]
        else:
            # Bytes, where they say the same: for a str Python loads its encoder of international names.
            name = host or "0.0.0.0"
            found = socket.getaddrinfo(name.encode() if name.isascii() else name, port, type=socket.SOCK_STREAM,
                                       flags=socket.AI_PASSIVE)
        for family, _, _, _, address in found:
            listening = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
            try:
                listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                if family == socket.AF_INET6:
                    listening.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, host != "")
                listening.bind(address)
                listening.listen(BACKLOG)
            except OSError:
                listening.close()
                raise
            self._sockets.append(listening)
            port = port or listening.getsockname()[1]  # the name's other address families use the same port
        for listening in self._sockets:
            self.poller.add_listener(listening.fileno(), self)
        return [listening.getsockname()[:2] for listening in self._sockets]

    def close(self) -> None:
        """Stops accepting connections."""
        for listening in self._sockets:
            self.poller.remove_listener(listening.fileno())
            listening.close()
        self._sockets.clear()
        for reading in list(self._awaited):
            os.close(self._take(reading))

    def make(self, fd: int, tls: SSLSocket | None) -> Transport:
        """Makes a connection that owns this socket."""
        raise NotImplementedError

    # ------------------------------------------------------------------ called by the poller

    def accepted(self, fd: int, address: bytes) -> Transport | None:
        """Called with a new connection. address: the peer's, 4 or 16 bytes."""
        if self._proxies is not None and address in self._proxies:
            self._await_header(fd, address)
            return None
        return self._admit(fd, address, None)

    def _admit(self, fd: int, address: bytes, proxied: Proxied | None) -> Transport | None:
        front = self.front
        origin = self.origins.find(address)
        if self.gate.shut:
            self._refuse(fd, "not_serving", self.gate.shut)
            return None
        if front.connections >= self.max_connections:
            self._refuse(fd, "max_connections", f"{self.max_connections} are open (max_connections)")
            return None
        if len(self.poller.connections) >= self.all_connections_max:
            self._refuse(fd, "descriptors", f"{self.all_connections_max} are open at all listeners, and the limit of "
                                            f"open files leaves no more (ulimit -n; LimitNOFILE= of systemd)")
            return None
        if origin is not None and origin.connections >= self.origins.connections_max:
            self._refuse(fd, "connections_per_address", f"{show_origin(origin.key)} has {origin.connections} open "
                                                        f"(server.max_connections_per_address)")
            return None
        if origin is not None and self.guard is not None and self.guard.shuts_out(origin.key):
            self._refuse(fd, "banned", f"{show_origin(origin.key)} is banned (auth.ban_address_after)")
            return None
        tls = None
        if self.context is not None:
            plain = socket.socket(fileno=fd)
            plain.setblocking(False)
            try:
                tls = self.context().wrap_socket(plain, server_side=True, do_handshake_on_connect=False)
            except OSError:  # gone already
                plain.close()
                return None
        connection = self.make(fd, tls)
        connection.proxied = proxied
        connection.deadline_ms = front.hub.mono_ms + self.read_timeout_ms
        front.connections += 1
        if origin is not None:
            connection.origin = origin
            origin.enter()
        record_opened(connection, front.name)
        return connection

    # ------------------------------------------------------------------ behind a balancer

    def _await_header(self, fd: int, address: bytes) -> None:
        """Waits for the PROXY header; it counts as a connection until then."""
        if self.front.connections + len(self._awaited) >= self.max_connections:
            self._refuse(fd, "max_connections", f"{self.max_connections} are open (max_connections)")
            return
        if len(self.poller.connections) + len(self._awaited) >= self.all_connections_max:
            self._refuse(fd, "descriptors", f"{self.all_connections_max} are open at all listeners, and the limit of "
                                            f"open files leaves no more (ulimit -n; LimitNOFILE= of systemd)")
            return
        reading = Reading(fd)
        self._awaited[reading] = self._later(self.read_timeout_ms / 1000, lambda: self._not_named(
            reading, address, f"nothing came within {self.read_timeout_ms / 1000:g} s"))
        asyncio.get_running_loop().add_reader(fd, self._read_header, reading, address)
        self._read_header(reading, address)

    def _read_header(self, reading: Reading, address: bytes) -> None:
        try:
            found = reading.go_on()
        except NotProxied as error:
            self._not_named(reading, address, str(error))
            return
        if found is not None:
            fd = self._take(reading)
            connection = (self._admit(fd, found.address, found) if found.address
                          else self._admit(fd, address, None))      # of the balancer itself
            if connection is not None:
                self.poller.adopt(connection)

    def _not_named(self, reading: Reading, address: bytes, why: str) -> None:
        if reading in self._awaited:
            self._refuse(self._take(reading), "proxy", (
                f"{ipaddress.ip_address(address)} is in server.proxy_networks, and the connection has no PROXY header: "
                f"{why}. Have the balancer send it (of haproxy: send-proxy-v2), or take its address from there"))

    def _take(self, reading: Reading) -> int:
        """Nothing more is read; the descriptor."""
        self._awaited.pop(reading).cancel()
        fd = reading.detach()
        asyncio.get_running_loop().remove_reader(fd)
        return fd

    def _refuse(self, fd: int, reason: str, why: str) -> None:
        """Refuses a connection. reason: the label in the metric of refusals."""
        os.close(fd)
        self.front.tally.refusals[reason] += 1
        self.front.on_log("warning", f"{reason} {self.front.name}", f"connection refused: {why}",
                          {"listener": self.front.name})

    def accept_failed(self, code: int) -> None:
        """Called when accept(2) failed and the poller has removed the socket. Tries again a little later."""
        self.accept_failures += 1
        hint = " (raise the limit of open files)" if code in (errno.EMFILE, errno.ENFILE) else ""
        self.front.on_log("error", f"accept {code}", f"cannot accept connections: {os.strerror(code)}{hint}",
                          {"listener": self.front.name})
        self._later(PAUSE_S, self._again)

    def _again(self) -> None:
        for listening in self._sockets:
            if listening.fileno() not in self.poller.listeners:
                self.poller.add_listener(listening.fileno(), self)
