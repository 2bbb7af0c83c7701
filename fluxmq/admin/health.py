"""GET /health, /ready and /metrics over HTTP/1.1: for probes, scrapers and people with curl, and for nothing else.

h11 knows HTTP; this file knows three paths, and bounds everything a stranger could make grow: connections, the bytes of
a head and of a body, the time of a request, the time until the next, the time an answer takes to be read
(HTTP_* in model/limits.py).

    /health   200 {"status":"healthy", ...}    503 when the status is another
    /ready    200 {"status":"ready", ...}      503 {"status":"not_ready", ...}
    /metrics  200 Prometheus text

A query is ignored. HEAD is GET without the body. Other methods on these paths: 405 with Allow.
"""
import asyncio
import errno
import json
import logging
import socket
from collections.abc import Callable
from email.utils import formatdate
from typing import Any

import h11

from fluxmq._core.errors import UsageError
from fluxmq.admin.metrics import CONTENT_TYPE as METRICS_TYPE
from fluxmq.model import limits
from fluxmq.model.address import Address, parse_address

__all__ = ["HealthServer"]

_LOG = logging.getLogger("fluxmq.health")
_JSON_TYPE = "application/json"
_READ_BYTES = 16 * 1024

# status, content type, body, further headers
_Answer = tuple[int, str, bytes, list[tuple[str, str]]]


def _json(status: int, body: dict[str, Any]) -> _Answer:
    return status, _JSON_TYPE, json.dumps(body, separators=(",", ":"), default=str).encode() + b"\n", []


def _error(status: int, text: str, headers: list[tuple[str, str]] | None = None) -> _Answer:
    return status, "text/plain; charset=utf-8", text.encode() + b"\n", headers or []


def _every_interface(port: int) -> socket.socket:
    """One socket for both families: with two, port 0 would be two ports. IPv4 alone where there is no IPv6."""
    if socket.has_dualstack_ipv6():
        try:
            return socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True)
        except OSError as error:
            if error.errno not in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT):
                raise
    return socket.create_server(("", port))


class _Gone(Exception):
    """The connection is to be closed without another word: end of stream, time-out, more than it may send."""


class HealthServer:
    """Listens from `start` to `stop`, on the running loop; the callables are called there and must not block.

    addr: host:port as in server.health_addr. health: the body of /health. ready: whether, and the body of /ready.
    metrics: the page of /metrics. A callable that raises is a 500 and a line in the log.
    """

    def __init__(self, addr: str, health: Callable[[], dict[str, Any]],
                 ready: Callable[[], tuple[bool, dict[str, Any]]], metrics: Callable[[], bytes], *,
                 request_seconds_max: float = limits.HTTP_REQUEST_SECONDS_MAX,
                 idle_seconds_max: float = limits.HTTP_IDLE_SECONDS_MAX,
                 connections_max: int = limits.HTTP_CONNECTIONS_MAX) -> None:
        self._wanted = parse_address(addr)
        self._health = health
        self._ready = ready
        self._metrics = metrics
        self._request_seconds_max = request_seconds_max
        self._idle_seconds_max = idle_seconds_max
        self._connections_max = connections_max
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._routes: dict[str, Callable[[], _Answer]] = {
            "/health": self._answer_health, "/ready": self._answer_ready, "/metrics": self._answer_metrics}

    async def start(self) -> None:
        """Binds and serves. OSError when the address cannot be listened on."""
        if self._server is not None:
            raise UsageError("the health server runs already")
        host, port = self._wanted
        if host:
            self._server = await asyncio.start_server(self._accepted, host, port, limit=_READ_BYTES)
        else:
            self._server = await asyncio.start_server(self._accepted, sock=_every_interface(port), limit=_READ_BYTES)

    async def stop(self) -> None:
        """Closes listener and connections; whoever is in the middle of an answer does not get the rest."""
        server, self._server = self._server, None
        if server is None:
            return
        server.close()
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        await server.wait_closed()

    @property
    def address(self) -> str:
        """host:port as bound, with the port that the system picked. UsageError when it does not run."""
        if self._server is None or not self._server.sockets:
            raise UsageError("the health server does not run")
        name = self._server.sockets[0].getsockname()
        return str(Address(self._wanted.host and name[0], name[1]))

    async def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        if self._server is None or len(self._tasks) >= self._connections_max:
            writer.transport.abort()
            return
        self._tasks.add(task)
        # an answer is small: no more than itself may wait for a slow reader
        writer.transport.set_write_buffer_limits(0)
        try:
            await self._serve(_Peer(reader, writer))
        except (_Gone, OSError, TimeoutError, asyncio.CancelledError):
            # CancelledError only comes from stop(), which waits for this task and for nothing it returns
            writer.transport.abort()
        except Exception:
            _LOG.exception("a request could not be served")
            writer.transport.abort()
        else:
            writer.close()
        finally:
            self._tasks.discard(task)

    async def _serve(self, peer: "_Peer") -> None:
        """Requests of one connection, one after the other."""
        while True:
            try:
                await peer.wait_for_first_byte(self._idle_seconds_max)
                async with asyncio.timeout(self._request_seconds_max):
                    request = await peer.next_request()
                answer = self._answer(request)
            except h11.RemoteProtocolError as error:
                answer = _error(error.error_status_hint or 400, "not a request that can be served")
                request = None
            if request is None and peer.http.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
                return
            async with asyncio.timeout(self._request_seconds_max):
                await peer.send(answer, request)
            if peer.http.our_state is not h11.DONE or peer.http.their_state is not h11.DONE:
                return
            peer.http.start_next_cycle()

    def _answer(self, request: h11.Request) -> _Answer:
        path = request.target.decode("ascii", "replace").partition("?")[0]
        route = self._routes.get(path)
        if route is None:
            return _error(404, f"there are {', '.join(self._routes)}")
        if request.method not in (b"GET", b"HEAD"):
            return _error(405, "only GET and HEAD", [("Allow", "GET, HEAD")])
        try:
            return route()
        except Exception:
            _LOG.exception("a page could not be made", extra={"page": path})
            return _error(500, "it could not be found out; the log says why")

    def _answer_health(self) -> _Answer:
        body = self._health()
        return _json(200 if body.get("status") == "healthy" else 503, body)

    def _answer_ready(self) -> _Answer:
        ready, body = self._ready()
        return _json(200 if ready else 503, body)

    def _answer_metrics(self) -> _Answer:
        return 200, METRICS_TYPE, self._metrics(), []


