"""Which of the copies of a queue's data is the queue: what a node does at its start with what it has, and what etcd
says after that. An old copy that is put back, an etcd that is set back, groups, values of the former version."""
from __future__ import annotations

from typing import Any

import msgspec
import pytest
from cluster.test_queue_owners import Disk, Member, Q, told
from cluster.world import World
from hypothesis import given
from hypothesis import strategies as st

from fluxmq.cluster.definition_values import QueueData, Unreadable, data_of, encode_data, owner_of
from fluxmq.cluster.keys import QUEUE_DATA, QUEUE_OWNER, queue_key
from fluxmq.cluster.placing import Verdict, judge, why_aside
from fluxmq.cluster.ports import Change, Compare, StoreError
from fluxmq.engine.ports.definitions import FIRST, Placement, QueueDefinition
from fluxmq.engine.ports.queues import QueueRefused

DATA = queue_key(QUEUE_DATA, *Q)


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
def nodes(world: World) -> tuple[Member, Member, Member]:
    one, two, three = (Member(world, name).start() for name in ("one", "two", "three"))
    return one, two, three


def again(node: Member) -> Member:
    return Member(node.world, node.name, node.disk).start()


def say(world: World, who: Member | int, *placement: int) -> None:
    """etcd says it from now on. who: a node, or a group."""
    former = data_of(world.store.items[DATA].value)
    data = QueueData("", "", former.id, Placement(*placement), who) if isinstance(who, int) else QueueData(
        who.name, who.disk.storage.identity, former.id, Placement(*placement))
    world.store.apply([Change(DATA, encode_data(data), 0)])
    world.run(100)


def said(world: World) -> tuple[str, Placement]:
    found = data_of(world.store.items[DATA].value)
    return found.holder, found.placement


def stored(node: Member) -> dict[bytes, Placement]:
    return {name: queue.placement for name, queue in node.disk.queues.items()}


def aside(node: Member) -> list[str]:
    return [what[1] for what in node.log if what[0] == "aside"]


# ------------------------------------------------------------------ the table

HERE, THERE, GROUP = (QueueData("n", "d", 7, Placement(2, 3), 0), QueueData("m", "e", 7, Placement(2, 3), 0),
                      QueueData("", "", 7, Placement(2, 3), 5))


@pytest.mark.parametrize(("placement", "here", "there"), [
    ((2, 3), Verdict.KEPT, Verdict.ASIDE),
    ((2, 2), Verdict.ASIDE, Verdict.DELETED),
    ((2, 4), Verdict.KEPT, Verdict.ASIDE),
    ((1, 0), Verdict.ASIDE, Verdict.ASIDE),
    ((1, 9), Verdict.ASIDE, Verdict.ASIDE),
    ((3, 0), Verdict.KEPT, Verdict.ASIDE),
])
def test_only_what_was_moved_away_is_deleted(placement: tuple[int, int], here: Verdict, there: Verdict) -> None:
    mine = Placement(*placement)
    assert judge(mine, HERE, here=True) is here
    assert judge(mine, THERE, here=False) is there
    assert judge(mine, GROUP, here=False) is Verdict.LEFT
    assert judge(mine, None, here=False) is Verdict.ASIDE
    assert all(why_aside(mine, data, here=data is HERE) for data in (HERE, THERE, None))


# ------------------------------------------------------------------ values

@given(st.text(max_size=9), st.text(max_size=9), st.integers(0, 1 << 64), st.integers(1, 1 << 40),
       st.integers(0, 1 << 40), st.integers(0, 1 << 40))
def test_who_has_the_data_comes_back(node: str, disk: str, identity: int, incarnation: int, moved: int,
                                     group: int) -> None:
    placement = Placement(incarnation, moved)
    data = QueueData("", "", identity, placement, group) if group else QueueData(node or "n", disk, identity, placement)
    assert data_of(encode_data(data)) == data


def test_values_of_the_former_version() -> None:
    """What it wrote is read, and what it could have written is written as it did."""
    former = b'{"node":"one","disk":"d","id":7}'
    data = QueueData("one", "d", 7)
    assert data_of(former) == data and data.placement == (1, 0) and not data.group
    assert msgspec.json.decode(encode_data(data)) == msgspec.json.decode(former)


