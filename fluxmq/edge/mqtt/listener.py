"""Listening sockets for MQTT: one Listener per slot of the configuration."""
from __future__ import annotations

from ssl import SSLSocket
from typing import Any

from fluxmq._core.net.connection import Connection
from fluxmq._core.net.poller import Poller
from fluxmq.edge.listening import SocketListener
from fluxmq.edge.mqtt.front import Front

__all__ = ["Listener"]


class Listener(SocketListener):
    """websocket: a WebSocket upgrade comes first. Everything else as SocketListener."""

    def __init__(self, front: Front, poller: Poller, *, websocket: bool, **how: Any) -> None:
        super().__init__(front, poller, **how)
        self._handler = front
        self.websocket = websocket

    def make(self, fd: int, tls: SSLSocket | None) -> Connection:
        return Connection(self._handler.hub, fd, self.poller.epoll, self._handler, tls, self.websocket)
