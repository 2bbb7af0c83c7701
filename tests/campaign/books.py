"""What was acknowledged to publishers, held against what came: by identity, not by count."""
from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

__all__ = ["KINDS", "Findings", "disordered", "missing", "repeated"]

# What a round may have wrong, in the order of the summary.
KINDS = ("lost", "repeated", "out of order", "wills missing", "retained wrong", "stale", "births undone",
         "sessions lost", "stuck", "accidents")
SHOWN = 5       # of the identities in one sentence


@dataclass
class Findings:
    """counts: of each of KINDS. told: a sentence for each. excused: what would be wrong but for a node that died."""

    counts: Counter[str] = field(default_factory=Counter)
    told: list[str] = field(default_factory=list)
    excused: Counter[str] = field(default_factory=Counter)

    def note(self, kind: str, what: Sequence[bytes | str], where: str, *, excused: bool = False) -> None:
        """what: each one that is wrong; nothing: all is well."""
        assert kind in KINDS
        if what and excused:
            self.excused[kind] += len(what)
        elif what:
            self.counts[kind] += len(what)
            shown = ", ".join(one.decode() if isinstance(one, bytes) else one for one in what[:SHOWN])
            self.told.append(f"{kind}: {len(what)} {where}: {shown}{', …' if len(what) > SHOWN else ''}")

    def add(self, other: Findings) -> None:
        self.counts += other.counts
        self.excused += other.excused
        self.told += other.told

    def __bool__(self) -> bool:
        return bool(self.counts)


def missing(acknowledged: Iterable[bytes], got: Collection[bytes]) -> list[bytes]:
    """What was acknowledged and did not come."""
    had = set(got)
    return [one for one in acknowledged if one not in had]


def repeated(got: Iterable[bytes], sent: Mapping[bytes, int]) -> list[bytes]:
    """What came more often than it was published; sent: how often each was. What nobody published, too."""
    return [one for one, count in Counter(got).items() if count > sent.get(one, 0)]


def disordered(sent: Iterable[bytes], got: Iterable[bytes]) -> list[bytes]:
    """What came for the first time behind something that was published later."""
    place = {one: number for number, one in enumerate(sent)}
    late, newest = [], -1
    for one in dict.fromkeys(got):
        if one not in place:
            continue
        if place[one] < newest:
            late.append(one)
        newest = max(newest, place[one])
    return late
