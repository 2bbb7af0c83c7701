"""Queues as AMQP 0-9-1 declares them: what a declaration says, what its arguments mean, what is wrong with them.

The texts of refusals are RabbitMQ's, word for word where it has any, since people search for them and libraries test
for them. Values of arguments are those that a field table decodes to; text may be str or bytes.
"""
from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from fluxmq._core.amqp091.fields import Timestamp
from fluxmq.model.amqp import AmqpRefused, ReplyCode
from fluxmq.model.amqp import shown as text_of
from fluxmq.model.queues import DeadLetters, QueueLimits, QueueSpec, Retention, Retry

__all__ = ["AGE", "AGE_SECONDS", "ANY_KNOWN", "NAME_BYTES_MAX", "Declared", "QueueArguments", "difference",
           "kept_arguments", "read_arguments", "spec_of", "where"]

NAME_BYTES_MAX = 255
PRIORITY_MAX = 255
TIME_MS_MAX = 315_360_000_000  # ten years
SEGMENT_BYTES_MAX = 3_000_000_000
DEPTH_MAX = 10**15
SIZE_MAX = 1 << 60

COMMON = {"x-message-ttl", "x-expires", "x-max-length", "x-max-length-bytes", "x-overflow", "x-dead-letter-exchange",
          "x-dead-letter-routing-key", "x-single-active-consumer"}
# Arguments that each type of queue knows. An argument that no type knows is accepted and ignored.
KNOWN = {
    "classic": COMMON | {"x-max-priority", "x-queue-mode", "x-queue-version", "x-queue-master-locator"},
    "quorum": COMMON | {"x-delivery-limit", "x-quorum-initial-group-size", "x-dead-letter-strategy",
                        "x-max-in-memory-length", "x-max-in-memory-bytes"},
    "stream": {"x-max-length-bytes", "x-max-age", "x-stream-max-segment-size-bytes", "x-initial-cluster-size",
               "x-stream-filter-size-bytes"},
}
EVERY_TYPE = {"x-queue-type", "x-queue-leader-locator"}
ANY_KNOWN = frozenset().union(*KNOWN.values()) | EVERY_TYPE
AGE_SECONDS = {"Y": 365 * 86400, "M": 30 * 86400, "D": 86400, "h": 3600, "m": 60, "s": 1}
AGE = re.compile(r"([0-9]{1,12})([YMDhms])")


class Declared(msgspec.Struct, array_like=True, frozen=True):
    """A declaration. arguments: those that this version knows, and others of plain types."""

    vhost: bytes
    name: bytes
    durable: bool = False
    exclusive: bool = False
    auto_delete: bool = False
    arguments: dict[str, Any] = {}


class QueueArguments(msgspec.Struct, frozen=True, kw_only=True):
    """What the arguments mean. Times in ms; -1: no such limit."""

    kind: str = "classic"  # classic, quorum, stream
    ttl_ms: int = -1
    expires_ms: int = -1
    length_max: int = -1
    bytes_max: int = -1
    overflow: str = "drop-head"  # reject-publish, reject-publish-dlx
    dead_exchange: bytes | None = None
    dead_key: bytes | None = None
    priority_max: int = 0
    single: bool = False
    delivery_limit: int = -1
    age_s: int = 0


NO_ARGUMENTS = QueueArguments()


def where(vhost: bytes, name: bytes) -> str:
    """As a refusal names a queue."""
    return f"queue '{text_of(name)}' in vhost '{text_of(vhost)}'"


# ---------------------------------------------------------------- values


def type_of(value: object) -> str:
    """RabbitMQ's name for the type of a field's value."""
    if isinstance(value, bool):
        return "bool"
    if isinstance(value, Timestamp):
        return "timestamp"
    if isinstance(value, int):
        return "signedint" if -(1 << 31) <= value < 1 << 31 else "long"
    if isinstance(value, str | bytes | bytearray):
        return "longstr"
    if isinstance(value, float):
        return "double"
    if value is None:
        return "void"
    return "array" if isinstance(value, list | tuple) else "table" if isinstance(value, Mapping) else "decimal"


