"""A session moves from one broker to another, both without disk and network: what of it arrives, what the old owner
keeps, and what happens to its will and its timers. States of slots, disks and crashes: tests/crash/test_transfer.py."""
from __future__ import annotations

import gc
import struct
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kit.carrier import Carrier
from kit.nodes import Nodes

from fluxmq._core.errors import CorruptError, ProtocolError, UsageError
from fluxmq._core.hub.hub import Hub
from fluxmq._core.hub.moving import MovingSession
from fluxmq._core.memory.namespace import Namespace
from fluxmq._core.pubsub.session import Session
from fluxmq._core.testing.probes import live_objects, session_state
from fluxmq.engine.broker import Broker, Limits
from fluxmq.engine.queues.consumers import QueueConsumers
from fluxmq.engine.queues.manager import QueueManager
from fluxmq.engine.queues.retry import RetryPolicy
from fluxmq.engine.sessions import parts
from fluxmq.engine.sessions.state import EXPIRY_NEVER, Consume, Will
from fluxmq.engine.sessions.transfer import Arrival, Departure, covered_by, freeze
from fluxmq.model.mqtt import ReasonCode
from fluxmq.model.queues import QueueSpec

START_MS = 1_700_000_000_000
NAME = b"client"


class World:
    """A broker and its clock, which shows another time than that of the other nodes. A session "watch" queues wills."""

    def __init__(self, name: str = "a", offset_ms: int = 0, **limits: Any) -> None:
        self.nodes = Nodes()
        self.directory = self.nodes.directory
        self.directory.node = name
        self.hub = Hub(None, 64, 1)
        self.broker = Broker(self.hub, Limits(**limits), cluster=self.nodes.cluster)
        self.manager = QueueManager(self.hub, cluster=self.nodes.cluster)
        self.broker.consumers = QueueConsumers(
            self.manager, lambda level, cause, text, fields: None, self.broker.relays, self.broker.hosts)
        self.now_ms = offset_ms
        self.after(0)
        self.carrier = Carrier()
        watch = self.connect(b"watch")
        self.broker.subscribe(watch, b"will/#", 1, 0)
        self.leave(watch)
        self.watch = watch

    def after(self, seconds: float) -> None:
        self.now_ms += round(seconds * 1000)
        self.hub.set_clock(START_MS + self.now_ms, self.now_ms)
        self.broker.tick()

    def connect(self, name: bytes = NAME, *, expiry_s: int = EXPIRY_NEVER, will: Will | None = None,
                clean: bool = False, namespace: Namespace | None = None) -> Session:
        self.carrier = Carrier()
        return self.broker.connect(name, version=5, clean_start=clean, expiry_s=expiry_s, keep_alive_s=30, will=will,
                                   username="user", connection=self.carrier, namespace=namespace)[0]

    def leave(self, session: Session, *, will: bool = True) -> None:
        self.broker.disconnect(session, session.data.connection, publish_will=will)

    def away(self, filter_: bytes = b"t/#", options: int = 2, **more: Any) -> Session:
        """A session whose client has left."""
        session = self.connect(**more)
        self.broker.subscribe(session, filter_, options, 0)
        self.leave(session)
        return session

    def publish(self, topic: bytes, payload: bytes = b"", qos: int = 1, **more: Any) -> None:
        self.hub.publish_message(topic, payload, qos, **more)

    @property
    def wills(self) -> int:
        return self.watch.queued


def frozen(world: World, session: Session) -> Departure:
    departure = freeze(world.broker, session)
    assert departure is not None
    return departure


def bring(departure: Departure, world: World, size: int = 1 << 18, namespace: Namespace | None = None) -> Arrival:
    """All parts of a session to another broker, where it is whole then."""
    arrival = Arrival(world.broker, namespace or world.hub.root, departure.session.name)
    for part in departure.parts(size):
        arrival.feed(part)
    arrival.finish()
    return arrival


def move(old: World, new: World, session: Session, size: int = 1 << 18) -> Session:
    departure = frozen(old, session)
    arrival = bring(departure, new, size)
    arrival.activate()
    departure.end()
    assert arrival.session is not None
    return arrival.session


