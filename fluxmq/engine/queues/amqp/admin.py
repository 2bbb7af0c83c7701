"""What the admin ring shows of queues that were declared by AMQP."""
from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fluxmq._core.memory.namespace import ROOT
from fluxmq.engine.ports.queues import QueueName

if TYPE_CHECKING:
    from fluxmq.engine.queues.manager import QueueManager, QueueState

__all__ = ["declared_of", "named", "plain", "text"]


def named(manager: QueueManager, shown: str) -> QueueState | None:
    """The queue with this displayed name: outside of "/" it is <namespace>/<name>."""
    if isinstance(shown, QueueName):
        return manager.queues.get((shown.namespace.encode("utf-8", "surrogateescape"),
                                   shown.own.encode("utf-8", "surrogateescape")))
    state = manager.queues.get((ROOT, shown.encode("utf-8", "surrogateescape")))
    if state is None and "/" in shown:
        state = next((one for one in manager.queues.values() if one.spec.shown == shown), None)
    return state


def declared_of(state: QueueState) -> dict[str, Any]:
    """amqp: virtual host, flags of the declaration, arguments. Empty for a queue that was not declared by AMQP."""
    declared = state.declared
    if declared is None:
        return {}
    return {"amqp": {"vhost": text(declared.vhost), "durable": declared.durable, "exclusive": declared.exclusive,
                     "auto_delete": declared.auto_delete,
                     "arguments": {name: plain(value) for name, value in declared.arguments.items()}}}


def text(raw: bytes | str) -> str:
    """As text that can be displayed anywhere."""
    if isinstance(raw, str):
        raw = raw.encode("utf-8", "surrogateescape")
    return raw.decode("utf-8", "replace")


def plain(value: Any) -> Any:
    """A field's value as a JSON value."""
    if isinstance(value, bytes | str):
        return text(value)
    if isinstance(value, dict):
        return {text(name): plain(one) for name, one in value.items()}
    if isinstance(value, list):
        return [plain(one) for one in value]
    if value is None or isinstance(value, bool | float):
        return value
    return int(value) if isinstance(value, int) else str(value)
