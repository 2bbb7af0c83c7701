"""Operators' requests about queues of another node: asked of it, over a model of the way there, and by it answered."""
from __future__ import annotations

import asyncio
import json
from functools import partial
from typing import Any

import msgspec
import pytest
from kit.fake_queues import FakeQueues
from kit.overview import FakeOverview

from fluxmq.admin import elsewhere
from fluxmq.admin.divided import state_of
from fluxmq.admin.http import Answer, Request, Stream
from fluxmq.admin.queues import _wholes
from fluxmq.admin.routes import AdminRoutes
from fluxmq.engine.ports.operations import MOVED, Handler, Operation, Outcome
from fluxmq.engine.ports.overview import NodeView
from fluxmq.engine.ports.queues import Publish, QueueElsewhere, QueueRefused

Q = "/api/v1/queues"


def message(payload: bytes = b"first") -> Publish:
    return Publish(payload=payload)


class Queues(FakeQueues):
    """As FakeQueues, of a node that knows which node has each queue of others. owners: by queue; away: such nodes."""

    def __init__(self, node: str) -> None:
        super().__init__()
        self.node = node
        self.owners: dict[str, str] = {}
        self.away: set[str] = set()

    def _find(self, name: str) -> Any:
        owner = self.owners.get(name, self.node)
        if owner != self.node:
            raise QueueElsewhere(owner, f"queue {name} is at node {owner}", away=owner in self.away)
        return super()._find(name)

    def _row(self, name: str) -> dict[str, Any]:
        owner = self.owners.get(name, self.node)
        state = "running" if owner == self.node else "away" if owner in self.away else "elsewhere"
        numbers = self._short(name) if owner == self.node else {"messages": None, "dead_letters": 0}
        return {**numbers, "name": name, "namespace": "/", "node": owner, "state": state}

    def list_queues(self, *, partitions: bool = False) -> list[dict[str, Any]]:
        rows = self._rows()
        for row in rows if partitions else ():
            count = row.get("partitions", 1)
            row["partition_list"] = [{"partition": at, "node": row["node"], "state": row["state"], "epoch": 7,
                                      "lag": row["messages"]} for at in range(count)]
        return rows

    def _rows(self) -> list[dict[str, Any]]:
        return [self._row(name) for name in sorted({*self.queues, *self.owners})]

    def describe(self, name: str) -> dict[str, Any]:
        if self.owners.get(name, self.node) != self.node:
            return self._row(name) | {"group_list": []}
        return super().describe(name) | self._row(name)

    def dead_list(self) -> list[dict[str, Any]]:
        found = [{**entry, "namespace": "/", "node": self.node, "state": "running"} for entry in super().dead_list()]
        return found + [{"queue": name, "namespace": "/", "node": node, "state": "away" if node in self.away else
                         "elsewhere", "messages": None} for name, node in self.owners.items() if node != self.node]

    def delete(self, name: str, *, if_unused: bool, if_empty: bool) -> int:
        if not if_unused and not if_empty and name in self.owners:
            del self.owners[name]
            return 0
        return super().delete(name, if_unused=if_unused, if_empty=if_empty)


class Way:
    """Operations between AdminRoutes of one process. silent: nodes that do not answer."""

    def __init__(self, node: str, nodes: dict[str, AdminRoutes]) -> None:
        self.node, self.nodes = node, nodes
        self.asked: list[tuple[str, Operation]] = []
        self.silent: set[str] = set()

    async def ask(self, node: str, operation: Operation, limit_s: float) -> Outcome:
        self.asked.append((node, operation))
        assert 0 < limit_s < 30
        if node in self.silent:
            raise QueueElsewhere(node, f"node {node} has not answered", away=True)
        # it goes over a wire
        there = msgspec.msgpack.decode(msgspec.msgpack.encode(operation), type=Operation)
        return await self.nodes[node].answer(there, self.node)

    def answer_by(self, handler: Handler) -> None:
        raise AssertionError("the nodes are named")


class World:
    """Nodes one (where the operator is) and two, which has the queue q."""

    def __init__(self) -> None:
        self.queues = {node: Queues(node) for node in ("one", "two", "three")}
        self.nodes: dict[str, AdminRoutes] = {}
        self.ways = {node: Way(node, self.nodes) for node in self.queues}
        self.said: list[tuple[str, dict[str, Any]]] = []
        for node, queues in self.queues.items():
            self.nodes[node] = AdminRoutes(queues, operations=self.ways[node], tail_seconds=0.001,
                                           on_log=partial(self._note, node))
        self.queues["two"].declare({"name": "q"})
        for at in ("one", "three"):
            self.queues[at].owners["q"] = "two"

    def _note(self, node: str, level: str, cause: str, text: str, fields: dict[str, Any]) -> None:
        self.said.append((node, fields))

    async def call(self, method: str, target: str, body: Any = None, at: str = "one") -> tuple[int, Any]:
        content = b"" if body is None else json.dumps(body).encode()
        answer = await self.nodes[at].handle(Request(method, target, content, None))  # type: ignore[arg-type]
        assert isinstance(answer, Answer)
        return answer.status, json.loads(answer.body)


