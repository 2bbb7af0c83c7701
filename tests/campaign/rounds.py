"""One round of a campaign: load, a fault, and what came of it."""
from __future__ import annotations

import contextlib
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from campaign.books import KINDS, Findings
from campaign.faults import PROXIED, SPACED, Done
from campaign.nodes import NODES, Nodes, ProxiedNodes, SpacedNodes
from campaign.queues import Queues
from campaign.retained import Retained
from campaign.topics import Births, Part, Sessions, Wills
from kit.namespaces import Network

__all__ = ["Campaign", "Round", "deck", "summary"]

WARM_S = 1.0            # of load before a fault, and after it
PATIENCE_S = 45.0       # until everything has come that must; a round that is well takes a second or two
LOOK_S = 0.25
MOVES = 0.5             # in how many rounds queues move, besides


@dataclass
class Round:
    """number: from 1. what: of its fault, and what went on besides."""

    number: int
    fault: str
    what: str = ""
    publishes: int = 0
    confirms: int = 0
    seconds: float = 0.0
    found: Findings = field(default_factory=Findings)

    def line(self) -> str:
        wrong = ", ".join(f"{count} {kind}" for kind, count in self.found.counts.items()) or "ok"
        excused = sum(self.found.excused.values())
        return (f"round {self.number}: {self.what}: {self.publishes} publishes acknowledged, {self.confirms} confirms; "
                f"{wrong}{f' ({excused} excused)' if excused else ''}; {self.seconds:.0f} s")


def deck(chance: Random, names: Sequence[str]) -> Iterator[str]:
    """Each fault once before any comes again, in an order of chance."""
    while True:
        yield from chance.sample(names, len(names))


class Campaign:
    """directory: of the nodes, and of what is written of rounds that went wrong. seed: decides everything but what the
    machine decides. ttl_s: of leases. only: faults by their names; None: all. spaced: the nodes are in network
    namespaces, not behind proxies."""

    def __init__(self, directory: Path, seed: int, *, ttl_s: int = 3, only: Sequence[str] | None = None,
                 spaced: bool = False) -> None:
        self.directory = directory
        self.seed = seed
        self.ttl_s = ttl_s
        self.spaced = spaced
        self.faults = SPACED if spaced else PROXIED
        self.names = list(only or self.faults)

    def play(self, rounds: int, tell: Callable[[Round], None]) -> list[Round]:
        """Plays so many rounds; tell: called after each. After one that leaves nodes that do not serve, new ones are
        made."""
        played: list[Round] = []
        names = deck(Random(self.seed), self.names)
        while len(played) < rounds:
            place = self.directory / f"nodes-{len(played) + 1}"
            with self._nodes(place) as nodes:
                nodes.wait(nodes.everybody_serves)
                while len(played) < rounds:
                    done, serves = self._round(nodes, Round(len(played) + 1, next(names)))
                    played.append(done)
                    tell(done)
                    if not serves:
                        break
        return played

    @contextlib.contextmanager
    def _nodes(self, place: Path) -> Iterator[Nodes]:
        if not self.spaced:
            with ProxiedNodes(place, self.ttl_s) as proxied:
                yield proxied
            return
        with Network(NODES) as network, SpacedNodes(place, network, self.ttl_s) as spaced:
            yield spaced

    def _round(self, nodes: Nodes, this: Round) -> tuple[Round, bool]:
        chance = Random(f"{self.seed} {this.number}")
        began = time.monotonic()
        logs = [broker.stderr_size() for broker in nodes.brokers]
        epochs = nodes.epochs()
        name = f"r{this.number}"
        queues = Queues(nodes, name, chance)
        parts: list[Part] = [Sessions(nodes, name), Wills(nodes, name), Births(nodes, name),
                             Retained(nodes, name, chance), queues]
        serves = True
        done = Done(this.fault)
        try:
            for part in parts:
                part.start()
            time.sleep(WARM_S)
            with _moves(nodes, queues, chance) as moved:
                done = self.faults[this.fault](nodes, chance)
            nodes.wait(nodes.everybody_serves)
            time.sleep(WARM_S)
        except (AssertionError, OSError) as error:
            serves = False
            this.found.note("stuck", [str(error).splitlines()[0] if str(error) else repr(error)], "nodes")
            moved = []
            nodes.resume_links()
        failed = done.fails
        if serves:
            unasked = {number for number, (before, after) in enumerate(zip(epochs, nodes.epochs(), strict=True))
                       if before != after} - done.fails - done.restarts
            failed |= unasked
        this.what = done.what + "".join([f", {len(moved)} moves" if moved else "", *(
            f", n{number} lost its lease besides" for number in sorted(failed - done.fails))])
        for part in parts:
            part.stop_publishing()
        self._wait(parts)
        for part in parts:
            with contextlib.suppress(OSError, AssertionError):      # its verdict says what is missing
                part.end()
        early = nodes.let_in_early(logs)
        for part in parts:
            part.early = early
            part.judge({nodes.addresses[number] for number in failed}, this.found)
            this.publishes += part.publishes()
            this.confirms += part.confirms()
        this.found.note("accidents", nodes.accidents(), "nodes")
        this.seconds = time.monotonic() - began
        if this.found:
            self._write(this, nodes, logs)
        return this, serves

    @staticmethod
    def _wait(parts: Sequence[Part]) -> None:
        """Until everything has come, or time is over."""
        until = time.monotonic() + PATIENCE_S
        left = list(parts)
        while left and time.monotonic() < until:
            with contextlib.suppress(OSError, AssertionError):
                while left and left[0].settled():
                    left.pop(0)
            time.sleep(LOOK_S)

    def _write(self, this: Round, nodes: Nodes, logs: Sequence[int]) -> None:
        """What is wrong, and what the nodes said meanwhile."""
        text = [this.line(), *this.found.told, ""]
        for name, broker, since in zip(nodes.names, nodes.brokers, logs, strict=True):
            text += [f"── {name} ──", broker.stderr(since)]
        (self.directory / f"round-{this.number}.txt").write_text("\n".join(text))


@contextlib.contextmanager
def _moves(nodes: Nodes, queues: Queues, chance: Random) -> Iterator[list[str]]:
    """In some rounds the queues move while a fault is there, one after the other, again and again. Yields those that
    have moved, at its end."""
    moved: list[str] = []
    stopping = threading.Event()
    order = Random(chance.random())

    def run() -> None:
        while not stopping.is_set():
            queue, to, through = order.choice(queues.names), order.randrange(NODES), order.randrange(NODES)
            if nodes[through].running and nodes.move(through, queue, to):
                moved.append(queue)
            stopping.wait(0.3)

    thread = threading.Thread(target=run, name="moves", daemon=True)
    moves = chance.random() < MOVES
    if moves:
        thread.start()
    try:
        yield moved
    finally:
        stopping.set()
        if moves:
            thread.join(PATIENCE_S)


def summary(played: Sequence[Round], seed: int) -> str:
    """Of a campaign: counts over all rounds, and which rounds went wrong."""
    counts: Counter[str] = Counter()
    for one in played:
        counts += one.found.counts
    wrong = [one.number for one in played if one.found]
    by_fault = Counter(one.fault for one in played)
    return "\n".join([
        f"{len(played)} rounds with seed {seed}: {sum(one.publishes for one in played)} publishes acknowledged, "
        f"{sum(one.confirms for one in played)} confirms",
        ", ".join(f"{fault} {count}" for fault, count in sorted(by_fault.items())),
        ", ".join(f"{counts[kind]} {kind}" for kind in KINDS),
        f"wrong: rounds {', '.join(map(str, wrong))}" if wrong else "all well",
    ])
