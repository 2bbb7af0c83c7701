"""What a node that is gone had not acknowledged."""
from __future__ import annotations

from fluxmq._core.peer.outbox import PeerOutbox
from fluxmq.engine.broker import Broker

__all__ = ["give_up"]

WHY = "the node has gone"


def give_up(outbox: PeerOutbox, broker: Broker) -> None:
    """The node of this outbox has no lease any more, and the broker has forgotten it. What it may not have got of share
    groups goes to their members elsewhere; what waits for the node is answered when these, or their nodes, have it. Its
    own clients are gone: nobody waits for what they had not got."""
    newest = outbox.cut() - 1
    since = broker.hub.commits.mark
    for namespace, group, filter_, message in outbox.group_messages():
        broker.give_again(namespace, group, filter_, message)

    def decided(why: str = "") -> None:
        if why:
            outbox.line.give_up(why, newest)
        else:
            outbox.line.commit(newest)
        outbox.abandon(WHY)
        for line in (outbox.line, outbox.interest_line):
            line.close(WHY)

    outbox.interest_line.commit(newest)
    broker.hub.when_durable(decided, since, decided)
