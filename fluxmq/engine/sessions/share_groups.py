"""The share groups of a node: their members here, those on other nodes, and what waits for one.

MQTT 5.0 section 4.8.2. Which member gets a message is decided where it is published, in _core/pubsub/share_group; here
members come and go, and what nobody could be given is kept (parked.py).

    a member here        join ──► leave, count (its client comes and goes)
    members elsewhere    learn ──► forget, when their node is gone
    a message            of a member that has ended: offer_left; of a node that is gone: give_again; forwarded here,
                         where no member is any more: give_on ──► kept until a member has it
"""
from __future__ import annotations

from collections.abc import Callable, Container, Iterable
from functools import partial
from typing import Any

from fluxmq._core.hub.group_messages import Expecting, give
from fluxmq._core.hub.hub import Hub
from fluxmq._core.memory.namespace import Namespace
from fluxmq._core.pubsub.session import Session
from fluxmq._core.pubsub.share_group import GroupTaker, ShareGroup
from fluxmq.engine.ports.cluster import Cluster
from fluxmq.engine.sessions.parked import UNWANTED_S, Message, Parked, WhoHas, name_of, offer
from fluxmq.engine.sessions.state import SessionState

__all__ = ["ShareGroups"]


class ShareGroups:
    """make: (name, namespace) -> a session that no client has, recorded, for what waits. finish: ends one. log: as
    Broker's on_log."""

    def __init__(self, hub: Hub, cluster: Cluster, make: Callable[[bytes, Namespace], Session],
                 finish: Callable[[Session], None],
                 log: Callable[[str, str, str, dict[str, Any]], None]) -> None:
        self._hub = hub
        self._directory, self._peers, _ = cluster
        self._make, self._finish, self._log = make, finish, log
        # Groups with members that outlive their node, and the lives whose sessions are being adopted.
        self._outlived: dict[tuple[Namespace, bytes, bytes], set[int]] = {}
        self.unwanted = 0  # messages that were dropped because no member came
        self.parked: dict[tuple[Namespace, bytes, bytes], Parked] = {}  # by namespace, name, filter
        self._who_has: WhoHas | None = None  # set by the cluster, before there are sessions (ask_with)

    # ------------------------------------------------------------------ members here

    def join(self, session: Session, filter_: bytes, share: tuple[bytes, bytes], options: int, identifier: int) -> None:
        """A subscription of a session to `filter_`, whose share (name, filter without that) is given. Again for one
        that is there: its options change."""
        state: SessionState = session.data
        group = self._group(session.namespace, *share)
        if group.join(session, options, identifier):
            state.groups = state.groups or {}
            state.groups[filter_] = group
            if self.parked:
                self._expect_no_more(session.namespace, group)
            if state.here:
                group.connected += 1
                self._directory.members_connected(session.namespace.name, share[1], share[0], 1)
            self._directory.announce(session.namespace.name, share[1], share[0], state.durable)

    def leave(self, session: Session, filter_: bytes) -> None:
        """Ends what join() began. Does nothing if it has left already (leave_all)."""
        state: SessionState = session.data
        group = state.groups.pop(filter_, None) if state.groups else None
        if group is None:
            return
        group.leave(session)
        self._end_if_empty(group, session.namespace)
        if state.here:
            group.connected -= 1
            self._directory.members_connected(session.namespace.name, group.filter, group.name, -1)
        self._directory.withdraw(session.namespace.name, group.filter, group.name, state.durable)

    def leave_all(self, session: Session) -> None:
        """A frozen session that another node has taken over is no member here any more: what this node is told to give
        to one of a group's members goes elsewhere. Broker.unfreeze reverts it."""
        for filter_ in list(session.data.groups or ()):
            self.leave(session, filter_)

    def count(self, state: SessionState, here: bool) -> None:
        """The client of a session has come, or has gone."""
        if here != state.here:
            state.here = here
            if state.groups is None:
                return
            change = 1 if here else -1
            for group in state.groups.values():
                group.connected += change
                self._directory.members_connected(state.session.namespace.name, group.filter, group.name, change)

    def _group(self, namespace: Namespace, name: bytes, filter_: bytes) -> ShareGroup:
        group = self._hub.groups.get((namespace, name, filter_))
        if group is None:
            group = ShareGroup(name, filter_)
            self._hub.add_group(group, namespace)
        return group

    def _end_if_empty(self, group: ShareGroup, namespace: Namespace) -> None:
        if len(group) or group.takers:
            return
        if (namespace, group.name, group.filter) in self._outlived:
            self._expect(namespace, group)
        else:
            self._hub.remove_group(group, namespace)

    # ------------------------------------------------------------------ members on other nodes

    def learn(self, node: str, namespace: bytes, filter_: bytes, name: bytes, connected: int, away: int) -> None:
        """For the Directory: how many members of a group are connected to another node; if none is, how many are there
        and away. Both 0: it has none any more. Raises UsageError for an unknown node."""
        if connected or away:
            space = self._hub.namespaces.add(namespace)
            known = self._group(space, name, filter_)
            self._tell(known, space, self._peers.hop(node), connected, away)
            self._expect_no_more(space, known)
        elif namespace in self._hub.namespaces:
            space = self._hub.namespaces[namespace]
            if (space, name, filter_) in self._hub.groups:
                self._tell(self._hub.groups[space, name, filter_], space, self._peers.hop(node), 0, 0)

    def forget(self, node: str, kept: Container[tuple[bytes, bytes, bytes]] = (), life: int = 0) -> None:
        """For the Directory, of a node that is gone: no member is there. kept: (namespace, filter, name) of groups of
        which it had members that outlive it: they are expected to come back, until settled() is called for this life of
        the node, or longer if the group has no other member by then."""
        hop = self._peers.hop(node)
        for key, group in list(self._hub.groups.items()):
            if hop in group.takers:
                namespace, name, filter_ = key
                if (namespace.name, filter_, name) in kept:
                    self._outlived.setdefault(key, set()).add(life)
                self._tell(group, namespace, hop, 0, 0)

    def settled(self, life: int) -> None:
        """For the cluster: the sessions of a life of a node that is gone are adopted, and this node knows what they
        want."""
        for key, lives in list(self._outlived.items()):
            lives.discard(life)
            if not lives:
                del self._outlived[key]

    def _tell(self, group: ShareGroup, namespace: Namespace, taker: GroupTaker, connected: int, away: int) -> None:
        before = len(group.takers)
        group.tell(taker, connected, away)
        if bool(before) != bool(group.takers):
            self._hub.add_group(group, namespace)  # changes what it is in the index
        self._end_if_empty(group, namespace)

    def _expect(self, namespace: Namespace, group: ShareGroup) -> None:
        """The group has no member any more that lives, but some will perhaps come back."""
        parked = self._parked_of(namespace, group)
        if parked.expecting is None:
            parked.since_ms = self._hub.steady_ms
            parked.expecting = Expecting(parked.session)
            self._tell(group, namespace, parked.expecting, 0, 1)

    def _expect_no_more(self, namespace: Namespace, group: ShareGroup) -> None:
        """The group has a member, or none came for too long."""
        parked = self.parked.get((namespace, group.name, group.filter))
        if parked is not None and parked.expecting is not None:
            expecting, parked.expecting = parked.expecting, None
            self._tell(group, namespace, expecting, 0, 0)

    # ------------------------------------------------------------------ messages that look for a member

    def offer_left(self, session: Session, groups: dict[bytes, ShareGroup], left: list[tuple[int, Message]]) -> None:
        """A member has ended, and left messages behind. MQTT 5.0 section 4.8.2: QoS 1 should be sent to another one."""
        by_mark = {group.mark: group for group in groups.values()}
        touched: set[ShareGroup] = set()
        for mark, message in left:
            group = by_mark.get(mark)
            if group is not None:  # else it had unsubscribed
                offer(self._hub, group, session.namespace, message, partial(self._park, session.namespace, group))
                touched.add(group)
        self._pump(session.namespace, touched)

    def give_again(self, namespace: bytes, name: bytes, filter_: bytes, message: Message) -> None:
        """For the cluster: a message was forwarded to a node that is gone. It goes to another member, with tickets; if
        there is none on any node, one of QoS 1 or 2 is kept until there is."""
        space, group = self._known(namespace, name, filter_)
        if give(self._hub, group, space, message) is None and message[3]:
            self._park(space, group, message)

    def keep_in_doubt(self, namespace: bytes, name: bytes, filter_: bytes, message: Message) -> Callable[[bool], None]:
        """For the cluster: a message of QoS 2 was forwarded to a node that is gone, and a member there may have got it.
        It is kept, with a ticket, until what is returned is called: with True, that node has it, and nobody else gets
        it; with False, another member does."""
        space, group = self._known(namespace, name, filter_)
        parked = self._parked_of(space, group)
        decided = parked.doubt()
        parked.keep(message)
        return decided

    def give_on(self, namespace: bytes, name: bytes, filter_: bytes, message: Message) -> None:
        """For the cluster: a message was forwarded to this node, which has no member of its group any more. It goes to
        another node; one of QoS 1 or 2 is kept until that one has it, so the node that forwarded it need not wait for
        both."""
        space, group = self._known(namespace, name, filter_)
        if message[3] == 0:
            give(self._hub, group, space, message)
        else:
            self._park(space, group, message)
            self._pump(space, (group,))

    def _known(self, namespace: bytes, name: bytes, filter_: bytes) -> tuple[Namespace, ShareGroup]:
        """A group that has ended is made anew, empty, and not put into the index."""
        space = self._hub.namespaces.add(namespace)
        group = self._hub.groups.get((space, name, filter_))
        return space, ShareGroup(name, filter_) if group is None else group

    # ------------------------------------------------------------------ what waits

    def ask_with(self, who_has: WhoHas) -> None:
        """For the cluster: who_has asks the other nodes whether they have given a message to a member of a group."""
        self._who_has, self._hub.doubt = who_has, self._doubt

    def _doubt(self, namespace: Namespace, group: ShareGroup, name: int, packet_id: int, use: int) -> Session:
        """Another node may have given a message to a member already: returns the session that keeps it meanwhile."""
        assert self._who_has is not None
        parked = self._parked_of(namespace, group)
        self._who_has((name, packet_id, use), group.mark, parked.doubt())
        return parked.session

    def _park(self, namespace: Namespace, group: ShareGroup, message: Message) -> None:
        self._parked_of(namespace, group).keep(message)

    def _parked_of(self, namespace: Namespace, group: ShareGroup) -> Parked:
        key = namespace, group.name, group.filter
        parked = self.parked.get(key)
        if parked is None:
            session = self._make(name_of(group.name, group.filter), namespace)
            parked = self.parked[key] = Parked(self._hub, session, who_has=self._who_has)
        return parked

    def restore(self, session: Session) -> None:
        """A session whose name says that it keeps what waits, loaded and replayed."""
        parked = Parked(self._hub, session, restored=True, who_has=self._who_has)
        self.parked[parked.key] = parked

    def _pump(self, namespace: Namespace, groups: Iterable[ShareGroup]) -> None:
        for group in groups:
            parked = self.parked.get((namespace, group.name, group.filter))
            if parked is not None:
                parked.pump()

    def pump(self) -> None:
        """Gives what can be given. Called about four times a second."""
        for key, parked in list(self.parked.items()):
            parked.pump()
            if parked.dropped:
                self.unwanted += parked.dropped
                self._log("warning", "share group without members",
                          f"messages of a share group are dropped: no member came for {UNWANTED_S / 60:.0f} min", {
                              "namespace": key[0].name.decode(), "messages": parked.dropped,
                              "filter": f"$share/{key[1].decode()}/{key[2].decode()}"})
                parked.dropped = 0
            if parked.unwanted and parked.expecting is not None and key in self._hub.groups:
                self._expect_no_more(key[0], self._hub.groups[key])
            if parked.empty:
                del self.parked[key]
                self._finish(parked.session)

    def end_of(self, namespace: Namespace) -> None:
        """The namespace ends, and has no sessions any more: forgets its groups on other nodes, and what waits for their
        members."""
        for key in [key for key in self._outlived if key[0] is namespace]:
            del self._outlived[key]
        for key, group in list(self._hub.groups.items()):
            if key[0] is namespace:
                self._hub.remove_group(group, namespace)
        for key, parked in list(self.parked.items()):
            if key[0] is namespace:
                del self.parked[key]
                self._finish(parked.session)
