"""The objects that a listener's handler consists of, shared with the steps of the handshake."""
from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from fluxmq.edge.amqp091.permissions import Permissions

if TYPE_CHECKING:
    from fluxmq._core.exchange.exchange import Exchanges
    from fluxmq._core.hub.hub import Hub
    from fluxmq.edge.amqp091.clients import Clients
    from fluxmq.edge.amqp091.options import FrontOptions
    from fluxmq.edge.amqp091.tally import Tally
    from fluxmq.edge.asking import Asking
    from fluxmq.engine.ports.guard import Guard

__all__ = ["FrontParts"]


class FrontParts:
    """hub, asking, clients, tally: the node's. find_virtual_host: returns its exchanges; None: there is no such virtual
    host. name: the listener's, for logs. guard: counts failed logins; None: no bans. on_log: called with (level, cause,
    text, fields)."""

    def __init__(self, hub: Hub, asking: Asking, options: FrontOptions, tally: Tally, clients: Clients, name: str, *,
                 find_virtual_host: Callable[[str], Exchanges | None], guard: Guard | None,
                 on_log: Callable[[str, str, str, dict[str, Any]], None],
                 log_connections: Callable[[], bool]) -> None:
        self.hub = hub
        self.asking = asking
        self.authority = asking.authority
        self.permissions = Permissions(asking)
        self.guard = guard
        self.options = options
        self.tally = tally
        self.clients = clients
        self.name = name
        self.find_virtual_host = find_virtual_host
        self.on_log = on_log
        self.log_connections = log_connections  # called before the fields of a line are collected
