"""What the engine keeps with a compiled Queue: its declaration, its groups, and what is counted or due of it."""
from __future__ import annotations

from collections import Counter

from fluxmq._core.queue import Queue
from fluxmq._core.queue_group import Group
from fluxmq.engine.queue_contract import Contract
from fluxmq.model.amqp_queues import Declared, read_arguments
from fluxmq.model.queues import QueueSpec

__all__ = ["QueueState"]


class QueueState:
    """What the engine keeps with a Queue."""

    __slots__ = ("commit_due_ms", "configured", "contracts", "dead_lettered", "declared", "died", "due_at", "groups",
                 "had_consumer", "idle_since_ms", "owner", "producers", "queue", "retained", "retention_due_ms", "spec",
                 "terms")

    def __init__(self, spec: QueueSpec, queue: Queue, declared: Declared | None = None) -> None:
        self.spec = spec
        self.queue = queue
        # As AMQP declared it, and what that means; None: it was not AMQP.
        self.declared = declared
        self.terms = read_arguments(declared) if declared is not None else None
        self.owner: object = None  # of an exclusive queue: the connection
        self.had_consumer = False  # of AMQP
        self.groups: dict[tuple[bytes, bytes], Group] = {}
        self.contracts: dict[Group, Contract] = {}  # of those whose consumers said something
        self.producers: dict[bytes, tuple[int, int]] = {}  # id -> (highest sequence, bitmap of those below it)
        self.died: Counter[str] = Counter()  # messages given up, by DEATHS: whether or not they went to dead letters
        self.dead_lettered = 0
        self.configured = False
        self.idle_since_ms = 0
        # of queue_clock.py
        self.due_at: int | None = None
        self.commit_due_ms = 0
        self.retention_due_ms = 0
        self.retained = 0
