"""What a state that has lost keys must be mended in, so that the broker starts and delivers all that is left.

    a log that no queue has       its messages are in segments or journal: it gets a queue, `recovered-<number>`
    a queue whose log has no `l`  the log would begin anew, below what its groups have settled: `l` is made again; it is
                                  moved where a `k` is lost that reached further
    a `k` that does not divide into messages          keeps the messages in front of the first that does not hold; with
                                  none of these it goes
    a session that names messages which are gone      goes on without them
    a row whose bytes hold and say nothing that can be true    goes, and what depends on it is treated as above; of a
                                  session and of a group what holds is kept (fluxmq/engine/stored.py)
    a namespace that has no name any more             gets one, `recovered-<number>`
    a binding whose exchange is gone                  goes (the broker drops it at a start); it is said

The groups of a queue whose own record is gone still name their logs, so such a queue gets its number and its groups
back, and with them what was settled and what is bound to it. Its name is lost, and so is what was declared.
"""
from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import msgspec

from fluxmq._core.disk.journal_format import iter_records
from fluxmq._core.disk.record_kinds import RecordKind
from fluxmq._core.disk.segment_format import file_first, log_name, log_number, messages_of
from fluxmq._core.errors import CorruptError
from fluxmq._core.hub.persist import Loader, namespace_key, session_entries, session_without
from fluxmq._core.queue.lanes import LANE_SHIFT
from fluxmq._core.queue.state import cursors_of
from fluxmq.engine.exchanges.records import BindingRecord
from fluxmq.engine.queues.delays import DELAY_GROUP
from fluxmq.engine.queues.records import GroupRecord, LogMeta, LogRecord, QueueRecord
from fluxmq.engine.stored import (
    WRONG_SHAPE,
    binding_of,
    copied_of,
    copy_of,
    exchange_of,
    group_of,
    head_of,
    meta_of,
    names_in,
    queue_of,
    row_problem,
    session_of,
    session_that_holds,
    shown,
)
from fluxmq.model.queues import QueueSpec
from fluxmq.storage.journal_files import read_batches
from fluxmq.storage.segment_recovery import UNKNOWN

__all__ = ["Mending", "kept_in", "mend", "synced_of"]

_OFFSET_AT = 8  # in a message: drawn in _core/queue/log.pxd
_NAMED_MAX = 20  # numbers in one line of a report

_EMPTY_STATE = b"\1" + bytes(4)  # of a group: version, no cursors

# What goes with a row of the state that does not hold, as long as nothing of it can be kept.
_GOES = {b"m": "the message is lost", b"s": "the session is lost, what waited for its client and its subscriptions",
         b"n": "it gets another name, and keeps what it has",
         b"p": "what that node sent last, and sends again, may be applied again",
         b"o": "that message is delivered again if it comes again from another node",
         b"h": "the cluster's value of that retained message counts, or this node's if the cluster has none",
         b"t": "it is lost", b"r": "it is lost", b"c": "deadlines go on from what the journal says of the clock",
         b"q": "its name and what it was declared as are lost; its messages are kept",
         b"g": "the group is lost: what it had settled is delivered again to one that is made anew",
         b"l": "where the log begins and ends is found out anew from its files and its groups",
         b"d": "which messages its producers had sent is forgotten: what they repeat counts as new",
         b"f": "another node's copy takes its place, and what is here of its messages is put into a queue of its own",
         b"a": "copies of the group are made anew from another node's",
         b"e": "the exchange is lost, and with it its bindings", b"b": "the binding is lost"}


@dataclass(slots=True)
class Mending:
    """holes: some row has the wrong shape. puts, deletes: for the view. unknown: logs that no queue has, and the queue
    that each gets. lines: what else is lost, one line each."""

    holes: bool = False
    puts: list[tuple[bytes, bytes]] = field(default_factory=list)
    deletes: list[bytes] = field(default_factory=list)
    unknown: dict[int, str] = field(default_factory=dict)
    lines: list[str] = field(default_factory=list)


@dataclass(slots=True)
class _State:
    """What view and journal say, by number."""

    queues: dict[int, QueueRecord] = field(default_factory=dict)
    groups: dict[int, tuple[GroupRecord, list[tuple[int, int]]]] = field(default_factory=dict)
    metas: dict[int, LogMeta] = field(default_factory=dict)
    going: set[int] = field(default_factory=set)        # logs that end, and those of copies: no queue has them
    ended: set[int] = field(default_factory=set)
    stored: set[int] = field(default_factory=set)       # logs that have messages in the view
    damaged_logs: set[int] = field(default_factory=set)  # whose messages in the view are invalid
    messages: set[int] = field(default_factory=set)
    named: set[int] = field(default_factory=set)        # messages that sessions name
    exchanges: set[int] = field(default_factory=set)
    bindings: dict[int, BindingRecord] = field(default_factory=dict)
    appended: dict[int, int] = field(default_factory=dict)   # log: its first offset in the journal
    lanes: dict[int, int] = field(default_factory=dict)     # of logs
    number_last: int = 0
    namespaces: set[int] = field(default_factory=lambda: {0})   # that have a name, or have ended
    used: set[int] = field(default_factory=set)             # namespaces that something is in


