"""Routes of the admin API over namespaces, against a naive fake: what they take, answer, and when."""
from __future__ import annotations

import asyncio
import json
from typing import Any, Literal

import h11
import pytest
from kit.fake_queues import FakeQueues

from fluxmq._core.errors import StorageError
from fluxmq.admin.http import Answer, Request
from fluxmq.admin.routes import AdminRoutes
from fluxmq.engine.ports.queues import QueueRefused

N = "/api/v1/namespaces"


class FakeNamespaces:
    """A NamespacesPort of names alone."""

    def __init__(self) -> None:
        self.names = ["/"]

    def list_namespaces(self) -> list[dict[str, Any]]:
        return [{"name": name} for name in self.names]

    def describe(self, name: str) -> dict[str, Any]:
        if name not in self.names:
            raise QueueRefused("not_found", f"there is no namespace {name}", "a hint")
        return {"name": name}

    def create(self, name: str) -> Literal["created", "opened", "unchanged"]:
        if name in self.names:
            return "unchanged"
        self.names.append(name)
        return "created"

    def delete(self, name: str) -> dict[str, int]:
        self.describe(name)
        if name == "/":
            raise QueueRefused("conflict", "it is always there")
        self.names.remove(name)
        return {"sessions": 3}


class Api:
    """The routes without a socket."""

    def __init__(self) -> None:
        self.queues, self.namespaces = FakeQueues(), FakeNamespaces()
        self.logged: list[dict[str, Any]] = []
        self.routes = AdminRoutes(self.queues, namespaces=self.namespaces,
                                  on_log=lambda level, cause, text, fields: self.logged.append(fields))

    async def handle(self, method: str, target: str) -> tuple[int, Any]:
        raw = h11.Request(method=method, target=target, headers=[("Host", "x")])
        answer = await self.routes.handle(Request(method, target, b"", raw))
        assert isinstance(answer, Answer)
        return answer.status, json.loads(answer.body)

    def ask(self, method: str, target: str) -> tuple[int, Any]:
        return asyncio.run(self.handle(method, target))


@pytest.fixture
def api() -> Api:
    return Api()


def test_they_come_and_go(api: Api) -> None:
    assert api.ask("POST", f"{N}/a%2Fb") == (201, {"name": "a/b", "result": "created"})
    assert api.ask("POST", f"{N}/a%2Fb") == (200, {"name": "a/b", "result": "unchanged"})
    assert api.ask("GET", N) == (200, {"namespaces": [{"name": "/"}, {"name": "a/b"}]})
    assert api.ask("GET", f"{N}/%2F") == (200, {"name": "/"})
    assert api.ask("DELETE", f"{N}/a%2Fb") == (200, {"deleted": True, "sessions": 3})
    assert api.ask("DELETE", f"{N}/a%2Fb")[0] == api.ask("GET", f"{N}/a%2Fb")[0] == 404
    assert api.ask("DELETE", f"{N}/%2F") == (409, {"error": "conflict", "detail": "it is always there", "hint": ""})
    assert [one["request"] for one in api.logged] == [f"{method} {N}/a%2Fb" for method in ("POST", "POST", "DELETE")]


@pytest.mark.parametrize(("method", "target", "status"), [
    ("PUT", f"{N}/a", 405), ("POST", N, 405), ("DELETE", N, 405), ("GET", f"{N}/", 404), ("GET", f"{N}/a/b", 404),
    ("DELETE", f"{N}/a?force=1", 400), ("GET", f"{N}/%ff", 400)])
def test_what_is_no_request(api: Api, method: str, target: str, status: int) -> None:
    assert api.ask(method, target)[0] == status


@pytest.mark.parametrize("method", ["POST", "DELETE"])
def test_the_answer_waits_for_the_disk(api: Api, method: str) -> None:
    async def scenario() -> None:
        api.queues.held = True
        if method == "DELETE":
            api.namespaces.create("a")
        asked = asyncio.ensure_future(api.handle(method, f"{N}/a"))
        while not api.queues.waiting:
            await asyncio.sleep(0)
        assert not asked.done() and ("a" in api.namespaces.names) == (method == "POST")
        api.queues.sync_fault = StorageError("the disk is gone")
        api.queues.sync()
        assert (await asked)[0] == 503

    asyncio.run(scenario())


def test_a_broker_that_gives_no_port_has_no_such_path() -> None:
    api = Api()
    api.routes = AdminRoutes(api.queues)
    assert api.ask("GET", N)[0] == 404


def test_the_namespace_of_a_queue_is_part_of_its_name(api: Api) -> None:
    api.queues.declare({"name": "a"})
    assert api.ask("GET", "/api/v1/queues/a?namespace=%2F")[0] == 200
    assert api.ask("GET", "/api/v1/queues/a?namespace=shop")[1]["detail"].endswith("shop/a")
    assert api.ask("POST", "/api/v1/queues/a/purge?namespace=shop")[0] == 404