def shown(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return text_of(bytes(value)) if isinstance(value, bytes | bytearray) else str(value)


def octets(value: object) -> bytes | None:
    """Text as bytes; None if the value is no text."""
    if isinstance(value, str):
        return value.encode("utf-8", "surrogateescape")
    return bytes(value) if isinstance(value, bytes | bytearray) else None


def kept_arguments(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments to store: text as bytes; of unknown arguments only those of plain types."""
    kept: dict[str, Any] = {}
    for name, value in arguments.items():
        if isinstance(value, bool | float):
            kept[name] = value
        elif isinstance(value, int) and abs(value) < 1 << 63:
            kept[name] = int(value)
        elif (raw := octets(value)) is not None:
            kept[name] = raw
    return kept


# ---------------------------------------------------------------- what is wrong with them


class Wrong(Exception):
    """text: what follows the name of the argument and the queue."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text


def _integer(value: object) -> int:
    if type_of(value) not in ("signedint", "long"):
        raise Wrong(f'"expected integer, got {type_of(value)}"')
    assert isinstance(value, int)
    return value


def _count(value: object) -> int:
    number = _integer(value)
    if number < 0:
        raise Wrong(f"{{value_negative,{number}}}")
    return number


def _time(value: object) -> int:
    number = _count(value)
    if number > TIME_MS_MAX:
        raise Wrong(f"{{value_too_large,{number}}}")
    return number


def _expiry(value: object) -> int:
    number = _time(value)
    if number == 0:
        raise Wrong("{value_zero,0}")
    return number


def _priority(value: object) -> int:
    number = _count(value)
    if number > PRIORITY_MAX:
        raise Wrong(f"{{max_value_exceeded,{number}}}")
    return number


def _text(value: object) -> bytes:
    raw = octets(value)
    if raw is None:
        raise Wrong(f"{{unacceptable_type,{type_of(value)}}}")
    return raw


def _name(value: object) -> bytes:
    """An argument that is a short string on the wire."""
    raw = _text(value)
    if len(raw) > NAME_BYTES_MAX:
        raise Wrong(f"{{value_too_long,{len(raw)}}}")
    return raw


def _flag(value: object) -> bool:
    if not isinstance(value, bool):
        raise Wrong(f"{{unacceptable_type,{type_of(value)}}}")
    return value


def _one_of(what: str, *choices: str) -> Callable[[object], str]:
    def read(value: object) -> str:
        text = text_of(_text(value))
        if text not in choices:
            raise Wrong(f"\"unsupported {what} '{text}'\"" if what else "invalid_overflow")
        return text
    return read


def _version(value: object) -> int:
    number = _integer(value)
    if number not in (1, 2):
        raise Wrong(f"\"unsupported queue version '{number}'\"")
    return number


def _age(value: object) -> int:
    match = AGE.fullmatch(text_of(_text(value)))
    if match is None:
        raise Wrong("invalid_max_age")
    return int(match[1]) * AGE_SECONDS[match[2]]


# Argument → its reader, and the field of QueueArguments that takes the value, if any.
READ: dict[str, tuple[Callable[[object], Any], str]] = {
    "x-queue-type": (_one_of("queue type", *KNOWN), "kind"),
    "x-expires": (_expiry, "expires_ms"),
    "x-message-ttl": (_time, "ttl_ms"),
    "x-dead-letter-exchange": (_name, "dead_exchange"),
    "x-dead-letter-routing-key": (_name, "dead_key"),
    "x-max-length": (_count, "length_max"),
    "x-max-length-bytes": (_count, "bytes_max"),
    "x-max-priority": (_priority, "priority_max"),
    "x-overflow": (_one_of("", "drop-head", "reject-publish", "reject-publish-dlx"), "overflow"),
    "x-single-active-consumer": (_flag, "single"),
    "x-delivery-limit": (_integer, "delivery_limit"),
    "x-max-age": (_age, "age_s"),
    "x-queue-mode": (_one_of("queue mode", "default", "lazy"), ""),
    "x-queue-version": (_version, ""),
    "x-stream-max-segment-size-bytes": (_count, ""),
    "x-queue-leader-locator": (_text, ""),
    "x-queue-master-locator": (_text, ""),
    "x-dead-letter-strategy": (_text, ""),
    "x-quorum-initial-group-size": (_count, ""),
    "x-initial-cluster-size": (_count, ""),
    "x-max-in-memory-length": (_count, ""),
    "x-max-in-memory-bytes": (_count, ""),
}


def read_arguments(declared: Declared) -> QueueArguments:
    """What a declaration means. Raises AmqpRefused: 406."""
    if not declared.arguments:
        return NO_ARGUMENTS  # of most queues, and asked of each at a start
    named = where(declared.vhost, declared.name)
    given = declared.arguments
    found: dict[str, Any] = {}
    kind = shown(given.get("x-queue-type", "classic"))
    for name in given:
        if kind in KNOWN and name in ANY_KNOWN and name not in KNOWN[kind] and name not in EVERY_TYPE:
            raise refusal(f"invalid arg '{name}' for {named} of queue type rabbit_{kind}_queue")
    for name, (read, field) in READ.items():
        if name not in given:
            continue
        try:
            value = read(given[name])
        except Wrong as wrong:
            if name == "x-dead-letter-exchange":
                raise refusal(f"invalid type '{type_of(given[name])}' for arg '{name}' in {named}") from None
            raise refusal(f"invalid arg '{name}' for {named}: {wrong.text}") from None
        if field:
            found[field] = value
    arguments = QueueArguments(**found)
    if "x-dead-letter-routing-key" in given and arguments.dead_exchange is None:
        raise refusal(f"invalid arg 'x-dead-letter-routing-key' for {named}: routing_key_but_no_dlx_defined")
    if given.get("x-stream-max-segment-size-bytes", 0) > SEGMENT_BYTES_MAX:
        raise refusal("Exceeded max value for x-stream-max-segment-size-bytes")
    if arguments.kind != "classic":
        for wrong_, what in ((not declared.durable, "non-durable"), (declared.exclusive, "exclusive-owner"),
                             (declared.auto_delete, "auto-delete")):
            if wrong_:
                raise refusal(f"invalid property '{what}' for {named}")
    return arguments


def refusal(text: str) -> AmqpRefused:
    return AmqpRefused(ReplyCode.PRECONDITION_FAILED, text)


def difference(known: Declared, said: Declared, lenient: bool = False) -> str:
    """How the declarations differ; "" if they agree. lenient: a missing argument is no difference."""
    named = where(known.vhost, known.name)
    for what in ("durable", "auto_delete"):
        if getattr(known, what) != getattr(said, what):
            return (f"inequivalent arg '{what}' for {named}: received '{shown(getattr(said, what))}' but current is "
                    f"'{shown(getattr(known, what))}'")
    for name in READ:
        now, then = said.arguments.get(name), known.arguments.get(name)
        if name == "x-queue-type":  # a queue declared without a type is classic
            now, then = (None if octets(one) == b"classic" else one for one in (now, then))
        if now is None and (then is None or lenient):
            continue
        if then is None:
            return (f"inequivalent arg '{name}' for {named}: received the value '{shown(now)}' of type "
                    f"'{type_of(now)}' but current is none")
        if now is None:
            return (f"inequivalent arg '{name}' for {named}: received none but current is the value '{shown(then)}' "
                    f"of type '{type_of(then)}'")
        if shown(now) != shown(then) or kin(now) != kin(then):
            return (f"inequivalent arg '{name}' for {named}: received '{shown(now)}' but current is '{shown(then)}'")
    return ""


def kin(value: object) -> str:
    """Its type; integers of any width are one."""
    name = type_of(value)
    return "signedint" if name == "long" else name


# ---------------------------------------------------------------- what the engine makes of it

_PLAIN_RETRY = Retry(max_retries=0, initial_backoff=0.0, max_backoff=0.0, visibility_timeout=0.0)
_NO_DEAD_LETTERS = DeadLetters(enabled=False)


def spec_of(declared: Declared, arguments: QueueArguments) -> QueueSpec:
    """The queue as an entry of `queues:`, as far as that can express it; the arguments hold the rest."""
    name, namespace = declared.name.decode("utf-8", "surrogateescape"), declared.vhost.decode()
    if arguments is NO_ARGUMENTS:  # nearly all queues, and there may be a hundred thousand: they share what is the same
        return QueueSpec(name=name, namespace=namespace,
                         type="classic" if declared.durable and not declared.exclusive else "ephemeral",
                         overflow="drop-head", expires_after=0.0, retry=_PLAIN_RETRY, dlq=_NO_DEAD_LETTERS)
    limit = QueueLimits(max_depth=min(max(arguments.length_max, 0), DEPTH_MAX),
                        max_bytes=min(max(arguments.bytes_max, 0), SIZE_MAX),
                        message_ttl=max(arguments.ttl_ms, 0) / 1000)
    if arguments.kind == "stream":
        return QueueSpec(name=name, namespace=namespace, type="stream", retention=Retention(
            max_age=float(arguments.age_s), max_length_bytes=limit.max_bytes), dlq=DeadLetters(enabled=False))
    durable = declared.durable and not declared.exclusive  # an exclusive queue has no owner after a restart
    return QueueSpec(
        name=name, namespace=namespace, type="classic" if durable else "ephemeral", limits=limit,
        max_priority=arguments.priority_max,
        overflow="drop-head" if arguments.overflow == "drop-head" else "reject-publish",
        expires_after=max(arguments.expires_ms, 0) / 1000,
        retry=Retry(max_retries=min(max(arguments.delivery_limit, 0), 65000), initial_backoff=0.0, max_backoff=0.0,
                    visibility_timeout=0.0),
        dlq=DeadLetters(enabled=False))
