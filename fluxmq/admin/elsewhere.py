"""Requests about queues that another node of the cluster has: they are asked of that node, and its answer is given.

    here() ── QueueElsewhere ─► Operations.ask ── MOVED ─► a little later, here() again ── … ─► 503

Who has the queue answers a request of another node by its own tables only, with MOVED if it does not have the queue: so
a request goes over one node at most.
"""
from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, NamedTuple, TypeVar
from urllib.parse import quote, urlencode

import msgspec

from fluxmq.admin.http import Answer
from fluxmq.engine.ports.operations import MOVED, Operation, Operations, Outcome
from fluxmq.engine.ports.queues import QueueElsewhere, QueueName, QueueRefused
from fluxmq.model import limits

__all__ = ["ELSEWHERE", "Elsewhere", "Look", "as_answer", "look_at", "look_of", "owners_of", "served_here"]

T = TypeVar("T")
ELSEWHERE = ("elsewhere", "away")  # states of queues of which this node has no numbers
# The node that had the queue knows that it has not; this one learns it within the time of a watch of etcd.
_MOVED_SECONDS = 0.5


class Look(NamedTuple):
    """What a tail has found. lines: of JSON; next: position of the next look; pause: seconds until then."""

    lines: bytes
    next: str
    pause: float


class _Page(msgspec.Struct):
    messages: list[msgspec.Raw]
    next: str


class _Refusal(msgspec.Struct):
    error: str = ""
    detail: str = ""
    hint: str = ""


def served_here(entries: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Those of which this node has the numbers."""
    return [entry for entry in entries if entry.get("state") not in ELSEWHERE]


def owners_of(entries: Iterable[dict[str, Any]]) -> list[str]:
    """The other nodes that serve some of these queues."""
    return sorted({entry["node"] for entry in entries if entry.get("state") == "elsewhere"})


def as_answer(outcome: Outcome) -> Answer:
    """What the other node has answered."""
    return Answer(outcome.status, outcome.content_type, outcome.body)


def look_at(name: str, position: str, count: int, partition: int | None) -> Operation:
    """Asks for a page of a queue's messages."""
    query: dict[str, str | int] = {"from": position, "count": count}
    if partition is not None:
        query["partition"] = partition
    if isinstance(name, QueueName):
        query["namespace"], name = name.namespace, name.own
    return Operation("GET", f"/api/v1/queues/{quote(name, safe='')}/messages?{urlencode(query)}")


def look_of(outcome: Outcome, pause: float) -> Look:
    """The page in the answer. Raises QueueRefused for another answer."""
    if outcome.status >= 400:
        said = msgspec.json.decode(outcome.body, type=_Refusal)
        raise QueueRefused("not_found" if outcome.status == 404 else "invalid" if outcome.status == 400 else
                           "unavailable", said.detail, said.hint)
    page = msgspec.json.decode(outcome.body, type=_Page)
    return Look(b"".join(bytes(message) + b"\n" for message in page.messages), page.next, pause)


class Elsewhere:
    """The way to the other nodes. operations: None: there are none. moved_seconds: before a queue is looked for again
    that has moved."""

    def __init__(self, operations: Operations | None, moved_seconds: float = _MOVED_SECONDS) -> None:
        self._operations = operations
        self._moved_seconds = moved_seconds

    async def either(self, here: Callable[[], Awaitable[T]], operation: Operation,
                     there: Callable[[Outcome], T]) -> T:
        """here(), or if that raises QueueElsewhere what the node with the queue answers. Raises QueueElsewhere if that
        node is away, and what here() raises."""
        moved: QueueElsewhere | None = None
        for again in (True, False):
            try:
                return await here()
            except QueueElsewhere as elsewhere:
                if self._operations is None or elsewhere.away:
                    raise
                moved = elsewhere
                outcome = await self._operations.ask(elsewhere.node, operation, limits.ADMIN_FORWARD_SECONDS_MAX)
            if outcome.status != MOVED:
                return there(outcome)
            if again:
                await asyncio.sleep(self._moved_seconds)
        assert moved is not None
        raise QueueElsewhere(moved.node, f"the queue has left node {moved.node}; its new one is not known yet",
                             "try again in a moment", away=True)

    async def complete(self, entries: list[dict[str, Any]], owners: Iterable[str], operation: Operation, key: str,
                       name: str) -> tuple[list[dict[str, Any]], list[dict[str, str]]]:
        """(a list of what all nodes have, the nodes that have not answered: node, and why). entries: as this node knows
        it, without numbers of others. owners: the nodes to ask. key: of the list in an answer. name: with the namespace
        it is the key of an entry."""
        told: dict[tuple[str, str], dict[str, Any]] = {}
        missing: list[dict[str, str]] = []

        async def ask(operations: Operations, node: str) -> None:
            try:
                outcome = await operations.ask(node, operation, limits.ADMIN_GATHER_SECONDS_MAX)
            except QueueElsewhere as error:
                missing.append({"node": node, "why": error.text})
                return
            if outcome.status != 200:
                missing.append({"node": node, "why": f"node {node} answers with status {outcome.status}"})
                return
            for entry in msgspec.json.decode(outcome.body, type=dict[str, list[dict[str, Any]]])[key]:
                told[entry["namespace"], entry[name]] = entry

        if self._operations is not None:
            await asyncio.gather(*(ask(self._operations, node) for node in owners))
        if told:
            found = [(told.pop((entry["namespace"], entry[name]), entry), entry) for entry in entries]
            entries = [there if here["state"] in ELSEWHERE else here for there, here in found]
            entries += told.values()  # queues that only their node knows: made a moment ago, or under way
        return entries, sorted(missing, key=lambda one: one["node"])
