"""A whole broker in a thread of this process, for tests that must reach what no client can: `call` runs something on
the loop's thread, where the broker lives."""
from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from pathlib import Path
from typing import TypeVar

from fluxmq.access.authority import Authority
from fluxmq.app.config import load
from fluxmq.app.server import Server
from fluxmq.engine.ports.cluster import Cluster
from kit.watch import wait_until

__all__ = ["Node"]

PATIENCE_S = 20.0  # only a failing test needs it
T = TypeVar("T")


class Node:
    """directory: where data goes. settings: `key.path` → value, as for `fluxmq run --set`. authority, cluster: as
    Server's."""

    def __init__(self, directory: Path, settings: dict[str, object] | None = None,
                 authority: Authority | None = None, cluster: Cluster | None = None) -> None:
        given = {"server.mqtt.tcp.plain.addr": "127.0.0.1:0", "server.mqtt.websocket.plain.addr": "",
                 "server.amqp091.plain.addr": "", "server.health_enabled": "false",
                 "storage.dir": directory / "data", "broker.sys_interval": "0"} | (settings or {})
        self.directory = directory
        self.config, _ = load(sets=[f"{name}={value}" for name, value in given.items()])
        self.server: Server
        self._authority = authority
        self._cluster = cluster
        self._loop: asyncio.AbstractEventLoop
        self._ready: Future[None] = Future()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._main()))
        self._thread.start()
        self._ready.result(PATIENCE_S)

    async def _main(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.server = Server(self.config, self._authority, self._cluster)
        try:
            self.server.initialize()
            self.server.keeper.quiet_ms = 0     # a checkpoint comes when a test asks for one, however long it takes
            await self.server.start()
            self._ready.set_result(None)
            await self.server.stopped.wait()
        except BaseException as error:
            if not self._ready.done():
                self._ready.set_exception(error)
            raise
        finally:
            await self.server.stop()

    def listens(self, slot: str) -> tuple[str, int]:
        """The address of a listener, such as `mqtt.websocket.plain`."""
        [bound] = [bound for path, _, bound in self.server.listeners.opened if path == f"server.{slot}"]
        return bound[0]

    @property
    def address(self) -> tuple[str, int]:
        return self.server.listeners.opened[0][2][0]

    def call(self, what: Callable[[Server], T]) -> T:
        """Runs it on the loop's thread; its result."""
        result: Future[T] = Future()

        def run() -> None:
            try:
                result.set_result(what(self.server))
            except BaseException as error:
                result.set_exception(error)

        self._loop.call_soon_threadsafe(run)
        return result.result(PATIENCE_S)

    def wait(self, what: Callable[[Server], Coroutine[object, object, T]]) -> T:
        """Awaits it on the loop; its result."""
        return asyncio.run_coroutine_threadsafe(what(self.server), self._loop).result(PATIENCE_S)

    def settle(self) -> None:
        """Until no client is connected, and the journal has all that clients did and what their ends did."""
        wait_until(lambda: not self.call(lambda server: server.poller.connections))
        self.call(lambda server: server.hub.ledger.submit())
        wait_until(lambda: self.call(lambda server: server.store.journal.durable == server.store.journal.gathering - 1))

    def stop(self) -> None:
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self.server.stopped.set)
            self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive()
