"""What the admin ring asks of the queues, as a Protocol: `QueuesPort`. `engine.queues.admin.QueueAdmin` is one.

Everything here happens on the loop's thread and returns at once: nothing waits for the disk. What must be read from
disk first is said so (`loading`), and the caller asks again; what must be on disk before it is told to anybody waits by
`when_durable`. Names of queues and groups are text as a user wrote it: of a queue outside "/" <namespace>/<name>, or a
QueueName; positions are text as in `$queue` subscriptions: first, last, next, N, -N, offset=N, timestamp=<ms or ISO
8601>.

What is described comes as plain dicts that go out as JSON as they are, so a key may be added without a change here.
"""
from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, Protocol

import msgspec

from fluxmq._core.errors import FluxError

__all__ = ["Browsed", "Moved", "Page", "Publish", "QueueMessage", "QueueName", "QueueRefused",
           "QueuesPort"]

Refusal = Literal["not_found", "conflict", "invalid", "full", "unavailable"]


class QueueRefused(FluxError):
    """Something about queues cannot be done, and whoever asked should hear why.

    kind: not_found, the queue, group or message is not there; conflict, it is there and is otherwise, or is in use;
    invalid, what was asked for makes no sense; full, a limit of the queue or of the node is reached; unavailable, not
    now.
    text: one sentence. hint: what to do about it, or "".
    """

    def __init__(self, kind: Refusal, text: str, hint: str = "") -> None:
        super().__init__(text)
        self.kind = kind
        self.text = text
        self.hint = hint

    def __reduce__(self) -> tuple[type, tuple[Refusal, str, str]]:
        return type(self), (self.kind, self.text, self.hint)


class QueueName(str):
    """What people call a queue, and the namespace and name that are meant: a name may have a '/' of its own, so that
    two queues can be called the same.

    namespace, own: as a user wrote them.
    """

    namespace: str
    own: str

    def __new__(cls, namespace: str, own: str) -> QueueName:
        made = super().__new__(cls, own if namespace == "/" else f"{namespace}/{own}")
        made.namespace, made.own = namespace, own
        return made


class QueueMessage(msgspec.Struct, frozen=True, kw_only=True):
    """A message as it lies in a partition. Times are wall clock in ms, 0 = none.

    properties: those of MQTT 5 that travel, by their names in the specification in lower case with dashes
    (content-type, response-topic, …), values of JSON. user_properties: in order, names may repeat. A dead letter has
    reason, origin, count and times among them. Of a message that came by AMQP the topic is that of its routing key, ""
    where none can be; properties are `exchange`, `routing-key` and AMQP's own, user_properties its headers.
    """

    partition: int
    offset: int
    topic: str
    payload: bytes
    time_ms: int = 0
    expires_at: int = 0
    priority: int = 0
    properties: dict[str, Any] = {}
    user_properties: list[tuple[str, str]] = []


class Browsed(msgspec.Struct, frozen=True):
    """What a browse found. next: a position, of no meaning to others, from which a further browse goes on.

    loading: there is more, but it must be read from disk first; ask again from `next` a little later.
    Neither messages nor loading: the end, for now.
    """

    messages: list[QueueMessage]
    next: str
    loading: bool = False


class Page(msgspec.Struct, frozen=True):
    """Messages as bytes. content: as `_core/queue/page.pyx` draws it. next: the offset from which a further page goes
    on. loading: nothing yet, it must be read from disk first; ask again a little later."""

    content: bytes
    next: int
    loading: bool = False


class Moved(msgspec.Struct, frozen=True):
    """How far a replay came. more: it did not finish (the step is bounded, or the disk must be read); call again."""

    moved: int
    more: bool = False


class Publish(msgspec.Struct, frozen=True, kw_only=True):
    """A message for a queue, as if a client had published it to `$queue/<name>[/<key>]`.

    user_properties: all that a client can ask in them is asked in them here too (partition-key, priority, x-delay,
    producer-id and producer-sequence, …). expiry_s: Message Expiry Interval.
    """

    payload: bytes
    key: str = ""
    content_type: str = ""
    expiry_s: int | None = None
    user_properties: list[tuple[str, str]] = []


