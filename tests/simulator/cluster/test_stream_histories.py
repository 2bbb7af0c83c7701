"""As test_queue_histories, and streams beside the queues, with readers at all nodes: they move, and nodes fail. One has
its partitions at all three nodes, and these move by themselves.

Some readers have no group, and say where they go on (of the divided stream they begin anew); others have a group each,
which knows. Checked beside what is checked of queues, of each partition:

    a gap           a reader gets the next message, whatever happens to its node and to the stream's. Of a group the
                    first message is not above what its reader has acknowledged
    again           nor is it below what was acknowledged well before the next fault; a reader without a group gets
                    nothing twice
    another         a message has the same offset for everybody
    stuck           all readers get everything
"""
from __future__ import annotations

from collections import Counter

import pytest
from kit.sizes import some
from oracle.mqtt import Puback, Publish
from simulator.cluster.test_definitions import do
from simulator.cluster.test_queue_histories import LEVELS as QUEUE_LEVELS
from simulator.cluster.test_queue_histories import NAMES, Consumer, Held, History

from fluxmq.engine.queues.parts import part_name, whole_of
from fluxmq.model.queues import QueueSpec

DIVIDED, PARTITIONS = "parts", 3
STREAMS = ("log0", "log1", DIVIDED)
PARTS = tuple(part_name(DIVIDED.encode(), at, PARTITIONS).decode() for at in range(PARTITIONS))
COMMITTED_MS = 3000         # until what was acknowledged in the calm is on the slowest disk: it is told once per second


class Reader(Consumer):
    """Of one stream. By partition: next, the first offset that it has not had; told, that it has not acknowledged."""

    history: StreamHistory

    def __init__(self, history: StreamHistory, at: str, name: str, stream: str, group: bool) -> None:
        super().__init__(history, at, name, stream, persistent=False)
        self.group = group
        self.next: Counter[int] = Counter()
        self.told: Counter[int] = Counter()
        self.known = False                          # its group has a position
        self.begun: set[int] = set()                # partitions of which it got something on this subscription
        self.calm: list[tuple[int, int, int]] = []  # partition, told, and when, in the present calm
        self.final: Counter[int] = Counter()        # acknowledged well before the next fault

    def drop(self) -> None:
        self.held.clear()

    def ask(self) -> int:
        self.begun.clear()
        if self.queue == DIVIDED and not self.group:
            self.next.clear()
        if not self.group:
            return self.subscribe(f"$queue/{self.queue}", 1, offset=str(self.next[0]))
        return self.subscribe(f"$queue/{self.queue}", 1, consumer_group=self.name,
                              **({} if self.known else {"offset": "first"}))

    def read(self) -> None:
        super().read()
        self.known = self.known or self.subscribed

    def take(self, packet: Publish) -> None:
        users = dict(value for name, value in packet.properties if name == "user_property")
        place = users["message-id"]
        partition, offset = map(int, place.split(":"))
        history, known = self.history, self.next[partition]
        history.note(f"{self.name} at {self.at} gets {self.queue} {place} {packet.payload!r}")
        if partition not in self.begun and self.group:
            if offset > self.told[partition]:
                history.wrong.append(f"{self.name} goes on at {place}, and has acknowledged what is below "
                                     f"{self.told[partition]}")
            if offset < self.final[partition]:
                history.wrong.append(f"{self.name} goes on at {place}, and had acknowledged what is below "
                                     f"{self.final[partition]} in the calm")
        elif offset != known:
            history.wrong.append(f"{self.name} gets {self.queue} {place}, and is at {known}")
        self.begun.add(partition)
        self.next[partition] = offset + 1
        if history.content.setdefault((self.queue, place), packet.payload) != packet.payload:
            history.wrong.append(f"{self.queue} {place} is {packet.payload!r} for {self.name}, and was "
                                 f"{history.content[self.queue, place]!r}")
        history.offsets.setdefault((self.queue, packet.payload), set()).add(place)
        history.acked.add(packet.payload)
        held = Held((self.queue, place), packet, 1, history.calm_period, False)
        self.held[held.packet_id] = held
        if self.mood == "ack":
            self.settle(held, 0)

    def settle(self, held: Held, reason: int) -> None:
        """With all that came before it."""
        for packet_id in [one for one in self.held if one <= held.packet_id]:
            of = self.held.pop(packet_id)
            if not self.open:
                continue
            self.send(Puback(packet_id=packet_id))
            partition, offset = map(int, of.key[1].split(":"))
            self.told[partition] = max(self.told[partition], offset + 1)
            if of.period and of.period == self.history.calm_period:
                self.calm.append((partition, self.told[partition], self.history.brokers.world.now_ms))

    def calm_ends(self, now_ms: int) -> None:
        for partition, told, since_ms in self.calm:
            if since_ms + COMMITTED_MS <= now_ms:
                self.final[partition] = max(self.final[partition], told)
        self.calm.clear()