@pytest.mark.parametrize("value", [
    b'{"id":7}', b'{"node":"one","disk":"d","id":7,"group":2}', b'{"node":"one","disk":"d"}', b'{"group":-1,"id":7}',
    b'{"node":"one","disk":"d","id":7,"incarnation":0}', b'{"group":2,"id":7,"moved":-1}', b"7", b"\xff"])
def test_what_says_nothing_is_refused(value: bytes) -> None:
    with pytest.raises(Unreadable):
        data_of(value)


def test_a_queue_that_the_former_version_has_placed_and_stored(world: World,
                                                               nodes: tuple[Member, Member, Member]) -> None:
    one, two, _ = nodes
    one.declare(here=True)
    one.kill()
    value = {"node": "one", "disk": one.disk.storage.identity, "id": two.definitions.queues[Q].value.id}
    world.store.apply([Change(DATA, msgspec.json.encode(value), 0)])
    one = again(one)
    assert told(nodes[1:]) == {"one"} and stored(one) == {b"q": FIRST} and said(world) == ("node one", FIRST)


# ------------------------------------------------------------------ old copies

def test_an_old_copy_is_not_the_data_that_has_begun_anew(world: World, nodes: tuple[Member, Member, Member]) -> None:
    one, *others = nodes
    one.declare(here=True)
    old = dict(one.disk.queues)
    for incarnation in (2, 3):
        one.kill()
        one.disk.queues.clear()                 # its disk is not what it was
        one = again(one)
        assert stored(one) == {b"q": Placement(incarnation)}
        assert said(world) == ("node one", Placement(incarnation)) and told((one, *others)) == {"one"}
        assert [text for level, _, text, _ in one.log if level == "warning" and "begins anew, empty" in text]
    one.kill()
    one.disk.queues = dict(old)
    one = again(one)
    assert one.disk.aside == [b"q"] and "an old copy" in aside(one)[0]
    assert stored(one) == {b"q": Placement(4)} and told((one, *others)) == {"one"}
    one.kill()
    one = again(one)
    assert one.disk.aside == [b"q"] and stored(one) == {b"q": Placement(4)}


def test_an_old_copy_of_before_two_moves_is_set_aside(world: World, nodes: tuple[Member, Member, Member]) -> None:
    """The queue is here, and in this directory, as the old copy says; but it has been elsewhere meanwhile."""
    one, two, _ = nodes
    one.declare(here=True)
    old = dict(one.disk.queues)
    say(world, two, 1, 1)
    assert stored(two) == {b"q": Placement(1, 1)}
    say(world, one, 1, 2)
    one.kill()
    one.disk.queues, one.disk.aside = old, []
    one = again(one)
    assert one.disk.aside == [b"q"] and stored(one) == {b"q": Placement(2)} and said(world) == ("node one", (2, 0))


def test_an_old_copy_of_a_node_that_the_queue_has_left_is_deleted(world: World,
                                                                  nodes: tuple[Member, Member, Member]) -> None:
    one, two, three = nodes
    one.declare(here=True)
    one.kill()
    say(world, two, 1, 1)
    one = again(one)
    assert told((one, two, three)) == {"two"} and not one.disk.queues and not one.disk.aside


def test_a_copy_of_an_earlier_move_is_not_the_queue(world: World, nodes: tuple[Member, Member, Member]) -> None:
    one, two, _ = nodes
    one.declare(here=True)
    queue = one.definitions.queues[Q].value
    name = f"$moving-{queue.id:x}"
    copy = QueueDefinition(queue.id, msgspec.structs.replace(queue.spec, name=name), placement=Placement(1, 1))
    two.kill()
    two.disk.queues = {name.encode(): copy}
    say(world, two, 1, 3)
    two = again(two)
    assert two.disk.aside == [name.encode()] and stored(two) == {b"q": Placement(2)}


# ------------------------------------------------------------------ two at one time

