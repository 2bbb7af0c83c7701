"""After users or the access list changed: who is still here, and what may still be subscribed."""
from __future__ import annotations

from fluxmq.engine.broker import Broker
from fluxmq.engine.ports_access import Authority
from fluxmq.engine.sessions import SessionState
from fluxmq.model.mqtt import ReasonCode

__all__ = ["review"]


def review(broker: Broker, authority: Authority) -> None:
    """Users or permissions may have changed: who is gone is disconnected (0x87); a subscription that would be
    refused now rests until it would not be, also in sessions whose client is away."""
    for session in list(broker.sessions.values()):
        state: SessionState = session.data
        client_id = session.name.decode()
        who = {"client_id": client_id, "user": state.username}
        if state.username in authority.removed and state.connection is not None:
            broker.log("warning", "", "disconnected: the user was removed", who)
            state.connection.displaced(ReasonCode.NOT_AUTHORIZED)
        if session.data is None:
            continue
        for filter_, (options, identifier) in session.subscriptions.items():
            allowed = authority.open_subscribe or authority.may_subscribe(state.username, client_id,
                                                                          filter_.decode())
            if allowed and filter_ in state.resting:
                state.resting -= {filter_}
                broker.route(session, filter_, options, identifier)
            elif not allowed and filter_ not in state.resting:
                broker.log("warning", "", "subscription suspended: it is no longer allowed",
                          who | {"filter": filter_.decode()})
                state.resting |= {filter_}
                broker.unroute(session, filter_)