class StreamHistory(History):
    """Arguments as History's."""

    def declare(self) -> None:
        super().declare()
        self.content: dict[tuple[str, str], bytes] = {}
        self.readers: list[Reader] = []
        for name in STREAMS:
            do(self.brokers, self.chance.choice(NAMES), lambda node: node.manager.declare(
                QueueSpec(name=name, type="stream", partitions=PARTITIONS if name == DIVIDED else 1)))  # noqa: B023
        self.owners = {state.queue.name.decode(): [at] for at, state in self.states() if state.here}
        self.owners[DIVIDED] = [self.owners[name][0] for name in PARTS]

    def begin(self) -> None:
        """The readers come."""
        self.readers = [Reader(self, at, f"r-{at}-{stream}{'-g' * group}", stream, group)
                        for stream in STREAMS for at in NAMES for group in (False, True) if self.chance.random() < 0.7]
        for stream in STREAMS:
            if not any(reader.queue == stream for reader in self.readers):
                self.readers.append(Reader(self, "one", f"r-{stream}", stream, False))
        for reader in self.readers:
            reader.go(reader.at)
        self.consumers += self.readers
        # A group that comes while a partition is away has no position there before it is back.
        self.brokers.run_until(lambda: all(reader.subscribed for reader in self.readers
                                           if reader.group and reader.queue == DIVIDED), 60.0)

    def trouble(self, text: str, *, fails: bool = True) -> None:
        for reader in self.readers:
            reader.calm_ends(self.brokers.world.now_ms)
        super().trouble(text, fails=fails)

    def movable(self) -> list[str]:
        return [*super().movable(), *(*STREAMS[:2], *PARTS) * 3]

    def step(self) -> None:
        if not self.readers:
            self.begin()
        if self.chance.random() < 0.6:
            super().step()
        else:
            getattr(self, self.chance.choices(("write", "reader_leaves", "reader_comes", "reader_mood"),
                                              (6, 2, 4, 2))[0])()

    def write(self) -> None:
        publisher = self.chance.choice(self.publishers)
        if not publisher.connected:
            return
        for _ in range(self.chance.choice((1, 2, 15))):
            self.publish_one(publisher, self.chance.choice(STREAMS), self.chance.choice((0, 1, 1, 2)))

    def reader_leaves(self) -> None:
        reader = self.chance.choice(self.readers)
        if reader.open:
            self.note(f"{reader.name} leaves")
            reader.leave()

    def reader_comes(self) -> None:
        up, reader = self.up(), self.chance.choice(self.readers)
        if up and not reader.open:
            at = self.chance.choice(up)
            self.note(f"{reader.name} connects to {at}")
            reader.go(at)

    def reader_mood(self) -> None:
        reader = self.chance.choice(self.readers)
        reader.mood = self.chance.choice(("ack", "ack", "hold"))
        if reader.mood == "ack" and reader.held:
            reader.settle(list(reader.held.values())[-1], 0)

    def stuck(self) -> list[str]:
        found = super().stuck()
        ends: dict[tuple[str, int], int] = {}
        for _, state in self.states():
            if state.here:
                part = whole_of(state.queue.name)
                name, partition = (part.whole, part.partition) if part is not None else (state.queue.name, 0)
                ends[name.decode(), partition] = state.queue.logs[0].next
        for reader in self.readers:
            for partition in range(PARTITIONS if reader.queue == DIVIDED else 1):
                end = ends.get((reader.queue, partition))
                if reader.next[partition] != end:
                    found.append(f"{reader.name} at {reader.at} is at {partition}:{reader.next[partition]} of {end}")
        return found


def run(seed: int, faults: tuple[str, ...], steps: int = 86) -> None:
    StreamHistory(seed, faults, steps)


LEVELS = {"read": ("move_queue",), "read and fail": QUEUE_LEVELS["all"]}


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("part", some(1, range(2)))
def test_histories(level: str, part: int, seed: int) -> None:
    for number in range(3):
        this = seed * 1_000_000 + part * 10 + number
        try:
            run(this, LEVELS[level])
        except BaseException as error:
            error.add_note(f"run({this}, LEVELS[{level!r}])")
            raise
