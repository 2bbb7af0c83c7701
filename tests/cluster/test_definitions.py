"""Definitions of queues, exchanges and bindings between nodes: one store, and each node's tables and engine."""
from __future__ import annotations

import random
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, cast

import msgspec
import pytest
from cluster.world import NO_MEMBERSHIP, World
from hypothesis import given
from hypothesis import strategies as st

from fluxmq._core.errors import UsageError
from fluxmq.cluster import keys
from fluxmq.cluster.definition_values import (
    QueueData,
    Unreadable,
    binding_of,
    encode_binding,
    encode_exchange,
    encode_queue,
    exchange_of,
    key_of,
    queue_of,
)
from fluxmq.cluster.definitions import KINDS, Definitions, Placed
from fluxmq.cluster.feed import Feed
from fluxmq.cluster.keys import QUEUE, QUEUE_DATA, QUEUE_OWNER, exchange_key, queue_key
from fluxmq.cluster.messages import Control
from fluxmq.cluster.ports import Change, Event
from fluxmq.cluster.reaching import Reaching
from fluxmq.cluster.writer import Writer
from fluxmq.engine.ports.definitions import BindingDefinition, ExchangeDefinition, QueueDefinition
from fluxmq.engine.ports.queues import QueueRefused
from fluxmq.model.queue_arguments import Declared, read_arguments, spec_of
from fluxmq.model.queues import QueueSpec

LIMIT_S = 5.0
QUEUE_KEY = queue_key(QUEUE, b"/", b"q")


