"""The broker's cold operations, without I/O: connect, subscribe, unsubscribe, disconnect, wills, expiry, takeover.

The hot operations (publish, deliver, acknowledge) are compiled, in fluxmq/_core/hub/hub.pyx; this object configures
them. Time comes from Hub.steady_ms (fluxmq/_core/memory/node.pxd); `tick` is called about four times a second.

It is one file because all operations share a session's state: its timers, its index entries, its counts, its records.

    connect ──► attached by the edge when CONNACK has left ──► disconnect ──► (expiry) ──► end
                                      │                             ▲
                                      └── takeover by the same client identifier

A session moves to another node with freeze, and comes from one with activate (sessions/transfer.py).
"""
from __future__ import annotations

import heapq
import struct
from collections.abc import Callable, Container, Iterable
from functools import partial
from typing import Any

import msgspec

from fluxmq._core.disk.record_kinds import RecordKind
from fluxmq._core.errors import ProtocolError, UsageError
from fluxmq._core.hub.group_messages import left_behind
from fluxmq._core.hub.hub import Hub
from fluxmq._core.hub.transfer import continue_behind
from fluxmq._core.memory.namespace import Namespace
from fluxmq._core.pubsub.session import Session
from fluxmq._core.wire.queue_address import QUEUE_PREFIX
from fluxmq._core.wire.text import check_filter, split_share
from fluxmq.engine.ports.cluster import Cluster, OwnedElsewhere, Unclaimed
from fluxmq.engine.queues.consumers import QueueConsumers, is_queue_filter
from fluxmq.engine.queues.relays import Hosts, Relays
from fluxmq.engine.retained_revisions import RetainedRevisions
from fluxmq.engine.sessions.limits import Limits
from fluxmq.engine.sessions.parked import is_parked
from fluxmq.engine.sessions.share_groups import ShareGroups
from fluxmq.engine.sessions.state import (
    ACTIVE,
    EXPIRY_NEVER,
    ClientConnection,
    Consume,
    Head,
    Link,
    SessionState,
    Subscription,
    Will,
)
from fluxmq.engine.sessions.table import SessionTable
from fluxmq.model.mqtt import ReasonCode

__all__ = ["Broker", "Limits"]

NO_LOCAL = 0x04
RETAIN_HANDLING_NEW_ONLY, RETAIN_HANDLING_NEVER = 1, 2
STALE_TIMERS_MAX = 1024
ADOPTED_PACKET_ID = 16384  # at it or above those of an adopted session begin
OPTIONS_MASK = 0x0F  # QoS, No Local, Retain As Published: the low bits of Subscription Options


