"""The broker without I/O under a clock of the test's own: expiry, wills, takeover. MQTT 5.0 sections 3.1.2.5, 3.1.3.2,
3.1.2.11.2, 3.14.2.2.2, 4.1."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kit.carrier import Carrier

from fluxmq._core.errors import ProtocolError
from fluxmq._core.hub.hub import Hub
from fluxmq._core.pubsub.session import Session
from fluxmq.cluster.solo import solo
from fluxmq.engine.broker import STALE_TIMERS_MAX, Broker, Limits
from fluxmq.engine.sessions.state import EXPIRY_NEVER, Will

START_MS = 1_700_000_000_000
YEAR_S = 366 * 86400


class World:
    """A broker and its clock. A session named "watch", away for ever, queues every will."""

    def __init__(self, **limits: object) -> None:
        self.hub = Hub(None, 64, 1)
        self.now_ms = START_MS
        self.hub.set_clock(self.now_ms, 0)
        self.broker = Broker(self.hub, Limits(**limits), cluster=solo())  # type: ignore[arg-type]
        self.watch, link = self.connect("watch", EXPIRY_NEVER)
        self.broker.subscribe(self.watch, b"will/#", 1, 0)
        self.broker.disconnect(self.watch, link, publish_will=True)

    def connect(
        self,
        name: str,
        expiry_s: int = 0,
        *,
        clean: bool = False,
        will: Will | None = None,
        present: bool | None = None,
        asked_ms: int | None = None,
    ) -> tuple[Session, Carrier]:
        link = Carrier()
        session, had = self.broker.connect(
            name.encode(),
            version=5,
            clean_start=clean,
            expiry_s=expiry_s,
            keep_alive_s=0,
            will=will,
            username=None,
            connection=link,
            asked_ms=asked_ms,
        )
        if present is not None:
            assert had is present
        return session, link

    def leave(self, session: Session, link: Carrier, *, will: bool = True, expiry_s: int | None = None) -> None:
        self.broker.disconnect(session, link, publish_will=will, expiry_s=expiry_s)

    def after(self, seconds: float) -> None:
        self.now_ms += round(seconds * 1000)
        self.hub.set_clock(self.now_ms, self.now_ms - START_MS)
        self.broker.tick()

    def has(self, name: str) -> bool:
        return (b"/", name.encode()) in self.broker.sessions

    @property
    def wills(self) -> int:
        return self.watch.queued


def will(name: str = "a", **more: object) -> Will:
    return Will(f"will/{name}".encode(), b"gone", 1, False, **more)  # type: ignore[arg-type]


# ---------------------------------------------------------------- session expiry


@pytest.mark.parametrize("expiry_s", [1, 10, 86400, EXPIRY_NEVER - 1])
def test_a_session_ends_when_its_expiry_has_passed(expiry_s: int) -> None:
    world = World()
    world.leave(*world.connect("a", expiry_s))
    world.after(expiry_s - 0.001)
    assert world.has("a")
    world.after(0.001)
    assert not world.has("a")


def test_expiry_zero_ends_with_the_connection_and_never_means_never() -> None:
    world = World()
    world.leave(*world.connect("zero", 0))
    assert not world.has("zero")
    world.leave(*world.connect("never", EXPIRY_NEVER))
    world.after(500 * YEAR_S)
    assert world.has("never")


def test_a_return_stops_the_clock_and_the_next_end_starts_it_anew() -> None:
    world = World()
    world.leave(*world.connect("a", 10))
    world.after(9)
    session, link = world.connect("a", 10, present=True)
    world.after(100)
    assert world.has("a")
    world.leave(session, link)
    world.after(9.999)
    assert world.has("a")
    world.after(0.001)
    assert not world.has("a")
    world.connect("a", 10, present=False)


@pytest.mark.parametrize(
    ("override", "cap", "ends_after"),
    [(0, 0, 0), (5, 0, 5), (1000, 0, 1000), (1000, 60, 60), (EXPIRY_NEVER, 60, 60), (5, 60, 5)],
)
def test_the_override_of_a_disconnect(override: int, cap: int, ends_after: int) -> None:
    world = World(expiry_max_s=cap)
    world.leave(*world.connect("a", 20), expiry_s=override)
    if ends_after:
        world.after(ends_after - 0.001)
        assert world.has("a")
        world.after(0.001)
    assert not world.has("a")


def test_the_cap_of_the_configuration() -> None:
    assert [World(expiry_max_s=60).broker.cap_expiry(wish) for wish in (0, 5, 60, 61, EXPIRY_NEVER)] == [
        0,
        5,
        60,
        60,
        60,
    ]
    assert World().broker.cap_expiry(EXPIRY_NEVER) == EXPIRY_NEVER


def test_what_was_subscribed_goes_with_the_session() -> None:
    world = World()
    session, link = world.connect("a", 5)
    for filter_ in (b"x/#", b"$share/g/y", b"$share/g/z"):
        assert world.broker.subscribe(session, filter_, 1, 0)[0] == 1
    before = world.hub.counters()["subscriptions"]
    world.leave(session, link)
    assert world.hub.publish_message(b"x/1", b"kept", 1) == 1 and session.queued == 1
    world.after(5)
    assert world.hub.counters()["subscriptions"] == before - 3
    assert world.broker.hub.groups == {}
    assert world.hub.publish_message(b"x/1", b"", 1) == 0
    assert world.hub.counters()["queued"] == 0


# ---------------------------------------------------------------- wills


def test_a_will_without_delay_is_published_at_once_and_once() -> None:
    world = World()
    world.leave(*world.connect("a", 10, will=will()))
    assert world.wills == 1
    world.after(20)
    assert world.wills == 1


def test_no_will_after_a_normal_disconnect() -> None:
    world = World()
    world.leave(*world.connect("a", 10, will=will(delay_s=5)), will=False)
    world.leave(*world.connect("b", 0, will=will()), will=False)
    world.after(100)
    assert world.wills == 0


def test_a_delayed_will() -> None:
    world = World()
    world.leave(*world.connect("a", 100, will=will(delay_s=5)))
    world.after(4.999)
    assert world.wills == 0
    world.after(0.001)
    assert world.wills == 1
    world.after(200)  # and the end of the session does not repeat it
    assert world.wills == 1 and not world.has("a")


@pytest.mark.parametrize("expiry_s", [0, 3])
def test_the_delay_does_not_outlive_the_session(expiry_s: int) -> None:
    world = World()
    world.leave(*world.connect("a", expiry_s, will=will(delay_s=5)))
    if expiry_s:
        world.after(expiry_s - 0.001)
        assert world.wills == 0
        world.after(0.001)
    assert world.wills == 1
    world.after(100)
    assert world.wills == 1


def test_a_return_within_the_delay_cancels_the_will() -> None:
    world = World()
    world.leave(*world.connect("a", 100, will=will(delay_s=5)))
    world.after(4)
    world.connect("a", 100, present=True)
    world.after(1000)
    assert world.wills == 0


def test_a_return_with_clean_start_ends_the_session_and_so_publishes() -> None:
    world = World()
    world.leave(*world.connect("a", 100, will=will(delay_s=5)))
    world.connect("a", 100, clean=True, present=False)
    assert world.wills == 1
    world.after(1000)
    assert world.wills == 1


@pytest.mark.parametrize(
    ("clean", "delay_s", "expiry_s", "published"),
    [
        (False, 0, 100, 1),  # no delay: the Network Connection is closed, [MQTT-3.1.2-8]
        (False, 5, 100, 0),  # the client is back within the delay, [MQTT-3.1.3-9]
        (True, 5, 100, 1),  # its session ends
        (True, 0, 100, 1),
        (False, 5, 0, 1),
        (True, 0, 0, 1),
    ],
)
def test_the_will_of_one_who_is_taken_over(clean: bool, delay_s: int, expiry_s: int, published: int) -> None:
    world = World()
    _, link = world.connect("a", expiry_s, will=will(delay_s=delay_s))
    world.connect("a", 100, clean=clean)
    assert link.told == [0x8E]
    assert world.wills == published
    world.after(1000)
    assert world.wills == published


def test_the_expiry_of_a_will_counts_from_its_publication() -> None:
    world = World()
    world.leave(*world.connect("a", 100, will=Will(b"kept", b"x", 0, True, delay_s=5, expiry_s=7)))
    world.after(5)
    [(topic, kept)] = list(world.hub.root.topics.retained)
    assert topic == b"kept" and kept.expires_at == world.now_ms + 7000


# ---------------------------------------------------------------- retained


def test_retained_messages_expire() -> None:
    world = World()
    before = world.hub.retained.bytes
    world.hub.publish_message(b"r/1", b"x", 0, True, expires_at=world.now_ms + 5000)
    world.hub.publish_message(b"r/2", b"x", 0, True)
    world.after(4.999)
    assert world.hub.namespaces.expire_retained() == 0
    world.after(0.001)
    assert world.hub.namespaces.expire_retained() == 1
    assert [topic for topic, _ in world.hub.root.topics.retained] == [b"r/2"]
    world.hub.publish_message(b"r/2", b"", 0, True)
    assert world.hub.retained.bytes == before and len(world.hub.root.topics.retained) == 0


def test_a_retained_message_may_be_replaced_when_there_is_no_room_for_another() -> None:
    world = World()
    world.hub.retained.count_max = 1
    world.hub.retained.bytes_max = 100
    world.hub.publish_message(b"r", b"x" * 90, 0, True)
    world.hub.publish_message(b"s", b"y", 0, True)
    world.hub.publish_message(b"r", b"y" * 80, 0, True)
    [(topic, kept)] = list(world.hub.root.topics.retained)
    assert topic == b"r" and kept.payload == b"y" * 80
    assert world.hub.retained.bytes == 81 and world.hub.retained.refused == 1


# ---------------------------------------------------------------- takeover and bounds


def test_takeover() -> None:
    world = World()
    session, link = world.connect("a", 100)
    again, second = world.connect("a", 100, present=True)
    assert again is session and link.told == [0x8E] and not second.told
    world.leave(session, link)  # the old connection ends late: nothing happens
    assert world.broker.connected == 1
    fresh, third = world.connect("a", 100, clean=True, present=False)
    assert fresh is not session and session.data is None and second.told == [0x8E]
    world.leave(fresh, third)
    assert world.broker.connected == 0


def test_a_connect_that_came_earlier_displaces_nobody() -> None:
    """Its login took longer than that of the client that is there."""
    world = World()
    session, link = world.connect("a", 100, asked_ms=7)
    with pytest.raises(ProtocolError) as refused:
        world.connect("a", 100, clean=True, asked_ms=6)
    assert refused.value.reason == 0x89 and not link.told and session.data.connection is link
    world.connect("a", 100, asked_ms=7, present=True)
    assert link.told == [0x8E]
    world.leave(session, session.data.connection)
    world.connect("a", 100, asked_ms=1, present=True)       # nobody is there


def test_topic_filters_and_wills_are_bounded_in_bytes() -> None:
    world = World(state_bytes_max=100)
    broker = world.broker
    kept = broker.state_bytes
    assert kept == len(b"will/#")
    session, link = world.connect("a", 10, will=Will(b"t" * 10, b"p" * 20, 1, False, b"x" * 5))
    assert broker.state_bytes == kept + 35
    assert [broker.subscribe(session, b"f" * size, 1, 0)[0] for size in (50, 50, 10, 9)] == [1, 1, 0x97, 1]
    assert broker.subscribe(session, b"f" * 50, 0, 0)[0] == 0, "what it has already takes no more"
    assert broker.state_bytes == 100
    with pytest.raises(ProtocolError, match=r"session\.max_state_bytes") as caught:
        world.connect("b", 10, will=Will(b"t", b"", 0, False))
    assert caught.value.reason == 0x97 and (b"/", b"b") not in broker.sessions
    world.connect("b", 10)
    assert broker.unsubscribe(session, b"f" * 9) == 0 and broker.state_bytes == 91
    world.leave(session, link)          # its will is published
    assert broker.state_bytes == kept + 50
    world.connect("a", 10, will=Will(b"tt", b"", 0, False), present=True)
    world.connect("a", 10, will=Will(b"t", b"", 0, False), present=True)
    assert broker.state_bytes == kept + 51
    world.connect("a", clean=True)
    assert broker.state_bytes == kept


def test_sessions_are_bounded() -> None:
    world = World(sessions_max=3)
    world.connect("a", 10)
    b = world.connect("b", 10)
    with pytest.raises(ProtocolError, match="max_sessions") as caught:
        world.connect("c", 10)
    assert caught.value.reason == 0x97
    world.connect("a", 10, present=True)  # who is known is no further one
    world.leave(*b)
    world.after(10)
    world.connect("c", 10, present=False)


def test_timers_of_earlier_lives_do_not_pile_up() -> None:
    world = World()
    for _ in range(3 * STALE_TIMERS_MAX):
        world.leave(*world.connect("a", 7 * 86400, will=will(delay_s=3600)))
        assert len(world.broker._timers) <= 2 * STALE_TIMERS_MAX
    world.after(3600)
    assert world.wills == 1
    world.after(7 * 86400 - 3600)
    assert not world.has("a") and world.has("watch")


# ---------------------------------------------------------------- any history

NAMES = ("a", "b", "c")
OPERATIONS = st.one_of(
    st.tuples(
        st.just("connect"),
        st.sampled_from(NAMES),
        st.booleans(),
        st.sampled_from((0, 3, 10, EXPIRY_NEVER)),
        st.none() | st.sampled_from((0, 2, 5, 20)),
    ),
    st.tuples(
        st.just("leave"), st.sampled_from(NAMES), st.booleans(), st.none() | st.sampled_from((0, 1, 4, EXPIRY_NEVER))
    ),
    st.tuples(st.just("wait"), st.sampled_from((0.5, 1.0, 3.0, 10.0))),
)


class Model:
    """The same, written down naively: each client is a record, time is looked at once for each of its instants."""

    def __init__(self) -> None:
        self.now = 0.0
        self.wills = 0
        self.clients: dict[str, dict[str, float | bool | None]] = {}

    def end(self, name: str) -> None:
        if self.clients.pop(name)["will"] is not None:
            self.wills += 1

    def lose(self, name: str, override: int | None, publish: bool, back: bool, clean: bool) -> None:
        client = self.clients[name]
        client["online"] = False
        if override is not None:
            client["expiry"] = override
        if not publish:
            client["will"] = None
        if client["expiry"] == 0:
            self.end(name)
            return
        if client["will"] == 0 or (clean and client["will"] is not None):
            client["will"] = None
            self.wills += 1
        elif client["will"] is not None:
            client["will_at"] = float("inf") if back else self.now + float(client["will"])
        client["ends_at"] = (
            float("inf") if client["expiry"] == EXPIRY_NEVER else self.now + float(client["expiry"] or 0)
        )

    def connect(self, name: str, clean: bool, expiry: int, delay: int | None) -> None:
        if name in self.clients and self.clients[name]["online"]:
            self.lose(name, None, True, True, clean)
        if name in self.clients and clean:
            self.end(name)
        self.clients[name] = {"online": True, "expiry": expiry, "will": delay}

    def wait(self, seconds: float) -> None:
        self.now += seconds
        for name, client in list(self.clients.items()):
            if client["online"]:
                continue
            if client["will"] is not None and float(client["will_at"] or 0) <= self.now:
                client["will"] = None
                self.wills += 1
            if float(client["ends_at"] or 0) <= self.now:
                self.end(name)


@settings(max_examples=300, deadline=None)
@given(st.lists(OPERATIONS, max_size=30))
def test_any_history(operations: list[tuple]) -> None:  # type: ignore[type-arg]
    world, model = World(), Model()
    online: dict[str, tuple[Session, Carrier]] = {}
    for kind, *arguments in operations:
        if kind == "connect":
            name, clean, expiry, delay = arguments
            online[name] = world.connect(
                name, expiry, clean=clean, will=None if delay is None else will(name, delay_s=delay)
            )
            model.connect(name, clean, expiry, delay)
        elif kind == "leave" and arguments[0] in online:
            name, publish, override = arguments
            session, link = online.pop(name)
            if session.data.expiry_s == 0:
                override = None  # the edge refuses such an override
            world.leave(session, link, will=publish, expiry_s=override)
            model.lose(name, override, publish, False, False)
        elif kind == "wait":
            world.after(arguments[0])
            model.wait(arguments[0])
        assert {name for name in NAMES if world.has(name)} == set(model.clients)
        assert world.wills == model.wills == world.broker.wills_published
        assert world.broker.connected == len(online)
