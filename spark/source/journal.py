"""Queues in a storage directory: the view (RocksDB, opened read-only) and the journal after it. Formats:
docs/internals/storage.md, and queues.md, Records. Nothing is written and no lock is taken, so a broker may run."""
from __future__ import annotations

import bisect
import struct
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import msgspec
from rocksdict import AccessType, Options, Rdict

from fluxmq._core.disk.journal_format import FILE_HEADER_SIZE, batch_at, decode_file_header, file_name, file_number
from fluxmq._core.disk.record_kinds import RecordKind
from fluxmq._core.errors import CorruptError
from fluxmq._core.queue.lanes import OFFSET_MASK
from fluxmq._core.queue.rows import scan_batch
from fluxmq.model.queue_arguments import Declared, read_arguments, spec_of
from fluxmq.model.queues import QueueSpec
from fluxmq.spark.source.columns import SourceError

__all__ = ["Behind", "Group", "Stored", "StoredLog", "read_small", "read_state", "walk_journal"]

PAGE_BYTES = 8192
PAGE_BITS = 16
APPLIED_KEY = b"\x00applied"
# A checkpoint before it is put in place, as fluxmq/storage/staged.py writes it: it is valid if READY exists.
PART = b"\x00staged"
READY = b"\x00staging"


class Behind(Exception):
    """The journal begins after what was read before it, because the broker took a checkpoint meanwhile. Read again."""


class QueueRecord(msgspec.Struct, array_like=True):
    """A queue in view and journal, as engine/queues/records.py writes it. It has spec or declared. logs: (number,
    lane), partition-major."""

    spec: QueueSpec | None
    logs: list[tuple[int, int]]
    delay: int = 0
    delay_group: int = 0
    declared: Declared | None = None
    namespace: int = 0

    def declaration(self, namespaces: Mapping[int, str]) -> QueueSpec:
        """The queue's declaration as under `queues:`. namespaces: names by number. Raises CorruptError."""
        if self.namespace not in namespaces:
            raise CorruptError(f"namespace {self.namespace} has no name")
        if self.declared is not None:
            spec = spec_of(self.declared, read_arguments(self.declared))
        elif self.spec is not None:
            spec = self.spec
        else:
            raise CorruptError("the record of a queue does not say what the queue is")
        # An earlier version wrote the name into AMQP's declaration, and no number.
        return msgspec.structs.replace(spec, namespace=namespaces[self.namespace]) if self.namespace else spec


class Group:
    """What a group has settled of one log: all below `floor`, and spans above it (ascending, disjoint)."""

    def __init__(self, floor: int) -> None:
        self.floor = floor
        self.spans: list[tuple[int, int]] = []

    def settle(self, first: int, end: int) -> None:
        at = bisect.bisect_left(self.spans, first, key=lambda span: span[1])
        upto = at
        while upto < len(self.spans) and self.spans[upto][0] <= end:
            first, end = min(first, self.spans[upto][0]), max(end, self.spans[upto][1])
            upto += 1
        self.spans[at:upto] = [(first, end)]

    def settled_ranges(self, start: int, end: int) -> list[tuple[int, int]]:
        """The settled parts of [start, end)."""
        found = [(start, min(self.floor, end))] if self.floor > start else []
        found += [(max(first, start), min(last, end)) for first, last in self.spans if first < end and last > start]
        return found


@dataclass
class StoredLog:
    """first, next: offsets. appended: bytes of messages in the journal, or in the view."""

    first: int
    next: int
    appended: int = 0


