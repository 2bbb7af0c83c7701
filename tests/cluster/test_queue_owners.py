"""Which node serves a queue: new ones, those of a node that comes back, and those of a node that is gone."""
from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from typing import Any, cast

import msgspec
import pytest
from cluster.world import TTL_S, World
from kit.own_storage import OwnStorageInMemory, claim_of

from fluxmq.cluster.defining import Defining
from fluxmq.cluster.definition_values import QueueData, encode_data
from fluxmq.cluster.definitions import KINDS, Definitions
from fluxmq.cluster.feed import Feed
from fluxmq.cluster.keys import QUEUE_DATA, queue_key
from fluxmq.cluster.membership import Membership, Registration
from fluxmq.cluster.messages import Control
from fluxmq.cluster.ports import Change, Compare, StoreError
from fluxmq.cluster.queue_owners import QueueOwners
from fluxmq.cluster.reaching import Reaching
from fluxmq.cluster.writer import Writer
from fluxmq.engine.ports.definitions import BindingDefinition, ExchangeDefinition, Placement, QueueDefinition
from fluxmq.engine.ports.queues import QueueRefused
from fluxmq.model.queue_arguments import Declared, read_arguments, spec_of
from fluxmq.model.queues import QueueSpec

Q = (b"/", b"q")


class Disk:
    """What survives a life. aside, left: names of queues that were set aside, and left as they are."""

    def __init__(self, identity: str) -> None:
        self.storage = OwnStorageInMemory(identity)
        self.queues: dict[bytes, QueueDefinition] = {}
        self.exchanges: dict[bytes, ExchangeDefinition] = {}
        self.bindings: list[BindingDefinition] = []
        self.aside: list[bytes] = []
        self.left: list[bytes] = []


