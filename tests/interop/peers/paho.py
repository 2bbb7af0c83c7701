"""Eclipse Paho for Python, with its own thread."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections.abc import Sequence
from typing import Any

import paho.mqtt.client as mqtt
from interop.peers.base import TIMEOUT, Endpoint, Library, Message, Options, Properties, Refused, Session
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties as PahoProperties

INFLIGHT = 200


def to_paho(properties: Properties, kind: int = PacketTypes.PUBLISH) -> PahoProperties | None:
    """None when there are none."""
    if not properties:
        return None
    made = PahoProperties(kind)
    if properties.user:
        made.UserProperty = list(properties.user)
    if properties.response_topic is not None:
        made.ResponseTopic = properties.response_topic
    if properties.correlation_data is not None:
        made.CorrelationData = properties.correlation_data
    if properties.content_type is not None:
        made.ContentType = properties.content_type
    return made


def from_paho(properties: Any) -> Properties:
    """Of a received message; None in 3.1.1."""
    if properties is None:
        return Properties()
    return Properties(
        tuple(getattr(properties, "UserProperty", ())),
        getattr(properties, "ResponseTopic", None),
        getattr(properties, "CorrelationData", None),
        getattr(properties, "ContentType", None),
    )


def message_from_paho(message: Any) -> Message:
    return Message(
        str(message.topic), bytes(message.payload), message.qos, bool(message.retain), from_paho(message.properties),
        getattr(message, "dup", None),      # aiomqtt does not say
    )


class Client(mqtt.Client):
    """Remembers over any number of attempts to come back that a PUBREL was under way. At its second attempt paho 2.1
    forgets it and sends that PUBLISH again, which [MQTT-4.3.3-6] forbids and no broker can tell from a new message; and
    a broker that is being killed may take the first attempt and drop it.

    answered: set when CONNACK has been dealt with: what had not been acknowledged has been sent again. on_connect comes
    before that, and what is published then goes ahead of it."""

    def __init__(self, *words: Any, **options: Any) -> None:
        super().__init__(*words, **options)
        self.answered = threading.Event()

    def _handle_connack(self) -> mqtt.MQTTErrorCode:
        try:
            return super()._handle_connack()
        finally:
            self.answered.set()

    def _reconnect_wait(self) -> None:
        time.sleep(0.05)

    def _messages_reconnect_reset_out(self) -> None:
        released = [one for one in self._out_messages.values() if one.state == mqtt.mqtt_ms_resend_pubrel]
        super()._messages_reconnect_reset_out()
        for one in released:
            one.state = mqtt.mqtt_ms_resend_pubrel


class PahoSession(Session):
    """The events wait for what the network thread reports."""

    def __init__(self, where: Endpoint, options: Options) -> None:
        super().__init__()
        v5 = options.version == 5
        self._subscribed, self._code = threading.Event(), 0
        self._waiting: list[mqtt.MQTTMessageInfo] = []
        clean = {} if v5 else {"clean_session": options.clean_session}
        self.client = client = Client(
            mqtt.CallbackAPIVersion.VERSION2,
            options.client_id,
            protocol=mqtt.MQTTv5 if v5 else mqtt.MQTTv311,
            transport="websockets" if where.websocket else "tcp",
            **clean,
        )
        client.max_inflight_messages_set(INFLIGHT)
        if where.websocket:
            client.ws_set_options(path="/mqtt")
        if where.encrypted:
            client.tls_set_context(where.context())
        if options.username is not None:
            client.username_pw_set(options.username, options.password)
        if options.will is not None:
            will = options.will
            client.will_set(
                will.topic, will.payload, will.qos, will.retain, to_paho(will.properties, PacketTypes.WILLMESSAGE)
            )
        client.on_connect = self._on_connect
        client.on_disconnect = lambda *args: client.answered.clear()
        client.on_message = lambda client, data, message: self._inbox.put(message_from_paho(message))
        client.on_subscribe = lambda *args: self._subscribed.set()
        self._started: dict[str, Any] = {}
        if v5:
            properties = PahoProperties(PacketTypes.CONNECT)
            properties.SessionExpiryInterval = options.expiry_s
            self._started = {"clean_start": options.clean, "properties": properties}
        self.go_on(where)
        if options.filters:
            client.subscribe(list(options.filters))
            assert self._subscribed.wait(TIMEOUT), "no SUBACK"

    def go_on(self, where: Endpoint) -> None:
        self.client.answered.clear()
        self.client.connect(where.host, where.port, **self._started)
        self.client.loop_start()
        if not self.client.answered.wait(TIMEOUT):
            raise TimeoutError("no CONNACK")
        if self._code:
            self.client.loop_stop()
            raise Refused(self._code)

    def _on_connect(self, client: mqtt.Client, data: Any, flags: Any, reason: Any, properties: Any) -> None:
        self._code = reason.value

    def publish(self, message: Message) -> None:
        # What is published before paho is back after a restart is sent, but reported as an error.
        assert self.client.answered.wait(TIMEOUT), "not connected again"
        info = self.client.publish(
            message.topic, message.payload, message.qos, message.retain, to_paho(message.properties)
        )
        info.wait_for_publish(TIMEOUT)
        assert info.is_published()

    def publish_all(self, topic: str, payloads: Sequence[bytes], qos: int, *, wait: bool = True) -> None:
        self._waiting += [self.client.publish(topic, payload, qos) for payload in payloads]
        if wait:
            self.settle()

    def settle(self) -> None:
        for info in self._waiting:
            info.wait_for_publish(TIMEOUT)
            assert info.is_published()
        self._waiting.clear()

    def close(self) -> None:
        self.client.disconnect()
        self.client.loop_stop()

    def drop(self) -> None:
        # shut at the descriptor: the thread wakes, sees the end of the stream, and that it is not wanted any more
        self.client._thread_terminate = True
        raw = self.client.socket()
        if raw is not None:
            with contextlib.suppress(OSError), socket.socket(fileno=os.dup(raw.fileno())) as twin:
                twin.shutdown(socket.SHUT_RDWR)
        self.client.loop_stop()


class Paho(Library):
    name = "paho"
    transports = ("tcp", "ws", "tls", "wss")
    returns = exactly_once = resumes = hops = remembers = True

    def open(self, where: Endpoint, options: Options) -> Session:
        return PahoSession(where, options)


__all__ = ["Paho", "message_from_paho", "to_paho"]