def test_two_nodes_never_claim_one_queue(world: World, nodes: tuple[Member, Member, Member]) -> None:
    """A start claims what etcd gives to another node in that moment. Another queue begins anew meanwhile, so the start
    is not over."""
    one, two, three = nodes
    for name in ("q", "r"):
        one.declare(name, here=True)
    one.kill()
    del one.disk.queues[b"r"]
    late = Member(world, "one", one.disk)
    change, held = late.writer.change, [True]

    async def slow(compares: Any, changes: Any, *how: Any, **more: Any) -> Any:
        while held[0] and changes[0].key in (queue_key(QUEUE_OWNER, *Q), queue_key(QUEUE_DATA, b"/", b"r")):
            await world.driver.sleep(0.01)
        return await change(compares, changes, *how, **more)

    late.writer.change = slow  # type: ignore[method-assign]
    begun = world.start(late.begin())
    world.run(500)
    say(world, two, 1, 1)
    assert told((two, three)) == {"two"} and not begun.done()
    held[0] = False
    world.run(2000)
    assert begun.done() and late.definitions.owner_of(Q) == "two" and late.owners_told[b"q"] == "two"
    owners = [owner_of(event.value).node for event in world.store.history
              if event.key == queue_key(QUEUE_OWNER, *Q) and event.value is not None]
    assert owners == ["one", "two"] and stored(two) == {b"q": Placement(1, 1)}
    assert stored(late) == {b"r": Placement(2)} and not late.disk.aside


# ------------------------------------------------------------------ etcd is set back

@pytest.mark.parametrize("first", ["one", "two"])
def test_what_only_one_node_has_is_not_lost_when_etcd_is_set_back(
        world: World, nodes: tuple[Member, Member, Member], first: str) -> None:
    """To before a move. Who has the messages keeps them, whoever is there first and whatever becomes of the queue."""
    one, two, three = nodes
    one.declare(here=True)
    before = world.store.items[DATA].value
    say(world, two, 1, 1)
    for node in (one, two):
        node.kill()
    one.disk.aside.clear()                      # a move deletes it (the engine of this test has set it aside)
    world.store.apply([Change(DATA, before, 0)])
    started = {node.name: again(node) for node in ((one, two) if first == "one" else (two, one))}
    one, two = started["one"], started["two"]
    assert two.disk.aside == [b"q"] and "Publish to the queue again" in aside(two)[0]
    assert stored(one) == {b"q": Placement(2)} and told((one, two, three)) == {"one"}


@pytest.mark.parametrize("moves", [1, 2, 3])
def test_a_node_that_is_back_late_does_not_lose_it_either(world: World, nodes: tuple[Member, Member, Member],
                                                          moves: int) -> None:
    one, two, three = nodes
    one.declare(here=True)
    before = world.store.items[DATA].value
    say(world, two, 1, 1)
    for node in (one, two):
        node.kill()
    one.disk.queues.clear()
    world.store.apply([Change(DATA, before, 0)])
    one = again(one)
    for moved in range(1, moves + 1):
        say(world, three if moved % 2 else one, 2, moved)
    two = again(two)
    assert two.disk.aside == [b"q"] and "began anew" in aside(two)[0]


def test_what_is_here_counts_though_etcd_was_set_back(world: World, nodes: tuple[Member, Member, Member]) -> None:
    """The queue has been elsewhere and is back: nobody else has it, and what is here is later than etcd knows."""
    one, *others = nodes
    one.declare(here=True)
    before = world.store.items[DATA].value
    one.kill()
    one.disk.queues[b"q"] = msgspec.structs.replace(one.disk.queues[b"q"], placement=Placement(1, 2))
    assert data_of(before).placement == FIRST
    one = Member(world, "one", one.disk)
    change, lost = one.writer.change, [True]

    async def unheard(compares: Any, changes: Any, *how: Any, **more: Any) -> Any:
        result = await change(compares, changes, *how, **more)
        if changes[0].key == DATA and lost:
            lost.pop()
            raise StoreError("the answer was lost")
        return result

    one.writer.change = unheard  # type: ignore[method-assign]
    one.start()
    assert not lost and said(world) == ("node one", (1, 2)) and stored(one) == {b"q": Placement(1, 2)}
    assert told((one, *others)) == {"one"} and not one.disk.aside


