"""Which topic filters this node wants, and what the other nodes must know of it.

The engine announces each subscription and withdraws it; here they are counted. The other nodes are told when a filter's
count becomes one, or zero, and whether one of the subscriptions is durable: of a session that outlives its node, so
that messages for it are kept when the node dies. Of a share group they are told how many members are connected here
whenever that changes, because the publisher's node chooses by it; if none is, how many are away, with the bit AWAY.

An answer to a client (SUBACK) leaves when every peer has applied what was announced: `Sender.interest` gives a ticket
of the commit line of the peer. A filter that was announced shortly before may not be known yet; then a later
subscription to it waits for the same.
"""
from __future__ import annotations

from collections import Counter
from typing import Protocol

__all__ = ["AWAY", "Interest", "Sender"]

AWAY = 1 << 31  # of the count of a share group: its members here are all away
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
        self._connected: Counter[Filter] = Counter()  # of the members of share groups
        self._told: dict[Filter, tuple[int, bool]] = {}  # what peers know of each: count and durable
        self._senders: dict[str, Sender] = {}

    def announce(self, namespace: bytes, filter_: bytes, group: bytes, durable: bool = False) -> None:
        """See Directory.announce."""
        if filter_.startswith(OWN_TOPICS):
            return
        key = namespace, filter_, group
        self._counts[key] += 1
        if durable:
            self._durable[key] += 1
        if not self._tell_news(key, True):
            for sender in self._senders.values():
                sender.barrier()

    def withdraw(self, namespace: bytes, filter_: bytes, group: bytes, durable: bool = False) -> None:
        """See Directory.withdraw."""
        if filter_.startswith(OWN_TOPICS):
            return
        key = namespace, filter_, group
        self._counts[key] -= 1
        if durable:
            self._durable[key] -= 1
            if not self._durable[key]:
                del self._durable[key]
        self._tell_news(key, False)
        if not self._counts[key]:
            del self._counts[key], self._told[key]

    def members_connected(self, namespace: bytes, filter_: bytes, group: bytes, change: int) -> None:
        """See Directory.members_connected."""
        if filter_.startswith(OWN_TOPICS):
            return
        key = namespace, filter_, group
        self._connected[key] += change
        if not self._connected[key]:
            del self._connected[key]
        if key in self._counts:
            self._tell_news(key, False)

    def _now(self, key: Filter) -> tuple[int, bool]:
        """What peers should know."""
        count = self._counts[key]
        if key[2]:
            count = min(self._connected[key], count) or (count and count | AWAY)
        return count, key in self._durable

    def _tell_news(self, key: Filter, ticket: bool) -> bool:
        """Tells the peers, unless they know; returns whether it did."""
        now, told = self._now(key), self._told.get(key)
        self._told[key] = now
        if told is not None and now[1] == told[1] and (now[0] == told[0] if key[2] else now[0] and told[0]):
            return False
        for sender in self._senders.values():
            sender.interest(*key, *now, ticket)
        return True

    def add(self, node: str, sender: Sender) -> None:
        """A peer has appeared: tells it everything, and all changes from now on."""
        self._senders[node] = sender
        for key in self._counts:
            sender.interest(*key, *self._now(key), False)

    def remove(self, node: str) -> None:
        """A peer is gone: nobody waits for it any more."""
        self._senders.pop(node, None)
