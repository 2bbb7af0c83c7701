"""The list of clients that the admin API gives: in pages, over several edges, whatever clients say of themselves."""
from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec
import pytest

from fluxmq.admin.clients import disconnect_client, list_clients, show_client
from fluxmq.engine.ports.clients import ClientInfo
from fluxmq.engine.ports.queues import QueueRefused

INFO = ClientInfo(client_id="", protocol="AMQP 0-9-1", listener="l", peer="127.0.0.1:1", user=None, mechanism="PLAIN",
                  virtual_host="/", name="", properties={}, channels=1, subscriptions=2, heartbeat_s=60, since_ms=7,
                  blocked=False)


class Edge:
    """namespace: of all its clients."""

    def __init__(self, ids: Iterable[str], namespace: str = "/", **about: Any) -> None:
        self.known = {(namespace, one): msgspec.structs.replace(INFO, client_id=one, virtual_host=namespace, **about)
                      for one in ids}

    def ids(self) -> Iterable[tuple[str, str]]:
        return list(self.known)

    def info(self, namespace: str, client_id: str) -> ClientInfo | None:
        return self.known.get((namespace, client_id)) if not client_id.startswith("gone") else None

    def subscriptions(self, namespace: str, client_id: str) -> Iterable[Mapping[str, Any]]:
        return [{"filter": f"t/{number:04}"} for number in range(1500)]

    def disconnect(self, namespace: str, client_id: str) -> bool:
        return self.known.pop((namespace, client_id), None) is not None


def ask(edges: list[Edge], **query: str) -> Any:
    answer = asyncio.run(list_clients(edges, query))
    assert answer.status == 200
    return json.loads(answer.body)


@pytest.mark.parametrize("count", ["1", "2", "7", "1000"])
def test_pages_are_everybody_once(count: str) -> None:
    edges = [Edge(f"c{n}" for n in range(0, 20, 2)), Edge(f"c{n}" for n in range(1, 20, 2))]
    found, query = [], {"count": count}
    while True:
        page = ask(edges, **query)
        assert page["connected"] == 20 and len(page["clients"]) <= int(count)
        found += [one["client_id"] for one in page["clients"]]
        if page["next"] is None:
            break
        query["after"] = page["next"]
    assert found == sorted(f"c{n}" for n in range(20))


@pytest.mark.parametrize("count", ["1", "2", "1000"])
def test_pages_of_namespaces_with_equal_and_with_odd_names(count: str) -> None:
    names = ["a/b", "a", "/", "a%2Fb", "ä", "!", "%", "/a"]
    ids = ["c", "b/c", "/", "%2F", "", " "]
    edges = [Edge(ids, name) for name in names]
    found, query = [], {"count": count}
    while True:
        page = ask(edges, **query)
        found += [(one["virtual_host"], one["client_id"]) for one in page["clients"]]
        if page["next"] is None:
            break
        query["after"] = page["next"]
    others = sorted(set(names) - {"/"})
    assert found == [(name, one) for name in ["/", *others] for one in sorted(ids)]


def test_the_list_of_one_namespace() -> None:
    page = ask([Edge(["a", "b"]), Edge(["a", "c"], "shop")], namespace="shop", count="1")
    assert [(one["virtual_host"], one["client_id"]) for one in page["clients"]] == [("shop", "a")]
    assert page["connected"] == 2
    rest = ask([Edge(["a", "b"]), Edge(["a", "c"], "shop")], namespace="shop", after=page["next"])
    assert [one["client_id"] for one in rest["clients"]] == ["c"] and rest["next"] is None
    with pytest.raises(QueueRefused, match="after is"):
        ask([], after="a")


def test_equal_identifiers_of_two_namespaces_are_two_clients() -> None:
    edges = [Edge(["a"]), Edge(["a", "b"], "shop")]
    shown = json.loads(asyncio.run(show_client(edges, "a", "shop")).body)
    assert shown["client"]["virtual_host"] == "shop"
    asyncio.run(disconnect_client(edges, "a", "shop"))
    assert [key for edge in edges for key in edge.ids()] == [("/", "a"), ("shop", "b")]
    with pytest.raises(QueueRefused) as refused:
        asyncio.run(disconnect_client(edges, "b"))
    assert refused.value.hint == "one is in namespace shop: say which by --namespace"
    with pytest.raises(QueueRefused, match="no client 'b' is connected in namespace other"):
        asyncio.run(show_client(edges, "b", "other"))


def test_who_goes_meanwhile_is_left_out() -> None:
    assert [one["client_id"] for one in ask([Edge(["a", "gone", "z"])])["clients"]] == ["a", "z"]
    assert ask([]) == {"clients": [], "connected": 0, "next": None}


def test_what_clients_say_of_themselves_can_be_written() -> None:
    edge = Edge(["a"], name="n\udcff" * 300, properties={"product": b"\xff", "version": [1], "secret": "s"})
    [one] = ask([edge])["clients"]
    assert one["name"] == ("n?" * 300)[:255] and (one["product"], one["version"]) == ("\ufffd", "")
    assert "secret" not in json.dumps(one)


@pytest.mark.parametrize("count", ["0", "1001", "-1", "x", "", "\u00b2", "9" * 5000])
def test_a_count_that_is_none(count: str) -> None:
    with pytest.raises(QueueRefused):
        ask([], count=count)


def test_one_client_with_its_subscriptions() -> None:
    shown = json.loads(asyncio.run(show_client([Edge(["a"]), Edge(["b"])], "b")).body)
    assert shown["client"]["client_id"] == "b"
    assert [one["filter"] for one in shown["subscriptions"]] == [f"t/{number:04}" for number in range(1000)]


def test_a_client_is_disconnected_once(caplog: pytest.LogCaptureFixture) -> None:
    edges = [Edge(["a"]), Edge(["b"])]
    with caplog.at_level("INFO", "fluxmq.admin"):
        answer = json.loads(asyncio.run(disconnect_client(edges, "b")).body)
    assert answer == {"disconnected": True, "peer": "127.0.0.1:1"}
    assert [(record.message, record.__dict__["client_id"]) for record in caplog.records] == [
        ("an administrator disconnected a client", "b")]
    for call in (disconnect_client, show_client):
        with pytest.raises(QueueRefused) as refused:
            asyncio.run(call(edges, "b"))
        assert (refused.value.kind, refused.value.hint) == ("not_found", "fluxmq client list shows who is")