def line(session: Session) -> list[bytes]:
    return [payload for _, _, payload, _ in session_state(session)["line"]]


@pytest.fixture
def old() -> World:
    return World("a")


@pytest.fixture
def new() -> World:
    return World("b", 5_000_000)


# ---------------------------------------------------------------- the old owner

def test_the_client_is_told_and_nothing_else_happens(old: World) -> None:
    session = old.connect(will=Will(b"will/x", b"", 1, False), expiry_s=60)
    old.directory.told.clear()
    departure = frozen(old, session)
    assert old.carrier.told == [ReasonCode.SESSION_TAKEN_OVER]
    assert not session.connected and session.data.connection is None
    assert (old.broker.connected, session.namespace.connections) == (0, 0)
    old.after(1000)
    assert departure.frozen and old.broker.session(NAME) is session
    assert old.wills == 0 and old.directory.told == []
    with pytest.raises(UsageError):
        freeze(old.broker, session)
    with pytest.raises(ProtocolError) as refusal:
        old.connect()
    assert refusal.value.reason == ReasonCode.SERVER_BUSY


def test_a_session_that_ends_with_its_connection_is_not_moved(old: World) -> None:
    session = old.connect(will=Will(b"will/x", b"", 1, False), expiry_s=0)
    old.directory.told.clear()
    assert freeze(old.broker, session) is None
    assert old.carrier.told == [ReasonCode.SESSION_TAKEN_OVER]
    assert old.broker.session(NAME) is None and old.wills == 1
    assert not [what for what in old.directory.told if what[0] == "release"]


def test_after_a_move_that_came_to_nothing_the_session_goes_on(old: World) -> None:
    """Its timers count from the freeze, at which its connection ended."""
    session = old.connect(will=Will(b"will/x", b"", 1, False, delay_s=10), expiry_s=60)
    old.broker.subscribe(session, b"t", 1, 0)
    departure = frozen(old, session)
    old.after(9)
    old.publish(b"t", b"1")
    departure.unfreeze()
    departure.unfreeze()
    assert not departure.frozen and line(session) == [b"1"]
    old.after(0.9)
    assert old.wills == 0
    old.after(0.1)
    assert old.wills == 1
    old.after(49.9)
    assert old.broker.session(NAME) is session
    old.after(0.1)
    assert old.broker.session(NAME) is None
    assert list(departure.tail()) == []
    departure.end()


def test_a_client_that_had_left_before_keeps_its_deadlines(old: World) -> None:
    session = old.connect(will=Will(b"will/x", b"", 1, False, delay_s=10), expiry_s=60)
    old.leave(session)
    old.after(8)
    departure = frozen(old, session)
    old.after(1)
    departure.unfreeze()
    old.after(1)
    assert old.wills == 1
    old.after(50)
    assert old.broker.session(NAME) is None


def test_after_a_move_the_old_owner_has_nothing_left(old: World, new: World) -> None:
    session = old.away(will=Will(b"will/x", b"", 1, False, delay_s=10))
    old.broker.subscribe(session, b"$share/g/s", 1, 0)
    old.publish(b"t/1", bytes(10_000))
    bytes_before = old.broker.state_bytes
    old.directory.told.clear()
    move(old, new, session)
    assert old.broker.session(NAME) is None and old.wills == 0
    assert [what for what in old.directory.told if what[0] == "release"] == []
    assert {what[2] for what in old.directory.told if what[0] == "withdraw"} == {b"t/#", b"s"}
    assert old.broker.state_bytes < bytes_before and not old.broker.hub.groups
    assert old.hub.root.bytes == old.watch.queued_bytes
    old.after(1000)
    assert old.wills == 0


def test_a_session_whose_ownership_is_lost(old: World) -> None:
    session = old.connect(will=Will(b"will/x", b"", 1, False))
    old.broker.subscribe(session, b"t", 1, 0)
    old.directory.told.clear()
    old.broker.surrender(b"/", NAME)
    assert old.carrier.told == [ReasonCode.SESSION_TAKEN_OVER] and old.wills == 0
    assert (old.broker.connected, session.namespace.connections, session.namespace.sessions) == (0, 0, 1)
    assert old.directory.told == [("withdraw", b"/", b"t", b"")]
    old.broker.surrender(b"/", NAME)


