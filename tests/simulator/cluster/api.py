"""What is asked of a member of the simulated etcd, and what it answers. Results are those of fluxmq.cluster.ports."""
from __future__ import annotations

import zlib
from collections.abc import Sequence
from enum import Enum
from typing import NamedTuple

from fluxmq.cluster.ports import Change, Compare

__all__ = ["CompactRequest", "Fault", "GrantRequest", "MemberRequest", "RangeRequest", "RenewRequest", "Request",
           "RevokeRequest", "Status", "StatusRequest", "TxnRequest", "VotersRequest", "Why", "number_of"]


class TxnRequest(NamedTuple):
    """Answer: TransactionResult."""

    compares: Sequence[Compare]
    changes: Sequence[Change]


class RangeRequest(NamedTuple):
    """Answer: Range. local: serializable."""

    key: bytes
    prefix: bool
    local: bool


class GrantRequest(NamedTuple):
    """Answer: the lease's number."""

    lease: int
    ttl_s: int


class RenewRequest(NamedTuple):
    """Answer: Renewal."""

    lease: int


class RevokeRequest(NamedTuple):
    """Answer: a revision."""

    lease: int


class CompactRequest(NamedTuple):
    """Answer: a revision."""

    revision: int


class MemberRequest(NamedTuple):
    """Answer: None. change: voter (also promotes a learner), learner, remove."""

    change: str
    name: str


class StatusRequest(NamedTuple):
    """Answer: Status, also without a leader."""


class Status(NamedTuple):
    """What a member says of itself. leader: "" if it knows none. leader_changes: how often it has learnt of one since
    its start. term: of the last entry that it has applied; raft_term: of its raft."""

    member: str
    leader: str
    leader_changes: int
    term: int
    raft_term: int
    revision: int
    learner: bool


class VotersRequest(NamedTuple):
    """Answer: numbers and names of the nodes of the voters, as the member knows them, also without a leader."""


def number_of(member: str) -> int:
    """A member's number."""
    return zlib.crc32(member.encode()) + 1


Request = (TxnRequest | RangeRequest | GrantRequest | RenewRequest | RevokeRequest | CompactRequest | MemberRequest
           | StatusRequest | VotersRequest)


class Why(Enum):
    """As the table in fluxmq/cluster/etcd/errors.py: (sent: there may be an effect, retry: by the caller, again: the
    store itself tries another endpoint, leave: the endpoint is left)."""

    UNREACHABLE = (False, True, True, True, "nobody listens")
    BROKEN = (True, True, True, True, "the connection broke while the answer was awaited")
    LATE = (True, True, True, True, "no answer in time")
    NO_LEADER = (False, True, True, True, "it knows no leader")
    LEADER_CHANGED = (True, True, True, True, "the leader changed while the answer was awaited")
    LEARNER = (False, True, True, True, "it is a learner")
    FUTURE = (False, True, True, False, "it does not have that revision yet")
    NOSPACE = (True, True, False, False, "its quota is used up")
    UNHEALTHY = (False, True, False, False, "the members cannot be changed now")
    COMPACTED = (False, True, False, False, "the revision has been compacted")
    LEASE = (False, False, False, False, "the lease does not exist")
    LEASE_EXISTS = (False, False, False, False, "a lease of this number exists")
    CLOSED = (False, False, False, False, "the store was closed")

    def __init__(self, sent: bool, retry: bool, again: bool, leave: bool, text: str) -> None:
        self.sent, self.retry, self.again, self.leave, self.text = sent, retry, again, leave, text


class Fault(NamedTuple):
    """A request has failed."""

    why: Why
