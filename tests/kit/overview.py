"""A ClusterOverview that shows what a test puts into it."""
from __future__ import annotations

from msgspec.structs import replace

from fluxmq.engine.ports.overview import ClusterView, LeavingView, NodeView, PeerView

__all__ = ["FakeOverview"]

THREE = ClusterView(
    env="c1", local="one", state="serving", leader="two", revision=40,
    nodes=(NodeView(id="one", address="10.0.0.1", port=7948, pid=11, epoch=5, lease_left_ms=8250, version="1",
                    sessions=3, etcd="voter", etcd_healthy=True),
           NodeView(id="three", address="", state="down", etcd="learner", etcd_healthy=False),
           NodeView(id="two", address="10.0.0.2", port=7949, pid=22, epoch=9, leader=True, version="1", sessions=4,
                    adopted=1)),
    peers=(PeerView(node="three", connected=False, errors=2, last_error="no route\x1b to host"),
           PeerView(node="two", connected=True, batches_sent=1, batches_received=2, messages_sent=3,
                    messages_received=4, bytes_sent=5, bytes_received=6, credit_bytes=7, unacknowledged_bytes=8)))


class FakeOverview:
    """view: what is shown; node `one` of three, of which `three` is down. refusal: what leave() and changes of voters
    raise. leaves: how often leave() was called. changes: of voters."""

    def __init__(self) -> None:
        self.view = THREE
        self.refusal: Exception | None = None
        self.leaves = 0
        self.changes: list[tuple[str, str]] = []
        self.progress: list[LeavingView] = []   # what leaving() says, one after the other; the last one stays
        self.told: list[LeavingView] = []

    def set(self, **changed: object) -> None:
        """Other values of the view."""
        self.view = replace(self.view, **changed)

    def snapshot(self) -> ClusterView:
        return self.view

    async def add_voter(self, node: str) -> None:
        self._change("add", node)

    async def remove_voter(self, node: str) -> None:
        self._change("remove", node)

    def _change(self, what: str, node: str) -> None:
        if self.refusal is not None:
            raise self.refusal
        self.changes.append((what, node))

    async def leave(self, keep_vote: bool = False) -> None:
        if self.refusal is not None:
            raise self.refusal
        self.leaves += 1
        self.set(state="leaving", reason="an operator asked for it")

    def leaving(self) -> LeavingView:
        if not self.progress:
            return LeavingView(node=self.view.local, state=self.view.state, reason=self.view.reason)
        self.told.append(self.progress.pop(0) if len(self.progress) > 1 else self.progress[0])
        return self.told[-1]
