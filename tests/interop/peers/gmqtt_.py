"""gmqtt: an implementation of its own on asyncio."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import gmqtt
from gmqtt.mqtt.constants import MQTTv50, MQTTv311
from interop.peers.base import TIMEOUT, Endpoint, Library, LoopThread, Message, Options, Properties, Refused, Session

AGAIN = {"reconnect_retries": -1}
NEVER_AGAIN = {"reconnect_retries": -2}  # stop_reconnect() still leaves it one attempt; -1 is "for ever"


def _keywords(properties: Properties) -> dict[str, Any]:
    found: dict[str, Any] = {
        "user_property": list(properties.user) or None,
        "response_topic": properties.response_topic,
        "correlation_data": properties.correlation_data,
        "content_type": properties.content_type,
    }
    return {name: value for name, value in found.items() if value is not None}


def _properties(found: dict[str, Any]) -> Properties:
    one = {name: found[name][0] for name in ("response_topic", "correlation_data", "content_type") if name in found}
    return Properties(tuple((key, value) for key, value in found.get("user_property", ())), **one)


class GmqttSession(Session):
    """One `gmqtt.Client`. It counts on its storage to know what is not acknowledged yet."""

    def __init__(self, thread: LoopThread, where: Endpoint, options: Options) -> None:
        super().__init__()
        self._thread = thread
        thread.run(self._open(where, options))

    async def _open(self, where: Endpoint, options: Options) -> None:
        v5 = options.version == 5
        will = None
        if options.will is not None:
            will = gmqtt.Message(options.will.topic, options.will.payload, options.will.qos, options.will.retain)
        self._storage = gmqtt.client.PersistentStorage()
        keywords = {"session_expiry_interval": options.expiry_s} if v5 else {}
        self._client = client = gmqtt.Client(
            options.client_id,
            clean_session=options.clean if v5 else options.clean_session,
            will_message=will,
            persistent_storage=self._storage,
            **keywords,
        )
        if options.username is not None:
            client.set_auth_credentials(options.username, options.password)
        client.set_config({"reconnect_delay": 0.1})
        client.on_message = self._on_message
        subscribed = asyncio.Event()
        client.on_subscribe = lambda *args: subscribed.set()
        self._version = MQTTv50 if v5 else MQTTv311
        await self._connect(where)
        if options.filters:
            client.subscribe([gmqtt.Subscription(filter_, qos) for filter_, qos in options.filters])
            await asyncio.wait_for(subscribed.wait(), TIMEOUT)

    async def _connect(self, where: Endpoint) -> None:
        try:
            await self._client.connect(
                where.host,
                where.port,
                ssl=where.context() if where.encrypted else False,
                version=self._version,
            )
        except gmqtt.mqtt.handler.MQTTConnectError as error:
            self._client.set_config(NEVER_AGAIN)
            raise Refused(error._code, str(error)) from None

    def go_on(self, where: Endpoint) -> None:
        self._client.set_config(AGAIN)
        self._thread.run(self._connect(where))

    def _on_message(self, client: Any, topic: str, payload: bytes, qos: int, properties: dict[str, Any]) -> int:
        self._inbox.put(Message(topic, payload, qos, bool(properties.get("retain")), _properties(properties),
                                bool(properties.get("dup"))))
        return 0

    def publish(self, message: Message) -> None:
        async def publish() -> None:
            self._client.publish(
                message.topic, message.payload, message.qos, message.retain, **_keywords(message.properties)
            )
            await self._storage.wait_empty()

        self._thread.run(publish())

    def publish_all(self, topic: str, payloads: Sequence[bytes], qos: int, *, wait: bool = True) -> None:
        async def publish() -> None:
            for payload in payloads:
                while True:
                    try:
                        self._client.publish(topic, payload, qos)
                        break
                    except OverflowError:  # as many as the broker's Receive Maximum are on their way
                        await asyncio.sleep(0.01)
                await asyncio.sleep(0)
            await self._storage.wait_empty()

        self._thread.run(publish())

    def close(self) -> None:
        self._thread.run(self._client.disconnect())

    def drop(self) -> None:
        async def drop() -> None:
            self._client.set_config(NEVER_AGAIN)
            self._client._connection._transport.abort()
            # Until it has found that it shall not come back.
            await self._client._connection_lost.wait()
            await asyncio.sleep(0.01)

        self._thread.run(drop())


class Gmqtt(Library):
    name = "gmqtt"
    returns = hops = True

    def __init__(self) -> None:
        self._thread: LoopThread | None = None

    def open(self, where: Endpoint, options: Options) -> Session:
        self._thread = self._thread or LoopThread()
        return GmqttSession(self._thread, where, options)

    def stop(self) -> None:
        if self._thread is not None:
            self._thread.stop()


__all__ = ["Gmqtt"]
