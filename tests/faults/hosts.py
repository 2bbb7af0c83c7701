"""Those who run the broker of a story: in this process, or in one of its own."""
from __future__ import annotations

import asyncio
import contextlib
import ctypes
import functools
import gc
import logging
import os
import random
import selectors
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
from faults.story import Refused, Wrong
from kit.faultydisk import FaultyDisk
from kit.journals import Ops
from kit.powercut import PowerCut

from fluxmq._core.errors import FluxError
from fluxmq.app import queue_setup, recording
from fluxmq.app import server as server_module
from fluxmq.app.config import load
from fluxmq.app.server import Server
from fluxmq.model import limits
from fluxmq.model.config import Config
from fluxmq.model.queues import QueueSpec
from fluxmq.storage import segment_writer

__all__ = ["QUEUES", "LocalHost", "QuickLoop", "prepare_process", "settle", "small_files"]

SPEED = 50                          # how much faster the loop's clock runs than the wall's
TURN_S, LONG_TURN_S = 0.0002, 0.004
PATIENCE_SECONDS = 60.0             # only a broker that hangs needs them
RESERVE_BYTES = 1 << 16
FILE_BYTES = 1 << 15                # of a journal file: some for each life
SEGMENT_BYTES = 4096                # some files for each log
SYNC_EACH_MAX = 3                   # logs of a checkpoint: beyond that one call for all of them
SMALL_BYTES = 300                   # and yet messages of some that stay in the view
QUEUES = ({"name": "c"}, {"name": "s", "type": "stream"}, {"name": "d"})


class _QuickSelector(selectors.EpollSelector):
    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        return super().select(timeout / SPEED if timeout is not None and timeout > 0 else timeout)


class QuickLoop(asyncio.SelectorEventLoop):
    """An event loop whose seconds are short: what waits for room on a disk tries as often as in production, and a
    test has no time to wait for it."""

    def __init__(self) -> None:
        super().__init__(_QuickSelector())

    def time(self) -> float:
        return super().time() * SPEED


class _Server(Server):
    """Keeps what it ended with."""

    failure: FluxError | None = None

    def fail(self, error: FluxError) -> None:
        self.failure = self.failure or error
        super().fail(error)


@functools.cache
def _config() -> Config:
    given = {"server.mqtt.tcp.plain.addr": "127.0.0.1:0", "server.mqtt.websocket.plain.addr": "",
             "server.amqp091.plain.addr": "", "server.health_enabled": "false", "server.admin_socket": "off",
             "broker.sys_interval": "0"}
    return load(sets=[f"{name}={value}" for name, value in given.items()])[0]