@dataclass
class Stored:
    """The contents of view and journal. batch: the last batch of the journal that is included."""

    batch: int = 0
    namespaces: dict[int, str] = field(default_factory=lambda: {0: "/"})
    queues: dict[int, QueueRecord] = field(default_factory=dict)
    logs: dict[int, StoredLog] = field(default_factory=dict)
    groups: dict[int, tuple[int, dict[int, Group]]] = field(default_factory=dict)      # queue; by log

    def load(self, kind: bytes, number: int, value: bytes) -> None:
        """Reads one row of the view."""
        if kind == b"n":
            self._name(number, value)
        elif kind == b"q":
            self.queues[number] = msgspec.msgpack.decode(value, type=QueueRecord)
        elif kind == b"l":
            first, following, _ = msgspec.msgpack.decode(value, type=tuple[int, int, int])
            self.logs[number] = StoredLog(first, following)
        elif kind == b"k":
            following = int.from_bytes(value[:8], "big")
            log = self.logs.setdefault(number, StoredLog(following & ~OFFSET_MASK, following))
            log.next = max(log.next, following)
            log.appended += len(value) - 8
        elif kind == b"g":
            record, state = msgspec.msgpack.decode(value, type=tuple[list[Any], bytes])
            self.groups[number] = (record[0], _cursors(state))

    def replay(self, kind: int, body: bytes) -> None:
        """Applies one record of the journal."""
        number = int.from_bytes(body[:8], "big")
        if kind == RecordKind.SETTLE:
            _, log, first, count = struct.unpack(">QQQI", body)
            self._cursor(number, log).settle(first, first + count)
        elif kind == RecordKind.CURSOR:
            _, log, first = struct.unpack(">QQQ", body)
            cursor = self._cursor(number, log)
            cursor.floor, cursor.spans = first, []         # all below is settled, nothing above is
        elif kind == RecordKind.NAMESPACE:
            self._name(number, body[8:])
        elif kind == RecordKind.QUEUE:
            self.queues[number] = msgspec.msgpack.decode(body[8:], type=QueueRecord)
        elif kind == RecordKind.QUEUE_END:
            self.queues.pop(number, None)
        elif kind == RecordKind.GROUP:
            queue = msgspec.msgpack.decode(body[8:], type=list[Any])[0]
            self.groups.setdefault(number, (queue, {}))
        elif kind == RecordKind.GROUP_END:
            self.groups.pop(number, None)
        elif kind == RecordKind.TRIM:
            first = int.from_bytes(body[8:16], "big")
            log_ = self.logs.setdefault(number, StoredLog(first, first))
            log_.first, log_.next = max(log_.first, first), max(log_.next, first)

    def _name(self, number: int, record: bytes) -> None:
        """Reads a name as _core/memory/namespace.pyx writes it: u8 flags, u16 length, name; an empty name: it has
        ended."""
        if record[3:]:
            self.namespaces[number] = record[3:].decode()

    def _cursor(self, group: int, log: int) -> Group:
        return self.groups.setdefault(group, (0, {}))[1].setdefault(log, Group(0))

    def tallied(self, tally: dict[int, list[int]]) -> None:
        """Adds messages of the journal, by log."""
        for number, (first, last, size) in tally.items():
            log = self.logs.setdefault(number, StoredLog(first, first))
            log.next = max(log.next, last + 1)
            log.appended += size

    def settled_ranges(self, queue: int, log: int, start: int, end: int) -> list[tuple[int, int]]:
        """The parts of [start, end) that every group of a queue has settled; none without a group."""
        groups = [cursors.get(log) or Group(0) for owner, cursors in self.groups.values() if owner == queue]
        if not groups:
            return []
        found = groups[0].settled_ranges(start, end)
        for group in groups[1:]:
            found = _both(found, group.settled_ranges(start, end))
        return found