def mend(items: Iterable[tuple[bytes, bytes]], base: Path, applied: int, damaged: bool) -> Mending:
    """What is to be done to a view. items: all of it, in order. applied: the batch it reaches; the journal from there
    on can be read. damaged: keys may have been lost. Nothing is changed. Raises CorruptError, OSError."""
    mending = Mending()
    state = _State()
    for key, value in items:
        _view(state, mending, key, value)
    damaged = damaged or mending.holes
    _journal(state, base / "journal", applied)
    directories = _directories(base / "queues")
    _queues(state, mending, directories, damaged)
    for number in sorted(state.used - state.namespaces):
        name = f"recovered-{number}".encode()
        mending.puts.append((namespace_key(number), b"\1" + len(name).to_bytes(2, "big") + name))
        mending.lines.append(f"namespace {number} has lost its name: what it has is in {name.decode()} now")
    made = {key for key, _ in mending.puts}
    mending.deletes = [key for key in mending.deletes if key not in made]
    orphans = sorted(state.messages - state.named)
    if damaged and orphans:
        mending.lines.append(f"{len(orphans)} stored messages are named by no session any more and go with the next "
                           f"start: {_few(orphans)}")
    for number, binding in state.bindings.items() if damaged else ():
        if binding.source not in state.exchanges:
            mending.lines.append(f"binding {number:016x} with the key {_text(binding.key)} goes with the next start: "
                                 f"its exchange {binding.source:016x} is lost")
    return mending


def synced_of(items: Iterable[tuple[bytes, bytes]]) -> dict[int, range]:
    """By log, the offsets that a view says files have, which had been synced; of logs that have anything there."""
    metas = ((int.from_bytes(key[1:9], "big"), meta_of(value)) for key, value in items
             if key[:1] == b"l" and not row_problem(key, value))
    return {number: range(meta.first, meta.safe) for number, meta in metas if meta.safe > meta.first}


def _view(state: _State, mending: Mending, key: bytes, value: bytes) -> None:
    kind, number = key[:1], int.from_bytes(key[1:9], "big")
    if kind == b"t" and len(key) > 9:
        state.used.add(number)
    if kind in b"qgldxebk":
        state.number_last = max(state.number_last, number)
    if kind != b"k" and (problem := row_problem(key, value)):
        _wrong(state, mending, key, value, problem)
        return
    if kind == b"m":
        state.messages.add(number)
    elif kind == b"n":
        state.namespaces.add(number)
    elif kind == b"s":
        _use(state, session_of(Loader.head_of(value)).head.namespace)
        wanted = {message for message, *_ in session_entries(value) if message}
        missing = wanted - state.messages
        state.named |= wanted
        if missing:
            mending.puts.append((key, session_without(value, missing)))
            mending.lines.append(f"session {number} of client {_text(session_of(Loader.head_of(value)).head.name)}: "
                                 f"{len(missing)} messages are lost: {_few(sorted(missing))}")
    elif kind == b"q":
        state.queues[number] = queue_of(value)[0]
        state.used.add(state.queues[number].namespace)
    elif kind == b"g":
        record, copy = copy_of(value)
        state.groups[number] = record, cursors_of(copy)
    elif kind == b"l":
        meta = state.metas[number] = meta_of(value)
        state.lanes[number] = meta.first >> LANE_SHIFT
    elif kind in b"xf":
        state.going.update((number,) if kind == b"x" else copied_of(value)[1].values())
    elif kind == b"k":
        _small(state, mending, key, value)
    elif kind == b"e":
        state.exchanges.add(number)
        _use(state, exchange_of(value).namespace)
    elif kind == b"b":
        state.bindings[number] = binding_of(value)


def _wrong(state: _State, mending: Mending, key: bytes, value: bytes, problem: str) -> None:
    """A row whose bytes are those that were written, and say nothing that can be true."""
    kind = key[:1]
    if kind not in _GOES:
        raise CorruptError(f"the state has a {shown(key)} of a kind that this version does not know: use the program "
                           f"that wrote it")
    goes = _GOES[kind]
    kept = _kept(kind, value)
    if kept is None:
        mending.deletes += [key, b"a" + bytes(4) + key[1:5]] if kind == b"f" else [key]
    elif kind == b"s":
        mending.puts.append((key, kept))
        goes = "the session is kept, and those of its messages that stand in front of that"
        _view(state, mending, key, kept)
    else:
        mending.puts.append((key, kept))
        goes = "the group is kept; what it had settled is delivered again"
        _view(state, mending, key, kept)
    mending.holes = True
    names = ", ".join(repr(name) for name in names_in(Loader.head_of(value) if kept and kind == b"s" else value))
    mending.lines.append(f"{shown(key)}{f' ({names})' if names else ''}: what the state has of it is not what a broker "
                       f"writes there: {problem}; {goes}")


