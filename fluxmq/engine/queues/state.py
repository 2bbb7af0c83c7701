"""The engine's state of a compiled Queue: its declaration, its groups, its counters and timers."""
from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Protocol

from fluxmq._core.queue.group import Group
from fluxmq._core.queue.log import Log
from fluxmq._core.queue.queue import Queue
from fluxmq.engine.ports.definitions import FIRST, Placement
from fluxmq.engine.queues.retry import UNSPECIFIED, RetryPolicy, effective
from fluxmq.model.queue_arguments import Declared, read_arguments
from fluxmq.model.queues import QueueSpec, Retry

__all__ = ["Going", "QueueState"]

# Shared default for state that few queues have: there may be a hundred thousand queues.
NONE: Mapping[object, object] = MappingProxyType({})


class Going(Protocol):
    """A queue that is about to move to another node (moves.Departure)."""

    @property
    def is_relay(self) -> bool:
        """Whether this node serves the queue no more."""

    def done(self) -> None:
        """The other node has the queue."""


class QueueState:
    """What the engine keeps with a Queue."""

    __slots__ = ("arguments", "commit_due_ms", "configured", "copy", "dead_lettered", "declared", "died", "due_at",
                 "groups", "had_consumer", "here", "id", "idle_since_ms", "moving", "owner", "placement", "producers",
                 "queue", "retained", "retention_due_ms", "retry_policies", "spec")

    def __init__(self, spec: QueueSpec, queue: Queue, declared: Declared | None = None) -> None:
        self.spec = spec
        self.queue = queue
        # AMQP's declaration and the settings that follow from it; None: it was not declared by AMQP.
        self.declared = declared
        self.arguments = read_arguments(declared) if declared is not None else None
        self.owner: object = None  # of an exclusive queue: its connection
        self.id = 0  # identity in the cluster; 0: no other node knows it
        self.placement: Placement = FIRST  # which data of the queue this node has, or a copy of it that comes
        self.here = True  # this node has its messages
        self.moving: Going | None = None  # it is about to move to another node; set by hands.py, as the next one
        self.copy: QueueState | None = None  # what this node stores of it while another node decides
        self.had_consumer = False  # an AMQP consumer
        self.groups: dict[tuple[bytes, bytes], Group] = {}
        # Of groups whose consumers set one. Change this and the fields below only by note_retry_policy() and the like.
        self.retry_policies: Mapping[Group, RetryPolicy] = NONE  # type: ignore[assignment]
        # id -> (highest sequence, bitmap of those below it)
        self.producers: Mapping[bytes, tuple[int, int]] = NONE  # type: ignore[assignment]
        # messages given up, by DEATHS, with or without dead letters
        self.died: Mapping[str, int] = NONE  # type: ignore[assignment]
        self.dead_lettered = 0
        self.configured = False
        self.idle_since_ms = 0
        # used by clock.py
        self.due_at: int | None = None
        self.commit_due_ms = 0
        self.retention_due_ms = 0
        self.retained = 0

    @property
    def logs(self) -> list[Log]:
        """All of the queue's logs, with its delay log."""
        delays = self.queue.delays
        return [*self.queue.logs, *([delays.log] if delays is not None else ())]

    def note_retry_policy(self, group: Group, policy: RetryPolicy | None) -> None:
        """Stores a group's retry policy. None: the group was deleted."""
        if policy is None:
            if isinstance(self.retry_policies, dict):
                self.retry_policies.pop(group, None)
        elif isinstance(self.retry_policies, dict):
            self.retry_policies[group] = policy
        else:
            self.retry_policies = {group: policy}

    def effective_retry(self, group: Group) -> Retry:
        """The effective settings of a group: its retry policy, and the queue's `retry` for fields that are not set."""
        return effective(self.spec.retry, self.retry_policies.get(group, UNSPECIFIED))

    def note_produced(self, producer: bytes, known: tuple[int, int]) -> None:
        """Stores which sequences of a producer were appended."""
        if isinstance(self.producers, dict):
            self.producers[producer] = known
        else:
            self.producers = {producer: known}

    def note_death(self, reason: str) -> None:
        """Counts a message that was given up."""
        if not isinstance(self.died, dict):
            self.died = {}
        self.died[reason] = self.died.get(reason, 0) + 1
