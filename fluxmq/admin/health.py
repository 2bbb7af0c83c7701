"""GET /health, /ready, /metrics and /cluster over HTTP/1.1, for probes, scrapers and curl.

admin/http.py knows HTTP and bounds it (HTTP_* in model/limits.py); this file knows four paths.

    /health   200 {"status":"healthy", ...}    503 when the status is another
    /ready    200 {"status":"ready", ...}      503 {"status":"not_ready", ...}
    /metrics  200 Prometheus text; ?queue=NAME, also several times: with these queues one by one
    /cluster  200 {"env", "nodes": [...], "local", "state", ...}: admin/cluster.py

Any other query is ignored. HEAD is GET without the body. Other methods on these paths: 405 with Allow.
"""
import asyncio
import errno
import json
import logging
import socket
from collections.abc import Callable, Sequence
from typing import Any
from urllib.parse import parse_qsl

from fluxmq._core.errors import UsageError
from fluxmq.admin.cluster import cluster_page
from fluxmq.admin.http import READ_BYTES, Answer, Bounds, HttpServer, Request, text_answer
from fluxmq.admin.metrics import CONTENT_TYPE as METRICS_TYPE
from fluxmq.engine.ports.overview import ClusterView
from fluxmq.model import limits
from fluxmq.model.address import Address, parse_address

__all__ = ["HealthServer"]

_LOG = logging.getLogger("fluxmq.health")
_JSON_TYPE = "application/json"


def _json(status: int, body: dict[str, Any]) -> Answer:
    return Answer(status, _JSON_TYPE, json.dumps(body, separators=(",", ":"), default=str).encode() + b"\n")


def _every_interface(port: int) -> socket.socket:
    """One socket for both families: with two, port 0 would be two ports. IPv4 alone where there is no IPv6."""
    if socket.has_dualstack_ipv6():
        try:
            return socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True)
        except OSError as error:
            if error.errno not in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT):
                raise
    return socket.create_server(("", port))


class HealthServer(HttpServer):
    """Listens from `start` to `stop`, on the running loop; the callables are called there and must not block.

    addr: host:port as in server.health_addr. health: the body of /health. ready: whether, and the body of /ready.
    metrics: the page of /metrics, with the queues of `?queue=NAME&queue=…`. cluster: what /cluster shows. A callable
    that raises is a 500 and a line in the log.
    """

    def __init__(self, addr: str, health: Callable[[], dict[str, Any]],
                 ready: Callable[[], tuple[bool, dict[str, Any]]], metrics: Callable[[Sequence[str]], bytes],
                 cluster: Callable[[], ClusterView], *,
                 request_seconds_max: float = limits.HTTP_REQUEST_SECONDS_MAX,
                 idle_seconds_max: float = limits.HTTP_IDLE_SECONDS_MAX,
                 connections_max: int = limits.HTTP_CONNECTIONS_MAX) -> None:
        super().__init__(_Pages(health, ready, metrics, cluster), Bounds(
            connections_max=connections_max, request_seconds_max=request_seconds_max,
            idle_seconds_max=idle_seconds_max))
        self._wanted = parse_address(addr)

    async def _listen(self) -> asyncio.Server:
        host, port = self._wanted
        if host:
            return await asyncio.start_server(self._accepted, host, port, limit=READ_BYTES)
        return await asyncio.start_server(self._accepted, sock=_every_interface(port), limit=READ_BYTES)

    @property
    def address(self) -> str:
        """host:port as bound, with the port that the system picked. UsageError when it does not run."""
        if self._server is None or not self._server.sockets:
            raise UsageError("the health server does not run")
        name = self._server.sockets[0].getsockname()
        return str(Address(self._wanted.host and name[0], name[1]))


class _Pages:
    """What is served; implements http.Handler."""

    def __init__(self, health: Callable[[], dict[str, Any]], ready: Callable[[], tuple[bool, dict[str, Any]]],
                 metrics: Callable[[Sequence[str]], bytes], cluster: Callable[[], ClusterView]) -> None:
        self._health = health
        self._ready = ready
        self._metrics = metrics
        self._cluster = cluster
        self._routes: dict[str, Callable[[str], Answer]] = {
            "/health": self._answer_health, "/ready": self._answer_ready, "/metrics": self._answer_metrics,
            "/cluster": self._answer_cluster}

    def refuse(self, status: int, text: str) -> Answer:
        return text_answer(status, text)

    async def handle(self, request: Request) -> Answer:
        path, _, query = request.target.partition("?")
        route = self._routes.get(path)
        if route is None:
            return text_answer(404, f"there are {', '.join(self._routes)}")
        if request.method not in ("GET", "HEAD"):
            return text_answer(405, "only GET and HEAD", ("Allow", "GET, HEAD"))
        try:
            return route(query)
        except Exception:
            _LOG.exception("a page could not be made", extra={"page": path})
            return text_answer(500, "an internal error prevented the answer; the log says why")

    def _answer_health(self, query: str) -> Answer:
        body = self._health()
        return _json(200 if body.get("status") == "healthy" else 503, body)

    def _answer_ready(self, query: str) -> Answer:
        ready, body = self._ready()
        return _json(200 if ready else 503, body)

    def _answer_metrics(self, query: str) -> Answer:
        return Answer(200, METRICS_TYPE, self._metrics([value for name, value in parse_qsl(query) if name == "queue"]))

    def _answer_cluster(self, query: str) -> Answer:
        return cluster_page(self._cluster())
