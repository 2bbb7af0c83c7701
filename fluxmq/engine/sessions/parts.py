"""The parts in which a session goes to another node (sessions/transfer.py), and the steps by which it arrives there.

    part     ┌─────────┬──────┬────────┬──────────┐
             │ version │ kind │ number │ contents │     number: from 0 on, without a gap up to END
             │ u8 = 1  │ u8   │ u32    │          │
             └─────────┴──────┴────────┴──────────┘
      1 HEAD             msgpack MovedHead                   always the first
      2 SUBSCRIPTIONS    msgpack MovedSubscriptions
      3 RECEIVED         u16 × n                             inbound QoS 2 identifiers that await their PUBREL
      4 ENTRIES          entries                             in flight and in the line (_core/hub/transfer.pxd)
      5 END              u64 sequence, u16 packet id, u64 dropped messages
      6 TAIL             u64 after, u64 upto, then entries   what came later; number is 0

An ARRIVAL record is a step of an arrival: a part as it came, so that a replay does what was done when it came;
activation; or that another arrival joins the session. HEAD alone is not recorded so: it becomes the SESSION record.
Steps are numbered, and Moved.steps is part of the session's row in the view, so a replay skips those that the view has.
"""
from __future__ import annotations

import struct
from collections.abc import Set as AbstractSet
from typing import Annotated, NamedTuple, TypeVar

import msgspec
from msgspec import Meta

from fluxmq._core.errors import ProtocolError
from fluxmq._core.hub.transfer import (
    check_entries,
    check_properties,
    continue_behind,
    insert_entries,
    merge_sessions,
    restore_entries,
    sequence_of,
    without_entries,
)
from fluxmq._core.pubsub.session import Session
from fluxmq._core.wire.queue_address import QUEUE_PREFIX
from fluxmq._core.wire.text import check_filter, check_topic, is_text, split_share
from fluxmq.engine.sessions.state import ACTIVE, ORIGINS_MAX, WHOLE, Moved, SessionState, Subscription, Will
from fluxmq.model.mqtt import ReasonCode

__all__ = ["ACTIVATE", "END", "ENTRIES", "HEAD", "HEADER_BYTES", "JOIN", "PART", "RECEIVED", "SUBSCRIPTIONS", "TAIL",
           "MovedHead", "MovedSubscriptions", "Part", "Step", "begin_of", "check_part", "end_of", "head_of", "part_of",
           "read_step", "step_of", "tail_of", "tail_range", "take_step", "without"]

T = TypeVar("T")
VERSION = 1
HEAD, SUBSCRIPTIONS, RECEIVED, ENTRIES, END, TAIL = range(1, 7)
PART, ACTIVATE, JOIN = 1, 2, 3  # `what` of an ARRIVAL record
U63 = Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]
Name = Annotated[bytes, Meta(max_length=1024)]

_HEADER = struct.Struct(">BBI")
_END = struct.Struct(">QHQ")
_TAIL = struct.Struct(">QQ")
_STEP = struct.Struct(">IB")
_PART = struct.Struct(">Qq")
_JOIN = struct.Struct(">QB")
HEADER_BYTES = _HEADER.size
TAIL_BYTES = _HEADER.size + _TAIL.size


class MovedHead(msgspec.Struct, array_like=True):
    """What a session is besides its subscriptions and messages. origin: its name at the node that it comes from, for
    Moved.origins; origins: those of that node. away_ms: time since its client has left. restored: the client was
    connected when that node ended, and has not been since. uses: (packet identifier, use) of its own messages of QoS 2
    that await their PUBREL (_core/hub/origins.pxd). had: origins of messages that the session has had so far, of those
    whose use is known; Arrival.bring says which are over when the session is whole. The rest as in Head."""

    origin: Name
    name: bytes
    namespace: bytes
    version: Annotated[int, Meta(ge=0, le=5)]
    expiry_s: Annotated[int, Meta(ge=1, lt=1 << 32)]
    keep_alive_s: Annotated[int, Meta(ge=0, lt=1 << 16)]
    away_ms: U63
    restored: bool
    will: Will | None
    username: str | None
    origins: Annotated[list[tuple[Name, U63]], Meta(max_length=ORIGINS_MAX)]
    identity: Annotated[str, Meta(max_length=1024)] = ""
    counted: bool = False
    uses: Annotated[list[tuple[Annotated[int, Meta(ge=1, lt=1 << 16)], Annotated[int, Meta(ge=0)]]],
                    Meta(max_length=65535)] = []
    had: list[tuple[Annotated[int, Meta(ge=0)], Annotated[int, Meta(ge=0, lt=1 << 16)],
                    Annotated[int, Meta(ge=1)]]] = []


