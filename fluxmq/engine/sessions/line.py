"""The records of one commit line, applied to sessions: at a start the journal's, while the node runs those of another
node's line as they are committed there.

Numbers of sessions and messages are unique within their line only. So each line has its own tables (Loader), and a
session of another line is a passive copy: it gets no messages, clients or checkpoints until Broker.restore activates
it. Retained messages are identified by topic, so they are stored in the common tree.
"""
from __future__ import annotations

from collections.abc import Callable, Iterable

from fluxmq._core.disk.record_kinds import RecordKind
from fluxmq._core.hub.persist import Loader
from fluxmq._core.memory.commits import Line
from fluxmq._core.memory.namespace import ROOT, Namespace
from fluxmq._core.pubsub.session import Session
from fluxmq.engine import stored
from fluxmq.engine.broker import Broker
from fluxmq.engine.sessions import parts
from fluxmq.engine.sessions.parts import Step
from fluxmq.engine.sessions.state import ACTIVE, ARRIVING, WHOLE, Head, Moved, SessionState, Subscription

__all__ = ["SessionLine"]

_COLD = (RecordKind.SESSION, RecordKind.SESSION_END, RecordKind.SUBSCRIBE, RecordKind.UNSUBSCRIBE, RecordKind.LINK,
         RecordKind.ARRIVAL)


class SessionLine:
    """Machine. on_other: called with (kind, number, body) of records not about sessions, messages or retained
    messages."""

    def __init__(self, broker: Broker, line: Line, on_other: Callable[[int, int, bytes], None]) -> None:
        self.broker = broker
        self.line = line
        self.loader = Loader(broker.hub, self._on_cold, line)
        self.ended: list[int] = []  # numbers of ended sessions
        self._on_other = on_other

    @property
    def sessions(self) -> dict[int, Session]:
        """By number."""
        return self.loader.sessions

    def apply(self, records: bytes) -> None:
        """Applies records that were committed together: a batch of a journal, or of Line.submit. Raises CorruptError,
        or one of stored.WRONG_SHAPE."""
        self.loader.replay(records)
        if self.line.number:
            self.loader.let_go()  # a message is in one record, with all sessions that get it

    def load_session(self, number: int, value: bytes) -> None:
        """Loads a session from the view; its messages were added to the loader before. Raises as apply does."""
        copy = stored.session_of(self.loader.head_of(value))
        session = self._make(number, copy.head)
        if session is None:
            self.ended.append(number)
            return
        for kept in copy.subscriptions:
            self._subscribe(session, kept)
        self.loader.fill_session(session, value)

    def one_per_client(self) -> None:
        """Keeps only the newer of two sessions of a client: a crash came before the record of the older one's end was
        durable. Drops arrivals of which parts are missing; one that is whole and not active is kept beside."""
        newest: dict[tuple[Namespace, bytes], Session] = {}
        arrivals: dict[tuple[Namespace, bytes], Session] = {}
        for number in sorted(self.sessions):
            session = self.sessions[number]
            client = session.namespace, session.name
            moved: Moved | None = session.data.moved
            if moved is not None and moved.stage == ARRIVING:
                self._forget(self.sessions.pop(number))
                continue
            kept = newest if moved is None or moved.stage == ACTIVE else arrivals
            older = kept.get(client)
            if older is not None:
                self._forget(self.sessions.pop(older.number))
            kept[client] = session

    def _forget(self, session: Session) -> None:
        session.clear()
        session.data = None
        self.ended.append(session.number)

    def _make(self, number: int, head: Head) -> Session | None:
        """None: its namespace has ended."""
        hub = self.broker.hub
        # An earlier version wrote the name, and had only one namespace.
        namespace = hub.namespaces.add(head.namespace or ROOT) if isinstance(head.namespace, bytes) else (
            self.line.namespace(head.namespace))
        if namespace is None:
            return None
        session = hub.new_session(head.name, number, namespace)
        session.data = SessionState(session)
        if self.line.number == 0:
            hub.session_number_last = max(hub.session_number_last, number)
        session.data.moved = head.moved  # changed by steps only: a later SESSION record may be older than the view
        self._apply_head(session, head)
        return session

    @staticmethod
    def _apply_head(session: Session, head: Head) -> None:
        state: SessionState = session.data
        state.version, state.expiry_s, state.keep_alive_s = head.version, head.expiry_s, head.keep_alive_s
        state.since_ms, state.will, state.username = head.since_ms, head.will, head.username
        state.kept, state.restored, state.identity = head.kept, head.connected, head.identity
        session.journalled = head.kept

    def _subscribe(self, session: Session, kept: Subscription) -> None:
        session.keep_subscription(kept.filter, kept.options, kept.identifier)
        self.broker.remember_consume(session, kept.filter, kept.consume)

    def _on_cold(self, kind: int, number: int, body: bytes) -> None:
        if kind not in _COLD:
            self._on_other(kind, number, body)
            return
        session = self.sessions.get(number)
        if kind == RecordKind.SESSION:
            head = stored.head_of(body)
            if session is None:
                if (made := self._make(number, head)) is not None:
                    self.sessions[number] = made
            else:
                self._apply_head(session, head)
        elif kind == RecordKind.ARRIVAL:
            self._step(session, parts.read_step(body))
        elif session is None:
            return  # its end is in the view already
        elif kind == RecordKind.SESSION_END:
            self._forget(self.sessions.pop(number))
        elif kind == RecordKind.SUBSCRIBE:
            self._subscribe(session, stored.subscription_of(body))
        elif kind == RecordKind.UNSUBSCRIBE:
            session.forget_subscription(stored.unsubscribed_of(body))
        else:
            link = stored.link_of(body)
            state: SessionState = session.data
            state.restored, state.since_ms, state.expiry_s = link.connected, link.since_ms, link.expiry_s
            if not link.will_pending:
                state.will = None

    def _step(self, session: Session | None, step: Step) -> None:
        """Applies a step of an arrival, unless the view has it."""
        if step.part is not None and (entries := parts.check_part(step.part)):
            self.loader.use_message(step.first_message + entries - 1)
        if session is None:
            return
        state: SessionState = session.data
        if state.moved is None:
            state.moved = Moved()
        # After a gap, which a repair may have left, an arrival never becomes whole.
        if step.number == state.moved.steps or (step.number > state.moved.steps and state.moved.stage != ARRIVING):
            joining = self.sessions.get(step.other)
            if joining is None or (joining.data.moved is not None and joining.data.moved.stage == WHOLE):
                parts.take_step(session, step, joining)

    def take_ended(self) -> Iterable[int]:
        """Returns the numbers of ended sessions, and clears them."""
        ended, self.ended = self.ended, []
        return ended
