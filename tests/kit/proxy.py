"""A TCP proxy whose network errs as a test says: connections are cut, directions stand still, bytes are late.

    with Proxy(("127.0.0.1", 1883)) as proxy:
        …                               # connect to proxy.address
        proxy.stall(TO_TARGET)          # this direction stands still; the other goes on
        proxy.resume()
        proxy.cut()                     # every connection is reset
        proxy.refuse()                  # and new ones are reset at once, until resume()

It runs in a thread, so tests with and without an event loop use it, and brokers in other processes. At most BUFFER
bytes of a direction are in the proxy; beyond that TCP stops the sender, as it does in a network that stands still.
"""
from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import threading
from collections import deque
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

__all__ = ["FROM_TARGET", "TO_TARGET", "Proxy"]

TO_TARGET, FROM_TARGET = "to target", "from target"
BOTH = (TO_TARGET, FROM_TARGET)
CHUNK = 64 * 1024
BUFFER = 256 * 1024
# close() then sends a reset and drops what the kernel has.
RESET = struct.pack("ii", 1, 0)


class _Lane:
    """One direction of one connection."""

    def __init__(self, proxy: Proxy, direction: str, source: socket.socket, sink: socket.socket) -> None:
        self.proxy, self.direction, self.source, self.sink = proxy, direction, source, sink
        self.waiting: deque[tuple[float, bytes]] = deque()      # when it is due, bytes; b"": the end
        self.size = 0
        self.changed = asyncio.Event()

    async def until(self, ready: Callable[[], bool]) -> None:
        while not ready():
            self.changed.clear()
            await self.changed.wait()

    async def take(self) -> None:
        loop = asyncio.get_running_loop()
        data = b"?"
        while data:
            await self.until(lambda: self.size < BUFFER)
            data = await loop.sock_recv(self.source, CHUNK)
            self.size += len(data)
            self.waiting.append((loop.time() + self.proxy.delays[self.direction], data))
            self.changed.set()

    async def give(self) -> None:
        loop = asyncio.get_running_loop()
        proxy, direction = self.proxy, self.direction
        while True:
            await self.until(lambda: bool(self.waiting) and direction not in proxy.stalled)
            due, data = self.waiting[0]
            if due > loop.time():
                await asyncio.sleep(due - loop.time())
                continue                # it may stand still by now
            self.waiting.popleft()
            if not data:
                with contextlib.suppress(OSError):
                    self.sink.shutdown(socket.SHUT_WR)
                return
            left = proxy.left[direction]
            if left is not None:
                data = data[:left]
                proxy.left[direction] = left - len(data)
            await loop.sock_sendall(self.sink, data)
            proxy.carried[direction] += len(data)
            self.size -= len(data)
            self.changed.set()
            if proxy.left[direction] == 0:
                proxy.reset_all()
                return


class Proxy:
    """See the top. Methods may be called from any thread, and have taken effect when they return."""

    def __init__(self, target: tuple[str, int], listen: tuple[str, int] = ("127.0.0.1", 0)) -> None:
        self.target = target
        self.delays = dict.fromkeys(BOTH, 0.0)
        self.stalled: set[str] = set()
        self.left: dict[str, int | None] = dict.fromkeys(BOTH)
        self.carried = dict.fromkeys(BOTH, 0)
        self.accepted = 0
        self.refused = 0
        self._refusing = False
        self._connections: dict[asyncio.Task[None], tuple[list[_Lane], list[socket.socket]]] = {}
        self._listener = socket.create_server(listen)
        self._listener.setblocking(False)
        self.host, self.port = self._listener.getsockname()[:2]
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="proxy", daemon=True)
        self._thread.start()

    @property
    def address(self) -> str:
        return f"{self.host}:{self.port}"

    @property
    def connections(self) -> int:
        """How many there are."""
        return len(self._connections)

    def stall(self, *directions: str) -> None:
        """Nothing is carried there, on connections that exist and on new ones. None named: both."""
        self._do(lambda: self.stalled.update(directions or BOTH))

    def delay(self, seconds: float, *directions: str) -> None:
        """What comes from now on is carried so much later."""
        self._do(lambda: self.delays.update(dict.fromkeys(directions or BOTH, seconds)))

    def cut(self) -> None:
        """Resets every connection; what is in the proxy is lost."""
        self._do(self.reset_all)

    def cut_after(self, size: int, direction: str) -> None:
        """Resets every connection when so many further bytes were carried there."""
        self._do(lambda: self.left.update({direction: size}))

    def refuse(self) -> None:
        """Resets new connections at once."""
        self._do(lambda: setattr(self, "_refusing", True))

    def resume(self) -> None:
        """Everything is carried at once again, and new connections are accepted."""
        def normal() -> None:
            self.stalled.clear()
            self._refusing = False
            for direction in BOTH:
                self.delays[direction], self.left[direction] = 0.0, None
        self._do(normal)

    def adopt(self, client: socket.socket) -> None:
        """Carries a connection that somebody else has accepted."""
        client.setblocking(False)
        self._do(lambda: self._begin(client))

    def close(self) -> None:
        if self._loop.is_running():
            self._do(self.reset_all)
            self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        self.close()

    # ── in the thread ────────────────────────────────────────────────────────────────────────────────────────

    def reset_all(self) -> None:
        """In the proxy's own thread only."""
        self.left = dict.fromkeys(BOTH)
        for task, (_, sockets) in list(self._connections.items()):
            for end in sockets:
                with contextlib.suppress(OSError):
                    end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
            task.cancel()

    def _do(self, change: Callable[[], Any]) -> None:
        async def changed() -> None:
            change()
            for lanes, _ in self._connections.values():
                for lane in lanes:
                    lane.changed.set()
        asyncio.run_coroutine_threadsafe(changed(), self._loop).result()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        serving = self._loop.create_task(self._serve())
        try:
            self._loop.run_forever()
        finally:
            tasks = [serving, *self._connections]
            for task in tasks:
                task.cancel()
            self._loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
            self._listener.close()
            self._loop.close()

    async def _serve(self) -> None:
        while True:
            client, _ = await self._loop.sock_accept(self._listener)
            client.setblocking(False)
            self._begin(client)

    def _begin(self, client: socket.socket) -> None:
        if self._refusing:
            self.refused += 1
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
            client.close()
            return
        self.accepted += 1
        sockets, lanes = [client], list[_Lane]()
        task = self._loop.create_task(self._connection(sockets, lanes))
        self._connections[task] = (lanes, sockets)
        task.add_done_callback(self._connections.pop)

    async def _connection(self, sockets: list[socket.socket], lanes: list[_Lane]) -> None:
        client = sockets[0]
        try:
            target = socket.socket()
            sockets.append(target)
            target.setblocking(False)
            await self._loop.sock_connect(target, self.target)
            for end in sockets:
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            lanes += [_Lane(self, TO_TARGET, client, target), _Lane(self, FROM_TARGET, target, client)]
            async with asyncio.TaskGroup() as group:
                for lane in lanes:
                    group.create_task(lane.take())
                    group.create_task(lane.give())
        except* OSError:
            # One end has reset it, so the other gets a reset too.
            for end in sockets:
                with contextlib.suppress(OSError):
                    end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        finally:
            for end in sockets:
                end.close()
