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
    """The journal, and a key-value view that spares a restart from reading all of it.

    The journal is the truth: a change is durable when its batch is. The view is a copy of the state as it was after
    some batch, `applied`, brought forward by checkpoints. A restart is load(), then replay() onto it.

    Replay must be idempotent: a checkpoint may hold the effects of batches above its number (the state moves on while
    it is taken, and the batch that gathers is never waited for), so a record may meet a state that has seen it already.
    Records that say what a thing is now are; records that say "one more" are not, unless they carry what makes
    a second application recognisable.

    What replay() yielded is not in the view yet: it belongs into the next checkpoint, with the changes made since.

    Life: start(), then load() and replay() once, then journal and checkpoint() until close(). Everything but the
    executor's part of checkpoint() happens on the loop thread.
    """

    @property
    def path(self) -> Path | None:
        """The directory, locked while the store is open. None: nothing is on disk."""

    @property
    def journal(self) -> Journal | None:
        """Where durable changes are appended. None: nothing is durable, and acks leave at once."""

    @property
    def applied(self) -> int:
        """Number of the last batch whose effects the view holds, with all before it; 0 for an empty store."""

    def start(self) -> None:
        """Lock the directory, repair what a crash left, open view and journal, start the journal's writer. Blocks.

        Raises StorageError (another broker has the directory, no permission, no space) or CorruptError (file, offset
        and what to do).
        """

    def load(self) -> Iterator[tuple[bytes, bytes]]:
        """Every key and value of the view, in the order of the keys' bytes."""

    def replay(self, after: int | None = None) -> Iterator[tuple[int, bytes]]:
        """(number, records) of each batch above `after`, oldest first; None stands for `applied`. What the journal no
        longer holds is left out. Records divide with `_core.journal_format.iter_records`, or in C with
        `journal_next_record`.

        Only what was there at start(): never what was appended since.
        """

    async def checkpoint(self, puts: Iterable[tuple[bytes, bytes]], deletes: Iterable[bytes], upto: int) -> None:
        """Bring the view to batch `upto`, all or nothing, durably; then let go of journal files up to there.

        Both iterables are read to the end before the first await, so they may walk over live structures. A key that is
        in both is deleted. `upto` is what `journal.rotate()` returned, or any durable batch; it never falls.
        Beforehand: `upto = journal.rotate()`, collect the changes of that moment, wait until `journal.durable >= upto`.

        Raises UsageError if `upto` is not durable yet, or lower than `applied`, or another checkpoint is under way;
        ShortageError if there was no space: the same keys and more may be written again; StorageError if it could not
        be written: the journal files are then as before, and the view too, or after its next start as if it had been.
        """

    def close(self) -> None:
        """Write and sync what the journal gathered, stop its writer, close, unlock. Blocks; may be called twice.

        Raises StorageError if something gathered could not be written; it had not been acknowledged.
        """


class SegmentFiles(Protocol):
    """Storage of queue messages that outlive a journal file. All methods but open() block and must run in an executor's
    thread. `fluxmq.storage.segments.SegmentStore` implements it and documents its guarantees."""

    def open(self, expect: Mapping[int, range] | None = None, ended: Iterable[int] = (),
             on_damage: Callable[[int, CorruptError], None] | None = None) -> Mapping[int, Any]:
        """By log: an object with `first`, `next`, `messages`; but of those that have ended, whose files go, and of
        those that are damaged, of which on_damage is told. Raises CorruptError where that is None, StorageError."""

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
