"""Tests of one broker, played on three: publisher, owner and consumer are on different nodes.

The fixture `nodes` runs a test a second time with the id `three-nodes`, if kit/on_three_nodes.py has its file. The test
sees one broker: each connection goes to the next of two nodes, and the third has all queues. What clients have sent
has reached it before a further connection begins, before a client of MQTT subscribes, and before a test says that
nothing comes (`settle`).
"""
from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from fluxmq.app.admin_client import AdminClient, AdminError
from fluxmq.cluster.keys import exchange_key, parse
from kit.amqp_wire import Wire
from kit.cluster import Cluster
from kit.watch import wait_until

__all__ = ["ThreeNodes", "ThreeNodesWire", "without_exclusive"]

CLIENTS = (0, 2)  # the nodes that clients connect to, in turn
OWNER = 1  # the node that has the queues
BALLAST = 40  # queues of each other node: a new one goes to where there are fewest
SETTINGS: dict[str, object] = {
    "server.amqp091.plain.addr": "127.0.0.1:0", "amqp091.max_message_size": 32 << 20}
HERE: dict[str, object] = {"storage.type": "rocksdb"}  # settings of a test that the nodes have anyway


class ThreeNodes:
    """A Process (kit/brokers.py) like kit.broker.Broker, as far as tests use it. It begins when it is first used, and
    again after `stop`. directory: of its nodes."""

    kind = "fluxmq"
    external = False

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._starts = itertools.count()
        self._cluster: Cluster | None = None
        self._turns = itertools.cycle(CLIENTS)
        self._wires: list[Wire] = []
        self._ballast: set[str] = set()
        self._names = itertools.count()
        self._prefix = ""

    # ── life ─────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def cluster(self) -> Cluster:
        assert self._cluster is not None
        return self._cluster

    @property
    def running(self) -> bool:
        return self._cluster is not None

    def start(self) -> ThreeNodes:
        """A cluster, or again all nodes of the one that was killed."""
        if self._cluster is None:
            self._cluster = Cluster(self._directory / f"{next(self._starts)}", 3, ttl_s=10, settings=SETTINGS)
            self._cluster.__enter__()
        else:
            self._cluster.start()
        self._cluster.wait(self._cluster.everybody_serves)
        if not self._ballast:
            for number in CLIENTS:
                wire = self._wire(number)
                for _ in range(BALLAST):  # whom the broker names is of its connection's node
                    self._ballast.add(wire.call(1, "queue.declare", durable=True)["queue"])
                wire.close()
            self.declare("settled")
            self._ballast.add("settled")
        self._wires = [self._wire(number) for number in CLIENTS]
        return self

    def _wire(self, number: int) -> Wire:
        wire = Wire(self.cluster[number].addresses["amqp091/plain"]).login()
        wire.open_channel(1)
        return wire

    def begin(self) -> None:
        """Before a test: the first connection is to the first node."""
        if not self.running:
            self.start()
        self._turns = itertools.cycle(CLIENTS)
        self._prefix = f"t{next(self._names)}-"

    def end(self) -> None:
        """After a test: nothing of it stays. One that failed may have left a node that does not run."""
        for broker in self.cluster.brokers:
            if not broker.running:
                self.stop()
                return
        with contextlib.closing(self.admin()) as admin:
            for queue in admin.ask("GET", "queues")["queues"]:
                if queue["name"] not in self._ballast:
                    with contextlib.suppress(AdminError):  # an auto-delete queue has gone meanwhile
                        admin.ask("DELETE", "queues", queue["name"])
        for key in self.cluster.keys(exchange_key(b"/", b"")):
            name = parse(key).name.decode()
            self._wires[0].call(1, "exchange.delete", exchange=name)
        retained = [parse(key) for key in self.cluster.keys(b"/mqtt/retained-")]
        if retained:
            client = self.cluster.client(CLIENTS[0])
            client.connect()
            for topic in {one.name.decode() for one in retained if one is not None}:
                client.publish(topic, b"", 1, retain=True)
            client.close()

    def stop(self) -> None:
        """All nodes, for good."""
        cluster, self._cluster = self._cluster, None
        for wire in self._wires:
            wire.drop()
        self._wires.clear()
        self._ballast.clear()
        if cluster is not None:
            cluster.__exit__(None, None, None)

    def kill(self) -> None:
        """SIGKILL to all brokers; their members of etcd end with them. Follow it with `start`."""
        for wire in self._wires:
            wire.drop()
        for broker in self.cluster.brokers:
            broker.kill()

    def restart(self) -> None:
        """SIGTERM to all, one after the other, then all again."""
        for wire in self._wires:
            wire.drop()
        for broker in self.cluster.brokers:
            broker.terminate()
        self.start()

    def check(self) -> None:
        for broker in self.cluster.brokers:
            broker.check()

    def stderr(self, since: int = 0) -> str:
        return "".join(f"--- {name}\n{broker.stderr()[-4000:]}" for name, broker in zip(
            self.cluster.names, self.cluster.brokers, strict=True)) if self.running else ""

    def stderr_size(self) -> int:
        return 0

    # ── what a test sees of it ───────────────────────────────────────────────────────────────────────────

    @property
    def addresses(self) -> dict[str, tuple[str, int]]:
        """Of the next node."""
        return self.cluster[next(self._turns)].addresses

    @property
    def address(self) -> tuple[str, int]:
        """For MQTT: of the next node."""
        return self.addresses["mqtt/tcp/plain"]

    @property
    def amqp(self) -> tuple[str, int]:
        """Of the next node."""
        return self.addresses["amqp091/plain"]

    @property
    def directory(self) -> Path:
        """Of a node that does not have the queues: its admin socket is that of operators."""
        return self.cluster[CLIENTS[0]].directory

    def admin(self) -> AdminClient:
        """Of a node that clients connect to."""
        return AdminClient(self.directory / "data" / "admin.sock")

    def declare(self, name: str, **settings: Any) -> None:
        """A queue of the owner, as `fluxmq queue create` at another node declares it."""
        with contextlib.closing(self.admin()) as admin:
            made = admin.ask("PUT", "queues", name, body=settings)
        assert made.get("node", self.cluster.names[OWNER]) == self.cluster.names[OWNER], made

    def client_id(self, name: str) -> str:
        """The name that a client of a test has in no other test: its session may stay."""
        return self._prefix + name

    def new_name(self) -> str:
        """Of a queue, for one that a test does not name."""
        return f"{self._prefix}{next(self._names)}"

    def settle(self) -> None:
        """What clients of both nodes have sent has reached the owner, and what that has given them is at their nodes.
        A question for a queue of the owner comes behind all that is on its way there, and the answer behind what is on
        its way back. Twice: what the second node has sent may have effects at the first."""
        for wire in self._wires * 2:
            wire.call(1, "queue.declare", queue="settled", passive=True)

    def arrive(self) -> None:
        """As settle; and dead letters have reached their queue, to which they go by themselves."""
        # Not above: where only what reads foreign bytes is compiled, this file is loaded, but used by no test.
        from fluxmq.engine.queues.forwarding import UNDER_WAY

        self.settle()
        with contextlib.closing(AdminClient(self.cluster[OWNER].directory / "data" / "admin.sock")) as admin:
            wait_until(lambda: not any(
                queue["ready"] + queue["unsettled"] for queue in admin.ask("GET", "queues")["queues"]
                if queue["name"].startswith(UNDER_WAY)))


