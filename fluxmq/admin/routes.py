"""Routes of the admin API: what each takes, gives, and answers when it cannot. What they do with queues: queues.py.

    GET    /api/v1/queues?namespace=&partitions=      {"queues": [...]}
    GET    /api/v1/queues/Q                           one, in full
    PUT    /api/v1/queues/Q                           declare; body as an entry of `queues:`       201 made, 200 else
    DELETE /api/v1/queues/Q?if_unused=&if_empty=      {"deleted": true, "messages": n}
    POST   /api/v1/queues/Q/move                      {"node": n, "partition": p | null}: it is there   202 on its way
    POST   /api/v1/queues/Q/purge?unsettled=          {"purged": n, "unsettled": n}
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
    GET    /api/v1/exchanges?namespace=               {"exchanges": [...]}                          (exchanges.py)
    GET    /api/v1/bindings?namespace=&exchange=&queue=&from=&count=    {"bindings": [...], "next": n}
    GET    /api/v1/cluster                            the cluster, as this node sees it             (cluster.py)
    POST   /api/v1/cluster/voters/{node}              {"voter": node}: it has a vote in etcd
    DELETE /api/v1/cluster/voters/{node}              {"removed": node}: it has none any more
    GET    /api/v1/cluster/leave                      how far this node has come that leaves        200
    POST   /api/v1/cluster/leave?keep_vote=           {"leaving": id}: begun                        202
    GET    /api/v1/bans                               {"bans": [...], "standing": n}                (bans.py)
    POST   /api/v1/bans/ADDRESS?user=&seconds=        {"banned": {...}}
    DELETE /api/v1/bans/ADDRESS?user=                 {"lifted": [...]}
    …      /api/v1/users, /api/v1/permissions         of a cluster                                  (accounts.py)
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
from collections.abc import Awaitable, Callable, Sequence
from typing import Any
from urllib.parse import parse_qsl, unquote

import msgspec

from fluxmq._core.errors import StorageError
from fluxmq.admin.accounts import account_routes
from fluxmq.admin.answers import Call, json_answer, refusal
from fluxmq.admin.bans import add_ban, lift_bans, list_bans
from fluxmq.admin.clients import disconnect_client, list_clients, show_client
from fluxmq.admin.cluster import add_voter, leave_cluster, remove_voter, show_cluster, show_leaving
from fluxmq.admin.divided import Divided
from fluxmq.admin.elsewhere import Elsewhere, as_answer
from fluxmq.admin.exchanges import list_bindings, list_exchanges
from fluxmq.admin.http import Answer, Request, Stream
from fluxmq.admin.namespaces import create_namespace, delete_namespace, list_namespaces, show_namespace
from fluxmq.admin.pages import accepts_pages
from fluxmq.admin.queues import TAIL_SECONDS, Durable, QueueRoutes
from fluxmq.admin.recordings import begin_recording
from fluxmq.engine.ports.accounts import AccountsPort
from fluxmq.engine.ports.clients import ClientsPort
from fluxmq.engine.ports.exchanges import ExchangesPort
from fluxmq.engine.ports.guard import BansPort
from fluxmq.engine.ports.namespaces import NamespacesPort
from fluxmq.engine.ports.operations import Operation, Operations, Outcome
from fluxmq.engine.ports.overview import ClusterOverview
from fluxmq.engine.ports.queues import QueueDivided, QueueName, QueueRefused, QueuesPort
from fluxmq.engine.ports.record import RecordPort, RecordRefused
from fluxmq.model import limits

__all__ = ["AdminRoutes"]

_WORDS = {400: "invalid", 404: "not_found", 405: "method", 413: "too_large", 431: "too_large", 503: "unavailable",
          504: "timeout"}
# What other nodes may ask about.
_OF_OTHERS = ("/api/v1/queues", "/api/v1/dlq")

_Verb = Callable[[Call], Awaitable[Answer | Stream]]


class AdminRoutes:
    """Implements http.Handler, and by `answer` operations.Handler. tail_seconds: between two looks for news of a tail.
    operations: to the other nodes; None: there are none. on_log: as Broker's; is told who changed what, but not of
    messages that are published."""

    def __init__(self, queues: QueuesPort, recordings: RecordPort | None = None, *,
                 tail_seconds: float = TAIL_SECONDS, clients: Sequence[ClientsPort] = (),
                 bans: BansPort | None = None, accounts: AccountsPort | None = None,
                 namespaces: NamespacesPort | None = None, exchanges: ExchangesPort | None = None,
                 cluster: ClusterOverview | None = None, operations: Operations | None = None,
                 on_log: Callable[[str, str, str, dict[str, Any]], None] | None = None) -> None:
        self._elsewhere = Elsewhere(operations)
        self._on_log = on_log
        # path, None for a name; the verbs of it; the query that each takes
        self._routes: list[tuple[tuple[str | None, ...], dict[str, tuple[_Verb, frozenset[str]]]]] = []
        def others() -> list[str]:
            view = cluster.snapshot() if cluster is not None else None
            return [] if view is None else [node.id for node in view.nodes if node.epoch and node.id != view.local]

        every, durable = QueueRoutes(queues, self._elsewhere, tail_seconds, others), Durable(queues)
        self._divided = every.parts = Divided(queues, lambda operation: self._handle(operation, ""))
        queue = ("queues", None)
        self._route(("queues",), GET=(every.list_queues, "namespace partitions"))
        self._route(queue, GET=(every.describe, ""), PUT=(every.declare, ""),
                    DELETE=(every.delete, "if_unused if_empty"))
        self._route((*queue, "move"), POST=(every.move, ""))
        self._route((*queue, "purge"), POST=(every.purge, "unsettled"))
        self._route((*queue, "messages"), POST=(every.publish, ""),
                    GET=(every.browse, "from count partition to lane identity"))
        self._route((*queue, "logs"), GET=(every.logs, "position"))
        self._route((*queue, "tail"), GET=(every.tail, "from partition"))
        self._route((*queue, "groups"), GET=(every.groups, ""))
        self._route((*queue, "groups", None), DELETE=(every.delete_group, ""))
        self._route((*queue, "groups", None, "seek"), POST=(every.seek, ""))
        self._route(("clients",), GET=(lambda call: list_clients(clients, call.query), "namespace after count"))
        self._route(("clients", None),
                    GET=(lambda call: show_client(clients, call.names[0], **call.query), "namespace"),
                    DELETE=(lambda call: disconnect_client(clients, call.names[0], **call.query), "namespace"))
        if namespaces is not None:
            self._route(("namespaces",), GET=(lambda call: list_namespaces(namespaces), ""))
            self._route(("namespaces", None), GET=(lambda call: show_namespace(namespaces, call.names[0]), ""),
                        POST=(lambda call: create_namespace(namespaces, call.names[0], durable), ""),
                        DELETE=(lambda call: delete_namespace(namespaces, call.names[0], durable), ""))
        if exchanges is not None:
            self._route(("exchanges",), GET=(lambda call: list_exchanges(exchanges, call.query), "namespace"))
            self._route(("bindings",), GET=(lambda call: list_bindings(exchanges, call.query),
                                            "namespace exchange queue from count"))
        if cluster is not None:
            self._route(("cluster",), GET=(lambda call: show_cluster(cluster), ""))
            self._route(("cluster", "voters", None), POST=(lambda call: add_voter(cluster, call.names[0]), ""),
                        DELETE=(lambda call: remove_voter(cluster, call.names[0]), ""))
            self._route(("cluster", "leave"), GET=(lambda call: show_leaving(cluster), ""),
                        POST=(lambda call: leave_cluster(cluster, call.query), "keep_vote"))
        if bans is not None:
            self._route(("bans",), GET=(lambda call: list_bans(bans), ""))
            self._route(("bans", None), DELETE=(lambda call: lift_bans(bans, call.names[0], call.query), "user"),
                        POST=(lambda call: add_ban(bans, call.names[0], call.query), "user seconds"))
        if accounts is not None:
            for path, verbs in account_routes(accounts).items():
                self._route(path, **verbs)
        self._route(("dlq",), GET=(every.dead_list, "namespace"))
        self._route((*queue, "dlq"), GET=(every.dead_browse, "from count partition"))
        self._route((*queue, "dlq", "replay"), POST=(every.dead_replay, "partition"))
        self._route((*queue, "dlq", "purge"), POST=(every.dead_purge, "partition"))
        if recordings is not None:
            self._route(("record",), POST=(lambda call: begin_recording(recordings, call.body), ""))

    def _route(self, path: tuple[str | None, ...], **verbs: tuple[_Verb, str]) -> None:
        every = {"namespace"} if path[:2] == ("queues", None) else set()
        self._routes.append((path, {method: (verb, frozenset({*query.split(), *every}))
                                    for method, (verb, query) in verbs.items()}))

    def refuse(self, status: int, text: str, hint: str = "") -> Answer:
        return json_answer(status, {"error": _WORDS.get(status, "internal" if status >= 500 else "invalid"),
                                    "detail": text, "hint": hint})

    async def handle(self, request: Request) -> Answer | Stream:
        return await self._handle(Operation(request.method, request.target, request.body,
                                            accepts_pages(request.raw)), "")

    async def answer(self, operation: Operation, node: str) -> Outcome:
        """What another node asks for, of queues that this one has. See operations.Handler."""
        answer: Answer | Stream | None = None
        if operation.target.startswith(_OF_OTHERS):
            try:
                async with asyncio.timeout(limits.ADMIN_HANDLE_SECONDS_MAX):  # nobody waits for longer
                    answer = await self._handle(operation, node)
            except TimeoutError:
                answer = self.refuse(504, "it took too long; it may have been done nevertheless")
        if isinstance(answer, Stream):
            await answer.pieces.aclose()
            answer = None
        if answer is None:
            answer = self.refuse(404, "other nodes ask about queues only, one page at a time")
        return Outcome(answer.status, answer.content_type, answer.body)

    async def _handle(self, request: Operation, node: str) -> Answer | Stream:
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
                               "see the table of paths in docs/queues.md")
        route = verbs.get("GET" if request.method == "HEAD" and "tail" not in segments[-1:] else request.method)
        if route is None:
            allowed = ", ".join(verbs)
            return json_answer(405, {"error": "method", "detail": f"only {allowed}", "hint": ""}, ("Allow", allowed))
        verb, words = route
        query = dict(pairs)
        if set(query) - words:
            return self.refuse(400, f"unknown in the query: {', '.join(sorted(set(query) - words))}",
                               f"there are: {', '.join(sorted(words))}" if words else "it takes no query")
        if names and segments[2] == "queues" and "namespace" in query:
            names[0] = QueueName(query.pop("namespace"), names[0])
        call = Call(names, query, request.body, request, node)
        try:
            answer = await (verb(call) if node else self._elsewhere.either(lambda: verb(call), request, as_answer))
            if self._on_log is not None and answer.status < 400 and request.method not in ("GET", "HEAD") \
                    and segments[-1] != "messages":
                self._on_log("info", "", f"changed through the admin socket{' of another node' if node else ''}", {
                    "request": f"{request.method} {path}", **dict(pairs), **({"node": node} if node else {})})
            return answer
        except QueueDivided as divided:
            if node:
                return refusal(divided, asked_by_node=True)
            try:
                return await self._divided.answer(divided, call, segments[4:])
            except QueueRefused as error:
                return refusal(error)
        except (QueueRefused, RecordRefused) as error:
            return refusal(error, asked_by_node=bool(node))
        except StorageError as error:
            return json_answer(503, {"error": "storage", "detail": str(error), "hint":
                                     "the broker's log says more; nothing is confirmed that is not on the disk"})
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
