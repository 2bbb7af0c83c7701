"""The endpoints of etcd: a channel of gRPC to each, which of them to ask, and what to do when one fails.

The order of the list is the order of preference; a node names its own member first. A request goes to the first
endpoint that is not failing. One that does not answer, or knows no leader, is failing: the next in the list is asked,
until a probe (a linearizable read, every half a second) succeeds there. When all are failing they are asked in turn,
the one that failed longest ago first.

    a request that may be repeated      goes on to the next endpoint, with half of the time that is left for each
    a request that may not              goes on only when it surely had no effect (EtcdError.sent is False)

Both end at the limit of the request, with an error that names each endpoint and why it did not answer.
"""
from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import grpc
import grpc.aio

from fluxmq._core.errors import ConfigError
from fluxmq.cluster.etcd.additions import WATCH
from fluxmq.cluster.etcd.errors import Cause, EtcdError, explain
from fluxmq.cluster.etcd.stubs import rpc, services
from fluxmq.cluster.ports import Log

__all__ = ["WITH_LEADER", "Answer", "Endpoint", "Endpoints", "Tls"]

CONNECT_S = 0.5         # for a connection to be made, before the next endpoint is tried
PROBE_S = 0.5           # between two probes of an endpoint that fails
PROBE_LIMIT_S = 1.0
PAUSE_S = (0.02, 0.25)  # before all endpoints are tried once more: at first, at most
SHARE_S_MIN = 0.25      # what is left of a request's time is halved for each endpoint, down to this

# etcd answers "no leader" at once, instead of waiting for one, and ends streams when the member loses its leader.
WITH_LEADER = (("hasleader", "true"),)

