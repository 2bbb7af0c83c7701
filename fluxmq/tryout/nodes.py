"""The nodes of a try-out: their configurations, starts, deaths, and what they say of themselves.

    down ──start──► starting ──it serves──► up ──SIGSTOP──► stopped ──SIGCONT──► up
      ▲                 │                    │                 │
      └─────────────────┴──── it ends, in whatever way ────────┘

Most of them run a member of etcd: one, three or five, the largest odd number that there are nodes for, because an even
number bears no more losses. Further nodes use the members of the others.
"""
from __future__ import annotations

import asyncio
import re
import shutil
import signal
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import yaml

from fluxmq.client.tasks import Tasks
from fluxmq.tryout.asking import NoAnswer, TryoutError, ask
from fluxmq.tryout.ports import HOST, HeldPorts
from fluxmq.tryout.processes import Child, kill_all

__all__ = ["LEASE_TTL_S", "Node", "Nodes"]

PORTS = ("mqtt", "websocket", "amqp", "health", "etcd_peer", "etcd_client", "transport")
IN_USE = "address already in use"       # the broker's message and etcd's, in lower case
NO_ROOM = re.compile(r"no space left on device|the disk of \S+ is full", re.IGNORECASE)
OTHERS = re.compile(r"node-\d.*")
LEASE_TTL_S = 5         # short, so that the others soon notice that a node is gone
PATIENCE_S = 120.0      # for a node that starts
LOOK_S = 0.05
GLANCE_S = 5.0          # for an answer of a node that may hang
PORT_TRIES = 3
VOTERS_MAX = 5

Say = Callable[[str], None]


class PortTaken(TryoutError):
    """Another program was faster."""


class Node:
    """One node. stopped: by SIGSTOP. serving: it has said so since its last start."""

    def __init__(self, number: int, base: Path) -> None:
        self.name = f"node-{number}"
        self.folder = base / self.name
        self.config = self.folder / "fluxmq.yaml"
        self.socket = self.folder / "data" / "admin.sock"
        self.ports = HeldPorts(PORTS)
        self.child: Child | None = None
        self.stopped = self.serving = False

    @property
    def running(self) -> bool:
        """Whether there is a process."""
        return self.child is not None and self.child.status is None

    @property
    def state(self) -> str:
        """As on top."""
        if not self.running:
            return "down"
        return "stopped" if self.stopped else "up" if self.serving else "starting"

    def about(self) -> dict[str, Any]:
        """For people and programs."""
        address = self.ports.address
        family = self.child.family() if self.child is not None and self.running else []
        return {"node": self.name, "state": self.state, "pid": family[0].pid if family else 0,
                "etcd_pid": family[1].pid if len(family) > 1 else 0, "mqtt": address("mqtt"),
                "amqp": address("amqp"), "websocket": f"ws://{address('websocket')}/mqtt",
                "health": f"http://{address('health')}/health", "cluster": f"http://{address('health')}/cluster",
                "metrics": f"http://{address('health')}/metrics", "socket": str(self.socket),
                "config": str(self.config), "log": str(self.folder / "log")}

    def write(self, cluster: dict[str, Any]) -> None:
        """Its configuration. cluster: what differs of that section. Raises OSError."""
        address = self.ports.address
        self.folder.mkdir(exist_ok=True)
        self.config.write_text(yaml.safe_dump({
            "server": {"mqtt": {"tcp": {"plain": {"addr": address("mqtt")}},
                                "websocket": {"plain": {"addr": address("websocket")}}},
                       "amqp091": {"plain": {"addr": address("amqp")}}, "health_addr": address("health")},
            "storage": {"dir": str(self.folder / "data")},
            "auth": {"cluster_users": True, "allow_anonymous": True},
            "cluster": {"enabled": True, "node_id": self.name, "lease_ttl": f"{LEASE_TTL_S}s",
                        "transport": {"bind_addr": address("transport")}, **cluster}}, sort_keys=False))

    def start(self) -> None:
        """Starts the process. Raises OSError."""
        self.ports.release()
        self.stopped = self.serving = False
        self.child = Child(["run", "--config", str(self.config)], self.folder / "log")

    def ended(self) -> None:
        """Its process is gone; its ports are kept for it."""
        self.child = None
        self.stopped = self.serving = False
        self.ports.hold_again()

    async def ask(self, method: str, *segments: str, body: Any = None, limit_s: float = GLANCE_S) -> Any:
        """A request to its admin socket. Raises NoAnswer."""
        return await ask(self.socket, method, "/api/v1/" + "/".join(segments), body, limit_s=limit_s)

    async def view(self) -> dict[str, Any]:
        """GET /cluster. Raises NoAnswer."""
        found: dict[str, Any] = await ask((HOST, self.ports.numbers["health"]), "GET", "/cluster", limit_s=GLANCE_S)
        return found

    async def leads_etcd(self) -> bool:
        """Whether its member of etcd is the leader."""
        try:
            said = await ask((HOST, self.ports.numbers["etcd_client"]), "POST", "/v3/maintenance/status", {},
                             limit_s=GLANCE_S)
            return bool(said["leader"] == said["header"]["member_id"])
        except (NoAnswer, KeyError, TypeError):
            return False


