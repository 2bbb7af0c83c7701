"""Namespaces as a user writes them: the entries of `namespaces:`, read by `read_namespaces`."""
from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from msgspec import Meta, Struct

from fluxmq.model import limits
from fluxmq.model.entries import SpecError, read_list, read_struct, write_struct
from fluxmq.model.listeners import Bytes

__all__ = ["NamespaceLimits", "NamespaceSpec", "namespace_problem", "read_namespaces", "write_namespace"]


class NamespaceLimits(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Limits for all clients of a namespace together; 0 = no limit. The limits of the node apply too."""

    connections: Annotated[int, Meta(ge=0, le=100_000_000, description=(
        "Connections at once, of MQTT and AMQP. A further client of MQTT is refused with 0x97, quota exceeded; one of "
        "AMQP with 530."))] = 0
    sessions: Annotated[int, Meta(ge=0, le=100_000_000, description=(
        "Sessions of MQTT, connected or not; a client that needs a further one is refused with 0x97, quota exceeded."
    ))] = 0
    queues: Annotated[int, Meta(ge=0, le=100_000_000, description=(
        "Queues and streams, those for dead letters too; a further one is refused, with 406 for AMQP."))] = 0
    bytes: Annotated[Bytes, Meta(description=(
        "Bytes kept: retained messages, messages that wait in sessions, and what queues keep. Beyond that a retained "
        "message and a publish to a queue are refused, and sessions drop as session.offline_queue_policy says."))] = 0
    messages_per_second: Annotated[int, Meta(ge=0, le=1_000_000_000, description=(
        "Messages that its clients publish. Whoever publishes beyond that is not read until the next quarter of a "
        "second; nothing is lost or refused."))] = 0


class NamespaceSpec(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One entry of `namespaces`: topics, sessions, queues and exchanges separate from those of every other."""

    name: Annotated[str, Meta(description=(
        "Printable, at most 255 bytes, without : + and #. For AMQP it is the name of a virtual host. \"/\", which is "
        "always there, may be listed to limit it. Needed."), extra={"allowed": "text, not empty"})]
    limits: NamespaceLimits = NamespaceLimits()


def namespace_problem(name: str) -> str:
    """What is wrong with the name of a namespace; "" for nothing."""
    if not name:
        return "is empty"
    if len(name.encode("utf-8", "surrogatepass")) > limits.AMQP_SHORT_STRING_BYTES_MAX:
        return f"is longer than {limits.AMQP_SHORT_STRING_BYTES_MAX} bytes, all that AMQP can say"
    if ":" in name:
        return "may not contain ':', which stands between namespace and user in the user name of an MQTT client"
    if "+" in name or "#" in name:
        return "may not contain '+' or '#': access lists name a namespace as levels of a topic"
    if not name.isprintable() or name != name.strip():
        return "may not contain characters that cannot be printed, or begin or end with a space"
    return ""


def read_namespaces(given: object) -> tuple[NamespaceSpec, ...]:
    """The list under `namespaces:`; an entry may be a name alone. Raises ValueError, or SpecError that names each entry
    and key that is wrong."""
    return read_list(given, lambda entry, path: entry if isinstance(entry, NamespaceSpec) else _read(entry, path),
                     lambda spec: (spec.name, spec.name))


def _read(given: object, path: str) -> NamespaceSpec:
    entry: Mapping[str, Any] | object = {"name": given} if isinstance(given, str) else given
    spec = read_struct(NamespaceSpec, entry, path, what="namespace")
    assert isinstance(spec, NamespaceSpec)
    if problem := namespace_problem(spec.name):
        raise SpecError(f"{path}name", f"{spec.name!r} {problem}")
    return spec


def write_namespace(spec: NamespaceSpec) -> dict[str, Any]:
    """As a user would write it: what differs from the defaults."""
    return write_struct(spec, NamespaceSpec(name=spec.name), "name")