class Member:
    """A node with its lease, and an engine that keeps what it is told."""

    def __init__(self, world: World, name: str, disk: Disk | None = None) -> None:
        self.world, self.name, self.disk = world, name, disk or Disk(f"disk of {name}")
        self.log: list[Any] = []
        self.owners_told: dict[bytes, str | None] = {}
        self.numbers = 0
        driver, store = world.driver, world.store
        self.writer = Writer(store, driver)
        self.membership = Membership(
            name, store, driver, TTL_S, claim=claim_of(name, driver, TTL_S, self.disk.storage),
            clock_s=lambda: world.ms / 1000, on_deadline=lambda at: None,
            on_fenced=lambda why: None, on_node=lambda node, there: None)
        self.feed = Feed(store, driver, self.membership)
        self.reaching = Reaching(driver, self.feed, self._others, self._send, lambda then: then())
        note: Callable[..., None] = lambda *said: self.log.append(said)  # noqa: E731
        self.definitions = Definitions(name, self.writer, driver, self.reaching, predeclared=[b"amq.direct"],
                                       without_quorum=lambda: False, limit_s=5.0, log=note)
        self.defining = Defining(self.definitions, self.membership, driver, limit_s=5.0,
                                 serving=lambda: sorted(self.membership.nodes), next_identity=self._identity)
        self.owners = QueueOwners(self.definitions, self.defining, self.membership, self.feed, self.writer, driver,
                                  next_identity=self._identity, log=note)
        self.feed.listen(KINDS, self.definitions.on_event)
        self.feed.at_end = [self.definitions, self.reaching]

    def _identity(self) -> int:
        self.numbers += 1
        return self.membership.epoch * 1000 + self.numbers

    def start(self) -> Member:
        members_of(self.world)[self.name] = self
        self.world.end(self.begin(), 20_000)
        self.world.run(200)
        return self

    async def begin(self) -> None:
        self.owners.attach(self)
        await self.membership.join(Registration(address=f"{self.name}:1"))
        await self.feed.load()
        for task in (self.feed.follow(), self.membership.keep(), self.owners.keep(),
                     self.definitions.keep(lambda: self.membership.is_leader)):
            self.world.start(task)
        await self.owners.begin(self)

    def kill(self) -> None:
        """The process is gone, and after a while its lease."""
        self.feed.close()
        self.writer.close("killed")
        self.definitions.close()
        self.defining.close()
        self.owners.close()
        self.membership.state = self.membership.state.__class__.GONE
        members_of(self.world).pop(self.name)
        self.world.store.end_lease(self.membership.lease)
        self.world.run(3000)

    def _others(self) -> dict[str, int]:
        return {name: node.epoch for name, node in self.membership.nodes.items() if name != self.name}

    def _send(self, name: str, message: Control) -> None:
        if name in members_of(self.world):
            members_of(self.world)[name].reaching.on_message(self.name, cast(Any, message))

    # ------------------------------------------------------------------ Stored

    def learn_queue(self, definition: QueueDefinition, owner: str | None) -> None:
        self.owners_told[definition.spec.raw] = owner
        known = self.disk.queues.get(definition.spec.raw)
        if owner == self.name and definition.durable:
            placement = self.definitions.place_queue(definition.address) if known is None else known.placement
            self.disk.queues[definition.spec.raw] = msgspec.structs.replace(definition, placement=placement)

    def forget_queue(self, definition: QueueDefinition, *, ended: bool = False) -> None:
        self.owners_told.pop(definition.spec.raw, None)
        self.disk.queues.pop(definition.spec.raw, None)

    def set_aside_queue(self, definition: QueueDefinition, why: str) -> None:
        self.owners_told.pop(definition.spec.raw, None)
        del self.disk.queues[definition.spec.raw]
        self.disk.aside.append(definition.spec.raw)
        self.log.append(("aside", why))

    def turn_queue(self, definition: QueueDefinition, owner: str | None) -> bool:
        return False

    def settle_copy(self, identity: int, definition: QueueDefinition | None) -> None:
        copy = next(name for name, queue in self.disk.queues.items() if queue.id == identity and name[:1] == b"$")
        placement = self.disk.queues.pop(copy).placement
        if definition is not None:
            self.disk.queues[definition.spec.raw] = msgspec.structs.replace(definition, placement=placement)

    def learn_exchange(self, definition: ExchangeDefinition) -> None:
        if definition.durable:
            self.disk.exchanges[definition.name] = definition

    def forget_exchange(self, definition: ExchangeDefinition) -> None:
        self.disk.exchanges.pop(definition.name, None)

    def learn_binding(self, definition: BindingDefinition) -> None:
        if definition not in self.disk.bindings:
            self.disk.bindings.append(definition)

    def forget_binding(self, definition: BindingDefinition) -> None:
        self.disk.bindings.remove(definition)

    def stored_queues(self) -> list[QueueDefinition]:
        return [*self.disk.queues.values()]

    def has_queue(self, address: tuple[bytes, bytes], identity: int, placement: Placement) -> bool:
        queue = self.disk.queues.get(address[1])
        return queue is not None and (queue.id, queue.placement) == (identity, placement)

    def stored_exchanges(self) -> list[ExchangeDefinition]:
        return [*self.disk.exchanges.values()]

    def stored_bindings(self) -> list[BindingDefinition]:
        return [*self.disk.bindings]

    def leave_queue(self, definition: QueueDefinition, why: str) -> None:
        self.owners_told.pop(definition.spec.raw, None)
        self.disk.left.append(definition.spec.raw)

    def identify_queue(self, address: tuple[bytes, bytes], identity: int, placement: Placement) -> None:
        self.disk.queues[address[1]] = msgspec.structs.replace(self.disk.queues[address[1]], id=identity,
                                                               placement=placement)

    # ------------------------------------------------------------------ what a test does

    def declare(self, name: str = "q", *, durable: bool = True, **how: Any) -> None:
        declared = Declared(b"/", name.encode(), durable, how.pop("exclusive", False))
        self.world.end(self.defining.define_queue(spec_of(declared, read_arguments(declared)), declared, **how))

    def do(self, change: Coroutine[Any, Any, None]) -> None:
        self.world.end(change)


def members_of(world: World) -> dict[str, Member]:
    return cast("dict[str, Member]", world.__dict__.setdefault("members", {}))


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
def nodes(world: World) -> tuple[Member, Member, Member]:
    one, two, three = (Member(world, name).start() for name in ("one", "two", "three"))
    return one, two, three


def told(nodes: Sequence[Member], name: bytes = b"q") -> set[str | None]:
    return {node.owners_told[name] for node in nodes}


# ------------------------------------------------------------------ new queues


def test_queues_go_where_there_are_fewest(nodes: tuple[Member, Member, Member]) -> None:
    two = nodes[1]
    for at in range(6):
        two.declare(f"q{at}")
    assert [told(nodes, b"q%d" % at) for at in range(6)] == [{"two"}, {"one"}, {"three"}, {"two"}, {"one"}, {"three"}]


def test_it_is_served_when_the_declaration_returns(nodes: tuple[Member, Member, Member]) -> None:
    one, two, _ = nodes
    one.declare("a")
    one.declare("b")
    home = told(nodes, b"b").pop()
    assert home in ("two", "three") and told(nodes, b"b") == {home}
    assert two.definitions.owner_of((b"/", b"b")) == home
    assert b"b" in members_of(two.world)[str(home)].disk.queues


def test_some_queues_are_here(nodes: tuple[Member, Member, Member]) -> None:
    one, two, _ = nodes
    one.declare("a")
    one.declare("b", here=True)
    one.declare("c", exclusive=True)
    two.declare("d", near=(b"/", b"a"))
    assert [told(nodes, name) for name in (b"a", b"b", b"c", b"d")] == [{"one"}] * 4


