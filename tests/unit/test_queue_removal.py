"""Files of queues that are no more: they go because somebody said so, durably, and never because nobody knows them."""
from __future__ import annotations

import asyncio
from collections.abc import Iterable
from pathlib import Path

import pytest
from kit.stored_node import StoredNode

from fluxmq._core.disk.segment_format import log_name
from fluxmq._core.errors import StorageError
from fluxmq.model.queues import QueueSpec
from fluxmq.storage.segment_files import FileOps
from fluxmq.storage.segment_repair import dump


class Watched(FileOps):
    """calls: what was done to names, and `view` where a checkpoint was written."""

    syncfs_reports = False

    def __init__(self) -> None:
        self.calls: list[tuple[str, str]] = []

    def rmdir(self, path: Path) -> None:
        self.calls.append(("rmdir", path.name))
        super().rmdir(path)

    def sync_directory(self, path: Path) -> None:
        self.calls.append(("sync", path.name))
        super().sync_directory(path)


class Node(StoredNode):
    """ops: the calls of the segments, among which checkpoints of the store are written."""

    def __init__(self, directory: Path) -> None:
        self.directory, self.ops = directory, Watched()
        super().__init__(directory, 7, segment_bytes=1500, compression="none", ops=self.ops)
        write = self.store.checkpoint

        async def checkpoint(puts: Iterable[tuple[bytes, bytes]], deletes: Iterable[bytes], upto: int) -> None:
            self.ops.calls.append(("view", ""))
            await write(puts, deletes, upto)
        self.store.checkpoint = checkpoint  # type: ignore[method-assign]

    @property
    def view(self) -> list[bytes]:
        """Keys of queues after the last checkpoint, as a start would find them."""
        return [key for key, _ in self.store.load() if key[:1] in b"qgldx"]

    def make(self, name: str, messages: int = 20, size: int = 150) -> int:
        """A queue with messages; returns the number of its log."""
        queue = self.manager.declare(QueueSpec(name=name))[0]
        for number in range(messages):
            queue.append_message(b"t", (b"%d." % number).ljust(size, b"."))
        return queue.logs[0].number

    def forget(self, *keys: bytes) -> None:
        """The view loses keys, which nothing explains."""
        asyncio.run(self.store.checkpoint([], keys, self.store.applied))

    def again(self) -> Node:
        self.close()
        return Node(self.directory)


def key(kind: bytes, number: int) -> bytes:
    return kind + number.to_bytes(8, "big")


def test_a_deleted_queue_leaves_no_trace(tmp_path: Path) -> None:
    node = Node(tmp_path)
    log = node.make("q")
    node.checkpoint()
    assert (tmp_path / "queues" / log_name(log)).is_dir() and key(b"l", log) in node.view
    node.manager.delete((b"/", b"q"))
    node.checkpoint()
    assert not [*(tmp_path / "queues").iterdir()]
    assert node.view == [key(b"x", log)], "the names may still come back"
    node.ops.calls.clear()
    node.make("other", 0)
    node.checkpoint()
    assert node.ops.calls.index(("sync", "queues")) < node.ops.calls.index(("view", ""))
    assert key(b"x", log) not in node.view
    node.close()


def test_an_interrupted_removal_is_finished(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    node = Node(tmp_path)
    log = node.make("q", 10, 50_000)
    node.checkpoint()
    node.manager.delete((b"/", b"q"))

    def broken(path: Path) -> None:
        raise OSError(5, "EIO")

    # of several files one in the middle goes, as a crash that comes between them may leave it
    file = sorted((tmp_path / "queues" / log_name(log)).iterdir())[1]
    file.unlink()
    monkeypatch.setattr(node.ops, "unlink", broken)
    with pytest.raises(StorageError, match="cannot remove"):
        node.checkpoint()
    node = node.again()
    assert not [*(tmp_path / "queues").iterdir()] and node.view == [key(b"x", log)] and not node.notes
    assert node.make("new", 0) > log
    node.checkpoint()
    assert key(b"x", log) not in node.view
    node.close()


def test_what_ended_within_the_journal_goes(tmp_path: Path) -> None:
    node = Node(tmp_path)
    log = node.make("q")

    async def broken(*_: object) -> None:
        raise StorageError("EIO")

    node.store.checkpoint = broken  # type: ignore[method-assign]
    with pytest.raises(StorageError, match="EIO"):
        node.checkpoint()  # segments have it, the view has not
    node.manager.delete((b"/", b"q"))
    node.sync()
    node = node.again()
    assert not node.notes and (tmp_path / "queues" / log_name(log)).is_dir()
    node.checkpoint()
    assert not [*(tmp_path / "queues").iterdir()] and node.view == [key(b"x", log)]
    node.close()


def test_messages_that_nobody_knows_are_kept_aside_and_reported(tmp_path: Path) -> None:
    node = Node(tmp_path)
    lost, kept = node.make("lost"), node.make("kept")
    node.checkpoint()
    queue = node.manager.queues[b"/", b"lost"].queue.number
    node.forget(*(key(kind, number) for kind, number in ((b"q", queue), (b"d", queue), (b"l", lost))))
    node = node.again()
    aside = tmp_path / "queues" / f"{log_name(lost)}.unknown"
    assert aside.is_dir() and sorted(path.name for path in aside.parent.iterdir()) == sorted(
        [aside.name, log_name(kept)])
    [(level, text, fields)] = node.notes
    assert level == "error" and str(aside) in text and "fluxmq log dump" in text and fields["messages"] == 20
    assert node.ops.calls[-1] == ("sync", "queues")
    node.make("another")
    node.manager.delete((b"/", b"kept"))
    node.checkpoint()
    node.checkpoint()
    node = node.again()
    assert aside.is_dir() and [level for level, _, _ in node.notes] == ["warning"]
    assert node.make("yet another", 0) > lost
    node.close()
    aside.rename(aside.with_suffix(""))  # as the line says
    assert len([*dump(tmp_path, lost)]) == 20


def test_a_number_that_is_kept_aside_is_not_used_again(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.make("kept")
    lost = node.make("lost")
    node.checkpoint()
    queue = node.manager.queues[b"/", b"lost"].queue.number
    node.forget(*(key(kind, number) for kind, number in ((b"q", queue), (b"d", queue), (b"l", lost))))
    for _ in range(2):
        node = node.again()
        assert node.make(f"new {lost}", 0) > lost
    node.close()