def _kept(kind: bytes, value: bytes) -> bytes | None:
    """What of a row with a problem can be kept, if anything."""
    try:
        if kind == b"s":
            session_of(Loader.head_of(value))
            return session_that_holds(value)[0]
        if kind == b"g":
            return msgspec.msgpack.encode((copy_of(value)[0], _EMPTY_STATE))
    except (CorruptError, *WRONG_SHAPE):
        pass
    return None


def _small(state: _State, mending: Mending, key: bytes, value: bytes) -> None:
    """The messages of a log that are in the view only. RocksDB checks the bytes, this what was written."""
    number, held, problem = int.from_bytes(key[1:9], "big"), *_holds(value)
    if problem:
        mending.lines.append(f"log {log_name(number)}: its messages in the state do not hold: {problem}; "
                           f"{len(held)} messages in front of that are kept")
    if problem and not held:
        mending.deletes.append(key)
        state.damaged_logs.add(number)
        return
    following = int.from_bytes(value[:8], "big")
    if problem:
        last, end = held[-1]
        if following <= last or following >> LANE_SHIFT != last >> LANE_SHIFT:
            following = last + 1
        mending.puts.append((key, following.to_bytes(8, "big") + value[8:end]))
    state.stored.add(number)
    state.lanes[number] = following >> LANE_SHIFT


def kept_in(value: bytes) -> tuple[int, str]:
    """(where the messages of a `k` end that hold, what is wrong behind that; "": all of it holds)."""
    held, problem = _holds(value)
    return (held[-1][1] if held else 8) if problem else len(value), problem


def _holds(value: bytes) -> tuple[list[tuple[int, int]], str]:
    """(offset, where it ends in the value) of the messages of a `k` up to the first that does not hold, and what is
    wrong; of one that is whole, without the messages."""
    if len(value) < 8:
        return [], f"{len(value)} bytes where an offset should be"
    following = int.from_bytes(value[:8], "big")
    try:
        offsets = [message[0] for message in messages_of(value[8:])]
        lanes = {offset >> LANE_SHIFT for offset in [*offsets, following]}
        if len(lanes) == 1 and all(a < b for a, b in pairwise([*offsets, following])):
            return [], ""
    except CorruptError:
        pass
    held: list[tuple[int, int]] = []
    at = 8
    while at < len(value):
        end = at + max(int.from_bytes(value[at:at + 4], "little"), 1)
        try:
            [message] = messages_of(value[at:end])
        except CorruptError:
            return held, f"byte {at} of {len(value)} begins no message"
        if held and (message[0] <= held[-1][0] or message[0] >> LANE_SHIFT != held[-1][0] >> LANE_SHIFT):
            return held, f"the message at byte {at} has offset {message[0]}, behind {held[-1][0]}"
        held.append((message[0], end))
        at = end
    return held, f"they end before offset {following}, and the last has offset {held[-1][0]}"


def _journal(state: _State, journal: Path, applied: int) -> None:
    for _, batch in read_batches(journal, applied) if journal.is_dir() else ():
        for kind, body in iter_records(batch):
            number = int.from_bytes(body[:8], "big")
            if kind == RecordKind.APPEND:
                at = 8 + _OFFSET_AT
                first = state.appended.setdefault(number, int.from_bytes(body[at:at + 8], "little"))
                state.lanes[number] = first >> LANE_SHIFT
            elif kind == RecordKind.QUEUE:
                state.queues[number] = queue_of(body[8:])[0]
                state.used.add(state.queues[number].namespace)
            elif kind == RecordKind.QUEUE_END:
                state.ended.add(number)
            elif kind == RecordKind.GROUP:
                state.groups.setdefault(number, (group_of(body[8:]), []))
            elif kind == RecordKind.EXCHANGE:
                state.exchanges.add(number)
                _use(state, exchange_of(body[8:]).namespace)
            elif kind == RecordKind.SESSION:
                _use(state, head_of(body[8:]).namespace)
                continue
            elif kind in (RecordKind.NAMESPACE, RecordKind.RETAINED, RecordKind.RETAINED_VERSION):
                (state.namespaces if kind == RecordKind.NAMESPACE else state.used).add(number)
                continue
            else:
                continue
            state.number_last = max(state.number_last, number)


def _use(state: _State, namespace: int | bytes) -> None:
    if isinstance(namespace, int):  # an earlier version wrote a name
        state.used.add(namespace)


