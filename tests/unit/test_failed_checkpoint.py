"""A checkpoint that fails, whatever it fails with, costs nothing: the journal stays, the view is left alone, the node
ends, and the next start has everything."""
from __future__ import annotations

import asyncio
import errno
import os
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from kit.journals import Ops
from kit.stored_node import StoredNode

from fluxmq._core.errors import ShortageError, StorageError, UsageError
from fluxmq._core.testing.probes import pump_queues
from fluxmq.engine import durability
from fluxmq.engine.queues.recovery.store import QueueExport
from fluxmq.model.queues import QueueSpec
from fluxmq.storage.segment_files import FileOps

CALLS = ("open", "pwrite", "fdatasync", "mkdir", "sync_directory")


class Disk(FileOps):
    """Segments' calls, one of which fails once."""

    syncfs_reports = True

    def __init__(self) -> None:
        self.failing: tuple[str, int] | None = None

    def _call(self, name: str) -> None:
        if self.failing is not None and self.failing[0] == name:
            code, self.failing = self.failing[1], None
            raise OSError(code, os.strerror(code))

    def open(self, path: Path, create: bool) -> int:
        self._call("open")
        return super().open(path, create)

    def pwrite(self, fd: int, data: bytes, at: int) -> None:
        self._call("pwrite")
        super().pwrite(fd, data, at)

    def fdatasync(self, fd: int) -> None:
        self._call("fdatasync")
        super().fdatasync(fd)

    def mkdir(self, path: Path) -> None:
        self._call("mkdir")
        super().mkdir(path)

    def unlink(self, path: Path) -> None:
        self._call("unlink")
        super().unlink(path)

    def sync_directory(self, path: Path) -> None:
        self._call("sync_directory")
        super().sync_directory(path)


class Node(StoredNode):
    """With work for a checkpoint; a byte in the journal is enough for one."""

    def __init__(self, directory: Path, ops: Ops | None = None) -> None:
        self.disk = Disk()
        super().__init__(directory, int.from_bytes(os.urandom(7), "big"), file_ops=ops.address if ops else 0, grown=1,
                         segment_bytes=1500, ops=self.disk)

    def work(self, round_: int) -> None:
        """Everything that a checkpoint takes over: new, changed and ended."""
        if not round_:
            self.broker.connect(b"c", version=5, clean_start=False, expiry_s=1000, keep_alive_s=0, will=None,
                                username=None, connection=object())
            self.broker.subscribe(self.broker.sessions[b"/", b"c"], b"t", 1, 0)
        self.broker.connect(b"brief%d" % round_, version=5, clean_start=False, expiry_s=1000, keep_alive_s=0, will=None,
                            username=None, connection=object())
        if round_:
            self.broker.end_session(self.broker.sessions[b"/", b"brief%d" % (round_ - 1)])
            self.manager.delete((b"/", b"brief%d" % (round_ - 1)))
        for number in range(20):
            self.hub.publish_message(b"t", b"%d.%d" % (round_, number) * 20, 1)
            for name in (b"q", b"brief%d" % round_):
                queue = self.manager.declare(QueueSpec(name=name.decode()))[0]
                queue.append_message(b"t", b"%d.%d" % (round_, number) * 20)
        self.hub.publish_message(b"r%d" % round_, b"kept", 1, True)
        self.hub.publish_message(b"r", b"kept %d" % round_, 1, True)

    def state(self) -> dict[str, Any]:
        return {"sessions": {name: session.queued for (_, name), session in self.broker.sessions.items()},
                "queues": {name: state.queue.depth for (_, name), state in self.manager.queues.items()},
                "retained": {topic: kept.payload for topic, kept in self.hub.root.topics.retained}}


async def fail(node: Node, path: Path, arrange: Callable[[Node], Any]) -> dict[str, Any]:
    """A first checkpoint succeeds, more comes, the second one fails; the node ends as the server would end it."""
    node.work(0)
    await node.durable()
    await node.keeper.checkpoint()
    node.work(1)
    await node.durable()
    arrange(node)
    node.keeper.tick()
    task = node.keeper._task
    assert task is not None
    while not task.done():
        await asyncio.sleep(0.001)
        node.journal.submit()
        node.journal.poll()
        if getattr(node, "cancel", False):
            task.cancel()
    with pytest.raises(StorageError, match="Nothing is lost"):
        node.keeper.tick()
    node.work(2)  # what still comes before the node has ended
    await node.durable()
    expected = node.state()
    applied = node.store.applied
    await node.keeper.close(20.0)
    assert (node.store.applied, node.keeper.checkpoints) == (applied, 1)
    with pytest.raises(StorageError, match="Nothing is lost"):
        await node.keeper.checkpoint()
    node.close()
    return expected


def call_fails(name: str, code: int) -> Callable[[Node], None]:
    def arrange(node: Node) -> None:
        node.disk.failing = (name, code)
    return arrange


def view_fails(node: Node) -> None:
    def broken(*_: object) -> None:
        raise StorageError("cannot write the state: EIO")
    node.store._write_view = broken  # type: ignore[method-assign]


def retiring_fails(node: Node) -> None:
    write = node.store._write_view

    def broken(puts: Any, deletes: Any, upto: int) -> None:
        write(puts, deletes, upto)
        raise StorageError("cannot remove journal files")
    node.store._write_view = broken  # type: ignore[method-assign]


