"""After a change of users or of the access list: checks again which clients and subscriptions are still allowed."""
from __future__ import annotations

from fluxmq._core.pubsub.session import Session
from fluxmq.engine.broker import Broker
from fluxmq.engine.ports.access import Authority
from fluxmq.engine.sessions.state import SessionState
from fluxmq.model.mqtt import ReasonCode

__all__ = ["apply_verdict", "review"]


def review(broker: Broker, authority: Authority) -> list[tuple[Session, bytes]]:
    """Applies changed users or permissions. Clients of removed users are disconnected (0x87). A subscription that would
    be refused now is suspended until it would be allowed again, also in sessions without a connection. Returns the
    subscriptions about which the Authority must ask an external service; they are unchanged until apply_verdict."""
    undecided: list[tuple[Session, bytes]] = []
    for session in list(broker.sessions.values()):
        state: SessionState = session.data
        client_id = session.name.decode()
        if state.username in authority.removed and state.connection is not None:
            broker.log("warning", "", "disconnected: the user was removed",
                       {"client_id": client_id, "user": state.username})
            state.connection.displaced(ReasonCode.NOT_AUTHORIZED)
        if session.data is None:
            continue
        for filter_ in session.subscriptions:
            allowed = authority.open_subscribe or authority.may_subscribe(
                state.username, client_id, filter_.decode(), session.namespace.text)
            if allowed is None:
                undecided.append((session, filter_))
            else:
                apply_verdict(broker, session, filter_, allowed)
    return undecided


def apply_verdict(broker: Broker, session: Session, filter_: bytes, allowed: bool) -> None:
    """Routes an existing subscription from now on, or suspends it."""
    state: SessionState = session.data
    options, identifier = session.subscriptions[filter_]
    if allowed and filter_ in state.resting:
        state.resting -= {filter_}
        broker.route(session, filter_, options, identifier)
    elif not allowed and filter_ not in state.resting:
        broker.log("warning", "", "subscription suspended: it is no longer allowed",
                   {"client_id": session.name.decode(), "user": state.username, "filter": filter_.decode()})
        state.resting |= {filter_}
        broker.unroute(session, filter_)
