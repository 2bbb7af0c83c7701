"""What a node does at its start with what it has of a queue on its disk: the table, without the store.

    etcd: one directory, or a group of nodes, has the queue's data, and which data that is (QueueData)
    disk: which data is here (Placement)                       ─► judge ─► a Verdict

What an old copy of a directory has, or what was moved away, is older than what etcd says. What is newer than that is
there because etcd was set back, and is nowhere else: it is never deleted. docs/internals/cluster-queues.md, "Owners".
"""
from __future__ import annotations

from enum import StrEnum

from fluxmq.cluster.definition_values import QueueData
from fluxmq.engine.ports.definitions import Placement

__all__ = ["Verdict", "judge", "why_aside"]


class Verdict(StrEnum):
    """See judge."""

    KEPT = "kept"  # it is the queue's data; etcd is to say so, if it does not
    DELETED = "deleted"  # who has the data now got all of this
    LEFT = "left"  # it stays on the disk as it is, and is not served
    ASIDE = "set aside"


def judge(stored: Placement, data: QueueData | None, *, here: bool) -> Verdict:
    """Of a queue with the identity that etcd has. stored: what the disk has. data: what etcd says; None: nothing that
    this version can read. here: that names this directory."""
    if data is None:
        return Verdict.ASIDE
    if data.group:
        return Verdict.LEFT
    if here:
        return Verdict.KEPT if stored >= data.placement else Verdict.ASIDE
    moved_on = stored.incarnation == data.placement.incarnation and stored.moved < data.placement.moved
    return Verdict.DELETED if moved_on else Verdict.ASIDE


def why_aside(stored: Placement, data: QueueData | None, *, here: bool) -> str:
    """What an operator is told of a queue that is set aside: a clause."""
    if data is None:
        return "etcd does not say who has its data, or not so that this version understands it"
    mine, theirs = _shown(stored), _shown(data.placement)
    if here:
        return (f"its data ({mine}) is older than what this directory has had ({theirs}), as if an old copy of the "
                "directory had been put back. The queue begins anew, empty")
    if stored.incarnation < data.placement.incarnation:
        return (f"its data ({mine}) is what was there before it began anew at {data.holder} ({theirs}). Publish to "
                "the queue again what of it is still wanted")
    return (f"etcd says that {data.holder} has its data ({theirs}), and does not know of what is here ({mine}): it was "
            "set back to an earlier state. What was published since is only here. Publish to the queue again what of "
            "it is still wanted")


def _shown(placement: Placement) -> str:
    return f"incarnation {placement.incarnation}, moves {placement.moved}"
