"""Why connections ended or never began: the counts that only the edge can make. Labels: see model/metrics.py."""
from __future__ import annotations

from fluxmq.model.metrics import METRICS
from fluxmq.model.mqtt import ReasonCode

__all__ = ["Tally"]

REFUSED_BY = {
    ReasonCode.MALFORMED_PACKET: "malformed",
    ReasonCode.PROTOCOL_ERROR: "malformed",
    ReasonCode.UNSUPPORTED_PROTOCOL_VERSION: "protocol_version",
    ReasonCode.CLIENT_IDENTIFIER_NOT_VALID: "client_id",
    ReasonCode.BAD_USER_NAME_OR_PASSWORD: "credentials",
    ReasonCode.NOT_AUTHORIZED: "not_authorized",
    ReasonCode.BAD_AUTHENTICATION_METHOD: "authentication_method",
    ReasonCode.QUOTA_EXCEEDED: "quota",
    ReasonCode.BANNED: "banned",
}
ENDED_BY = {
    ReasonCode.NOT_AUTHORIZED: "not_authorized",
    ReasonCode.RECEIVE_MAXIMUM_EXCEEDED: "receive_maximum",
    ReasonCode.PACKET_TOO_LARGE: "packet_too_large",
}


def _zeroes(name: str) -> dict[str, int]:
    metric = next(metric for metric in METRICS if metric.name == name)
    return dict.fromkeys(metric.labels[0].values, 0)


class Tally:
    """Counters of all listeners of a node."""

    def __init__(self) -> None:
        self.accepted = 0
        self.disconnections = _zeroes("fluxmq_disconnections_total")
        self.refusals = _zeroes("fluxmq_connect_refused_total")
        self.auth_failures = 0
        self.subscribe_denied = 0

    def refused(self, reason: int) -> None:
        """Counts a connection that ended before CONNACK, with this reason code."""
        if reason in (ReasonCode.BAD_USER_NAME_OR_PASSWORD, ReasonCode.NOT_AUTHORIZED):
            self.auth_failures += 1
        self.refusals[REFUSED_BY.get(ReasonCode(reason), "error") if reason else "tls"] += 1
