"""Routes over the cluster: GET /cluster on the health port, and of the admin API.

    GET  /cluster, /api/v1/cluster    {"env", "nodes": [{"id", "address", "port", "pid", ...}], "local", "state", ...}:
                                      a ClusterView (engine/ports/overview.py), always 200, also without quorum
    POST   /api/v1/cluster/voters/{node}   {"voter": node}: it has a vote in etcd
    DELETE /api/v1/cluster/voters/{node}   {"removed": node}: it has none any more
    GET  /api/v1/cluster/leave        a LeavingView: how far the node has come
    POST /api/v1/cluster/leave?keep_vote=   202 {"leaving": id}: begun; the broker stops when it is done
"""
from __future__ import annotations

from collections.abc import Mapping

import msgspec

from fluxmq.admin.http import Answer
from fluxmq.admin.words import truth
from fluxmq.engine.ports.overview import ClusterOverview, ClusterView

__all__ = ["add_voter", "cluster_page", "leave_cluster", "remove_voter", "show_cluster", "show_leaving"]

_JSON_TYPE = "application/json"


def cluster_page(view: ClusterView) -> Answer:
    """The answer that shows it."""
    return Answer(200, _JSON_TYPE, msgspec.json.encode(view) + b"\n")


async def show_cluster(port: ClusterOverview) -> Answer:
    return cluster_page(port.snapshot())


async def add_voter(port: ClusterOverview, node: str) -> Answer:
    """Raises QueueRefused."""
    await port.add_voter(node)
    return Answer(200, _JSON_TYPE, msgspec.json.encode({"voter": node}) + b"\n")


async def remove_voter(port: ClusterOverview, node: str) -> Answer:
    """Raises QueueRefused."""
    await port.remove_voter(node)
    return Answer(200, _JSON_TYPE, msgspec.json.encode({"removed": node}) + b"\n")


async def show_leaving(port: ClusterOverview) -> Answer:
    """Raises QueueRefused."""
    return Answer(200, _JSON_TYPE, msgspec.json.encode(port.leaving()) + b"\n")


async def leave_cluster(port: ClusterOverview, query: Mapping[str, str]) -> Answer:
    """Raises QueueRefused."""
    await port.leave(truth(query, "keep_vote"))
    return Answer(202, _JSON_TYPE, msgspec.json.encode({"leaving": port.snapshot().local}) + b"\n")
