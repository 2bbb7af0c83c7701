"""Routes of the admin API over the engine's queues: what each takes, gives, and answers when it cannot.

    GET    /api/v1/queues?namespace=                  {"queues": [...]}
    GET    /api/v1/queues/Q                           one, in full
    PUT    /api/v1/queues/Q                           declare; body as an entry of `queues:`       201 made, 200 else
    DELETE /api/v1/queues/Q?if_unused=&if_empty=      {"deleted": true, "messages": n}
    POST   /api/v1/queues/Q/purge                     {"purged": n}
    POST   /api/v1/queues/Q/messages                  {"messages": [...]} or one of them           202
    GET    /api/v1/queues/Q/messages?from=&count=&partition=    browse: claims nothing; as bytes: pages.py
    GET    /api/v1/queues/Q/logs?position=            where its logs begin and end, and where in each a position is
    GET    /api/v1/queues/Q/tail?from=&partition=     a stream, one JSON object per line; blank lines keep it alive
    GET    /api/v1/queues/Q/groups                    {"groups": [...]}
    POST   /api/v1/queues/Q/groups/G/seek             {"position": "first", "partition": n | null}
    DELETE /api/v1/queues/Q/groups/G
    GET    /api/v1/clients?namespace=&after=&count=   {"clients": [...], "connected": n, "next": key}  (clients.py)
    GET    /api/v1/clients/C?namespace=               {"client": {...}, "subscriptions": [...]}
    DELETE /api/v1/clients/C?namespace=               {"disconnected": true}: its connection, not its session
    GET    /api/v1/namespaces                         {"namespaces": [...]}                         (namespaces.py)
    GET    /api/v1/namespaces/N                       one
    POST   /api/v1/namespaces/N                       create                                         201 made, 200 else
    DELETE /api/v1/namespaces/N                       with all that is in it: {"deleted": true, "sessions": n, ...}
    GET    /api/v1/cluster                            the cluster, as this node sees it             (cluster.py)
    POST   /api/v1/cluster/voters/{node}              {"voter": node}: it has a vote in etcd
    DELETE /api/v1/cluster/voters/{node}              {"removed": node}: it has none any more
    POST   /api/v1/cluster/leave                      {"leaving": id}: begun                        202
    GET    /api/v1/bans                               {"bans": [...], "standing": n}                (bans.py)
    DELETE /api/v1/bans/ADDRESS?user=                 {"lifted": [...]}
    GET    /api/v1/dlq?namespace=                     {"dead_letters": [...]}, one entry per queue
    GET    /api/v1/queues/Q/dlq?from=&count=          browse the dead letters of Q
    POST   /api/v1/queues/Q/dlq/replay                {"messages": [[partition, offset], ...]} or {"count": n}
    POST   /api/v1/queues/Q/dlq/purge                 {"purged": n}
    POST   /api/v1/record                             a stream; recorded while it is open (recordings.py)

Names are one segment each, percent-encoded. A queue Q outside "/" is named as it is listed, <namespace>/<name>, or by
its name with ?namespace=, by which nothing else can be meant. What changes something is answered when the change is
durable, as an MQTT client would be. What fails is {"error": word, "detail": sentence, "hint": what to do}.
"""
import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, unquote

import msgspec

from fluxmq._core.errors import StorageError
from fluxmq.admin.bans import lift_bans, list_bans
from fluxmq.admin.bodies import Message, Messages, Replay, Seek, shown_message, to_publish
from fluxmq.admin.clients import disconnect_client, list_clients, show_client
from fluxmq.admin.cluster import add_voter, leave_cluster, remove_voter, show_cluster
from fluxmq.admin.dead_letters import replay_dead_letters
from fluxmq.admin.http import Answer, Request, Stream
from fluxmq.admin.namespaces import create_namespace, delete_namespace, list_namespaces, show_namespace
from fluxmq.admin.pages import PAGE_WORDS, accepts_pages, browse_page
from fluxmq.admin.recordings import begin_recording
from fluxmq.admin.words import number, truth
from fluxmq.admin.words import partition as read_partition
from fluxmq.engine.ports.clients import ClientsPort
from fluxmq.engine.ports.guard import BansPort
from fluxmq.engine.ports.namespaces import NamespacesPort
from fluxmq.engine.ports.overview import ClusterOverview
from fluxmq.engine.ports.queues import Browsed, QueueName, QueueRefused, QueuesPort
from fluxmq.engine.ports.record import RecordPort, RecordRefused
from fluxmq.model import limits

__all__ = ["AdminRoutes"]

