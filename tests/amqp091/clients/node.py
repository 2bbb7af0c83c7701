"""amqplib, of npm: one node process serves all connections (amqplib.js). The package is installed into a cache,
once."""
from __future__ import annotations

import base64
import itertools
import queue
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from amqp091.clients.base import (
    TIMEOUT,
    AmqpError,
    Channel,
    Client,
    Connection,
    Declared,
    Message,
    Publication,
    Returned,
    Table,
    Where,
)
from kit.javascript import Program
from kit.tools import npm_modules

__all__ = ["AmqpLib"]

PACKAGE = "amqplib@2"
SCRIPT = Path(__file__).with_name("amqplib.js")
# The specification's names of properties and amqplib's
CAMEL = {"content_type": "contentType", "content_encoding": "contentEncoding", "headers": "headers",
         "delivery_mode": "deliveryMode", "priority": "priority", "correlation_id": "correlationId",
         "reply_to": "replyTo", "expiration": "expiration", "message_id": "messageId", "timestamp": "timestamp",
         "type": "type", "user_id": "userId", "app_id": "appId"}


class Node:
    """The process that serves all connections. _events: by channel and kind, what the broker sent by itself."""

    def __init__(self, modules: Path) -> None:
        self._events: dict[tuple[str, str], queue.Queue[dict[str, Any]]] = {}
        self.names = (f"n{number}" for number in itertools.count(1))
        self._program = Program(SCRIPT, modules, lambda line: self.events(line["on"], line["event"]).put(line),
                                2 * TIMEOUT)
        self.stop = self._program.stop

    def ask(self, on: str, verb: str, **arguments: Any) -> Any:
        found = self._program.ask(verb, on=on, **arguments)
        if "error" in found:
            raise AmqpError(found["code"] if isinstance(found["code"], int) else 0, found["error"])
        return found["value"]

    def events(self, on: str, event: str) -> queue.Queue[dict[str, Any]]:
        """One, whichever of the two threads asks for it first."""
        return self._events.setdefault((on, event), queue.Queue())

    def next(self, on: str, event: str) -> dict[str, Any]:
        try:
            return self.events(on, event).get(timeout=TIMEOUT)
        except queue.Empty:
            raise AssertionError(f"{event} did not come") from None


def _message(found: dict[str, Any]) -> Message:
    fields, given = found["fields"], found["properties"]
    return Message(base64.b64decode(found["body"]),
                   {name: given[camel] for name, camel in CAMEL.items() if given.get(camel) is not None},
                   fields["exchange"], fields["routingKey"], fields.get("deliveryTag", 0),
                   fields.get("redelivered", False), fields.get("consumerTag") or "", fields.get("messageCount", -1))


