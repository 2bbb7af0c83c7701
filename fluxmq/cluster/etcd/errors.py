"""What etcd and gRPC say when a request fails, as StoreError.

etcd gives its errors as a status code of gRPC and a text; the codes of some have changed between versions, the texts
have not. So the texts decide, and codes only where there is none.

    cause          sent  retry  again  leave  what happened
    UNREACHABLE    no    yes    yes    yes    no connection: nothing listens, TLS fails, no route
    BROKEN         yes   yes    yes    yes    the connection broke, or etcd stops, while the answer was awaited
    LATE           yes   yes    yes    yes    no answer in time, or etcd's own time limit for a proposal
    NO_LEADER      no    yes    yes    yes    the member knows no leader, or dropped the proposal for that
    LEARNER        no    yes    yes    yes    the member is a learner and does not serve this
    FOREIGN        yes   no     no     yes    the member belongs to another etcd cluster
    BUSY           no    yes    yes    no     the member has too many requests under way
    FUTURE         no    yes    yes    no     the member does not have the revision yet
    NOSPACE        yes   yes    no     no     the quota is used up: no value is taken before space is made. Raised as
                                              StoreFull. The first entry that exceeds it is applied, and refused
    UNHEALTHY      no    yes    no     no     a change of members would endanger the quorum now
    COMPACTED      no    yes    no     no     the revision is gone: raised as Compacted
    AUTH           no    no     no     no     etcd demands a login, or its user lacks the permission
    LEASE          no    no     no     no     the lease does not exist: raised as LeaseGone
    LEASE_EXISTS   no    no     no     no     a lease of this number exists
    REFUSED        no    no     no     no     any other answer of etcd: the request itself is wrong
    CLOSED         no    no     no     no     the store was closed by its user

sent: the request may have had an effect. retry: the caller may try later (StoreError.retry). again: the store itself
tries again within the limit of the request; one that is sent, only if it may be done twice. leave: the endpoint is left
for another.
"""
from __future__ import annotations

import enum
from typing import NamedTuple

import grpc

from fluxmq.cluster.ports import Compacted, LeaseGone, StoreError, StoreFull

__all__ = ["Cause", "EtcdCompacted", "EtcdError", "EtcdFull", "EtcdLeaseGone", "cause_of_text", "explain"]


class Cause(enum.Enum):
    """Why a request failed; see the table on top."""

    UNREACHABLE = "unreachable"
    BROKEN = "broken"
    LATE = "late"
    NO_LEADER = "no leader"
    LEARNER = "learner"
    FOREIGN = "another cluster"
    BUSY = "busy"
    FUTURE = "revision of the future"
    NOSPACE = "no space"
    UNHEALTHY = "unhealthy"
    AUTH = "not permitted"
    LEASE = "no such lease"
    LEASE_EXISTS = "the lease exists"
    COMPACTED = "compacted"
    REFUSED = "refused"
    CLOSED = "closed"


class _Rule(NamedTuple):
    sent: bool
    retry: bool
    again: bool
    leave: bool


_RULES = {
    Cause.UNREACHABLE: _Rule(False, True, True, True),
    Cause.BROKEN: _Rule(True, True, True, True),
    Cause.LATE: _Rule(True, True, True, True),
    Cause.NO_LEADER: _Rule(False, True, True, True),
    Cause.LEARNER: _Rule(False, True, True, True),
    Cause.FOREIGN: _Rule(True, False, False, True),
    Cause.BUSY: _Rule(False, True, True, False),
    Cause.FUTURE: _Rule(False, True, True, False),
    Cause.NOSPACE: _Rule(True, True, False, False),
    Cause.UNHEALTHY: _Rule(False, True, False, False),
    Cause.COMPACTED: _Rule(False, True, False, False),
    Cause.AUTH: _Rule(False, False, False, False),
    Cause.LEASE: _Rule(False, False, False, False),
    Cause.LEASE_EXISTS: _Rule(False, False, False, False),
    Cause.REFUSED: _Rule(False, False, False, False),
    Cause.CLOSED: _Rule(False, False, False, False),
}


class EtcdError(StoreError):
    """A request to etcd failed. cause, and what follows from it: see the table on top. endpoint: where; "" for all."""

    def __init__(self, cause: Cause, endpoint: str, text: str) -> None:
        rule = _RULES[cause]
        super().__init__(text, retry=rule.retry)
        self.cause = cause
        self.endpoint = endpoint
        self.sent = rule.sent
        self.again = rule.again
        self.leave = rule.leave


class EtcdCompacted(EtcdError, Compacted):
    """The revision that was asked for is gone."""


class EtcdFull(EtcdError, StoreFull):
    """The quota is used up."""


class EtcdLeaseGone(EtcdError, LeaseGone):
    """The lease does not exist."""


_CLASSES: dict[Cause, type[EtcdError]] = {Cause.COMPACTED: EtcdCompacted, Cause.NOSPACE: EtcdFull,
                                          Cause.LEASE: EtcdLeaseGone}


