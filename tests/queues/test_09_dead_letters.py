"""Dead letters: what they carry, and that those that go back are the right ones, as they were, once."""
from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from kit.broker import Broker
from kit.client import Client
from kit.three_nodes import ThreeNodes
from queues.conftest import consume, order, put, users

from fluxmq.app.admin_client import AdminClient, AdminError

Start = Callable[..., Broker]
Connect = Callable[..., Client]


class Admin(AdminClient):
    """Asks when what clients have done has arrived."""

    nodes: ThreeNodes | None = None

    def ask(self, *asked: Any, **how: Any) -> Any:
        if self.nodes is not None:
            self.nodes.arrive()
        return super().ask(*asked, **how)


@pytest.fixture
def admin(tmp_path: Path, nodes: ThreeNodes | None) -> AdminClient:
    admin = Admin(tmp_path / "s")
    admin.nodes = nodes
    return admin


def settings(tmp_path: Path) -> dict[str, str]:
    return {"server.admin_socket": str(tmp_path / "s")}


def reject_all(client: Client, queue: str, count: int, **asked: object) -> None:
    consume(client, queue, ack="manual", prefetch=count)
    for packet in [client.receive() for _ in range(count)]:
        order(client, "reject", packet, **asked)
    client.unsubscribe(f"$queue/{queue}")


def shown(admin: AdminClient, queue: str) -> list[str]:
    return [message["payload"] for message in admin.ask("GET", "queues", queue, "dlq")["messages"]]


def test_a_dead_letter_says_what_became_of_it(start_broker: Start, connect: Connect, tmp_path: Path,
                                              admin: AdminClient) -> None:
    broker = start_broker({"name": "orders", "topics": ["shop/+"], "partitions": 2}, **settings(tmp_path))
    connect(broker).publish("shop/7", b"poison", 1, expect=0, properties=[
        ("content_type", "text/plain"), ("correlation_data", b"\1\2"), ("user_property", ("mine", "x"))])
    client = connect(broker)
    consume(client, "orders", ack="manual", consumer_group="billing")
    packet = client.receive()
    order(client, "nack", packet, delay=0)
    order(client, "reject", client.receive(), reason="cannot parse it")
    dead = connect(broker)
    consume(dead, "orders.dlq")
    packet = dead.receive(payload=b"poison")
    told = users(packet)
    assert {name: told[f"x-death-{name}"] for name in ("reason", "queue", "message-id", "topic", "group", "count")} == {
        "reason": "cannot parse it", "queue": "orders", "message-id": users(packet)["x-death-message-id"],
        "topic": "shop/7", "group": "billing", "count": "2"}
    assert int(told["x-death-time"]) >= int(told["x-death-published"]) > 0
    assert (packet.prop("content_type"), packet.prop("correlation_data"), told["mine"]) == ("text/plain", b"\1\2", "x")


def test_what_goes_back_is_what_came(start_broker: Start, connect: Connect, tmp_path: Path,
                                     admin: AdminClient) -> None:
    """All properties, its partition and its priority; nothing of its death."""
    broker = start_broker({"name": "orders", "partitions": 3, "max_priority": 5}, **settings(tmp_path))
    mine = [("content_type", "text/plain"), ("response_topic", "answers"), ("correlation_data", b"\1"),
            ("user_property", ("partition-key", "k")), ("user_property", ("priority", "4"))]
    publisher, client = connect(broker), connect(broker)
    for payload in (b"a", b"b"):
        publisher.publish("$queue/orders/eu", payload, 1, properties=mine, expect=0)
    consume(client, "orders", ack="manual")
    packets = [client.receive() for _ in range(2)]
    before = {users(packet)["message-id"].partition(":")[0] for packet in packets}
    for packet in packets:
        order(client, "reject", packet)
    assert admin.ask("POST", "queues", "orders", "dlq", "replay") == {"replayed": 2}
    for payload in (b"a", b"b"):
        packet = client.receive("$queue/orders/eu", payload)
        assert packet.properties[:len(mine)] == mine
        told = users(packet)
        assert not any(name.startswith("x-death") for name in told)
        place, _, offset = told["message-id"].partition(":")
        assert {place} == before and int(offset) >> 56 == 4
    assert shown(admin, "orders") == []