def test_a_frozen_session_whose_ownership_is_lost(old: World) -> None:
    departure = frozen(old, old.away())
    old.publish(b"t/1", b"1")
    found = departure.parts()
    old.broker.surrender(b"/", NAME)
    assert not departure.frozen and len(list(found)) == 4          # those that were begun go on
    departure.end()
    departure.unfreeze()
    with pytest.raises(UsageError):
        departure.parts()


def test_a_frozen_session_that_an_operator_ends(old: World) -> None:
    session = old.away()
    departure = frozen(old, session)
    old.broker.end_session(session)
    departure.unfreeze()
    old.after(1)


# ---------------------------------------------------------------- what arrives

def test_what_a_session_is(old: World, new: World) -> None:
    session = old.away()
    session.queue_max = 1
    old.publish(b"t/1")
    old.publish(b"t/2")
    moved = move(old, new, session)
    was, now = moved.data, new.broker.sessions[b"/", NAME].data
    assert was is now
    assert (now.version, now.expiry_s, now.keep_alive_s, now.username, now.kept) == (5, EXPIRY_NEVER, 30, "user", True)
    assert moved.dropped == 1 and moved.queued == 1
    assert moved.queue_max == new.broker.limits.queue_max


def test_what_is_queued(old: World, new: World) -> None:
    """Topics, payloads and properties of any size, QoS, retain flag, identifiers, in order."""
    session = old.connect()
    old.broker.subscribe(session, b"t/#", 2 | 8, 7)
    old.broker.subscribe(session, b"t/1", 1, 268_435_455)
    old.leave(session)
    user = b"\x26\x00\x01a\x00\x01b"
    for n in range(40):
        old.publish(b"t/%d" % (n % 3), b"%d" % n + bytes(n * 300), 1 + n % 2, retain=n % 5 == 0,
                    properties=user * (n % 4))
    before = session_state(session)
    moved = move(old, new, session, 4000)
    after = session_state(moved)
    assert after == before
    assert len(after["line"]) == 40 and {ids for *_, ids in after["line"]} == {(7,), (7, 268_435_455)}
    assert moved.queued_bytes == new.hub.root.bytes - new.watch.queued_bytes
    again = session_state(move(new, World("c"), moved, 100_000))
    assert again == before


def test_how_long_messages_live(old: World, new: World) -> None:
    """What is left counts, by the clock of the node that has it."""
    session = old.away()
    for seconds in (5, 10, 0):
        old.publish(b"t/1", b"%d" % seconds, expires_at=old.hub.steady_ms + seconds * 1000 if seconds else 0)
    departure = frozen(old, session)
    found = departure.parts()
    old.after(4)
    arrival = Arrival(new.broker, new.hub.root, NAME)
    for part in found:
        arrival.feed(part)
    arrival.activate()
    departure.end()
    assert arrival.session is not None
    new.after(2)
    third = World("c", 77_777)
    departure = frozen(new, arrival.session)
    left = [struct.unpack(">q", part[6 + 14:6 + 22])[0] for part in departure.parts(1) if part[1] == parts.ENTRIES]
    assert left == [0, 4000, -1]
    moved = bring(departure, third)
    moved.activate()
    assert moved.session is not None and line(moved.session) == [b"5", b"10", b"0"]


OPTIONS = (0, 1, 2, 1 | 4, 2 | 8, 1 | 4 | 8)


