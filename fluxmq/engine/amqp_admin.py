"""What the admin ring sees of queues that AMQP declared, and of messages in AMQP's form."""
from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fluxmq._core.amqp091_properties import decode_properties
from fluxmq.engine.ports_queues import QueueMessage

if TYPE_CHECKING:
    from fluxmq._core.queue_log import Record
    from fluxmq.engine.queues import QueueManager, QueueState

__all__ = ["amqp_message_of", "declared_of", "named"]


def named(manager: QueueManager, shown: str) -> QueueState | None:
    """The queue that people call so: of another virtual host than "/" it is <virtual host>/<name>."""
    state = manager.queues.get(shown.encode("utf-8", "surrogateescape"))
    if state is None and "/" in shown:
        state = next((one for one in manager.queues.values() if one.spec.shown == shown), None)
    return state


def declared_of(state: QueueState) -> dict[str, Any]:
    """amqp: virtual host, what it was declared as, arguments. Nothing, where it was not AMQP that declared it."""
    declared = state.declared
    if declared is None:
        return {}
    return {"amqp": {"vhost": text(declared.vhost), "durable": declared.durable, "exclusive": declared.exclusive,
                     "auto_delete": declared.auto_delete,
                     "arguments": {name: plain(value) for name, value in declared.arguments.items()}}}


def amqp_message_of(record: Record, partition: int) -> QueueMessage:
    """A message of a log in the port's words. topic: the routing key."""
    at = 1 + record.topic[0]
    told = decode_properties(record.properties)
    headers = told.pop("headers", {})
    named = {"exchange": text(record.topic[1:at])} | {name.replace("_", "-"): plain(value)
                                                      for name, value in told.items()}
    return QueueMessage(
        partition=partition, offset=record.offset, topic=text(record.topic[at:]), payload=record.payload,
        time_ms=record.time_ms, expires_at=record.expires_at, priority=record.priority, properties=named,
        user_properties=[(text(name), str(plain(value))) for name, value in headers.items()])


def text(raw: bytes | str) -> str:
    """As text that can be written anywhere."""
    if isinstance(raw, str):
        raw = raw.encode("utf-8", "surrogateescape")
    return raw.decode("utf-8", "replace")


def plain(value: Any) -> Any:
    """A field's value as JSON has it."""
    if isinstance(value, bytes | str):
        return text(value)
    if isinstance(value, dict):
        return {text(name): plain(one) for name, one in value.items()}
    if isinstance(value, list):
        return [plain(one) for one in value]
    if value is None or isinstance(value, bool | float):
        return value
    return int(value) if isinstance(value, int) else str(value)
