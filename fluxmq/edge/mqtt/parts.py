"""The objects that a listener's handler consists of, shared with the steps of CONNECT."""
from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from fluxmq.edge.asking import Asking

if TYPE_CHECKING:
    from fluxmq.edge.mqtt.options import FrontOptions
    from fluxmq.edge.mqtt.tally import Tally
    from fluxmq.engine.broker import Broker
    from fluxmq.engine.ports.access import Authority
    from fluxmq.engine.ports.guard import Guard

__all__ = ["FrontParts"]


class FrontParts:
    """broker, authority: the node's. options: configuration of clients. name: the listener's, for logs. guard: counts
    failed logins; None: no bans. asking: the node's; None: a new one. on_log: called with (level, cause, text,
    fields)."""

    def __init__(self, broker: Broker, authority: Authority, options: FrontOptions, tally: Tally, name: str, *,
                 guard: Guard | None, asking: Asking | None, on_log: Callable[[str, str, str, dict[str, Any]], None],
                 log_connections: Callable[[], bool]) -> None:
        self.broker = broker
        self.hub = broker.hub
        self.authority = authority
        self.guard = guard
        self.asking = asking if asking is not None else Asking(authority, on_log)
        self.options = options
        self.tally = tally
        self.name = name
        self.on_log = on_log
        self.log_connections = log_connections  # called before the fields of a line are collected