def contract_broken(node: Node) -> None:
    async def broken(*_: object) -> None:
        raise UsageError("a checkpoint is under way")
    node.store.checkpoint = broken  # type: ignore[method-assign]


def cancelled(node: Node) -> None:
    node.cancel = True  # type: ignore[attr-defined]


@pytest.mark.parametrize("arrange", [
    *(pytest.param(call_fails(name, errno.EIO), id=f"{name}-EIO") for name in CALLS),
    pytest.param(call_fails("unlink", errno.EIO), id="unlink-EIO"),
    view_fails, retiring_fails, contract_broken, cancelled])
def test_a_checkpoint_that_fails_costs_nothing(tmp_path: Path, arrange: Callable[[Node], Any]) -> None:
    expected = asyncio.run(fail(Node(tmp_path), tmp_path, arrange))
    node = Node(tmp_path)
    assert node.state() == expected
    node.close()


def test_memory_runs_out_in_the_middle_of_an_export(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    export = durability.export_session

    def broken(session: Any, head: bytes) -> Any:
        if session.name == b"brief1":
            raise MemoryError
        return export(session, head)

    expected = asyncio.run(fail(Node(tmp_path), tmp_path,
                                lambda _: monkeypatch.setattr(durability, "export_session", broken)))
    monkeypatch.undo()
    node = Node(tmp_path)
    assert node.state() == expected
    node.close()


@pytest.mark.parametrize("where", ["segments", "view"])
def test_a_want_of_space_is_waited_for_and_nothing_taken_over_is_forgotten(tmp_path: Path, where: str,
                                                                         monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(durability, "SPACE_RETRIES_S", 0)

    async def scenario() -> dict[str, Any]:
        node = Node(tmp_path)
        node.work(0)
        await node.durable()
        await node.keeper.checkpoint()
        node.work(1)
        await node.durable()
        attempts = []
        write, checkpoint = node.segments.write, node.store.checkpoint

        def short_segments(number: int, blocks: Any) -> int:
            if len(attempts) < 3:
                attempts.append(number)
                node.disk.failing = ("pwrite", errno.ENOSPC)
            return write(number, blocks)

        async def short_view(*what: Any) -> None:
            if len(attempts) < 3:
                attempts.append(0)
                raise ShortageError("No space left on device")
            await checkpoint(*what)

        if where == "segments":
            node.segments.write = short_segments  # type: ignore[method-assign]
        else:
            node.store.checkpoint = short_view  # type: ignore[method-assign]
        task = asyncio.ensure_future(node.keeper.checkpoint())
        while len(attempts) < 2:
            await asyncio.sleep(0.001)
            await node.durable()
        node.work(2)  # between two attempts
        while not task.done():
            await asyncio.sleep(0.001)
            await node.durable()
        await task
        assert len(attempts) >= 2
        expected = node.state()
        await node.keeper.checkpoint()
        # So all that counts comes from the view, whether or not the writer has begun its next file by now.
        assert node.store.applied == node.journal.gathering - 1
        node.close()
        return expected

    expected = asyncio.run(scenario())
    node = Node(tmp_path)
    assert node.state() == expected
    known = {log.number for queue in node.keeper.queues.manager.states for log in queue.logs}
    assert not [path for path in (tmp_path / "queues").iterdir() if int(path.name, 16) not in known]
    node.close()


def test_the_view_waits_for_the_batch_that_gathers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The writer is busy, so a part of what a checkpoint takes over is in a batch that it has not even been given: the
    view may have that no sooner than the journal."""
    monkeypatch.setattr(durability, "DURABLE_POLL_S", 0)
    ops, held, allowed = Ops(), threading.Event(), threading.Semaphore(0)

    def sync(fd: int) -> None:
        if held.is_set():
            allowed.acquire()
        os.fdatasync(fd)

    ops.fdatasync = sync

    async def scenario() -> None:
        node = Node(tmp_path, ops)
        node.work(0)
        await node.durable()
        held.set()
        node.work(1)
        pump_queues(node.hub)
        node.journal.submit()                       # the writer has a batch, whose sync does not come to its end
        under_way = node.journal.gathering - 1
        node.work(2)                                # and that gathers
        written: list[int] = []
        queues = node.keeper.queues
        assert queues is not None
        to_segments, to_view = queues.write, node.store.checkpoint

        # Both are called by the loop in the instant in which the wait is over, so it does not matter when a thread
        # gets to them.
        def segments(made: QueueExport) -> AsyncIterator[None]:
            written.append(node.journal.durable)
            return to_segments(made)

        async def view(*what: Any) -> None:
            written.append(node.journal.durable)
            await to_view(*what)

        queues.write = segments  # type: ignore[method-assign]
        node.store.checkpoint = view  # type: ignore[method-assign]
        task = asyncio.ensure_future(node.keeper.checkpoint())
        await turns()
        gathering = node.journal.gathering
        assert (gathering, written) == (under_way + 1, [])
        allowed.release()
        while node.journal.durable < under_way:
            await asyncio.sleep(0.001)
            node.journal.poll()
        await turns()
        assert written == [], "the batch that gathered is with the writer now, and not durable"
        held.clear()
        allowed.release(100)
        while not task.done():
            await asyncio.sleep(0.001)
            node.journal.poll()
        await task
        assert len(written) == 2 and written[0] >= gathering
        node.close()

    async def turns() -> None:
        for _ in range(300):
            await asyncio.sleep(0)

    asyncio.run(scenario())
