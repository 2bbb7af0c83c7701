"""Queues as a user writes them: the entries of `queues:`, and what `fluxmq queue create` sends. Read by `read_spec`.

Durations are written as everywhere (90s, 250ms), sizes too (64KiB); inside they are float seconds and int bytes.
"""
from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from fluxmq.model import limits
from fluxmq.model.entries import KIND_MAX, SpecError, read_list, read_struct, write_struct
from fluxmq.model.listeners import Bytes, Seconds
from fluxmq.model.raft import QUEUE_KEYS_REFUSED, QueueReplication, group_name_problem
from fluxmq.model.units import format_duration

__all__ = [
    "DEAD_LETTER_SUFFIX", "KIND_MAX", "NAME_BYTES_MAX", "REFUSED", "DeadLetters", "QueueLimits", "QueueSpec",
    "Retention", "Retry", "SpecError", "filter_problem", "name_problem", "new_dead_letter_queue", "read_spec",
    "read_specs", "write_spec",
]

MESSAGES_MAX = 10**15  # more than any machine holds, and less than the offsets of a lane
DEAD_LETTER_SUFFIX = ".dlq"
NAME_BYTES_MAX = 200  # an address is `$queue/<name>/…` within 65 535 bytes, and a name is read by people


# Keys of other versions, and what to write instead.
REFUSED = {
    "reserved": "no queue is special. Leave it out",
    "primary_group": "what a group has read, `fluxmq queue groups` and /metrics show. Leave it out",
    "ack_durability": "all queues share one journal: set storage.session_durability",
    **QUEUE_KEYS_REFUSED,
}


