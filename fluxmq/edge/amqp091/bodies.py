"""Decides which connections may go on publishing while incomplete contents exceed their memory limit.

From `held_max` held bytes on, until RELEASE times that, connections that are sending a body are read one at a time, in
order of arrival. So one body after the other is completed and its memory freed. Messages of one frame need no turn.
"""
from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from fluxmq.edge.amqp091.client import HOLD_BODY
from fluxmq.model.amqp import ReplyCode

if TYPE_CHECKING:
    from fluxmq._core.net.amqp091_connection import Bodies
    from fluxmq.edge.amqp091.client import Client

__all__ = ["BodyTurns"]

RELEASE = 0.9
# A turn lasts at most a quarter of a second each: a message of the default maximum size, 16 MiB, needs 1.6 MB/s. A
# client that sends nothing, or very slowly, must not make the others wait forever.
TURN_TICKS = 40


class BodyTurns:
    """Machine. bodies: the node's. on_log: (level, cause, text, fields)."""

    def __init__(self, bodies: Bodies, on_log: Callable[[str, str, str, dict[str, Any]], None]) -> None:
        self.bodies = bodies
        self._on_log = on_log
        self._waiting: dict[Client, None] = {}
        self._turn: Client | None = None
        self._left = 0

    def wait(self, client: Client) -> None:
        """Called in the middle of a body when the bodies in memory exceed the limit already."""
        if client not in self._waiting:
            if not self._waiting and self._turn is None:
                self._on_log("warning", "bodies", "messages under way take too much memory: they are received one "
                             "after the other", {"bytes": self.bodies.held, "limit": self.bodies.held_max})
            self._waiting[client] = None
            client.hold(HOLD_BODY)

    def forget(self, client: Client) -> None:
        """Called when the client's connection has ended."""
        self._waiting.pop(client, None)
        if self._turn is client:
            self._turn = None

    def tick(self) -> None:
        """Called every quarter of a second."""
        if self._turn is not None:
            self._look(self._turn)
        if not self._waiting:
            return
        if self.bodies.held <= RELEASE * self.bodies.held_max:
            for client in self._waiting:
                client.release(HOLD_BODY)
            self._waiting.clear()
        elif self._turn is None:
            self._turn, self._left = next(iter(self._waiting)), TURN_TICKS
            del self._waiting[self._turn]
            self._turn.connection.favoured = True
            self._turn.release(HOLD_BODY)

    def _look(self, client: Client) -> None:
        """Checks the client whose turn it is."""
        if not client.connection.publishing:
            client.connection.favoured = False
            self._turn = None
        elif self._waiting:
            self._left -= 1
            if self._left == 0:
                client.ended_by = "too_slow"
                self._on_log("warning", f"body {client.client_id}", "a message that does not come kept others waiting",
                             client.fields())
                client.say_goodbye(ReplyCode.RESOURCE_ERROR, "a message was not completed in time while memory for "
                                                             "messages under way is short")
                client.connection.end()