class Nodes:
    """All of them. etcd: path of the program. say: takes a line of progress. Raises TryoutError."""

    def __init__(self, base: Path, count: int, etcd: str, say: Say) -> None:
        self._base, self._count, self._etcd, self._say = base, count, etcd, say
        self._all: list[Node] = []
        self._make()

    def __iter__(self) -> Iterator[Node]:
        return iter(self._all)

    def __len__(self) -> int:
        return self._count

    def named(self, name: str) -> Node:
        """Also by its number. Raises TryoutError."""
        for node in self._all:
            if name in (node.name, node.name.removeprefix("node-")):
                return node
        raise TryoutError(f"there is no node {name}: there are {', '.join(node.name for node in self._all)}")

    @property
    def up(self) -> list[Node]:
        """Those that serve, as far as is known."""
        return [node for node in self._all if node.state == "up"]

    # ── starting ─────────────────────────────────────────────────────────────────────────────────────────────────

    async def start(self) -> None:
        """All at once, and until they are one cluster. Raises TryoutError."""
        await self._with_free_ports(lambda: self._start_some(self._all))

    async def start_staggered(self, then: Callable[[Node], Awaitable[None]]) -> None:
        """One after the other: the first alone, the others join it. then: called for each that serves. Raises
        TryoutError."""
        await self._with_free_ports(lambda: self._start_some(self._all[:1]), together=False)
        await then(self._all[0])
        for number in range(1, self._count):
            self._write(number, together=False)
            await self._start_some(self._all[number:number + 1])
            await then(self._all[number])

    async def _with_free_ports(self, start: Callable[[], Awaitable[None]], *, together: bool = True) -> None:
        for left in reversed(range(PORT_TRIES)):
            for number in range(self._count):
                self._write(number, together)
            try:
                await start()
                return
            except PortTaken as error:
                if not left:
                    raise
                self._say(f"{error}: other ports are tried")
                self.end()
                for node in self._all:
                    shutil.rmtree(node.folder, ignore_errors=True)
                self._make()

    def _make(self) -> None:
        self._all = []
        for number in range(1, self._count + 1):
            self._all.append(Node(number, self._base))

    def _write(self, number: int, together: bool) -> None:
        """The configuration of a node. together: all start at once."""
        node = self._all[number]
        voters = self._all[:self.voters]
        etcd: dict[str, Any]
        if node not in voters:
            etcd = {"endpoints": [one.ports.address("etcd_client") for one in voters]}
        else:
            joins = not together and number > 0
            known = voters if together else [self._all[0], node] if joins else [node]
            etcd = {"bind_addr": node.ports.address("etcd_peer"), "client_addr": node.ports.address("etcd_client"),
                    "binary": self._etcd, "bootstrap": not joins, "initial_cluster": ",".join(
                        f"{one.name}=http://{one.ports.address('etcd_peer')}" for one in known)}
        try:
            node.write({"etcd": etcd})
        except OSError as error:
            raise TryoutError(f"{error.filename}: {error.strerror}") from error

    @property
    def voters(self) -> int:
        """How many nodes have a member of etcd."""
        most = min(self._count, VOTERS_MAX)
        return most - 1 + most % 2

    async def _start_some(self, nodes: Iterable[Node]) -> None:
        nodes = list(nodes)
        for node in nodes:
            self._start(node)
        async with Tasks() as tasks:
            for node in nodes:
                tasks.start(self.serves(node))
            await tasks.all()
        await self.wait(self._whole, "the nodes do not become one cluster")

    def _start(self, node: Node) -> None:
        try:
            node.start()
        except OSError as error:
            raise TryoutError(f"{node.name} cannot be started: {error}") from error

    async def serves(self, node: Node) -> None:
        """Until it does. Raises TryoutError if it ends before, or takes too long."""
        reason, told, deadline = "", {""}, time.monotonic() + PATIENCE_S
        child = node.child
        while True:
            if child is None or node.child is not child:
                raise TryoutError(f"{node.name} was killed while it was starting")
            said = child.said()
            if IN_USE in said.lower():
                raise PortTaken(f"{node.name}: another program has taken one of its ports")
            if NO_ROOM.search(said):
                raise TryoutError(f"the disk of {self._base} is full: --dir names another place")
            if child.status is not None:
                raise TryoutError(f"{node.name} has ended while it was starting; it says:\n{child.last_words()}")
            try:
                view = await node.view()
                if view["state"] == "serving":
                    break
                reason = view["reason"]
                # What comes and goes is left out: details behind a colon, and which others it waits for.
                if (short := OTHERS.sub("other nodes", reason.partition(": ")[0])) not in told:
                    told.add(short)
                    self.say(node, short)
            except NoAnswer:
                pass            # not yet
            if time.monotonic() > deadline:
                raise TryoutError(f"{node.name} does not serve after {PATIENCE_S:g} s: {reason or child.last_words()}")
            await asyncio.sleep(LOOK_S)
        if node.child is child:     # it was not killed while it answered
            node.serving = True
            self.say(node, "serves")

    async def _whole(self) -> bool:
        """Whether every node that runs has streams to and from all others that run."""
        up = self.up
        for node in up:
            peers = (await node.view())["peers"]
            if sum(peer["connected"] for peer in peers) < len(up) - 1:
                return False
        return True

    async def wait(self, condition: Callable[[], Awaitable[bool]], complaint: str,
                   patience_s: float = PATIENCE_S) -> None:
        """Until it holds. Raises TryoutError with the complaint."""
        deadline = time.monotonic() + patience_s
        while True:
            try:
                if await condition():
                    return
            except NoAnswer:
                pass
            if time.monotonic() > deadline:
                raise TryoutError(complaint)
            await asyncio.sleep(LOOK_S)

    # ── faults ───────────────────────────────────────────────────────────────────────────────────────────────────

    def kill(self, node: Node) -> None:
        """SIGKILL; its etcd member ends with it. Raises TryoutError if it does not run."""
        child = self._running(node)
        kill_all([child])
        node.ended()
        self.say(node, "is killed")

    def restart(self, node: Node) -> Awaitable[None]:
        """Starts its process again, killed before if it runs, and returns what waits until it serves."""
        if node.child is not None:
            kill_all([node.child])
            node.ended()
        self._start(node)
        self.say(node, "starts again")
        return self._serves_again(node)

    async def _serves_again(self, node: Node) -> None:
        try:
            await self.serves(node)
        except TryoutError:
            if not node.running and node.child is not None:
                node.ended()
            raise

    def stop(self, node: Node) -> None:
        """SIGSTOP: it hangs, and its etcd member runs. Raises TryoutError if it does not run."""
        self._running(node).signal(signal.SIGSTOP)
        node.stopped = True
        self.say(node, "hangs")

    def go_on(self, node: Node) -> None:
        """SIGCONT. Raises TryoutError if it does not run."""
        self._running(node).signal(signal.SIGCONT)
        node.stopped = False
        self.say(node, "goes on")

    def look(self) -> None:
        """Notices nodes that have ended by themselves, or were killed by somebody else."""
        for node in self._all:
            if node.child is not None and (status := node.child.status) is not None and node.serving:
                words = "" if status == -signal.SIGKILL else f"; it says:\n{node.child.last_words()}"
                node.ended()
                self.say(node, f"has ended ({_how(status)}){words}")

    def _running(self, node: Node) -> Child:
        if node.child is None or not node.running:
            raise TryoutError(f"{node.name} does not run")
        return node.child

    def end(self) -> None:
        """All processes and ports, at once: nothing of them is wanted any more. Blocks for a moment."""
        kill_all([node.child for node in self._all if node.child is not None])
        for node in self._all:
            node.child = None
            node.ports.release()

    def say(self, node: Node, text: str) -> None:
        self._say(f"{node.name}  {text}")


def _how(status: int) -> str:
    return f"killed by {signal.Signals(-status).name}" if status < 0 else f"status {status}"