class LocalHost:
    """The broker as `fluxmq run` builds it, in this process, on a loop whose clock is quick.

    place: what is in `place/data` is what the broker finds. disk: what this process was preloaded with. cut: as well,
    or None.
    """

    turns_max = 3_000

    def __init__(self, loop: QuickLoop, place: Path, disk: FaultyDisk, cut: PowerCut | None) -> None:
        self.loop, self.place, self.disk, self.cut = loop, place, disk, cut
        self.server: _Server | None = None
        self.accidents: list[str] = []
        self.turns = 0
        loop.set_exception_handler(self._on_accident)

    def _on_accident(self, _loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        self.accidents.append(f"{context.get('message')}: {context.get('exception')!r}")

    # ── as the story wants it ────────────────────────────────────────────────────────────────────────────

    @property
    def address(self) -> tuple[str, int]:
        assert self.server is not None
        return self.server.listeners.opened[0][2][0]

    @property
    def ended(self) -> str | None:
        if self.accidents:
            raise Wrong(f"an accident: {self.accidents[0]}")
        if self.server is None or not self.server.stopped.is_set():
            return None
        return str(self.server.failure)

    @property
    def checkpoints(self) -> int:
        assert self.server is not None
        return self.server.keeper.checkpoints

    def start(self) -> None:
        config = _config()
        storage = msgspec.structs.replace(config.storage, dir=str(self.place / "data"))
        self._run(self._start(msgspec.structs.replace(config, storage=storage)))

    async def _start(self, config: Config) -> None:
        server = self.server = _Server(config)
        try:
            server.initialize()
            await server.start()
            for queue in QUEUES:
                server.queues.manager.declare(QueueSpec(**queue))
            server.keeper.file_bytes = 1 << 40      # checkpoints are taken when the story says so
        except FluxError as error:
            await self._end()
            raise Refused(str(error)) from None
        except BaseException as error:
            with contextlib.suppress(Exception):
                await self._end()
            raise Wrong(f"the start failed with {error!r}, which tells an operator nothing") from error

    def turn(self) -> None:
        # Who waits for so long waits for another thread, or for ever.
        self.turns += 1
        self.loop.call_later((TURN_S if self.turns < 1000 else LONG_TURN_S) * SPEED, self.loop.stop)
        self.loop.run_forever()

    def begin_checkpoint(self) -> None:
        assert self.server is not None
        self.server.keeper.file_bytes = 0
        self.server.keeper.tick()
        self.server.keeper.file_bytes = 1 << 40

    def declare(self, queue: str) -> None:
        self._in_turn(lambda server: server.queues.manager.declare(QueueSpec(name=queue)))

    def delete(self, queue: str) -> None:
        self._in_turn(lambda server: server.queues.manager.delete((b"/", queue.encode()))
                      if (b"/", queue.encode()) in server.queues.manager.queues else None)

    def _in_turn(self, what: Callable[[Server], object]) -> None:
        async def turn() -> None:
            assert self.server is not None
            what(self.server)

        self.loop.run_until_complete(turn())

    # ── the ends ─────────────────────────────────────────────────────────────────────────────────────────

    def stop(self) -> str:
        """As SIGTERM does. Returns what it failed with, "" if it did not."""
        try:
            self._run(self._end())
        except FluxError as error:
            return str(error)
        return ""

    async def _end(self) -> None:
        server, self.server = self.server, None
        if server is not None:
            await server.stop()

    def crash(self, how: str, chance: random.Random) -> None:
        """Leaves what a kill, or a loss of power, would leave at this instant, and takes the broker down."""
        left = self.place.with_name(f"{self.place.name}+")
        with self._frozen():
            if how == "kill" or self.cut is None:
                shutil.copytree(self.place, left)
                if self.cut is not None:
                    self.cut.moved(self.place, left)
            else:
                self.cut.restore(left, torn=chance if how == "torn" else None, below=self.place)
        phase, self.disk.phase = self.disk.phase, ""
        self.stop()
        self.accidents.clear()
        shutil.rmtree(self.place)
        left.rename(self.place)
        if self.cut is not None and how != "kill":
            settle(self.place)
        self.disk.phase = phase

    @contextlib.contextmanager
    def _frozen(self) -> Iterator[None]:
        """Threads of ours that are about to change something on the disk wait."""
        library = ctypes.CDLL(None)
        library.faultydisk_freeze(1)
        try:
            yield
        finally:
            library.faultydisk_freeze(0)

    def _run(self, work: Any) -> None:
        async def limited() -> None:
            try:
                await asyncio.wait_for(work, PATIENCE_SECONDS * SPEED)
            except TimeoutError:
                raise Wrong("the broker neither starts nor ends") from None

        self.loop.run_until_complete(limited())


def settle(place: Path) -> None:
    """Everything there is on the medium."""
    for directory, _, names in os.walk(place):
        for name in [*names, "."]:
            fd = os.open(os.path.join(directory, name), os.O_RDONLY)
            os.fsync(fd)
            os.close(fd)


journal_ops: Ops | None = None          # planted.py has its own


def small_files() -> None:
    """The files of all brokers of this process are small."""
    limits.QUEUE_RESERVE_BYTES = RESERVE_BYTES                          # type: ignore[misc]
    limits.QUEUE_SMALL_BYTES = SMALL_BYTES                              # type: ignore[misc]
    segment_writer._SYNC_EACH_MAX = SYNC_EACH_MAX                       # type: ignore[attr-defined]
    store, segments = server_module.RocksStore, queue_setup.SegmentStore

    def small_store(path: Path, **given: Any) -> Any:
        ops = {"file_ops": journal_ops.address} if journal_ops is not None else {}
        return store(path, **given | {"file_bytes": FILE_BYTES} | ops)

    def small_segments(path: Path, **given: Any) -> Any:
        return segments(path, **given | {"segment_bytes": SEGMENT_BYTES})

    server_module.RocksStore = small_store                              # type: ignore[misc,assignment]
    queue_setup.SegmentStore = small_segments                           # type: ignore[misc,assignment]


def prepare_process() -> None:
    """Many brokers, one after the other: small files, and nothing that takes time and is not asked for."""
    small_files()
    gc.set_threshold(*server_module.GC_THRESHOLDS)
    poller = server_module.Poller
    server_module.Poller = lambda hub: poller(hub, 0)                   # type: ignore[misc,assignment]
    recording.show = lambda *_: ""                                  # type: ignore[misc,assignment]
    logging.getLogger().handlers[:] = [logging.NullHandler()]