def test_selected_ones_go_back_once(start_broker: Start, connect: Connect, tmp_path: Path,
                                    admin: AdminClient) -> None:
    broker = start_broker({"name": "orders"}, **settings(tmp_path))
    put(connect(broker), "orders", *(b"%d" % number for number in range(5)))
    client = connect(broker)
    reject_all(client, "orders", 5)
    replay = ("queues", "orders", "dlq", "replay")
    assert admin.ask("POST", *replay, body={"messages": [[0, 3], [0, 1], [0, 99]]}) == {"replayed": 2}
    assert shown(admin, "orders") == ["0", "2", "4"]
    assert admin.ask("POST", *replay, body={"messages": [[0, 3]]}) == {"replayed": 0}
    assert admin.ask("POST", *replay) == {"replayed": 3}
    consume(client, "orders")
    assert [client.receive().payload for _ in range(5)] == [b"1", b"3", b"0", b"2", b"4"]
    client.expect_quiet()


def test_queues_may_share_a_place_for_dead_letters(start_broker: Start, connect: Connect, tmp_path: Path,
                                                   admin: AdminClient) -> None:
    """One with partitions even; each queue gets back its own."""
    broker = start_broker({"name": "lost", "partitions": 3}, {"name": "a", "dlq": {"topic": "lost"}},
                          {"name": "b", "dlq": {"topic": "lost"}}, **settings(tmp_path))
    client = connect(broker)
    for queue in ("a", "b"):
        put(client, queue, *(f"{queue}{number}".encode() for number in range(4)))
        reject_all(client, queue, 4)
    assert sorted(shown(admin, "a")) == ["a0", "a1", "a2", "a3"]
    with pytest.raises(AdminError, match="the dead letters of b are in lost too"):
        admin.ask("POST", "queues", "a", "dlq", "purge")
    assert admin.ask("POST", "queues", "a", "dlq", "replay") == {"replayed": 4}
    assert (shown(admin, "a"), sorted(shown(admin, "b"))) == ([], ["b0", "b1", "b2", "b3"])
    consume(client, "a")
    assert {client.receive().payload for _ in range(4)} == {b"a0", b"a1", b"a2", b"a3"}
    client.expect_quiet()


def test_what_does_not_fit_stays_where_it_is(start_broker: Start, connect: Connect, tmp_path: Path,
                                             admin: AdminClient) -> None:
    broker = start_broker({"name": "orders", "limits": {"max_depth": 2}}, **settings(tmp_path))
    publisher, client = connect(broker), connect(broker)
    put(publisher, "orders", b"0", b"1")
    reject_all(client, "orders", 2)
    put(publisher, "orders", b"new")
    replay = ("queues", "orders", "dlq", "replay")
    assert admin.ask("POST", *replay) == {"replayed": 1}
    assert shown(admin, "orders") == ["1"]
    with pytest.raises(AdminError, match="full"):
        admin.ask("POST", *replay)
    assert shown(admin, "orders") == ["1"]


def test_none_yet_is_no_error(start_broker: Start, tmp_path: Path, admin: AdminClient) -> None:
    start_broker({"name": "orders"}, {"name": "careless", "dlq": {"enabled": False}}, **settings(tmp_path))
    assert shown(admin, "orders") == []
    assert admin.ask("POST", "queues", "orders", "dlq", "replay") == {"replayed": 0}
    assert admin.ask("POST", "queues", "orders", "dlq", "purge") == {"purged": 0}
    with pytest.raises(AdminError, match="keeps no dead letters"):
        shown(admin, "careless")
