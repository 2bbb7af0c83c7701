"""What metrics and readiness show of a cluster, from a ClusterView; of a standalone node nothing."""
from __future__ import annotations

from typing import Any

from fluxmq.engine.ports.overview import ClusterView

__all__ = ["cluster_check", "cluster_metrics"]

# Clients are served in these states.
_SERVING = ("standalone", "serving", "without_quorum")


def cluster_check(view: ClusterView) -> dict[str, Any] | None:
    """The check `cluster` of /ready; None without a cluster."""
    if view.state == "standalone":
        return None
    check = {"status": "down" if view.state not in _SERVING else "degraded" if view.degraded else "up"}
    state = () if view.state == "serving" else (
        f"{view.state.replace('_', ' ')}{': ' if view.reason else ''}{view.reason}",)
    if details := "; ".join((*state, *view.degraded)):
        check["details"] = details
    return check


def cluster_metrics(view: ClusterView) -> dict[str, Any]:
    """Those of model/metrics.py that only a node of a cluster has; none without a cluster."""
    if view.state == "standalone":
        return {}
    own = view.own
    return {
        "fluxmq_cluster_state": {(view.state,): 1},
        "fluxmq_cluster_nodes": sum(node.state != "down" for node in view.nodes),
        "fluxmq_cluster_leader": own.leader,
        "fluxmq_cluster_epoch": own.epoch,
        "fluxmq_cluster_lease_left_seconds": (own.lease_left_ms or 0) / 1000,
        "fluxmq_cluster_revisions_behind": view.behind,
        "fluxmq_cluster_without_quorum_seconds": view.without_quorum_ms / 1000,
        "fluxmq_cluster_quorum_lost_total": view.quorum_lost,
        "fluxmq_cluster_degraded": len(view.degraded),
        "fluxmq_cluster_retained_pending": view.retained_pending,
        "fluxmq_cluster_retained_left_out_total": view.retained_left_out,
        "fluxmq_cluster_share_in_doubt": view.share_in_doubt,
        "fluxmq_cluster_share_repeated_total": view.share_repeated,
        "fluxmq_cluster_share_unwanted_total": view.share_unwanted,
        "fluxmq_cluster_sessions": {(node.id,): node.sessions for node in view.nodes},
        "fluxmq_cluster_sessions_adopted": {(node.id,): node.adopted for node in view.nodes},
    } | {f"fluxmq_cluster_peer_{name}": {(peer.node,): getattr(peer, attribute) for peer in view.peers}
         for name, attribute in _OF_A_PEER.items()}


# The end of a metric's name → the attribute of a PeerView.
_OF_A_PEER = {"connected": "connected", "credit_bytes": "credit_bytes", "unacknowledged_bytes": "unacknowledged_bytes",
              "errors_total": "errors"} | {
    f"{direction}_{what}_total": f"{what}_{direction}" for direction in ("sent", "received")
    for what in ("batches", "messages", "bytes")}
