"""Storage of queues: their part of recovery and of checkpoints (Keeper in durability.py).

    view       q<number> QueueRecord    g<number> [GroupRecord, state]    l<number> LogMeta    d<number> producers
               x<number> a log that has ended, files to be deleted    k<number> messages of a small log
               f<number> the copy of a queue of another line    a<group> how far its line is in the view: copies.py
    segments   messages that outlived a journal file
    journal    the rest

It is one file because the code that writes the view's keys is kept beside the code that reads them. Messages are
restored in this order: the view defines the logs and their ranges, the segments have messages below `next`, `k` has
those above it, the journal appends the rest. A message that an earlier source has already is skipped.

A file for each of many queues with one or two messages would dominate the cost of a checkpoint and of the next start.
So messages that no segment has stay in the view while they are few: as `k`, which is the log's next offset (u64) and
the messages. It is rewritten when there are more, and deleted with the write that records their segment or their end.

Deletion of log files: removal.py.
"""
from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from fluxmq._core.errors import CorruptError, StorageError
from fluxmq._core.memory.commits import Line
from fluxmq._core.queue.export import Export, restore_unflushed, stored_upto, unflushed, unflushed_bytes
from fluxmq._core.queue.group import Group
from fluxmq._core.queue.lanes import LANE_SHIFT
from fluxmq._core.queue.log import Log
from fluxmq._core.queue.queue import QUEUE_CLASSIC, Queue
from fluxmq._core.queue.state import export_state
from fluxmq.engine.ports.driver import Driver, Work
from fluxmq.engine.ports.store import SegmentFiles
from fluxmq.engine.queues.manager import NOTHING, QueueManager, QueueState
from fluxmq.engine.queues.reads import QueueReader
from fluxmq.engine.queues.records import LogMeta
from fluxmq.engine.queues.recovery.copies import COPY, Copies, divided_source_of, source_of
from fluxmq.engine.queues.recovery.line import QueueLine
from fluxmq.engine.queues.recovery.removal import LogRemoval
from fluxmq.engine.queues.recovery.removal import view_key as key
from fluxmq.engine.stored import WRONG_SHAPE, copy_of, meta_of, producers_of, queue_of, refused
from fluxmq.model import limits

__all__ = ["QueueExport", "QueueKeeper"]

# Work of an export between two turns of the loop, in about as many messages examined: a few milliseconds.
EXPORT_WORK = 2000
WORK_OF_A_QUEUE = 10
BYTES_OF_WORK = 4096
ANY_BATCH = (1 << 64) - 1


class QueueExport:
    """The changes that a checkpoint exports. upto: the last batch of the journal files that it replaces. left: changed
    queues not examined yet; taken: those examined. changed: queues whose record changed, not examined yet; recorded:
    those examined. puts, deletes: for the view, until the caller takes them. blocks: messages for the segments, by log.
    logs: those whose row changed. ended: entries of QueueTable.ended."""

    def __init__(self, upto: int) -> None:
        self.upto = upto
        self.left: list[Queue] = []
        self.taken: list[Queue] = []
        self.puts: list[tuple[bytes, bytes]] = []
        self.deletes: list[bytes] = []
        self.blocks: list[tuple[Log, Export]] = []
        # (log, first, next) at that instant; the log that has its messages, if segments may get some; its queue
        self.logs: list[tuple[Log, int, int, Log | None, Queue]] = []
        self.changed: set[QueueState] = set()
        self.recorded: list[QueueState] = []
        self.ended: list[tuple[str, int]] = []

    def take(self) -> tuple[list[tuple[bytes, bytes]], list[bytes]]:
        """Changes for the view since the last call: (puts, deletes). The caller writes all parts together; they
        are returned in parts because there may be too many for one turn."""
        found = self.puts, self.deletes
        self.puts, self.deletes = [], []
        return found


