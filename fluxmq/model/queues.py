"""Queues as a user writes them: the entries of `queues:`, and what `fluxmq queue create` sends. Read by `read_spec`.

Durations are written as everywhere (90s, 250ms), sizes too (64KiB); inside they are float seconds and int bytes.
"""
from __future__ import annotations

import difflib
import functools
from collections.abc import Mapping
from typing import Annotated, Any, Literal, get_type_hints

import msgspec
from msgspec import Meta, Struct, inspect

from fluxmq.model.listeners import Bytes, Seconds
from fluxmq.model.units import format_duration, format_size, parse_duration, parse_size

__all__ = [
    "DeadLetters", "QueueLimits", "QueueSpec", "Retention", "Retry", "name_problem", "read_spec", "read_specs",
    "write_spec",
]

NAME_BYTES_MAX = 200  # an address is `$queue/<name>/…` within 65 535 bytes, and a name is read by people


class Retention(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How much of a stream is kept; 0 = no bound. Each is a cap."""

    max_age: Seconds = 0.0
    max_length_bytes: Bytes = 0
    max_length_messages: Annotated[int, Meta(ge=0)] = 0


class QueueLimits(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a queue takes; 0 = no bound of its own."""

    max_message_size: Bytes = 0
    max_depth: Annotated[int, Meta(ge=0)] = 0
    max_bytes: Bytes = 0
    message_ttl: Seconds = 0.0


class Retry(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What becomes of a message that a consumer gives back. max_retries: deliveries after the first; 0 = for ever."""

    max_retries: Annotated[int, Meta(ge=0, le=65000)] = 10
    initial_backoff: Seconds = 1.0
    max_backoff: Seconds = 300.0
    multiplier: Annotated[float, Meta(ge=1, le=100)] = 2.0
    visibility_timeout: Seconds = 30.0


class DeadLetters(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where messages go that nobody could settle. topic: the name of that queue; empty = `<queue>.dlq`."""

    enabled: bool = True
    topic: str = ""


class QueueSpec(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One queue. topics: filters of ordinary topics that it captures besides its own address `$queue/<name>/#`.

    type: classic (each message to one consumer of a group, until it is settled), stream (everybody reads, nothing is
    settled) or ephemeral (classic, in memory, gone some time after its last consumer).
    """

    name: str
    type: Literal["classic", "stream", "ephemeral"] = "classic"
    topics: tuple[str, ...] = ()
    partitions: Annotated[int, Meta(ge=1, le=1024)] = 1
    max_priority: Annotated[int, Meta(ge=0, le=9)] = 0
    capture: Literal["on", "confirmed"] = "on"
    overflow: Literal["reject-publish", "drop-head"] = "reject-publish"
    expires_after: Seconds = 300.0
    retention: Retention = Retention()
    limits: QueueLimits = QueueLimits()
    retry: Retry = Retry()
    dlq: DeadLetters = DeadLetters()

    @property
    def lanes(self) -> int:
        """Logs per partition."""
        return self.max_priority + 1

    @property
    def dead_letter_queue(self) -> str:
        """The name of the queue for dead letters; "" for none."""
        return (self.dlq.topic or f"{self.name}.dlq") if self.dlq.enabled else ""


def name_problem(name: str) -> str:
    """What is wrong with the name of a queue or group; "" for nothing. One level of a topic, printable, no `$`."""
    if not name:
        return "is empty"
    if len(name.encode()) > NAME_BYTES_MAX:
        return f"is longer than {NAME_BYTES_MAX} bytes"
    if name.startswith("$"):
        return "may not begin with '$'"
    if any(char in name for char in "/+#"):
        return "may not hold '/', '+' or '#'"
    if not name.isprintable() or name != name.strip():
        return "may not hold characters that cannot be printed, or begin or end with a space"
    return ""


def read_spec(given: Mapping[str, Any], path: str = "") -> QueueSpec:
    """A queue as it was written. Raises ValueError that names the key and what is allowed."""
    spec = _read(QueueSpec, given, path)
    assert isinstance(spec, QueueSpec)
    problem = name_problem(spec.name)
    if problem:
        raise ValueError(f"{path}name: {spec.name!r} {problem}")
    if spec.type == "stream" and spec.max_priority:
        raise ValueError(f"{path}max_priority: a stream is read in order, and has no priorities")
    if spec.type != "stream" and spec.retention != Retention():
        raise ValueError(f"{path}retention: is for streams; a {spec.type} queue keeps what nobody has settled: "
                         f"set limits and overflow")
    return spec


def read_specs(given: object) -> tuple[QueueSpec, ...]:
    """The list under `queues:`. Raises ValueError that names entry and key."""
    if not isinstance(given, list | tuple):
        raise ValueError("")
    specs = [spec if isinstance(spec, QueueSpec) else read_spec(spec, f"[{at}].") for at, spec in enumerate(given)]
    names: set[str] = set()
    for at, spec in enumerate(specs):
        if spec.name in names:
            raise ValueError(f"[{at}].name: {spec.name!r} stands there twice")
        names.add(spec.name)
    return tuple(specs)


def write_spec(spec: QueueSpec) -> dict[str, Any]:
    """As a user would write it: what differs from the defaults."""
    plain = QueueSpec(name=spec.name)
    found: dict[str, Any] = {"name": spec.name}
    for key in QueueSpec.__struct_fields__:
        value, default = getattr(spec, key), getattr(plain, key)
        if value == default or key == "name":
            continue
        if isinstance(value, Struct):
            value = {name: _written(type(value), name, getattr(value, name)) for name in value.__struct_fields__
                     if getattr(value, name) != getattr(default, name)}
        else:
            value = _written(QueueSpec, key, value)
        found[key] = value
    return found


def _written(cls: type[Struct], key: str, value: Any) -> Any:
    info = _shape(cls)[0][key].type
    extra: dict[str, Any] = {}
    while isinstance(info, inspect.Metadata):
        extra |= info.extra or {}
        info = info.type
    if extra.get("kind") == "duration":
        return format_duration(value)
    if extra.get("kind") == "size":
        return format_size(value)
    return list(value) if isinstance(value, tuple) else value


@functools.cache
def _shape(cls: type[Struct]) -> tuple[dict[str, inspect.Field], dict[str, Any]]:
    """Fields and their types, by name. Kept: to find them out takes a millisecond, and queues may be thousands."""
    info = inspect.type_info(cls)
    assert isinstance(info, inspect.StructType)
    return {field.name: field for field in info.fields}, get_type_hints(cls, include_extras=True)


def _read(cls: type[Struct], given: object, path: str) -> Struct:
    if not isinstance(given, Mapping):
        raise ValueError(f"{path.rstrip('.') or 'it'}: a mapping of keys is expected")
    fields, hints = _shape(cls)
    found: dict[str, Any] = {}
    for key, value in given.items():
        if key not in fields:
            near = difflib.get_close_matches(str(key), fields, 1)
            raise ValueError(f"{path}{key}: there is no such key" + (f"; did you mean {near[0]}?" if near else
                                                                     f"; there are {', '.join(fields)}"))
        found[key] = _leaf(hints[key], fields[key].type, value, f"{path}{key}")
    if "name" in fields and "name" not in found:
        raise ValueError(f"{path}name: is needed")
    try:
        return cls(**found)
    except TypeError as error:
        raise ValueError(f"{path.rstrip('.')}: {error}") from None


def _leaf(hint: Any, info: inspect.Type, value: object, path: str) -> Any:
    if isinstance(info, inspect.StructType):
        return _read(info.cls, value, f"{path}.")
    extra: dict[str, Any] = {}
    while isinstance(info, inspect.Metadata):
        extra |= info.extra or {}
        info = info.type
    try:
        if extra.get("kind") == "duration":
            value = parse_duration(value)
        elif extra.get("kind") == "size":
            value = parse_size(value)
        if isinstance(info, inspect.VarTupleType) and isinstance(value, list):
            value = tuple(value)
        return msgspec.convert(value, hint)
    except (ValueError, msgspec.ValidationError) as error:
        raise ValueError(f"{path}: {value!r} cannot be used ({error})") from None