def _both(one: list[tuple[int, int]], other: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """The intersection of two lists of spans; each ascending."""
    found = []
    i = j = 0
    while i < len(one) and j < len(other):
        first, end = max(one[i][0], other[j][0]), min(one[i][1], other[j][1])
        if first < end:
            found.append((first, end))
        if one[i][1] < other[j][1]:
            i += 1
        else:
            j += 1
    return found


def _cursors(state: bytes) -> dict[int, Group]:
    """Decodes a group's cursors; _core/queue/state.pyx has the format."""
    version, count = struct.unpack_from(">BI", state)
    if version != 1:
        raise SourceError(f"the state of a group is of version {version}, this program reads version 1: the broker is "
                          f"newer than the data source")
    found, at = {}, 5
    for _ in range(count):
        log, _, floor, pages, claims = struct.unpack_from(">QQQII", state, at)
        at += 32
        cursor = found[log] = Group(floor)
        for _ in range(pages):
            base = struct.unpack_from(">Q", state, at)[0] << PAGE_BITS
            bits = int.from_bytes(state[at + 8:at + 8 + PAGE_BYTES], "little")
            at += 8 + PAGE_BYTES
            while bits:
                first = (bits & -bits).bit_length() - 1
                run = ~(bits >> first)
                length = (run & -run).bit_length() - 1
                cursor.settle(base + first, base + first + length)
                bits &= ~(((1 << length) - 1) << first)
        at += 18 * claims
    return found


@contextmanager
def _view(directory: Path) -> Iterator[Rdict | None]:
    """None: it has not been written yet. Raises RocksDB's errors while a broker changes its files."""
    state = directory / "state"
    if not (state / "CURRENT").exists():
        yield None
        return
    with tempfile.TemporaryDirectory(prefix="fluxmq-view-") as logs:
        options = Options(raw_mode=True)
        options.set_db_log_dir(logs)        # otherwise it would write its log beside the broker's
        view = Rdict(str(state), options, access_type=AccessType.read_only())
        try:
            yield view
        finally:
            view.close()


def _staged(view: Rdict) -> tuple[int | None, dict[bytes, bytes | None]]:
    """The changes of a checkpoint that is not in place yet (None: a deleted key), and its batch; None: there is no such
    checkpoint. Some of it may be in place already."""
    ready = cast("bytes | None", view.get(READY))
    if ready is None:
        return None, {}
    changes: dict[bytes, bytes | None] = {}
    for number in range(int.from_bytes(ready[:8], "big")):
        part = cast("bytes | None", view.get(PART + number.to_bytes(4, "big")))
        if part is None:
            raise SourceError(f"the state of the broker lacks part {number} of a checkpoint; `fluxmq log verify` says "
                              f"more")
        puts, deletes = msgspec.msgpack.decode(part, type=tuple[list[bytes], list[bytes]])
        changes.update(zip(puts[::2], puts[1::2], strict=True))
        changes.update(dict.fromkeys(deletes))
    return int.from_bytes(ready[8:], "big"), changes


def read_view(directory: Path, stored: Stored) -> None:
    """Raises SourceError, and RocksDB's errors while a broker changes its files."""
    with _view(directory) as view:
        if view is None:
            return
        batch, changes = _staged(view)
        if batch is None:
            batch = int.from_bytes(cast(bytes, view.get(APPLIED_KEY) or b""), "little")
        stored.batch = batch
        for kind in (b"n", b"q", b"l", b"k", b"g"):
            for key, value in cast("Iterator[tuple[bytes, bytes]]", view.items(from_key=kind)):
                if key[:1] != kind:
                    break
                if key not in changes:
                    stored.load(kind, int.from_bytes(key[1:], "big"), value)
            for key, changed in changes.items():
                if key[:1] == kind and changed is not None:
                    stored.load(kind, int.from_bytes(key[1:], "big"), changed)


def read_small(directory: Path, log: int) -> bytes:
    """Messages of a small log that are in the view, and neither in segments nor in the journal any more. Raises as
    read_view does."""
    with _view(directory) as view:
        if view is None:
            return b""
        key = b"k" + log.to_bytes(8, "big")
        changes = _staged(view)[1]
        found = changes[key] if key in changes else view.get(key)
        return cast(bytes, found or b"")[8:]


def walk_journal(directory: Path, after: int | None = None) -> Iterator[tuple[int, memoryview]]:
    """(number, records) of each batch above `after` (None: all), in order, up to the first invalid one. Raises Behind
    if the files begin later or were deleted, SourceError for a newer format or a damaged file."""
    where = directory / "journal"
    numbers = sorted(number for number in map(file_number, (path.name for path in where.iterdir())) if number)
    due = 0
    for number in numbers:
        path = where / file_name(number)
        try:
            data = memoryview(path.read_bytes())
        except FileNotFoundError:
            raise Behind from None
        if not any(data[:FILE_HEADER_SIZE]):
            continue
        try:
            _, first, file_id = decode_file_header(data)
        except CorruptError as error:
            if not path.exists() or bytes(data[:8]) != path.open("rb").read(8):
                raise Behind from None
            raise SourceError(f"{path} cannot be read: {error}") from None
        if due and first != due:
            if not path.exists():
                raise Behind
            raise SourceError(f"{path} begins with batch {first}, though batch {due} is in no file before it; "
                              f"`fluxmq log verify {directory}` says more")
        if not due and after is not None and first > after + 1:
            raise Behind
        due = first
        here = FILE_HEADER_SIZE
        while (found := batch_at(data, here, file_id, due)) is not None:
            if after is None or due > after:
                yield due, data[found[0]:found[1]]
            here, due = found[1], due + 1
        if not path.exists():
            raise Behind            # and may have been overwritten meanwhile


def read_state(directory: Path, known: Stored | None = None) -> Stored:
    """Reads view and journal, or what the journal has after `known`. Raises Behind, SourceError."""
    stored = known
    if stored is None:
        stored = Stored()
        read_view(directory, stored)
    tally: dict[int, list[int]] = {}
    for number, records in walk_journal(directory, stored.batch):
        for kind, body in scan_batch(records, tally):
            stored.replay(kind, body)
        stored.batch = number
    stored.tallied(tally)
    return stored
