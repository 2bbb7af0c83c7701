"""Positions in a stream as text: first, last, next, 17, offset=17, -5, timestamp=…, resume; between nodes resume=…,
too, where the value is the time at which a group begins that has no position yet."""
from __future__ import annotations

from datetime import UTC, datetime
from typing import Literal

import msgspec

from fluxmq._core.queue.group import Group
from fluxmq._core.queue.log import Log

__all__ = ["NOTHING", "Position", "offset_in", "position_since", "read_position", "start_of_new"]

NOTHING = 0xFFFFFFFFFFFFFFFF  # value of Log.wanted if nothing is wanted
TIMESTAMP_MAX = 1 << 62  # larger values would not fit the index of time stamps

Kind = Literal["first", "last", "next", "resume", "offset", "back", "timestamp"]


class Position(msgspec.Struct, frozen=True):
    """value: an offset, how many messages back from the end, or a wall clock in ms. resume: the group's position."""

    kind: Kind
    value: int = 0


def read_position(text: str) -> Position:
    """Parses a position. Raises ValueError with a sentence that says what is allowed."""
    text = text.strip()
    if text in ("first", "last", "next", "resume"):
        return Position(text)  # type: ignore[arg-type]
    name, _, value = text.rpartition("=")
    if name in ("", "offset") and value.isascii() and value.isdigit():
        return Position("offset", int(value))
    if name == "resume" and value.isascii() and value.isdigit():
        return Position("resume")
    if name == "" and value.startswith("-") and value[1:].isascii() and value[1:].isdigit():
        return Position("back", int(value[1:]))
    if name == "timestamp":
        if value.isascii() and value.isdigit():
            return Position("timestamp", min(int(value), TIMESTAMP_MAX))
        try:
            when = datetime.fromisoformat(value)
        except ValueError:
            pass
        else:
            return Position("timestamp", int((when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp() * 1000))
    raise ValueError(f"a position is first, last, next, resume, an offset, -n (n back from the end) or timestamp= with "
                     f"milliseconds or ISO 8601, not {text!r}")


def offset_in(log: Log, position: Position, group: Group | None) -> int:
    """The present offset of a position in a log; not for timestamps, which need the index."""
    if position.kind == "first":
        return log.first
    if position.kind == "last":
        return max(log.next - 1, log.first)
    if position.kind == "back":
        return max(log.next - position.value, log.first)
    if position.kind == "offset":
        return min(max(position.value, log.first), log.next)
    if position.kind == "resume":
        for cursor in group.cursors if group is not None else ():
            if cursor.log_number == log.number:
                return max(cursor.next, log.first)
    return log.next


def position_since(text: str, group: Group | None, now_ms: int) -> str:
    """The position of a subscription that begins now, by the wall clock, and is opened later: where it begins with the
    next message, that is the first from now on. So it is for a group that turns out to be new then."""
    if text in ("", "resume") and group is not None:
        return f"resume={now_ms}"
    return f"timestamp={now_ms}" if text in ("", "next") else text


def start_of_new(text: str) -> str:
    """Where a group begins that is made for a reader at this position; "": with the next message."""
    return f"timestamp={text[7:]}" if text.startswith("resume=") else ""
