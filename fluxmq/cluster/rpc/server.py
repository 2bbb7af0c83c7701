"""The port on which other nodes reach this one.

    accepted ──TLS──► ServerConnection ──POST /fluxmq.cluster.v1.Peer/Stream──► Incoming
                                       └─POST /fluxmq.cluster.v1.Peer/Call────► Answering

Whoever can connect may send anything. What it may cost is bounded: connections, those that are in a handshake, calls on
one connection and in all, headers, and frames that carry nothing (_core/peer/http2.pxd).
"""
from __future__ import annotations

import asyncio
import errno
import re
import socket
import ssl
from collections.abc import Callable, Coroutine
from typing import Any

import h2.errors

from fluxmq.cluster.ports import BindFailed, Log
from fluxmq.cluster.rpc.connection import CLOSE_S, Headers, Http2Connection, RpcStream
from fluxmq.cluster.rpc.incoming import SERVICE, Answering, Incoming, Served, Service
from fluxmq.cluster.rpc.statuses import Status
from fluxmq.cluster.rpc.tls import identity_of
from fluxmq.model.address import Address

__all__ = ["RPCS_MAX", "Server"]

# Calls and streams of all other nodes together that this node serves at a time. Each node has one stream and a few
# calls, so more are an error or an attack.
RPCS_MAX = 4096
STREAMS_MAX = RPCS_MAX  # of one connection: all calls of a node come on one, and many may wait for something
CONNECTIONS_MAX = 4096
HELLO_BYTES_MAX = 65536  # of a hello: the stream is not accepted yet
CALL_HEAD_BYTES = 1024  # of a CallRequest, around its body
BACKLOG = 1024
RETRY_S = 0.25
_STREAM, _CALL = (f"/{SERVICE}/{method}".encode() for method in ("Stream", "Call"))
_UNITS = {b"H": 3600.0, b"M": 60.0, b"S": 1.0, b"m": 1e-3, b"u": 1e-6, b"n": 1e-9}
_TIMEOUT = re.compile(rb"([0-9]{1,8})([HMSmun])")


