"""As test_queue_histories, for links that stand still for longer than route_publish_timeout while queues move:
publishers of QoS 2 lose their connections meanwhile, go on at any node and send again (DUP) what was not answered, and
what was sent over such a link comes late, by the former owner. No node dies.

What is checked is checked there, but for the order: that of what was accepted, also if it was sent again with QoS 2.
"""
from __future__ import annotations

from simulator.cluster.test_queue_histories import NAMES, REFUSED, History, Publisher

BURST = (1, 3, 10)
GIVEN_UP_S = 35.0       # longer than a publisher waits


class SilentMoves(History):
    """steps: in most of them a link falls silent, and a queue moves."""

    FAULTS = {"round": 10, "move_queue": 2, "tear": 1}

    def __init__(self, seed: int, steps: int = 25) -> None:
        super().__init__(seed, ("round", "move_queue", "tear"), steps)

    def soon(self) -> None:
        self.brokers.run_for(self.chance.random() * self.chance.choice((0.005, 0.05, 0.5)))

    def bursts(self, queue: str) -> None:
        for publisher in self.publishers:
            if publisher.connected and self.chance.random() < 0.7:
                for _ in range(self.chance.choice(BURST)):
                    self.publish_one(publisher, queue, self.chance.choice((1, 2, 2, 2)))

    def silence(self, queue: str) -> None:
        """A link of the queue's owner, one way or both, or all of a node's."""
        owner = self.owners[queue][-1]
        other = self.chance.choice([name for name in NAMES if name != owner])
        self.trouble(f"{other} and {owner} hear nothing of each other")
        if self.cut_ms is None:
            self.cut_ms = self.brokers.world.now_ms
        self.brokers.network.stall(other, owner, back=self.chance.random() < 0.5)
        if self.chance.random() < 0.3:
            third = next(name for name in NAMES if name not in (owner, other))
            self.brokers.network.stall(other, third, back=self.chance.random() < 0.5)

    def move_one(self, queue: str) -> None:
        """This queue, asked of any node."""
        movable, self.movable = self.movable, lambda: [queue]     # type: ignore[method-assign]
        try:
            self.move_queue()
        finally:
            self.movable = movable                                # type: ignore[method-assign]

    def round(self) -> None:
        queue = self.chance.choice(self.queues)
        self.bursts(queue)
        self.soon()
        self.silence(queue)
        for event in self.chance.choice((("publish", "move", "publish"), ("move", "publish"),
                                         ("publish", "move", "move"), ("publish", "move", "publish", "move"))):
            self.soon()
            if event == "move":
                self.move_one(queue)
            else:
                self.bursts(queue)
        self.soon()
        for publisher in self.publishers:
            if publisher.open and self.chance.random() < 0.5:
                publisher.leave()
        self.brokers.run_for(self.chance.choice((1.0, GIVEN_UP_S, GIVEN_UP_S)))
        for publisher in self.publishers:
            if not publisher.open or self.chance.random() < 0.3:
                publisher.go(self.chance.choice(NAMES))
        self.brokers.run_for(self.chance.choice((0.0, 0.5, 5.0)))
        if self.chance.random() < 0.3:
            self.move_one(queue)
        self.heal()
        self.brokers.run_for(self.chance.choice((0.0, 0.1, 3.0)))

    def check_order(self) -> None:
        """Of what was accepted, and if it was sent again with QoS 2 alone. What was refused may come at any time; so
        may what was sent again to a queue that may have been full at first."""
        last: dict[tuple[Publisher, str, str], tuple[int, bytes]] = {}
        for payload, (publisher, queue, qos) in self.sent.items():
            again = publisher.sends.get(payload, 0) > 1
            if publisher.answers.get(payload, REFUSED) >= REFUSED or (again and (qos < 2 or queue in self.limited)):
                continue
            for place in self.offsets.get((queue, payload), ()):
                partition, _, offset = place.partition(":")
                way = publisher, queue, partition
                before = last.get(way)
                if before is not None and before[0] > int(offset):
                    self.wrong.append(f"{publisher.name} has sent {payload!r} behind {before[1]!r}; in {queue} it is "
                                      f"at {place}, ahead of {before[0]}")
                last[way] = int(offset), payload


def run(seed: int) -> None:
    SilentMoves(seed)


def test_histories(seed: int) -> None:
    for number in range(3):
        this = seed * 1_000_000 + number
        try:
            run(this)
        except BaseException as error:
            error.add_note(f"run({this})")
            raise
