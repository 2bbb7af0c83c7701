"""The services that the engine needs, as Protocols. The docstrings are the contract for implementations.

`StateStore` is the durable state behind one journal (docs/internals/storage.md).
"""
from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from fluxmq._core.disk.journal import Journal
from fluxmq._core.errors import CorruptError

__all__ = ["SegmentFiles", "StateStore"]


class StateStore(Protocol):
    """The journal, and a key-value view, so that a restart need not read all of the journal.

    The journal is authoritative: a change is durable when its batch is. The view is a copy of the state after some
    batch, `applied`, which checkpoints update. A restart calls load(), then applies replay() to the result.

    Replay must be idempotent: a checkpoint may include effects of batches above its number, because the state changes
    while the checkpoint is taken, so a record may be applied to a state that includes it already. A record with the new
    value of something is idempotent. A record of an increment is not, unless it has a number by which a second
    application is recognised.

    The changes that replay() yields are not in the view yet: they belong to the next checkpoint, with those made since.

    Order of calls: start(), then load() and replay() once, then journal and checkpoint() until close(). Everything but
    the executor's part of checkpoint() happens on the loop thread.
    """

    @property
    def path(self) -> Path | None:
        """The directory, which is locked while the store is open. None: nothing is stored on disk."""

    @property
    def journal(self) -> Journal | None:
        """The journal, to which durable changes are appended. None: nothing is durable, and acks are sent at once."""

    @property
    def applied(self) -> int:
        """Number of the batch up to which the view includes all effects; 0 for an empty store."""

    def start(self) -> None:
        """Locks the directory, repairs the effects of a crash, opens view and journal, starts the journal's writer.
        Blocks.

        Raises StorageError (another broker has the directory, no permission, no space) or CorruptError (file, offset
        and what to do).
        """

    def load(self) -> Iterator[tuple[bytes, bytes]]:
        """Every key and value of the view, in the order of the keys' bytes."""

    def replay(self, after: int | None = None) -> Iterator[tuple[int, bytes]]:
        """(number, records) of each batch above `after`, oldest first; None stands for `applied`. Batches
        whose files were deleted are left out. `_core.disk.journal_format.iter_records` divides `records`, in C
        `journal_next_record`.

        Yields only batches that existed at start(), not later ones.
        """

    async def checkpoint(self, puts: Iterable[tuple[bytes, bytes]], deletes: Iterable[bytes], upto: int) -> None:
        """Updates the view to batch `upto`, atomically and durably; then deletes journal files up to that batch.

        Both iterables are read to the end before the first await, so they may iterate over live structures. A key that
        is in both is deleted. `upto` is the result of `journal.rotate()`, or any durable batch; it never decreases.
        The caller first sets `upto = journal.rotate()`, collects the changes of that moment, and waits until
        `journal.durable >= upto`.

        Raises UsageError if `upto` is not durable yet, or lower than `applied`, or another checkpoint is under way;
        ShortageError if there was no space: the caller may call again with the same keys and more; StorageError if the
        view could not be written: the journal files are unchanged, and after the next start the view either has all of
        the changes or none.
        """

    def close(self) -> None:
        """Writes and syncs the journal's gathering batch, stops the writer, closes and unlocks. Blocks; may be called
        twice.

        Raises StorageError if that batch could not be written; nothing in it was acknowledged.
        """


class SegmentFiles(Protocol):
    """Storage of queue messages that outlive a journal file. All methods but open() block and must run in an executor's
    thread. `fluxmq.storage.segments.SegmentStore` implements it and documents its guarantees."""

    def open(self, expect: Mapping[int, range] | None = None, ended: Iterable[int] = (),
             on_damage: Callable[[int, CorruptError], None] | None = None) -> Mapping[int, Any]:
        """Returns an object with `first`, `next`, `messages` for each log, except those that have ended, whose files
        are deleted, and damaged ones, which on_damage reports. Raises CorruptError for these if on_damage is None;
        StorageError."""

    def close(self) -> None:
        """Closes the files without syncing them."""

    def write(self, number: int, blocks: Iterable[Any]) -> int:
        """Appends blocks; returns the offset behind the last message in the log's files. Raises ShortageError:
        everything written since the last sync() has been removed again."""

    def sync(self, numbers: Iterable[int]) -> None:
        """Makes what was written durable. Raises ShortageError: sync() may be called again."""

    def read(self, number: int, offset: int, max_bytes: int = 1024 * 1024) -> tuple[int, int, list[bytes]]:
        """(first, covers, blocks)."""

    def trim(self, number: int, first: int) -> None:
        """Deletes files that have nothing at or above `first`."""

    def remove(self, number: int) -> None:
        """Removes the log. The removal of its file names is durable after the next sync()."""

    def holds(self, number: int) -> bool:
        """Whether there are files of this log."""

    def set_aside(self, number: int) -> Path | None:
        """Moves the files of an unknown log to a separate directory. None: there are none."""

    def aside(self) -> Mapping[int, Path]:
        """The logs moved by set_aside, by number."""

    def spans(self, number: int, first: int, end: int) -> list[tuple[int, int]]:
        """(offset behind, bytes) of parts that together have all messages from `first` up to `end`."""

    def due_pairs(self, number: int) -> Iterator[bytes]:
        """i64 due, u64 offset, due, offset … of a delay log, little-endian, a file at a time."""

    def pick(self, number: int, offsets: Sequence[int], max_bytes: int) -> dict[int, bytes]:
        """Messages by offset: the first of `offsets`, and further ones up to about `max_bytes`; b"" for one that no
        file has."""

    def offset_at_time(self, number: int, time_ms: int) -> int | None:
        """The first offset with this time or a later one."""