def run(scenario: Any) -> None:
    asyncio.run(asyncio.wait_for(scenario, 30))


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(elsewhere.Elsewhere.__init__, "__defaults__", (0.001,))
    monkeypatch.setattr("fluxmq.admin.queues._TAIL_ELSEWHERE_SECONDS", 0.001)


@pytest.mark.parametrize(("method", "target", "body"), [
    ("POST", f"{Q}/q/messages", {"payload": "x"}),
    ("POST", f"{Q}/q/messages", {"messages": [{"payload": "x"}, {"payload": "/w==", "encoding": "base64"}]}),
    ("GET", f"{Q}/q/messages?from=first&count=5", None),
    ("GET", f"{Q}/q/messages?partition=7", None),
    ("GET", f"{Q}/q", None),
    ("GET", f"{Q}/q/groups", None),
    ("POST", f"{Q}/q/groups/g/seek", {"position": "next"}),
    ("DELETE", f"{Q}/q/groups/g", None),
    ("DELETE", f"{Q}/q/groups/none", None),
    ("GET", f"{Q}/q/dlq", None),
    ("POST", f"{Q}/q/dlq/replay", {"count": 3}),
    ("POST", f"{Q}/q/dlq/replay", {"messages": [[0, 1]]}),
    ("POST", f"{Q}/q/dlq/purge", None),
    ("POST", f"{Q}/q/purge", None),
    ("DELETE", f"{Q}/q?if_empty=true", None),
    ("DELETE", f"{Q}/q?if_unused=true&if_empty=false", None)])
def test_it_is_answered_as_where_the_queue_is(method: str, target: str, body: Any) -> None:
    answers = []
    for at in ("one", "two"):
        world = World()
        queues = world.queues["two"]
        queues.queues["q"].groups["g"] = [0]
        queues.publish("q", message())
        for payload in (b"a", b"b", b"c", b"d"):
            queues.die("q", payload)

        async def scenario(world: World = world, at: str = at) -> None:
            answers.append(await world.call(method, target, body, at))

        run(scenario())
        answers[-1] = (*answers[-1], [one.payload for part in queues.queues["q"].partitions for one in part]
                       if "q" in queues.queues else None)
        assert len(world.ways["one"].asked) == (at == "one") and not world.ways["two"].asked
    assert answers[0] == answers[1]


def test_both_nodes_note_who_changed_it() -> None:
    world = World()

    async def scenario() -> None:
        assert (await world.call("POST", f"{Q}/q/purge"))[0] == 200
        assert (await world.call("POST", f"{Q}/q/groups/none/seek", {"position": "first"}))[0] == 404

    run(scenario())
    request = {"request": f"POST {Q}/q/purge"}
    assert world.said == [("two", request | {"node": "one"}), ("one", request)]


def test_a_request_goes_over_one_node_at_most() -> None:
    """Two nodes each of which believes that the other one has the queue: it is looked for twice, and then given up."""
    world = World()
    world.queues["two"].owners["q"] = "three"
    world.queues["two"].queues.clear()

    async def scenario() -> None:
        status, answer = await world.call("POST", f"{Q}/q/purge")
        assert (status, answer["error"], answer["node"]) == (503, "unavailable", "two")
        assert "has left node two" in answer["detail"]
        assert [node for node, _ in world.ways["one"].asked] == ["two", "two"] and not world.ways["two"].asked
        outcome = await world.nodes["two"].answer(Operation("POST", f"{Q}/q/purge"), "one")
        assert outcome.status == MOVED and json.loads(outcome.body)["error"] == "moved"
        outcome = await world.nodes["two"].answer(Operation("GET", f"{Q}/q"), "one")
        assert outcome.status == MOVED

    run(scenario())