class ServerConnection(Http2Connection):
    """A connection that another node has made."""

    def __init__(self, server: Server, service: Service) -> None:
        super().__init__(client=False, keepalive_s=server.keepalive_s, streams_max=STREAMS_MAX)
        self._server = server
        self._service = service
        self._identity: str | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See asyncio.Protocol."""
        self._identity = identity_of(transport)
        self._server.connections.add(self)
        super().connection_made(transport)

    def on_over(self) -> None:
        """See Http2Connection."""
        self._server.connections.discard(self)

    def on_request(self, number: int, headers: Headers, ended: bool) -> None:
        """See Http2Connection."""
        path, service = headers.get(b":path", b""), self._service
        kind = headers.get(b"content-type", b"")
        is_grpc = kind == b"application/grpc" or kind.startswith((b"application/grpc+", b"application/grpc;"))
        call: Served
        if headers.get(b":method") != b"POST" or not is_grpc:
            self._refuse_http(number, b"405" if headers.get(b":method") != b"POST" else b"415")
            return
        if path == _STREAM:
            call = Incoming(service, self._identity)
            limit = HELLO_BYTES_MAX
        elif path == _CALL:
            call = Answering(service, self._identity, _seconds(headers.get(b"grpc-timeout")))
            limit = service.message_bytes_max + CALL_HEAD_BYTES
        else:
            call, limit = Served(), 0
        self._serve(call, number, limit)
        if path not in (_STREAM, _CALL):
            call.finish(Status.UNIMPLEMENTED, f"there is no {path.decode(errors='replace')[:200]}")
        elif service.open > RPCS_MAX:
            call.finish(Status.RESOURCE_EXHAUSTED, f"more than {RPCS_MAX} calls at a time")
        elif headers.get(b"grpc-encoding", b"identity") != b"identity":
            call.finish(Status.UNIMPLEMENTED, "messages are not compressed here")

    def _refuse_http(self, number: int, status: bytes) -> None:
        """No call of gRPC."""
        if self.full:
            self.fail("it does not read what it asks for", h2.errors.ErrorCodes.ENHANCE_YOUR_CALM)
            return
        stream = RpcStream()
        self._serve(stream, number, 0)
        self.finish(stream, [(b":status", status)])

    def _serve(self, stream: RpcStream, number: int, message_bytes_max: int) -> None:
        self.enter(stream, number, message_bytes_max)
        self._service.open += 1

    def on_left(self, stream: RpcStream) -> None:
        """See Http2Connection."""
        self._service.open -= 1


def _seconds(given: bytes | None) -> float | None:
    """A grpc-timeout; None: there is none that can be read."""
    found = None if given is None else _TIMEOUT.fullmatch(given)
    return None if found is None else int(found[1]) * _UNITS[found[2]]


class Server:
    """Listens, and serves who connects. start: runs a coroutine beside. log: as Broker's on_log. context: for the next
    connection; None: without TLS.

    address: with the port that was chosen, once it is started. problem: why no other node gets a connection to this one
    at present; "": it does.
    """

    def __init__(self, address: Address, *, keepalive_s: float, hello_s: float, context: ssl.SSLContext | None,
                 start: Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]], log: Log) -> None:
        self.address = address
        self.keepalive_s = keepalive_s
        self.context = context
        self.problem = ""
        self.connections: set[ServerConnection] = set()
        self._hello_s = hello_s
        self._start = start
        self._log = log
        self._sockets: list[socket.socket] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._service: Service | None = None

    def start(self, service: Service) -> None:
        """Raises BindFailed."""
        self._service = service
        self._sockets = _bound(self.address)
        self.address = Address(self.address.host, self._sockets[0].getsockname()[1])
        for each in self._sockets:
            self._begin(self._accept(each))

    def _begin(self, coroutine: Coroutine[Any, Any, None]) -> None:
        task = self._start(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def stop(self) -> None:
        """Ends all connections. May be called twice, and without start()."""
        # Before the tasks end: uvloop closes a connection whose acceptance is cancelled, and refuses what is written.
        gone = [connection.gone for connection in self.connections]
        for connection in list(self.connections):
            connection.close("the node is stopping")
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        for each in self._sockets:
            each.close()
        self._sockets.clear()
        for connection in list(self.connections):       # made in the same moment
            gone.append(connection.gone)
            connection.abort("the node is stopping")
        if gone:        # so that nothing refers to this life any more; uvloop tells nobody of those it has cancelled
            await asyncio.wait(gone, timeout=CLOSE_S)
        self._service = None

    async def _accept(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                accepted, _ = await loop.sock_accept(listener)
            except OSError as error:
                await self._cannot_accept(error)
                continue
            self.problem = ""
            if len(self.connections) + len(self._tasks) > CONNECTIONS_MAX:
                accepted.close()
                continue
            self._begin(self._serve(accepted))

    async def _cannot_accept(self, error: OSError) -> None:
        if error.errno == errno.ECONNABORTED:
            return
        if not self.problem:
            self.problem = f"no other node gets a connection to this one: {error.strerror or error}"
            self._log("error", "transport accept", self.problem, {"address": str(self.address)})
        await asyncio.sleep(RETRY_S)

    async def _serve(self, accepted: socket.socket) -> None:
        """A connection, up to the end of its handshake."""
        loop = asyncio.get_running_loop()
        accepted.setblocking(False)
        service = self._service
        assert service is not None
        tls: dict[str, Any] = {} if self.context is None else {
            "ssl": self.context, "ssl_handshake_timeout": self._hello_s}
        try:
            await loop.connect_accepted_socket(lambda: ServerConnection(self, service), accepted, **tls)
        except (OSError, asyncio.CancelledError):       # what it has sent is no TLS, or no certificate of ours
            accepted.close()


def _bound(address: Address) -> list[socket.socket]:
    """Listening sockets: of both families for every interface."""
    found: list[socket.socket] = []
    try:
        for family, _, _, _, target in _targets(address):
            each = socket.socket(family, socket.SOCK_STREAM)
            found.append(each)
            each.setblocking(False)
            each.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                each.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            port = target[1] or (found[0].getsockname()[1] if len(found) > 1 else 0)
            each.bind((target[0], port, *target[2:]))
            each.listen(BACKLOG)
    except OSError as error:
        for each in found:
            each.close()
        raise BindFailed(f"cannot listen on {address}: {error.strerror or error}") from None
    return found


def _targets(address: Address) -> list[Any]:
    if address.host:
        return socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM,
                                  flags=socket.AI_PASSIVE)[:1]
    every = socket.getaddrinfo(None, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    return [one for one in every if one[0] != socket.AF_INET6 or socket.has_dualstack_ipv6()]
