"""Queues on disk and back: their part of recovery and of checkpoints (Keeper in durability.py), and what readers miss.

    view       q<number> QueueRecord    g<number> [GroupRecord, state]    l<number> LogMeta    d<number> producers
    segments   messages that outlived a journal file
    journal    the rest

Messages come to life in this order: the view says what there is and from where to where, the segments have what is
below `next` there, the journal appends. What the journal says of messages that segments hold already changes nothing.
"""
from __future__ import annotations

import asyncio
import heapq
import logging
from collections.abc import Callable
from typing import Any

import msgspec

from fluxmq._core.errors import CorruptError, FluxError
from fluxmq._core.queue import Queue
from fluxmq._core.queue_group import Group
from fluxmq._core.queue_log import Log
from fluxmq._core.queue_state import export_state, replay, restore_state
from fluxmq.engine.ports import SegmentFiles
from fluxmq.engine.queue_properties import users_of
from fluxmq.engine.queue_records import GroupRecord, QueueRecord, RecordKind
from fluxmq.engine.queue_sequences import with_sequence
from fluxmq.engine.queues import KINDS, NOTHING, QueueManager, QueueState

__all__ = ["QueueExport", "QueueKeeper"]

READ_BYTES = 1 << 20
OFFSET_BYTES_AT = 8  # of the offset in a message


class LogMeta(msgspec.Struct, array_like=True):
    """A log in the view. first, next: offsets; below next all that is kept is in segments. safe: what these synced."""

    first: int
    next: int
    safe: int


_decode_queue = msgspec.msgpack.Decoder(QueueRecord).decode
_decode_group = msgspec.msgpack.Decoder(GroupRecord).decode
_decode_copy = msgspec.msgpack.Decoder(tuple[GroupRecord, bytes]).decode
_decode_meta = msgspec.msgpack.Decoder(LogMeta).decode
_decode_producers = msgspec.msgpack.Decoder(dict[bytes, tuple[int, bytes]]).decode


def key(kind: str, number: int) -> bytes:
    return kind.encode() + number.to_bytes(8, "big")


class QueueExport:
    """What a checkpoint takes over. blocks: (log, what Log.export gave). logs: those whose meta changed."""

    def __init__(self) -> None:
        self.puts: list[tuple[bytes, bytes]] = []
        self.deletes: list[bytes] = []
        self.blocks: list[tuple[Log, list[Any]]] = []
        self.logs: list[tuple[Log, int, int]] = []  # log, first, next as they were in that instant
        self.ended_logs: list[int] = []