class Member:
    """A node's tables. told: what its engine was told, in order. has: what the engine has of that. refuses: names that
    the engine cannot use. deaf: what other nodes send to it waits. slow: what must be on disk is not yet."""

    def __init__(self, world: World, name: str) -> None:
        self.world, self.name = world, name
        self.log: list[Any] = []
        self.told: list[tuple[str, bytes]] = []
        self.has: dict[object, object] = {}
        self.refuses: set[bytes] = set()
        self.deaf = self.slow = self.without_quorum = self.leads = False
        self.messages: list[tuple[str, Control]] = []
        self.disk: list[Callable[[], None]] = []
        self.epoch = 0
        self.lease = world.end(world.store.grant(10))
        self.feed = Feed(world.store, world.driver, NO_MEMBERSHIP)
        self.writer = Writer(world.store, world.driver)
        self.reaching = Reaching(world.driver, self.feed, self._others, self._send, self._durable)
        self.definitions = Definitions(
            name, self.writer, world.driver, self.reaching, predeclared=[b"amq.direct"],
            without_quorum=lambda: self.without_quorum, limit_s=LIMIT_S, log=lambda *said: self.log.append(said))
        self.feed.listen(KINDS, self.definitions.on_event)
        self.feed.at_end = [self.definitions, self.reaching]

    def start(self) -> Member:
        self.world.store.apply([Change(b"/mqtt/nodes/" + self.name.encode(), b"", self.lease)])
        self.epoch = self.world.store.counts.revision
        members_of(self.world)[self.name] = self
        self.world.end(self.feed.load())
        self.definitions.begin(self, "disk")
        self.world.start(self.feed.follow())
        self.world.start(self.definitions.keep(lambda: self.leads))
        self.world.run(50)
        return self

    def kill(self) -> None:
        """Its process ends; its lease goes on."""
        self.deaf = True
        self.feed.close()
        self.writer.close("killed")
        self.definitions.close()

    def end_lease(self) -> None:
        del members_of(self.world)[self.name]
        self.world.store.end_lease(self.lease)
        for other in members_of(self.world).values():
            other.reaching.on_batch()

    def hear(self) -> None:
        self.deaf = False
        self._deliver()

    def _others(self) -> dict[str, int]:
        return {name: member.epoch for name, member in members_of(self.world).items() if member is not self}

    def _send(self, name: str, message: Control) -> None:
        members_of(self.world)[name].messages.append((self.name, message))
        members_of(self.world)[name]._deliver()

    def _deliver(self) -> None:
        messages = [] if self.deaf else self.messages
        while messages:
            self.reaching.on_message(*cast(Any, messages.pop(0)))

    def _durable(self, then: Callable[[], None]) -> None:
        if self.slow:
            self.disk.append(then)
        else:
            then()

    # ------------------------------------------------------------------ Learner

    def _learn(self, what: str, at: object, name: bytes, value: object) -> None:
        if name in self.refuses:
            raise UsageError("no room")
        self.told.append((what, name))
        self.has[at] = value

    def _forget(self, what: str, at: object, name: bytes) -> None:
        self.told.append((what, name))
        del self.has[at]

    def learn_queue(self, definition: QueueDefinition, owner: str | None) -> None:
        self._learn("queue", definition.address, definition.spec.raw, (definition, owner))

    def forget_queue(self, definition: QueueDefinition, *, ended: bool = False) -> None:
        self._forget("no queue", definition.address, definition.spec.raw)

    def turn_queue(self, definition: QueueDefinition, owner: str | None) -> bool:
        return False

    def set_aside_queue(self, definition: QueueDefinition, why: str) -> None:
        self._forget("aside", definition.address, definition.spec.raw)

    def learn_exchange(self, definition: ExchangeDefinition) -> None:
        self._learn("exchange", ("x", definition.address), definition.name, definition)

    def forget_exchange(self, definition: ExchangeDefinition) -> None:
        self._forget("no exchange", ("x", definition.address), definition.name)

    def learn_binding(self, definition: BindingDefinition) -> None:
        self._learn("binding", definition, definition.key, definition)

    def forget_binding(self, definition: BindingDefinition) -> None:
        self._forget("no binding", definition, definition.key)

    # ------------------------------------------------------------------ what a test does

    def queue(self, identity: int, name: str = "q", *, exclusive: bool = False,
              type_: str = "classic") -> Coroutine[Any, Any, None]:
        queue = QueueDefinition(identity, QueueSpec(name=name, type=type_), None,  # type: ignore[arg-type]
                                self.name if exclusive else "")
        return self.definitions.define_queue(queue, Placed(QueueData(self.name, "disk", identity), self.lease))

    def exchange(self, identity: int, name: bytes = b"x", *, auto_delete: bool = False) -> Coroutine[Any, Any, None]:
        return self.definitions.define_exchange(ExchangeDefinition(identity, b"/", name, b"direct", True, auto_delete))

    def bind(self, source: bytes = b"x", destination: bytes = b"q", key: bytes = b"k", *,
             to_exchange: bool = False) -> Coroutine[Any, Any, None]:
        return self.definitions.define_binding(b"/", source, destination, key, b"", to_exchange=to_exchange)

    def unbind(self, source: bytes = b"x", destination: bytes = b"q", key: bytes = b"k", *,
               to_exchange: bool = False) -> Coroutine[Any, Any, None]:
        return self.definitions.undefine_binding(b"/", source, destination, key, b"", to_exchange=to_exchange)

    def no_queue(self, name: bytes = b"q") -> Coroutine[Any, Any, None]:
        return self.definitions.undefine_queue((b"/", name), self.definitions.queues[b"/", name].value.id)

    def identity(self, name: bytes = b"q") -> int | None:
        known = cast("tuple[QueueDefinition, str | None] | None", self.has.get((b"/", name)))
        return None if known is None else known[0].id

    def owner(self, name: bytes = b"q") -> str | None:
        return cast("tuple[QueueDefinition, str | None]", self.has[b"/", name])[1]

    def bound(self) -> list[tuple[bytes, bytes, bytes]]:
        return sorted((each.source, each.destination, each.key) for each in self.has.values()
                      if isinstance(each, BindingDefinition))

    def exchanges(self) -> list[bytes]:
        return sorted(each.name for each in self.has.values() if isinstance(each, ExchangeDefinition))


def members_of(world: World) -> dict[str, Member]:
    return cast("dict[str, Member]", world.__dict__.setdefault("members", {}))