_JSON_TYPE = "application/json"
_LINES_TYPE = "application/x-ndjson"
_STATUS = {"not_found": 404, "conflict": 409, "invalid": 400, "full": 507, "unavailable": 503}
_WORDS = {400: "invalid", 404: "not_found", 405: "method", 413: "too_large", 431: "too_large", 503: "unavailable",
          504: "timeout"}
# Between two looks at what was not there: the disk's answer to a browse, the next message of a tail. A look costs
# microseconds; a tenth of a second is invisible in a tail.
_LOADING_SECONDS = 0.01
_TAIL_SECONDS = 0.1
# Of an idle tail: an empty line shows proxies that the connection is alive.
_TAIL_BLANK_LOOKS = 150
_STEP = 100


class _Call(NamedTuple):
    """A parsed request: names from the path, the query, the body; whether bytes are requested."""

    names: list[str]
    query: dict[str, str]
    body: bytes
    pages: bool = False


_Verb = Callable[[_Call], Awaitable[Answer | Stream]]


def _json(status: int, body: dict[str, Any], *headers: tuple[str, str]) -> Answer:
    # a QueueName is text, too
    return Answer(status, _JSON_TYPE, msgspec.json.encode(body, enc_hook=str) + b"\n", headers)


def _invalid(text: str, hint: str = "") -> QueueRefused:
    return QueueRefused("invalid", text, hint)


