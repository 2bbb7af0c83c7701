"""What a node that is gone had not acknowledged; and what is kept for its persistent sessions until they are adopted.
"""
from __future__ import annotations

from collections.abc import Callable

from fluxmq._core.peer.outbox import PeerOutbox
from fluxmq.engine.broker import Broker

__all__ = ["Parked", "give_up"]

WHY = "the node has gone"


def give_up(outbox: PeerOutbox, broker: Broker) -> None:
    """The node of this outbox has no lease any more, and the broker has forgotten it. What it may not have got of share
    groups goes to their members elsewhere; what waits for the node is answered when these, or their nodes, have it. Its
    own clients are gone: nobody waits for what they had not got."""
    newest = outbox.cut() - 1
    since = broker.hub.commits.mark
    for namespace, group, filter_, message in outbox.group_messages():
        broker.share_groups.give_again(namespace, group, filter_, message)

    def decided(why: str = "") -> None:
        if why:
            outbox.line.give_up(why, newest)
        else:
            outbox.line.commit(newest)
        outbox.abandon(WHY)
        for line in (outbox.line, outbox.interest_line, outbox.queue_line):
            line.close(WHY)

    outbox.interest_line.commit(newest)
    broker.hub.when_durable(decided, since, decided)


class Parked:
    """The outbox of a dead node whose persistent sessions are to be adopted. What was for share groups goes to their
    members elsewhere at once. It goes on to take messages, until direct(); answers to what it has taken are given when
    both, the groups' members and the adopters, have it.
    """

    def __init__(self, outbox: PeerOutbox, broker: Broker) -> None:
        self._outbox = outbox
        self._hub = broker.hub
        self._waits = 2
        self._why = ""
        self._done: Callable[[], object] = lambda: None
        outbox.park()
        since = broker.hub.commits.mark
        for namespace, group, filter_, message in outbox.group_messages():
            broker.share_groups.give_again(namespace, group, filter_, message)
        broker.hub.when_durable(self._decided, since, self._decided)

    def direct(self, life: int, outboxes: list[PeerOutbox], here: bool, back: PeerOutbox | None,
               done: Callable[[], object]) -> None:
        """Everybody has adopted, and the outbox is in the index no more. See PeerOutbox.direct. done: called when
        nobody waits for it any longer."""
        self._done = done
        since = self._hub.commits.mark
        self._outbox.direct(life, outboxes, here, back)
        self._hub.when_durable(self._decided, since, self._decided)
        self._hub.wake_up()

    def _decided(self, why: str = "") -> None:
        self._waits -= 1
        self._why = self._why or why
        if self._waits:
            return
        if not self._why:
            self._outbox.line.commit(self._outbox.newest_sequence)
        self._outbox.line.close(self._why or WHY)
        self._done()