def refusal(world: World, change: Coroutine[Any, Any, None], ms: int = 20_000) -> str:
    with pytest.raises(QueueRefused) as refused:
        world.end(change, ms)
    assert refused.value.kind == "unavailable"
    return refused.value.text


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
def nodes(world: World) -> tuple[Member, Member, Member]:
    one, two, three = (Member(world, name).start() for name in ("one", "two", "three"))
    return one, two, three


# ------------------------------------------------------------------ declare


def test_what_one_declares_all_have_when_it_returns(world: World, nodes: tuple[Member, Member, Member]) -> None:
    one, two, three = nodes
    for change in (one.queue(7), two.exchange(8), three.bind()):
        world.end(change)
    for node in nodes:
        assert node.identity() == 7 and node.owner() == "one"
        assert node.exchanges() == [b"x"] and node.bound() == [(b"x", b"q", b"k")]
        assert [what for what, _ in node.told] == ["queue", "exchange", "binding"]


def test_of_two_who_declare_at_once_one_wins(world: World, nodes: tuple[Member, Member, Member]) -> None:
    one, two, _ = nodes
    works = [world.start(one.queue(7)), world.start(two.queue(9))]
    world.run(1000)
    for work in works:
        work.result()
    assert {node.identity() for node in nodes} in ({7}, {9})
    assert len({node.owner() for node in nodes}) == 1
    assert [node.told for node in nodes] == [[("queue", b"q")]] * 3


def test_it_waits_for_every_node(world: World, nodes: tuple[Member, Member, Member]) -> None:
    one, two, three = nodes
    three.deaf = True
    work = world.start(one.queue(7))
    world.run(1000)
    assert not work.done() and two.identity() == 7
    three.hear()
    world.run(100)
    assert work.result() is None


def test_it_waits_for_the_disk_of_every_node(world: World, nodes: tuple[Member, Member, Member]) -> None:
    one, two, _ = nodes
    two.slow = True
    work = world.start(one.queue(7))
    world.run(1000)
    assert not work.done() and two.identity() == 7
    for then in two.disk:
        then()
    world.run(100)
    assert work.result() is None


def test_it_does_not_wait_for_a_node_that_dies(world: World, nodes: tuple[Member, Member, Member]) -> None:
    one, _, three = nodes
    three.kill()
    work = world.start(one.queue(7))
    world.run(1000)
    assert not work.done()
    three.end_lease()
    world.run(100)
    assert work.result() is None


def test_a_node_that_comes_later_is_not_asked_and_has_it(world: World, nodes: tuple[Member, Member, Member]) -> None:
    one, _, three = nodes
    three.deaf = True
    work = world.start(one.queue(7))
    world.run(500)
    four = Member(world, "four").start()
    four.deaf = True
    three.hear()
    world.run(500)
    assert work.result() is None
    assert four.identity() == 7 and not four.messages


def test_many_at_once_ask_each_node_once(world: World, nodes: tuple[Member, Member, Member]) -> None:
    one, two, _ = nodes
    two.deaf = True
    works = [world.start(one.queue(100 + at, f"q{at}")) for at in range(40)]
    world.run(500)
    assert len(two.messages) <= 3           # transactions of up to 128 changes each
    two.hear()
    world.run(500)
    for work in works:
        work.result()
    assert two.identity(b"q39") == 139


def test_it_gives_up_at_its_limit(world: World, nodes: tuple[Member, Member, Member]) -> None:
    """The queue is there, as the text says."""
    nodes[2].deaf = True
    assert "was changed, but three did not hear" in refusal(world, nodes[0].queue(7))
    assert nodes[1].identity() == 7


def test_without_quorum_it_is_refused_at_once(world: World, nodes: tuple[Member, Member, Member]) -> None:
    one = nodes[0]
    one.without_quorum = True
    before = world.ms
    assert "etcd has no quorum" in refusal(world, one.queue(7))
    assert world.ms - before < 100 and not world.store.items.get(QUEUE_KEY)


