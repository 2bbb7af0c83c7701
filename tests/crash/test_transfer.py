"""A session moves between two brokers on disks: any history of it, any crash of either meanwhile.

What a client receives that resumes at the new owner is what it would have received without the move: everything that
was durable, QoS 2 once, in order.
"""
from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from crash.history import MEMORY
from crash.moving import CLIENT, PARTS_BYTES, Move
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

import fluxmq.engine.durability as durability
from fluxmq._core.pubsub.session import Session
from fluxmq._core.testing.probes import session_state
from fluxmq.engine.sessions.transfer import Arrival, freeze

Steps = list[tuple[object, ...]]
PHASES = [Phase.explicit, Phase.reuse, Phase.generate]  # shrinking takes minutes

qos = st.sampled_from((1, 2, 2))
side = st.sampled_from(("old", "new"))
life = st.one_of(
    st.tuples(st.just("publish"), st.sampled_from(("early", "late")), qos, st.integers(1, 5),
              st.sampled_from((0, 200, 5000))),
    st.tuples(st.just("answer"), st.integers(1, 3)), st.tuples(st.just("answer"), st.integers(1, 9)),
    st.tuples(st.just("send")),
    st.tuples(st.just("settle"), st.just("old")), st.tuples(st.just("connect"), st.integers(1, 4)),
    st.tuples(st.just("leave")), st.tuples(st.just("finish"), st.just("old")),
)
moving = st.one_of(
    st.tuples(st.just("go")), st.tuples(st.just("go")), st.tuples(st.just("go")), st.tuples(st.just("go")),
    st.tuples(st.just("publish"), st.sampled_from(("early", "late")), qos, st.integers(1, 3), st.just(0)),
    st.tuples(st.just("settle"), side), st.tuples(st.just("checkpoint"), side, st.integers(1, 6)),
    st.tuples(st.just("finish"), side),
)
crashing = st.one_of(moving, moving, moving, st.tuples(st.just("crash"), side))


@pytest.fixture(autouse=True)
def _small_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(durability, "SLICE_SESSIONS", 1)    # as many gaps in a checkpoint as there can be


@contextmanager
def a_move(queue_max: int = 1000) -> Iterator[Move]:
    loop = asyncio.new_event_loop()
    with tempfile.TemporaryDirectory(dir=MEMORY) as directory:
        move = Move(Path(directory), loop, queue_max)
        try:
            yield move
        finally:
            move.close()
            loop.run_until_complete(loop.shutdown_default_executor())
            loop.close()


def play(move: Move, steps: Steps) -> None:
    for what, *arguments in steps:
        if what == "go" and move.stage == "over":
            continue
        getattr(move, str(what))(*arguments)


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck), phases=PHASES)
@given(st.lists(life, max_size=25), st.lists(moving, max_size=30))
def test_a_client_gets_what_it_would_have_got(history: Steps, meanwhile: Steps) -> None:
    with a_move() as move:
        play(move, history + meanwhile)
        move.check()


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck), phases=PHASES)
@given(st.lists(life, max_size=15), st.lists(crashing, min_size=8, max_size=50))
def test_and_so_it_does_after_crashes(history: Steps, meanwhile: Steps) -> None:
    with a_move() as move:
        play(move, history + meanwhile)
        move.check()


@pytest.mark.soak
@settings(max_examples=3000, deadline=None, suppress_health_check=list(HealthCheck), phases=PHASES)
@given(st.lists(life, max_size=25), st.lists(crashing, min_size=8, max_size=80))
def test_and_so_it_does_for_long(history: Steps, meanwhile: Steps) -> None:
    with a_move() as move:
        play(move, history + meanwhile)
        move.check()


BEFORE: Steps = [("publish", "early", 2, 5, 200), ("settle", "old"), ("answer", 2), ("send",),
                 ("publish", "late", 1, 3, 0), ("settle", "old"), ("answer", 1), ("publish", "early", 2, 2, 5000)]
STAGES = ("freeze", "feed", "last", "switch", "activate", "tail", "rest", "end", "over")


@pytest.mark.parametrize("durable", [False, True], ids=["at once", "when durable"])
@pytest.mark.parametrize("who", ["old", "new"])
@pytest.mark.parametrize("stage", STAGES)
def test_a_crash_before_each_step(stage: str, who: str, durable: bool) -> None:
    with a_move() as move:
        play(move, BEFORE)
        while move.stage != stage:
            move.publish("early", 2)
            move.publish("late", 1)
            move.go()
        if durable:
            move.settle("old")
            move.settle("new")
        move.crash(who)
        move.publish("early", 2)
        move.check()


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck), phases=PHASES)
@given(st.lists(life, max_size=40), st.booleans(), st.booleans())
def test_the_state_is_the_same(history: Steps, checkpoint: bool, crash: bool) -> None:
    """Window with packet identifiers, line, identifiers of both directions; also after the new owner's restart."""
    with a_move(queue_max=6) as move:
        play(move, history)
        move.settle("old")
        session = move.old.session
        assert session is not None
        departure = freeze(move.old.node.broker, session)
        assert departure is not None
        state = session_state(session)
        arrival = Arrival(move.new.node.broker, move.new.node.hub.root, CLIENT.encode())
        for part in departure.parts(PARTS_BYTES):
            arrival.feed(part)
        arrival.activate()
        numbers = move.new.node.hub.ledger.message_last
        if checkpoint:
            move.finish("new")
        if crash:
            move.settle("new")
            move.new.crash()
        assert move.new.node.hub.ledger.message_last >= numbers
        assert move.new.session is not None
        assert session_state(move.new.session) == state
        departure.end()


