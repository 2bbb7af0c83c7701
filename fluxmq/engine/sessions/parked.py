"""Messages of one share group that wait for a member, perhaps on another node.

    a session has ended, or a node ─► keep ─► on disk ─► mark_given ─► on disk ─► give ─┬─► a session here: settled
                                        ▲                                               ├─► another node: settled when
                                        └─────── no member anywhere: waits ◄────────────┘   that has it durably

The messages are in a session that no client has (its name begins with NUL, which no client identifier does
[MQTT-1.5.4-2]), so journal and view keep them like those of any session. What is given is marked first. So after a
crash a message of QoS 1 is given again, and so is one of QoS 2 if no other node has it: it is forwarded with an origin
(_core/hub/origins.pxd), by which the others are asked. On a node that is in no cluster such a message is dropped.

A message that has found no member for UNWANTED_S is dropped: its group has ended, or its members do not come back.

When the last node with members of a group dies, and some of these are in persistent sessions, what is published until
there is a member again goes the same way (Expecting). So does a message that another node may have given to a member
already, until the other nodes have said who has it, or that node is back (doubt).
"""
from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from fluxmq._core.hub.group_messages import (
    Expecting,
    give,
    keep,
    kept,
    mark_given,
    settle,
    settled_elsewhere,
)
from fluxmq._core.hub.transfer import sequence_of
from fluxmq._core.memory.namespace import Namespace
from fluxmq._core.pubsub.session import Session
from fluxmq._core.pubsub.share_group import ShareGroup

if TYPE_CHECKING:
    from fluxmq._core.hub.hub import Hub

__all__ = ["UNWANTED_S", "Message", "Parked", "WhoHas", "is_parked", "name_of", "offer"]

Message = tuple[bytes, bytes, bytes, int, bool, int]  # topic, payload, properties, QoS, retain, expires_at
# Asks the other nodes whether they have seen to it that a member of a share group (by its mark) gets a message with an
# origin (name, packet identifier, use), and calls with the answer.
WhoHas = Callable[[tuple[int, int, int], int, Callable[[bool], None]], None]
UNWANTED_S = 3600
GIVEN_MAX = 1000  # that are under way at a time


def name_of(group: bytes, filter_: bytes) -> bytes:
    """The name of the session that keeps a group's messages."""
    return b"\0$share/" + group + b"/" + filter_


def is_parked(name: bytes) -> bool:
    """Whether it is such a name."""
    return name.startswith(b"\0")