# What etcd's text contains (etcd's api/v3rpc/rpctypes/error.go, and raft's errors, which it passes on), the cause, and
# what to say. The first that fits.
_TEXTS = (
    ("no leader", Cause.NO_LEADER, "it knows no leader of the etcd cluster"),
    ("raft proposal dropped", Cause.NO_LEADER, "it knows no leader of the etcd cluster"),
    ("not supported for learner", Cause.LEARNER, "it is a learner, which does not serve this request"),
    ("rpc not supported", Cause.LEARNER, "it is a learner, which does not serve this request"),
    ("database space exceeded", Cause.NOSPACE,
     "its quota is used up (alarm NOSPACE); nodes compact and defragment their own members, an etcd elsewhere needs "
     "that from its operator"),
    ("too many requests", Cause.BUSY, "it has too many requests under way"),
    ("requested lease not found", Cause.LEASE, "the lease does not exist"),
    ("lease already exists", Cause.LEASE_EXISTS, "a lease of this number exists"),
    ("revision has been compacted", Cause.COMPACTED, "the revision has been compacted"),
    ("is a future revision", Cause.FUTURE, "it does not have that revision yet"),
    ("request timed out", Cause.LATE, "etcd did not commit it within its own time limit"),
    # Of Go's contexts, when a member gives a request up before it has an answer; with the code UNKNOWN.
    ("context deadline exceeded", Cause.LATE, "etcd did not answer within its own time limit"),
    ("context canceled", Cause.LATE, "etcd gave the request up before it had an answer"),
    ("leader changed", Cause.LATE, "the leader of the etcd cluster changed while the answer was awaited"),
    ("unhealthy cluster", Cause.UNHEALTHY, "the etcd cluster is unhealthy, so its members cannot be changed now"),
    ("not enough started members", Cause.UNHEALTHY, "the change would leave the etcd cluster without a quorum"),
    ("in sync with leader", Cause.UNHEALTHY, "the learner lags behind the leader and cannot be promoted yet"),
    ("server stopped", Cause.BROKEN, "it is stopping"),
    ("permission denied", Cause.AUTH, "the user of etcd lacks the permission"),
    ("user name is empty", Cause.AUTH, "etcd demands a login (authentication is enabled there)"),
    ("user name not found", Cause.AUTH, "etcd does not know the user of the certificate"),
    ("invalid auth token", Cause.AUTH, "etcd refuses the login"),
    ("authentication failed", Cause.AUTH, "etcd refuses the login"),
)


def explain(error: grpc.RpcError, endpoint: str, *, limit_s: float) -> EtcdError:
    """The error for what gRPC reports. limit_s: how long an answer was waited for, in seconds."""
    code, details = error.code(), error.details() or ""
    cause, said = _cause_of(code, details, limit_s)
    return _CLASSES.get(cause, EtcdError)(cause, endpoint, f"etcd at {endpoint}: {said}")


def cause_of_text(details: str) -> tuple[Cause, str] | None:
    """The cause that a text of etcd tells, and what to say; None if it is not one of those that are known."""
    for text, cause, said in _TEXTS:
        if text in details:
            return cause, said
    return None


def _cause_of(code: grpc.StatusCode, details: str, limit_s: float) -> tuple[Cause, str]:
    if (known := cause_of_text(details)) is not None:
        return known
    if code is grpc.StatusCode.DEADLINE_EXCEEDED:
        return Cause.LATE, f"no answer within {limit_s:.3g} s"
    if code is grpc.StatusCode.UNAVAILABLE and _not_connected(details):
        return Cause.UNREACHABLE, f"no connection: {_innermost(details)}{_hint(details)}"
    if code in (grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.UNAUTHENTICATED):
        return Cause.AUTH, f"not permitted: {details}"
    # INTERNAL is gRPC's own: a write to a stream whose connection breaks at this moment fails with it, instead of the
    # stream's status (grpcio says "Internal error from Core" and no more), and so does a stream that a proxy resets.
    if code in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED, grpc.StatusCode.INTERNAL):
        return Cause.BROKEN, f"the connection broke while the answer was awaited: {_innermost(details)}"
    if code is grpc.StatusCode.UNIMPLEMENTED:
        return Cause.REFUSED, f"it does not know this request, so it is no etcd of 3.4 or later: {details}"
    return Cause.REFUSED, details or f"refused ({code.name})"


def _not_connected(details: str) -> bool:
    return "failed to connect to all addresses" in details or "DNS resolution failed" in details


def _hint(details: str) -> str:
    """gRPC does not pass on what the other side's TLS says of our certificate."""
    refused = " (etcd refuses this client's certificate, or demands a certificate)"
    return refused if "TSI_DATA_CORRUPTED" in details else ""


def _innermost(details: str) -> str:
    """gRPC tells a chain, the last of which says what the system or TLS said."""
    return details.rsplit("last error: ", 1)[-1].removeprefix("UNAVAILABLE: ") or "no reason was given"