def _directories(queues: Path) -> dict[int, tuple[Path, int]]:
    """(directory, first offset; -1 for none) of logs, also those that a start put aside."""
    directories = {}
    for entry in os.scandir(queues) if queues.is_dir() else ():
        number = log_number(entry.name.removesuffix(UNKNOWN))
        if number is not None and entry.is_dir():
            firsts = [first for name in os.listdir(entry.path) if (first := file_first(name)) is not None]
            directories[number] = Path(entry.path), min(firsts, default=-1)
    return directories


def _queues(state: _State, mending: Mending, directories: dict[int, tuple[Path, int]], damaged: bool) -> None:
    known = state.going.union(*({*(one.number for one in record.logs), record.delay}
                                for record in state.queues.values()))
    unknown = (state.metas.keys() | state.stored | {number for number, (_, first) in directories.items() if first >= 0}
               | (set(state.appended) if damaged else set())) - known
    state.number_last = max(state.number_last, *directories, *state.appended, *state.going, 0)
    for number, (_, first) in directories.items():
        state.lanes.setdefault(number, max(first, 0) >> LANE_SHIFT)
    reached: dict[int, int] = {}
    for _, cursors in state.groups.values():
        for log, upto in cursors:
            reached[log] = max(reached.get(log, 0), upto)
    for number, record in _recovered(state, unknown):
        logs = [one.number for one in record.logs] + ([record.delay] if record.delay else [])
        state.queues[number] = record
        mending.puts.append((b"q" + number.to_bytes(8, "big"), record.encoded()))
        mending.unknown |= dict.fromkeys(unknown.intersection(logs), record.declaration().name)
    for record in state.queues.values() if damaged or state.damaged_logs else ():
        for one in [*record.logs, *([LogRecord(record.delay, 0)] if record.delay else [])]:
            if not damaged and one.number not in state.damaged_logs:
                continue
            base = one.lane << LANE_SHIFT
            upto = state.appended.get(one.number, max(reached.get(one.number, base), base))
            old = state.metas.get(one.number, LogMeta(base, base, 0))
            if one.number not in state.stored and upto > old.next:  # `l` is lost, or the `k` that reached further
                meta = LogMeta(old.first, upto, old.safe)
                mending.puts.append((b"l" + one.number.to_bytes(8, "big"), msgspec.msgpack.encode(meta)))


def _recovered(state: _State, unknown: set[int]) -> Iterator[tuple[int, QueueRecord]]:
    """(number, record) of queues for logs that no queue has."""
    left = set(unknown)
    orphans: dict[int, dict[int, tuple[GroupRecord, list[tuple[int, int]]]]] = {}
    for number, (group, cursors) in state.groups.items():
        if group.queue not in state.queues and group.queue not in state.ended:
            orphans.setdefault(group.queue, {})[number] = group, cursors
    for queue, groups in sorted(orphans.items()):
        logs = {log: state.lanes.get(log, upto >> LANE_SHIFT) for group, cursors in groups.values()
                if group.name != DELAY_GROUP for log, upto in cursors if log in left}
        delays = [(cursors[0][0], number) for number, (group, cursors) in groups.items()
                  if group.name == DELAY_GROUP and cursors and cursors[0][0] in left]
        if logs or delays:
            left -= {*logs, *(log for log, _ in delays)}
            yield queue, _record(state, queue, logs, delays[0] if delays else (0, 0))
    for log in sorted(left):
        state.number_last += 1
        yield state.number_last, _record(state, log, {log: state.lanes.get(log, 0)}, (0, 0))


def _record(state: _State, named: int, logs: dict[int, int], delay: tuple[int, int]) -> QueueRecord:
    """logs: number to lane. Every partition has all lanes: those of which nothing is left are new logs."""
    lanes = max(logs.values(), default=0) + 1
    by_lane = [sorted(log for log, lane in logs.items() if lane == each) for each in range(lanes)]
    partitions = max(1, *(len(each) for each in by_lane))
    records = []
    for partition in range(partitions):
        for lane, each in enumerate(by_lane):
            if partition < len(each):
                records.append(LogRecord(each[partition], lane))
            else:
                state.number_last += 1
                records.append(LogRecord(state.number_last, lane))
    spec = QueueSpec(name=f"recovered-{named:x}", type="classic", partitions=partitions, max_priority=lanes - 1)
    return QueueRecord(spec, records, *delay)


def _text(name: bytes) -> str:
    return repr(name.decode(errors="backslashreplace"))


def _few(numbers: list[int]) -> str:
    return ", ".join(str(number) for number in numbers[:_NAMED_MAX]) + (
        f" and {len(numbers) - _NAMED_MAX} more" if len(numbers) > _NAMED_MAX else "")