class QueueKeeper:
    """Machine, with the driver of its disk reads. segments: None keeps nothing. cache_bytes: of messages that are on
    disk and in memory too. on_fail: the disk failed for good."""

    def __init__(self, manager: QueueManager, segments: SegmentFiles | None, cache_bytes: int,
                 on_fail: Callable[[FluxError], None]) -> None:
        self.manager = manager
        self.segments = segments
        self.cache_bytes = cache_bytes
        self.on_fail = on_fail
        self.groups: dict[int, Group] = {}
        self.logs: dict[int, tuple[QueueState, Log]] = {}
        self._queues: dict[int, QueueRecord] = {}
        self._copies: dict[int, tuple[GroupRecord, bytes]] = {}
        self._metas: dict[int, LogMeta] = {}
        self._producers: dict[int, dict[bytes, tuple[int, bytes]]] = {}
        self._files: dict[int, Any] = {}
        self._by_number: dict[int, QueueState] = {}
        self._safe: dict[int, int] = {}  # by log: what segments had synced
        self._firsts: dict[int, int] = {}  # by log: `first` as the view has it
        self._log = logging.getLogger("fluxmq.queues")
        manager.on_stalled = self.read_for
        manager.offset_at_time = self.offset_at_time  # type: ignore[method-assign]

    # ------------------------------------------------------------------ recovery

    def load(self, kind: bytes, number: int, value: bytes) -> None:
        """One value of the view."""
        self.manager.number_last = max(self.manager.number_last, number)
        if kind == b"q":
            self._queues[number] = _decode_queue(value)
        elif kind == b"g":
            self._copies[number] = _decode_copy(value)
        elif kind == b"l":
            self._metas[number] = _decode_meta(value)
        else:
            self._producers[number] = _decode_producers(value)

    def loaded(self) -> None:
        """The view is read: opens the segments, and makes what they and the view have."""
        if self.segments is not None:
            # Of a log of which nothing is kept there need not be any file: one that is torn was only just begun.
            self._files = dict(self.segments.open({number: meta.safe for number, meta in self._metas.items()
                                                   if meta.safe > meta.first}))
        for number, record in self._queues.items():
            self._adopt(number, record)
        for number, (record_, state) in self._copies.items():
            group = self.groups.get(number) or self._adopt_group(number, record_)
            if group is not None:
                restore_state(group, state)
        for number, producers in self._producers.items():
            state_ = self._by_number.get(number)
            if state_ is not None:
                state_.producers = {name: (highest, int.from_bytes(bits, "big"))
                                    for name, (highest, bits) in producers.items()}

    def _make_log(self, number: int, lane: int) -> Log:
        base = lane << 56
        meta = self._metas.get(number) or LogMeta(base, base, 0)
        files = self._files.get(number)
        upto = max(meta.next, files.next if files is not None else base)
        self.manager.number_last = max(self.manager.number_last, number)
        self._safe[number] = max(meta.safe, files.next if files is not None else 0)
        return Log(self.manager.hub.ledger, number, lane=lane, first=meta.first, next=upto)

    def _adopt(self, number: int, record: QueueRecord) -> QueueState:
        logs = [self._make_log(one.number, one.lane) for one in record.logs]
        queue = Queue(self.manager.hub.ledger, number, record.spec.name.encode(), KINDS[record.spec.type], logs,
                      record.spec.lanes)
        state = self.manager.adopt(record.spec, queue)
        self._by_number[number] = state
        for log in logs:
            self.logs[log.number] = (state, log)
        self._adopt_delay(state, record)
        return state

    def _adopt_delay(self, state: QueueState, record: QueueRecord) -> None:
        if record.delay and state.delay is None:
            self.manager.adopt_delay(state, record.delay, record.delay_group)
            log = self._make_log(record.delay, 0)
            group = Group(self.manager.hub.ledger, record.delay_group, b"$delay")
            group.add_cursor(log, 0, 0)
            state.delay, state.delay_group = log, group
            self.logs[record.delay] = (state, log)
            self.groups[record.delay_group] = group
            self.manager.number_last = max(self.manager.number_last, record.delay_group)

    def _adopt_group(self, number: int, record: GroupRecord) -> Group | None:
        state = self._by_number.get(record.queue)
        if state is None:
            return None
        self.manager.number_last = max(self.manager.number_last, number)
        group = self.groups[number] = self.manager.adopt_group(state, number, record)
        return group

    def replay(self, kind: int, number: int, body: bytes) -> None:
        """One record of the journal that belongs to queues; body: what follows its number."""
        if kind == RecordKind.APPEND:
            self._replay_append(number, body)
        elif kind in (RecordKind.CLAIM, RecordKind.SETTLE, RecordKind.RETURN, RecordKind.CURSOR):
            group = self.groups.get(number)
            if group is not None:
                replay(group, kind, number.to_bytes(8, "big") + body)
        elif kind == RecordKind.QUEUE:
            self._replay_queue(number, _decode_queue(body))
        elif kind == RecordKind.QUEUE_END:
            state = self._by_number.pop(number, None)
            if state is not None:
                self._forget(state)
        elif kind == RecordKind.GROUP:
            self._replay_group(number, _decode_group(body))
        elif kind == RecordKind.GROUP_END:
            self._replay_group_end(number)
        elif kind == RecordKind.TRIM:
            found = self.logs.get(number)
            if found is not None:
                found[1].trim(int.from_bytes(body, "big"))
        else:
            raise CorruptError(f"the journal has a record of kind {kind}, which this version does not know")

    def _replay_append(self, number: int, body: bytes) -> None:
        found = self.logs.get(number)
        if found is None:
            return  # its queue ended later in the journal
        state, log = found
        log.replay(body)
        if b"producer-id" in body:
            told = dict(users_of(log_properties(body)))
            sequence = told.get(b"producer-sequence", b"")
            if b"producer-id" in told and sequence.isdigit():
                producer = told[b"producer-id"]
                state.producers[producer] = with_sequence(state.producers.get(producer), int(sequence))
                self.manager.changed.add(state)

    def _replay_queue(self, number: int, record: QueueRecord) -> None:
        state = self._by_number.get(number)
        if state is None:
            known = self.manager.queues.get(record.spec.name.encode())
            if known is not None and known.queue.number > number:
                return  # the view knows one of this name that was made after this one's end
            state = self._adopt(number, record)
        else:
            self.manager.change(state, record.spec)
            self._adopt_delay(state, record)
        self.manager.changed.add(state)

    def _replay_group(self, number: int, record: GroupRecord) -> None:
        state = self._by_number.get(record.queue)
        known = state.groups.get((record.name, record.pattern)) if state is not None else None
        if known is None or known.number < number:  # else the view knows it, or one that came after its end
            self._adopt_group(number, record)

    def _replay_group_end(self, number: int) -> None:
        group = self.groups.pop(number, None)
        for state in self._by_number.values():
            for name, known in list(state.groups.items()):
                if known is group:
                    self.manager.drop_quietly(state, name)

    def _forget(self, state: QueueState) -> None:
        for log in [*state.queue.logs, *([state.delay] if state.delay is not None else [])]:
            self.logs.pop(log.number, None)
        for group in state.groups.values():
            self.groups.pop(group.number, None)
        self.manager.forget(state)

    def finish(self) -> dict[str, int]:
        """Everything is replayed: what is derived is derived. Returns what was found, for the log."""
        for state in self.manager.queues.values():
            if state.delay is not None:
                self._find_delayed(state)
            state.queue.notify()
        known = set(self.logs)
        for number in self._files:
            if number not in known:
                self.manager.ended.append(("l", number))
        self._files.clear()
        self._queues.clear()
        self._copies.clear()
        self._metas.clear()
        self._producers.clear()
        if not self.manager.queues:
            return {}
        return {"queues": len(self.manager.queues),
                "queue_messages": sum(state.queue.depth for state in self.manager.queues.values())}

    def _find_delayed(self, state: QueueState) -> None:
        log, group = state.delay, state.delay_group
        assert log is not None and group is not None
        found: list[tuple[int, int]] = []
        if self.segments is not None:
            pairs = self.segments.due_index(log.number)
            found = [(pairs[i], pairs[i + 1]) for i in range(0, len(pairs), 2) if pairs[i + 1] < log.flushed]
        message = log.at_or_above(log.flushed) if log.flushed < log.next else None
        while message is not None:
            found.append((message.not_before, message.offset))
            message = log.at_or_above(message.offset + 1) if message.offset + 1 < log.next else None
        state.delayed = [one for one in found if not group.is_settled(log.number, one[1])]
        heapq.heapify(state.delayed)

    # ------------------------------------------------------------------ checkpoints

    def export(self, upto: int) -> QueueExport:
        """All that changed, in one instant; messages of journal files up to a batch that somebody still needs."""
        manager, made = self.manager, QueueExport()
        for state in manager.queues.values():
            queue = state.queue
            if not queue.durable:
                continue
            changed = state in manager.changed
            if changed:
                made.puts.append((key("q", queue.number), msgspec.msgpack.encode(manager.queue_record(state))))
                producers = {name: (highest, bits.to_bytes(-(-bits.bit_length() // 8), "big"))
                             for name, (highest, bits) in state.producers.items()}
                made.puts.append((key("d", queue.number), msgspec.msgpack.encode(producers)))
            for name, group in state.groups.items():
                self.groups[group.number] = group
                group.flush_records()  # the view may not know what the journal was not told
                if group.dirty or changed:
                    record = GroupRecord(queue.number, name[0], group.mode, name[1])
                    made.puts.append((key("g", group.number), msgspec.msgpack.encode((record, export_state(group)))))
            for log in queue.logs:
                self.logs.setdefault(log.number, (state, log))
                self._export_log(made, log, queue.needs(log), upto, changed)
            if state.delay is not None and state.delay_group is not None:
                self.logs.setdefault(state.delay.number, (state, state.delay))
                self.groups[state.delay_group.number] = state.delay_group
                self._export_log(made, state.delay, None, upto, changed)
                state.delay_group.flush_records()
                record = GroupRecord(queue.number, b"$delay")
                made.puts.append((key("g", state.delay_group.number),
                                  msgspec.msgpack.encode((record, export_state(state.delay_group)))))
        manager.changed.clear()
        ended, manager.ended = manager.ended, []
        made.deletes = [key(kind, number) for kind, number in ended]
        made.ended_logs = [number for kind, number in ended if kind == "l"]
        return made

    def _export_log(self, made: QueueExport, log: Log, needed: Any, upto: int, changed: bool) -> None:
        blocks = log.export(upto, needed) if log.unflushed_bytes else []
        if blocks:
            made.blocks.append((log, blocks))
        if blocks or log.exporting != log.flushed or changed or log.first != self._firsts.get(log.number, -1):
            made.logs.append((log, log.first, log.exporting))

    async def write(self, made: QueueExport) -> None:
        """The segments take over what was exported; what the view must know of it joins made.puts."""
        if self.segments is None:
            return
        loop = asyncio.get_running_loop()
        safe = await loop.run_in_executor(None, self._write_segments, made)
        for log, first, upto in made.logs:
            if log.number in safe:
                self._safe[log.number] = safe[log.number]
            meta = LogMeta(first, max(upto, first), self._safe.get(log.number, 0))
            made.puts.append((key("l", log.number), msgspec.msgpack.encode(meta)))
            self._firsts[log.number] = first
            log.exported()
        self._evict()

    def _write_segments(self, made: QueueExport) -> dict[int, int]:
        """In an executor's thread."""
        assert self.segments is not None
        safe = {log.number: self.segments.write(log.number, blocks) for log, blocks in made.blocks}
        self.segments.sync([log.number for log, _ in made.blocks])
        return safe

    async def written(self, made: QueueExport) -> None:
        """The view knows: files that nobody needs any more go."""
        if self.segments is None:
            return
        await asyncio.get_running_loop().run_in_executor(None, self._remove_segments, made)

    def _remove_segments(self, made: QueueExport) -> None:
        assert self.segments is not None
        for number in made.ended_logs:
            self.segments.remove(number)
        for log, first, _ in made.logs:
            self.segments.trim(log.number, first)

    def _evict(self) -> None:
        """The logs whose oldest cached chunk was read longest ago give way first; what was just read in never does."""
        logs = [log for _, log in self.logs.values()]
        excess = sum(log.cached for log in logs) - self.cache_bytes
        if excess <= 0:
            return
        for log in sorted((log for log in logs if log.coldest >= 0), key=lambda log: log.coldest):
            excess -= log.evict(excess, True)
            if excess <= 0:
                return

    # ------------------------------------------------------------------ reading

    def read_for(self, queue: Queue) -> None:
        """Somebody reads what is on disk only: brings it in."""
        if self.segments is None:
            return
        state = self.manager.states.get(queue)
        for log in [*queue.logs, *([state.delay] if state is not None and state.delay is not None else [])]:
            if log.wanted != NOTHING and not log.loading:
                log.loading = True
                asyncio.get_running_loop().create_task(self._read(queue, log, log.wanted))

    async def _read(self, queue: Queue, log: Log, offset: int) -> None:
        assert self.segments is not None
        try:
            first, covers, blocks = await asyncio.get_running_loop().run_in_executor(
                None, self.segments.read, log.number, offset, READ_BYTES)
            if not blocks:
                first, covers = offset, log.flushed  # settled by everybody before it would have been written
            log.load(min(first, offset), covers, blocks)
        except FluxError as error:
            self._log.error(f"messages cannot be read: {error}", extra={"queue": queue.name.decode(), "offset": offset})
            self.on_fail(error)
            return
        self._evict()
        queue.notify()

    def offset_at_time(self, log: Log, time_ms: int) -> int:
        """The first message of this time or later, by the index of the segments, else in memory."""
        if self.segments is not None and log.first < log.flushed:
            found = self.segments.offset_at_time(log.number, time_ms)
            if found is not None and found < log.flushed:
                return max(found, log.first)
        found = log.position_of_time(time_ms)
        return max(found, log.first) if found is not None else log.next


def log_properties(message: bytes) -> bytes:
    """The properties of a message as it stands in a log (drawn in _core/queue_log.pxd)."""
    topic = int.from_bytes(message[44:46], "little")
    size = int.from_bytes(message[40:44], "little")
    return message[48 + topic:48 + topic + size]
