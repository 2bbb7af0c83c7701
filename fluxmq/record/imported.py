"""What became of a capture: the recording made of it, and what is not in there, in words for who asked."""
from collections.abc import Iterable

import msgspec

from fluxmq.model.units import count_of
from fluxmq.record.manifest import Manifest

__all__ = ["Imported", "Invalid", "invalid_notes"]

_NAMED_MAX = 10         # directions that a note names


class Invalid(msgspec.Struct, frozen=True, kw_only=True):
    """One direction (`in`, `out`) of a connection that had invalid packets. connection 0: all that are too many to be
    listed.

    packets: invalid ones (AMQP: frames, and messages) after which decoding went on, and their bytes. dropped: 1 if an
    invalid packet had no certain end, so that it and all that followed could not be read, and the bytes of that.
    """

    connection: int
    direction: str
    packets: int = 0
    bytes: int = 0
    dropped: int = 0
    dropped_bytes: int = 0


class Imported(msgspec.Struct, kw_only=True):
    """What became of a capture. skipped: connections without a row, by reason; invalid: by connection and direction;
    notes: sentences for who asked."""

    manifest: Manifest
    packets: int = 0
    connections: int = 0
    skipped: dict[str, int] = msgspec.field(default_factory=dict)
    invalid: list[Invalid] = msgspec.field(default_factory=list)
    notes: list[str] = msgspec.field(default_factory=list)


def _named(places: Iterable[tuple[Invalid, str]]) -> str:
    """Where it was, the connections with a number first."""
    found = sorted(((one.connection == 0, one.connection, one.direction), words) for one, words in places)
    named = [f"connection {number} {direction} ({words})" if number else f"others {direction} ({words})"
             for (_, number, direction), words in found[:_NAMED_MAX]]
    rest = len(found) - len(named)
    return ", ".join(named) + (f", and {rest} more" if rest else "")


def invalid_notes(invalid: Iterable[Invalid]) -> list[str]:
    """Sentences about invalid packets that were passed over, and about directions that were broken off."""
    passed = [one for one in invalid if one.packets]
    broken = [one for one in invalid if one.dropped]
    notes = []
    if passed:
        count, size = sum(one.packets for one in passed), sum(one.bytes for one in passed)
        notes.append(f"invalid: {count_of(count, 'packet')} of {count_of(size, 'byte')}, and what followed was read: "
                     + _named((one, f"{one.packets} of {count_of(one.bytes, 'byte')}") for one in passed))
    if broken:
        count, size = sum(one.dropped for one in broken), sum(one.dropped_bytes for one in broken)
        notes.append(f"dropped: {count_of(size, 'byte')} of {count_of(count, 'direction')}, from an invalid packet on "
                     "that has no certain end: "
                     + _named((one, count_of(one.dropped_bytes, "byte")) for one in broken))
    return notes
