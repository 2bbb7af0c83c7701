"""A stream and the positions of its groups at every instant of a crash: what a restart finds is what was after some
batch, no earlier one than the last that somebody was told of."""
from __future__ import annotations

import asyncio
import random
import tempfile
from pathlib import Path

import pytest
from crash.history import MEMORY
from crash.queue_node import QueueNode, View

from fluxmq._core.testing.probes import ReaderProbe
from fluxmq.model.queues import QueueSpec, Retention

SPEC = QueueSpec(name="s", type="stream", partitions=2, retention=Retention(max_length_messages=12))
GROUPS = (b"automatic", b"manual", b"late")

# (first and next of each log, next of each cursor of each group that is there)
Known = tuple[list[tuple[int, int]], dict[bytes, list[int]]]


def known(node: QueueNode) -> Known:
    state = node.manager.queues.get((b"/", b"s"))
    if state is None:
        return [], {}
    return ([(log.first, log.next) for log in state.queue.logs],
            {name: [cursor.next for cursor in group.cursors] for (name, _), group in state.groups.items()})


class Life:
    """One node with two readers per group; what it knows after each batch."""

    def __init__(self, node: QueueNode, seed: int) -> None:
        self.node, self.chance = node, random.Random(seed)
        self.known: dict[int, Known] = {0: ([], {})}
        self.readers: dict[bytes, list[ReaderProbe]] = {}
        self.count = 0

    def turn(self, what: object = None) -> None:
        number = self.node.in_turn(what or (lambda: None))
        self.node.settle_reads()
        self.known[number] = known(self.node)

    def declare(self) -> None:
        self.node.manager.declare(SPEC)

    def put(self) -> None:
        for _ in range(self.chance.randint(1, 5)):
            self.count += 1
            self.node.manager.queues[b"/", b"s"].queue.append_message(b"$queue/s", b"%d" % self.count + bytes(300))

    def join(self, name: bytes) -> None:
        queue = self.node.manager.queues[b"/", b"s"].queue
        group = self.node.manager.group(queue, name)
        self.readers[name] = [ReaderProbe(log, self.node.manager.position(queue, log, "", group), room=4, group=group,
                                          manual=name == b"manual") for log in queue.logs]
        for reader in self.readers[name]:
            queue.add_reader(reader)

    def acknowledge(self) -> None:
        for name, readers in self.readers.items():
            for reader in readers if name != b"late" else ():      # of which nothing is known but where it began
                for offset in reader.outstanding[:self.chance.randint(0, 4)]:
                    reader.acknowledge_at(offset)
                if name == b"manual" and reader.next > reader.log.first:
                    reader.commit(self.chance.randint(reader.log.first, reader.next))

    def tick(self) -> None:
        self.node.hub.set_clock(self.node.hub.now_ms + 6000, self.node.hub.mono_ms + 6000)
        self.node.clock.tick()

    def run(self, steps: int) -> None:
        self.turn(self.declare)
        self.turn(lambda: self.join(b"automatic"))
        for at in range(steps):
            self.turn(self.put)
            self.turn(self.acknowledge)
            if at == steps // 3:
                self.turn(lambda: self.join(b"manual"))
            if at == steps // 2:
                self.turn(lambda: self.join(b"late"))
            if at % 3 == 2:
                self.turn(self.tick)
            if at % 4 == 1:
                self.node.begin_checkpoint()
            if at % 4 != 3:
                self.node.submit()
                self.node.round()
                self.node.poll()
            else:
                self.node.finish_checkpoint()
        self.node.sync()


@pytest.mark.parametrize("how", ["kill", "power", "torn"])
def test_positions_at_every_instant(how: str) -> None:
    loop = asyncio.new_event_loop()
    with tempfile.TemporaryDirectory(dir=MEMORY) as name:
        directory = Path(name)
        (directory / "live").mkdir()
        life = Life(QueueNode(directory / "live", loop, View(), (1_000_000, 0), 1), 7)
        life.run(24)
        cuts = life.node.stop()
        assert len(cuts) > 60 and set(life.known[max(life.known)][1]) == set(GROUPS)
        for at, cut in enumerate(cuts):
            node = QueueNode.after(cut, directory / f"after{at}", random.Random(at) if how == "torn" else how, loop,
                                   (9_000_000, 0))
            assert node.recovered >= cut.facts[0]
            expected = life.known[max(number for number in life.known if number <= node.recovered)]
            assert known(node) == expected, f"before {cut.what!r}, batch {node.recovered}"
            check_messages(node)
            node.stop()
    loop.run_until_complete(loop.shutdown_default_executor())
    loop.close()


def check_messages(node: QueueNode) -> None:
    """Whoever reads from the first on gets all that is kept, in order."""
    state = node.manager.queues.get((b"/", b"s"))
    if state is None:
        return
    for log in state.queue.logs:
        reader = ReaderProbe(log, log.first, room=1000)
        state.queue.add_reader(reader)
        for _ in range(20):
            node.in_turn(state.queue.notify)
            node.settle_reads()
        assert reader.seen == list(range(log.first, log.next))
        state.queue.remove_reader(reader)
