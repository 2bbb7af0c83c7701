"""Positions in a stream as people write them: first, last, next, 17, offset=17, -5, timestamp=…, resume."""
from __future__ import annotations

from datetime import UTC, datetime
from typing import Literal

import msgspec

__all__ = ["NOTHING", "Position", "read_position"]

NOTHING = 0xFFFFFFFFFFFFFFFF  # Log.wanted, when nothing is

Kind = Literal["first", "last", "next", "resume", "offset", "back", "timestamp"]


class Position(msgspec.Struct, frozen=True):
    """value: an offset, how many messages back from the end, or a wall clock in ms."""

    kind: Kind
    value: int = 0


def read_position(text: str) -> Position:
    """Raises ValueError with a sentence that says what is allowed."""
    text = text.strip()
    if text in ("first", "last", "next", "resume"):
        return Position(text)  # type: ignore[arg-type]
    name, _, value = text.rpartition("=")
    if name in ("", "offset") and value.isascii() and value.isdigit():
        return Position("offset", int(value))
    if name == "" and value.startswith("-") and value[1:].isascii() and value[1:].isdigit():
        return Position("back", int(value[1:]))
    if name == "timestamp":
        if value.isascii() and value.isdigit():
            return Position("timestamp", int(value))
        try:
            when = datetime.fromisoformat(value)
        except ValueError:
            pass
        else:
            return Position("timestamp", int((when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp() * 1000))
    raise ValueError(f"a position is first, last, next, resume, an offset, -n (n back from the end) or timestamp= with "
                     f"milliseconds or ISO 8601, not {text!r}")
