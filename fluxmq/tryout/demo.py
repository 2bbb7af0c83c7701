"""What the demo traffic uses: a user, queues and a stream of the cluster."""
from __future__ import annotations

from typing import Any

from fluxmq.tryout.asking import NoAnswer, TryoutError
from fluxmq.tryout.nodes import Node

__all__ = ["AUDIT", "EMAILS", "ORDERS", "PARTITIONS", "TOPIC", "USER", "declare", "delete", "make", "move"]

USER = "demo"           # its password is the same
ORDERS, EMAILS, AUDIT = "orders", "emails", "audit"
PARTITIONS = 4
TOPIC = "plant/{}/temperature"
KEPT = 100_000          # messages in a queue whose consumers stand still; then publishes are refused
SPECS: dict[str, dict[str, Any]] = {
    ORDERS: {"partitions": PARTITIONS, "limits": {"max_depth": KEPT}},
    EMAILS: {"retry": {"max_retries": 3, "initial_backoff": "500ms"}, "limits": {"max_depth": KEPT}},
    AUDIT: {"type": "stream", "partitions": 2, "topics": [TOPIC.format("+")],
            "retention": {"max_length_messages": KEPT}},
}
ANSWER_S = 45.0


async def make(node: Node, user: dict[str, Any]) -> None:
    """All of it, through a node. user: as `fluxmq user add` sends it. Raises TryoutError."""
    await _asked(node, "POST", "users", body={"users": [user]})
    for name, spec in SPECS.items():
        await declare(node, name, spec)


async def declare(node: Node, name: str, spec: dict[str, Any]) -> None:
    """A queue. Raises TryoutError."""
    await _asked(node, "PUT", "queues", name, body=spec)


async def delete(node: Node, name: str) -> None:
    """Raises TryoutError."""
    await _asked(node, "DELETE", "queues", name)


async def move(node: Node, name: str, partition: int) -> None:
    """A partition of a queue goes to the node. Raises TryoutError."""
    while (await _asked(node, "POST", "queues", name, "move",
                        body={"node": node.name, "partition": partition}))["moving"]:
        pass


async def _asked(node: Node, method: str, *segments: str, body: Any = None) -> Any:
    try:
        return await node.ask(method, *segments, body=body, limit_s=ANSWER_S)
    except NoAnswer as error:
        raise TryoutError(f"{node.name} refuses {method} {'/'.join(segments)}: {error}") from error