def test_subscriptions_and_their_options(old: World, new: World) -> None:
    session = old.connect()
    for n, options in enumerate(OPTIONS):
        old.broker.subscribe(session, b"a/%d/+" % n, options, n)
        old.broker.subscribe(session, b"$share/g/s/%d" % n, options & 3, n)
    new.directory.told.clear()
    moved = move(old, new, session, 100)
    assert moved.subscriptions == {b"a/%d/+" % n: (options, n) for n, options in enumerate(OPTIONS)} | {
        b"$share/g/s/%d" % n: (options & 3, n) for n, options in enumerate(OPTIONS)}
    assert {what[2:] for what in new.directory.told if what[0] == "announce"} == {
        (b"a/%d/+" % n, b"") for n in range(6)} | {(b"s/%d" % n, b"g") for n in range(6)}
    for n in range(6):
        new.publish(b"a/%d/x" % n, b"a%d" % n, 2)
        new.publish(b"s/%d" % n, b"s%d" % n, 2, retain=True)
    line_of = session_state(moved)["line"]
    got = {payload: (first & 7, tuple(each for each in ids if each < 1 << 31)) for _, first, payload, ids in line_of}
    assert all((payload[:1] == b"s") == any(each >> 31 for each in ids) for _, _, payload, ids in line_of)
    for n, options in enumerate(OPTIONS):
        qos = options & 3
        for key in (b"a%d" % n, b"s%d" % n):
            assert got.get(key) == ((qos << 1, (n,) if n else ()) if qos else None), key


def test_a_subscription_that_is_suspended(old: World, new: World) -> None:
    session = old.away()
    old.broker.subscribe(session, b"u", 1, 0)
    session.data.resting |= {b"t/#"}
    old.broker.unroute(session, b"t/#")
    moved = move(old, new, session)
    new.publish(b"t/1", b"no")
    new.publish(b"u", b"yes")
    assert line(moved) == [b"yes"] and moved.data.resting == {b"t/#"}
    new.broker.unsubscribe(moved, b"t/#")
    new.broker.end_session(moved)
    assert new.broker.state_bytes == len(b"will/#")


def test_subscriptions_to_queues(old: World, new: World) -> None:
    """They take messages when the client is there."""
    session = old.connect()
    options = Consume(b"workers", True, 3, "earliest", 5000, False)
    for world in (old, new):
        world.manager.declare(QueueSpec(name="q", type="classic"))
    assert old.broker.subscribe(session, b"$queue/q", 1, 9, options)[0] == 1
    assert old.broker.subscribe(session, b"$share/s/$queue/q", 1, 0, Consume())[0] == 1
    options = msgspec.structs.replace(options, retry_policy=RetryPolicy(max_retries=4, multiplier=1.5))
    old.broker.remember_consume(session, b"$queue/q", options)
    moved = move(old, new, session)
    assert moved.data.consumes == {b"$queue/q": options, b"$share/s/$queue/q": Consume(b"s")}
    assert moved.subscriptions == {b"$queue/q": (1, 9), b"$share/s/$queue/q": (1, 0)}
    new.broker.attached(moved)


@pytest.mark.parametrize(("delay_s", "away_s", "due_s"), [(0, 0, 0), (10, 0, 10), (10, 4, 6), (10, 30, 0)])
def test_a_will_moves_with_what_is_left_of_its_delay(old: World, new: World, delay_s: int, away_s: int,
                                                     due_s: int) -> None:
    will = Will(b"will/x", b"gone", 1, True, b"\x03\x00\x01t", delay_s, 60)
    session = old.connect(will=will, expiry_s=100)
    departure = frozen(old, session)
    old.after(away_s)
    arrival = bring(departure, new)
    assert new.wills == 0 and new.broker.state_bytes == len(b"will/#")
    arrival.activate()
    departure.end()
    assert old.wills == 0 and new.broker.state_bytes == len(b"will/#") + (will.size if delay_s else 0)
    assert old.directory.wills == [None, will]      # the other client's, which has none, comes first
    assert new.directory.wills == [None, will] + ([] if delay_s else [None])
    if due_s:
        new.after(due_s - 0.001)
        assert new.wills == 0
    new.after(0.001)
    assert new.wills == 1 and line(new.watch) == [b"gone"]


def test_a_client_that_comes_in_time_takes_its_will_back(old: World, new: World) -> None:
    move(old, new, old.connect(will=Will(b"will/x", b"gone", 1, True, delay_s=10), expiry_s=100))
    new.connect()
    new.after(100)
    assert new.wills == 0