@pytest.mark.parametrize("steps", range(1, 8))
@pytest.mark.parametrize("fed", [1, 4, 100])
def test_a_checkpoint_in_the_middle(fed: int, steps: int) -> None:
    """The view has some parts of the arrival, the journal the others."""
    with a_move() as move:
        play(move, [*BEFORE, ("go",)])
        for _ in range(fed):
            if move.stage == "feed":
                move.go()
        move.checkpoint("new", steps)
        while move.stage != "activate":
            move.go()
        move.checkpoint("new", 1)
        move.crash("new")
        arrival = move.moving
        assert arrival is not None and arrival.session is move.new.arrival
        move.check()


def test_an_arrival_without_its_end_is_gone_after_a_crash() -> None:
    with a_move() as move:
        play(move, [*BEFORE, ("go",), ("go",), ("go",), ("settle", "new"), ("finish", "new")])
        assert move.new.arrival is not None
        move.new.crash()
        assert move.new.arrival is None and not move.new.node.broker.sessions.of_namespace(b"/")[1:]
        move.new.node.settle()
        move.finish("new")
        assert [key for key, _ in move.new.node.store.load() if key[:1] == b"s"] == [b"s" + (1).to_bytes(8, "big")]


def test_an_abandoned_arrival_is_gone_after_a_crash() -> None:
    with a_move() as move:
        play(move, BEFORE)
        while move.stage != "activate":
            move.go()
        assert move.moving is not None
        move.moving.abandon()
        move.settle("new")
        move.new.crash()
        assert move.new.arrival is None and move.new.session is None


def returning(move: Move, steps: Steps) -> None:
    """The old owner went away after these steps. A node has adopted the session, to which no client has connected."""
    play(move, steps)
    move.client.lose()
    move.old.node.turn()
    broker = move.new.node.broker
    adopted = broker.arrive(CLIENT.encode(), move.new.node.hub.root)
    adopted.data.version, adopted.data.expiry_s = 0, 0xFFFFFFFF
    broker.record_head(adopted)
    broker.activate(adopted)
    broker.subscribe(adopted, b"t/#", 2, 5)
    move.owner, move.stage = move.new, "return"
    move.publish("early", 2, 2)
    move.publish("early", 1)
    move.settle("new")
    move.crash("old")


def state_of(session: Session | None) -> dict[str, Any]:
    assert session is not None
    return session_state(session)


def test_a_node_that_returns_to_an_adopter() -> None:
    """What was in flight is completed under its packet identifiers."""
    with a_move() as move:
        returning(move, BEFORE)
        before = state_of(move.old.session)
        move.go()
        merged = state_of(move.new.session)
        assert {*merged["window"]} == {*before["window"]} and merged["received"] == before["received"]
        assert [each[2] for each in merged["line"][:-3]] == [each[2] for each in before["line"]]
        move.crash("new")
        assert state_of(move.new.session) == merged
        move.check()


@pytest.mark.parametrize("steps", range(1, 9))
def test_a_checkpoint_while_an_arrival_joins_a_session(steps: int) -> None:
    with a_move() as move:
        returning(move, BEFORE)
        departure = freeze(move.old.node.broker, move.old.session)      # type: ignore[arg-type]
        assert departure is not None
        arrival = Arrival(move.new.node.broker, move.new.node.hub.root, CLIENT.encode())
        for part in departure.parts(PARTS_BYTES):
            arrival.feed(part)
        move.settle("new")
        move.checkpoint("new", steps)
        adopted = move.new.session
        assert adopted is not None
        arrival.merge(adopted)
        merged = state_of(adopted)
        move.settle("new")
        move.finish("new")
        move.crash("new")
        assert state_of(move.new.session) == merged
        move.finish("new")
        move.crash("new")
        assert state_of(move.new.session) == merged
        rows = {key for key, _ in move.new.node.store.load()}
        assert len([key for key in rows if key[:1] == b"s"]) == 2


def test_a_node_that_returns_after_the_client_has() -> None:
    """It has connected to the adopted session: what was in flight elsewhere is sent anew, ahead of the rest."""
    with a_move() as move:
        returning(move, [("publish", "early", 1, 5, 0)])
        new = move.new.node
        move.client.connect(new, 1)
        assert move.client.present
        move.client.answer(new, 1)
        new.settle()
        before = state_of(move.old.session)
        in_flight = [each[2] for each in before["window"].values() if each[2] is not None]
        waiting = [each[2] for each in before["line"]]
        assert in_flight and waiting
        move.go()
        merged = [each[2] for each in state_of(move.new.session)["line"]]
        assert merged[:len(in_flight + waiting)] == in_flight + waiting
        assert state_of(move.new.session)["received"] == []
        move.go()
        for _ in range(100):
            move.client.answer(new, 100)
            new.settle()
        got = [payload for payload, _ in move.client.got]
        assert {message.payload for message in move.messages} <= {*got}
        assert max(got.count(payload) for payload in got) <= 2
