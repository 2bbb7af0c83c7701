"""The port on which other nodes reach this one: a server of grpc.aio, and another one in its place when it has ended.

The loop in which grpc.aio takes calls ends with the first exception in it, such as the UnicodeDecodeError of a `:path`
that is not UTF-8, which anybody can send who may connect. The server then closes its port for good, and tells nobody.

    start() ──► LISTENING ──its loop has ended──► DEAF ──another server has the port──► LISTENING
                    └──────────────── stop() ──────┴──► STOPPED

A server whose loop has ended takes no calls, but goes on with those that it has. So the streams of other nodes live on
there; only what comes meanwhile is refused a connection, and comes again.
"""
from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import grpc.aio

from fluxmq.cluster.ports import BindFailed, Log
from fluxmq.model.address import Address

__all__ = ["Listener"]

LOOK_S = 0.25  # between two looks at the server; what gRPC logs when its loop ends makes the next look come at once
RETRY_S = 0.05  # gRPC frees the port some time after the server has ended
TOLD_S = 1.0  # for how long the port may be taken before that is a line in the log
# How long the calls of a server that has ended may go on: a stream lives as long as both of its nodes do.
LIVE_ON_S = 86_400.0
# Servers that have ended, whose calls go on. Further ones end with their calls, so that nobody makes them pile up.
FORMER_MAX = 8

_GRPC = logging.getLogger("grpc._cython.cygrpc")


class Listener:
    """open_: makes a server that listens on an address, not started yet, and says with which port; raises BindFailed.
    start: runs a coroutine beside. log: as Broker's on_log.

    address: with the port that was chosen, once it is started. problem: why no other node gets a new connection to this
    one at present; "": it does. restarts: how often another server had to be made.
    """

    def __init__(self, address: Address, open_: Callable[[Address], Awaitable[tuple[grpc.aio.Server, int]]],
                 start: Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]], log: Log) -> None:
        self.address = address
        self.problem = ""
        self.restarts = 0
        self._open = open_
        self._start = start
        self._log = log
        self._server: grpc.aio.Server | None = None
        self._former: list[grpc.aio.Server] = []
        self._watching: asyncio.Task[None] | None = None
        self._news = asyncio.Event()
        self._reports = _ServerReports(self._news.set)

    async def start(self) -> None:
        """Listens. Raises BindFailed."""
        await self._listen()
        self._reports.open()
        self._watching = self._start(self._watch())

    async def stop(self) -> None:
        """Ends all calls, and the servers. May be called twice, and without start()."""
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.wait([self._watching])
        servers = [*self._former, *([] if self._server is None else [self._server])]
        self._former, self._server = [], None
        for server in servers:
            await _end(server, None)
        self._reports.close()

    async def _listen(self) -> None:
        server, port = await self._open(self.address)
        self.address = Address(self.address.host, port)
        self._server = server
        await server.start()

    async def _watch(self) -> None:
        while (server := self._server) is not None:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._news.wait(), LOOK_S)
            self._news.clear()
            if (why := await _why_ended(server)) is not None:
                self._retire(server, why)
                await self._listen_again()

    def _retire(self, server: grpc.aio.Server, why: str) -> None:
        self._server = None
        self.restarts += 1
        self.problem = f"the listener at {self.address} for other nodes has ended ({why}), and is made anew"
        self._log("error", "transport listener", self.problem, {"restarts": self.restarts})
        live_on = len(self._former) < FORMER_MAX
        if live_on:
            self._former.append(server)
        self._start(self._finish(server, LIVE_ON_S if live_on else None))

    async def _finish(self, server: grpc.aio.Server, grace_s: float | None) -> None:
        await _end(server, grace_s)
        if server in self._former:
            self._former.remove(server)

    async def _listen_again(self) -> None:
        tries, told = 0, False
        while self._server is None:
            try:
                await self._listen()
            except BindFailed as error:
                tries += 1
                if not told and tries * RETRY_S >= TOLD_S:
                    told = True
                    self.problem = f"no other node reaches this one: {error}. It goes on trying; end what listens there"
                    self._log("error", "", self.problem, {})
                await asyncio.sleep(RETRY_S)
        self.problem = ""
        self._log("info", "transport listens", "the listener for other nodes is there again",
                  {"address": str(self.address)})


async def _why_ended(server: grpc.aio.Server) -> str | None:
    """What has ended a server by itself; None: it takes calls."""
    try:
        await server.wait_for_termination(0.0)      # what it returns depends on the version of grpcio
    except asyncio.CancelledError:
        raise
    except BaseException as error:      # whatever was raised in its loop
        return str(error) or type(error).__name__
    return None


async def _end(server: grpc.aio.Server, grace_s: float | None) -> None:
    """When its calls are over, or their time is."""
    try:
        await server.stop(grace_s)
    except asyncio.CancelledError:
        raise
    except BaseException:       # the first stop() of a server raises what has ended its loop, and stops nothing
        await server.stop(grace_s)


class _ServerReports(logging.Filter):
    """What grpc.aio says about the loop of a server, or what others have sent, by its log and by the event loop's
    handler of exceptions. It reaches nobody: the listener says what has ended, and a peer that sends what cannot be
    read must not write pages into the log of this node."""

    def __init__(self, ended: Callable[[], None]) -> None:
        super().__init__()
        self._ended = ended
        self._loop: asyncio.AbstractEventLoop | None = None
        self._before: Callable[[asyncio.AbstractEventLoop, dict[str, Any]], object] | None = None

    def open(self) -> None:
        self._loop = loop = asyncio.get_running_loop()
        self._before = loop.get_exception_handler()
        loop.set_exception_handler(self._handle)
        _GRPC.addFilter(self)

    def close(self) -> None:
        if self._loop is not None:
            _GRPC.removeFilter(self)
            if self._loop.get_exception_handler() == self._handle:      # else it only passes on what comes
                self._loop.set_exception_handler(self._before)
            self._loop = None

    def filter(self, record: logging.LogRecord) -> bool:
        """Called by the logger of grpc.aio."""
        if isinstance(record.msg, BaseException):       # what has ended the loop of a server
            self._ended()
            return False
        return not str(record.msg).startswith("Invalid encoding on")     # a value of the metadata

    def _handle(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        if self._loop is not None and _is_of_a_server(context.get("exception")):
            self._ended()       # of the task in which it has shut itself down, in vain
        elif self._before is not None:
            self._before(loop, context)
        else:
            loop.default_exception_handler(context)


def _is_of_a_server(error: BaseException | None) -> bool:
    trace = None if error is None else error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_name == "_server_main_loop":
            return True
        trace = trace.tb_next
    return False
