"""An operator's request about a queue, between the node that got it and the node that has the queue: `Operations`.

It is asked of the other node as it came, and answered there by the same code that answers that node's own operators.
Whoever may ask was decided where it came in. What was asked by another node is never asked of a third one.
"""
from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol

import msgspec

__all__ = ["MOVED", "Handler", "Operation", "Operations", "Outcome"]

MOVED = 421  # status of an Outcome: the node that was asked does not have the queue


class Operation(msgspec.Struct, frozen=True):
    """method, target, body: of the HTTP request. pages: the answer is to be a page of messages as bytes."""

    method: str
    target: str
    body: bytes = b""
    pages: bool = False


class Outcome(msgspec.Struct, frozen=True):
    """The answer, as of HTTP."""

    status: int
    content_type: str
    body: bytes


# Answers an Operation of the node that is named. Raises nothing but what is a bug.
Handler = Callable[[Operation, str], Awaitable[Outcome]]


class Operations(Protocol):
    """The way to the other nodes."""

    async def ask(self, node: str, operation: Operation, limit_s: float) -> Outcome:
        """What that node answers. Raises QueueElsewhere, away, if it is not there or does not answer within limit_s."""

    def answer_by(self, handler: Handler) -> None:
        """What other nodes ask of this one goes there from now on."""