@pytest.mark.parametrize("away_s", [0, 40, 70])
def test_a_session_expires_where_it_is(old: World, new: World, away_s: int) -> None:
    session = old.away(expiry_s=60)
    old.after(min(away_s, 59))
    departure = frozen(old, session)
    old.after(max(away_s - 59, 0))
    bring(departure, new).activate()
    new.after(max(60 - away_s, 0) - 0.001 if away_s < 60 else 0)
    assert (new.broker.session(NAME) is None) == (away_s >= 60)
    new.after(0.001)
    assert new.broker.session(NAME) is None


def test_namespaces(old: World, new: World) -> None:
    there, here = (world.hub.namespaces.add(b"tenant") for world in (old, new))
    session = old.away(namespace=there)
    root = old.away()
    old.hub.publish_message(b"t/1", b"theirs", 1, namespace=there)
    departure = frozen(old, session)
    with pytest.raises(ProtocolError):
        bring(departure, new)
    arrival = bring(departure, new, namespace=here)
    arrival.activate()
    departure.end()
    assert (b"tenant", NAME) in new.broker.sessions and new.broker.session(NAME) is None
    assert here.sessions == 1 and there.sessions == 0
    new.hub.publish_message(b"t/2", b"here", 1, namespace=here)
    new.publish(b"t/2", b"not here")
    assert arrival.session is not None and line(arrival.session) == [b"theirs", b"here"]
    assert root.queued == 0 and not new.broker.arrivals


# ---------------------------------------------------------------- what comes meanwhile

def test_the_snapshot_is_of_one_instant_and_the_tail_has_the_rest(old: World, new: World) -> None:
    session = old.away()
    for n in range(30):
        old.publish(b"t/1", b"%d" % n)
    departure = frozen(old, session)
    found = departure.parts(200)
    arrival = Arrival(new.broker, new.hub.root, NAME)
    for n, part in enumerate(found, 30):
        arrival.feed(part)
        old.publish(b"t/1", b"%d" % n)
    arrival.finish()
    assert arrival.session is not None
    came = int(line(arrival.session)[-1])
    assert came == 29 and session.queued == 39
    last = session.queued
    while tail := list(departure.tail(arrival.upto, 300)):
        for part in tail:
            arrival.append(part)
        if last < 100:
            old.publish(b"t/1", b"%d" % last)
            last += 1
    arrival.activate()
    departure.end()
    assert line(arrival.session) == [b"%d" % n for n in range(100)]


def test_a_tail_that_comes_after_activation_goes_ahead_of_what_came_here(old: World, new: World) -> None:
    departure = frozen(old, old.away())
    found = bring(departure, new)
    for n in range(6):
        old.publish(b"t/1", b"old %d" % n, 2)
    new.publish(b"t/1", b"nobody has subscribed yet")
    found.activate()
    for n in range(3):
        new.publish(b"t/1", b"new %d" % n)
        for part in list(departure.tail(found.upto, 1))[:2]:
            found.append(part)
    for part in departure.tail(found.upto, 1):
        found.append(part)
        found.append(part)                          # once more changes nothing
    assert found.session is not None
    state = session_state(found.session)["line"]
    assert [payload for _, _, payload, _ in state] == [b"old %d" % n for n in range(6)] + [
        b"new %d" % n for n in range(3)]
    assert [sequence for sequence, *_ in state] == sorted({sequence for sequence, *_ in state})
    new.publish(b"t/1", b"the last")
    assert line(found.session)[-1] == b"the last"


def test_a_tail_with_a_gap_is_refused(old: World, new: World) -> None:
    session = old.away()
    departure = frozen(old, session)
    arrival = bring(departure, new)
    for n in range(3):
        old.publish(b"t/1", b"%d" % n)
    _, *rest = departure.tail(size=1)
    for part in rest:
        with pytest.raises(ProtocolError):
            arrival.append(part)
    assert arrival.session is not None and arrival.session.queued == 0
    for part in departure.tail():
        arrival.append(part)
    assert line(arrival.session) == [b"0", b"1", b"2"] and not list(departure.tail(arrival.upto))