def test_a_store_that_does_not_answer_is_waited_for_so_long(world: World, nodes: tuple[Member, Member, Member]) -> None:
    world.store.counts.fail = 1 << 30
    before = world.ms
    assert "the store does not answer" in refusal(world, nodes[0].queue(7))
    assert LIMIT_S * 1000 <= world.ms - before < LIMIT_S * 1000 + 1000
    world.store.counts.fail = 0
    world.run(3000)
    assert not world.store.items.get(QUEUE_KEY) and nodes[0].identity() is None


def test_a_store_that_is_full_refuses_at_once(world: World, nodes: tuple[Member, Member, Member]) -> None:
    world.store.counts.full = True
    before = world.ms
    assert "no space" in refusal(world, nodes[0].queue(7))
    assert world.ms - before < 1000


def test_an_answer_that_is_lost(world: World, nodes: tuple[Member, Member, Member]) -> None:
    world.store.counts.lose_answers = 1
    world.end(nodes[0].queue(7))
    assert {node.identity() for node in nodes} == {7}
    assert len(nodes[0].told) == 1


def test_after_a_compaction_the_difference_is_told(world: World, nodes: tuple[Member, Member, Member]) -> None:
    one, two, _ = nodes
    for change in (one.queue(7), one.queue(8, "r"), one.exchange(9), one.bind(), one.bind(destination=b"r")):
        world.end(change)
    two.feed.close()
    two.deaf = True
    world.run(50)
    world.start(one.no_queue())
    world.run(500)
    world.start(one.queue(10))
    world.run(500)
    world.store.compact()
    two.feed._closed = False
    two.told.clear()
    world.start(two.feed.follow())
    world.run(500)
    assert two.told == [("no binding", b"k"), ("no queue", b"q"), ("queue", b"q")]
    assert two.identity() == 10 and two.bound() == [(b"x", b"r", b"k")]


# ------------------------------------------------------------------ change and delete


def test_other_settings_keep_the_identity(world: World, nodes: tuple[Member, Member, Member]) -> None:
    one, two, three = nodes
    for change in (one.queue(7), one.exchange(8), one.bind()):
        world.end(change)
    changed = QueueDefinition(7, QueueSpec(name="q", topics=("a/#",)))
    world.end(two.definitions.redefine_queue(changed))
    assert three.has[b"/", b"q"] == (changed, "one")
    assert three.bound() == [(b"x", b"q", b"k")] and ("no queue", b"q") not in three.told


def test_a_queue_ends_with_its_keys_and_bindings(world: World, nodes: tuple[Member, Member, Member]) -> None:
    one, two, three = nodes
    for change in (one.queue(7), one.exchange(8), one.bind(), one.bind(key=b"l"), one.bind(b"amq.direct")):
        world.end(change)
    world.end(two.no_queue())
    for node in nodes:
        assert node.identity() is None and node.bound() == [] and node.exchanges() == [b"x"]
    assert [key for key in world.store.items if b"queue" in key or b"bindings" in key] == []
    world.end(three.queue(9))
    assert one.bound() == []


def test_only_that_queue_is_deleted(world: World, nodes: tuple[Member, Member, Member]) -> None:
    """Somebody has deleted it meanwhile, and made another."""
    one, two, _ = nodes
    world.end(one.queue(7))
    two.feed.close()
    stale = two.definitions.undefine_queue((b"/", b"q"), 7)
    two.deaf = True
    world.start(one.no_queue())
    world.run(300)
    world.start(one.queue(9))
    world.run(300)
    world.start(stale)
    world.run(300)
    assert one.identity() == 9


def test_a_queue_with_many_bindings_leaves_some_to_the_leader(world: World,
                                                              nodes: tuple[Member, Member, Member]) -> None:
    one, two, three = nodes
    world.end(one.queue(7))
    for change in [one.bind(b"amq.direct", key=b"%d" % at) for at in range(100)]:
        world.start(change)
    world.run(2000)
    assert len(three.bound()) == 100
    world.end(one.no_queue())
    assert three.bound() == [] and three.definitions.orphans()
    world.end(one.queue(8))
    assert three.bound() == []              # of the former queue
    two.leads = True
    world.run(60_000)
    assert not three.definitions.orphans() and three.identity() == 8


