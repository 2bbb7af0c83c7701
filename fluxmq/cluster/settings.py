"""What a node of a cluster is told, and how far it is in its life."""
from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from fluxmq.model.replication import ReplicationSettings

__all__ = ["Phase", "Settings"]


class Phase(Enum):
    """See node.py for what leads from one to another."""

    NEW = "new"
    JOINING = "joining"
    SERVING = "serving"
    LEAVING = "leaving"
    FENCED = "fenced"
    STOPPED = "stopped"


class Settings(NamedTuple):
    """name: of this node. configured: see dial_address. ttl_s: of its lease. limit_s: route_publish_timeout.
    window_bytes: not acknowledged, per peer. retained_bytes: retained messages with a payload of this size or more are
    in the store without it. shared: all nodes have the queues, exchanges and bindings of all. disk_s: how long the
    journal may wait for the disk before the node gives its lease up; 0: for ever. replication: which queues are
    replicated, and how."""

    name: str
    configured: dict[str, str] = {}
    ttl_s: int = 10
    limit_s: float = 15.0
    window_bytes: int = 16 << 20
    retained_bytes: int = 1024
    shared: bool = True
    disk_s: float = 30.0
    replication: ReplicationSettings = ReplicationSettings()
