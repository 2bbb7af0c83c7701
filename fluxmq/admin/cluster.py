"""Routes over the cluster: GET /cluster on the health port, and of the admin API.

    GET  /cluster, /api/v1/cluster    {"env", "nodes": [{"id", "address", "port", "pid", ...}], "local", "state", ...}:
                                      a ClusterView (engine/ports/overview.py), always 200, also without quorum
    POST /api/v1/cluster/leave        202 {"leaving": id}: begun; the broker stops when it is done
"""
from __future__ import annotations

import msgspec

from fluxmq.admin.http import Answer
from fluxmq.engine.ports.overview import ClusterOverview, ClusterView

__all__ = ["cluster_page", "leave_cluster", "show_cluster"]

_JSON_TYPE = "application/json"


def cluster_page(view: ClusterView) -> Answer:
    """The answer that shows it."""
    return Answer(200, _JSON_TYPE, msgspec.json.encode(view) + b"\n")


async def show_cluster(port: ClusterOverview) -> Answer:
    return cluster_page(port.snapshot())


async def leave_cluster(port: ClusterOverview) -> Answer:
    """Raises QueueRefused."""
    port.leave()
    return Answer(202, _JSON_TYPE, msgspec.json.encode({"leaving": port.snapshot().local}) + b"\n")