class MovedSubscriptions(msgspec.Struct, array_like=True):
    """resting: filters of those that are suspended."""

    subscriptions: list[Subscription]
    resting: list[bytes]


class Part(NamedTuple):
    """A part's header, and the part."""

    kind: int
    number: int
    data: bytes

    @property
    def contents(self) -> bytes:
        return self.data[HEADER_BYTES:]


class End(NamedTuple):
    """The session's next sequence and packet identifier come behind these. dropped: messages it has lost so far."""

    sequence: int
    packet_id: int
    dropped: int


class TailRange(NamedTuple):
    """A part of a tail has what came after `after`, up to `upto`."""

    after: int
    upto: int


_head = msgspec.msgpack.Decoder(MovedHead)
_subscriptions = msgspec.msgpack.Decoder(MovedSubscriptions)


def _malformed(text: str) -> ProtocolError:
    return ProtocolError(ReasonCode.MALFORMED_PACKET, f"a part of a moved session {text}")


# ------------------------------------------------------------------ writing


def begin_of(kind: int, number: int, contents: bytes = b"") -> bytes:
    """The bytes of a part; or its beginning, if more contents follow."""
    return _HEADER.pack(VERSION, kind, number) + contents


def end_of(number: int, sequence: int, packet_id: int, dropped: int) -> bytes:
    return begin_of(END, number, _END.pack(sequence, packet_id, dropped))


def tail_of(after: int, upto: int, entries: bytes = b"") -> bytes:
    return begin_of(TAIL, 0, _TAIL.pack(after, upto) + entries)


# ------------------------------------------------------------------ reading


def part_of(data: bytes) -> Part:
    """The header of a part. Raises ProtocolError."""
    if len(data) < HEADER_BYTES:
        raise _malformed("is shorter than its header")
    version, kind, number = _HEADER.unpack_from(data)
    if version != VERSION or not HEAD <= kind <= TAIL:
        raise _malformed(f"is of version {version} and kind {kind}, which this node does not know")
    return Part(kind, number, data)


def head_of(part: Part) -> MovedHead:
    """Raises ProtocolError."""
    head = _decoded(_head, part)
    if not head.name or not is_text(head.name) or not is_text(head.namespace) or not head.namespace:
        raise _malformed("names no client")
    if head.version in (1, 2):
        raise _malformed(f"is of a client of version {head.version}")
    if (will := head.will) is not None:
        if check_topic(will.topic) != 1 or not 0 <= will.qos <= 2 or not 0 <= will.delay_s < 1 << 32 or not (
                0 <= (will.expiry_s or 0) < 1 << 32):
            raise _malformed("has a will that no client may have")
        check_properties(will.properties)
    return head


def subscriptions_of(part: Part) -> MovedSubscriptions:
    """Raises ProtocolError."""
    found = _decoded(_subscriptions, part)
    for each in found.subscriptions:
        try:
            share = split_share(each.filter)
        except ValueError:
            share = b"", b""
        plain = share[1] if share else each.filter
        if check_filter(plain) != 1 or (plain.startswith(QUEUE_PREFIX) and each.consume is None):
            raise _malformed("has an invalid topic filter")
        if not 0 <= each.options <= 0x0F or each.options & 3 == 3 or not 0 <= each.identifier < 1 << 28:
            raise _malformed("has a subscription with options that there are not")
    if not {*found.resting} <= {each.filter for each in found.subscriptions}:
        raise _malformed("suspends a subscription that it does not have")
    return found


def received_of(part: Part) -> tuple[int, ...]:
    """Raises ProtocolError."""
    contents = part.contents
    if len(contents) % 2:
        raise _malformed("ends within an identifier")
    received = struct.unpack(f">{len(contents) // 2}H", contents)
    if 0 in received:
        raise _malformed("has the packet identifier 0")
    return received


def end_in(part: Part) -> End:
    """Raises ProtocolError."""
    if len(part.contents) != _END.size:
        raise _malformed("is an end of the wrong size")
    end = End(*_END.unpack(part.contents))
    if end.sequence >> 63 or end.dropped >> 63:
        raise _malformed("has an end that no session reaches")
    return end


def tail_range(part: Part) -> TailRange:
    """Raises ProtocolError."""
    if len(part.data) < TAIL_BYTES:
        raise _malformed("is shorter than its header")
    found = TailRange(*_TAIL.unpack_from(part.data, HEADER_BYTES))
    if found.upto < found.after or found.upto >> 63:
        raise _malformed(f"is a tail from {found.after} to {found.upto}")
    return found


