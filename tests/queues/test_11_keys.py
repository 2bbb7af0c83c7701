"""Every key of an entry of `queues:`, seen to do what it says: with one value this happens, with another that.

A key without an entry in KEYS fails, and so does an entry without a key.
"""
from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from kit.broker import Broker, add_user
from kit.client import Client
from kit.watch import metrics, wait_until
from oracle.mqtt import Publish, Suback, Subscribe
from queues.conftest import consume, order, put, take, users

from fluxmq.app.admin_client import AdminClient, AdminError
from fluxmq.model.entry_keys import QUEUE_KEYS

Start = Callable[..., Broker]
Connect = Callable[..., Client]


class Bench:
    """What a key is looked at with. Each `queue` or `queues` is a broker of its own.

    start: a broker as it ships; start_node: one that looks at its queues twenty times a second (crash/small_node.py).
    """

    def __init__(self, start: Start, start_node: Start, connect: Connect, folder: Path) -> None:
        self.start, self.start_node, self.connect, self.folder = start, start_node, connect, folder
        self.brokers = 0
        self.broker: Broker

    def queue(self, **spec: Any) -> Client:
        """A broker with a queue q that is so; a client of it."""
        return self.queues(q=spec)

    def queues(self, start: Start | None = None, **specs: dict[str, Any]) -> Client:
        """A broker with these; name: what it is."""
        self.brokers += 1
        self.broker = (start or self.start)(*({"name": name} | spec for name, spec in specs.items()),
                                            **{"server.admin_socket": str(self.folder / f"s{self.brokers}")})
        return self.connect(self.broker)

    def client(self) -> Client:
        return self.connect(self.broker)

    def row(self, name: str = "q") -> dict[str, Any]:
        answer: dict[str, Any] = AdminClient(self.folder / f"s{self.brokers}").ask("GET", "queues", name)
        return answer

    def is_there(self, name: str) -> bool:
        try:
            return bool(self.row(name))
        except AdminError:
            return False


def numbers(count: int) -> list[bytes]:
    return [b"%d" % number for number in range(count)]


def name(bench: Bench) -> None:
    put(bench.queue(name="other"), "other", b"x")
    put(bench.client(), "q", b"x", expect=0x90)


def type_(bench: Bench) -> None:
    for value, messages in (("classic", 0), ("stream", 3)):
        client = bench.queue(type=value)
        consume(client, "q", offset="first")
        put(bench.client(), "q", *numbers(3))
        for payload in numbers(3):
            client.receive(payload=payload)
        client.expect_quiet()
        assert bench.row()["messages"] == messages


def topics(bench: Bench) -> None:
    for value, messages in (([], 0), (["a/+", "a/b"], 1)):
        bench.queue(topics=value).publish("a/b", b"x", 1)
        assert bench.row()["messages"] == messages


