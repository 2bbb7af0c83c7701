"""Ports to other nodes that answer as a test says: who owns what, who must hold what, and what was asked of them."""
from __future__ import annotations

import threading
from asyncio import AbstractEventLoop, Future, get_running_loop
from collections.abc import Callable

from fluxmq._core.errors import UsageError
from fluxmq._core.hub.targets import PeerHop
from fluxmq._core.memory.commits import Line
from fluxmq.engine.ports.cluster import Cluster, Owner
from fluxmq.engine.ports.definitions import Definer, Placement
from fluxmq.engine.ports.queues import QueueRefused
from fluxmq.engine.sessions.state import Will

__all__ = ["HERE", "FakeDirectory", "FakePeers", "FakeReplicator", "Nodes"]

HERE = Owner("here", 7)
PATIENCE_S = 20.0  # only a failing test needs it


class FakeDirectory:
    """A Directory. owners: of sessions by name, this node of those that are not in it; None: it must ask, and `answer`
    says what. on_announce: called for each filter, to give tickets."""

    node = HERE.node
    definer: Definer | None = None

    def __init__(self) -> None:
        self.owners: dict[bytes, Owner | None] = {}
        self.told: list[tuple[object, ...]] = []
        self.wills: list[Will | None] = []
        self.kept: list[tuple[bytes, bytes | None]] = []
        self.on_announce: Callable[[bytes], object] = lambda filter_: None
        self.elsewhere: set[bytes] = set()  # queues whose data others have
        self.placements: dict[bytes, Placement] = {}  # of queues whose data begins here, unless it is the first one
        self.asking: dict[bytes, list[Future[Owner]]] = {}
        self._loop: AbstractEventLoop | None = None
        self._changed = threading.Condition()

    def claim_session(self, namespace: bytes, client_id: bytes, clean_start: bool) -> Owner | None:
        self.told.append(("claim", namespace, client_id, clean_start))
        return self.owners.get(client_id, Owner(self.node, HERE.epoch))

    async def take_session(self, namespace: bytes, client_id: bytes, clean_start: bool, asked_ms: int) -> Owner:
        self._loop = get_running_loop()
        answer: Future[Owner] = self._loop.create_future()
        with self._changed:
            self.asking.setdefault(client_id, []).append(answer)
            self._changed.notify_all()
        try:
            self.owners[client_id] = await answer
        finally:
            with self._changed:
                self.asking[client_id].remove(answer)
                self._changed.notify_all()
        return await answer

    def wait_asked(self, client_id: bytes, count: int = 1) -> None:
        """Until so many wait for this session. Of another thread than the loop's."""
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.asking.get(client_id, ())) == count, PATIENCE_S)

    def answer(self, client_id: bytes, owner: Owner | BaseException) -> None:
        """To the one that has waited longest. Of another thread than the loop's."""
        self.wait_asked(client_id, max(1, len(self.asking.get(client_id, ()))))
        answer = self.asking[client_id][0]

        def tell() -> None:
            answer.set_exception(owner) if isinstance(owner, BaseException) else answer.set_result(owner)

        assert self._loop is not None
        self._loop.call_soon_threadsafe(tell)

    def release_session(self, namespace: bytes, client_id: bytes) -> None:
        self.told.append(("release", namespace, client_id))

    def kept_changed(self, namespace: bytes, client_id: bytes, filter_: bytes | None = b"") -> None:
        self.kept.append((client_id, filter_))

    def will_changed(self, namespace: bytes, client_id: bytes, will: Will | None, expiry_s: int, since: int) -> None:
        self.wills.append(will)

    def place_queue(self, namespace: bytes, name: bytes) -> Placement:
        self.told.append(("place queue", namespace, name))
        if name in self.elsewhere:
            raise QueueRefused("unavailable", "node there has its messages")
        return self.placements.get(name, Placement())

    def announce(self, namespace: bytes, filter_: bytes, group: bytes = b"", durable: bool = False) -> None:
        self.told.append(("announce", namespace, filter_, group))
        self.on_announce(filter_)

    def withdraw(self, namespace: bytes, filter_: bytes, group: bytes = b"", durable: bool = False) -> None:
        self.told.append(("withdraw", namespace, filter_, group))

    def members_connected(self, namespace: bytes, filter_: bytes, group: bytes, change: int) -> None:
        self.told.append(("connected", namespace, filter_, group, change))

    def interest(self) -> list[tuple[object, ...]]:
        """What was announced and withdrawn since the last call, and by that forgotten."""
        found = [(what[0], *what[2:]) for what in self.told if what[0] in ("announce", "withdraw")]
        self.told.clear()
        return found


class FakePeers:
    """Peers: those that stand in `hops`."""

    def __init__(self) -> None:
        self.hops: dict[str, PeerHop] = {}

    def hop(self, node: str) -> PeerHop:
        if node not in self.hops:
            raise UsageError(f"there is no node {node!r}")
        return self.hops[node]

    def reference(self, node: str) -> str:
        return f"{node}.example:1883"


class FakeReplicator:
    """A Replicator: the queues in `lines` have these, the others the journal."""

    def __init__(self) -> None:
        self.lines: dict[bytes, Line] = {}
        self.asked: list[tuple[bytes, bytes, bool]] = []

    def line_of_queue(self, namespace: bytes, name: bytes, durable: bool) -> Line | None:
        self.asked.append((namespace, name, durable))
        return self.lines.get(name)

    def group_of_queue(self, namespace: bytes, name: bytes) -> int:
        return 0


class Nodes:
    """The three, for a Broker or a Server."""

    def __init__(self) -> None:
        self.directory, self.peers, self.replicator = FakeDirectory(), FakePeers(), FakeReplicator()
        self.cluster = Cluster(self.directory, self.peers, self.replicator)