class Parked:
    """Of one group. session: has the messages. restored: it comes from disk, so those that are marked may have been
    given by the former life of this node. who_has: None if there is no cluster."""

    def __init__(self, hub: Hub, session: Session, *, restored: bool = False, who_has: WhoHas | None = None) -> None:
        self.hub = hub
        self.session = session
        self.since_ms = hub.steady_ms  # when a member was last seen
        self.dropped = 0  # messages, since that was last told, because no member came
        self._who_has = who_has
        self._name: int = session.data.incarnation  # of the origins; 0: it was made by a node without others
        self._given: dict[int, tuple[Any, int, int]] = {}  # sequence -> the stream to a node, number of the frame, QoS
        self._marked: dict[int, Message] = {}  # those that were marked, and are not given
        self._unsure: dict[int, Message] = {}  # those of QoS 2 that the former life of this node may have given
        for sequence, marked, message in kept(session) if restored else ():
            if marked and message[3] == 2 and (who_has is None or not self._name):
                settle(session, sequence)
            elif marked and message[3] == 2:
                self._unsure[sequence] = message
            elif marked:
                self._marked[sequence] = message
        self._waiting = False
        self._doubtful: set[int] = set()  # sequences of those that another node may have given to a member
        self.expecting: Expecting | None = None  # stands in the group for members that may come back

    @property
    def key(self) -> tuple[Namespace, bytes, bytes]:
        """In Hub.groups."""
        group, _, filter_ = self.session.name[len(b"\0$share/"):].partition(b"/")
        return self.session.namespace, group, filter_

    @property
    def empty(self) -> bool:
        """Whether it keeps nothing, and expects nobody."""
        return not self.session.inflight and not self.session.queued and self.expecting is None

    @property
    def unwanted(self) -> bool:
        """Whether there was no member for too long."""
        return self.hub.steady_ms - self.since_ms > UNWANTED_S * 1000

    def keep(self, message: Message) -> bool:
        """Keeps one more message. False: there was no room."""
        return keep(self.hub, self.session, message)

    def doubt(self) -> Callable[[bool], None]:
        """The next message that comes into the session is perhaps with another member already. Returns what is to be
        called when it is known whether it is."""
        sequence = sequence_of(self.session) + 1
        self._doubtful.add(sequence)

        def decided(had: bool) -> None:
            self._doubtful.discard(sequence)
            if self.session.data is None:
                return
            if had:
                settle(self.session, sequence)
            self.pump()
            self.hub.wake_up()

        return decided

    def _ask(self, sequence: int, message: Message) -> None:
        """Gives a message again if no other node has it."""
        def decided(had: bool) -> None:
            if self.session.data is None:
                return
            if had:
                self._settle(sequence, 2)
            else:
                self._marked[sequence] = message
            self.pump()
            self.hub.wake_up()

        assert self._who_has is not None
        _, name, filter_ = self.key
        self._who_has((self._name, 0, sequence), ShareGroup(name, filter_).mark, decided)

    def _settle(self, sequence: int, qos: int) -> None:
        """Another node has it durably."""
        since = self.hub.commits.mark
        settle(self.session, sequence)
        if qos == 2 and self._name:     # not before that is on disk: this node would ask them again
            self.hub.when_durable(partial(settled_elsewhere, self.hub, self._name, sequence), since)

    def pump(self) -> None:
        """Gives what can be given, and settles what has arrived."""
        unsure, self._unsure = self._unsure, {}
        for sequence, message in unsure.items():
            self._ask(sequence, message)
        for sequence, (stream, frame, qos) in list(self._given.items()):
            if stream.acknowledged_upto >= frame or stream.gone is not None:    # gone: what it had was given again
                del self._given[sequence]
                self._settle(sequence, qos)
        group = self.hub.groups.get(self.key)
        if group is None or self.expecting is not None:
            if self.unwanted:
                for sequence, _, _ in kept(self.session):
                    settle(self.session, sequence)
                    self.dropped += 1
                self._marked.clear()
            return
        self.since_ms = self.hub.steady_ms
        if self._waiting or len(self._given) + len(self._marked) >= 2 * GIVEN_MAX:
            return
        since = self.hub.commits.mark
        for sequence, _, message in kept(self.session, GIVEN_MAX + len(self._doubtful), False):
            if sequence in self._doubtful:
                continue
            mark_given(self.session, sequence)
            self._marked[sequence] = message
        if self._marked:
            self._waiting = True
            self.hub.ledger.rely_on_earlier(since)
            self.hub.when_durable(self._give, since, self._refused)

    def _refused(self, why: str) -> None:
        self._waiting = False

    def _give(self) -> None:
        self._waiting = False
        group: ShareGroup | None = self.hub.groups.get(self.key)
        now = self.hub.steady_ms
        for sequence, message in list(self._marked.items()):
            if group is None or self.session.data is None:
                return
            if message[5] and message[5] <= now:
                settle(self.session, sequence)
                del self._marked[sequence]
                continue
            taker: Any = give(self.hub, group, self.session.namespace, message,
                              name=self._name if message[3] == 2 else 0, use=sequence)
            if taker is None:
                return
            del self._marked[sequence]
            if taker is True or isinstance(taker, Expecting):    # which has kept it anew
                settle(self.session, sequence)
            else:
                self._given[sequence] = taker, taker.group_frame, message[3]


def offer(hub: Hub, group: ShareGroup, namespace: Namespace, message: Message,
          park: Callable[[Message], object]) -> None:
    """Gives a message whose member is gone to another one: at once if that is on this node and nothing can be lost or
    doubled by it, otherwise by way of `park`."""
    if message[3] == 1 and (group.connected or not group.takers) and give(hub, group, namespace, message, True):
        return
    if len(group) or group.takers:
        park(message)
