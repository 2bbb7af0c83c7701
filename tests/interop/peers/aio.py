"""aiomqtt: paho's protocol under an interface of async iterators."""
from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Sequence
from typing import Any

import aiomqtt
from interop.peers.base import Endpoint, Library, LoopThread, Message, Options, Refused, Session
from interop.peers.paho import message_from_paho, to_paho
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties as PahoProperties

TOGETHER = 20                   # what paho has in flight


class AiomqttSession(Session):
    """One `aiomqtt.Client` and the task that reads its messages."""

    def __init__(self, thread: LoopThread, where: Endpoint, options: Options) -> None:
        super().__init__()
        self._thread = thread
        thread.run(self._open(where, options))

    async def _open(self, where: Endpoint, options: Options) -> None:
        v5 = options.version == 5
        keywords: dict[str, Any] = {"protocol": aiomqtt.ProtocolVersion.V5 if v5 else aiomqtt.ProtocolVersion.V311}
        if v5:
            properties = PahoProperties(PacketTypes.CONNECT)
            properties.SessionExpiryInterval = options.expiry_s
            keywords |= {"clean_start": options.clean, "properties": properties}
        else:
            keywords |= {"clean_session": options.clean_session}
        if options.will is not None:
            will = options.will
            keywords["will"] = aiomqtt.Will(will.topic, will.payload, will.qos, will.retain,
                                            to_paho(will.properties, PacketTypes.WILLMESSAGE))
        if where.encrypted:
            keywords["tls_context"] = where.context()
        if where.websocket:
            keywords |= {"transport": "websockets", "websocket_path": "/mqtt"}
        self._client = aiomqtt.Client(where.host, where.port, identifier=options.client_id, username=options.username,
                                      password=options.password, **keywords)
        try:
            await self._client.__aenter__()
        except aiomqtt.MqttCodeError as error:
            # the reason code of 5.0; a return code of 3.1.1 comes as paho's reason for it
            raise Refused(getattr(error.rc, "value", error.rc), str(error)) from None
        self._reader = asyncio.get_running_loop().create_task(self._read())
        if options.filters:
            await self._client.subscribe(list(options.filters))

    async def _read(self) -> None:
        with contextlib.suppress(aiomqtt.MqttError):
            async for message in self._client.messages:
                self._inbox.put(message_from_paho(message))

    def publish(self, message: Message) -> None:
        self._thread.run(self._client.publish(message.topic, message.payload, message.qos, message.retain,
                                              to_paho(message.properties)))

    def publish_all(self, topic: str, payloads: Sequence[bytes], qos: int, *, wait: bool = True) -> None:
        async def publish() -> None:
            for at in range(0, len(payloads), TOGETHER):
                await asyncio.gather(*(self._client.publish(topic, payload, qos)
                                       for payload in payloads[at:at + TOGETHER]))

        self._thread.run(publish())

    def close(self) -> None:
        async def close() -> None:
            await self._client.__aexit__(None, None, None)
            self._reader.cancel()

        self._thread.run(close())

    def drop(self) -> None:
        async def drop() -> None:
            self._reader.cancel()
            raw = self._client._client.socket()
            if raw is not None:
                raw.shutdown(socket.SHUT_RDWR)              # type: ignore[union-attr]
                await asyncio.wait({self._client._disconnected})
                self._client._disconnected.exception()      # it is expected

        self._thread.run(drop())


class Aiomqtt(Library):
    name = "aiomqtt"

    def __init__(self) -> None:
        self._thread: LoopThread | None = None

    def open(self, where: Endpoint, options: Options) -> Session:
        self._thread = self._thread or LoopThread()
        return AiomqttSession(self._thread, where, options)

    def stop(self) -> None:
        if self._thread is not None:
            self._thread.stop()


__all__ = ["Aiomqtt"]