def test_an_exclusive_queue_ends_with_its_node(world: World, nodes: tuple[Member, Member, Member]) -> None:
    one, two, _ = nodes
    for change in (one.queue(7, exclusive=True), two.exchange(8, auto_delete=True), one.bind()):
        world.end(change)
    two.leads = True
    one.kill()
    one.end_lease()
    world.run(5000)
    assert two.identity() is None and two.bound() == []
    assert two.exchanges() == []            # its last binding has gone
    assert [key for key in world.store.items if not key.startswith(b"/mqtt/nodes")] == []


def test_the_queue_of_a_node_that_dies_is_away(world: World, nodes: tuple[Member, Member, Member]) -> None:
    one, two, _ = nodes
    for change in (one.queue(7), one.exchange(8), one.bind()):
        world.end(change)
    one.kill()
    one.end_lease()
    world.run(500)
    assert two.identity() == 7 and two.owner() is None and len(two.bound()) == 1


@pytest.mark.parametrize("gone", [True, False])     # False: the feed was loaded anew, and shows the last change only
def test_the_owner_of_another_life_is_news(world: World, nodes: tuple[Member, Member, Member], gone: bool) -> None:
    """The way to it is another one, also if one batch says that it is gone and that it is back."""
    one, two, _ = nodes
    world.end(one.queue(7))
    known, key = two.definitions.owners[b"/", b"q"], queue_key(QUEUE_OWNER, b"/", b"q")
    value = world.store.items[key].value
    revision, told = two.feed.revision, list(two.told)
    back = Event(key, value, revision + 2, revision + 2, known.lease + 1000)
    two.feed._tell([*([Event(key, None, revision + 1, 0, 0)] if gone else []), back])
    assert two.told == [*told, ("queue", b"q")] and two.owner() == "one"
    two.feed._tell([back._replace(revision=revision + 3)])    # it has claimed it again, in that life
    assert two.told == [*told, ("queue", b"q")]


# ------------------------------------------------------------------ exchanges


def test_an_auto_delete_exchange_ends_with_its_last_binding(world: World, nodes: tuple[Member, Member, Member]) -> None:
    one, two, three = nodes
    for change in (one.queue(7), one.exchange(8, auto_delete=True), one.bind(), one.bind(key=b"l")):
        world.end(change)
    world.end(two.unbind())
    assert three.exchanges() == [b"x"]
    world.end(two.unbind(key=b"l"))
    assert three.exchanges() == [] and three.bound() == []


def test_it_takes_those_with_it_that_are_bound_to_it_alone(world: World, nodes: tuple[Member, Member, Member]) -> None:
    one, two, _ = nodes
    for change in (one.queue(7), one.exchange(8, auto_delete=True), one.exchange(9, b"y", auto_delete=True),
                   one.exchange(10, b"z"), one.bind(), one.bind(b"y", b"x", to_exchange=True),
                   one.bind(b"z", b"x", to_exchange=True)):
        world.end(change)
    world.end(two.no_queue())
    for node in nodes:
        assert node.exchanges() == [b"z"] and node.bound() == []


def test_who_binds_at_once_keeps_an_auto_delete_exchange(world: World, nodes: tuple[Member, Member, Member]) -> None:
    """Or comes too late: then the exchange is gone, and the binding too."""
    one, two, three = nodes
    for change in (one.queue(7), one.exchange(8, auto_delete=True), one.bind()):
        world.end(change)
    works = [world.start(two.bind(key=b"l")), world.start(one.unbind())]
    world.run(1000)
    for work in works:
        work.result()
    if three.exchanges() == []:
        assert three.bound() == []
    else:
        assert (b"x", b"q", b"l") in three.bound()
    assert one.bound() == two.bound() == three.bound()


