"""The control socket of a try-out: others steer it while it runs.

`control.sock` in the directory of the try-out, a Unix stream socket of its user. A request is one line, a JSON object
with "do" and what that needs; the answer is one line: {"ok": true, …} or {"ok": false, "error": TEXT}. A connection
takes any number of requests, one after the other.

| do | needs | answers, besides ok | does |
|---|---|---|---|
| status | | dir, pid, nodes, clients, traffic, phase | nothing |
| kill | node | node | SIGKILL: the node and its etcd member |
| restart | node | node | starts it, killed before if it runs; the answer does not wait until it serves |
| stop | node | node | SIGSTOP: it hangs |
| continue | node | node | SIGCONT |
| clients | | clients | nothing |
| pause, resume | client | client | a demo client stays connected, and publishes and settles nothing; goes on |
| kill, restart | client | client | a demo client disconnects; connects again |
| nack | client, or nothing: consumers take turns | client | the next message of this consumer is given back |
| rate | rate: messages per second and publisher, or factor | traffic | |
| confirms | on: true or false; nothing: the other | traffic | publishers ask for confirms |
| routing | keyed: true or false; nothing: the other | traffic | messages have keys, or partitions take turns |
| repartition | queue, partitions | | nothing yet: refused, with "later": true |
| end | | | ends the try-out, as Ctrl-C does |

nodes: {"node", "state": up | starting | stopped | down, "pid", "etcd_pid", "mqtt", "amqp", "websocket", "health",
"cluster", "metrics", "socket", "config", "log"}. clients: {"client", "protocol": mqtt | amqp, "role": publisher |
consumer, "node", "state": running | paused | killed, "published", "confirmed", "refused", "received", "redelivered",
"settled", "returned", "connects"}. traffic: {"rate", "confirms", "keyed"}. phase: what the try-out does: starting, up,
verifying.
"""
from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Self

from fluxmq.tryout.asking import TryoutError
from fluxmq.tryout.nodes import Node, Nodes
from fluxmq.tryout.traffic import DemoClient, Traffic

__all__ = ["ControlClient", "ControlServer"]

LINE_MAX = 64 << 10
ANSWER_S = 30.0
LATER = "repartition comes with a later version: this one cannot change the number of partitions of a queue"


class ControlServer:
    """path: of the socket. about: what `status` says besides nodes, clients and traffic. on_end: called once an order
    to end has been answered."""

    def __init__(self, path: Path, nodes: Nodes, traffic: Traffic, about: Callable[[], dict[str, Any]],
                 on_end: Callable[[], None]) -> None:
        self._path, self._nodes, self._traffic, self._about, self._on_end = path, nodes, traffic, about, on_end
        self._server: asyncio.Server | None = None
        self._starts: set[asyncio.Future[None]] = set()     # nodes that were told to start
        self._connections: set[asyncio.StreamWriter] = set()

    async def start(self) -> None:
        """Raises OSError."""
        self._server = await asyncio.start_unix_server(self._serve, str(self._path), limit=LINE_MAX)

    def close(self) -> None:
        if self._server is not None:
            self._server.close()
        for writer in list(self._connections):
            writer.close()
        for start in self._starts:
            start.cancel()

    def status(self) -> dict[str, Any]:
        """The answer to `status`."""
        return {**self._about(), "nodes": [node.about() for node in self._nodes], **self._clients(), **self._settings()}

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._connections.add(writer)
        try:
            while line := await reader.readline():
                answer, ends = self._answer(line)
                writer.write(json.dumps(answer).encode() + b"\n")
                await writer.drain()
                if ends:
                    self._on_end()
        except (OSError, ValueError):       # it has gone, or its line is too long
            pass
        finally:
            self._connections.discard(writer)
            writer.close()

    def _answer(self, line: bytes) -> tuple[dict[str, Any], bool]:
        """And whether it was the order to end."""
        try:
            given = json.loads(line)
            if not isinstance(given, dict) or not isinstance(given.get("do"), str):
                raise TryoutError('a request is a JSON object with "do"')
            if given["do"] == "repartition":
                return {"ok": False, "later": True, "error": LATER}, False
            return {"ok": True, **self._do(given)}, given["do"] == "end"
        except TryoutError as error:
            return {"ok": False, "error": str(error)}, False
        except (LookupError, ValueError, TypeError) as error:
            return {"ok": False, "error": f"the request cannot be read: {error!r}"}, False

    def _do(self, given: dict[str, Any]) -> dict[str, Any]:
        what, traffic = given["do"], self._traffic
        if what in ("kill", "restart", "stop", "continue", "pause", "resume"):
            if given.get("client") is not None:
                return self._to_client(what, traffic.named(str(given["client"])))
            return self._to_node(what, self._nodes.named(str(given.get("node", ""))))
        if what == "nack":
            return {"client": traffic.nack_next(given.get("client")).name}
        if what == "rate":
            rate = given.get("rate")
            traffic.change_rate(float(given["factor"]) * traffic.settings.rate if rate is None else float(rate))
        elif what == "confirms":
            traffic.settings.confirms = _switched(given.get("on"), traffic.settings.confirms)
        elif what == "routing":
            traffic.settings.keyed = _switched(given.get("keyed"), traffic.settings.keyed)
        elif what == "status":
            return self.status()
        elif what == "clients":
            return self._clients()
        elif what == "end":
            return {}
        else:
            raise TryoutError(f"nobody knows how to {what}")
        return self._settings()

    def _to_node(self, what: str, node: Node) -> dict[str, Any]:
        act = {"kill": self._nodes.kill, "stop": self._nodes.stop, "continue": self._nodes.go_on,
               "restart": self._restart}.get(what)
        if act is None:
            raise TryoutError(f"{what} needs a client, not a node")
        act(node)
        return {"node": node.name}

    def _restart(self, node: Node) -> None:
        task = asyncio.ensure_future(self._served(node, self._nodes.restart(node)))
        self._starts.add(task)
        task.add_done_callback(self._starts.discard)

    async def _served(self, node: Node, serves: Awaitable[None]) -> None:
        try:
            await serves
        except TryoutError as error:
            self._nodes.say(node, str(error))

    @staticmethod
    def _to_client(what: str, client: DemoClient) -> dict[str, Any]:
        act = {"kill": client.kill, "restart": client.start, "pause": client.pause, "resume": client.start}.get(what)
        if act is None:
            raise TryoutError(f"{what} needs a node, not a client")
        act()
        return {"client": client.name}

    def _clients(self) -> dict[str, Any]:
        return {"clients": [client.about() for client in self._traffic.clients]}

    def _settings(self) -> dict[str, Any]:
        settings = self._traffic.settings
        return {"traffic": {"rate": settings.rate, "confirms": settings.confirms, "keyed": settings.keyed}}


