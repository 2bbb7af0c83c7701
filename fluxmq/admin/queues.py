"""What the admin API does with queues: the verbs of routes.py, over the engine's QueuesPort. For a queue that another
node has they raise QueueElsewhere, and routes.py asks that node; lists are put together of what all nodes say."""
import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from typing import Any, TypeVar
from urllib.parse import quote, urlencode

import msgspec

from fluxmq._core.errors import StorageError
from fluxmq.admin.answers import STATUS, Call, json_answer, refusal
from fluxmq.admin.bodies import Message, Messages, Move, Replay, Seek, shown_message, to_publish
from fluxmq.admin.dead_letters import replay_dead_letters
from fluxmq.admin.divided import DIVIDED, Divided, state_of, sum_entries
from fluxmq.admin.elsewhere import ELSEWHERE, Elsewhere, Look, as_answer, look_at, look_of, owners_of, served_here
from fluxmq.admin.http import Answer, Stream
from fluxmq.admin.pages import PAGE_WORDS, browse_page
from fluxmq.admin.words import number, truth
from fluxmq.admin.words import partition as read_partition
from fluxmq.engine.ports.definitions import Deferred
from fluxmq.engine.ports.operations import Operation
from fluxmq.engine.ports.queues import Browsed, QueueDivided, QueueElsewhere, QueueName, QueueRefused, QueuesPort
from fluxmq.model import limits

__all__ = ["TAIL_SECONDS", "Durable", "QueueRoutes"]

T = TypeVar("T")
# Between two looks at what was not there: the disk's answer to a browse, the next message of a tail. A look costs
# microseconds; a tenth of a second is invisible in a tail.
_LOADING_SECONDS = 0.01
TAIL_SECONDS = 0.1
# Of a queue at another node, where a look is a call.
_TAIL_ELSEWHERE_SECONDS = 0.25
# Of an idle tail: an empty line shows proxies that the connection is alive.
_TAIL_BLANK_SECONDS = 15.0
_STEP = 100
_Entry = dict[str, Any]


def _invalid(text: str, hint: str = "") -> QueueRefused:
    return QueueRefused("invalid", text, hint)


def _within(call: Call, entries: list[_Entry]) -> list[_Entry]:
    """The entries of the requested namespace; all if none is given."""
    only = call.query.get("namespace")
    return entries if only is None else [entry for entry in entries if entry["namespace"] == only]


def _wholes(entries: list[_Entry]) -> list[_Entry]:
    """Without the partitions that are queues of their own, whose numbers are those of their queues."""
    parts: dict[tuple[str, str], list[_Entry]] = {}
    for entry in entries:
        if "whole" in entry:
            parts.setdefault((entry["namespace"], entry["whole"]), []).append(entry)
    if not parts:
        return entries
    found = []
    for entry in entries:
        if "whole" in entry:
            continue
        if of_it := parts.get((entry["namespace"], entry["name"])):
            entry = sum_entries(entry, of_it) | {
                "state": state_of(entry["state"], ((part["node"], part["state"]) for part in of_it))}
            _fill_partitions(entry, of_it)
        found.append(entry)
    return found


def _fill_partitions(whole: _Entry, parts: Iterable[_Entry]) -> None:
    """What the nodes of the partitions have said of them."""
    places = whole.get("partition_list")
    for part in parts:
        told = part.get("partition_list")
        if places and told and part["partition"] < len(places):
            places[part["partition"]] = told[0] | {"partition": part["partition"]}


