"""What etcd says is told apart by its texts, which are those of its api/v3rpc/rpctypes/error.go; codes have changed."""
from __future__ import annotations

from typing import Any

import grpc
import pytest

from fluxmq.cluster.etcd.errors import _RULES, Cause, EtcdCompacted, EtcdError, explain
from fluxmq.cluster.ports import Compacted, StoreError, StoreFull

CODES = grpc.StatusCode


class Said(grpc.RpcError):
    def __init__(self, code: Any, details: str | None) -> None:
        self.code = lambda: code
        self.details = lambda: details


@pytest.mark.parametrize(("code", "details", "cause"), [
    (CODES.UNAVAILABLE, "etcdserver: no leader", Cause.NO_LEADER),
    (CODES.UNKNOWN, "raft proposal dropped", Cause.NO_LEADER),
    (CODES.UNAVAILABLE, "etcdserver: request timed out, possibly due to previous leader failure", Cause.LATE),
    (CODES.UNAVAILABLE, "etcdserver: request timed out", Cause.LATE),
    (CODES.UNAVAILABLE, "etcdserver: leader changed", Cause.LATE),
    (CODES.UNKNOWN, "context deadline exceeded", Cause.LATE), (CODES.UNKNOWN, "context canceled", Cause.LATE),
    (CODES.UNAVAILABLE, "etcdserver: server stopped", Cause.BROKEN),
    (CODES.UNAVAILABLE, "etcdserver: rpc not supported for learner", Cause.LEARNER),
    (CODES.FAILED_PRECONDITION, "etcdserver: rpc not supported for learner", Cause.LEARNER),
    (CODES.UNAVAILABLE, "etcdserver: unhealthy cluster", Cause.UNHEALTHY),
    (CODES.FAILED_PRECONDITION, "etcdserver: can only promote a learner member which is in sync with leader",
     Cause.UNHEALTHY),
    (CODES.FAILED_PRECONDITION, "etcdserver: can only promote a learner member", Cause.REFUSED),
    (CODES.RESOURCE_EXHAUSTED, "etcdserver: mvcc: database space exceeded", Cause.NOSPACE),
    (CODES.RESOURCE_EXHAUSTED, "etcdserver: too many requests", Cause.BUSY),
    (CODES.NOT_FOUND, "etcdserver: requested lease not found", Cause.LEASE),
    (CODES.FAILED_PRECONDITION, "etcdserver: lease already exists", Cause.LEASE_EXISTS),
    (CODES.OUT_OF_RANGE, "etcdserver: mvcc: required revision has been compacted", Cause.COMPACTED),
    (CODES.OUT_OF_RANGE, "etcdserver: mvcc: required revision is a future revision", Cause.FUTURE),
    (CODES.PERMISSION_DENIED, "etcdserver: permission denied", Cause.AUTH),
    (CODES.INVALID_ARGUMENT, "etcdserver: user name is empty", Cause.AUTH),
    (CODES.UNAUTHENTICATED, "etcdserver: invalid auth token", Cause.AUTH),
    (CODES.PERMISSION_DENIED, "of a proxy", Cause.AUTH),
    (CODES.INVALID_ARGUMENT, "etcdserver: duplicate key given in txn request", Cause.REFUSED),
    (CODES.UNIMPLEMENTED, "unknown service etcdserverpb.KV", Cause.REFUSED),
    (CODES.DEADLINE_EXCEEDED, "Deadline Exceeded", Cause.LATE),
    (CODES.UNAVAILABLE, "failed to connect to all addresses; last error: UNKNOWN: x: connect refused",
     Cause.UNREACHABLE),
    (CODES.UNAVAILABLE, "DNS resolution failed for nowhere:1", Cause.UNREACHABLE),
    (CODES.UNAVAILABLE, "Socket closed", Cause.BROKEN), (CODES.UNAVAILABLE, None, Cause.BROKEN),
    (CODES.CANCELLED, "", Cause.BROKEN), (CODES.INTERNAL, "Internal error from Core", Cause.BROKEN),
    (CODES.DATA_LOSS, "", Cause.REFUSED)])
def test_causes(code: Any, details: str | None, cause: Cause) -> None:
    error = explain(Said(code, details), "host:1", limit_s=2.0)
    assert error.cause is cause and error.endpoint == "host:1" and str(error).startswith("etcd at host:1: ")
    assert isinstance(error, StoreError) and isinstance(error, Compacted) == (cause is Cause.COMPACTED)
    assert isinstance(error, StoreFull) == (cause is Cause.NOSPACE)
    assert str(error).rstrip() == str(error) and len(str(error)) > len("etcd at host:1: ") + 5


def test_the_table_is_whole_and_sound() -> None:
    """What may be tried again by the store may be by the caller; what is told as not sent had no effect."""
    assert set(_RULES) == set(Cause)
    for cause, rule in _RULES.items():
        assert rule.retry or not rule.again, cause
        made = EtcdError(cause, "", "text")
        assert (made.sent, made.retry, made.again, made.leave) == rule
    assert {cause for cause, rule in _RULES.items() if rule.sent} == {
        Cause.BROKEN, Cause.LATE, Cause.FOREIGN, Cause.NOSPACE}
    assert issubclass(EtcdCompacted, EtcdError) and issubclass(EtcdCompacted, Compacted)
