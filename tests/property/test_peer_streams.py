"""Two nodes with journals, connections between them that break, and crashes of either: what was acknowledged to its
publisher is in the other node's session once, in the order of each publisher, whatever else happened."""
from __future__ import annotations

import gc
import itertools
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from kit.journals import wait_durable, writing
from kit.peers import PeerNode, Wire
from kit.watch import grown
from oracle import stored

from fluxmq._core.disk.record_kinds import RecordKind
from fluxmq._core.hub.persist import Loader
from fluxmq._core.testing.peer_probe import queued
from fluxmq._core.testing.probes import live_objects
from fluxmq.engine.positions import PeerPositions

NAMES = ("a", "b")
PUBLISHERS = 3

nodes = st.integers(0, 1)
none = st.just(None)
publish = st.tuples(st.just("publish"), nodes, st.tuples(st.integers(0, PUBLISHERS - 1), st.integers(1, 2),
                                                         st.sampled_from([True, True, True, False])))


def of(*what: str) -> st.SearchStrategy[tuple[str, int, None]]:
    return st.tuples(st.sampled_from(what), nodes, none)


# Some of them are several of the others, so that a history of some length gets somewhere.
events = st.lists(st.one_of(
    publish, publish, of("send", "send", "answer"), of("turn", "idle", "acknowledge", "interest", "give up"),
    of("journal", "lose", "dial", "late"), of("dial"), st.tuples(st.just("deliver"), nodes, st.integers(1, 4)),
    st.tuples(st.just("crash"), nodes, st.integers(0, 2)),
), min_size=10, max_size=50)


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    gc.collect()
    before = live_objects()
    yield
    gc.collect()
    assert not grown(before, live_objects())


class Place:
    """One node through all of its lives. history: batches of its journal that are on disk. numbers: of publishes, never
    used twice. acknowledged: those whose publisher was told so."""

    def __init__(self, which: int, directory: Path) -> None:
        self.which = which
        self.directory = directory
        self.history: list[bytes] = []
        self.lives = itertools.count(1)
        self.numbers = itertools.count(1)
        self.acknowledged: set[int] = set()
        self.published: dict[int, int] = {}         # number -> publisher
        self.start()

    def start(self) -> None:
        life = next(self.lives)
        self.where = self.directory / f"{NAMES[self.which]}{life}"
        self.where.mkdir()
        self.open = ExitStack()
        self.journal = self.open.enter_context(writing(self.where))
        self.node = PeerNode(NAMES[self.which], 10 * life + self.which, self.journal)
        positions = PeerPositions(self.node.hub)

        def on_cold(kind: int, number: int, body: bytes) -> None:
            if kind == RecordKind.PEER_POSITION:
                positions.replay(number, body)

        self.session = self.node.session(b"durable", number=1)
        loader = Loader(self.node.hub, on_cold)
        loader.sessions[1] = self.session
        for batch in self.history:
            loader.replay(batch)
        loader.finish()
        self.node.hub.subscribe(self.session, b"of/" + NAMES[1 - self.which].encode() + b"/#", 2, 0)
        self.node.to(NAMES[1 - self.which], b"of/#")

    def publish(self, publisher: int, qos: int, wanted: bool) -> None:
        """wanted: the durable session of the other node gets it."""
        number = next(self.numbers) if wanted else 0
        self.published[number] = publisher
        topic = b"of/%s/%d" % (NAMES[self.which].encode() if wanted else b"nobody", publisher)
        self.node.publish(topic, b"%d" % number, qos, number)

    def hear(self) -> None:
        """What publishers were told."""
        self.acknowledged |= {number for number, why in self.node.outcomes.items() if why is None}

    def crash(self, kept: int) -> None:
        """Of the batches that were not durable yet, so many are on disk all the same."""
        self.hear()
        durable = self.journal.durable
        self.session.clear()
        self.open.close()
        self.history += [b"".join(bytes([kind]) + len(body).to_bytes(4, "little") + body for kind, body in one.records)
                         for one in stored.batches_of_journals(self.where, 0) if one.number <= durable + kept]
        for inbox in self.node.inboxes.values():
            inbox.close()

    def end(self) -> None:
        self.session.clear()
        self.open.close()

    def received(self) -> list[int]:
        return [int(payload) for _, payload, *_ in queued(self.session)]