class ThreeNodesWire(Wire):
    """A connection whose exclusive queues are ordinary ones, so that another node has them."""

    def __init__(self, address: Any, names: Callable[[], str]) -> None:
        super().__init__(address)
        self._names = names

    def send(self, channel: int, name: str, /, **arguments: Any) -> None:
        if name == "queue.declare" and arguments.get("exclusive") is True:
            arguments = arguments | {"exclusive": False, "queue": arguments.get("queue") or self._names()}
        super().send(channel, name, **arguments)


def without_exclusive(connection: Any, names: Callable[[], str]) -> None:
    """The same for a connection of a library (tests/amqp091/clients)."""
    make = connection.channel

    def channel(**how: Any) -> Any:
        made = make(**how)
        declare = made.queue_declare

        def queue_declare(name: str = "", *, exclusive: bool = False, **more: Any) -> Any:
            return declare(name or names() if exclusive else name, **more)

        made.queue_declare = queue_declare
        return made

    connection.channel = channel


def declare_all(nodes: ThreeNodes, queues: Iterable[dict[str, Any]], settings: dict[str, object]) -> ThreeNodes:
    """What `start_broker(*queues, **settings)` of tests/queues gives."""
    socket = settings.pop("server.admin_socket", None)
    if socket is not None:
        Path(str(socket)).symlink_to(nodes.directory / "data" / "admin.sock")
    other = {name: value for name, value in settings.items() if HERE.get(name, not value) != value}
    assert not other, f"nodes have no settings of a test's own: leave it out in kit/on_three_nodes.py ({other})"
    for queue in queues:
        nodes.declare(**queue)
    return nodes
