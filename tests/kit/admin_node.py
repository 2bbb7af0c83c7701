"""An admin socket with fakes behind it, on a loop of its own thread, for the commands that ask it."""
from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fluxmq.admin.socket import AdminSocket
from kit.fake_queues import FakeQueues

__all__ = ["AdminNode"]


class AdminNode:
    """ports: further arguments of AdminSocket."""

    def __init__(self, path: Path, **ports: Any) -> None:
        self.path = path
        self.queues = FakeQueues()
        self.loop = asyncio.new_event_loop()
        self.server = AdminSocket(path, self.queues, **ports)
        self._thread = threading.Thread(target=self.loop.run_forever, daemon=True)

    def start(self) -> None:
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self.server.start(), self.loop).result(30)

    def stop(self) -> None:
        asyncio.run_coroutine_threadsafe(self.server.stop(), self.loop).result(30)
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(30)
        self.loop.close()

    def do(self, function: Callable[[], Any]) -> Any:
        """Calls something on the loop, as all that touches queues must be."""
        async def call() -> Any:
            return function()

        return asyncio.run_coroutine_threadsafe(call(), self.loop).result(30)
