"""The part of the composition root that listens: what each slot of the configuration becomes."""
from __future__ import annotations

from collections.abc import Callable
from ssl import SSLContext
from typing import TYPE_CHECKING, Any

from fluxmq.app.certificates import server_contexts
from fluxmq.app.exit_codes import BindError
from fluxmq.edge.amqp091.front import Front as AmqpFront
from fluxmq.edge.amqp091.listener import Listener as AmqpListener
from fluxmq.edge.amqp091.options import FrontOptions as AmqpOptions
from fluxmq.edge.listening import SocketListener
from fluxmq.edge.mqtt.front import Front
from fluxmq.edge.mqtt.listener import Listener
from fluxmq.edge.mqtt.options import FrontOptions
from fluxmq.model import limits
from fluxmq.model.listeners import AmqpSlot, MqttSlot, TlsListener, TlsWebSocket, WebSocketListener
from fluxmq.model.listeners import Listener as Slot

if TYPE_CHECKING:
    from fluxmq.app.server import Server

__all__ = ["open_listeners"]

# Ports that other brokers have too: who has one of them here reads what to write.
OTHERS = {5672: "RabbitMQ", 5671: "RabbitMQ", 1883: "mosquitto", 8883: "mosquitto"}


def open_listeners(server: Server) -> None:
    """Takes the addresses of all slots that are on; nothing is accepted before the loop turns. Raises BindError."""
    for path, mqtt in server.config.mqtt_listeners():
        _open(server, path, mqtt, _mqtt(server, path, mqtt))
    for path, amqp in server.config.amqp091_listeners():
        _open(server, path, amqp, _amqp091(server, path, amqp))


def _open(server: Server, path: str, slot: Slot, listener: SocketListener) -> None:
    address = slot.address
    assert address is not None
    try:
        bound = listener.open(address.host, address.port)
    except OSError as error:
        who = f"Another program, {OTHERS[address.port]} perhaps," if address.port in OTHERS else "Another program"
        raise BindError(f"{path}.addr", slot.addr, error, f'{who} listens there: set {path}.addr to another address, '
                                                          f'or to "" to do without this listener') from None
    server.listeners.append((path, listener, bound))


def _how(server: Server, path: str, slot: Slot) -> dict[str, Any]:
    """What all listeners are told."""
    context: Callable[[], SSLContext] | None = None
    if isinstance(slot, TlsListener):
        contexts = server_contexts(path, slot)
        server.contexts.append((path, contexts))
        context = lambda: contexts.current  # noqa: E731
    return {"context": context, "max_connections": slot.max_connections,
            "all_connections_max": server.connections_max, "origins": server.origins, "guard": server.guard,
            "read_timeout_s": slot.read_timeout, "later": server.loop.call_later}


def _mqtt(server: Server, path: str, slot: MqttSlot) -> Listener:
    broker, session = server.config.broker, server.config.session
    options = FrontOptions(
        packet_bytes_max=broker.max_message_size + limits.PACKET_OVERHEAD_BYTES_MAX,
        receive_max=broker.receive_maximum, inflight_max=session.max_inflight_messages,
        topic_alias_max=broker.topic_alias_max, qos_max=broker.max_qos,
        user_properties_max=broker.max_user_properties,
        retain_available=broker.max_retained_messages > 0, keep_alive_max_s=int(broker.server_keep_alive_max),
        topic_levels_max=broker.max_topic_levels, payload_bytes_max=broker.max_message_size,
        response_information=broker.response_information, write_timeout_ms=int(slot.write_timeout * 1000),
        namespace=slot.namespace)
    front = Front(server.broker, server.authority, options, server.tally, path.removeprefix("server."),
                  version={"auto": 0, "v3": 3, "v5": 5}[slot.protocol],
                  username_from=slot.username_from if isinstance(slot, TlsListener) else "",
                  path=slot.path if isinstance(slot, WebSocketListener | TlsWebSocket) else "",
                  origins=slot.allowed_origins if isinstance(slot, WebSocketListener | TlsWebSocket) else (),
                  guard=server.guard, asking=server.asking, on_log=server.note,
                  log_connections=server.notes.tells_connection, later=server.loop.call_later)
    return Listener(front, server.poller, websocket=isinstance(slot, WebSocketListener | TlsWebSocket),
                    **_how(server, path, slot))


def _amqp091(server: Server, path: str, slot: AmqpSlot) -> AmqpListener:
    config, node = server.config.amqp091, server.amqp091
    options = AmqpOptions(
        frame_max=config.frame_max, channel_max=config.channel_max, heartbeat_s=int(config.heartbeat),
        write_timeout_ms=int(slot.write_timeout * 1000))
    front = AmqpFront(server.hub, server.asking, options, node.tally, node.clients, node.channels,
                      path.removeprefix("server."), find_virtual_host=node.find_virtual_host,
                      username_from=slot.username_from if isinstance(slot, TlsListener) else "",
                      guard=server.guard, on_log=node.notes.say, log_connections=node.notes.tells_connection)
    return AmqpListener(front, server.poller, **_how(server, path, slot))
