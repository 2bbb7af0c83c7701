"""What a node that is gone had not acknowledged; and what is kept for its persistent sessions until they are adopted.

A message of QoS 2 for a share group may have come to a member of that node, which has begun a delivery that nobody else
may repeat [MQTT-4.8.2-4, MQTT-4.8.2-5], or it may never have arrived there. So it waits on this node's disk (Doubts):

    the node is gone ─► in doubt ─┬─ it is back, and has recorded the frame ─► dropped: its member's session has it
                                  ├─ it is back without it ──────────────────► another member gets it
                                  └─ it is not back after DOUBT_S ───────────► another member gets it; that is logged
"""
from __future__ import annotations

from collections.abc import Callable

from fluxmq._core.peer.outbox import PeerOutbox
from fluxmq.cluster.ports import Log
from fluxmq.engine.broker import Broker

__all__ = ["DOUBT_S", "Doubts", "Parked", "give_up"]

WHY = "the node has gone"
DOUBT_S = 3600.0  # as long as what finds no member is kept (engine/sessions/parked.py)


class Doubts:
    """Messages of QoS 2 for share groups that nodes which are gone may have. One per life of a node; what a former life
    of this node was in doubt about is given to a member when this node starts."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._of: dict[str, list[tuple[float, int, Callable[[bool], None]]]] = {}  # node -> since when, frame, decided
        self.expired = 0  # those that were given to another member although their node was not back

    @property
    def waiting(self) -> int:
        """How many are not decided."""
        return sum(map(len, self._of.values()))

    def add(self, node: str, now_s: float, frame: int, decided: Callable[[bool], None]) -> None:
        """frame: with which the node was sent the message. decided: see ShareGroups.keep_in_doubt."""
        self._of.setdefault(node, []).append((now_s, frame, decided))

    def on_back(self, node: str, on_disk: int) -> None:
        """The next life of a node has said which frame is the last one that it has on its disk."""
        waiting = self._of.pop(node, [])
        for _, frame, decided in waiting:
            decided(frame <= on_disk)
        if waiting:
            self._log("info", "", "a node is back that may have had messages of share groups: what it has not recorded "
                                  "goes to other members", {
                "node": node, "recorded": sum(frame <= on_disk for _, frame, _ in waiting),
                "given": sum(frame > on_disk for _, frame, _ in waiting)})

    def expire(self, now_s: float) -> None:
        """Waits no longer for what is older than DOUBT_S."""
        for node, waiting in list(self._of.items()):
            late = [entry for entry in waiting if entry[0] + DOUBT_S <= now_s]
            if not late:
                continue
            self._of[node] = [entry for entry in waiting if entry[0] + DOUBT_S > now_s]
            if not self._of[node]:
                del self._of[node]
            self.expired += len(late)
            for _, _, decided in late:
                decided(False)
            self._log("warning", "", f"a node is not back after {DOUBT_S / 60:.0f} min that may have delivered "
                                     "messages of QoS 2 to members of share groups: other members get them, perhaps "
                                     "for the second time", {"node": node, "messages": len(late)})


def _give_again(outbox: PeerOutbox, broker: Broker, doubts: Doubts, now_s: float) -> None:
    """What the node of this outbox may not have got of share groups goes to their members elsewhere."""
    for namespace, group, filter_, message, frame in outbox.group_messages():
        if frame:
            doubts.add(outbox.node, now_s, frame,
                       broker.share_groups.keep_in_doubt(namespace, group, filter_, message))
        else:
            broker.share_groups.give_again(namespace, group, filter_, message)


def give_up(outbox: PeerOutbox, broker: Broker, doubts: Doubts, now_s: float) -> None:
    """The node of this outbox has no lease any more, and the broker has forgotten it. What it may not have got of share
    groups goes to their members elsewhere; what waits for the node is answered when these, or their nodes, have it. Its
    own clients are gone: nobody waits for what they had not got."""
    newest = outbox.cut() - 1
    since = broker.hub.commits.mark
    _give_again(outbox, broker, doubts, now_s)

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

    def __init__(self, outbox: PeerOutbox, broker: Broker, doubts: Doubts, now_s: float) -> None:
        self._outbox = outbox
        self._hub = broker.hub
        self._waits = 2
        self._why = ""
        self._done: Callable[[], object] = lambda: None
        outbox.park()
        since = broker.hub.commits.mark
        _give_again(outbox, broker, doubts, now_s)
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
