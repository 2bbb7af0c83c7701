"""Listening sockets for AMQP 0-9-1: one Listener per slot of the configuration."""
from __future__ import annotations

from ssl import SSLSocket
from typing import Any

from fluxmq._core.net.amqp091_connection import AmqpConnection
from fluxmq._core.net.poller import Poller
from fluxmq.edge.amqp091.front import Front
from fluxmq.edge.listening import SocketListener

__all__ = ["Listener"]


class Listener(SocketListener):
    """Arguments as SocketListener."""

    def __init__(self, front: Front, poller: Poller, **how: Any) -> None:
        super().__init__(front, poller, **how)
        self._handler = front

    def make(self, fd: int, tls: SSLSocket | None) -> AmqpConnection:
        return AmqpConnection(self._handler.hub, fd, self.poller.epoll, self._handler, tls)
