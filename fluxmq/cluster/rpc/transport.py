"""The transport over gRPC: a listener, a connection for each stream that is dialled, one for calls to each node.

grpc.aio has threads of its own. They tell the event loop of what has ended by a byte to a socket that the loop watches,
so a turn of the broker that lingers notices (decision 0009). A message costs about 100 µs of processor time at either
end, whatever its size up to some 64 KiB; so what is sent is batched.
"""
from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Coroutine
from contextlib import aclosing
from typing import Any

import grpc
import grpc.aio

from fluxmq._core.errors import UsageError
from fluxmq.cluster.ports import BindFailed, CallFailed, CallHandler, Log, StreamHandler
from fluxmq.cluster.rpc.channels import (
    RPCS_MAX,
    Channels,
    Settings,
    Tls,
    open_channel,
    server_credentials,
    server_options,
)
from fluxmq.cluster.rpc.incoming import Service
from fluxmq.cluster.rpc.listening import Listener
from fluxmq.cluster.rpc.outgoing import Outgoing, ask
from fluxmq.model.address import Address, parse_address

__all__ = ["GrpcTransport"]

_STOPPING = "this node is stopping"


class GrpcTransport:
    """cluster.ports.Transport. All methods are for the loop's thread, and all but __init__ for the running loop."""

    def __init__(self, address: str, *, tls: Tls | None = None, settings: Settings | None = None,
                 log: Log = lambda level, cause, text, fields: None) -> None:
        """address: what start() listens on, as in model/address. Without tls anyone who reaches it is a node. log: as
        Broker's on_log."""
        self._tls = tls
        self._settings = settings or Settings()
        self._renewed: Tls | None = None
        self._listener = Listener(parse_address(address), self._open, self._start, log)
        self._service: Service | None = None
        self._handler: StreamHandler | None = None
        self._channels = Channels(self._channel, self._start)
        self._streams: set[Outgoing] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._stopped = False
        self.address = address

    async def start(self, calls: CallHandler, streams: StreamHandler) -> None:
        """See Transport. `address` then has the port that was chosen."""
        self._handler = streams
        self._service = Service(calls, streams, self._settings.hello_s, self._start)
        await self._listener.start()
        self.address = str(self._listener.address)

    async def _open(self, address: Address) -> tuple[grpc.aio.Server, int]:
        """A server there, not started yet, and its port. Raises BindFailed."""
        assert self._service is not None
        server = grpc.aio.server(options=server_options(self._settings), maximum_concurrent_rpcs=RPCS_MAX)
        server.add_generic_rpc_handlers((self._service.handlers(),))
        target = str(Address(address.host or "::", address.port))
        try:
            if self._tls is None:
                return server, server.add_insecure_port(target)
            return server, server.add_secure_port(target, server_credentials(self._tls, self._take_renewed))
        except RuntimeError as error:
            await server.stop(None)
            raise BindFailed(f"cannot listen on {address}: {_reason(*address) or error}") from None

    @property
    def problem(self) -> str:
        """See Transport."""
        return self._listener.problem

    @property
    def restarts(self) -> int:
        """See Transport."""
        return self._listener.restarts

    def renew(self, tls: Tls) -> None:
        """Other certificates for connections from now on. Those that exist stay."""
        self._tls = self._renewed = tls

    def dial(self, address: str, hello: bytes) -> Outgoing:
        """See Transport. After stop() the stream is closed from the beginning."""
        if self._handler is None:
            raise UsageError("the transport is not started")
        stream = Outgoing(address, hello, self._settings, self._handler)
        if self._stopped:
            stream.close()
        else:
            self._streams.add(stream)
            self._start(self._serve(stream, address))
        return stream

    async def call(self, address: str, method: str, body: bytes, limit_s: float) -> AsyncIterator[bytes]:
        """See Transport. Raises UsageError for a body over the limit."""
        if len(body) > self._settings.frame_bytes_max:
            raise UsageError(f"a body of {len(body)} bytes, over {self._settings.frame_bytes_max}")
        if self._stopped:
            raise CallFailed(_STOPPING, reached=False)
        shared = self._channels.take(address)
        try:
            async with aclosing(ask(shared.channel, address, method, body, limit_s,
                                    lambda connected: self._channels.give_back(shared, connected))) as parts:
                async for part in parts:
                    yield part
        except CallFailed as error:
            raise CallFailed(_STOPPING if self._stopped else str(error), reached=error.reached) from None

    async def stop(self) -> None:
        """See Transport. May be called twice, and without start()."""
        self._stopped = True
        if self._service is not None:
            self._service.stop()
        for stream in list(self._streams):
            stream.close()
        await self._channels.close()
        await self._listener.stop()
        while self._tasks:
            await asyncio.wait(self._tasks)
        self._service = None

    def _channel(self, address: str) -> grpc.aio.Channel:
        return open_channel(address, self._settings, self._tls)

    async def _serve(self, stream: Outgoing, address: str) -> None:
        try:
            await stream.serve(self._channel(address))
        finally:
            self._streams.discard(stream)

    def _take_renewed(self) -> Tls | None:
        """In a thread of gRPC, for each handshake."""
        renewed, self._renewed = self._renewed, None
        return renewed

    def _start(self, coroutine: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            task.get_loop().call_exception_handler(
                {"message": "a task of the transport failed", "exception": error, "task": task})


def _reason(host: str, port: int) -> str:
    """Why an address cannot be bound. gRPC does not say, so this tries again."""
    family = socket.AF_INET6 if ":" in host or not host else socket.AF_INET
    with socket.socket(family) as trial:
        trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            trial.bind((host, port))
        except OSError as error:
            return error.strerror or str(error)
    return ""