def test_what_nobody_waits_for_is_done_in_the_end(world: World, nodes: tuple[Member, Member, Member]) -> None:
    one, two, _ = nodes
    one.declare()
    world.store.counts.fail = 30
    one.defining.end_queue(Q, one.definitions.queues[Q].value.id, lambda ending: True)
    made: list[str] = []
    two.defining.make_known(QueueSpec(name="r"), lambda: made.append("r"))
    world.run(10_000)
    assert b"q" not in two.owners_told and told(nodes, b"r") == {"two"}
    assert made == ["r"]


def test_a_queue_that_is_used_again_is_not_ended(world: World, nodes: tuple[Member, Member, Member]) -> None:
    """The first attempts are certain to have changed nothing."""
    one, two, _ = nodes
    one.declare()
    told_: list[bool] = []
    one.definitions._without_quorum = lambda: True
    one.defining.end_queue(Q, one.definitions.queues[Q].value.id,
                           lambda ending: bool(told_.append(ending)) or len(told_) < 5)
    world.run(5_000)
    assert told_ == [True, True, False, True, False, True]  # at once, and with each attempt; then it is used
    one.definitions._without_quorum = lambda: False
    world.run(5_000)
    assert len(told_) == 6 and b"q" in two.owners_told


def test_a_queue_may_be_gone_until_it_is_certain_that_it_is_not(
        world: World, nodes: tuple[Member, Member, Member], monkeypatch: pytest.MonkeyPatch) -> None:
    async def unanswered(*change: object, **how: object) -> None:
        raise StoreError("etcd does not answer")

    one, two, _ = nodes
    one.declare()
    identity, told_ = one.definitions.queues[Q].value.id, list[bool]()
    monkeypatch.setattr(one.definitions._writer, "change", unanswered)
    one.defining.end_queue(Q, identity, lambda ending: bool(told_.append(ending)) or True)
    world.run(5_000)
    one.definitions._without_quorum = lambda: True
    world.run(5_000)
    assert told_ == [True, True]
    with pytest.raises(QueueRefused, match="nobody used it"):
        world.end(one.defining.await_end(identity), 6_000)
    one.definitions._without_quorum = lambda: False
    monkeypatch.undo()
    one.do(one.defining.await_end(identity))
    assert told_ == [True, True] and b"q" not in two.owners_told


# ------------------------------------------------------------------ a node comes back


def test_it_claims_what_it_has(world: World, nodes: tuple[Member, Member, Member]) -> None:
    one, two, three = nodes
    one.declare()
    one.kill()
    assert told((two, three)) == {None}
    again = Member(world, "one", one.disk).start()
    assert told((again, two, three)) == {"one"} and not one.disk.aside


def test_what_was_deleted_meanwhile_is_deleted(world: World, nodes: tuple[Member, Member, Member]) -> None:
    one, two, _ = nodes
    for name in ("q", "r"):
        one.declare(name, here=True)
    one.do(one.defining.define_exchange(ExchangeDefinition(0, b"/", b"x", b"direct", True)))
    for source in (b"x", b"amq.direct"):
        one.do(one.defining.define_binding(b"/", source, b"r", b"k", b"", to_exchange=False))
    one.kill()
    two.do(two.defining.undefine_queue(Q, two.definitions.queues[Q].value.id))
    two.do(two.defining.undefine_exchange((b"/", b"x"), two.definitions.exchanges[b"/", b"x"].value.id))
    again = Member(world, "one", one.disk).start()
    assert [*again.disk.queues] == [b"r"] and not again.disk.exchanges and not again.disk.aside
    assert [binding.source for binding in again.disk.bindings] == [b"amq.direct"]


def test_a_queue_that_was_deleted_and_declared_anew_meanwhile_is_deleted(
        world: World, nodes: tuple[Member, Member, Member]) -> None:
    one, two, three = nodes
    one.declare(here=True)
    one.kill()
    two.do(two.defining.undefine_queue(Q, two.definitions.queues[Q].value.id))
    two.declare(here=True)
    again = Member(world, "one", one.disk).start()
    assert told((again, two, three)) == {"two"} and not again.disk.aside and not again.disk.queues