@pytest.mark.parametrize("size", [1, 150, 1 << 18])
def test_a_tail_without_what_this_node_has_itself(old: World, new: World, size: int) -> None:
    departure = frozen(old, old.away())
    found = bring(departure, new)
    for n in range(8):
        old.publish(b"t/1", b"%d" % n, 2)
    begin = departure.upto
    found.activate()
    for part in departure.tail(size=size):
        after, upto = covered_by(part)
        assert after < upto
        found.append(part, {begin + 1, begin + 4, begin + 5, begin + 8})
    assert found.session is not None
    assert line(found.session) == [b"1", b"2", b"5", b"6"] and not list(departure.tail(found.upto))


def test_what_has_come_to_a_session_while_it_moves(old: World) -> None:
    """What has an origin, and comes for the first time."""
    session = old.away()
    moving = MovingSession(session, True, notes=True)
    for identity in (7, 0, 8, 7):
        old.hub.publish_message(b"t/1", b"", 2, identity=identity)
    (first, one), (second, two) = moving.origins_behind(0, 1 << 62)
    assert (one, two) == ((7, 0, 1), (8, 0, 1)) and second == first + 2
    assert moving.origins_behind(first, second) == [(second, two)] == moving.origins_behind(second - 1, 1 << 62)
    assert moving.has_come(one) and not moving.has_come((7, 0, 2)) and not moving.has_come((9, 0, 1))


def test_what_a_session_has_no_room_for_has_not_come(old: World) -> None:
    old.broker.limits = Limits(queue_max=1, queue_rejects=True)
    moving = MovingSession(old.away(), True, notes=True)
    for identity in (7, 8):
        old.hub.publish_message(b"t/1", b"", 2, identity=identity)
    assert [origin for _, origin in moving.origins_behind(0, 1 << 62)] == [(7, 0, 1)] and not moving.has_come((8, 0, 1))


def test_what_the_old_owner_dropped_for_lack_of_room(old: World) -> None:
    """The line of the new owner has the same limit: it drops the same."""
    old.broker.limits = Limits(queue_max=4)
    new = World("b", queue_max=4)
    session = old.away()
    for n in range(4):
        old.publish(b"t/1", b"%d" % n)
    departure = frozen(old, session)
    arrival = bring(departure, new)
    for n in range(4, 10):
        old.publish(b"t/1", b"%d" % n)
    for part in departure.tail():
        arrival.append(part)
    arrival.activate()
    assert arrival.session is not None
    assert line(arrival.session) == [b"6", b"7", b"8", b"9"]
    tail = list(departure.tail(0))
    new.publish(b"t/1", b"new")
    for part in tail:
        arrival.append(part)
    assert line(arrival.session) == [b"7", b"8", b"9", b"new"]


# ---------------------------------------------------------------- the new owner

def test_an_arrival_is_nowhere_until_it_is_active(old: World, new: World) -> None:
    session = old.connect(will=Will(b"will/x", b"gone", 1, True, delay_s=1), expiry_s=2)
    old.broker.subscribe(session, b"t", 1, 0)
    new.directory.told.clear()
    arrival = bring(frozen(old, session), new)
    new.publish(b"t", b"1")
    new.after(100)
    assert new.broker.session(NAME) is None and new.directory.told == [] and new.wills == 0
    assert arrival.session is not None and arrival.session.queued == 0
    arrival.abandon()
    arrival.abandon()
    assert not new.broker.arrivals and arrival.ended
    with pytest.raises(UsageError):
        arrival.activate()
    arrival.append(b"")                             # nobody needs it


def test_one_that_is_not_whole_is_nothing(old: World, new: World) -> None:
    departure = frozen(old, old.away())
    *most, last = departure.parts()
    arrival = Arrival(new.broker, new.hub.root, NAME)
    with pytest.raises(ProtocolError):
        arrival.finish()
    for part in most:
        arrival.feed(part)
    with pytest.raises(UsageError):
        arrival.activate()
    with pytest.raises(ProtocolError):
        arrival.finish()
    with pytest.raises(ProtocolError):
        arrival.feed(last)
    assert not new.broker.arrivals


def test_an_arrival_replaces_another_one(old: World, new: World) -> None:
    departure = frozen(old, old.away())
    first, second = bring(departure, new), bring(departure, new)
    assert first.ended and not second.ended
    second.activate()
    first.abandon()
    second.abandon()                                # too late
    assert new.broker.session(NAME) is second.session
    third = bring(departure, new)
    with pytest.raises(UsageError):
        third.activate()
    new.broker.surrender(b"/", NAME)
    assert second.ended and not third.ended
    third.activate()