def without(part: Part, sequences: AbstractSet[int]) -> Part:
    """A part of a tail that was checked, without the messages that have these sequences."""
    return part._replace(data=without_entries(part.data, TAIL_BYTES, set(sequences)))


def _decoded(decoder: msgspec.msgpack.Decoder[T], part: Part) -> T:
    try:
        return decoder.decode(part.contents)
    except (msgspec.MsgspecError, ValueError) as error:
        raise _malformed(f"does not decode: {error}") from error


def check_part(part: Part, after: int = 0, session: Session | None = None) -> int:
    """Checks the contents of a part. after: sequence of the last entry in front of it; session: has the entries in
    front of it. Returns the number of its entries. Raises ProtocolError."""
    if part.kind == HEAD:
        head_of(part)
    elif part.kind == SUBSCRIPTIONS:
        subscriptions_of(part)
    elif part.kind == RECEIVED:
        received_of(part)
    elif part.kind == ENTRIES:
        return check_entries(part.data, HEADER_BYTES, after, False, session)[0]
    elif part.kind == END:
        if end_in(part).sequence < after:
            raise _malformed("has an end in front of its last message")
    else:
        tail = tail_range(part)
        count, last = check_entries(part.data, TAIL_BYTES, tail.after, True)
        if last > tail.upto:
            raise _malformed("has messages behind its end")
        return count
    return 0


# ------------------------------------------------------------------ steps


class Step(NamedTuple):
    """The body of an ARRIVAL record behind the session's number. number: of the step. first_message, now_ms, part: of
    a PART. other, flights: the session that joins this one, for JOIN."""

    number: int
    what: int
    first_message: int = 0
    now_ms: int = 0
    part: Part | None = None
    other: int = 0
    flights: bool = False


def step_of(step: Step) -> bytes:
    begin = _STEP.pack(step.number, step.what)
    if step.part is not None:
        return begin + _PART.pack(step.first_message, step.now_ms) + step.part.data
    return begin + _JOIN.pack(step.other, step.flights) if step.what == JOIN else begin


def read_step(body: bytes) -> Step:
    """Raises ProtocolError, struct.error."""
    number, what = _STEP.unpack_from(body)
    if what == PART:
        first_message, now_ms = _PART.unpack_from(body, _STEP.size)
        return Step(number, what, first_message, now_ms, part_of(body[_STEP.size + _PART.size:]))
    if what == JOIN:
        other, flights = _JOIN.unpack(body[_STEP.size:])
        return Step(number, what, other=other, flights=bool(flights))
    if what != ACTIVATE or len(body) != _STEP.size:
        raise _malformed(f"is a step of kind {what} and {len(body)} bytes")
    return Step(number, what)


def take_step(session: Session, step: Step, joining: Session | None = None) -> None:
    """Changes the state of a session as a step says, when it comes and in a replay. joining: the session that joins it,
    which keeps its state. Activation changes the stage only."""
    moved: Moved = session.data.moved
    moved.steps = step.number + 1
    if step.part is not None:
        _take_part(session, moved, step, step.part)
    elif step.what == ACTIVATE:
        moved.stage = ACTIVE
    elif joining is not None:
        source: Moved = joining.data.moved
        # A session that is not on disk has no name that it keeps.
        known = moved.upto(source.source) if source.source else 0
        moved.place = merge_sessions(joining, session, known, step.flights, moved.place, known == 0)
        moved.came(source.source, source.upto(source.source))


def _take_part(session: Session, moved: Moved, step: Step, part: Part) -> None:
    state: SessionState = session.data
    if part.kind == SUBSCRIPTIONS:
        found = subscriptions_of(part)
        for each in found.subscriptions:
            session.keep_subscription(each.filter, each.options, each.identifier)
            if each.consume is not None:
                state.consumes = (state.consumes or {}) | {each.filter: each.consume}
        state.resting |= {*found.resting}
    elif part.kind == RECEIVED:
        for packet_id in received_of(part):
            session.mark_received(packet_id, True)
    elif part.kind == ENTRIES:
        restore_entries(session, part.data, HEADER_BYTES, step.first_message, step.now_ms)
    elif part.kind == END:
        end = end_in(part)
        continue_behind(session, *end)
        moved.stage, moved.place = WHOLE, sequence_of(session)
        moved.came(moved.source, end.sequence)
    elif part.kind == TAIL:
        moved.place = insert_entries(session, part.data, TAIL_BYTES, step.first_message, step.now_ms,
                                     moved.upto(moved.source), moved.place)
        moved.came(moved.source, tail_range(part).upto)