class Broker:
    """The cold half of a node. A client identifier is unique within its namespace; where a namespace may be None, that
    means "/".

    hub: the hot half. limits: see Limits. on_log: called with (level, cause, text, fields) for what an operator should
    see. cluster: the other nodes.
    """

    def __init__(self, hub: Hub, limits: Limits | None = None,
                 on_log: Callable[[str, str, str, dict[str, Any]], None] | None = None, *, cluster: Cluster) -> None:
        self.hub = hub
        self.directory, self.peers, _ = cluster
        self.limits = limits or Limits()
        self.revisions = RetainedRevisions(hub)
        self.sessions = SessionTable()
        self.arrivals = SessionTable()  # sessions that come from another node and are not active yet
        self.log = on_log or (lambda level, cause, text, fields: None)
        self.share_groups = ShareGroups(hub, cluster, self._make_parked, lambda session: self._finish(
            session, self.ended), self.log)
        self.stored = SessionTable()  # sessions of which this node does not know whether they are still its own
        self.sessions_made = 0
        self.started_ms = hub.mono_ms
        self.dirty: set[Session] = set()
        self.ended: list[int] = []  # numbers of sessions that the view must forget
        self.joined: list[int] = []  # the same of arrivals that others have taken in (durability.py)
        self.wills_published = 0
        self.state_bytes = 0  # of topic filters and wills of all sessions
        self.connected = self.connected_max = 0
        self.stopping = False
        self.joining = False  # set by the cluster: what is due waits until this node knows which sessions it has
        self.consumers: QueueConsumers | None = None  # set when there are queues
        self._timers: list[tuple[int, int, int, Session, Callable[[SessionState], None]]] = []
        self._timer_count = 0
        self.relays = Relays(lambda: hub.mono_ms, self.log)
        self.hosts = Hosts(hub)

    # ------------------------------------------------------------------ connect

    def connect(self, name: bytes, *, version: int, clean_start: bool, expiry_s: int, keep_alive_s: int,
                will: Will | None, username: str | None, connection: ClientConnection,
                namespace: Namespace | None = None, asked_ms: int | None = None) -> tuple[Session, bool]:
        """Makes or finds the session of a client and takes it over. Returns (session, session present).

        expiry_s: 0 means that the session ends with the connection, EXPIRY_NEVER that it is kept until a Clean Start;
        already capped by `cap_expiry`. asked_ms: Hub.mono_ms when the CONNECT came; None: now. The edge attaches the
        session (Connection.accept) when CONNACK has been written.
        Raises ProtocolError(0x97) when there are `sessions_max` sessions already, when there is no room for the will
        (`state_bytes_max`), or when the namespace has as many connections or sessions as it may; ProtocolError(0x87)
        when the namespace has ended; ProtocolError(0x89) when the client has connected by a CONNECT that came later, or
        its session is on its way to another node; OwnedElsewhere when another node serves the session; Unclaimed,
        before anything is changed, when another node must be asked first.
        MQTT 5.0 sections 3.1.2.4, 3.1.4, 4.1; MQTT 3.1.1 section 3.1.2.4.
        """
        namespace = namespace or self.hub.root
        address = namespace.name, name
        if self.hub.namespaces.get(namespace.name) is not namespace:
            # The namespace ended while the client logged in: neither it nor a new one of the same name may get this
            # session.
            raise ProtocolError(ReasonCode.NOT_AUTHORIZED, f"namespace {namespace.text} was deleted")
        session = self.sessions.get(address)
        self._check_limits(namespace, session, will)
        owner = self.directory.claim_session(*address, clean_start)
        asked_ms = self.hub.mono_ms if asked_ms is None else asked_ms
        if owner is None:
            raise Unclaimed(partial(self.directory.take_session, *address, clean_start, asked_ms))
        if owner.node != self.directory.node:
            raise OwnedElsewhere(owner, self.peers.reference(owner.node))
        session = self.sessions.get(address)
        if session is not None and session.data.frozen:
            raise ProtocolError(ReasonCode.SERVER_BUSY, "the session is on its way to another node")
        if session is not None and session.data.connection is not None:
            self._displace(session, asked_ms, clean_start)
            session = self.sessions.get(address)
        if session is not None and owner.node:
            self._publish_overdue(session.data)
        if session is not None and session.data.expiry_s == 0:
            # The session ended with its connection, when the broker ended; only its will was kept. Continuing it would
            # keep a session whose messages are not on disk.
            self._set_will(session.data, None)
            self.end_session(session, replaced=True)
            session = None
        if session is not None and clean_start:
            self.end_session(session, replaced=True)
            session = None
        present = session is not None
        if session is None:
            self._check_sessions(namespace, name)
            session = self._make(name, namespace, recorded=expiry_s > 0 or will is not None, kept=expiry_s > 0)
            self._add(session)
            self.sessions_made += 1
            if owner.node:
                session.data.identity, session.data.counted = f"{owner.epoch}.{self.sessions_made}", True
        state: SessionState = session.data
        state.epoch += 1
        state.restored = False
        state.connection = connection
        state.asked_ms = asked_ms
        state.version = version
        state.expiry_s = expiry_s
        state.keep_alive_s = keep_alive_s
        state.since_ms = self.hub.steady_ms
        will = will and msgspec.structs.replace(will, identity=self.hub.next_identity())
        # Also if there is none: the store may have the one of the client's former connection, at another node.
        self.directory.will_changed(*address, will, expiry_s, self.hub.commits.mark)
        self._keep_will(state, will)
        state.username = username
        state.kept = state.kept or expiry_s > 0
        self.connected += 1
        self.connected_max = max(self.connected_max, self.connected)
        namespace.connections += 1
        self.record_head(session)
        self._outlive(session)
        return session, present

    def _publish_overdue(self, state: SessionState) -> None:
        """The client is back whose connection ended with this node: its will is published first, unless its delay has
        not passed since the node is back, and the session goes on [MQTT-3.1.2-8]."""
        if state.restored and state.will is not None and (
                state.expiry_s == 0 or self.hub.steady_ms >= state.since_ms + state.will.delay_s * 1000):
            self.publish_will(state.session)

    def _check_sessions(self, namespace: Namespace, name: bytes) -> None:
        """Checks whether there may be one more session; this node owns it already."""
        if self._is_full():
            self.directory.release_session(namespace.name, name)
            raise ProtocolError(ReasonCode.QUOTA_EXCEEDED,
                                f"there are {len(self.sessions)} sessions (session.max_sessions)")
        if namespace.sessions_max and namespace.sessions >= namespace.sessions_max:
            namespace.refused_sessions += 1
            self.directory.release_session(namespace.name, name)
            raise ProtocolError(ReasonCode.QUOTA_EXCEEDED, f"namespace {namespace.text} has {namespace.sessions} "
                                                           f"sessions, all that it may (limits.sessions)")

    def _displace(self, session: Session, asked_ms: int, clean_start: bool) -> None:
        """Ends the connection of a session for another one of its client [MQTT-3.1.4-3]. Raises ProtocolError(0x89) if
        that one's CONNECT, which came at asked_ms, is the earlier one: its login, or another node, took longer."""
        if session.data.asked_ms > asked_ms:
            raise ProtocolError(ReasonCode.SERVER_BUSY, "the client has connected again since")
        former = session.data.connection
        self.disconnect(session, former, publish_will=True, taken_over=True, clean=clean_start)
        former.displaced(ReasonCode.SESSION_TAKEN_OVER)

    def _outlive(self, session: Session) -> None:
        """The expiry interval of a session may have changed, and with it whether it outlives this node."""
        state: SessionState = session.data
        durable = state.expiry_s > 0
        if durable != state.durable:
            for filter_ in session.subscriptions:
                if filter_ not in state.resting and not is_queue_filter(filter_):
                    group, plain = split_share(filter_) or (b"", filter_)
                    self.directory.announce(session.namespace.name, plain, group, durable)
                    self.directory.withdraw(session.namespace.name, plain, group, state.durable)
            state.durable = durable
        self.directory.kept_changed(session.namespace.name, session.name)

    def _check_limits(self, namespace: Namespace, session: Session | None, will: Will | None) -> None:
        """Checks the limits before a connection is taken over. A client that returns to its session adds no session."""
        again = session is not None and session.data.connection is not None
        if not again and namespace.connections_max and namespace.connections >= namespace.connections_max:
            namespace.refused_connections += 1
            raise ProtocolError(ReasonCode.QUOTA_EXCEEDED, f"namespace {namespace.text} has {namespace.connections} "
                                                           f"connections, all that it may (limits.connections)")
        if will is not None and self.state_bytes + will.size > self.limits.state_bytes_max:
            raise ProtocolError(ReasonCode.QUOTA_EXCEEDED, f"no room for its will: topic filters and wills of all "
                                                           f"sessions have {self.state_bytes} bytes "
                                                           f"(session.max_state_bytes)")

    def _make(self, name: bytes, namespace: Namespace, recorded: bool, kept: bool) -> Session:
        number = 0
        if recorded and self.hub.durable:
            self.hub.session_number_last += 1
            number = self.hub.session_number_last
        session = self.hub.new_session(name, number, namespace)
        # A session that is only recorded for its will keeps no messages on disk.
        session.journalled = bool(number) and kept
        self._configure(session)
        session.data = SessionState(session)
        session.data.kept = kept
        return session

    def _make_parked(self, name: bytes, namespace: Namespace) -> Session:
        """For messages that wait for a member of a share group (ShareGroups)."""
        session = self._make(name, namespace, recorded=True, kept=True)
        session.queue_max, session.queue_bytes_max = 0xFFFFFFFF, 1 << 62    # other sessions, or nodes, had them
        session.data.expiry_s = EXPIRY_NEVER
        if identity := self.hub.next_identity():
            session.data.identity = f"{self.directory.node}.{identity}"
        self.record_head(session)
        return session

    def _is_full(self) -> bool:
        """Whether there are as many sessions as there may be. Those that are coming from other nodes count, and so does
        what was adopted, which is never refused."""
        most, count = self.limits.sessions_max, len(self.sessions)
        return count + len(self.arrivals) >= most and (
            count + sum(address not in self.sessions for address in self.arrivals) >= most)

    def _add(self, session: Session) -> None:
        self.sessions[session.namespace.name, session.name] = session
        session.namespace.sessions += 1

    def session(self, name: bytes, namespace: Namespace | None = None) -> Session | None:
        """The session of a client identifier."""
        return self.sessions.get(((namespace or self.hub.root).name, name))

    def _configure(self, session: Session) -> None:
        session.queue_max = self.limits.queue_max
        session.queue_bytes_max = self.limits.queue_bytes_max
        session.queue_rejects = self.limits.queue_rejects

    def cap_expiry(self, expiry_s: int) -> int:
        """The session expiry interval that a client asked for, limited by session.max_expiry_interval; seconds."""
        most = self.limits.expiry_max_s
        return min(expiry_s, most) if most else expiry_s

    # ------------------------------------------------------------------ disconnect and end

    def disconnect(self, session: Session, connection: ClientConnection, *, publish_will: bool,
                   expiry_s: int | None = None, taken_over: bool = False, clean: bool = False) -> None:
        """Handles the end of a session's connection. Does nothing if the session has another connection by now.

        publish_will: false after a DISCONNECT with reason 0x00, [MQTT-3.1.2-10]. expiry_s: the interval given in
        DISCONNECT. taken_over: another CONNECT takes the session over; clean: with Clean Start.
        """
        state: SessionState = session.data
        if state is None or state.connection is not connection:
            return
        self._release(session)
        if self.stopping:
            # Clients return after the restart: their sessions are kept, and so are the wills, for clients that do not
            # return. The next start takes them for connected, as after a crash; expiry counts from here.
            state.restored, state.since_ms = True, self.hub.steady_ms
            return
        state.epoch += 1
        state.since_ms = self.hub.steady_ms
        if expiry_s is not None:
            state.expiry_s = self.cap_expiry(expiry_s)
            if state.expiry_s:
                self._outlive(session)
        if not publish_will:
            self._set_will(state, None)
        if state.expiry_s == 0:
            self.end_session(session, replaced=taken_over)
            return
        if state.will is not None:
            if state.will.delay_s == 0 or clean:
                self.publish_will(session)
            elif not taken_over:
                # The delay never outlives the session: end_session publishes a will that still waits, [MQTT-3.1.3-9].
                self._after(session, state.will.delay_s * 1000, self._will_due)
        if state.expiry_s != EXPIRY_NEVER:
            self._after(session, state.expiry_s * 1000, self._expired)
        self._record(session, RecordKind.LINK, Link(False, state.since_ms, state.expiry_s, state.will is not None))

    def _release(self, session: Session) -> None:
        """The session has no connection any more."""
        session.data.connection = None
        self.share_groups.count(session.data, False)
        self.connected -= 1
        session.namespace.connections -= 1
        if self.consumers is not None:
            self.consumers.detach(session)

    def end_session(self, session: Session, *, replaced: bool = False, publish_will: bool = True,
                    offer_qos: int = 2) -> None:
        """Ends a session and discards its contents, except that other members of its share groups get what it had of
        these; publishes a will that still waits, [MQTT-3.1.2-8]. replaced: its client has connected again, so this node
        keeps the client identifier; or another node has it now. publish_will: false when the namespace ends as well, or
        the will is another node's. offer_qos: up to which QoS other members get what it had; 0 when another node has
        it, or the namespace ends."""
        state: SessionState = session.data
        groups = (state.groups or {}).copy()
        left = left_behind(self.hub, session, offer_qos) if groups and offer_qos else []
        state.epoch += 1
        if publish_will:
            self.publish_will(session)
        else:
            self._set_will(state, None)
        for filter_ in list(session.subscriptions):
            self._drop_subscription(session, filter_)
        address = session.namespace.name, session.name
        if self.sessions.get(address) is session:
            del self.sessions[address]
            session.namespace.sessions -= 1
            if not replaced:
                self.directory.release_session(*address)
            elif state.durable:
                self.directory.kept_changed(*address, None)
        if left:
            self.share_groups.offer_left(session, groups, left)
        self._finish(session, self.ended)

    def _finish(self, session: Session, ended: list[int]) -> None:
        if session.number and self.hub.durable:
            session.journalled = False
            self.hub.ledger.write(RecordKind.SESSION_END, struct.pack(">Q", session.number))
            ended.append(session.number)
            self.dirty.discard(session)
        session.clear()
        session.data = None  # timers and connections that still refer to the session find no state

    def publish_will(self, session: Session) -> None:
        """Publishes the will of a session once, if there is one."""
        state: SessionState = session.data
        will = state.will
        if will is None:
            return
        since = self.hub.commits.mark
        self._keep_will(state, None)
        self.publish_will_of(session.namespace.name, session.name, will, session)
        self.directory.will_changed(session.namespace.name, session.name, None, state.expiry_s, since)
        link = Link(state.connection is not None, state.since_ms, state.expiry_s, False)
        self._record(session, RecordKind.LINK, link)

    def publish_will_of(self, namespace: bytes, client_id: bytes, will: Will, session: Session | None = None) -> None:
        """Publishes a will. session: None if it is one of a client of another node."""
        expires_at = self.hub.steady_ms + will.expiry_s * 1000 if will.expiry_s is not None else 0
        self.wills_published += 1
        space = self.hub.namespaces.add(namespace) if session is None else session.namespace
        retain = will.retain
        if will.topic.startswith(QUEUE_PREFIX):
            retain = False  # a queue keeps its messages itself
            if self.consumers is not None and not self.consumers.make_now(will.topic, space):
                self.log("warning", "will to a queue", "a will is lost: there is no such queue",
                         {"client_id": client_id.decode(), "topic": will.topic.decode()})
        self.hub.publish_message(will.topic, will.payload, min(will.qos, self.limits.qos_max), retain,
                                 will.properties, expires_at, session, space, identity=will.identity)

    def forget_will(self, namespace: bytes, client_id: bytes) -> None:
        """For the Directory: the will of a stored session was published by another node."""
        session = self.sessions.get((namespace, client_id))
        if session is not None:
            self._set_will(session.data, None)
            self.record_head(session)

    def _set_will(self, state: SessionState, will: Will | None) -> None:
        if will is not state.will:
            session = state.session
            self.directory.will_changed(session.namespace.name, session.name, will, state.expiry_s,
                                        self.hub.commits.mark)
            self._keep_will(state, will)

    def _keep_will(self, state: SessionState, will: Will | None) -> None:
        self.state_bytes += (will.size if will else 0) - (state.will.size if state.will else 0)
        state.will = will

    # ------------------------------------------------------------------ subscriptions

    def subscribe(self, session: Session, filter_: bytes, options: int, identifier: int,
                  consume: Consume | None = None, *, attached: bool = False) -> tuple[int, bool]:
        """Handles one topic filter of a SUBSCRIBE, MQTT 5.0 section 3.8. Returns the reason code for SUBACK, and
        whether retained messages must be sent (`deliver_retained`, after SUBACK).

        filter_: UTF-8, not checked further. options: the Subscription Options byte. identifier: 0 = none. consume: for
        a filter below `$queue/`, the options of the queue subscription. attached: attach_elsewhere has attached it. The
        caller has checked the permission.
        """
        granted = min(options & 3, self.limits.qos_max)
        options = options & ~3 | granted
        code, consume = self._judge(session, filter_, granted, consume, attached)
        if code:
            if attached:
                self.attach_stored(session, filter_)
            return code, False
        known = filter_ in session.subscriptions
        self.remember_consume(session, filter_, consume)
        self._add_subscription(session, filter_, options & OPTIONS_MASK, identifier, attached)
        self._record(session, RecordKind.SUBSCRIBE, Subscription(filter_, options & OPTIONS_MASK, identifier, consume))
        if session.data.durable:
            self.directory.kept_changed(session.namespace.name, session.name, filter_)
        if consume is not None and self.consumers is not None:
            self.consumers.update_retry_policy(session.namespace, filter_, consume)
            return granted, False
        handling = options >> 4 & 3
        return granted, split_share(filter_) is None and handling != RETAIN_HANDLING_NEVER and not (
            handling == RETAIN_HANDLING_NEW_ONLY and known)

    def _judge(self, session: Session, filter_: bytes, granted: int, consume: Consume | None,
               attached: bool) -> tuple[int, Consume | None]:
        """The reason code with which a subscription is refused, or 0; the options of one to a queue, else None."""
        try:
            share = split_share(filter_)
        except ValueError:
            return ReasonCode.TOPIC_FILTER_INVALID, None
        plain = share[1] if share else filter_
        if filter_ == b"$share" or check_filter(plain, self.limits.topic_levels_max) != 1:
            return ReasonCode.TOPIC_FILTER_INVALID, None
        if plain.startswith(QUEUE_PREFIX):
            if self.consumers is None:
                return ReasonCode.TOPIC_FILTER_INVALID, None
            code = 0 if attached else self.consumers.refusal(session.namespace, filter_, granted,
                                                             consume or Consume())[0]
            if code:
                return code, None
            consume = self.consumers.with_share(filter_, consume or Consume())
        else:
            consume = None
        if filter_ not in session.subscriptions and (
                len(session.subscriptions) >= self.limits.subscriptions_max
                or self.state_bytes + len(filter_) > self.limits.state_bytes_max):
            return ReasonCode.QUOTA_EXCEEDED, None
        return 0, consume

    def attach_elsewhere(self, session: Session, filter_: bytes, options: int, identifier: int, consume: Consume,
                         then: Callable[[int, str], None]) -> bool:
        """Attaches a subscription to a queue of another node, before it is stored: only its owner knows whether it may
        be. then: called with the reason code and text of the refusal, or (0, ""): `subscribe` is to follow, or
        `attach_stored`. Returns False if nobody is asked, and then() is not called: the queue is not another node's, or
        `subscribe` will refuse it."""
        granted = min(options & 3, self.limits.qos_max)
        code, wanted = self._judge(session, filter_, granted, consume, False)
        if code or wanted is None or self.consumers is None or not session.connected or (
                not self.consumers.is_elsewhere(session.namespace, filter_)):
            return False

        def answered(code: int, why: str) -> None:
            if code and session.data is not None and filter_ not in (session.data.consumers or ()):
                self.attach_stored(session, filter_)
            then(code, why)

        self.consumers.attach(session, filter_, (options & ~3 | granted) & OPTIONS_MASK, identifier, wanted, answered)
        return True

    def attach_stored(self, session: Session, filter_: bytes) -> None:
        """What attach_elsewhere has begun is not to be: the subscription is again what is stored, if there is one."""
        if self.consumers is not None:
            self.consumers.detach_one(session, filter_)
        if filter_ in session.subscriptions and filter_ not in session.data.resting:
            self.route(session, filter_, *session.subscriptions[filter_])

    def deliver_retained(self, session: Session, filters: Iterable[tuple[bytes, int, int]], identifier: int) -> None:
        """Sends the retained messages that match each (filter, options, stamp of the retained messages when the
        subscription was made), if the session and the subscription still exist."""
        for filter_, options, before in filters:
            if session.data is not None and filter_ in session.subscriptions:
                self.hub.deliver_retained(session, filter_, min(options & 3, self.limits.qos_max), identifier, before)

    def unsubscribe(self, session: Session, filter_: bytes) -> int:
        """Handles one filter of an UNSUBSCRIBE. Returns the reason code for UNSUBACK."""
        if filter_ not in session.subscriptions:
            return ReasonCode.NO_SUBSCRIPTION_EXISTED
        self._drop_subscription(session, filter_)
        self._record(session, RecordKind.UNSUBSCRIBE, filter_)
        if session.data.durable:
            self.directory.kept_changed(session.namespace.name, session.name, filter_)
        return ReasonCode.SUCCESS

    def _add_subscription(self, session: Session, filter_: bytes, options: int, identifier: int,
                          attached: bool = False) -> None:
        if not attached or filter_ not in (session.data.consumers or ()):
            self.route(session, filter_, options, identifier)
        if filter_ not in session.subscriptions:
            self.state_bytes += len(filter_)
        session.keep_subscription(filter_, options, identifier)

    def _drop_subscription(self, session: Session, filter_: bytes) -> None:
        session.forget_subscription(filter_)
        self.state_bytes -= len(filter_)
        if filter_ in session.data.resting:
            session.data.resting -= {filter_}
        else:
            self.unroute(session, filter_)

    @staticmethod
    def remember_consume(session: Session, filter_: bytes, consume: Consume | None) -> None:
        """Stores the options of a subscription to a queue; None: the subscription is an ordinary one."""
        state: SessionState = session.data
        if consume is not None:
            state.consumes = (state.consumes or {}) | {filter_: consume}

    def attached(self, session: Session) -> None:
        """Called when CONNACK has been written: the session's subscriptions to queues begin to take messages."""
        state: SessionState = session.data
        for filter_ in state.consumes or ():
            if filter_ in session.subscriptions and filter_ not in state.resting:
                self.route(session, filter_, *session.subscriptions[filter_])
        self.share_groups.count(state, True)

    def route(self, session: Session, filter_: bytes, options: int, identifier: int) -> None:
        if is_queue_filter(filter_):
            if self.consumers is not None and session.connected:
                self.consumers.attach(session, filter_, options, identifier, session.data.consumes[filter_])
            return
        share = split_share(filter_)
        if share:
            self.share_groups.join(session, filter_, share, options, identifier)
        elif self.hub.subscribe(session, filter_, options, identifier):
            self.directory.announce(session.namespace.name, filter_, b"", session.data.durable)

    def unroute(self, session: Session, filter_: bytes) -> None:
        if is_queue_filter(filter_):
            if self.consumers is not None:
                self.consumers.detach_one(session, filter_)
        elif split_share(filter_):
            self.share_groups.leave(session, filter_)
        elif self.hub.unsubscribe(session, filter_):
            self.directory.withdraw(session.namespace.name, filter_, b"", session.data.durable)

    # ------------------------------------------------------------------ sessions of other nodes

    def surrender(self, namespace: bytes, client_id: bytes) -> None:
        """For the Directory: another node owns the session now, or nobody. Disconnects its client (0x8E) and ends the
        session here without its will and without release_session. Does nothing if there is none; an arrival is not
        concerned. What it had of share groups with QoS 1 is offered to their members; with QoS 2 the other node may
        have delivered it."""
        session = self.sessions.get((namespace, client_id))
        if session is None:
            return
        former = session.data.connection
        if former is not None:
            self._release(session)
            session.detach()
        self.end_session(session, replaced=True, publish_will=False, offer_qos=1)
        if former is not None:
            former.displaced(ReasonCode.SESSION_TAKEN_OVER)

    def freeze(self, session: Session) -> bool:
        """Takes a session away from its client (0x8E), because it moves to another node (sessions/transfer.py): nothing
        is sent, its timers stop, and its will waits; what is published to it is queued. The caller ends this with
        `unfreeze`, or with `end_moved` when another node has the session.

        False: the session has ended with its connection, as in a local takeover, because its expiry interval is 0. Its
        will was published, and release_session was not called. Raises UsageError if it is frozen.
        """
        state: SessionState = session.data
        if state.frozen:
            raise UsageError(f"session {session.number} is frozen")
        former = state.connection
        if state.expiry_s == 0:
            if former is not None:
                self.disconnect(session, former, publish_will=True, taken_over=True)
                former.displaced(ReasonCode.SESSION_TAKEN_OVER)
            if session.data is not None:  # it was restored for its will only, or the node is stopping
                self.end_session(session, replaced=True)
            return False
        state.frozen = True
        state.epoch += 1
        if former is not None:
            self._release(session)
            session.detach()
            state.since_ms = self.hub.steady_ms
            self._record(session, RecordKind.LINK, Link(False, state.since_ms, state.expiry_s, state.will is not None))
            former.displaced(ReasonCode.SESSION_TAKEN_OVER)
        return True

    def end_for_takeover(self, session: Session) -> None:
        """The client has connected to another node with Clean Start: ends the session as a local takeover would,
        without release_session."""
        former = session.data.connection
        if former is not None:
            self.disconnect(session, former, publish_will=True, taken_over=True, clean=True)
            former.displaced(ReasonCode.SESSION_TAKEN_OVER)
        if session.data is not None:
            self.end_session(session, replaced=True)

    def unfreeze(self, session: Session) -> None:
        """The session stays here, without a connection. Will delay and expiry count from its end, or from the freeze if
        that ended the connection."""
        state: SessionState = session.data
        if state.frozen:
            state.frozen = False
            for filter_, (options, identifier) in list(session.subscriptions.items()):
                if filter_.startswith(b"$share/") and filter_ not in state.resting:
                    self.route(session, filter_, options, identifier)
            self._begin_timers(session)

    def end_moved(self, session: Session) -> None:
        """A frozen session ends here, because another node has all of it. Its will is that node's now: it is neither
        published nor discarded, and release_session is not called."""
        self._keep_will(session.data, None)
        self.end_session(session, replaced=True, publish_will=False, offer_qos=0)

    def arrive(self, name: bytes, namespace: Namespace) -> Session:
        """A session that comes from another node, empty and not active; one that has not become active is dropped. Its
        caller sets the state, then calls record_head. Raises ProtocolError(0x97) when there are as many sessions as
        there may be, and none of this client."""
        if (former := self.arrivals.get((namespace.name, name))) is not None:
            self.drop_arrival(former)
        is_new = (namespace.name, name) not in self.sessions        # the other is merged with it, and adds none
        if is_new and (self._is_full() or (
                namespace.sessions_max and namespace.sessions >= namespace.sessions_max)):
            raise ProtocolError(ReasonCode.QUOTA_EXCEEDED, f"there is no room for another session: "
                                                           f"{len(self.sessions)}, {namespace.sessions} of them in "
                                                           f"namespace {namespace.text}")
        session = self._make(name, namespace, recorded=True, kept=True)
        self.arrivals[namespace.name, name] = session
        return session

    def drop_arrival(self, session: Session, *, joined: bool = False) -> None:
        """An arrival that is not active ends. joined: another session has its messages."""
        del self.arrivals[session.namespace.name, session.name]
        self._finish(session, self.joined if joined else self.ended)

    def activate(self, session: Session) -> None:
        """An arrival becomes an ordinary session without a connection: its subscriptions take effect and its timers
        begin. Its will is this node's from now on; one without delay is published, as in a local takeover. Raises
        UsageError if there is another session of this client."""
        state: SessionState = session.data
        address = session.namespace.name, session.name
        if address in self.sessions or self.arrivals.get(address) is not session:
            raise UsageError(f"session {session.number} cannot become active")
        del self.arrivals[address]
        self._enter(session)
        if state.will is not None:
            self.directory.will_changed(*address, state.will, state.expiry_s, self.hub.commits.mark)
        if state.will is not None and state.will.delay_s == 0:
            self.publish_will(session)
        self._begin_timers(session)
        self.directory.kept_changed(*address, None)

    # ------------------------------------------------------------------ sessions of nodes that have died

    def adopt(self, namespace: bytes, name: bytes, head: Head, subscriptions: Iterable[Subscription],
              life: int) -> Session:
        """Makes a session from what other nodes know of it, as one to which no client has connected. Its timers begin
        with `begin_timers`. head: expiry_s, username and identity count. life: of this node. There may be more than
        `sessions_max` then: what was acknowledged for it would be lost otherwise. Raises UsageError if there is one."""
        if (namespace, name) in self.sessions:
            raise UsageError(f"{name!r} has a session here")
        session = self._make(name, self.hub.namespaces.add(namespace), recorded=True, kept=True)
        state: SessionState = session.data
        state.version, state.expiry_s, state.username = 0, head.expiry_s, head.username
        state.identity, state.since_ms = head.identity, self.hub.steady_ms
        # The former node has used others, which its client may still acknowledge (Arrival.merge), and of which it may
        # not have released some: it would take a message of QoS 2 under such an identifier for one that it has.
        continue_behind(session, 0, _first_packet_id(life), 0)
        self.record_head(session)
        for each in subscriptions:
            session.keep_subscription(each.filter, each.options, each.identifier)
            self.remember_consume(session, each.filter, each.consume)
            self._record(session, RecordKind.SUBSCRIBE, each)
        self._enter(session)
        return session

    def take_stored(self, session: Session, identity: str) -> None:
        """A stored session is this node's: it enters the index. Its timers begin with `begin_timers`. identity: it has
        from now on."""
        state: SessionState = session.data
        del self.stored[session.namespace.name, session.name]
        state.frozen = False
        if state.restored:
            state.since_ms = self.hub.steady_ms
        self.hub.origins.absent(session.number)
        self._enter(session)
        if state.identity != identity:
            state.identity = identity
            self.record_head(session)

    def begin_timers(self, session: Session) -> None:
        """See adopt, take_stored. Does nothing for a session that has a connection, or has ended."""
        if session.data is not None and session.data.connection is None and not session.data.frozen:
            self._begin_timers(session)

    def drop_stored(self, session: Session, *, ended: bool) -> None:
        """A stored session has ended, or another node has all of it. Its will is not this node's. ended: what it had of
        share groups is offered to their members: with QoS 1 what its client had not acknowledged, with QoS 2 what had
        never left."""
        if ended and (left := left_behind(self.hub, session)):
            shares = ((session.namespace, *share) for filter_ in session.subscriptions
                      if (share := split_share(filter_)) is not None)
            found = {key[1] + key[2]: group for key in shares if (group := self.hub.groups.get(key)) is not None}
            self.share_groups.offer_left(session, found, left)
        del self.stored[session.namespace.name, session.name]
        session.data.will = None
        self._finish(session, self.ended)

    def store_away(self, session: Session) -> None:
        """A frozen session becomes a stored one: the node to which it went has died."""
        address = session.namespace.name, session.name
        for filter_ in session.subscriptions:
            if filter_ not in session.data.resting:
                self.unroute(session, filter_)
            self.state_bytes -= len(filter_)
        if session.data.will is not None:
            self.state_bytes -= session.data.will.size
        del self.sessions[address]
        session.namespace.sessions -= 1
        session.data.frozen = session.data.durable = False
        self.stored[address] = session

    # ------------------------------------------------------------------ other nodes

    def learn(self, node: str, namespace: bytes, filter_: bytes, wanted: bool) -> None:
        """For the Directory: clients on another node have subscribed to a filter (wanted), or none has any more.
        Repeating a call changes nothing. Raises UsageError for an unknown node."""
        hop = self.peers.hop(node)
        if wanted:
            self.hub.targets.add_peer(hop, filter_, self.hub.namespaces.add(namespace))
        elif namespace in self.hub.namespaces:
            self.hub.targets.remove_peer(hop, filter_, self.hub.namespaces[namespace])

    def forget_node(self, node: str, kept: Container[tuple[bytes, bytes, bytes]] = (), life: int = 0) -> None:
        """For the Directory, before a node is removed: forwards nothing to it from now on. The owner of the connection
        to it decides about messages that its hop already has (ShareGroups.give_again). kept, life: see
        ShareGroups.forget."""
        self.hub.targets.remove_peer(self.peers.hop(node))
        self.share_groups.forget(node, kept, life)

    # ------------------------------------------------------------------ time

    def _after(self, session: Session, delay_ms: int, call: Callable[[SessionState], None]) -> None:
        self._timer_count += 1
        heapq.heappush(self._timers, (session.data.since_ms + delay_ms, self._timer_count, session.data.epoch, session,
                                      call))
        if len(self._timers) > 4 * len(self.sessions) + STALE_TIMERS_MAX:
            # A session has at most two current timers; older ones would otherwise stay in the heap until they are due,
            # perhaps for days.
            self._timers = [timer for timer in self._timers if self._holds(timer[3], timer[2])]
            heapq.heapify(self._timers)

    @staticmethod
    def _holds(session: Session, epoch: int) -> bool:
        return session.data is not None and session.data.epoch == epoch

    def tick(self) -> None:
        """Handles everything that is due by Hub.steady_ms: delayed wills and session expiry."""
        now = self.hub.steady_ms
        while not self.joining and self._timers and self._timers[0][0] <= now:
            _, _, epoch, session, call = heapq.heappop(self._timers)
            if session.data is not None and session.data.epoch == epoch:
                call(session.data)
        if not self.joining:
            self.share_groups.pump()

    def _will_due(self, state: SessionState) -> None:
        self.publish_will(state.session)

    def _expired(self, state: SessionState) -> None:
        self.end_session(state.session)

    # ------------------------------------------------------------------ the disk

    def _record(self, session: Session, kind: int, body: object) -> None:
        if session.number and self.hub.durable:
            self.hub.ledger.write(kind, struct.pack(">Q", session.number) + msgspec.msgpack.encode(body))
            self.dirty.add(session)

    def record_step(self, session: Session, body: bytes) -> None:
        """Records a step of a session's arrival (sessions/parts.py)."""
        if session.number and self.hub.durable:
            self.hub.ledger.write(RecordKind.ARRIVAL, struct.pack(">Q", session.number) + body)
            self.dirty.add(session)

    def record_head(self, session: Session) -> None:
        """Records what CONNECT, or the node that it came from, said of a session."""
        state: SessionState = session.data
        if session.number == 0 and self.hub.durable and (state.kept or state.will is not None):
            self.hub.session_number_last += 1
            session.set_number(self.hub.session_number_last)
            session.journalled = state.kept
        if session.number:
            self._record(session, RecordKind.SESSION, state.head())

    def restore(self, sessions: Iterable[Session]) -> None:
        """Activates the loaded and replayed sessions. Their subscriptions take effect here, so messages that are
        published before a client returns reach its session. Those that had arrived from another node and were not
        active are put into `arrivals`: the other node may have them still. In a cluster, those that outlive a node are
        put into `stored`: another node may have adopted them."""
        for session in sessions:
            state: SessionState = session.data
            if is_parked(session.name):
                self.share_groups.restore(session)
                continue
            if state.moved is not None and state.moved.stage != ACTIVE:
                self._configure(session)
                self.arrivals[session.namespace.name, session.name] = session
                continue
            if self.joining and state.kept and state.expiry_s:
                self._configure(session)
                self.stored[session.namespace.name, session.name] = session
                continue
            self._enter(session)
            if state.restored:
                state.since_ms = self.hub.steady_ms
            self._begin_timers(session)

    def _enter(self, session: Session) -> None:
        """A session that has its state enters the index."""
        state: SessionState = session.data
        state.durable = state.expiry_s > 0
        self._add(session)
        self._configure(session)
        self.state_bytes += sum(map(len, session.subscriptions)) + (state.will.size if state.will else 0)
        for filter_, (options, identifier) in list(session.subscriptions.items()):
            if filter_ not in state.resting:
                self.route(session, filter_, options, identifier)

    def _begin_timers(self, session: Session) -> None:
        """Sets the timers of a session without a connection, counted from `since_ms`."""
        state: SessionState = session.data
        state.epoch += 1
        patience = 0
        if state.restored:
            # The client was connected when the broker ended; it may return until its will delay and keep alive have
            # passed.
            patience = int(max(state.will.delay_s if state.will else 0, 1.5 * state.keep_alive_s) * 1000)
            if state.will is not None:
                self._after(session, patience, self._will_due)
        elif state.will is not None:
            self._after(session, state.will.delay_s * 1000, self._will_due)
        if state.expiry_s == 0:
            self._after(session, patience, self._expired)
        elif state.expiry_s != EXPIRY_NEVER:
            self._after(session, state.expiry_s * 1000, self._expired)


def _first_packet_id(life: int) -> int:
    """Behind which the packet identifiers of a session begin that is adopted in this life of a node. Far from those of
    other lives, which may have adopted it before: by multiples of the golden section, numbers that differ by little
    are spread evenly. Far also from the first ones, which young sessions use."""
    spread = life * 40503 & 0xFFFF
    return ADOPTED_PACKET_ID + spread * (0xFFFF - ADOPTED_PACKET_ID) // 0xFFFF