def test_there_may_be_no_room(old: World) -> None:
    session = old.away(filter_=b"f" * 1000)
    departure = frozen(old, session)
    full = World("b", sessions_max=1)
    with pytest.raises(ProtocolError) as refusal:
        bring(departure, full)
    assert refusal.value.reason == ReasonCode.QUOTA_EXCEEDED
    small = World("b", state_bytes_max=500)
    with pytest.raises(ProtocolError) as refusal:
        bring(departure, small)
    assert refusal.value.reason == ReasonCode.QUOTA_EXCEEDED and not small.broker.arrivals


def test_a_namespace_that_ends_takes_its_arrivals_along(old: World, new: World) -> None:
    there, here = (world.hub.namespaces.add(b"tenant") for world in (old, new))
    arrival = bring(frozen(old, old.away(namespace=there)), new, namespace=here)
    for session in new.broker.arrivals.of_namespace(b"tenant"):
        new.broker.drop_arrival(session)
    assert arrival.ended


# ---------------------------------------------------------------- a node that returns

def test_what_a_returning_node_has_goes_ahead(old: World, new: World) -> None:
    session = old.away()
    for n in range(3):
        old.publish(b"t/1", b"old %d" % n)
    adopted = new.away(filter_=b"#")
    for n in range(3):
        new.publish(b"t/1", b"new %d" % n)
    arrival = bring(frozen(old, session), new)
    arrival.merge(adopted)
    assert arrival.ended and line(adopted) == [b"old 0", b"old 1", b"old 2", b"new 0", b"new 1", b"new 2"]
    assert {*adopted.subscriptions} == {b"#"}
    new.publish(b"t/1", b"last")
    assert line(adopted)[-1] == b"last"
    with pytest.raises(UsageError):
        arrival.merge(adopted)


def test_a_merge_into_nothing(old: World, new: World) -> None:
    arrival = bring(frozen(old, old.away()), new)
    with pytest.raises(UsageError):
        arrival.merge(new.watch)
    adopted = new.away()
    freeze(new.broker, adopted)
    with pytest.raises(UsageError):
        arrival.merge(adopted)


# ---------------------------------------------------------------- any bytes

def some_parts() -> list[bytes]:
    world = World("a")
    session = world.connect(will=Will(b"will/x", b"gone", 1, True, b"\x03\x00\x01t", 9), expiry_s=9)
    world.broker.subscribe(session, b"t/#", 2, 7)
    world.broker.subscribe(session, b"$share/g/t/#", 1, 0)
    for packet_id in (1, 77):
        session.mark_received(packet_id, True)
    departure = frozen(world, session)
    for n in range(4):
        world.publish(b"t/%d" % n, b"p" * 5000 * (n % 2), 1 + n % 2, properties=b"\x26\x00\x01a\x00\x01b" * n)
    found = list(departure.parts(500))
    world.publish(b"t/x", b"tail")
    found += departure.tail()
    assert {part[1] for part in found} == {1, 2, 3, 4, 5, 6}
    world.broker.end_session(session)
    return found


def with_byte(part: bytes, at: int, byte: int) -> bytes:
    return part[:at] + bytes((byte,)) + part[at + 1:]


