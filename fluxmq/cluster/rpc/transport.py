"""The transport over gRPC: a listener, a connection for each stream that is dialled, one for calls to each node.

Streams, and what this node serves, are HTTP/2 of our own (connection, _core/peer/http2): grpc.aio has threads, and a
message costs about 100 µs of processor at either end. Calls of other nodes go over grpc.aio.
"""
from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import aclosing
from typing import Any

import grpc.aio

from fluxmq._core.errors import UsageError
from fluxmq.cluster.ports import CallFailed, CallHandler, Log, StreamHandler
from fluxmq.cluster.rpc.calling import ask
from fluxmq.cluster.rpc.channels import Channels, Settings, open_channel
from fluxmq.cluster.rpc.incoming import Service
from fluxmq.cluster.rpc.outgoing import Outgoing
from fluxmq.cluster.rpc.server import Server
from fluxmq.cluster.rpc.tls import Tls, client_context, server_context
from fluxmq.model.address import parse_address

__all__ = ["GrpcTransport"]

_STOPPING = "this node is stopping"


class GrpcTransport:
    """cluster.ports.Transport. All methods are for the loop's thread, and all but __init__ for the running loop."""

    def __init__(self, address: str, *, tls: Tls | None = None, settings: Settings | None = None,
                 log: Log = lambda level, cause, text, fields: None) -> None:
        """address: what start() listens on, as in model/address. Without tls anyone who reaches it is a node. log: as
        Broker's on_log. Raises ssl.SSLError for certificates that are none."""
        self._settings = settings or Settings()
        self._server = Server(parse_address(address), keepalive_s=self._settings.keepalive_s,
                              hello_s=self._settings.hello_s, context=None, start=self._start, log=log)
        self._tls: Tls | None = None
        self._dialling = None if tls is None else client_context(tls)
        if tls is not None:
            self.renew(tls)
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
        self._service = Service(calls, streams, self._settings.hello_s, self._settings.frame_bytes_max, self._start)
        self._server.start(self._service)
        self.address = str(self._server.address)

    @property
    def problem(self) -> str:
        """See Transport."""
        return self._server.problem

    def renew(self, tls: Tls) -> None:
        """Other certificates for connections from now on. Those that exist stay. Raises ssl.SSLError for texts that are
        none; then nothing has changed."""
        dialling, serving = client_context(tls), server_context(tls)
        self._tls, self._dialling, self._server.context = tls, dialling, serving

    def dial(self, address: str, hello: bytes) -> Outgoing:
        """See Transport. After stop() the stream is closed from the beginning."""
        if self._handler is None:
            raise UsageError("the transport is not started")
        stream = Outgoing(address, hello, self._settings, self._handler)
        if self._stopped:
            stream.close()
        else:
            self._streams.add(stream)
            self._start(self._serve(stream))
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
        await self._server.stop()
        while self._tasks:
            await asyncio.wait(self._tasks)
        self._service = None

    def _channel(self, address: str) -> grpc.aio.Channel:
        return open_channel(address, self._settings, self._tls)

    async def _serve(self, stream: Outgoing) -> None:
        try:
            await stream.serve(self._dialling)
        finally:
            self._streams.discard(stream)

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