def partitions(bench: Bench) -> None:
    for value in (1, 3):
        put(bench.queue(partitions=value), "q", *numbers(3))
        assert [part["messages"] for part in bench.row()["partition_list"]] == [3 // value] * value


def max_priority(bench: Bench) -> None:
    for value, first in ((0, b"low"), (2, b"high")):
        client = bench.queue(max_priority=value)
        put(client, "q", b"low", priority=0)
        put(client, "q", b"high", priority=9)
        consume(client, "q", prefetch=1)
        assert client.receive().payload == first


def capture(bench: Bench) -> None:
    for value, reason in (("on", 0), ("confirmed", 0x97)):
        client = bench.queue(capture=value, topics=["t"], limits={"max_depth": 1})
        for answer in (0, reason):
            client.publish("t", b"x", 1, expect=answer)


def overflow(bench: Bench) -> None:
    for value, answer, kept in (("reject-publish", 0x97, b"old"), ("drop-head", 0, b"new")):
        client = bench.queue(overflow=value, limits={"max_depth": 1})
        put(client, "q", b"old")
        put(client, "q", b"new", expect=answer)
        consume(client, "q")
        take(client, kept)


def expires_after(bench: Bench) -> None:
    """Of queues that are not in the configuration, and only when nobody consumes."""
    client = bench.queue()
    admin = AdminClient(bench.folder / f"s{bench.brokers}")
    for number, value in enumerate(("1ms", "1h")):
        admin.ask("PUT", "queues", f"e{number}", body={"type": "ephemeral", "expires_after": value})
    held = [0x8F]
    while held == [0x8F]:                   # it may be gone before its consumer comes
        admin.ask("PUT", "queues", "used", body={"type": "ephemeral", "expires_after": "1ms"})
        packet_id = client.next_packet_id()
        client.send(Subscribe(packet_id=packet_id, filters=[("$queue/used", 1)]))
        held = client.answer(Suback, packet_id=packet_id).reasons
    assert held == [1]
    wait_until(lambda: not bench.is_there("e0"))
    assert bench.is_there("e1")
    put(client, "used", b"still there")


def retention(key: str, low: object, high: object) -> Callable[[Bench], None]:
    def observe(bench: Bench) -> None:
        """The last is what retention looks at in the same round or later, seen to be looked at."""
        kinds = {"high": {key: high}, "all": {key: 0}, "low": {key: low}, "mark": {"max_length_messages": 1}}
        client = bench.queues(bench.start_node, **{name: {"type": "stream", "retention": kept}
                                                   for name, kept in kinds.items()})
        for name in ("high", "all", "low"):
            put(client, name, *[bytes(1000)] * 20)
        wait_until(lambda: bench.row("low")["messages"] < 20)
        for _ in range(2):                  # the first round may have begun before all was there
            put(client, "mark", *numbers(2))
            wait_until(lambda: bench.row("mark")["messages"] == 1)
        assert bench.row("high")["messages"] == bench.row("all")["messages"] == 20
    return observe


def limit(key: str, value: object, payload: bytes) -> Callable[[Bench], None]:
    def observe(bench: Bench) -> None:
        for given, answer in ((value, 0x97), (0, 0)):
            client = bench.queue(limits={key: given})
            put(client, "q", b"x")
            put(client, "q", payload, expect=answer)
    return observe


def message_ttl(bench: Bench) -> None:
    for value, payload in (("1ms", None), ("1h", b"x")):
        client = bench.queue(limits={"message_ttl": value})
        put(client, "q", b"x")
        if payload is None:
            time.sleep(0.01)                # all of it happens within one millisecond else
            consume(client, "q.dlq")
            consumer = bench.client()
            consume(consumer, "q")
            assert users(client.receive(payload=b"x"))["x-death-reason"] == "expired"
        else:
            consume(client, "q")
            take(client, payload)


def max_retries(bench: Bench) -> None:
    for value, deliveries in ((1, 2), (3, 4)):
        client = bench.queue(retry={"max_retries": value})
        put(client, "q", b"x")
        consume(client, "q", ack="manual")
        for _ in range(deliveries):
            order(client, "nack", client.receive(), delay=0)
        client.expect_quiet()
        assert bench.row("q.dlq")["messages"] == 1


def backoff(*retries: dict[str, object]) -> Callable[[Bench], None]:
    """With the first of two ways to retry the third delivery comes soon; when it has, that of the other has not."""
    def observe(bench: Bench) -> None:
        client = bench.queues(late={"retry": retries[1]}, soon={"retry": retries[0]})
        for queue, retry in zip(("late", "soon"), reversed(retries), strict=True):
            put(client, queue, b"x")
            consume(client, queue, ack="manual")
            packet = client.receive()
            order(client, "nack", packet, **({"delay": 0} if "multiplier" not in retry else {}))
            order(client, "nack", client.receive())
        assert users(client.expect(Publish, payload=b"x"))["queue"] == "soon"
        client.expect_nothing()
    return observe


def visibility_timeout(bench: Bench) -> None:
    client = bench.queues(late={"retry": {"visibility_timeout": "1h"}}, never={"retry": {"visibility_timeout": "0s"}},
                          soon={"retry": {"visibility_timeout": "200ms"}})
    for queue in ("late", "never", "soon"):
        put(client, queue, b"x")
        consume(client, queue)
        take(client, b"x")
    for _ in range(2):
        assert users(client.expect(Publish, payload=b"x"))["queue"] == "soon"      # the others would come first


def dlq(key: str, *values: tuple[object, str]) -> Callable[[Bench], None]:
    def observe(bench: Bench) -> None:
        for value, place in values:
            client = bench.queue(dlq={key: value})
            put(client, "q", b"x")
            consume(client, "q", ack="manual")
            order(client, "reject", client.receive())
            assert {name for name in ("q.dlq", "lost") if bench.is_there(name)} == ({place} if place else set())
            assert metrics(bench.broker)['fluxmq_queue_died_total{queue="q",reason="rejected"}'] == 1
    return observe


def namespace(bench: Bench) -> None:
    bench.brokers += 1
    bench.broker = bench.start({"name": "q", "namespace": "tenant"}, {"name": "q"}, **{
        "server.admin_socket": str(bench.folder / f"s{bench.brokers}"), "amqp091.virtual_hosts": ["/", "tenant"]})
    bench.client().publish("$queue/q", b"x", qos=1)
    assert (bench.row("q")["messages"], bench.row("tenant/q")["messages"]) == (1, 0)


KEYS: dict[str, Callable[[Bench], None]] = {
    "name": name, "type": type_, "topics": topics, "partitions": partitions, "max_priority": max_priority,
    "capture": capture, "overflow": overflow, "expires_after": expires_after,
    "retention.max_age": retention("max_age", "1ms", "1h"),
    "retention.max_length_bytes": retention("max_length_bytes", "10KiB", "1MiB"),
    "retention.max_length_messages": retention("max_length_messages", 5, 20),
    "limits.max_message_size": limit("max_message_size", 10, bytes(11)),
    "limits.max_depth": limit("max_depth", 1, b"x"),
    "limits.max_bytes": limit("max_bytes", "1KiB", bytes(2000)),
    "limits.message_ttl": message_ttl,
    "retry.max_retries": max_retries,
    "retry.initial_backoff": backoff({"initial_backoff": "1ms"}, {"initial_backoff": "1h", "max_backoff": "2h"}),
    "retry.max_backoff": backoff({"initial_backoff": "1ms", "max_backoff": "2ms", "multiplier": 100},
                                 {"initial_backoff": "100ms", "max_backoff": "1h", "multiplier": 100}),
    "retry.multiplier": backoff({"initial_backoff": "100ms", "max_backoff": "1h", "multiplier": 1},
                                {"initial_backoff": "100ms", "max_backoff": "1h", "multiplier": 100}),
    "retry.visibility_timeout": visibility_timeout,
    "dlq.enabled": dlq("enabled", (True, "q.dlq"), (False, "")),
    "namespace": namespace,
    "dlq.topic": dlq("topic", ("", "q.dlq"), ("lost", "lost")),
}


def test_there_is_an_entry_for_every_key() -> None:
    """Those of replication do nothing on one broker, but refuse it: unit/test_replication.py."""
    assert set(KEYS) == {key for path in QUEUE_KEYS
                         if not (key := path.removeprefix("queues[].")).startswith("replication.")}


@pytest.mark.parametrize("key", KEYS)
def test_a_key(key: str, start_broker: Start, start_node: Start, connect: Connect, tmp_path: Path) -> None:
    KEYS[key](Bench(start_broker, start_node, connect, tmp_path))


def test_an_access_list_is_about_queues_too(start_broker: Start, connect: Connect, tmp_path: Path) -> None:
    """As docs/queues.md says: who publishes, who consumes, who settles by hand."""
    add_user(tmp_path / "users", "shop", "1")
    add_user(tmp_path / "users", "cook", "1")
    (tmp_path / "acl").write_text("""version: 1
rules:
  - {allow: publish, user: shop, topics: ["$queue/orders/#"]}
  - {allow: subscribe, user: cook, topics: ["$queue/orders/#"]}
  - {allow: publish, user: cook, topics: ["$queue/orders/$ack"]}
""")
    broker = start_broker({"name": "orders"}, **{"auth.users_file": str(tmp_path / "users"),
                                                 "auth.acl_file": str(tmp_path / "acl")})
    shop = connect(broker, username="shop", password=b"1")
    cook = connect(broker, username="cook", password=b"1")
    put(shop, "orders", b"0", b"1")
    put(shop, "orders/eu", b"2")
    shop.subscribe("$queue/orders", qos=1, expect=[0x87])
    put(cook, "orders", b"x", expect=0x87)
    consume(cook, "orders", ack="manual")
    packet = cook.receive()
    order(cook, "ack", packet)
    order(cook, "nack", cook.receive(), expect=0x87)