_OPTIONS = (
    ("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1),
    # A member that comes back is found within a second, not within two minutes.
    ("grpc.initial_reconnect_backoff_ms", 100), ("grpc.min_reconnect_backoff_ms", 1000),
    ("grpc.max_reconnect_backoff_ms", 1000),
    # etcd ends connections that ping more often than every 5 s.
    ("grpc.keepalive_time_ms", 10_000), ("grpc.keepalive_timeout_ms", 3_000),
    # The limit that counts in grpcio 1.85 (grpc issue 39239).
    ("grpc.http2.ping_timeout_ms", 3_000),
    # Not through a proxy that the environment names for HTTP; and a connection of our own, whose failures are ours.
    ("grpc.enable_http_proxy", 0), ("grpc.use_local_subchannel_pool", 1),
)

Answer = TypeVar("Answer")


class Tls(NamedTuple):
    """Files in PEM. ca: of the authority that signed the certificates of etcd's members. cert, key: this client's own,
    when etcd demands one."""

    ca: Path
    cert: Path | None = None
    key: Path | None = None

    def credentials(self) -> grpc.ChannelCredentials:
        """Raises OSError when a file cannot be read."""
        own = [path.read_bytes() if path is not None else None for path in (self.key, self.cert)]
        return grpc.ssl_channel_credentials(self.ca.read_bytes(), *own)


class Endpoint:
    """One address of etcd and its channel."""

    def __init__(self, address: str, credentials: grpc.ChannelCredentials | None) -> None:
        self.address = address
        self.channel = (grpc.aio.insecure_channel(address, options=_OPTIONS) if credentials is None
                        else grpc.aio.secure_channel(address, credentials, options=_OPTIONS))
        self.kv = services.KVStub(self.channel)
        self.lease = services.LeaseStub(self.channel)
        self.maintenance = services.MaintenanceStub(self.channel)
        self.watch = WATCH.stream(self.channel)
        # The service defines a stream. One request on it has one answer, so it may be called as a method.
        self.keep_alive = self.channel.unary_unary(
            "/etcdserverpb.Lease/LeaseKeepAlive", request_serializer=rpc.LeaseKeepAliveRequest.SerializeToString,
            response_deserializer=rpc.LeaseKeepAliveResponse.FromString)
        self.failed_at: float | None = None     # None: it works, as far as is known
        self.problem = ""
        self.closed = False
        self._changing: asyncio.Future[None] | None = None

    async def call(self, what: Callable[[Endpoint, float], Awaitable[Answer]], limit_s: float) -> Answer:
        """Makes a connection if there is none, then what(self, seconds that are left). Raises EtcdError."""
        ends = time.monotonic() + limit_s
        try:
            if not await self._settled(min(limit_s, CONNECT_S)):
                raise EtcdError(Cause.UNREACHABLE, self.address,
                                f"etcd at {self.address}: no connection within {min(limit_s, CONNECT_S):.3g} s")
            # A channel that cannot connect fails the call at once, without sending anything, and says why.
            return await what(self, max(ends - time.monotonic(), 0.001))
        except grpc.RpcError as error:
            raise explain(error, self.address, limit_s=limit_s) from None
        except grpc.aio.UsageError as error:
            raise EtcdError(Cause.UNREACHABLE, self.address, f"etcd at {self.address}: {error}") from None
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if not self.closed or task is None or task.cancelling():
                raise
            raise EtcdError(Cause.BROKEN, self.address,
                            f"etcd at {self.address}: the endpoint was closed meanwhile") from None

    async def _settled(self, limit_s: float) -> bool:
        """Waits until the channel has a connection or cannot get one; whether it has come to either."""
        ends = time.monotonic() + limit_s
        undecided = (grpc.ChannelConnectivity.IDLE, grpc.ChannelConnectivity.CONNECTING)
        while (state := self.channel.get_state(try_to_connect=True)) in undecided:
            # One for all who wait, and never cancelled: gRPC would go on with it, beyond the end of the loop.
            if self._changing is None or self._changing.done():
                self._changing = asyncio.ensure_future(self.channel.wait_for_state_change(state))
                self._changing.add_done_callback(_retrieve)
            left = ends - time.monotonic()
            if left <= 0.0:
                return False
            await asyncio.wait({self._changing}, timeout=left)
        return True

    async def close(self) -> None:
        """Ends all requests there."""
        self.closed = True
        await self.channel.close()
        if self._changing is not None:
            await asyncio.wait({self._changing})
            self._changing.exception()


class Endpoints:
    """All of them. tls: None for connections in the clear. limit_s: for each request, unless it says otherwise."""

    def __init__(self, addresses: Sequence[str], tls: Tls | None, limit_s: float, on_log: Log | None) -> None:
        self.limit_s = limit_s
        self._credentials: grpc.ChannelCredentials | None = None
        self._tls = tls
        self._log = on_log
        self._wanted = _hosts(addresses, tls is not None)
        self._open: dict[str, Endpoint] = {}    # also those that were asked by name only
        self._cluster = 0                       # etcd's number of the cluster, of the first answer
        self._probing: asyncio.Task[None] | None = None
        self._closing: set[asyncio.Task[None]] = set()
        self.closed = False

    @property
    def addresses(self) -> list[str]:
        """host:port, in the order of preference."""
        return list(self._wanted)

    def replace(self, addresses: Sequence[str]) -> None:
        """Uses these from now on. Streams to others end."""
        self._wanted = _hosts(addresses, self._tls is not None)
        for address in self._open.keys() - set(self._wanted):
            self._close(self._open.pop(address))

    def get(self, address: str) -> Endpoint:
        """The endpoint of an address, which need not be in the list. Raises EtcdError after close()."""
        if self.closed:
            raise EtcdError(Cause.CLOSED, address, "the connection to etcd was closed")
        endpoint = self._open.get(address)
        if endpoint is None:
            if self._tls is not None and self._credentials is None:
                try:
                    self._credentials = self._tls.credentials()
                except OSError as error:
                    raise EtcdError(Cause.REFUSED, address, f"the TLS files for etcd cannot be read: {error}") from None
            endpoint = self._open[address] = Endpoint(address, self._credentials)
        return endpoint

    def in_order(self) -> Iterator[Endpoint]:
        """Those that work, in the order of preference; then those that fail, the one that failed longest ago first."""
        every = [self.get(address) for address in self._wanted]
        yield from (endpoint for endpoint in every if endpoint.failed_at is None)
        yield from sorted((endpoint for endpoint in every if endpoint.failed_at is not None),
                          key=lambda endpoint: endpoint.failed_at or 0.0)

    async def ask(self, what: Callable[[Endpoint, float], Awaitable[Answer]], *, repeat: bool,
                  limit_s: float | None = None, first: Endpoint | None = None) -> tuple[Endpoint, Answer]:
        """what(endpoint, seconds) of one endpoint after the other, until one answers; its answer has a header.

        repeat: whether it may be done twice. first: the endpoint to begin with. Raises EtcdError.
        """
        limit = self.limit_s if limit_s is None else limit_s
        ends = time.monotonic() + limit
        pause, error = PAUSE_S[0], None
        while True:
            for endpoint in _beginning(first, self.in_order()):
                left = ends - time.monotonic()
                if left <= 0.0:
                    raise self._none_answered(error, limit)
                try:
                    answer = await endpoint.call(what, self._share(left) if repeat else left)
                    self.check_cluster(endpoint, answer)
                    self._works(endpoint)
                    return endpoint, answer
                except EtcdError as failed:
                    error = failed
                    if failed.leave:
                        self.fails(endpoint, failed)
                    if not failed.again or (failed.sent and not repeat):
                        raise
            if ends - time.monotonic() <= pause:
                raise self._none_answered(error, limit)
            await asyncio.sleep(pause)
            pause = min(pause * 2, PAUSE_S[1])

    def _share(self, left: float) -> float:
        """Of what is left of a request's time, for one endpoint."""
        return min(left, max(left / 2, SHARE_S_MIN)) if len(self._wanted) > 1 else left

    def check_cluster(self, endpoint: Endpoint, answer: Any) -> None:
        """Raises EtcdError when the answer is from another cluster than earlier ones: its revisions mean nothing here.
        """
        number: int = answer.header.cluster_id      # 0: the header is not filled, as that of alarms
        if self._cluster == 0:
            self._cluster = number
        elif number not in (0, self._cluster):
            raise EtcdError(Cause.FOREIGN, endpoint.address,
                            f"etcd at {endpoint.address} belongs to cluster {number:x}, the others to "
                            f"{self._cluster:x}: correct the list of endpoints")

    def _none_answered(self, error: EtcdError | None, limit: float) -> EtcdError:
        """One error for all endpoints; its cause is that of the last one."""
        problems = [endpoint.problem for endpoint in self.in_order() if endpoint.problem]
        if error is not None and len(problems) < 2:
            return error
        return EtcdError(error.cause if error is not None else Cause.LATE, "",
                         f"no endpoint of etcd has answered within {limit:.3g} s: {'; '.join(problems)}")

    # ── endpoints that fail ──────────────────────────────────────────────────────────────────────────────────

    def fails(self, endpoint: Endpoint, error: EtcdError) -> None:
        """Others are asked until a probe succeeds."""
        if self._log is not None and endpoint.failed_at is None and not self.closed:
            self._log("warning", f"etcd {endpoint.address}", str(error), {"endpoint": endpoint.address})
        endpoint.failed_at = time.monotonic()
        endpoint.problem = str(error)
        if (self._probing is None or self._probing.done()) and not self.closed:
            self._probing = asyncio.get_running_loop().create_task(self._probe())

    def _works(self, endpoint: Endpoint) -> None:
        if endpoint.failed_at is None:
            return
        endpoint.failed_at, endpoint.problem = None, ""
        if self._log is not None:
            self._log("info", f"etcd {endpoint.address}", f"etcd at {endpoint.address} answers again",
                      {"endpoint": endpoint.address})

    async def _probe(self) -> None:
        while failing := [endpoint for endpoint in self._open.values()
                          if endpoint.failed_at is not None and endpoint.address in self._wanted]:
            await asyncio.sleep(PROBE_S)
            await asyncio.gather(*(self._probe_one(endpoint) for endpoint in failing))

    async def _probe_one(self, endpoint: Endpoint) -> None:
        try:
            self.check_cluster(endpoint, await endpoint.call(_linearizable, PROBE_LIMIT_S))
        except EtcdError as error:
            if error.leave or error.cause is Cause.CLOSED:
                endpoint.problem = str(error)
                return
        self._works(endpoint)

    # ── end ──────────────────────────────────────────────────────────────────────────────────────────────────

    def _close(self, endpoint: Endpoint) -> None:
        endpoint.closed = True
        task = asyncio.get_running_loop().create_task(endpoint.close())
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    async def close(self) -> None:
        """Ends all requests. May be called twice."""
        self.closed = True
        if self._probing is not None:
            self._probing.cancel()
            await asyncio.wait({self._probing})
            self._probing = None
        while self._open:
            self._close(self._open.popitem()[1])
        if self._closing:
            await asyncio.wait(self._closing)


def _retrieve(future: asyncio.Future[None]) -> None:
    """gRPC raises if the channel was closed meanwhile. Nobody needs that, so asyncio must not report it as lost."""
    if not future.cancelled():
        future.exception()


async def _linearizable(endpoint: Endpoint, limit_s: float) -> Any:
    return await endpoint.kv.Range(rpc.RangeRequest(key=b"\0", count_only=True), timeout=limit_s, metadata=WITH_LEADER)


def _beginning(first: Endpoint | None, order: Iterator[Endpoint]) -> Iterator[Endpoint]:
    """The order, but this one first, unless it fails."""
    if first is not None and first.failed_at is None and not first.closed:
        yield first
    yield from (endpoint for endpoint in order if endpoint is not first or endpoint.failed_at is not None)


def _hosts(addresses: Sequence[str], tls: bool) -> list[str]:
    """host:port of each, without what stands in front. Raises ConfigError."""
    found = []
    for address in addresses:
        scheme, _, host = address.rpartition("://")
        host = host.rstrip("/")
        if scheme not in ("", "http", "https") or not host.rpartition(":")[2].isdigit() or host.startswith(":"):
            raise ConfigError("cluster.etcd.endpoints", f"{address!r} is no endpoint of etcd: host:port is expected")
        if (scheme == "https") > tls:
            raise ConfigError("cluster.etcd.endpoints", f"{address} needs the files of TLS, and none are configured")
        if scheme == "http" and tls:
            raise ConfigError("cluster.etcd.endpoints", f"{address} is without TLS, but files of TLS are configured")
        if host not in found:
            found.append(host)
    if not found:
        raise ConfigError("cluster.etcd.endpoints", "at least one endpoint is needed")
    return found