def _within(call: _Call, entries: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The entries of the requested namespace; all if none is given."""
    only = call.query.get("namespace")
    return entries if only is None else [entry for entry in entries if entry["namespace"] == only]


class AdminRoutes:
    """Implements http.Handler. tail_seconds: between two looks for news of a tail. on_log: as Broker's; is told who
    changed what, but not of messages that are published."""

    def __init__(self, queues: QueuesPort, recordings: RecordPort | None = None, *,
                 tail_seconds: float = _TAIL_SECONDS, clients: Sequence[ClientsPort] = (),
                 bans: BansPort | None = None, namespaces: NamespacesPort | None = None,
                 cluster: ClusterOverview | None = None,
                 on_log: Callable[[str, str, str, dict[str, Any]], None] | None = None) -> None:
        self._queues = queues
        self._on_log = on_log
        self._tail_seconds = tail_seconds
        # path, None for a name; the verbs of it; the query that each takes
        self._routes: list[tuple[tuple[str | None, ...], dict[str, tuple[_Verb, frozenset[str]]]]] = []
        queue = ("queues", None)
        self._route(("queues",), GET=(self._list, "namespace"))
        self._route(queue, GET=(self._describe, ""), PUT=(self._declare, ""),
                    DELETE=(self._delete, "if_unused if_empty"))
        self._route((*queue, "purge"), POST=(self._purge, ""))
        self._route((*queue, "messages"), POST=(self._publish, ""), GET=(self._browse, "from count partition to lane"))
        self._route((*queue, "logs"), GET=(self._logs, "position"))
        self._route((*queue, "tail"), GET=(self._tail, "from partition"))
        self._route((*queue, "groups"), GET=(self._groups, ""))
        self._route((*queue, "groups", None), DELETE=(self._delete_group, ""))
        self._route((*queue, "groups", None, "seek"), POST=(self._seek, ""))
        self._route(("clients",), GET=(lambda call: list_clients(clients, call.query), "namespace after count"))
        self._route(("clients", None),
                    GET=(lambda call: show_client(clients, call.names[0], **call.query), "namespace"),
                    DELETE=(lambda call: disconnect_client(clients, call.names[0], **call.query), "namespace"))
        if namespaces is not None:
            self._route(("namespaces",), GET=(lambda call: list_namespaces(namespaces), ""))
            self._route(("namespaces", None), GET=(lambda call: show_namespace(namespaces, call.names[0]), ""),
                        POST=(lambda call: create_namespace(namespaces, call.names[0], self._durable), ""),
                        DELETE=(lambda call: delete_namespace(namespaces, call.names[0], self._durable), ""))
        if cluster is not None:
            self._route(("cluster",), GET=(lambda call: show_cluster(cluster), ""))
            self._route(("cluster", "voters", None), POST=(lambda call: add_voter(cluster, call.names[0]), ""),
                        DELETE=(lambda call: remove_voter(cluster, call.names[0]), ""))
            self._route(("cluster", "leave"), POST=(lambda call: leave_cluster(cluster), ""))
        if bans is not None:
            self._route(("bans",), GET=(lambda call: list_bans(bans), ""))
            self._route(("bans", None), DELETE=(lambda call: lift_bans(bans, call.names[0], call.query), "user"))
        self._route(("dlq",), GET=(self._dead_list, "namespace"))
        self._route((*queue, "dlq"), GET=(self._dead_browse, "from count"))
        self._route((*queue, "dlq", "replay"), POST=(self._dead_replay, ""))
        self._route((*queue, "dlq", "purge"), POST=(self._dead_purge, ""))
        if recordings is not None:
            self._route(("record",), POST=(lambda call: begin_recording(recordings, call.body), ""))

    def _route(self, path: tuple[str | None, ...], **verbs: tuple[_Verb, str]) -> None:
        every = {"namespace"} if path[:2] == ("queues", None) else set()
        self._routes.append((path, {method: (verb, frozenset({*query.split(), *every}))
                                    for method, (verb, query) in verbs.items()}))

    def refuse(self, status: int, text: str, hint: str = "") -> Answer:
        return _json(status, {"error": _WORDS.get(status, "internal" if status >= 500 else "invalid"), "detail": text,
                              "hint": hint})

    async def handle(self, request: Request) -> Answer | Stream:
        path, _, query_text = request.target.partition("?")
        try:
            segments = [unquote(part, errors="strict") for part in path.split("/")[1:]]
            pairs = parse_qsl(query_text, keep_blank_values=True, strict_parsing=bool(query_text), errors="strict",
                              max_num_fields=16)
        except ValueError:
            return self.refuse(400, "the path or the query is not percent-encoded UTF-8")
        verbs, names = self._find(segments)
        if verbs is None:
            return self.refuse(404, "there is no such path",
                               "the paths begin with /api/v1/queues, dlq, clients, namespaces, cluster or bans")
        route = verbs.get("GET" if request.method == "HEAD" and "tail" not in segments[-1:] else request.method)
        if route is None:
            allowed = ", ".join(verbs)
            return _json(405, {"error": "method", "detail": f"only {allowed}", "hint": ""}, ("Allow", allowed))
        verb, words = route
        query = dict(pairs)
        if set(query) - words:
            return self.refuse(400, f"unknown in the query: {', '.join(sorted(set(query) - words))}",
                               f"there are: {', '.join(sorted(words))}" if words else "it takes no query")
        if names and segments[2] == "queues" and "namespace" in query:
            names[0] = QueueName(query.pop("namespace"), names[0])
        try:
            answer = await verb(_Call(names, query, request.body, accepts_pages(request.raw)))
            if self._on_log is not None and request.method not in ("GET", "HEAD") and segments[-1] != "messages":
                self._on_log("info", "", "changed through the admin socket", {
                    "request": f"{request.method} {path}", **dict(pairs)})
            return answer
        except (QueueRefused, RecordRefused) as error:
            return _json(_STATUS[error.kind], {"error": error.kind, "detail": error.text, "hint": error.hint})
        except StorageError as error:
            return _json(503, {"error": "storage", "detail": str(error),
                               "hint": "the broker's log says more; nothing is confirmed that is not on the disk"})
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            return self.refuse(400, f"the body cannot be used: {error}")

    def _find(self, segments: list[str]) -> tuple[dict[str, tuple[_Verb, frozenset[str]]] | None, list[str]]:
        if segments[:2] == ["api", "v1"]:
            rest = segments[2:]
            for path, verbs in self._routes:
                if len(path) == len(rest) and all(part is None or part == given
                                                  for part, given in zip(path, rest, strict=True)):
                    names = [given for part, given in zip(path, rest, strict=True) if part is None]
                    return (verbs, names) if all(names) else (None, [])
        return None, []

    async def _durable(self) -> None:
        """Waits until all changes so far are on disk."""
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

    # ------------------------------------------------------------------ queues

    async def _list(self, call: _Call) -> Answer:
        return _json(200, {"queues": _within(call, self._queues.list_queues())})

    async def _describe(self, call: _Call) -> Answer:
        return _json(200, self._queues.describe(call.names[0]))

    async def _declare(self, call: _Call) -> Answer:
        name = own = call.names[0]
        spec = msgspec.json.decode(call.body or b"{}", type=dict[str, Any])
        if isinstance(name, QueueName):
            own = name.own
            if spec.setdefault("namespace", name.namespace) != name.namespace:
                raise _invalid(f"the query names the namespace {name.namespace}, the body {spec['namespace']}",
                               "leave one of them out")
        if spec.setdefault("name", own) != own:
            raise _invalid(f"the path names {own}, the body {spec['name']}", "leave the name out of the body")
        result = self._queues.declare(spec)
        await self._durable()
        return _json(201 if result == "created" else 200, {"name": name, "result": result})

    async def _delete(self, call: _Call) -> Answer:
        messages = self._queues.delete(call.names[0], if_unused=truth(call.query, "if_unused"),
                                       if_empty=truth(call.query, "if_empty"))
        await self._durable()
        return _json(200, {"deleted": True, "messages": messages})

    async def _purge(self, call: _Call) -> Answer:
        purged = self._queues.purge(call.names[0])
        await self._durable()
        return _json(200, {"purged": purged})

    # ------------------------------------------------------------------ messages

    async def _publish(self, call: _Call) -> Answer:
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
            except QueueRefused as error:
                refused = error
                break
        if placed:
            await self._durable()
        if refused is None:
            return _json(202, {"accepted": len(placed), "messages": placed})
        return _json(_STATUS[refused.kind], {"error": refused.kind, "detail": refused.text, "hint": refused.hint,
                                             "accepted": len(placed), "messages": placed})

    async def _browse(self, call: _Call) -> Answer:
        if call.pages and not set(call.query) - set(PAGE_WORDS):
            return await browse_page(self._queues, call.names[0], call.query)
        if set(call.query) & {"to", "lane"}:
            raise _invalid("`to` and `lane` are for pages of messages", "see Accept in docs/queues.md")
        partition = read_partition(call.query)
        return await self._browsed(call, lambda position, count: self._queues.browse(
            call.names[0], position, count, limits.ADMIN_BROWSE_BYTES_MAX, partition))

    async def _logs(self, call: _Call) -> Answer:
        kind, logs = self._queues.logs(call.names[0], call.query.get("position"))
        return _json(200, {"name": call.names[0], "type": kind, "logs": logs})

    async def _browsed(self, call: _Call, browse: Callable[[str, int], Browsed]) -> Answer:
        """A page: waits for the disk until there is a message or the end, but not longer."""
        count = number(call.query, "count", 10, 1, limits.ADMIN_MESSAGES_MAX)
        assert count is not None
        page = browse(call.query.get("from", "first"), count)
        while page.loading and not page.messages:
            await asyncio.sleep(_LOADING_SECONDS)
            page = browse(page.next, count)
        return _json(200, {"messages": [shown_message(message) for message in page.messages], "next": page.next})

    async def _tail(self, call: _Call) -> Stream:
        name, partition = call.names[0], read_partition(call.query)

        def browse(position: str) -> Browsed:
            return self._queues.browse(name, position, _STEP, limits.ADMIN_BROWSE_BYTES_MAX, partition)

        # the first page is read before the answer begins, so that an error has a status
        return Stream(200, _LINES_TYPE, self._lines(browse, browse(call.query.get("from", "next"))))

    async def _lines(self, browse: Callable[[str], Browsed], page: Browsed) -> AsyncGenerator[bytes, None]:
        idle = 0
        while True:
            if page.messages:
                yield b"".join(msgspec.json.encode(shown_message(message)) + b"\n" for message in page.messages)
                idle = 0
                await asyncio.sleep(0)  # other work gets turns while a backlog is read
            else:
                idle += 1
                yield b"" if page.loading or idle % _TAIL_BLANK_LOOKS else b"\n"
                await asyncio.sleep(_LOADING_SECONDS if page.loading else self._tail_seconds)
            try:
                page = browse(page.next)
            except QueueRefused as error:
                yield msgspec.json.encode({"error": error.kind, "detail": error.text, "hint": error.hint}) + b"\n"
                return
            except StorageError as error:
                yield msgspec.json.encode({"error": "storage", "detail": str(error), "hint": ""}) + b"\n"
                return

    # ------------------------------------------------------------------ groups

    async def _groups(self, call: _Call) -> Answer:
        return _json(200, {"groups": self._queues.groups(call.names[0])})

    async def _seek(self, call: _Call) -> Answer:
        seek = msgspec.json.decode(call.body, type=Seek)
        positions = self._queues.seek(call.names[0], call.names[1], seek.position, seek.partition)
        await self._durable()
        return _json(200, {"positions": positions})

    async def _delete_group(self, call: _Call) -> Answer:
        self._queues.delete_group(*call.names)
        await self._durable()
        return _json(200, {"deleted": True})

    # ------------------------------------------------------------------ dead letters

    async def _dead_list(self, call: _Call) -> Answer:
        return _json(200, {"dead_letters": _within(call, self._queues.dead_list())})

    async def _dead_browse(self, call: _Call) -> Answer:
        return await self._browsed(call, lambda position, count: self._queues.dead_browse(
            call.names[0], position, count, limits.ADMIN_BROWSE_BYTES_MAX))

    async def _dead_replay(self, call: _Call) -> Answer:
        replayed = await replay_dead_letters(
            self._queues, call.names[0], msgspec.json.decode(call.body or b"{}", type=Replay))
        await self._durable()
        return _json(200, {"replayed": replayed})

    async def _dead_purge(self, call: _Call) -> Answer:
        purged = self._queues.dead_purge(call.names[0])
        await self._durable()
        return _json(200, {"purged": purged})