class Retention(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Retention of a stream, per partition. The broker checks each limit every few seconds; 0 = none."""

    max_age: Annotated[Seconds, Meta(description="Older messages are forgotten. 0s = never.")] = 0.0
    max_length_bytes: Annotated[Bytes, Meta(description="Bytes kept; the oldest go first. 0 = any number.")] = 0
    max_length_messages: Annotated[int, Meta(ge=0, le=MESSAGES_MAX, description=(
        "Messages kept; the oldest go first. 0 = any number."))] = 0


class QueueLimits(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Limits of a queue, for all partitions together."""

    max_message_size: Annotated[Bytes, Meta(le=limits.PAYLOAD_BYTES_MAX, description=(
        "Largest payload; a larger one is refused. 0 = what the protocol of its publisher may send."))] = 0
    max_depth: Annotated[int, Meta(ge=0, le=MESSAGES_MAX, description=(
        "Messages kept; then `overflow` decides. 0 = any number."))] = 0
    max_bytes: Annotated[Bytes, Meta(description=(
        "Their bytes with topic and properties; then `overflow` decides. 0 = any number."))] = 0
    message_ttl: Annotated[Seconds, Meta(description=(
        "How long after its publish a message may still be delivered; it dies when its turn comes later than that. "
        "Message Expiry Interval counts if it is shorter. 0s = for ever."))] = 0.0


class Retry(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Redelivery of messages that a consumer did not settle, unless its group overrides it. Not for streams."""

    max_retries: Annotated[int, Meta(ge=0, le=65000, description=(
        "Deliveries after the first; then it is a dead letter. 0 = any number."))] = 10
    initial_backoff: Annotated[Seconds, Meta(description=(
        "Between a $nack (or a PUBACK with an error) and the next delivery, the first time."))] = 1.0
    max_backoff: Annotated[Seconds, Meta(description="The longest that this time grows to.")] = 300.0
    multiplier: Annotated[float, Meta(ge=1, le=100, description="How much longer it is each time.")] = 2.0
    visibility_timeout: Annotated[Seconds, Meta(description=(
        "What a consumer has not settled by then is given to somebody; consumers may ask for another time. 0s = never, "
        "as long as it is connected."))] = 30.0


class DeadLetters(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Dead letters: where messages go that no consumer could settle. Not for streams."""

    enabled: Annotated[bool, Meta(description="false: they are thrown away.")] = True
    topic: Annotated[str, Meta(description=(
        "The name of the queue that takes them, made when it is needed; several queues may share one. Empty: the name "
        "of this queue with .dlq behind it."), extra={"allowed": "the name of a queue, or empty"})] = ""


class QueueSpec(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One entry of `queues`: a queue or stream, at the address $queue/<name>."""

    name: Annotated[str, Meta(description=(
        "One level of a topic: printable, at most 200 bytes, without / + # and not beginning with $. Needed."),
        extra={"allowed": "text, not empty"})]
    type: Annotated[Literal["classic", "stream", "ephemeral"], Meta(description=(
        "classic: each message is settled by one consumer of a group; stream: everybody reads everything, and nothing "
        "is settled; ephemeral: as classic, in memory only. Cannot be changed."))] = "classic"
    topics: Annotated[tuple[str, ...], Meta(description=(
        "Filters of ordinary topics: what is published to them is captured, besides what is published to the queue's "
        "own address."))] = ()
    partitions: Annotated[int, Meta(ge=1, le=1024, description=(
        "Orders of its own that the queue consists of. Cannot be changed."))] = 1
    max_priority: Annotated[int, Meta(ge=0, le=255, description=(
        "Highest priority that publishers can ask for; 0 = no priorities. Not for streams. Cannot be changed."))] = 0
    capture: Annotated[Literal["on", "confirmed"], Meta(description=(
        "What the publisher to a captured topic waits for: on, nothing; confirmed, its acknowledgement leaves when the "
        "message is on the disk, and is a refusal if the queue does not take it."))] = "on"
    overflow: Annotated[Literal["reject-publish", "drop-head"], Meta(description=(
        "At limits.max_depth or max_bytes: reject-publish refuses the new message, drop-head makes the oldest a dead "
        "letter. A stream forgets its oldest."))] = "reject-publish"
    expires_after: Annotated[Seconds, Meta(description=(
        "Of an ephemeral queue that is not in the configuration: it is deleted so long after its last consumer left."
    ))] = 300.0
    retention: Retention = Retention()
    limits: QueueLimits = QueueLimits()
    retry: Retry = Retry()
    dlq: DeadLetters = DeadLetters()
    replication: QueueReplication = QueueReplication()
    namespace: Annotated[str, Meta(description=(
        "The namespace that it is in, of `namespaces`: for AMQP a virtual host. Cannot be changed."),
        extra={"allowed": "text, not empty"})] = "/"

    @property
    def raw(self) -> bytes:
        """The name as the engine knows it. A name from AMQP may be neither printable nor text."""
        return self.name.encode("utf-8", "surrogateescape")

    @property
    def shown(self) -> str:
        """The name as people read it: a queue of another namespace than "/" as <namespace>/<name>."""
        text = self.raw.decode("utf-8", "replace")
        return text if self.namespace == "/" else f"{self.namespace}/{text}"

    @property
    def address(self) -> tuple[bytes, bytes]:
        """(namespace, name) as the engine knows them."""
        return self.namespace.encode(), self.raw

    @property
    def lanes(self) -> int:
        """Logs per partition."""
        return self.max_priority + 1

    @property
    def dead_letter_queue(self) -> str:
        """The name of the queue for dead letters; "" for none."""
        return (self.dlq.topic or self.name + DEAD_LETTER_SUFFIX) if self.dlq.enabled else ""


def new_dead_letter_queue(namespace: str, name: str) -> QueueSpec:
    """A dead-letter queue that the broker makes: it has no limits and no dead letters of its own, because its messages
    wait for an operator."""
    return QueueSpec(name=name, dlq=DeadLetters(enabled=False), namespace=namespace)


def name_problem(name: str) -> str:
    """What is wrong with the name of a queue or group; "" for nothing. One level of a topic, printable, no `$`."""
    if not name:
        return "is empty"
    if len(name.encode()) > NAME_BYTES_MAX:
        return f"is longer than {NAME_BYTES_MAX} bytes"
    if name.startswith("$"):
        return "may not begin with '$'"
    if any(char in name for char in "/+#"):
        return "may not contain '/', '+' or '#'"
    if not name.isprintable() or name != name.strip():
        return "may not contain characters that cannot be printed, or begin or end with a space"
    return ""


def filter_problem(filter_: str, name: str) -> str:
    """What is wrong with a filter of ordinary topics that the queue `name` is to capture; "" for nothing."""
    levels = filter_.split("/")
    if not filter_:
        return "is empty"
    if len(filter_.encode()) > 65535 or not filter_.isprintable():
        return "is longer than 65535 bytes, or contains characters that cannot be printed"
    if any("#" in level and level != "#" for level in levels) or "#" in levels[:-1]:
        return "has a # that is not the whole last level [MQTT-4.7.1-1]"
    if any("+" in level and level != "+" for level in levels):
        return "has a + that is not a whole level [MQTT-4.7.1-2]"
    if levels[0] == "$share":
        return "is a shared subscription: a queue takes everything; its consumers share it"
    if levels[0] == "$queue" and levels[1:2] != [name]:
        return ("is about other queues: each takes what is published to its own address, "
                f"$queue/{name}, and no queue what is meant for another")
    return ""


def read_spec(given: Mapping[str, Any], path: str = "") -> QueueSpec:
    """A queue as it was written. Raises SpecError."""
    spec = read_struct(QueueSpec, given, path, what="queue", refused=REFUSED)
    assert isinstance(spec, QueueSpec)
    problem = name_problem(spec.name)
    if problem:
        raise SpecError(f"{path}name", f"{spec.name!r} {problem}")
    for at, filter_ in enumerate(spec.topics):
        if problem := filter_problem(filter_, spec.name):
            raise SpecError(f"{path}topics[{at}]", f"{filter_!r} {problem}")
    if spec.type == "stream" and spec.max_priority:
        raise SpecError(f"{path}max_priority", "a stream is read in order, and has no priorities")
    if spec.type != "stream" and spec.retention != Retention():
        raise SpecError(f"{path}retention", f"is for streams; a {spec.type} queue keeps what nobody has settled: "
                                            f"set limits and overflow")
    if spec.retry.max_backoff < spec.retry.initial_backoff:
        raise SpecError(f"{path}retry.max_backoff", f"{format_duration(spec.retry.max_backoff)} is less than "
                                                    f"initial_backoff: make it longer, or that shorter")
    if spec.dlq.topic:
        problem = "is the queue itself" if spec.dlq.topic == spec.name else name_problem(spec.dlq.topic)
        if problem:
            raise SpecError(f"{path}dlq.topic",
                            f"{spec.dlq.topic!r} {problem}: it is the name of another queue, without $queue/")
    _check_replication(spec, f"{path}replication.")
    return spec


def _check_replication(spec: QueueSpec, path: str) -> None:
    """What can be told without the settings of its group; replication.py has the rest."""
    said = spec.replication
    if said.group and (problem := group_name_problem(said.group)):
        raise SpecError(f"{path}group", f"{said.group!r} {problem}")
    if said.enabled and spec.type == "ephemeral":
        raise SpecError(f"{path}enabled", "an ephemeral queue is in one node's memory, and ends with its consumers: "
                                          "make it classic, or leave replication out")
    if said.replication_factor and said.min_in_sync_replicas > said.replication_factor:
        raise SpecError(f"{path}min_in_sync_replicas",
                        f"{said.min_in_sync_replicas} is more than replication_factor, {said.replication_factor}: no "
                        f"publish would be confirmed")


def read_specs(given: object) -> tuple[QueueSpec, ...]:
    """The list under `queues:`. Raises ValueError, or SpecError that names each entry and key that is wrong."""
    return read_list(given, lambda entry, path: entry if isinstance(entry, QueueSpec) else read_spec(entry, path),
                     lambda spec: (spec.address, spec.shown))


def write_spec(spec: QueueSpec) -> dict[str, Any]:
    """As a user would write it: what differs from the defaults."""
    return write_struct(spec, QueueSpec(name=spec.name), "name")
