"""Reads messages directly from the storage directory of a broker: from segment files, and messages that these do not
have yet from the view, for small queues (engine/queues/recovery/store.py), and from the journal. The broker may be
stopped or running; nothing is written, and no lock is taken.

A checkpoint of a running broker moves messages from the journal to the view or to segments, and from the view to
segments, and then deletes journal files; retention deletes segment files. So a task reads the journal first, then the
view, then the segments: a message that has left one of them is in a later one by then. If a file is deleted between
listing a directory and opening it, the directory is listed again.
"""
from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import zstandard

from fluxmq._core.disk.segment_format import (
    HEADER_SIZE,
    STORED_PLAIN,
    STORED_ZSTD,
    TRAILER_SIZE,
    SegmentIndex,
    batch_at,
    batch_holds,
    decode_header,
    decode_index,
    decode_trailer,
    file_first,
    find_time,
    log_name,
    walk,
)
from fluxmq._core.errors import CorruptError
from fluxmq._core.queue.rows import Rows, appends_of
from fluxmq.spark.source.columns import SourceError
from fluxmq.spark.source.journal import Behind, Stored, read_small, read_state, walk_journal
from fluxmq.spark.source.place import LANE_BITS, LogRange, LogRemoved, NoQueue, QueueLog, QueueLogs, feed, signed
from fluxmq.spark.source.plan import Filters

__all__ = ["LogsPlace"]

TRIES = 20
TRY_SECONDS = 0.05
READ_BYTES = 4 << 20

T = TypeVar("T")


