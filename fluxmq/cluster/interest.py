"""Which topic filters this node wants, and what the other nodes must know of it.

The engine announces each subscription and withdraws it; here they are counted. The other nodes are told when a filter's
count becomes one, or zero, and of a share group whenever its count changes, because the publisher's node chooses by it;
and whether one of the subscriptions is durable: of a session that outlives its node, so that messages for it are kept
when the node dies.

An answer to a client (SUBACK) leaves when every peer has applied what was announced: `Sender.interest` gives a ticket
of the commit line of the peer. A filter that was announced shortly before may not be known yet; then a later
subscription to it waits for the same.
"""
from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Protocol

__all__ = ["Interest", "Sender"]

OWN_TOPICS = b"$SYS/"  # each node publishes its own under these, for its own clients
Filter = tuple[bytes, bytes, bytes]  # namespace, topic filter, share group (b"": none)


class Sender(Protocol):
    """The stream to one peer (`_core/peer/outbox`)."""

    def interest(self, namespace: bytes, filter_: bytes, group: bytes, count: int, durable: bool, ticket: bool) -> None:
        """Tells the peer how many subscriptions there are; 0: none any more. durable: one of them is. ticket: what is
        being answered waits until the peer has applied it."""

    def barrier(self) -> None:
        """What is being answered waits until the peer has applied all interest that it was told so far."""


class Interest:
    """One per node. senders: the streams to all peers with a lease, by name."""

    def __init__(self) -> None:
        self._counts: Counter[Filter] = Counter()
        self._durable: Counter[Filter] = Counter()  # those of them that are durable
        self._senders: dict[str, Sender] = {}

    def announce(self, namespace: bytes, filter_: bytes, group: bytes, durable: bool = False) -> None:
        """See Directory.announce."""
        if filter_.startswith(OWN_TOPICS):
            return
        key = namespace, filter_, group
        self._counts[key] += 1
        count = self._counts[key]
        if durable:
            self._durable[key] += 1
        news = count == 1 or group or (durable and self._durable[key] == 1)
        for sender in self._senders.values():
            if news:
                sender.interest(namespace, filter_, group, count, key in self._durable, True)
            else:
                sender.barrier()

    def withdraw(self, namespace: bytes, filter_: bytes, group: bytes, durable: bool = False) -> None:
        """See Directory.withdraw."""
        if filter_.startswith(OWN_TOPICS):
            return
        key = namespace, filter_, group
        self._counts[key] -= 1
        count = self._counts[key]
        if count == 0:
            del self._counts[key]
        if durable:
            self._durable[key] -= 1
            if not self._durable[key]:
                del self._durable[key]
        if count == 0 or group or (durable and key not in self._durable):
            for sender in self._senders.values():
                sender.interest(namespace, filter_, group, count, key in self._durable, False)

    def add(self, node: str, sender: Sender) -> None:
        """A peer has appeared: tells it everything, and all changes from now on."""
        self._senders[node] = sender
        for (namespace, filter_, group), count in self._counts.items():
            sender.interest(namespace, filter_, group, count, (namespace, filter_, group) in self._durable, False)

    def remove(self, node: str) -> None:
        """A peer is gone: nobody waits for it any more."""
        self._senders.pop(node, None)

    def filters(self) -> Iterable[Filter]:
        """All that are wanted."""
        return self._counts.keys()