class _Peer:
    """One connection: its streams and h11's view of it."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self.http = h11.Connection(h11.SERVER, max_incomplete_event_size=limits.HTTP_HEAD_BYTES_MAX)

    async def wait_for_first_byte(self, seconds_max: float) -> None:
        """Until something of the next request is there; raises TimeoutError."""
        if self.http.trailing_data[0]:
            return
        async with asyncio.timeout(seconds_max):
            await self._receive()

    async def _receive(self) -> None:
        data = await self._reader.read(_READ_BYTES)
        self.http.receive_data(data)
        if not data and self.http.their_state is h11.IDLE and not self.http.trailing_data[0]:
            raise _Gone

    async def next_request(self) -> h11.Request:
        """The next request, its body read away. RemoteProtocolError when it is none."""
        request: h11.Request | None = None
        body_bytes = 0
        while True:
            event = self.http.next_event()
            if event is h11.NEED_DATA:
                if request is not None and self.http.they_are_waiting_for_100_continue:
                    # the body is not wanted: answered as it stands, and closed because the body may still come
                    return request
                await self._receive()
            elif isinstance(event, h11.Request):
                request = event
            elif isinstance(event, h11.Data):
                body_bytes += len(event.data)
                if body_bytes > limits.HTTP_BODY_BYTES_MAX:
                    raise h11.RemoteProtocolError("body too large", error_status_hint=413)
            elif isinstance(event, h11.EndOfMessage):
                assert request is not None
                return request
            else:
                raise _Gone

    async def send(self, answer: _Answer, request: h11.Request | None) -> None:
        """The whole answer in one write. request: what it answers, None when that could not be read."""
        status, content_type, body, further = answer
        headers = [("Content-Type", content_type), ("Content-Length", str(len(body))), ("Cache-Control", "no-store"),
                   ("Date", formatdate(usegmt=True)), *further]
        if request is None or self.http.their_state is h11.SEND_BODY:
            headers.append(("Connection", "close"))
        head = self.http.send(h11.Response(status_code=status, headers=headers))
        end = b""
        if request is None or request.method != b"HEAD":
            end = self.http.send(h11.Data(data=body)) or b""
        end += self.http.send(h11.EndOfMessage()) or b""
        self._writer.write((head or b"") + end)
        await self._writer.drain()