class _Segment:
    """An open segment file, with its index."""

    def __init__(self, path: Path, log: int) -> None:
        self.path = path
        self.fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self._unpacker = zstandard.ZstdDecompressor()
        try:
            size = os.fstat(self.fd).st_size
            head = os.pread(self.fd, HEADER_SIZE, 0)
            if len(head) < HEADER_SIZE or not any(head):
                self.index, self.size = SegmentIndex(), size        # the file has just been created
                return
            try:
                said, _, _, self.file_id = decode_header(head)
            except CorruptError as error:
                raise SourceError(f"{path} cannot be read: {error}") from None
            if said != log:
                raise SourceError(f"{path} is a file of log {log_name(said)}: it has been copied or renamed")
            self.index = self._read_index(size)
        except BaseException:
            self.close()
            raise

    def _read_index(self, size: int) -> SegmentIndex:
        trailer = decode_trailer(os.pread(self.fd, TRAILER_SIZE, max(0, size - TRAILER_SIZE)), size, self.file_id)
        if trailer is not None:
            end = trailer[0]
            found = decode_index(os.pread(self.fd, size - TRAILER_SIZE - end, end), end, self.file_id)
            if found is not None:
                return found[0]
        data = os.pread(self.fd, size, 0)
        index, synced = walk(data, self.file_id)
        index.cut(index.first_bad(data, self.file_id, synced))
        return index

    def blocks(self, offset: int, filters: Filters | None) -> Iterator[tuple[int, int, bytes]]:
        """(first, last, messages) of each batch from the one that contains `offset` on; without messages for batches
        that the filter of time excludes."""
        at, count = self.index.find(offset), len(self.index)
        while at < count:
            stop, begin, end = self.index.span(at, READ_BYTES)
            data = os.pread(self.fd, end - begin, begin)
            here = 0
            for _ in range(at, stop):
                found = batch_at(data, here, self.file_id)
                if found is None or not batch_holds(data, here, self.file_id):
                    raise SourceError(f"{self.path} is damaged: the batch at offset {begin + here} does not hold. "
                                      f"`fluxmq log verify` says more")
                first, last, _, time_min, time_max, _, _, length, how, at_data, here = found
                if filters is not None and (time_min > filters.time_max or time_max < filters.time_min):
                    yield first, last, b""
                else:
                    yield first, last, self._unpack(data[at_data:here], how, length)
            at = stop

    def _unpack(self, stored: bytes, how: int, length: int) -> bytes:
        if how == STORED_PLAIN:
            return stored
        if how != STORED_ZSTD:
            raise SourceError(f"{self.path} is packed in a way ({how}) that this program does not know: the broker is "
                              f"newer than the data source")
        return self._unpacker.decompress(stored, max_output_size=length)

    def close(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


def _forbidden(path: object) -> SourceError:
    return SourceError(f"{path} may not be read: run this as the user of the broker, or as root")


class LogsPlace:
    """`Place` of a storage directory."""

    def __init__(self, directory: str) -> None:
        self.directory = Path(directory)
        self._stored: Stored | None = None
        try:
            there = any((self.directory / name).is_dir() for name in ("queues", "journal"))
        except PermissionError:
            raise _forbidden(directory) from None
        if not there:
            raise SourceError(f"{directory} has neither a directory `queues` nor `journal`: it is not the storage "
                              f"directory of a broker (storage.dir)")

    def __getstate__(self) -> dict[str, Any]:
        return {"directory": self.directory, "_stored": None}

    def names(self) -> list[str]:
        stored = self._state()
        return sorted(record.declaration(stored.namespaces).shown for record in stored.queues.values())

    def logs(self, queue: str, time_ms: int | None = None) -> QueueLogs:
        stored = self._state()
        number = self._find(stored, queue)
        record = stored.queues[number]
        lanes = record.declaration(stored.namespaces).lanes
        return QueueLogs(queue, record.declaration(stored.namespaces).type, [
            self._log(stored, each, at // lanes, lane, time_ms) for at, (each, lane) in enumerate(record.logs)])

    def extra(self, queue: QueueLogs, log: QueueLog, start: int, end: int) -> dict[str, Any]:
        """settled: parts settled by all groups. segments: the offset up to which segments have messages."""
        stored = self._state(fresh=False)
        settled = [] if queue.kind == "stream" else stored.settled_ranges(
            self._find(stored, queue.name), log.number, start, end)
        return {"settled": settled, "segments": self._reach(log.number)}

    def read(self, work: LogRange, rows: Rows, filters: Filters) -> Iterator[None]:
        log, stream = work.log.number, work.kind == "stream"
        recent, small = bytearray(), b""
        if work.end > work.extra["segments"]:
            recent = self._patiently(lambda: self._appended(log, work.start, work.end))
            if not stream:
                small = self._patiently(lambda: read_small(self.directory, log))
        expected = work.start
        for first, last, messages in self._blocks(log, work.start, work.end, filters):
            if stream and first > expected:
                raise self._missing(work, expected, min(first, work.end))
            expected = max(expected, last + 1)
            yield from feed(rows, messages)
        yield from feed(rows, small)        # rows skips messages that it has already
        if recent:
            first = int.from_bytes(recent[8:16], "little")
            if stream and first > expected:
                raise self._missing(work, expected, first)
            expected = work.end
            yield from feed(rows, recent)
        if stream and expected < work.end:
            raise self._missing(work, expected, work.end)

    def close(self) -> None:
        """Nothing to close."""

    def _missing(self, work: LogRange, first: int, end: int) -> LogRemoved | SourceError:
        """The reason why a stream's messages [first, end) are in no file."""
        known = self._state().logs.get(work.log.number)
        if known is None or known.first > first or first < self._lowest(work.log.number):
            return LogRemoved(work.queue, work.log.partition, first, end)
        return SourceError(f"the messages from offset {signed(first)} to {signed(end - 1)} of partition "
                           f"{work.log.partition} of queue {work.queue} are in no file of {self.directory}: it is "
                           f"damaged, or a copy that was taken while its broker ran. `fluxmq log verify` says more")

    def _lowest(self, log: int) -> int:
        """The first offset of the oldest segment file; 0 if there is none."""
        return next((file_first(path.name) or 0 for path in self._files(log)), 0)

    # ------------------------------------------------------------------ what is there

    def _state(self, fresh: bool = True) -> Stored:
        if self._stored is None or fresh:
            self._stored = self._patiently(self._refreshed)
        return self._stored

    def _refreshed(self) -> Stored:
        known, self._stored = self._stored, None        # a half updated state must not be kept
        return read_state(self.directory, known)

    def _patiently(self, call: Callable[[], T]) -> T:
        """Retries when a running broker has changed its files in between."""
        for left in range(TRIES, 0, -1):
            try:
                return call()
            except SourceError:
                raise
            except PermissionError as error:
                raise _forbidden(error.filename) from None
            except Exception as error:
                # RocksDB raises plain exceptions, and any file of a running broker may have been deleted
                if left == 1:
                    raise SourceError(f"{self.directory} cannot be read, or the broker that runs on it changes files "
                                      f"faster than they can be read ({error or type(error).__name__}). Read through "
                                      f"its admin socket instead, or `fluxmq log verify` the directory") from None
                time.sleep(TRY_SECONDS)
        raise AssertionError

    def _find(self, stored: Stored, queue: str) -> int:
        for number, record in stored.queues.items():
            if record.declaration(stored.namespaces).shown == queue:
                return number
        there = sorted(record.declaration(stored.namespaces).shown for record in stored.queues.values())
        raise NoQueue(f"there is no queue {queue} in {self.directory}; there are: {', '.join(there) or 'none'}")

    def _log(self, stored: Stored, number: int, partition: int, lane: int, time_ms: int | None) -> QueueLog:
        base = lane << LANE_BITS
        known = stored.logs.get(number)
        reach = self._reach(number)
        first = max(base, known.first if known is not None else base)
        following = max(first, reach, known.next if known is not None else base)
        size = self._patiently(lambda: sum(path.stat().st_size for path in self._files(number)))
        size += known.appended if known is not None else 0
        offset = None if time_ms is None else min(max(self._offset_at(number, time_ms, first, following), first),
                                                  following)
        return QueueLog(partition, lane, number, first, following, size, offset)

    def _files(self, log: int) -> list[Path]:
        try:
            found = [path for path in (self.directory / "queues" / log_name(log)).iterdir()
                     if file_first(path.name) is not None]
        except FileNotFoundError:
            return []
        return sorted(found)

    def _reach(self, log: int) -> int:
        """The offset behind the last message in segments; 0 if there is none."""
        def look() -> int:
            for path in reversed(self._files(log)):
                segment = _Segment(path, log)
                try:
                    if len(segment.index):
                        return segment.index.last(len(segment.index) - 1) + 1
                finally:
                    segment.close()
            return 0
        return self._patiently(look)

    def _offset_at(self, log: int, time_ms: int, first: int, following: int) -> int:
        """Searches the time index of the segments, then the view, then the journal."""
        recent = self._patiently(lambda: self._appended(log, first, following))
        small = self._patiently(lambda: read_small(self.directory, log))
        found = self._patiently(lambda: self._in_segments(log, time_ms))
        for later in (small, recent):
            if found is None and later:
                found = find_time(later, time_ms)
        return following if found is None else found

    def _in_segments(self, log: int, time_ms: int) -> int | None:
        for path in self._files(log):
            segment = _Segment(path, log)
            try:
                at = segment.index.find_time(time_ms)
                if at < len(segment.index):
                    _, _, messages = next(segment.blocks(segment.index.first(at), None))
                    found = find_time(messages, time_ms)
                    if found is not None:
                        return found
            finally:
                segment.close()
        return None

    # ------------------------------------------------------------------ messages

    def _appended(self, log: int, first: int, end: int) -> bytearray:
        """Messages of a log in the journal with offsets in [first, end)."""
        found = bytearray()
        try:
            for _, records in walk_journal(self.directory):
                appends_of(records, log, first, end, found)
        except Behind:
            found.clear()
            raise
        return found

    def _blocks(self, log: int, start: int, end: int, filters: Filters) -> Iterator[tuple[int, int, bytes]]:
        """Batches that may have messages of [start, end), in order. If a file was deleted, it is looked up again."""
        here = start
        tries = TRIES
        while here < end:
            paths = [path for path in self._files(log) if (file_first(path.name) or 0) < end]
            before = [at for at, path in enumerate(paths) if (file_first(path.name) or 0) <= here]
            try:
                for path in paths[before[-1] if before else 0:]:
                    segment = _Segment(path, log)
                    try:
                        for first, last, messages in segment.blocks(here, filters):
                            if first >= end:
                                return
                            yield first, last, messages
                            here = last + 1
                    finally:
                        segment.close()
                return
            except FileNotFoundError as error:
                tries -= 1
                if not tries:
                    raise SourceError(f"{error.filename} is gone again and again: the broker removes messages faster "
                                      f"than they are read") from None
            except PermissionError as error:
                raise _forbidden(error.filename) from None
