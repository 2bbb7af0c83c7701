"""Many claims of a group at once."""
from __future__ import annotations

from fluxmq._core.queue import by_offset
from fluxmq._core.queue.group import Group
from fluxmq._core.queue.member import PyMember

__all__ = ["settle_upto"]


def settle_upto(group: Group, log: int, offset: int, member: PyMember | None = None) -> int:
    """Settles every claim (of the given member, if any) at or below an offset; returns how many."""
    found = by_offset.held_upto(group, log, offset, member)
    for at in found:
        assert by_offset.settle_at(group, log, at)
    return len(found)
