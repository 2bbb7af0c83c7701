"""As test_queue_histories, for what needs several things at once: a queue moves, two nodes die soon after each other,
and publishers of QoS 2 at nodes that do not have it go on elsewhere at once, with sessions that are adopted or come
over, and send again (DUP) what was not answered. The nodes hear of changes in the store at different times.

What is checked is checked there: above all that what was acknowledged is consumed.
"""
from __future__ import annotations

from simulator.cluster.test_queue_histories import NAMES, History

HEARD_S = (0.0, 0.0, 0.05, 0.5)     # how long a node's watch of the store may be behind
BURST = (5, 20, 60)


class TwoDeaths(History):
    """steps: each has a move and the deaths of two nodes, unless a node is down or a publisher is not connected."""

    FAULTS = {"round": 10, "revive": 6, "tear": 2}

    def __init__(self, seed: int, steps: int = 30) -> None:
        super().__init__(seed, ("round", "revive", "tear"), steps)

    def publish(self) -> None:
        """Mostly QoS 2, by those that are not where the queue is."""
        queue = self.chance.choice(self.queues)
        away = [publisher for publisher in self.publishers
                if publisher.connected and publisher.at != self.owners[queue][-1]]
        if away:
            self.burst(self.chance.choice(away), queue, self.chance.choice((1, 3, 10)))

    def burst(self, publisher: object, queue: str, count: int) -> None:
        for _ in range(count):
            self.publish_one(publisher, queue, self.chance.choice((1, 2, 2, 2)))    # type: ignore[arg-type]

    def soon(self) -> None:
        self.brokers.run_for(self.chance.random() * self.chance.choice((0.005, 0.05, 0.5))
                             + self.chance.choice((0, 0, 4 * self.brokers.writer_s)))

    def hop(self) -> None:
        """Publishers whose node is dead, and perhaps another one, go on at a node that is left."""
        up = self.up()
        for publisher in self.publishers:
            if up and (not publisher.open or self.chance.random() < 0.2):
                publisher.go(self.chance.choice(up))

    def round(self) -> None:
        """A move and two deaths."""
        if len(self.up()) < len(NAMES):
            return
        for broker in self.brokers.processes.values():
            broker.cluster._store.late_s = self.chance.choice(HEARD_S)      # type: ignore[attr-defined]
        queue = self.chance.choice(self.queues)
        for publisher in self.publishers:
            if publisher.connected and publisher.at != self.owners[queue][-1]:
                self.burst(publisher, queue, self.chance.choice(BURST))
        first, second = self.chance.sample(NAMES, 2)
        for event in self.chance.choice((("move", "kill", "kill"), ("kill", "move", "kill"), ("move", "kill", "back",
                                         "kill"), ("kill", "back", "move", "kill"), ("kill", "kill"))):
            self.soon()
            if event == "move":
                if (to := self.move_one()) and self.chance.random() < 0.5:
                    first, second = to, first if first != to else second
            elif event == "back":
                self.revive()
            elif first in self.up():
                self.kill_one(first)
                first = second
            self.soon()
            self.hop()
            for publisher in self.publishers:
                if publisher.connected and self.chance.random() < 0.5:
                    self.burst(publisher, queue, self.chance.choice((1, 5)))
        self.soon()
        if self.chance.random() < 0.7:
            self.revive()

    def move_one(self) -> str:
        """Returns to which node; "": nobody could be asked."""
        before = {queue: len(nodes) for queue, nodes in self.owners.items()}
        self.move_queue()
        return next((nodes[-1] for queue, nodes in self.owners.items() if len(nodes) > before[queue]), "")


def run(seed: int) -> None:
    TwoDeaths(seed)


def test_histories(seed: int) -> None:
    for number in range(3):
        this = seed * 1_000_000 + number
        try:
            run(this)
        except BaseException as error:
            error.add_note(f"run({this})")
            raise