@pytest.mark.parametrize("decided", [False, True])
def test_a_move_that_a_node_slept_through(world: World, nodes: tuple[Member, Member, Member], decided: bool) -> None:
    """What the transaction says counts: the copy is the queue, and the former owner's messages go; or the reverse."""
    one, two, three = nodes
    one.declare(here=True)
    entry, data = one.definitions.queues[Q].value, one.definitions.data[Q]
    copy = QueueDefinition(entry.id, msgspec.structs.replace(entry.spec, name=f"$moving-{entry.id:x}"),
                           placement=Placement(1, 1))
    two.disk.queues[copy.spec.raw] = copy
    for node in (one, two):
        node.kill()
    if decided:
        placed = QueueData("two", two.disk.storage.identity, entry.id, Placement(1, 1))
        three.do(three.writer.change([Compare(queue_key(QUEUE_DATA, *Q), data.revision)],
                                     [Change(queue_key(QUEUE_DATA, *Q), encode_data(placed))]))
    again = [Member(world, name, disk).start() for name, disk in (("one", one.disk), ("two", two.disk))]
    world.run(1000)
    assert told((*again, three)) == {"two" if decided else "one"}
    assert [[*node.disk.queues] for node in again] == ([[], [b"q"]] if decided else [[b"q"], []])
    assert not one.disk.aside and not two.disk.aside


def test_a_disk_that_was_lost_leaves_its_queues_away(world: World, nodes: tuple[Member, Member, Member]) -> None:
    one, two, three = nodes
    one.declare(here=True)
    one.kill()
    again = Member(world, "one", Disk("another disk")).start()
    assert told((again, two, three)) == {None} and not again.disk.queues


def test_the_first_join_of_a_node_that_was_alone(world: World) -> None:
    disk = Disk("old")
    disk.queues = {name: QueueDefinition(0, QueueSpec(name=name.decode())) for name in (b"q", b"r")}
    disk.exchanges = {b"x": ExchangeDefinition(0, b"/", b"x", b"direct", True)}
    disk.bindings = [BindingDefinition(b"/", b"x", 0, False, b"q", 0, b"k")]
    one = Member(world, "one").start()
    one.declare("r")
    two = Member(world, "two", disk).start()
    assert told((one, two), b"q") == {"two"} and told((one, two), b"r") == {"one"} and disk.aside == [b"r"]
    assert disk.queues[b"q"].id == one.definitions.queues[Q].value.id != 0
    assert one.disk.exchanges[b"x"].id != 0
    assert [(binding.source, binding.destination) for binding in one.disk.bindings] == [(b"x", b"q")]


def test_a_store_that_is_new_loses_no_queue(nodes: tuple[Member, Member, Member]) -> None:
    """All of etcd was lost: what the nodes have is defined again."""
    one = nodes[0]
    one.declare(here=True)
    fresh = World()
    again = Member(fresh, "one", one.disk).start()
    assert told((again,)) == {"one"} and not one.disk.aside
    assert one.disk.queues[b"q"].id == again.definitions.queues[Q].value.id


def test_it_dies_between_definition_and_journal(world: World) -> None:
    """The store knows the identity, the disk does not."""
    disk = Disk("old")
    disk.queues = {b"q": QueueDefinition(0, QueueSpec(name="q"))}
    one = Member(world, "one").start()
    two = Member(world, "two", disk).start()
    disk.queues = {b"q": QueueDefinition(0, QueueSpec(name="q"))}
    two.kill()
    again = Member(world, "two", disk).start()
    assert told((one, again)) == {"two"} and not disk.aside
    assert disk.queues[b"q"].id == one.definitions.queues[Q].value.id


# ------------------------------------------------------------------ a node is gone


def test_a_queue_that_is_not_durable_is_made_anew(world: World, nodes: tuple[Member, Member, Member]) -> None:
    one, two, three = nodes
    one.declare(durable=False, here=True)
    one.declare("kept", here=True)
    one.do(one.defining.define_binding(b"/", b"amq.direct", b"q", b"k", b"", to_exchange=False))
    identity = two.definitions.queues[Q].value.id
    one.kill()
    world.run(5000)
    home = told((two, three)).pop()
    assert home in ("two", "three") and told((two, three)) == {home} and told((two, three), b"kept") == {None}
    assert two.definitions.queues[Q].value.id == identity
    assert [binding.key for binding in two.disk.bindings] == [b"k"] == [binding.key for binding in three.disk.bindings]
    again = Member(world, "one", one.disk).start()
    assert told((again, two, three)) == {home}


def test_the_first_node_of_a_cold_start_ends_what_is_not_durable(world: World,
                                                                 nodes: tuple[Member, Member, Member]) -> None:
    one, two, three = nodes
    one.declare(durable=False, here=True)
    one.declare("kept", here=True)
    for name, durable in ((b"x", True), (b"y", False)):
        one.do(one.defining.define_exchange(ExchangeDefinition(0, b"/", name, b"direct", durable)))
    for node in (three, two, one):
        node.kill()
    again = Member(world, "two", two.disk).start()
    assert again.owners_told == {b"kept": None}
    assert [*again.definitions.exchanges] == [(b"/", b"x")]