class QueuesPort(Protocol):
    """The queues of a node. All but the first two methods raise QueueRefused, and StorageError when the disk fails."""

    def list_queues(self) -> list[dict[str, Any]]:
        """Each queue in short, those of "/" first, by name: name, namespace, type (classic | stream | ephemeral),
        partitions (how many), messages, bytes, ready, unsettled and delayed (messages), groups and consumers (how
        many), dead_letters (how many)."""

    def when_durable(self, then: Callable[[Exception | None], None]) -> None:
        """Calls `then` once: with None as soon as all that was changed before this call is as durable as the
        configuration promises (at once, where nothing is), or with the StorageError that prevents it. Sees to it that a
        batch is submitted, also outside of a turn."""

    def describe(self, name: str) -> dict[str, Any]:
        """As in list_queues(), and: spec (the queue as one would write it under `queues:`), partition_list (of dicts:
        partition, first, next, messages, bytes), group_list (as groups()), dead_letter_queue (its name, or
        ""), counts (what has happened, by name: appended, delivered, settled, …)."""

    def declare(self, spec: dict[str, Any]) -> Literal["created", "unchanged", "changed"]:
        """Makes the queue that is described as one would under `queues:` (name, type, topics, …), or changes what may
        be changed of one that is there. Refused as invalid (which key, and what is allowed) or as conflict (which key
        may not change)."""

    def delete(self, name: str, *, if_unused: bool, if_empty: bool) -> int:
        """Deletes the queue with its groups. Returns how many messages went with it. conflict: it is used (has
        consumers), is not empty, or stands in the configuration."""

    def purge(self, name: str) -> int:
        """Everything that is in it is gone for every group. Returns how many messages."""

    def publish(self, name: str, message: Publish) -> dict[str, Any]:
        """Appends. Returns partition and offset, or due_ms where it is delayed, or duplicate=True where its producer
        and sequence were seen before. Durable when `when_durable` says so. full: the queue's limit, or the disk."""

    def browse(self, name: str, position: str, count: int, bytes_max: int, partition: int | None) -> Browsed:
        """Messages as they lie, claiming and settling nothing: at most `count`, and about bytes_max of payload, but one
        at least. partition: only that one; None is all, each in order of offset. position: a position, or
        `Browsed.next` (then of the same partition argument); of several partitions it is taken in each."""

    def logs(self, name: str, position: str | None) -> tuple[str, list[dict[str, Any]]]:
        """(type of the queue, its logs): of each partition, lane, log (its number in hex), first, next (what is below
        is durable), bytes; and offset, where `position` is in it, if that is given."""

    def page(self, name: str, partition: int, lane: int, start: int, stop: int, bytes_max: int) -> Page:
        """As browse(), of the offsets [start, stop) of one lane, as bytes, and only what is durable: what a reader has
        seen under an offset is never another message after a crash."""

    def groups(self, name: str) -> list[dict[str, Any]]:
        """Each group: name, members (list of dicts: client, held, credit), claimed (messages in hands or waiting to be
        delivered again), lag (messages not settled), positions (list of dicts: partition, next, settled).
        Not of a stream: retry (dict: what holds for it, as in a queue's configuration), contract (which of these its
        consumers said)."""

    def seek(self, name: str, group: str, position: str, partition: int | None) -> list[dict[str, Any]]:
        """Sets where the group goes on: all below counts as settled, nothing above. Returns its positions. conflict: it
        has claims in members' hands."""

    def delete_group(self, name: str, group: str) -> None:
        """conflict: it has members."""

    def dead_list(self) -> list[dict[str, Any]]:
        """Each queue whose dead letters go somewhere: queue, namespace, dead_letter_queue, messages, bytes, oldest_ms,
        newest_ms."""

    def dead_browse(self, name: str, position: str, count: int, bytes_max: int) -> Browsed:
        """As browse(), of the dead letters of queue `name`; their partition and offset name them for dead_replay."""

    def dead_replay(self, name: str, selected: Sequence[tuple[int, int]] | None, count: int) -> Moved:
        """Moves dead letters back to the queue they came from, as new messages, each settled there and appended here in
        one batch. selected: (partition, offset) of those, of which what is not there (any more) is skipped; None: the
        oldest, at most `count` of them. A bounded step: while `more`, the caller comes again a little later, with the
        same selection, or with what is left of its count."""

    def dead_purge(self, name: str) -> int:
        """All dead letters of queue `name` are gone. Returns how many."""
