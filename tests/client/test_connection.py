"""One connection of the client against a broker: both versions, all QoS, TLS, acknowledging by hand, its end."""
from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from kit.broker import Broker
from kit.certs import issue, make_ca

from fluxmq.client import (
    Connection,
    ConnectionLost,
    ConnectOptions,
    Message,
    NotConnected,
    Properties,
    Will,
    WindowFull,
)
from fluxmq.client.errors import UsageError

Run = Callable[[Any], Any]
VERSIONS = (3, 4, 5)


class Inbox:
    """What came, to be waited for."""

    def __init__(self) -> None:
        self.messages: asyncio.Queue[Message] = asyncio.Queue()

    def __call__(self, message: Message) -> None:
        self.messages.put_nowait(message)

    async def get(self) -> Message:
        return await self.messages.get()


async def asked(verb: Callable[..., Any], *args: Any) -> tuple[Any, ...]:
    """Call subscribe, unsubscribe or ping, and wait for the answer."""
    answer: asyncio.Future[tuple[Any, ...]] = asyncio.get_running_loop().create_future()
    verb(*args, lambda *said: answer.set_result(said))
    return await answer


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_publish_and_receive(run: Run, address: str, topic: str, version: int, qos: int) -> None:
    async def body() -> None:
        inbox = Inbox()
        connection = await Connection.open(address, ConnectOptions(client_id=topic, version=version), on_message=inbox)
        assert connection.connack.reason == 0 and not connection.connack.session_present
        packet_id, codes = await asked(connection.subscribe, [(f"{topic}/+", qos)])
        assert packet_id == 1 and codes == [qos]
        done: asyncio.Queue[tuple[int, int]] = asyncio.Queue()
        sent = []
        for number in range(300):
            sent.append(connection.publish(f"{topic}/x", str(number), qos, done=lambda i, r: done.put_nowait((i, r))))
        for number in range(300):
            message = await inbox.get()
            assert (message.topic, message.payload, message.qos) == (f"{topic}/x".encode(), str(number).encode(), qos)
            assert message.acknowledged == (qos > 0)
        if qos:
            assert sorted(packet_id for packet_id, _ in [await done.get() for _ in sent]) == sorted(sent)
        await asked(connection.ping)
        assert connection.window == connection.receive_maximum
        await asked(connection.unsubscribe, [f"{topic}/+"])
        connection.publish(f"{topic}/x", b"nobody", qos)
        await asked(connection.ping)
        assert inbox.messages.empty()
        connection.disconnect()
        await connection.closed()

    run(body())


def test_properties_both_ways(run: Run, address: str, topic: str) -> None:
    async def body() -> None:
        inbox = Inbox()
        connection = await Connection.open(address, ConnectOptions(topic_alias_maximum=10, topic_aliases=2),
                                           on_message=inbox)
        await asked(connection.subscribe, [(f"{topic}/#", 1)])
        sent = Properties(content_type="text/plain", correlation_data=b"\1", user=[("a", "1"), ("a", "2")])
        for given in (sent, sent.wire(), list(sent)):
            for name in ("x", "y", "z", "x"):
                connection.publish(f"{topic}/{name}", b"p", 1, properties=given)
        for name in ("x", "y", "z", "x") * 3:
            message = await inbox.get()
            got = message.parsed()
            assert message.topic == f"{topic}/{name}".encode()
            assert got.content_type == "text/plain" and got.correlation_data == b"\1"
            assert got.user == [("a", "1"), ("a", "2")] and got.user_dict == {"a": "2"}
        with pytest.raises(UsageError, match="by hand"):
            connection.publish(topic, b"", properties=Properties(topic_alias=1))
        with pytest.raises(UsageError, match="properties must be those of a PUBLISH"):
            connection.publish(topic, b"", properties=b"\xff")
        connection.disconnect()
        await connection.closed()

    run(body())


def test_the_window_is_the_servers(run: Run, address: str, topic: str) -> None:
    async def body() -> None:
        connection = await Connection.open(address, ConnectOptions(max_inflight=3))
        reasons: asyncio.Queue[int] = asyncio.Queue()
        for _ in range(3):
            connection.publish(topic, b"", 2, done=lambda _, reason: reasons.put_nowait(reason))
        assert connection.window == 0
        with pytest.raises(WindowFull, match="takes 3 at a time"):
            connection.publish(topic, b"", 1)
        assert connection.publish(topic, b"", 0) == 0        # QoS 0 has no window
        for _ in range(3):
            await reasons.get()
        assert connection.window == 3
        connection.disconnect()
        await connection.closed()

    run(body())


@pytest.mark.parametrize("qos", [1, 2])
def test_acknowledging_by_hand(run: Run, address: str, topic: str, qos: int) -> None:
    """The broker sends no more than the Receive Maximum until something is acknowledged; what is not comes again."""

    async def body() -> None:
        inbox = Inbox()
        options = ConnectOptions(client_id=topic, clean_start=False, session_expiry_s=60, receive_maximum=2)
        connection = await Connection.open(address, options, on_message=inbox, manual_ack=True)
        await asked(connection.subscribe, [(topic, qos)])
        for number in range(3):
            connection.publish(topic, bytes([number]), qos)
        first, second = await inbox.get(), await inbox.get()
        await asked(connection.ping)
        assert inbox.messages.empty()
        assert connection.acknowledge(first) and not connection.acknowledge(first)
        third = await inbox.get()
        assert (second.payload, third.payload) == (b"\1", b"\2")
        await asked(connection.ping)
        connection.abort()
        await connection.closed()
        again = await Connection.open(address, options, on_message=inbox, manual_ack=True, session=connection.session)
        assert again.connack.session_present
        repeated = [await inbox.get(), await inbox.get()]
        assert [(message.payload, message.dup) for message in repeated] == [(b"\1", True), (b"\2", True)]
        assert not again.acknowledge(second)                # of the connection before
        assert all([again.acknowledge(message) for message in repeated])
        await asked(again.ping)
        again.disconnect()
        await again.closed()

    run(body())


