"""The part of the composition root that is about AMQP 0-9-1: what its listeners share, and its part of each tick."""
from __future__ import annotations

import time
from typing import TYPE_CHECKING

from fluxmq.app.logs import Notes
from fluxmq.app.memory import MemoryAlarm, high_mark
from fluxmq.edge.amqp091.clients import Clients
from fluxmq.edge.amqp091.tally import Tally

if TYPE_CHECKING:
    from fluxmq._core.exchange import Exchanges
    from fluxmq.app.server import Server
    from fluxmq.edge.amqp091.front import ChannelVerbs

__all__ = ["Amqp091"]

CHANNEL_TICKS = 4  # a second between looks at what is not settled


class Amqp091:
    """What all connections of a node share."""

    channels: ChannelVerbs

    def __init__(self, server: Server) -> None:
        self._server = server
        self.notes = Notes("fluxmq.amqp", time.monotonic)
        self.tally = Tally()
        self.clients = Clients()
        self._memory = MemoryAlarm(high_mark(server.config.amqp091.memory_high))
        self._ticks = 0

    def find_virtual_host(self, name: str) -> Exchanges | None:
        """None: it is not among amqp091.virtual_hosts."""
        raise NotImplementedError

    def tick(self) -> None:
        """The clock has moved."""
        self._ticks += 1
        if self._memory.look():
            text = "memory is short: who publishes is blocked" if self._memory.on else "memory is no longer short"
            self.notes.say("warning", "", text, {"amqp091.memory_high": self._memory.mark})
        space = self._server.queue_space
        self.clients.tick(memory=self._memory.on, disk=space is not None and space.full)
        if self._ticks % CHANNEL_TICKS == 0:
            for client in list(self.clients.open.values()):
                self.channels.tick(client)
        self.notes.flush()