def test_an_exchange_ends_with_its_bindings(world: World, nodes: tuple[Member, Member, Member]) -> None:
    one, two, three = nodes
    for change in (one.queue(7), one.exchange(8), one.exchange(9, b"y"), one.bind(), one.bind(b"y"),
                   one.bind(b"y", b"x", to_exchange=True)):
        world.end(change)
    world.end(two.definitions.undefine_exchange((b"/", b"x"), 8))
    assert three.exchanges() == [b"y"] and three.bound() == [(b"y", b"q", b"k")]
    world.end(two.exchange(11))
    assert three.exchanges() == [b"x", b"y"] and three.bound() == [(b"y", b"q", b"k")]


def test_what_is_not_there_is_not_bound(world: World, nodes: tuple[Member, Member, Member]) -> None:
    one = nodes[0]
    world.end(one.queue(7))
    before = len(world.store.transactions)
    for change in (one.bind(), one.bind(b"amq.direct", b"r")):
        with pytest.raises(QueueRefused, match="not defined"):
            world.end(change)
    world.end(one.unbind())
    assert len(world.store.transactions) == before


def test_one_that_was_made_anew_and_was_never_bound_stays(world: World, nodes: tuple[Member, Member, Member]) -> None:
    """Whoever leads."""
    one, two, _ = nodes
    for change in (one.queue(7), one.exchange(8, auto_delete=True), one.bind(), one.unbind(),
                   one.exchange(9, auto_delete=True)):
        world.end(change)
    two.leads = True
    world.run(5000)
    assert two.exchanges() == [b"x"]


# ------------------------------------------------------------------ at random


@pytest.mark.parametrize("seed", range(30))
def test_all_have_the_same_in_the_end(world: World, nodes: tuple[Member, Member, Member], seed: int) -> None:
    """Whatever is done at once, with answers lost and requests failed, and a node that hears late."""
    chance, counts = random.Random(seed), world.store.counts
    number = 100
    for _ in range(60):
        node = chance.choice(nodes)
        name, source = chance.choice([b"q", b"r"]), chance.choice([b"x", b"y", b"amq.direct"])
        number += 1
        changes: list[Callable[[], Coroutine[Any, Any, None]]] = [
            partial(node.queue, number, name.decode()),
            partial(node.exchange, number, chance.choice([b"x", b"y"]), auto_delete=chance.random() < 0.7),
            partial(node.bind, source, name, chance.choice([b"k", b"l"])),
            partial(node.unbind, source, name, chance.choice([b"k", b"l"]))]
        if (b"/", name) in node.definitions.queues:
            changes.append(partial(node.no_queue, name))
        if (known := node.definitions.exchanges.get((b"/", source))) is not None:
            changes.append(partial(node.definitions.undefine_exchange, (b"/", source), known.value.id))
        if {b"x", b"y"} <= {*node.exchanges()}:
            changes.append(partial(node.bind, b"x", b"y", to_exchange=True))
        world.start(chance.choice(changes)())
        counts.lose_answers, counts.fail = int(chance.random() < 0.1), int(chance.random() < 0.1)
        nodes[1].definitions._writer._store.late_s = chance.choice([0, 0, 0.2])     # type: ignore[attr-defined]
        world.run(chance.choice([1, 1, 30, 200]))
    counts.lose_answers = counts.fail = 0
    nodes[2].leads = True
    world.run(40_000)
    one = nodes[0]
    for node in nodes:
        assert node.has == one.has and not node.definitions.orphans()
    stored = [keys.parse(key) for key in world.store.items]
    assert sum(name is not None and name.kind == keys.BINDING for name in stored) == len(one.bound())
    for exchange in one.exchanges():        # an auto-delete exchange is there with a binding, or has never had one
        known = one.definitions.exchanges[b"/", exchange].value
        assert not known.auto_delete or one.definitions._from.get(known.address) or (
            known.address, known.id) not in one.definitions._emptied


# ------------------------------------------------------------------ what cannot be used


