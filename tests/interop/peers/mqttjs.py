"""MQTT.js: one node process serves all sessions (mqttjs.js). The npm package is installed into a cache, once."""

from __future__ import annotations

import base64
import itertools
import queue
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from interop.peers.base import TIMEOUT, Endpoint, Library, Message, Options, Properties, Refused, Session
from kit.javascript import Program
from kit.tools import npm_modules

PACKAGE = "mqtt@5"
SCRIPT = Path(__file__).with_suffix(".js")
SCHEMES = {"tcp": "mqtt", "tls": "mqtts", "ws": "ws", "wss": "wss"}


def _text(data: bytes | None) -> str | None:
    return None if data is None else base64.b64encode(data).decode()


def _message(message: Message) -> dict[str, Any]:
    properties = message.properties
    return {
        "topic": message.topic,
        "payload": _text(message.payload),
        "qos": message.qos,
        "retain": message.retain,
        "properties": {
            "user": list(properties.user),
            "response_topic": properties.response_topic,
            "correlation_data": _text(properties.correlation_data),
            "content_type": properties.content_type,
        },
    }


class Node:
    """The process that serves all sessions."""

    def __init__(self, modules: Path) -> None:
        self.inboxes: dict[str, queue.Queue[Message]] = {}
        self._program = Program(SCRIPT, modules, self._message, TIMEOUT)
        self.stop = self._program.stop

    def ask(self, session: str, verb: str, **arguments: Any) -> None:
        """One command and its answer; Refused when the answer is an error."""
        found = self._program.ask(verb, session=session, **arguments)
        if "error" in found:
            raise Refused(found["code"] if isinstance(found["code"], int) else None, found["error"])

    def _message(self, found: dict[str, Any]) -> None:
        message = found["message"]
        properties = message["properties"]
        correlation = properties["correlation_data"]
        self.inboxes[found["session"]].put(Message(
            message["topic"], base64.b64decode(message["payload"]), message["qos"], message["retain"],
            Properties(tuple((key, value) for key, value in properties["user"]), properties["response_topic"],
                       None if correlation is None else base64.b64decode(correlation), properties["content_type"])))


class MqttJsSession(Session):
    def __init__(self, node: Node, name: str, where: Endpoint, options: Options) -> None:
        super().__init__()
        self._node, self._name = node, name
        node.inboxes[name] = self._inbox
        path = "/mqtt" if where.websocket else ""
        # "clean" is clean start in 5.0: an MQTT.js session that reconnects by itself keeps everything only when it is
        # false
        clean = options.clean if options.version == 5 else options.clean_session
        node.ask(
            name,
            "open",
            url=f"{SCHEMES[where.transport]}://{where.host}:{where.port}{path}",
            ca=where.ca,
            cert=where.cert,
            key=where.key,
            client_id=options.client_id,
            version=options.version,
            clean=clean,
            expiry_s=options.expiry_s,
            username=options.username,
            password=options.password,
            filters=options.filters,
            will=None if options.will is None else _message(options.will),
        )

    def publish(self, message: Message) -> None:
        self._node.ask(self._name, "publish", message=_message(message))

    def publish_all(self, topic: str, payloads: Sequence[bytes], qos: int, *, wait: bool = True) -> None:
        self._node.ask(
            self._name, "publish_all", topic=topic, payloads=[_text(payload) for payload in payloads], qos=qos
        )
        if wait:
            self.settle()

    def settle(self) -> None:
        self._node.ask(self._name, "settle")

    def close(self) -> None:
        self._node.ask(self._name, "close")

    def drop(self) -> None:
        self._node.ask(self._name, "drop")


class MqttJs(Library):
    """cache: directory that keeps the installed package."""

    name = "mqttjs"
    transports = ("tcp", "ws", "tls", "wss")
    returns = exactly_once = resumes = npm = True

    def __init__(self, cache: Path) -> None:
        self._cache = self._modules = cache
        self._node: Node | None = None
        self._names = itertools.count(1)

    def need(self) -> None:
        self._modules = npm_modules(self._cache, PACKAGE)

    def open(self, where: Endpoint, options: Options) -> Session:
        if self._node is None:
            self._node = Node(self._modules)
        return MqttJsSession(self._node, f"s{next(self._names)}", where, options)

    def stop(self) -> None:
        if self._node is not None:
            self._node.stop()


__all__ = ["MqttJs"]