class QueueKeeper:
    """Machine. segments: None stores nothing. cache_bytes, on_damage, driver: as QueueReader's. small_bytes: size up to
    which the messages of one log stay in the view."""

    def __init__(self, manager: QueueManager, segments: SegmentFiles | None, cache_bytes: int, driver: Driver,
                 on_damage: Callable[[StorageError], None] = lambda error: None,
                 small_bytes: int = limits.QUEUE_SMALL_BYTES) -> None:
        self.manager = manager
        self.segments = segments
        self.small_bytes = small_bytes
        # Until everything is replayed: the objects that its records refer to.
        self.records = QueueLine(manager, manager.hub.commits.local, self._make_log)
        # Values of the view; each is dropped when its object is made, so that both are not in memory together.
        self._queues: dict[int, bytes] = {}
        self._copies: dict[int, bytes] = {}
        self._small: dict[int, bytes] = {}
        self._metas: dict[int, LogMeta] = {}
        self._rows: dict[int, dict[int, bytes]] = {ord("q"): self._queues, ord("g"): self._copies,
                                                   ord("k"): self._small, **{ord(kind): {} for kind in "ldx"}}
        self.copies = Copies(manager)
        self._files: dict[int, Any] = {}
        self._safe: dict[int, int] = {}  # by log: the end of what segments had synced
        self._removal = LogRemoval(segments)
        self._directory: Path | None = None
        self.driver = driver
        self._work: Work[Any] | None = None  # running in another thread
        self.looked = 0  # number of queues that checkpoints have examined so far, for tests
        self.reader = manager.disk = QueueReader(manager, segments, cache_bytes, on_damage, driver)

    # ------------------------------------------------------------------ recovery

    def load(self, rows: Iterable[tuple[bytes, bytes]], directory: Path | None = None) -> Iterator[tuple[bytes, bytes]]:
        """Reads rows about queues from the view's rows, which are in the order of their keys, and yields the others.
        There may be a hundred thousand of each kind. directory: storage.dir, for error messages."""
        self._directory = directory
        kinds = self._rows | self.copies.rows
        begins, into, number_of = -1, None, int.from_bytes
        for row in rows:
            name, value = row
            if name[0] != begins:
                begins = name[0]
                into = kinds.get(begins)
            if into is None:
                yield row
            else:
                into[number_of(name[1:], "big")] = value

    def loaded(self) -> None:
        """Called when the view has been read: opens the segments and makes the objects of view and segments."""
        local = self.records.line
        self.manager.is_taken(local, max((max(rows) for rows in self._rows.values() if rows), default=0))
        metas, producers, ended = (self._rows[ord(kind)] for kind in "ldx")
        number = 0
        try:
            for number, value in metas.items():
                self._metas[number] = meta_of(value)
        except WRONG_SHAPE as error:
            raise refused(self._directory, key("l", number), error) from error
        metas.clear()
        for number in ended:
            self._removal.load(number)
        # A log without messages needs no file: a torn one had only just been begun.
        self._files = self._removal.open({number: range(meta.first, meta.safe) for number, meta in self._metas.items()
                                          if meta.safe > meta.first})
        # Includes unknown logs, so that a new log never gets the files of another.
        self.manager.is_taken(local, max(self._removal.number_last, *self._files, 0))
        self._each("q", self._queues, lambda number, value: self.records.adopt(number, *queue_of(value)))
        self._each("g", self._copies, self._load_group)
        self._each("d", producers, self._load_producers)
        self._as_stored()
        self.copies.load(self._directory, lambda line, number, lane, disk: self._make_log(number, lane, line, disk))

    def _each(self, kind: str, rows: dict[int, bytes], take: Callable[[int, bytes], Any]) -> None:
        """Makes an object from each of these rows of the view, and drops the row. Raises CorruptError, with its key."""
        for number in list(rows):
            value = rows.pop(number)
            try:
                take(number, value)
            except (CorruptError, *WRONG_SHAPE) as error:
                raise refused(self._directory, key(kind, number), error) from error

    def _load_group(self, number: int, value: bytes) -> None:
        self.records.adopt_copy(number, *copy_of(value))

    def _load_producers(self, number: int, value: bytes) -> None:
        state = self.records.queues.get(number)
        for name, (highest, bits) in producers_of(value).items():
            if state is not None:
                state.note_produced(name, (highest, int.from_bytes(bits, "big")))

    def _as_stored(self) -> None:
        """Marks objects made from the view and the segments as unchanged, so that the next checkpoint does not write a
        hundred thousand queues."""
        self.manager.hub.ledger.take_dirty_queues()
        for queue in self.manager.states:
            queue.as_stored()

    def _make_log(self, number: int, lane: int, line: Line | None = None, disk: int = 0) -> Log:
        """disk: its number on disk, if that is not the one that it has in its line."""
        disk = disk or number
        self._removal.named.add(disk)
        files = self._files.get(disk)
        if files is not None or disk in self._metas:
            log = self._make_long_log(number, lane, files, line, disk)
        else:  # it never had messages in segments; if there are many logs, nearly all are of this kind
            log = Log(self.manager.hub.ledger, number, lane=lane, line=line)
        log.disk = disk
        small = self._small.pop(disk, None)
        if small is not None:
            restore_unflushed(log, small)
        if files is not None and self.segments is not None:
            with contextlib.suppress(CorruptError):  # a later read stops the queue; only sizes are missing here
                log.restore_sizes(log.first, log.flushed, self.segments.spans(disk, log.first, log.flushed))
        return log

    def _make_long_log(self, number: int, lane: int, files: Any, line: Line | None, disk: int) -> Log:
        meta = self._metas.pop(disk, None)
        first = upto = lane << LANE_SHIFT
        safe = 0
        if meta is not None:
            first, upto, safe = meta.first, meta.next, meta.safe
        if files is not None:
            upto, safe = max(upto, files.next), max(safe, files.next)
        if safe:
            self._safe[disk] = safe
        log = Log(self.manager.hub.ledger, number, lane=lane, first=first, next=upto, line=line)
        if meta is not None:
            log.stored_first, log.stored_next = first, meta.next
        return log

    def replay(self, kind: int, number: int, body: bytes) -> None:
        """Applies one record of the journal that belongs to queues; body: what follows its number."""
        self.records.replay(kind, number, body)

    def finish(self) -> dict[str, int]:
        """Called when everything is replayed: computes derived state. Returns counts for the log."""
        self.manager.hub.ledger.take_unpumped()
        self._removal.named |= self.records.passed_over
        for state in self.manager.queues.values():
            queue = state.queue
            delays = queue.delays
            if delays is not None:
                try:
                    for pairs in self.segments.due_pairs(delays.log.disk) if self.segments is not None else ():
                        delays.restore_pairs(pairs)
                except CorruptError as error:
                    self.reader.stop(queue, error)
                delays.restored()
            if queue.restored():
                queue.notify()
            self.manager.sums.measure(queue, state.groups.values())
        for number, damage in self._removal.damaged.items():
            if number in self.records.logs:
                self.reader.stop(self.records.logs[number][0].queue, damage)
            else:
                self.copies.damaged(number, damage)
        for number in self._small:
            self.manager.log("error", "", "the stored state has messages of a log that no queue has: a queue is lost. "
                             "Stop the broker and run `fluxmq log repair`, which gives them one",
                             {"log": f"{number:016x}"})
        known = {*self.records.logs, *self.copies.logs}
        self.manager.ended += [("l", number)
                               for number in self._removal.settle(self._files, known, self.manager.log)]
        self.copies.resume()
        self._files.clear()
        for rows in self._rows.values():
            rows.clear()
        self._metas.clear()
        self.records.clear()
        if not self.manager.queues:
            return {}
        return {"queues": len(self.manager.queues),
                "queue_messages": sum(state.queue.depth for state in self.manager.queues.values())}

    # ------------------------------------------------------------------ checkpoints

    def begin_export(self, upto: int) -> QueueExport:
        """Begins a checkpoint: lists the queues that changed since the last one. They are examined later, however many
        there are; a queue that changes again before that is not listed twice."""
        manager, made = self.manager, QueueExport(upto)
        manager.hub.ledger.mark_unpumped()
        made.left = manager.hub.ledger.take_dirty_queues()
        made.changed, manager.changed = manager.changed, set()
        made.puts += self.copies.positions()
        return made

    def export(self, made: QueueExport) -> bool:
        """Exports some of the queues, each in one instant; later changes belong to the next checkpoint. False: those
        were the last ones, and the queues that have ended so far are included."""
        work = EXPORT_WORK
        while work > 0 and (made.left or made.changed):
            work -= self._export_next(made)
        while work > 0 and self.manager.ended:
            kind, number = self.manager.ended.pop()
            made.ended.append((kind, number))
            copy = self.copies.find(number >> 64, number & ANY_BATCH) if kind == COPY else None
            if copy is None or copy.queue not in made.taken:  # else there is a new one
                made.deletes.append(key(kind, number))
            if kind == "l":
                self._removal.end(number)
                self._safe.pop(number, None)
                self.reader.forget(number)
            work -= 1
        if work <= 0:
            return True
        puts, deletes = self._removal.export()
        made.puts += puts
        made.deletes += [*deletes, *self.copies.void()]
        return False

    def _export_next(self, made: QueueExport) -> int:
        """Returns the amount of work, in about as many messages examined."""
        if made.left:
            queue = made.left.pop()
            queue.dirty = False
            if queue.line.number:
                return self._export_copy(made, queue)
            state = self.manager.states.get(queue)
            changed = state in made.changed
        else:
            state, changed = made.changed.pop(), True
            queue = state.queue
        if state is None or not queue.durable or self.manager.states.get(queue) is not state:
            return 1
        if changed:
            made.changed.discard(state)
            made.recorded.append(state)
        made.taken.append(queue)
        self.looked += 1
        return self._export_queue(made, state, changed)

    def _export_copy(self, made: QueueExport, queue: Queue) -> int:
        """As of what is committed, which may be less than what this node has decided."""
        state, work = self.copies.find(queue.line.group, queue.number), WORK_OF_A_QUEUE
        if state is None or state.queue is not queue:
            return 1
        made.taken.append(queue)
        self.looked += 1
        row = self.copies.row(state)
        made.puts.append(row)
        for log in state.logs:
            source, needed = divided_source_of(log), queue.needs(log)
            kept, small = b"", log.disk in self._removal.damaged or (
                queue.kind == QUEUE_CLASSIC and log in queue.logs
                and unflushed_bytes(source, log.first, log.next) <= self.small_bytes)
            if small:
                kept = unflushed(source, needed, log.first, log.next)
                work += len(kept) // BYTES_OF_WORK
            else:
                export = Export(source, ANY_BATCH, needed, log.first, log.next)
                work += unflushed_bytes(source, log.first, log.next) // BYTES_OF_WORK
                if export.messages:
                    made.blocks.append((log, export))
            if kept:
                log.kept_upto = log.next
                made.puts.append((key("k", log.disk), log.next.to_bytes(8, "big") + kept))
            else:
                self._drop_kept(made, log)
            upto = stored_upto(source, log.first, log.next, not small)
            # Sealed: what segments have, it may have got from the log that has lent it, since it was written.
            sealed = not small and source.exporting != source.flushed
            if sealed or log.first != log.stored_first or upto != log.stored_next:
                made.logs.append((log, log.first, upto, None if small else source, queue))
        return work + len(row[1]) // BYTES_OF_WORK

    def _export_queue(self, made: QueueExport, state: QueueState, changed: bool) -> int:
        manager, queue, work = self.manager, state.queue, WORK_OF_A_QUEUE
        if changed:
            made.puts.append((key("q", queue.number), manager.queue_record(state).encoded()))
            if state.producers:
                producers = {name: (highest, bits.to_bytes(-(-bits.bit_length() // 8), "big"))
                             for name, (highest, bits) in state.producers.items()}
                made.puts.append((key("d", queue.number), msgspec.msgpack.encode(producers)))
                work += len(producers)
        for name, group in state.groups.items():
            work += self._export_group(made, state, group, name[1], changed)
        for log in queue.logs:
            # Files that could not be opened cannot be written, so messages that they do not have stay in the view.
            small = log.disk in self._removal.damaged or (
                queue.kind == QUEUE_CLASSIC and log.unflushed_bytes <= self.small_bytes)
            work += self._keep(made, queue, log) if small else self._export_log(made, queue, log)
        if queue.delays is not None:
            log, group = queue.delays.log, queue.delays.group
            take_over = self._keep if log.disk in self._removal.damaged else self._export_log
            work += self._export_group(made, state, group, b"", changed) + take_over(made, queue, log)
        return work

    def _export_group(self, made: QueueExport, state: QueueState, group: Group, pattern: bytes, changed: bool) -> int:
        group.flush_records()  # the view must not be ahead of the journal
        if not group.dirty and not changed:
            return 1
        record = self.manager.group_record(state, group, pattern)
        made.puts.append((key("g", group.number), msgspec.msgpack.encode((record, export_state(group)))))
        return 1 + group.claims

    def _keep(self, made: QueueExport, queue: Queue, log: Log) -> int:
        """Messages of a small log that no segment has, for the view; also those of batches after the checkpoint's."""
        if not log.unflushed_bytes:
            self._drop_kept(made, log)
        elif log.kept_upto != log.next:
            made.puts.append((key("k", log.disk), log.next.to_bytes(8, "big") + unflushed(log, queue.needs(log))))
            log.kept_upto = log.next
        if log.first != log.stored_first or log.flushed != log.stored_next:
            made.logs.append((log, log.first, log.flushed, None, queue))
        return 1

    @staticmethod
    def _drop_kept(made: QueueExport, log: Log) -> None:
        if log.kept_upto != NOTHING:
            log.kept_upto = NOTHING
            made.deletes.append(key("k", log.disk))

    def _export_log(self, made: QueueExport, queue: Queue, log: Log) -> int:
        work = 1
        self._drop_kept(made, log)
        if log.unflushed_bytes:
            export = Export(log, made.upto, queue.needs(log))
            work += log.unflushed_bytes // BYTES_OF_WORK
            if export.messages:
                made.blocks.append((log, export))
            if export.left:
                queue.mark_dirty()  # messages after the batch belong to the next checkpoint, even if no more follow
        if log.exporting != log.flushed or log.first != log.stored_first or log.flushed != log.stored_next:
            made.logs.append((log, log.first, log.exporting, log, queue))
        return work

    def give_back(self, made: QueueExport) -> None:
        """Called when there was no space for the export: the next one has it again, unless it has ended by then."""
        made.blocks.clear()
        self.manager.changed.update(state for state in made.recorded if state.queue in self.manager.states)
        for queue in made.taken:
            queue.mark_dirty()
        self.manager.ended += made.ended

    async def _in_thread(self, step: Callable[[], Any]) -> Any:
        """Runs a step in a thread. If the caller is cancelled, still waits, so that the store is not closed
        meanwhile."""
        self._work = self.driver.blocking(step)
        return await self.driver.result_of(self._work)

    async def idle(self) -> None:
        """Waits until nothing runs in an executor's thread."""
        if self._work is not None:
            await self.driver.end_of(self._work)

    async def write(self, made: QueueExport) -> AsyncIterator[None]:
        """Writes the export to the segments; then `made.take()` returns, in parts, the changes for the view. Raises
        ShortageError: the segments are unchanged; the caller must call give_back() and export again."""
        if self.segments is None:
            return
        safe = await self._in_thread(lambda: self._write_segments(made))
        made.blocks.clear()  # otherwise they would prevent the eviction of the chunks
        for at, (log, first, upto, source, queue) in enumerate(made.logs):
            if log.disk in safe:
                self._safe[log.disk] = safe[log.disk]
            meta = LogMeta(first, max(upto, first), self._safe.get(log.disk, 0))
            made.puts.append((key("l", log.disk), msgspec.msgpack.encode(meta)))
            log.stored_first, log.stored_next = meta.first, meta.next
            self._removal.moved(log.disk, first)
            if source is not None:
                source_of(log).exported()  # another one by now if the node leads, or leads no more
                state = self.manager.states.get(queue)
                if state is not None:  # messages settled meanwhile are not counted any more
                    self.manager.sums.measure(queue, state.groups.values())
            if at % EXPORT_WORK == EXPORT_WORK - 1:
                yield
        self.reader.evict()
        yield

    def _write_segments(self, made: QueueExport) -> dict[int, int]:
        """In an executor's thread."""
        assert self.segments is not None
        safe = {log.disk: self.segments.write(log.disk, blocks) for log, blocks in made.blocks}
        self.segments.sync([log.disk for log, _ in made.blocks])
        return safe

    async def written(self) -> None:
        """Called when the view is up to date: removes files that are not needed any more."""
        self._removal.written()
        await self._in_thread(self._removal.remove)