class NodeChannel(Channel):
    def __init__(self, node: Node, connection: str, *, confirms: bool) -> None:
        self._node, self._name, self._confirms = node, next(node.names), confirms
        node.ask(connection, "channel", name=self._name, confirms=confirms)

    def _ask(self, verb: str, **arguments: Any) -> Any:
        return self._node.ask(self._name, verb, **arguments)

    def exchange_declare(self, name: str, type_: str = "direct", *, durable: bool = False, auto_delete: bool = False,
                         internal: bool = False, passive: bool = False, arguments: Table = None) -> None:
        self._ask("exchange_declare", name=name, type=type_, passive=passive,
                  options={"durable": durable, "autoDelete": auto_delete, "internal": internal,
                           "arguments": arguments or {}})

    def exchange_delete(self, name: str, *, if_unused: bool = False) -> None:
        self._ask("exchange_delete", name=name, options={"ifUnused": if_unused})

    def exchange_bind(self, destination: str, source: str, key: str = "", arguments: Table = None) -> None:
        self._ask("exchange_bind", destination=destination, source=source, key=key, arguments=arguments or {})

    def exchange_unbind(self, destination: str, source: str, key: str = "", arguments: Table = None) -> None:
        self._ask("exchange_unbind", destination=destination, source=source, key=key, arguments=arguments or {})

    def queue_declare(self, name: str = "", *, durable: bool = False, exclusive: bool = False,
                      auto_delete: bool = False, passive: bool = False, arguments: Table = None) -> Declared:
        found = self._ask("queue_declare", name=name, passive=passive,
                          options={"durable": durable, "exclusive": exclusive, "autoDelete": auto_delete,
                                   "arguments": arguments or {}})
        return Declared(found["queue"], found["messageCount"], found["consumerCount"])

    def queue_bind(self, queue: str, exchange: str, key: str = "", arguments: Table = None) -> None:
        self._ask("queue_bind", queue=queue, exchange=exchange, key=key, arguments=arguments or {})

    def queue_unbind(self, queue: str, exchange: str, key: str = "", arguments: Table = None) -> None:
        self._ask("queue_unbind", queue=queue, exchange=exchange, key=key, arguments=arguments or {})

    def queue_purge(self, queue: str) -> int:
        return self._ask("queue_purge", queue=queue)["messageCount"]

    def queue_delete(self, queue: str, *, if_unused: bool = False, if_empty: bool = False) -> int:
        found = self._ask("queue_delete", queue=queue, options={"ifUnused": if_unused, "ifEmpty": if_empty})
        return found["messageCount"]

    def qos(self, count: int, *, everybody: bool = False) -> None:
        self._ask("qos", count=count, everybody=everybody)

    def consume(self, queue: str, *, tag: str = "", no_ack: bool = False, exclusive: bool = False,
                no_local: bool = False, arguments: Table = None) -> str:
        return self._ask("consume", queue=queue,
                         options={"consumerTag": tag, "noAck": no_ack, "exclusive": exclusive, "noLocal": no_local,
                                  "arguments": arguments or {}})

    def cancel(self, tag: str) -> None:
        self._ask("cancel", tag=tag)

    def receive(self) -> Message:
        return _message(self._node.next(self._name, "message"))

    def get(self, queue: str, *, no_ack: bool = True) -> Message | None:
        found = self._ask("get", queue=queue, no_ack=no_ack)
        return None if found is None else _message(found)

    def ack(self, tag: int, *, multiple: bool = False) -> None:
        self._ask("ack", tag=tag, multiple=multiple)

    def nack(self, tag: int, *, multiple: bool = False, requeue: bool = True) -> None:
        self._ask("nack", tag=tag, multiple=multiple, requeue=requeue)

    def reject(self, tag: int, *, requeue: bool = True) -> None:
        self._ask("reject", tag=tag, requeue=requeue)

    def recover(self) -> None:
        self._ask("recover")

    def _publication(self, publication: Publication, *, mandatory: bool = False) -> dict[str, Any]:
        exchange, key, body, properties = publication
        options = {CAMEL[name]: value for name, value in properties.items()} | {"mandatory": mandatory}
        return {"exchange": exchange, "key": key, "body": base64.b64encode(body).decode(), "options": options,
                "confirms": self._confirms}

    def publish(self, exchange: str, key: str, body: bytes = b"", properties: Table = None, *,
                mandatory: bool = False) -> bool:
        return self._ask("publish", **self._publication(Publication(exchange, key, body, properties or {}),
                                                        mandatory=mandatory))

    def publish_all(self, publications: Sequence[Publication]) -> list[bool]:
        return self._ask("publish_all", all=[self._publication(publication) for publication in publications])

    def publish_and_close(self, publications: Sequence[Publication]) -> None:
        self._ask("publish_and_close", all=[self._publication(publication) for publication in publications])

    def returned(self) -> Returned:
        found = self._node.next(self._name, "returned")
        fields = found["fields"]
        return Returned(fields["replyCode"], fields["replyText"], fields["exchange"], fields["routingKey"],
                        base64.b64decode(found["body"]))

    def was_returned(self) -> bool:
        return not self._node.events(self._name, "returned").empty()

    def cancelled(self) -> str:
        return self._node.next(self._name, "cancelled")["tag"]

    def tx_select(self) -> None:
        raise AssertionError("amqplib has none")

    tx_commit = tx_rollback = tx_select

    def closed(self) -> AmqpError:
        found = self._node.next(self._name, "closed")
        return AmqpError(found["code"], found["text"])

    def close(self) -> None:
        self._ask("close")


class NodeConnection(Connection):
    def __init__(self, node: Node, where: Where) -> None:
        self._node, self._name = node, next(node.names)
        self._capabilities = node.ask(self._name, "connect", options={
            "protocol": "amqp", "hostname": where.host, "port": where.port, "vhost": where.vhost,
            "username": where.user, "password": where.password, "heartbeat": where.heartbeat})

    def channel(self, *, confirms: bool = False) -> Channel:
        return NodeChannel(self._node, self._name, confirms=confirms)

    def close(self) -> None:
        try:
            self._node.ask(self._name, "close")
        except AmqpError as error:
            if error.code != 0:
                raise

    def drop(self) -> None:
        self._node.ask(self._name, "drop")

    @property
    def capabilities(self) -> dict[str, Any]:
        return self._capabilities


class AmqpLib(Client):
    name = "amqplib"
    lacks = frozenset({"tx", "mode_switch"})
    npm = True

    def __init__(self, cache: Path) -> None:
        self._cache = self._modules = cache
        self._node: Node | None = None

    def need(self) -> None:
        self._modules = npm_modules(self._cache, PACKAGE)

    def connect(self, where: Where) -> Connection:
        if self._node is None:
            self._node = Node(self._modules)
        return NodeConnection(self._node, where)

    def stop(self) -> None:
        if self._node is not None:
            self._node.stop()
