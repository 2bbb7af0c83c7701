"""A parsed request of the admin API, and its answers in JSON."""
from __future__ import annotations

from typing import Any, NamedTuple

import msgspec

from fluxmq.admin.http import Answer
from fluxmq.engine.ports.operations import MOVED, Operation
from fluxmq.engine.ports.queues import QueueElsewhere, QueueRefused
from fluxmq.engine.ports.record import RecordRefused

__all__ = ["STATUS", "Call", "json_answer", "refusal"]

STATUS = {"not_found": 404, "conflict": 409, "invalid": 400, "full": 507, "unavailable": 503}


class Call(NamedTuple):
    """A parsed request: names from the path, the query, the body; the whole of it. node: the one that asks; "": an
    operator."""

    names: list[str]
    query: dict[str, str]
    body: bytes
    operation: Operation
    node: str = ""


def json_answer(status: int, body: dict[str, Any], *headers: tuple[str, str]) -> Answer:
    # a QueueName is text, too
    return Answer(status, "application/json", msgspec.json.encode(body, enc_hook=str) + b"\n", headers)


def refusal(error: QueueRefused | RecordRefused, *, asked_by_node: bool = False) -> Answer:
    """What was refused, and why. asked_by_node: not by an operator, but by another node."""
    body = {"error": error.kind, "detail": error.text, "hint": error.hint}
    if isinstance(error, QueueElsewhere):
        body["node"] = error.node
        if asked_by_node:
            return json_answer(MOVED, body | {"error": "moved"})
    return json_answer(STATUS[error.kind], body)