def test_nobody_says_who_has_it(world: World, nodes: tuple[Member, Member, Member]) -> None:
    """A value of a later version, or none: nothing is deleted."""
    one, two, three = nodes
    for name in ("q", "r"):
        one.declare(name, here=True)
    one.kill()
    world.store.apply([Change(DATA, b'{"somewhere":1}', 0), Change(queue_key(QUEUE_DATA, b"/", b"r"), None)])
    one = again(one)
    assert sorted(one.disk.aside) == [b"q", b"r"] and told((one, two, three)) == {None}


# ------------------------------------------------------------------ groups of nodes

def test_a_start_leaves_what_a_group_has(world: World, nodes: tuple[Member, Member, Member]) -> None:
    one, two, three = nodes
    one.declare(here=True)
    one.kill()
    say(world, 3, 2)
    one = again(one)
    assert one.disk.left == [b"q"] and stored(one) == {b"q": FIRST} and not one.disk.aside
    assert told((one, two, three)) == {None} and one.definitions.owner_of(Q) is None
    assert said(world) == ("replication group 3", (2, 0))
    assert [node.definitions.group_of(Q) for node in (one, two)] == [3, 3] and one.defining.home_of(Q) == ""
    with pytest.raises(QueueRefused, match="replication group 3 has the messages of queue q"):
        one.definitions.place_queue(Q)
    world.run(5000)
    assert queue_key(QUEUE_OWNER, *Q) not in world.store.items and DATA in world.store.items


def test_who_serves_a_queue_leaves_it_to_its_group(world: World, nodes: tuple[Member, Member, Member]) -> None:
    one, two, three = nodes
    one.declare(here=True)
    say(world, 3, 1, 1)
    assert one.disk.left == [b"q"] and stored(one) == {b"q": FIRST} and not one.disk.aside
    assert told((one, two, three)) == {None}        # although the key of its owner is there still
    two.do(two.defining.undefine_queue(Q, two.definitions.queues[Q].value.id))
    one.kill()
    assert not again(one).disk.queues


def test_what_is_not_durable_is_not_taken_from_a_group(world: World, nodes: tuple[Member, Member, Member]) -> None:
    one, two, _ = nodes
    one.declare(durable=False, here=True)
    one.kill()
    say(world, 3, 1)
    world.run(5000)
    assert said(world) == ("replication group 3", (1, 0)) and two.owners_told[b"q"] is None
    assert two.definitions.placed["one"] == 0


def test_another_queue_of_the_name_of_a_groups_queue_is_set_aside(world: World) -> None:
    one, disk = Member(world, "one").start(), Disk("old")
    one.declare(here=True)
    say(world, 3, 1)
    disk.queues = {b"q": QueueDefinition(0, one.definitions.queues[Q].value.spec)}
    two = Member(world, "two", disk).start()
    assert disk.aside == [b"q"] and "at replication group 3" in aside(two)[0]


# ------------------------------------------------------------------ made anew, in memory

def test_a_queue_that_is_made_anew_elsewhere_is_another_incarnation(world: World,
                                                                    nodes: tuple[Member, Member, Member]) -> None:
    one, *_ = nodes
    one.declare(durable=False, here=True)
    one.kill()
    world.run(5000)
    assert said(world)[1] == Placement(2)


def test_the_transaction_compares_what_was_read(world: World, nodes: tuple[Member, Member, Member]) -> None:
    """A start says which data it has only of the value that it has seen."""
    one, *_ = nodes
    one.declare(here=True)
    one.kill()
    one.disk.queues.clear()
    world.store.transactions.clear()
    again(one)
    revisions = [compare.revision for compares, changes in world.store.transactions for compare in compares
                 if compare.key == DATA == changes[0].key]
    assert len(revisions) == 1 and revisions[0] and all(isinstance(compare, Compare)
                                                        for compares, _ in world.store.transactions
                                                        for compare in compares)