def test_an_engine_that_refuses_says_so_to_who_declares(world: World, nodes: tuple[Member, Member, Member]) -> None:
    one, two, _ = nodes
    two.refuses = {b"q"}
    world.end(one.queue(7))
    world.end(one.exchange(8))
    world.end(one.bind())
    assert two.identity() is None and two.bound() == [] and two.log
    assert "no room" in refusal(world, two.queue(9))
    assert one.identity() == 7


def test_a_value_of_another_version_is_left_out(world: World, nodes: tuple[Member, Member, Member]) -> None:
    one = nodes[0]
    world.store.apply([Change(QUEUE_KEY, b'{"id":7,"shape":"round"}')])
    world.run(100)
    assert one.identity() is None and "left out" in one.log[0][2]
    assert "cannot read it" in refusal(world, one.queue(9))
    assert not one.definitions.orphans()


def test_what_the_store_gets_can_be_read(world: World, nodes: tuple[Member, Member, Member]) -> None:
    world.end(nodes[0].queue(7))
    assert msgspec.json.decode(world.store.items[QUEUE_KEY].value)["spec"]["name"] == "q"
    assert [msgspec.json.decode(world.store.items[queue_key(kind, b"/", b"q")].value)["node"]
            for kind in (QUEUE_DATA, QUEUE_OWNER)] == ["one", "one"]


text = st.binary(max_size=12)
arguments = st.dictionaries(
    st.text(st.characters(max_codepoint=0x2FF, exclude_categories=["Cs"]), max_size=8).map(lambda name: "app-" + name),
    st.booleans() | st.integers(-(1 << 63) + 1, (1 << 63) - 1) | text | st.floats(allow_nan=False,
                                                                                    allow_infinity=False), max_size=4)


@given(st.integers(1, (1 << 64) - 1), st.binary(min_size=1, max_size=12), st.booleans(), st.booleans(), arguments)
def test_declarations_come_back(identity: int, name: bytes, durable: bool, exclusive: bool,
                                extra: dict[str, Any]) -> None:
    declared = Declared(b"/", name, durable, exclusive, True, extra | {"x-max-length": 5})
    queue = QueueDefinition(identity, spec_of(declared, read_arguments(declared)), declared, "n" * exclusive)
    assert queue_of(b"/", name, encode_queue(queue)) == queue


@given(st.integers(0, (1 << 64) - 1), text, text, st.booleans(), text, text)
def test_bindings_and_exchanges_come_back(identity: int, source: bytes, destination: bytes, to_exchange: bool,
                                          key: bytes, table: bytes) -> None:
    binding = BindingDefinition(b"v", source, identity, to_exchange, destination, 3, key, table)
    assert binding_of(b"v", source, encode_binding(binding)) == binding
    exchange = ExchangeDefinition(identity, b"v", source, b"x-custom", True, to_exchange, True, table)
    assert exchange_of(b"v", source, encode_exchange(exchange)) == exchange
    name = keys.parse(key_of(binding))
    assert name is not None and (name.kind, name.namespace, name.name) == (keys.BINDING, b"v", source)


@given(st.tuples(text, text), st.tuples(text, text))
def test_two_bindings_have_two_keys(one: tuple[bytes, bytes], other: tuple[bytes, bytes]) -> None:
    first, second = (key_of(BindingDefinition(b"/", b"x", 1, False, b"q", 2, *each)) for each in (one, other))
    assert (first == second) == (one == other)


@given(st.binary(max_size=40))
def test_foreign_values_are_refused(value: bytes) -> None:
    for read in (queue_of, exchange_of, binding_of):
        with pytest.raises(Unreadable):
            read(b"/", b"q", value)


def test_keys_of_queues_lead_back() -> None:
    assert keys.parse(queue_key(QUEUE_OWNER, b"v/w", b"a/b%")) == keys.Name(QUEUE_OWNER, b"v/w", b"a/b%")
    assert keys.parse(exchange_key(b"/", b"a/b")) == keys.Name(keys.EXCHANGE, b"/", b"a/b")