def _switched(wanted: Any, now: bool) -> bool:
    return not now if wanted is None else bool(wanted)


class ControlClient:
    """The other end, blocking; for commands and for the view. Each method raises TryoutError if the try-out refuses, or
    is gone. Those about a node take its name or number, and return its name."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.settimeout(ANSWER_S)
        try:
            self._socket.connect(str(path))
        except OSError as error:
            self._socket.close()
            raise TryoutError(f"no try-out answers in {path.parent} ({error.strerror or error}): "
                              "`fluxmq tryout --hold` starts one") from error
        self._lines = self._socket.makefile("rb")

    def ask(self, do: str, **given: Any) -> dict[str, Any]:
        """Any request; the answer."""
        try:
            self._socket.sendall(json.dumps({"do": do, **given}).encode() + b"\n")
            line = self._lines.readline()
            answer = json.loads(line) if line else None
        except (OSError, ValueError) as error:
            raise TryoutError(f"{self._path}: {error}") from error
        if not isinstance(answer, dict):
            raise TryoutError(f"{self._path}: the try-out has ended")
        if not answer.get("ok"):
            raise TryoutError(str(answer.get("error")))
        return answer

    def status(self) -> dict[str, Any]:
        return self.ask("status")

    def clients(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.ask("clients")["clients"]
        return found

    def kill_node(self, node: str) -> str:
        return str(self.ask("kill", node=node)["node"])

    def restart_node(self, node: str) -> str:
        return str(self.ask("restart", node=node)["node"])

    def stop_node(self, node: str) -> str:
        return str(self.ask("stop", node=node)["node"])

    def continue_node(self, node: str) -> str:
        return str(self.ask("continue", node=node)["node"])

    def kill_client(self, client: str) -> None:
        self.ask("kill", client=client)

    def restart_client(self, client: str) -> None:
        self.ask("restart", client=client)

    def pause_client(self, client: str) -> None:
        self.ask("pause", client=client)

    def resume_client(self, client: str) -> None:
        self.ask("resume", client=client)

    def nack_next(self, client: str | None = None) -> str:
        """Which consumer it is."""
        return str(self.ask("nack", client=client)["client"])

    def change_rate(self, factor: float) -> float:
        """The new rate."""
        return float(self.ask("rate", factor=factor)["traffic"]["rate"])

    def confirms(self, on: bool | None = None) -> bool:
        return bool(self.ask("confirms", on=on)["traffic"]["confirms"])

    def keyed(self, on: bool | None = None) -> bool:
        return bool(self.ask("routing", keyed=on)["traffic"]["keyed"])

    def repartition(self, queue: str, partitions: int) -> None:
        """Refused by this version."""
        self.ask("repartition", queue=queue, partitions=partitions)

    def end(self) -> None:
        self.ask("end")

    def close(self) -> None:
        self._lines.close()
        self._socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