PARTS = some_parts()
broken = st.tuples(st.integers(0, len(PARTS) - 1), st.one_of(
    st.binary(max_size=40).map(lambda tail: lambda part: part[:len(part) // 2] + tail),
    st.tuples(st.integers(0, 10_000), st.integers(0, 255)).map(
        lambda at: lambda part: with_byte(part, at[0] % (len(part) + 1), at[1])),
    st.binary(max_size=60).map(lambda all_: lambda part: all_),
    st.binary(max_size=60).map(lambda all_: lambda part: part[:6] + all_),
    st.integers(0, len(PARTS) - 1).map(lambda other: lambda part: PARTS[other]),
    st.just(lambda part: part + b"\0"), st.just(lambda part: b""),
))


@pytest.mark.usefixtures("few_to_collect")
@settings(max_examples=400, deadline=None)
@given(st.lists(broken, min_size=1, max_size=2))
def test_any_bytes_are_refused_or_are_a_session(changes: list[tuple[int, Any]]) -> None:
    before = live_objects()
    data = list(PARTS)
    for at, change in changes:
        data[at] = change(data[at])
    new = World("b")
    arrival = Arrival(new.broker, new.hub.root, NAME)
    try:
        for part in data[:-1]:
            arrival.feed(part)
        arrival.finish()
        arrival.activate()
    except (ProtocolError, CorruptError):
        assert not new.broker.arrivals and len(new.broker.sessions) == 1
        assert new.broker.state_bytes == len(b"will/#") and new.hub.root.bytes == new.watch.queued_bytes
    else:
        assert arrival.session is not None
        state = session_state(arrival.session)
        try:
            arrival.append(data[-1])
        except (ProtocolError, CorruptError):
            assert session_state(arrival.session) == state
        new.broker.end_session(arrival.session)
    new.broker.end_session(new.watch)
    del new, arrival
    gc.collect()
    assert live_objects() == before


def test_parts_that_contradict_each_other(new: World) -> None:
    head, *rest = PARTS[:-1]
    numbers = {part[1]: part for part in rest}

    def refused(*data: bytes) -> None:
        arrival = Arrival(new.broker, new.hub.root, NAME)
        arrival.feed(head)
        with pytest.raises(ProtocolError):
            for part in data:
                arrival.feed(part)
        assert arrival.ended

    entry = numbers[parts.ENTRIES][6:]
    in_flight = entry[:8] + b"\0\5\1" + entry[11:]
    later = (99).to_bytes(8, "big")
    refused(parts.begin_of(parts.ENTRIES, 1, in_flight), parts.begin_of(parts.ENTRIES, 2, later + in_flight[8:]))
    refused(parts.begin_of(parts.ENTRIES, 1, in_flight + later + in_flight[8:]))
    refused(parts.begin_of(parts.ENTRIES, 1, entry), parts.begin_of(parts.ENTRIES, 2, entry))
    refused(parts.begin_of(parts.ENTRIES, 1, entry), parts.end_of(2, 0, 0, 0))
    refused(parts.begin_of(parts.RECEIVED, 1, b"\0\0"))
    refused(parts.begin_of(parts.HEAD, 1, head[6:]))
    refused(parts.begin_of(parts.TAIL, 1, PARTS[-1][6:]))
    filter_ = msgspec.msgpack.encode(([(b"$queue/q", 1, 0, None)], []))
    refused(parts.begin_of(parts.SUBSCRIPTIONS, 1, filter_))
    refused(parts.begin_of(parts.SUBSCRIPTIONS, 1, msgspec.msgpack.encode(([], [b"t"]))))


# ---------------------------------------------------------------- memory

def test_parts_do_not_copy_what_they_have_not_reached(old: World) -> None:
    gc.collect()
    session = old.away()
    old.broker.limits = Limits(queue_max=100_000)
    session.queue_max = 100_000
    for _ in range(2000):
        old.publish(b"t/1", bytes(100))
    departure = frozen(old, session)
    before = live_objects()["messages"]
    found = departure.parts(10_000)
    assert live_objects()["messages"] == before
    sizes = [len(part) for part in found]
    assert max(sizes) <= 10_000 and len(sizes) > 20
    departure.end()
    assert live_objects()["messages"] == before - 2000


@pytest.mark.usefixtures("nothing_is_left")
def test_everything_is_given_back() -> None:
    old, new = World("a"), World("b")
    session = old.away()
    for n in range(50):
        old.publish(b"t/1", bytes(n * 200), expires_at=n)
    departure = frozen(old, session)
    abandoned = departure.parts(1000)
    next(abandoned)
    bring(departure, new).abandon()
    arrival = bring(departure, new)
    old.publish(b"t/1", bytes(9000))
    for part in departure.tail():
        arrival.append(part)
    arrival.activate()
    departure.end()
    assert arrival.session is not None
    for world in (old, new):
        for each in list(world.broker.sessions.values()):
            world.broker.end_session(each)
