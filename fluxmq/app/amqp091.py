"""The part of the composition root that is about AMQP 0-9-1: what its listeners share, and its part of each tick."""
from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from fluxmq._core.hub.amqp091_bridge import publish_amqp
from fluxmq._core.net.amqp091_connection import Bodies
from fluxmq.app.heap import trim
from fluxmq.app.logs import Notes
from fluxmq.app.memory import MemoryAlarm, high_mark
from fluxmq.edge.amqp091.bodies import BodyTurns
from fluxmq.edge.amqp091.channel import ChannelMethods
from fluxmq.edge.amqp091.clients import Clients
from fluxmq.edge.amqp091.tally import Tally
from fluxmq.engine.exchanges.manager import ExchangeManager
from fluxmq.engine.exchanges.store import ExchangeKeeper
from fluxmq.engine.queues.amqp.queues import AmqpQueues

if TYPE_CHECKING:
    from fluxmq._core.exchange.exchange import Exchanges
    from fluxmq._core.queue.queue import Queue
    from fluxmq.app.queue_setup import Queues
    from fluxmq.edge.asking import Asking
    from fluxmq.engine.broker import Broker
    from fluxmq.engine.durability import Keeper
    from fluxmq.engine.ports.cluster import Cluster
    from fluxmq.model.config import Amqp091 as Amqp091Config

__all__ = ["Amqp091"]

TRIM_TICKS = 4  # a second between attempts to free memory while it is short
CHANNEL_TICKS = 4  # a second between checks of unacknowledged messages
# Fraction of amqp091.memory_high for incomplete messages of several frames; beyond it, bodies are received in turn.
BODIES_SHARE = 0.125
BODIES_BYTES_MIN = 64 << 20


class Amqp091:
    """State shared by all connections of a node. later: the loop's call_later."""

    def __init__(self, broker: Broker, keeper: Keeper, queues: Queues, asking: Asking, config: Amqp091Config,
                 cluster: Cluster, later: Callable[[float, Callable[[], None]], Any]) -> None:
        self.notes = Notes("fluxmq.amqp", time.monotonic)
        self.tally = Tally()
        self._hub, self._node_queues = broker.hub, queues
        self._virtual_hosts = config.virtual_hosts
        self._memory = MemoryAlarm(high_mark(config.memory_high))
        self.clients = Clients(BodyTurns(Bodies(
            config.max_message_size, max(BODIES_BYTES_MIN, int(BODIES_SHARE * self._memory.mark))), self.notes.say))
        self.exchanges = ExchangeManager(broker.hub, seed=secrets.randbits(64), cluster=cluster)
        self.queues = AmqpQueues(queues.manager, secrets.token_bytes, self._route, broker.hosts)
        self.queues.dead.on_published = self._dead_letter
        keeper.exchanges = ExchangeKeeper(self.exchanges, queues.manager)
        self.channels = ChannelMethods(broker.hub, self.exchanges, self.queues, asking, broker.relays, later=later,
                                       consumer_timeout_ms=int(config.consumer_timeout * 1000), on_log=self.notes.say)
        self._ticks = 0

    def _dead_letter(self, vhost: bytes, exchange: bytes, key: bytes, headers: bytes, properties: bytes,
                     payload: bytes, queues: list[Queue]) -> None:
        """Forwards a dead letter from amq.topic to MQTT clients, in the same batch. It is not published at once,
        because a message may die while another one is being published."""
        hub = self._hub
        exchanges, namespace = self.exchanges.vhosts.get(vhost), hub.namespaces.get(vhost)
        route = exchanges.lookup(exchange, key, headers) if exchanges is not None else None
        if route is not None and route.mqtt and namespace is not None:
            hub.publish_later(lambda: publish_amqp(
                hub, exchange, key, payload, properties, taken=queues, namespace=namespace))

    def _route(self, vhost: bytes, exchange: bytes, key: bytes, headers: bytes) -> list[Queue]:
        """The queues to which a dead letter is routed."""
        exchanges = self.exchanges.vhosts.get(vhost)
        route = exchanges.lookup(exchange, key, headers) if exchanges is not None else None
        return route.queues if route is not None else []

    def find_virtual_host(self, name: str) -> Exchanges | None:
        """None: there is no such namespace, or it is not for AMQP."""
        namespace = self._hub.namespaces.get(name.encode("utf-8", "surrogateescape"))
        # "/" always exists, but AMQP need not have it.
        closed = name == "/" and name not in self._virtual_hosts
        if namespace is None or not namespace.open or closed:
            return None
        return self.exchanges.add_vhost(namespace.name)

    def tick(self) -> None:
        """Called on each tick of the clock."""
        self._ticks += 1
        if self._memory.look():
            text = ("memory is short: connections that publish are blocked" if self._memory.on else
                    "memory is no longer short")
            self.notes.say("warning", "", text, {"amqp091.memory_high": self._memory.mark})
        if self._memory.on and self._ticks % TRIM_TICKS == 0:
            asyncio.get_running_loop().run_in_executor(None, trim)  # memory that was freed must not keep the alarm on
        self.clients.tick(memory=self._memory.on, disk=self._node_queues.refusing)
        if self._ticks % CHANNEL_TICKS == 0:
            for client in list(self.clients.open.values()):
                self.channels.tick(client)
        self.notes.flush()