@pytest.mark.parametrize("to", ["one", "three"])
def test_a_queue_that_has_moved_is_found(to: str) -> None:
    """The operator's node learns of it after it was sent away once."""
    world = World()
    world.queues["two"].owners["q"] = to
    world.queues[to].queues["q"] = world.queues["two"].queues.pop("q")
    world.queues[to].owners["q"] = to
    world.queues[to].publish("q", message())
    if to == "one":
        world.queues["one"].owners["q"] = "two"

    class Learns(Way):
        async def ask(self, node: str, operation: Operation, limit_s: float) -> Outcome:
            outcome = await super().ask(node, operation, limit_s)
            world.queues["one"].owners["q"] = to
            return outcome

    way = Learns("one", world.nodes)
    world.nodes["one"] = AdminRoutes(world.queues["one"], operations=way)

    async def scenario() -> None:
        assert await world.call("POST", f"{Q}/q/purge") == (200, {"purged": 1, "unsettled": 0})
        assert [node for node, _ in way.asked] == ["two"] + (["three"] if to == "three" else [])

    run(scenario())


def test_a_node_that_is_away_is_named_and_not_asked() -> None:
    world = World()
    world.queues["one"].away.add("two")

    async def scenario() -> None:
        for method, target in (("POST", "purge"), ("GET", "messages"), ("GET", "tail"), ("GET", "groups"),
                               ("GET", "dlq")):
            status, answer = await world.call(method, f"{Q}/q/{target}")
            assert (status, answer["error"], answer["node"]) == (503, "unavailable", "two"), target
        status, answer = await world.call("GET", f"{Q}/q")
        assert (status, answer["state"]) == (200, "away") and "missing" not in answer
        assert (await world.call("GET", Q))[1]["queues"][0]["state"] == "away"
        assert await world.call("DELETE", f"{Q}/q") == (200, {"deleted": True, "messages": None})

    run(scenario())
    assert not world.ways["one"].asked


def test_a_queue_that_has_just_gone_at_its_node_is_deleted() -> None:
    """Its connection has ended there, say, and this node does not know yet."""
    world = World()
    del world.queues["two"].queues["q"]

    async def scenario() -> None:
        assert (await world.call("GET", f"{Q}/q"))[0] == 404
        assert await world.call("DELETE", f"{Q}/q") == (200, {"deleted": True, "messages": None})

    run(scenario())


def test_a_node_that_does_not_answer_is_named() -> None:
    world = World()
    world.ways["one"].silent.add("two")

    async def scenario() -> None:
        status, answer = await world.call("POST", f"{Q}/q/purge")
        assert (status, answer["node"], answer["detail"]) == (503, "two", "node two has not answered")
        missing = [{"node": "two", "why": "node two has not answered"}]
        status, answer = await world.call("GET", f"{Q}/q")
        assert (status, answer["state"], answer["messages"], answer["missing"]) == (200, "elsewhere", None, missing)
        status, answer = await world.call("GET", Q)
        assert (status, answer["queues"][0]["messages"], answer["missing"]) == (200, None, missing)
        status, answer = await world.call("GET", "/api/v1/dlq")
        assert (status, answer["dead_letters"][0]["messages"], answer["missing"]) == (200, None, missing)
        assert await world.call("DELETE", f"{Q}/q") == (200, {"deleted": True, "messages": None})

    run(scenario())


def test_a_deletion_says_how_many_messages_the_other_node_had() -> None:
    world = World()
    for _ in range(2):
        world.queues["two"].publish("q", message())

    async def scenario() -> None:
        assert await world.call("DELETE", f"{Q}/q?if_empty=false&if_unused=false") == (200, {
            "deleted": True, "messages": 2})
        [(node, asked)] = world.ways["one"].asked
        assert (node, asked.method, asked.target) == ("two", "GET", f"{Q}/q")
        assert "q" not in world.queues["one"].owners

    run(scenario())