class Durable:
    """Awaits the disk: what was changed before the call is as durable as the configuration promises."""

    def __init__(self, queues: QueuesPort) -> None:
        self._queues = queues

    async def __call__(self) -> None:
        """Raises StorageError."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def then(error: Exception | None) -> None:
            if future.done():  # no request waits any more
                return
            if error is None:
                future.set_result(None)
            else:
                future.set_exception(error)

        self._queues.when_durable(then)
        await future


class QueueRoutes:
    """elsewhere: the way to the other nodes. tail_seconds: between two looks for news of a tail. others: the other
    nodes that are alive."""

    def __init__(self, queues: QueuesPort, elsewhere: Elsewhere, tail_seconds: float,
                 others: Callable[[], Iterable[str]] = tuple) -> None:
        self._queues = queues
        self._others = others
        self._elsewhere = elsewhere
        self._tail_seconds = tail_seconds
        self._durable = Durable(queues)
        self.parts: Divided  # of routes.py

    @staticmethod
    async def _changed(operation: Callable[[], T]) -> T:
        """Does it, again when all nodes know of what it changes (Deferred). Returns what the change has done, although
        the repetition finds nothing to change, or nothing at all."""
        result: T | None = None
        while True:
            try:
                answer = operation()
            except Deferred as deferred:
                await deferred.change()
                result = deferred.result
            except QueueRefused as refused:
                if result is None or refused.kind != "not_found":
                    raise
                return result
            else:
                return answer if result is None else result

    # ------------------------------------------------------------------ queues

    async def list_queues(self, call: Call) -> Answer:
        partitions = truth(call.query, "partitions")
        entries = self._queues.list_queues(partitions=True) if partitions else self._queues.list_queues()
        if call.node:
            return json_answer(200, {"queues": _within(call, served_here(entries))})
        # Who wants to see partitions wants to see which nodes answer, also those without a queue.
        asked = {*owners_of(entries), *(self._others() if partitions else ())}
        entries, missing = await self._elsewhere.complete(entries, asked, call.operation, "queues", "name")
        entries = _wholes(entries)
        self._count_dead(entries)
        return json_answer(200, {"queues": _within(call, entries)} | ({"missing": missing} if missing else {}))

    def _count_dead(self, entries: list[dict[str, Any]]) -> None:
        """Counts the dead letters of queues whose dead-letter queue is at another node than they are."""
        if any(entry["dead_letters"] is None for entry in entries):
            messages = {(entry["namespace"], entry["name"]): entry["messages"] for entry in entries}
            where = {(entry["namespace"], entry["queue"]): entry["dead_letter_queue"]
                     for entry in self._queues.dead_list()}
            for entry in entries:
                if entry["dead_letters"] is None:
                    namespace = entry["namespace"]
                    entry["dead_letters"] = messages.get((namespace, where.get((namespace, entry["name"]))))

    async def describe(self, call: Call) -> Answer:
        """Of a queue of another node what this node knows, if that one does not answer; "missing" says so."""
        name = call.names[0]

        async def here() -> Answer:
            found = self._queues.describe(name)
            if (divided := self._queues.divided(name)) is not None and not call.node:
                raise divided
            if found.get("state") == "elsewhere":
                raise QueueElsewhere(found["node"], f"queue {name} is at node {found['node']}")
            return json_answer(200, found)

        if call.node:
            return await here()
        try:
            return await self._elsewhere.either(here, call.operation, as_answer)
        except QueueElsewhere as error:
            missing = [{"node": error.node, "why": error.text}]
            return json_answer(200, self._queues.describe(name) | {"missing": missing})

    async def declare(self, call: Call) -> Answer:
        name = own = call.names[0]
        spec = msgspec.json.decode(call.body or b"{}", type=dict[str, Any])
        if isinstance(name, QueueName):
            own = name.own
            if spec.setdefault("namespace", name.namespace) != name.namespace:
                raise _invalid(f"the query names the namespace {name.namespace}, the body {spec['namespace']}",
                               "leave one of them out")
        if spec.setdefault("name", own) != own:
            raise _invalid(f"the path names {own}, the body {spec['name']}", "leave the name out of the body")
        result = await self._changed(lambda: self._queues.declare(spec))
        await self._durable()
        return json_answer(201 if result == "created" else 200, {"name": name, "result": result})

    async def delete(self, call: Call) -> Answer:
        """Without conditions it needs nothing of the nodes that have the queue: if they do not say how many messages
        are gone, that is not known: null."""
        name = call.names[0]
        if_unused, if_empty = truth(call.query, "if_unused"), truth(call.query, "if_empty")
        known: int | None = None
        is_here = self._queues.describe(name).get("state") not in (*ELSEWHERE, *DIVIDED)
        if not (is_here or if_unused or if_empty or call.node):
            known = await self._messages(name, call)
        messages = await self._changed(lambda: self._queues.delete(name, if_unused=if_unused, if_empty=if_empty))
        await self._durable()
        return json_answer(200, {"deleted": True, "messages": messages if is_here else known})

    async def _messages(self, name: str, call: Call) -> int | None:
        """How many messages a queue of other nodes has at present; None: they do not say."""
        query = ""
        if isinstance(name, QueueName):
            query, name = "?" + urlencode({"namespace": name.namespace}), name.own
        ask = Operation("GET", f"/api/v1/queues/{quote(name, safe='')}{query}")
        call = call._replace(query={}, body=b"", operation=ask)
        try:
            async with asyncio.timeout(limits.ADMIN_GATHER_SECONDS_MAX):
                try:
                    answer = await self.describe(call)
                except QueueDivided as divided:
                    answer = await self.parts.answer(divided, call, [])
        except TimeoutError:
            return None
        found = msgspec.json.decode(answer.body, type=_Entry)
        return None if "missing" in found else found.get("messages")    # none in an error: it has gone there already

    async def move(self, call: Call) -> Answer:
        """The owner is asked by a way of its own (cluster/queue_moves), for it may take long: 202, ask again."""
        name, move = call.names[0], msgspec.json.decode(call.body, type=Move)
        there = await self._queues.move(name, move.node, move.partition)
        return json_answer(200 if there else 202, {"name": name, "node": move.node, "moving": not there})

    async def purge(self, call: Call) -> Answer:
        name, unsettled = call.names[0], truth(call.query, "unsettled")
        purged = self._queues.purge(name, unsettled=unsettled)
        held = 0 if unsettled else self._queues.unsettled(name)
        await self._durable()
        return json_answer(200, {"purged": purged, "unsettled": held})

    # ------------------------------------------------------------------ messages

    async def publish(self, call: Call) -> Answer:
        """Several at once share a batch. When one is refused, those before it are in all the same, and counted."""
        body = msgspec.json.decode(call.body, type=dict[str, Any])
        given = (msgspec.convert(body, Messages).messages if "messages" in body else
                 [msgspec.convert(body, Message)])
        if not 1 <= len(given) <= limits.ADMIN_MESSAGES_MAX:
            raise _invalid(f"1 to {limits.ADMIN_MESSAGES_MAX} messages at once, not {len(given)}")
        # all are parsed before the first is appended, so that an invalid one leaves nothing behind
        messages = [to_publish(message) for message in given]
        placed: list[dict[str, Any]] = []
        refused: QueueRefused | None = None
        for message in messages:
            try:
                placed.append(self._queues.publish(call.names[0], message))
            except (QueueDivided, QueueElsewhere):  # before the first one: nothing has happened meanwhile
                raise
            except QueueRefused as error:
                refused = error
                break
        if placed:
            await self._durable()
        if refused is None:
            return json_answer(202, {"accepted": len(placed), "messages": placed})
        return json_answer(STATUS[refused.kind], {"error": refused.kind, "detail": refused.text, "hint": refused.hint,
                                                 "accepted": len(placed), "messages": placed})

    async def browse(self, call: Call) -> Answer:
        if call.operation.pages and not set(call.query) - set(PAGE_WORDS):
            return await browse_page(self._queues, call.names[0], call.query)
        if set(call.query) & {"to", "lane", "identity"}:
            raise _invalid("`to`, `lane` and `identity` are for pages of messages", "see Accept in docs/queues.md")
        partition = read_partition(call.query)
        return await self._browsed(call, lambda position, count: self._queues.browse(
            call.names[0], position, count, limits.ADMIN_BROWSE_BYTES_MAX, partition))

    async def logs(self, call: Call) -> Answer:
        kind, logs = self._queues.logs(call.names[0], call.query.get("position"))
        identity = self._queues.identity(call.names[0])
        return json_answer(200, {"name": call.names[0], "type": kind, "logs": logs} |
                     ({"identity": identity} if identity else {}))

    async def _browsed(self, call: Call, browse: Callable[[str, int], Browsed]) -> Answer:
        """A page: waits for the disk until there is a message or the end, but not longer."""
        count = number(call.query, "count", 10, 1, limits.ADMIN_MESSAGES_MAX)
        assert count is not None
        page = browse(call.query.get("from", "first"), count)
        while page.loading and not page.messages:
            await asyncio.sleep(_LOADING_SECONDS)
            page = browse(page.next, count)
        return json_answer(200, {"messages": [shown_message(message) for message in page.messages], "next": page.next})

    async def tail(self, call: Call) -> Stream:
        name, partition = call.names[0], read_partition(call.query)

        async def look(position: str) -> Look:
            async def here() -> Look:
                if (divided := self._queues.divided(name)) is not None:
                    return await self._look_at_parts(divided, call, position, partition)
                page = self._queues.browse(name, position, _STEP, limits.ADMIN_BROWSE_BYTES_MAX, partition)
                return Look(b"".join(msgspec.json.encode(shown_message(message)) + b"\n" for message in page.messages),
                            page.next, _LOADING_SECONDS if page.loading else self._tail_seconds)

            return await self._elsewhere.either(here, look_at(name, position, _STEP, partition),
                                                lambda outcome: look_of(outcome, _TAIL_ELSEWHERE_SECONDS))

        # the first page is read before the answer begins, so that an error has a status
        return Stream(200, "application/x-ndjson", self._lines(look, await look(call.query.get("from", "next"))))

    async def _look_at_parts(self, divided: QueueDivided, call: Call, position: str, partition: int | None) -> Look:
        page = await self.parts.page(divided, call, position, _STEP, partition)
        return Look(b"".join(msgspec.json.encode(message) + b"\n" for message in page.messages), page.next,
                    _TAIL_ELSEWHERE_SECONDS)

    async def _lines(self, look: Callable[[str], Awaitable[Look]], found: Look) -> AsyncGenerator[bytes, None]:
        idle = 0.0
        while True:
            if found.lines:
                yield found.lines
                idle = 0.0
                await asyncio.sleep(0)  # other work gets turns while a backlog is read
            else:
                idle += found.pause
                blank = idle >= _TAIL_BLANK_SECONDS
                yield b"\n" if blank else b""
                idle = 0.0 if blank else idle
                await asyncio.sleep(found.pause)
            try:
                found = await look(found.next)
            except QueueRefused as error:
                yield refusal(error).body
                return
            except StorageError as error:
                yield msgspec.json.encode({"error": "storage", "detail": str(error), "hint": ""}) + b"\n"
                return

    # ------------------------------------------------------------------ groups

    async def groups(self, call: Call) -> Answer:
        return json_answer(200, {"groups": self._queues.groups(call.names[0])})

    async def seek(self, call: Call) -> Answer:
        seek = msgspec.json.decode(call.body, type=Seek)
        positions = self._queues.seek(call.names[0], call.names[1], seek.position, seek.partition)
        await self._durable()
        return json_answer(200, {"positions": positions})

    async def delete_group(self, call: Call) -> Answer:
        self._queues.delete_group(*call.names)
        await self._durable()
        return json_answer(200, {"deleted": True})

    # ------------------------------------------------------------------ dead letters

    async def dead_list(self, call: Call) -> Answer:
        entries = self._queues.dead_list()
        if call.node:
            return json_answer(200, {"dead_letters": _within(call, served_here(entries))})
        owners = owners_of(self._queues.list_queues())
        entries, missing = await self._elsewhere.complete(entries, owners, call.operation, "dead_letters", "queue")
        return json_answer(200, {"dead_letters": _within(call, entries)} | ({"missing": missing} if missing else {}))

    async def dead_browse(self, call: Call) -> Answer:
        partition = read_partition(call.query)
        return await self._browsed(call, lambda position, count: self._queues.dead_browse(
            call.names[0], position, count, limits.ADMIN_BROWSE_BYTES_MAX, partition))

    async def dead_replay(self, call: Call) -> Answer:
        replayed = await replay_dead_letters(
            self._queues, call.names[0], msgspec.json.decode(call.body or b"{}", type=Replay),
            read_partition(call.query))
        await self._durable()
        return json_answer(200, {"replayed": replayed})

    async def dead_purge(self, call: Call) -> Answer:
        purged = self._queues.dead_purge(call.names[0], read_partition(call.query))
        await self._durable()
        return json_answer(200, {"purged": purged})