def test_tls_and_a_name_that_does_not_fit(run: Run, tmp_path: Path) -> None:
    authority = make_ca(tmp_path)
    certificate, key = issue(authority, "broker", dns=["localhost"], ip=["127.0.0.1"])
    broker = Broker(tmp_path / "broker", {"server.mqtt.tcp.tls.addr": "127.0.0.1:0",
                                          "server.mqtt.tcp.tls.cert_file": certificate,
                                          "server.mqtt.tcp.tls.key_file": key}).start()
    context = ssl.create_default_context(cafile=str(authority.cert_file))

    async def body() -> None:
        address = "mqtts://{}:{}".format(*broker.addresses["mqtt/tcp/tls"])
        inbox = Inbox()
        connection = await Connection.open(address, on_message=inbox, tls=context)
        await asked(connection.subscribe, [("tls", 1)])
        payload = bytes(range(256)) * 2000
        connection.publish("tls", payload, 1)
        assert (await inbox.get()).payload == payload
        connection.disconnect()
        await connection.closed()
        with pytest.raises(ssl.SSLCertVerificationError):
            await Connection.open(address, tls=context, server_name="another.example")

    try:
        run(body())
        broker.check()
    finally:
        broker.stop()


def test_much_is_bounded_and_all_of_it_arrives(run: Run, address: str, topic: str) -> None:
    async def body() -> None:
        inbox = Inbox()
        connection = await Connection.open(address, on_message=inbox)
        await asked(connection.subscribe, [(topic, 2)])
        for number in range(60):
            connection.publish(topic, number.to_bytes(4, "big") * 100_000, 2)
            if not connection.writable:
                await connection.drain()
        for number in range(60):
            assert (await inbox.get()).payload == number.to_bytes(4, "big") * 100_000
        connection.disconnect()
        await connection.closed()

    run(body())


def test_how_it_ends(run: Run, address: str, topic: str) -> None:
    """A disconnect, an abort, a session taken over: on_closed hears each, once; the will is published or not."""

    async def body() -> None:
        ends: asyncio.Queue[tuple[BaseException | None, int]] = asyncio.Queue()
        inbox = Inbox()
        watcher = await Connection.open(address, on_message=inbox)
        await asked(watcher.subscribe, [(topic, 0)])

        async def another() -> Connection:
            options = ConnectOptions(client_id=topic, will=Will(topic, b"gone"))
            return await Connection.open(address, options, on_closed=lambda error, why: ends.put_nowait((error, why)))

        connection = await another()
        connection.disconnect()
        assert await ends.get() == (None, 0)
        with pytest.raises(NotConnected):
            connection.publish(topic, b"")
        connection = await another()
        connection.abort()
        assert await ends.get() == (None, 0)
        assert (await inbox.get()).payload == b"gone"
        first = await another()
        second = await another()
        error, reason = await ends.get()
        assert isinstance(error, ConnectionLost) and reason == 0x8E and "taken over" in str(error)
        with pytest.raises(ConnectionLost):
            await first.drain()
        second.disconnect()
        assert await ends.get() == (None, 0)
        watcher.disconnect()
        await watcher.closed()
        assert ends.empty()

    run(body())


def test_what_the_opening_raises(run: Run, address: str) -> None:
    async def body() -> None:
        with pytest.raises(UsageError, match="is no address"):
            await Connection.open("http://localhost")
        with pytest.raises(OSError):
            await Connection.open("127.0.0.1:1")
        with pytest.raises(OSError):
            await Connection.open("unix:/nowhere/at/all")
        with pytest.raises(UsageError, match="need MQTT 5"):
            await Connection.open(address, ConnectOptions(version=4, topic_alias_maximum=4))
        with pytest.raises(UsageError, match="empty client_id"):
            await Connection.open(address, ConnectOptions(version=4, clean_start=False))

    run(body())


@pytest.mark.parametrize(("given", "why"), [
    (dict(topic="a/+"), "without wildcards"), (dict(topic=""), "without wildcards"),
    (dict(topic="\ud800"), "surrogate"),
    (dict(topic=b"\xff"), "UTF-8"), (dict(qos=3), "qos must be"), (dict(qos=-1), "qos must be"),
    (dict(payload=5), "memoryview|bytes-like"), (dict(payload=bytes(2_000_000), qos=1), "server takes"),
])
def test_what_cannot_be_published_changes_nothing(run: Run, address: str, given: dict[str, Any], why: str) -> None:
    async def body() -> None:
        connection = await Connection.open(address)
        with pytest.raises((UsageError, TypeError), match=why):
            connection.publish(**{"topic": "a", "payload": b"", "qos": 1} | given)
        await asked(connection.ping)
        assert connection.window == connection.receive_maximum
        connection.disconnect()
        await connection.closed()

    run(body())
