"""Routes of the admin API over namespaces: what each answers stands in routes.py, what is in it in NamespacesPort.

    {"namespaces": [{"name", "open", "kept", "configured", "connections", "sessions", "queues", "messages", "retained",
                     "retained_bytes"}, ...]}
    {"name", "result": "created" | "opened" | "unchanged"}
    {"deleted": true, "connections": n, "sessions": n, "queues": n, "messages": n, "retained": n}
"""
from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from fluxmq.admin.http import Answer
from fluxmq.engine.ports.namespaces import NamespacesPort

__all__ = ["create_namespace", "delete_namespace", "list_namespaces", "show_namespace"]

Durable = Callable[[], Awaitable[None]]  # until the changes so far are on the disk


def _answer(status: int, body: dict[str, Any]) -> Answer:
    return Answer(status, "application/json", msgspec.json.encode(body) + b"\n", ())


async def list_namespaces(port: NamespacesPort) -> Answer:
    """All namespaces, without pages: the operator decides how many there are."""
    return _answer(200, {"namespaces": port.list_namespaces()})


async def show_namespace(port: NamespacesPort, name: str) -> Answer:
    """Raises QueueRefused."""
    return _answer(200, port.describe(name))


async def create_namespace(port: NamespacesPort, name: str, durable: Durable) -> Answer:
    """Raises QueueRefused, and StorageError when the disk fails."""
    result = port.create(name)
    await durable()
    return _answer(201 if result == "created" else 200, {"name": name, "result": result})


async def delete_namespace(port: NamespacesPort, name: str, durable: Durable) -> Answer:
    """Raises QueueRefused, and StorageError when the disk fails."""
    gone = port.delete(name)
    await durable()
    return _answer(200, {"deleted": True, **gone})