@pytest.mark.parametrize("hangs", [False, True])
def test_a_deletion_does_not_wait_long_for_the_number(hangs: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    monkeypatch.setattr("fluxmq.model.limits.ADMIN_GATHER_SECONDS_MAX", 0.01 if hangs else 5.0)

    class Hangs(Way):
        async def ask(self, node: str, operation: Operation, limit_s: float) -> Outcome:
            if hangs:
                await asyncio.Event().wait()
            raise QueueElsewhere(node, f"node {node} is away", away=True)

    world.nodes["one"] = AdminRoutes(world.queues["one"], operations=Hangs("one", world.nodes))

    async def scenario() -> None:
        assert await world.call("DELETE", f"{Q}/q") == (200, {"deleted": True, "messages": None})

    run(scenario())


def test_lists_have_the_numbers_of_all_nodes() -> None:
    world = World()
    for node, name in (("one", "a"), ("three", "c")):
        world.queues[node].declare({"name": name})
        for other in {"one", "two", "three"} - {node}:
            world.queues[other].owners[name] = node
    for number, (node, name) in enumerate((("one", "a"), ("two", "q"), ("three", "c"))):
        for _ in range(number + 1):
            world.queues[node].publish(name, message())
            world.queues[node].die(name, b"x")
    world.queues["three"].declare({"name": "$under-way-1"})         # which no other node knows

    async def scenario() -> None:
        for at in world.nodes:
            status, answer = await world.call("GET", Q, at=at)
            rows = {row["name"]: (row["node"], row["state"], row["messages"]) for row in answer["queues"]}
            assert rows == {"a": ("one", "running", 1), "q": ("two", "running", 2), "c": ("three", "running", 3),
                            "$under-way-1": ("three", "running", 0)}
            assert (status, list(answer)) == (200, ["queues"])
            status, answer = await world.call("GET", "/api/v1/dlq?namespace=/", at=at)
            dead = {row["queue"]: row["messages"] for row in answer["dead_letters"]}
            assert dead == {"a": 1, "q": 2, "c": 3, "$under-way-1": 0}
            assert (await world.call("GET", f"{Q}?namespace=shop", at=at))[1]["queues"] == []

    run(scenario())


@pytest.mark.parametrize(("parts", "state"), [
    ([("one", "running"), ("two", "elsewhere")], "divided"), ([("one", "running")] * 3, "running"),
    ([("one", "elsewhere")] * 2, "elsewhere"), ([("one", "away")] * 2, "away"),
    ([("one", "running"), ("one", "damaged")], "damaged")])
def test_a_queue_whose_partitions_are_at_one_node_is_not_divided(parts: list[tuple[str, str]], state: str) -> None:
    """For people: in a list, and described."""
    assert state_of("divided", parts) == state
    entries = [{"namespace": "/", "name": "q", "node": "one", "state": "divided", "messages": None}]
    entries += [{"namespace": "/", "name": f"$part-{at}-q", "whole": "q", "partition": at, "node": node, "state": said,
                 "messages": None} for at, (node, said) in enumerate(parts)]
    assert [(entry["name"], entry["state"]) for entry in _wholes(entries)] == [("q", state)]


def test_partitions_are_those_that_their_nodes_tell() -> None:
    """A queue whose partitions are at nodes two and three. All that are alive are asked, also who has no queue; who
    does not answer is named."""
    world = World()
    whole = {"name": "w", "namespace": "/", "partitions": 2, "node": "three, two", "state": "divided", "messages": None,
             "dead_letters": 0}

    def rows(node: str) -> list[dict[str, Any]]:
        found = [dict(whole)]
        for at, owner in enumerate(("two", "three")):
            mine = owner == node
            found.append({"name": f"$part-{at}-w", "namespace": "/", "whole": "w", "partition": at, "node": owner,
                          "partitions": 1, "dead_letters": 0, "state": "running" if mine else "elsewhere",
                          "damage": "", **{name: 10 + at if mine else None for name in (
                              "messages", "bytes", "ready", "unsettled", "groups", "delayed", "consumers")}})
        return found

    for node, queues in world.queues.items():
        queues._rows = partial(rows, node)      # type: ignore[method-assign]
    overview = FakeOverview()
    nodes = tuple(NodeView(id=name, epoch=epoch) for name, epoch in (("four", 4), ("gone", 0), ("one", 1), ("three", 3),
                                                                     ("two", 2)))
    overview.set(nodes=nodes, local="one")
    world.nodes["one"] = AdminRoutes(world.queues["one"], operations=world.ways["one"], cluster=overview)
    world.ways["one"].silent.add("four")

    async def scenario() -> None:
        answer = (await world.call("GET", f"{Q}?partitions=true"))[1]
        [queue] = answer["queues"]
        assert [(part["partition"], part["node"], part["state"], part["lag"]) for part in queue["partition_list"]] == [
            (0, "two", "running", 10), (1, "three", "running", 11)]
        assert queue["messages"] == 21
        assert answer["missing"] == [{"node": "four", "why": "node four has not answered"}]
        world.ways["one"].silent.add("three")
        answer = (await world.call("GET", f"{Q}?partitions=true"))[1]
        [queue] = answer["queues"]
        assert [(part["node"], part["lag"]) for part in queue["partition_list"]] == [("two", 10), ("three", None)]
        assert [one["node"] for one in answer["missing"]] == ["four", "three"]
        answer = (await world.call("GET", Q))[1]
        assert [one["node"] for one in answer["missing"]] == ["three"], "who has no queue is not asked for the list"
        assert "partition_list" not in answer["queues"][0]
        assert (await world.call("GET", f"{Q}?partitions=maybe"))[0] == 400

    run(scenario())


def test_dead_letters_of_a_third_node_are_counted() -> None:
    """In the list of queues, whose owner does not have the queue with its dead letters."""
    world = World()
    row = {"namespace": "/", "node": "two", "state": "running", "dead_letters": None}
    two = world.queues["two"]
    two._row = lambda name: FakeQueues._short(two, name) | row  # type: ignore[method-assign]
    for at in ("one", "two"):
        world.queues[at].owners["q.dlq"] = "three"
        world.queues[at].dead_list = lambda: [  # type: ignore[method-assign]
            {"queue": "q", "namespace": "/", "dead_letter_queue": "q.dlq", "state": "elsewhere", "node": "three"}]
    world.queues["two"].owners.pop("q.dlq")
    world.queues["three"].declare({"name": "q.dlq"})
    world.queues["three"].publish("q.dlq", message())

    async def scenario() -> None:
        rows = {row["name"]: row for row in (await world.call("GET", Q))[1]["queues"]}
        assert rows["q"]["dead_letters"] == 1

    run(scenario())


def test_a_tail_goes_on_from_page_to_page() -> None:
    world = World()
    for number in range(250):
        world.queues["two"].publish("q", message(b"first" if number % 2 else b"\xff\n"))

    async def scenario() -> None:
        asked = Request("GET", f"{Q}/q/tail?from=first", b"", None)  # type: ignore[arg-type]
        answer = await world.nodes["one"].handle(asked)
        assert isinstance(answer, Stream)
        found: list[dict[str, Any]] = []
        async for piece in answer.pieces:
            found += map(json.loads, piece.splitlines())
            if len(found) == 250 and "late" not in world.queues["two"].queues:
                world.queues["two"].declare({"name": "late"})
                world.queues["two"].publish("q", message())
            if len(found) == 251:
                world.ways["one"].silent.add("two")
        assert [one.get("offset") for one in found[:251]] == list(range(251))
        assert found[0]["encoding"] == "base64" and found[1]["payload"] == "first"
        assert found[251:] == [{"error": "unavailable", "detail": "node two has not answered", "hint": "",
                                "node": "two"}]

    run(scenario())


def test_a_tail_of_what_is_not_there_has_a_status() -> None:
    world = World()

    async def scenario() -> None:
        assert (await world.call("GET", f"{Q}/q/tail?partition=7"))[0] == 404
        assert (await world.call("GET", f"{Q}/q/tail?from=nowhere"))[0] == 400
        world.queues["two"].fault = QueueRefused("unavailable", "stopped")
        assert (await world.call("GET", f"{Q}/q/tail"))[0] == 503

    run(scenario())


@pytest.mark.parametrize(("method", "target"), [
    ("GET", "/api/v1/clients"), ("DELETE", "/api/v1/clients/c"), ("GET", "/api/v1/bans"), ("POST", "/api/v1/record"),
    ("GET", f"{Q}/q/tail"), ("GET", f"{Q}/q/tai%6c"), ("GET", "/"), ("GET", "/api/v1/queue%73/q/../../clients")])
def test_other_nodes_ask_about_queues_only(method: str, target: str) -> None:
    world = World()

    async def scenario() -> None:
        assert (await world.nodes["two"].answer(Operation(method, target), "one")).status == 404

    run(scenario())


def test_a_node_does_not_work_for_another_one_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fluxmq.model.limits.ADMIN_HANDLE_SECONDS_MAX", 0.01)
    world = World()
    world.queues["two"].unloaded = 1 << 40

    async def scenario() -> None:
        outcome = await world.nodes["two"].answer(Operation("GET", f"{Q}/q/messages"), "one")
        assert outcome.status == 504 and json.loads(outcome.body)["error"] == "timeout"

    run(scenario())


def test_a_head_is_asked_of_the_other_node_too() -> None:
    world = World()

    async def scenario() -> None:
        assert (await world.call("HEAD", f"{Q}/q/groups")) == (200, {"groups": []})
        assert (await world.call("HEAD", f"{Q}/q/tail"))[0] == 405

    run(scenario())


def test_a_node_by_itself_asks_nobody() -> None:
    queues = Queues("one")
    queues.owners["q"] = "two"
    routes = AdminRoutes(queues)

    async def scenario() -> None:
        answer = await routes.handle(Request("POST", f"{Q}/q/purge", b"", None))  # type: ignore[arg-type]
        assert isinstance(answer, Answer) and answer.status == 503
        answer = await routes.handle(Request("GET", Q, b"", None))  # type: ignore[arg-type]
        assert isinstance(answer, Answer) and json.loads(answer.body)["queues"][0]["state"] == "elsewhere"

    run(scenario())