class World:
    def __init__(self, directory: Path) -> None:
        self.places = [Place(which, directory) for which in (0, 1)]
        self.wires = [self.wire(0), self.wire(1)]

    def wire(self, which: int) -> Wire:
        return Wire(self.places[which].node, self.places[1 - which].node)

    def happen(self, what: str, which: int, detail: Any) -> None:
        place, wire = self.places[which], self.wires[which]
        if what == "publish":
            place.publish(*detail)
        elif what == "turn":
            place.node.turn(journal=False)
        elif what == "send":
            for each, count in (("turn", None), ("idle", None), ("deliver", 1000)):
                self.happen(each, which, count)
        elif what == "answer":
            for each, whose, count in (("acknowledge", which, None), ("deliver", which, 1000),
                                       ("turn", 1 - which, None)):
                self.happen(each, whose, count)
        elif what == "idle":
            wire.idle()
        elif what == "deliver":
            wire.deliver(detail)
        elif what == "acknowledge":
            wire.outbox.send_ack()
        elif what == "journal":
            place.node.turn()
            wait_durable(place.journal, place.journal.gathering - 1)
            place.node.turn()
        elif what == "lose":
            wire.lose()
        elif what == "dial":
            wire.lose()
            wire.dial()
        elif what == "interest":
            wire.outbox.interest(b"/", b"x/#", b"", 1)
        elif what == "late" and wire.open:
            wire.deliver_late()
        elif what == "give up":
            wire.outbox.give_up_before(wire.outbox.cut(), "late")
        elif what == "crash":
            for one in self.wires:
                one.lose()
            place.crash(detail)
            place.start()
            self.wires = [self.wire(0), self.wire(1)]
        place.hear()

    def settle(self) -> None:
        """Nothing fails any more, until everything is acknowledged."""
        for which in (0, 1):
            self.happen("dial", which, None)
        for _ in range(100):
            for what, detail in (("turn", None), ("idle", None), ("deliver", 1000), ("journal", None),
                                 ("acknowledge", None), ("deliver", 1000), ("turn", None)):
                for which in (0, 1):
                    self.happen(what, which, detail)
            if all(not wire.outbox.unacknowledged_bytes for wire in self.wires):
                return
        raise AssertionError("it does not come to rest")

    def judge(self) -> None:
        for sender, receiver in (self.places, self.places[::-1]):
            received = receiver.received()
            assert len(set(received)) == len(received), f"twice: {received}"
            assert sender.acknowledged <= set(received), f"lost: {sender.acknowledged - set(received)}"
            for publisher in range(PUBLISHERS):
                own = [number for number in received if sender.published[number] == publisher]
                assert own == sorted(own), f"out of order: {own}"
        for wire in self.wires:
            assert wire.outbox.unacknowledged() == [] and wire.outbox.line.waiting == 0
            assert wire.inbox.committed == wire.inbox.position == wire.outbox.newest_sequence


def run(happenings: list[tuple[str, int, Any]]) -> World:
    with tempfile.TemporaryDirectory() as directory:
        world = World(Path(directory))
        try:
            for happening in happenings:
                world.happen(*happening)
            world.settle()
            world.judge()
        finally:
            for place in world.places:
                place.end()
        return world


BEGIN = [("dial", 0, None), ("dial", 1, None), ("idle", 0, None), ("idle", 1, None)]
SENT = [("publish", 0, (0, 1, True)), ("send", 0, None)]
BOTH = [("journal", 1, None), ("answer", 1, None)]


@given(events)
@settings(max_examples=100)
@example([*BEGIN, *SENT, ("crash", 1, 0)])                              # applied, not durable
@example([*BEGIN, *SENT, ("turn", 1, None), ("crash", 1, 2)])           # perhaps durable, not acknowledged
@example([*BEGIN, *SENT, ("journal", 1, None), ("crash", 1, 0)])        # durable, not acknowledged
@example([*BEGIN, *SENT, *BOTH, ("crash", 1, 0)])
@example([*BEGIN, *SENT, ("turn", 1, None), ("answer", 1, None), ("crash", 1, 0)])
@example([*BEGIN, *SENT, ("publish", 0, (0, 1, False)), ("send", 0, None), ("idle", 0, None), ("send", 0, None),
          ("answer", 1, None), ("crash", 1, 0)])                        # the second one need not wait for the journal
@example([*BEGIN, *SENT, ("journal", 1, None), ("lose", 1, None), ("lose", 0, None), *BEGIN])
@example([*BEGIN, *SENT, ("crash", 0, 0), *BEGIN, *SENT])
@example([*BEGIN, *SENT, *SENT, ("lose", 0, None), *BEGIN, *SENT])
@example([*BEGIN, *SENT[:1], ("turn", 0, None), ("turn", 0, None), ("lose", 0, None), ("crash", 0, 0)])     # only sent
@example([*BEGIN, *SENT[:1], ("turn", 0, None), ("dial", 0, None), ("late", 0, None), ("deliver", 0, 4)])
@example([*BEGIN, *SENT, ("journal", 1, None), ("publish", 1, (0, 1, True)), ("turn", 1, None), ("crash", 0, 0), *BEGIN,
          ("deliver", 1, 4)])                                           # acknowledges what another life sent
def test_what_was_acknowledged_is_there_once_and_in_order(happenings: list[tuple[str, int, Any]]) -> None:
    run(happenings)


def test_something_is_acknowledged() -> None:
    """The property above would hold for a stream that never acknowledges."""
    world = run([*BEGIN, *SENT, ("crash", 1, 0), ("dial", 0, None), ("idle", 0, None), *SENT,
                 ("publish", 1, (2, 2, True))])
    assert [place.acknowledged for place in world.places] == [{1, 2}, {1}]
