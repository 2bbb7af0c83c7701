"""Reading from segment files, in any thread, while other threads write and remove them.

No lock is held: a log's list of files is replaced and never changed, a file's index tells of a batch only when it has
been written, and a descriptor stays open while it is in use, also when its file is removed.
"""
from __future__ import annotations

import bisect
from collections.abc import Iterator, Sequence
from pathlib import Path

from fluxmq._core.disk.segment_format import (
    TRAILER_SIZE,
    SegmentIndex,
    block_of,
    decode_index,
    find_time,
    take_messages,
)
from fluxmq._core.errors import ShortageError, StorageError
from fluxmq.storage.reading import read_whole
from fluxmq.storage.segment_files import (
    Damage,
    FileOps,
    SegmentFile,
    no_space,
    read_at,
    rebuilt_index,
    unpack,
    unpacked,
)
from fluxmq.storage.segment_handles import Handles
from fluxmq.storage.segment_recovery import Log, refusal

__all__ = ["SegmentReader"]


class SegmentReader:
    """The reading half of `SegmentStore`."""

    def __init__(self, base: Path, ops: FileOps, handles: Handles) -> None:
        self._base = base
        self._ops = ops
        self._handles = handles
        self._logs: dict[int, Log] = {}

    def read(self, number: int, offset: int, max_bytes: int = 1024 * 1024) -> tuple[int, int, list[bytes]]:
        """(first, covers, blocks): every message that the files hold in [first, covers) is in the blocks, and `offset`
        is in that range. About max_bytes of them, one batch at least. (offset, offset, []): no file holds it or a later
        one.

        Raises CorruptError, StorageError."""
        while True:
            log = self._logs.get(number)
            files = log.files if log is not None else []
            at = bisect.bisect_right(files, offset, key=lambda file: file.reach)
            try:
                for place in range(at, len(files)):
                    file = files[place]
                    following = files[place + 1].first if place + 1 < len(files) else file.reach
                    with self._handles.use(file) as fd:
                        chunk = self._read_file(file, fd, offset, max_bytes, following)
                    if chunk is not None:
                        return chunk
            except FileNotFoundError as error:
                if log is not self._logs.get(number) or (log is not None and log.files is not files):
                    continue        # trimmed meanwhile
                raise StorageError(f"a segment file has vanished: {error}") from error
            except OSError as error:
                raise self._unreadable(file, error) from error
            except Damage as damage:
                if log is not None and log.files is not files:
                    continue        # cut back meanwhile
                raise refusal(self._base, file.path, damage) from None
            return offset, offset, []

    def _unreadable(self, file: SegmentFile, error: OSError) -> StorageError:
        if no_space(error):
            return ShortageError(f"{file.path} cannot be read now: {error.strerror}")
        return StorageError(f"{file.path} cannot be read: {error.strerror}. Check the disk; then stop the broker and "
                            f"run `fluxmq log verify {self._base}`, and `fluxmq log repair {self._base}` if it says so")

    def _read_file(self, file: SegmentFile, fd: int, offset: int, max_bytes: int,
                   following: int) -> tuple[int, int, list[bytes]] | None:
        index = file.index or self._load_index(file, fd)
        count = len(index)
        at = index.find(offset)
        if at >= count:
            return None
        stop, begin, end = index.span(at, max_bytes)
        data = read_at(fd, end - begin, begin, self._ops)
        blocks: list[bytes] = []
        here = 0
        for each in range(at, stop):
            block, here = unpack(data, here, file, begin)
            if (block[0], block[1]) != (index.first(each), index.last(each)):
                raise Damage(f"the batch before offset {begin + here} is another than the index says", begin + here)
            blocks.append(block[7])
        covers = index.first(stop) if stop < len(index) else max(following, index.last(stop - 1) + 1)
        return min(offset, index.first(at)), covers, blocks

    def _load_index(self, file: SegmentFile, fd: int) -> SegmentIndex:
        length = file.size - TRAILER_SIZE - file.end
        decoded = decode_index(read_at(fd, length, file.end, self._ops), file.end, file.file_id) if length > 0 else None
        intact = decoded is not None and decoded[0].messages == file.messages
        index = decoded[0] if decoded is not None and intact else rebuilt_index(file, self._ops)
        file.index = index
        return index

    def offset_at_time(self, number: int, time_ms: int) -> int | None:
        """The first offset in the files whose message is of this time or later; None: all are older.

        By the index: of the messages, one batch is read. Raises like read()."""
        log = self._logs.get(number)
        for file in log.files if log is not None else []:
            if not file.messages or file.time_max < time_ms:
                continue
            try:
                with self._handles.use(file) as fd:
                    index = file.index or self._load_index(file, fd)
                    at = index.find_time(time_ms)
                    if at >= len(index):
                        continue
                    _, begin, end = index.span(at, 0)
                    block, _ = unpack(read_at(fd, end - begin, begin, self._ops), 0, file, begin)
            except FileNotFoundError:
                continue            # trimmed meanwhile
            except OSError as error:
                raise self._unreadable(file, error) from error
            except Damage as damage:
                raise refusal(self._base, file.path, damage) from None
            return find_time(block[7], time_ms)
        return None

    def pick(self, number: int, offsets: Sequence[int], max_bytes: int) -> dict[int, bytes]:
        """Some messages from anywhere, by offset: in the order asked for, as many as have about max_bytes, the first
        one at least; b"" for one that no file holds. A batch is read once for all of its messages. Raises like
        read()."""
        wanted = sorted(offsets)
        picked: dict[int, bytes] = {}
        size = 0
        for offset in offsets:
            if offset in picked:
                continue
            if size >= max_bytes:
                break
            first, covers, blocks = self.read(number, offset, 0)
            in_batch = wanted[bisect.bisect_left(wanted, first):bisect.bisect_left(wanted, max(covers, offset + 1))]
            picked.update(dict.fromkeys(in_batch, b""))
            for block in blocks:
                picked.update(take_messages(block, in_batch))
            size += sum(len(picked[each]) for each in in_batch)
        return picked

    def spans(self, number: int, first: int, end: int) -> list[tuple[int, int]]:
        """(offset behind, bytes of messages) of stretches, in order, which hold everything from offset `first` up to
        `end`: the batches of the first file, the first one cut exactly; of later files each is one. Raises like
        read()."""
        spans: list[tuple[int, int]] = []
        log = self._logs.get(number)
        for file in log.files if log is not None else []:
            if file.reach <= first or file.first >= end:
                continue
            if spans and file.reach <= end:
                spans.append((file.reach, file.raw))
                continue
            try:
                with self._handles.use(file) as fd:
                    index = file.index or self._load_index(file, fd)
                spans += self._batch_spans(number, index, first, end)
            except FileNotFoundError:
                continue            # trimmed meanwhile
            except OSError as error:
                raise self._unreadable(file, error) from error
            except Damage as damage:
                raise refusal(self._base, file.path, damage) from None
        return spans

    def _batch_spans(self, number: int, index: SegmentIndex, first: int, end: int) -> Iterator[tuple[int, int]]:
        for at in range(len(index)):
            if index.last(at) < first or index.first(at) >= end:
                continue
            size = index.size(at)
            if index.first(at) < first:
                _, _, blocks = self.read(number, first, 0)
                kept = block_of(blocks[0], first) if blocks else None
                size = len(kept[7]) if kept is not None else 0
            yield index.last(at) + 1, size

    def due_pairs(self, number: int) -> Iterator[bytes]:
        """i64 due, u64 offset, due, offset … of every message of a delay log, file by file. Raises like read()."""
        log = self._logs.get(number)
        for file in log.files if log is not None else []:
            if not file.due_max:
                continue
            try:
                yield self._pairs(file)
            except OSError as error:
                raise self._unreadable(file, error) from error
            except Damage as damage:
                raise refusal(self._base, file.path, damage) from None

    def _pairs(self, file: SegmentFile) -> bytes:
        known = file.pairs
        if known is not None and not file.sealed:
            return bytes(known)
        with self._handles.use(file) as fd:
            length = file.size - TRAILER_SIZE - file.end
            found = None
            if file.sealed and length > 0:
                found = decode_index(read_at(fd, length, file.end, self._ops), file.end, file.file_id)
            if found is not None and found[1] is not None:
                return found[1]
            index = file.index or self._load_index(file, fd)
        data = read_whole(file.path, self._ops)
        return unpacked(file, index, data)
