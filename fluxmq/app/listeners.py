"""The part of the composition root that makes a listener of each slot of the configuration."""
from __future__ import annotations

from collections.abc import Callable
from ssl import SSLContext
from typing import Any, NamedTuple

from fluxmq._core.net.poller import Poller
from fluxmq.app.admission import Admission
from fluxmq.app.amqp091 import Amqp091
from fluxmq.app.certificates import Contexts, out_of_date, server_contexts
from fluxmq.app.exit_codes import BindError
from fluxmq.app.logs import Notes
from fluxmq.edge.amqp091.front import Front as AmqpFront
from fluxmq.edge.amqp091.listener import Listener as AmqpListener
from fluxmq.edge.amqp091.options import FrontOptions as AmqpOptions
from fluxmq.edge.asking import Asking
from fluxmq.edge.listening import SocketListener
from fluxmq.edge.mqtt.front import Front
from fluxmq.edge.mqtt.listener import Listener
from fluxmq.edge.mqtt.options import FrontOptions
from fluxmq.edge.mqtt.tally import Tally
from fluxmq.engine.broker import Broker
from fluxmq.model import limits
from fluxmq.model.config import Config
from fluxmq.model.listeners import AmqpSlot, MqttSlot, TlsListener, TlsWebSocket, WebSocketListener
from fluxmq.model.listeners import Listener as Slot

__all__ = ["Listeners", "Served"]

# Ports that other brokers use too: the error for one in use suggests what to configure.
OTHERS = {5672: "RabbitMQ", 5671: "RabbitMQ", 1883: "mosquitto", 8883: "mosquitto"}


class Served(NamedTuple):
    """The services for connections of all listeners. tally, notes: of MQTT. later: the loop's call_later."""

    config: Config
    poller: Poller
    admission: Admission
    broker: Broker
    asking: Asking
    tally: Tally
    notes: Notes
    amqp091: Amqp091
    later: Callable[[float, Callable[[], None]], Any]


class Listeners:
    """opened: each listener with its key in the configuration and its addresses."""

    def __init__(self) -> None:
        self.opened: list[tuple[str, SocketListener, list[tuple[str, int]]]] = []
        self._contexts: Contexts = []

    def open(self, node: Served) -> None:
        """Binds the addresses of all enabled slots; nothing is accepted before the loop runs. Raises BindError."""
        for path, mqtt in node.config.mqtt_listeners():
            self._open(path, mqtt, self._mqtt(node, path, mqtt))
        for path, amqp in node.config.amqp091_listeners():
            self._open(path, amqp, self._amqp091(node, path, amqp))

    def close(self) -> None:
        """Stops accepting connections."""
        for _, listener, _ in self.opened:
            listener.close()

    def reload_certificates(self) -> list[str]:
        """Returns errors of certificates that could not be loaded: the earlier ones stay in use."""
        return [f"{path}: {problem}" for path, contexts in self._contexts if (problem := contexts.reload())]

    def out_of_date(self) -> list[str]:
        """A line for each listener whose certificate is outside of its dates, so that clients refuse it."""
        return out_of_date(self._contexts)

    @property
    def accept_failures(self) -> int:
        return sum(listener.accept_failures for _, listener, _ in self.opened)

    def _open(self, path: str, slot: Slot, listener: SocketListener) -> None:
        address = slot.address
        assert address is not None
        try:
            bound = listener.open(address.host, address.port)
        except OSError as error:
            who = f"Another program, {OTHERS[address.port]} perhaps," if address.port in OTHERS else "Another program"
            raise BindError(f"{path}.addr", slot.addr, error,
                            f'{who} listens there: set {path}.addr to another address, or to "" to do without this '
                            f'listener') from None
        self.opened.append((path, listener, bound))

    def _how(self, node: Served, path: str, slot: Slot) -> dict[str, Any]:
        """Arguments of all listeners."""
        context: Callable[[], SSLContext] | None = None
        if isinstance(slot, TlsListener):
            contexts = server_contexts(path, slot)
            self._contexts.append((path, contexts))
            context = lambda: contexts.current  # noqa: E731
        return {"context": context, "max_connections": slot.max_connections,
                "all_connections_max": node.admission.connections_max, "origins": node.admission.origins,
                "guard": node.admission.guard, "gate": node.admission.gate,
                "proxies": node.admission.proxies,
                "read_timeout_s": slot.read_timeout, "later": node.later}

    @staticmethod
    def _username_from(node: Served, slot: Slot) -> str:
        if isinstance(slot, TlsListener):
            return slot.username_from
        return "cn" if node.config.server.proxy_usernames else ""

    def _mqtt(self, node: Served, path: str, slot: MqttSlot) -> Listener:
        broker, session = node.config.broker, node.config.session
        options = FrontOptions(
            packet_bytes_max=broker.max_message_size + limits.PACKET_OVERHEAD_BYTES_MAX,
            receive_max=broker.receive_maximum, inflight_max=session.max_inflight_messages,
            topic_alias_max=broker.topic_alias_max, qos_max=broker.max_qos,
            user_properties_max=broker.max_user_properties,
            retain_available=broker.max_retained_messages > 0, keep_alive_max_s=int(broker.server_keep_alive_max),
            topic_levels_max=broker.max_topic_levels, payload_bytes_max=broker.max_message_size,
            response_information=broker.response_information, write_timeout_ms=int(slot.write_timeout * 1000),
            namespace=slot.namespace)
        front = Front(node.broker, node.asking.authority, options, node.tally, path.removeprefix("server."),
                      version={"auto": 0, "v3": 3, "v5": 5}[slot.protocol],
                      username_from=self._username_from(node, slot),
                      path=slot.path if isinstance(slot, WebSocketListener | TlsWebSocket) else "",
                      origins=slot.allowed_origins if isinstance(slot, WebSocketListener | TlsWebSocket) else (),
                      guard=node.admission.guard, asking=node.asking, on_log=node.notes.say,
                      log_connections=node.notes.logs_connection, later=node.later)
        return Listener(front, node.poller, websocket=isinstance(slot, WebSocketListener | TlsWebSocket),
                        **self._how(node, path, slot))

    def _amqp091(self, node: Served, path: str, slot: AmqpSlot) -> AmqpListener:
        config, shared = node.config.amqp091, node.amqp091
        options = AmqpOptions(
            frame_max=config.frame_max, channel_max=config.channel_max, heartbeat_s=int(config.heartbeat),
            write_timeout_ms=int(slot.write_timeout * 1000))
        front = AmqpFront(node.broker.hub, node.asking, options, shared.tally, shared.clients, shared.channels,
                          path.removeprefix("server."), find_virtual_host=shared.find_virtual_host,
                          username_from=self._username_from(node, slot),
                          guard=node.admission.guard, on_log=shared.notes.say,
                          log_connections=shared.notes.logs_connection)
        return AmqpListener(front, node.poller, **self._how(node, path, slot))
