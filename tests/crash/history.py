"""A history: steps on one node after the other, cut off before any call that changes the disk, by a kill or by a loss
of power. Histories of queues, exchanges and namespaces share what is here; each says what of its node is durable, and
has steps of its own: `do_NAME`.
"""
from __future__ import annotations

import asyncio
import os
import random
import tempfile
from pathlib import Path
from typing import Any

from crash.queue_node import QueueNode, View
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from kit.film import Cut

__all__ = ["DISK_STEPS", "MEMORY", "SMOKE", "History", "Steps"]

# The tests ask what was synced when, not whether a medium keeps it; in memory it is quicker.
MEMORY = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
SMOKE = settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck),
                 phases=[Phase.explicit, Phase.reuse, Phase.generate], print_blob=True)  # shrinking takes minutes
DISK_STEPS = (
    st.tuples(st.just("submit")), st.tuples(st.just("sync")), st.tuples(st.just("poll")),
    st.tuples(st.just("checkpoint"), st.integers(1, 5)), st.tuples(st.just("finish")),
)
Steps = list[tuple[Any, ...]]


class History:
    """One node after the other. cuts_max: how many instants of each life are looked at; 0 = all.

    snapshots: what was durable after each batch of the journal; a restart must find one of them.
    """

    def __init__(self, directory: Path, seed: int, cuts_max: int) -> None:
        self.directory, self.cuts_max = directory, cuts_max
        self.chance = random.Random(seed)
        self.loop = asyncio.new_event_loop()
        self.places = self.instants = 0
        place = self._place()
        place.mkdir()
        self.node = QueueNode(place, self.loop, View(), self.clock(), 1)
        self.made(self.node)
        self.snapshots: dict[int, Any] = {0: self.state_of(self.node)}

    def _place(self) -> Path:
        self.places += 1
        return self.directory / str(self.places)

    # ── each history's own ───────────────────────────────────────────────────────────────────────────────

    def clock(self) -> tuple[int, int]:
        """A new node's: (wall, monotonic)."""
        return 1_000_000, 0

    def made(self, node: QueueNode) -> None:
        """A node was made, of which nothing was asked yet."""

    def state_of(self, node: QueueNode) -> Any:
        """What of it is durable."""
        raise NotImplementedError

    # ── steps ────────────────────────────────────────────────────────────────────────────────────────────

    def do(self, what: Any) -> None:
        """One turn, and what is known after its batch."""
        number = self.node.in_turn(what)
        self.snapshots[number] = self.state_of(self.node)

    def run(self, what: str, *arguments: Any) -> None:
        getattr(self, f"do_{what}")(*arguments)

    def do_submit(self) -> None:
        self.node.submit()

    def do_sync(self) -> None:
        self.node.sync()

    def do_poll(self) -> None:
        self.node.poll()

    def do_checkpoint(self, rounds: int) -> None:
        self.node.begin_checkpoint()
        for _ in range(rounds):
            self.node.round()
            self.node.poll()

    def do_finish(self) -> None:
        self.node.begin_checkpoint()
        self.node.finish_checkpoint()

    # ── the end of a life ────────────────────────────────────────────────────────────────────────────────

    def do_crash(self, which: float, how: str) -> None:
        """Looks at instants of the life that ends, and begins the next at the instant `which`, a share of them all."""
        cuts = self.node.stop()
        some = cuts if not self.cuts_max or len(cuts) <= self.cuts_max else self.chance.sample(cuts, self.cuts_max)
        for cut in some:
            self.look_after(cut, self.chance.choice(("kill", "power", "torn")))
        self.go_on(cuts[int(which * len(cuts))], how)
        self.snapshots = {self.node.recovered: self.state_of(self.node)}

    def look_after(self, cut: Cut, how: str) -> None:
        self.revive(cut, how, False).stop()

    def go_on(self, cut: Cut, how: str) -> None:
        self.node = self.revive(cut, how, True)

    def revive(self, cut: Cut, how: str, filmed: bool) -> QueueNode:
        """A node that has found what it must."""
        node = self.after(cut, how, filmed)
        assert self.state_of(node) == self.snapshot_of(node), (
            f"after a crash ({how}) before {cut.what!r}, batch {node.recovered}")
        return node

    def after(self, cut: Cut, how: str, filmed: bool) -> QueueNode:
        """A node on what the crash left."""
        self.instants += 1
        chance = random.Random(self.chance.random())
        node = QueueNode.after(cut, self._place(), chance if how == "torn" else how, self.loop, self.clock(), filmed)
        self.made(node)
        assert node.recovered >= cut.facts[0], "what somebody was told of is gone"
        return node

    def snapshot_of(self, node: QueueNode) -> Any:
        """What was durable after the last batch that the node has found."""
        return self.snapshots[max(number for number in self.snapshots if number <= node.recovered)]

    def close(self) -> None:
        try:
            self.node.stop()
        finally:
            self.loop.run_until_complete(self.loop.shutdown_default_executor())
            self.loop.close()

    @classmethod
    def play(cls, steps: Steps, *arguments: Any) -> int:
        """These steps, then two crashes. Returns how many instants were looked at."""
        with tempfile.TemporaryDirectory(dir=MEMORY) as directory:
            history = cls(Path(directory), *arguments)
            try:
                for each in steps:
                    history.run(*each)
                history.run("crash", 0.999, "kill")
                history.run("finish")
                history.run("crash", 0.999, "power")
                return history.instants
            finally:
                history.close()
