"""The edge's state of a channel: its consumers, and what its methods need between calls."""
from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from fluxmq._core.net.amqp091_channel import Channel, ChannelMember
    from fluxmq._core.queue.queue import Queue
    from fluxmq.edge.amqp091.client import Client
    from fluxmq.engine.queues.relays import Answer

__all__ = ["ChannelState", "Consumer"]


class Consumer:
    """One consumer tag: a member of a group, or a reader for each partition of a stream."""

    __slots__ = ("cancel_on_failover", "channel", "group", "members", "open", "queue", "reading", "tag")

    def __init__(self, channel: Channel, queue: Queue, tag: str) -> None:
        self.channel = channel
        self.queue = queue
        self.tag = tag
        self.group: Any = None  # None: a stream read without a group
        self.members: list[Any] = []
        self.cancel_on_failover = False  # it is cancelled when the node that has the queue is away
        self.open: Callable[[Callable[[Answer], None]], None] | None = None  # of a stream of another node
        self.reading: Any = None  # of a stream: what StreamReads.open has returned


class ChannelState:
    """The state of a channel. last_queue: the queue that an empty name means. counted: the answer of another node to
    the Queue.Declare that is handled again now, and the queue that it is about."""

    __slots__ = ("channel", "client", "consumers", "counted", "getters", "last_queue")

    def __init__(self, client: Client, channel: Channel) -> None:
        self.client = client
        self.channel = channel
        self.consumers: dict[str, Consumer] = {}
        self.getters: dict[tuple[Queue, bool], ChannelMember] = {}  # members for Basic.Get
        self.last_queue = b""
        self.counted: tuple[Queue, Answer] | None = None
