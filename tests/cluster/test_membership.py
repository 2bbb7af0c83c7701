"""The lease of a node: when it counts, when it ends, and who notices."""
from __future__ import annotations

from typing import Any

import pytest
from cluster.world import TTL_S, Member, World

from fluxmq.cluster.keys import LEADER, node_key
from fluxmq.cluster.membership import JoinRefused, State
from fluxmq.cluster.ports import Change, LeaseGone, Range, Renewal, TransactionResult


@pytest.fixture
def world() -> World:
    return World()


def test_nodes_see_each_other_come_and_go(world: World) -> None:
    one, two = world.member("one"), world.member("two")
    assert sorted(one.membership.nodes) == sorted(two.membership.nodes) == ["one", "two"]
    assert one.membership.nodes["two"].epoch == two.membership.epoch > one.membership.epoch
    world.end(two.membership.leave())
    world.run(50)
    assert list(one.membership.nodes) == ["one"]
    assert one.log[-2:] == [("appeared", "two"), ("disappeared", "two")]


def test_a_node_that_renews_serves_on(world: World) -> None:
    one = world.member("one")
    world.run(10 * TTL_S * 1000)
    assert one.membership.may_serve() and not one.log[1:]


def test_a_node_is_fenced_at_the_end_of_its_lease_when_the_store_is_silent(world: World) -> None:
    one = world.member("one")
    world.store.counts.fail = 1 << 30
    world.run(TTL_S * 1000 - 2000)
    assert one.membership.may_serve()
    world.run(3000)
    assert not one.membership.may_serve()
    assert one.membership.state is State.FENCED
    assert one.log[-1] == ("fenced", f"the lease of {TTL_S} s was not renewed in time (the store does not answer)")


def test_a_node_that_stood_still_is_fenced_although_the_store_still_has_its_lease(world: World) -> None:
    one = world.member("one")
    world.ms += TTL_S * 1000
    assert not one.membership.may_serve()
    world.run(1000)
    assert one.membership.state is State.FENCED and "this process stood still" in str(one.log[-1])


def test_a_renewal_without_a_read_in_the_same_term_does_not_count(world: World) -> None:
    """A leader that is replaced confirms renewals; the read goes to its successor."""
    one = world.member("one")

    async def renew(lease: int) -> Renewal:
        return Renewal(float(TTL_S), world.store.counts.term - 1)

    world.store.renew = renew  # type: ignore[method-assign]
    world.run(TTL_S * 1000 + 500)
    assert one.membership.state is State.FENCED


@pytest.mark.parametrize("what", ["lease", "key"])
def test_a_node_whose_key_is_gone_is_fenced_at_once(world: World, what: str) -> None:
    one = world.member("one")
    if what == "lease":
        world.store.end_lease(one.membership.lease)
    else:
        world.store.apply([Change(node_key("one"), None)])
    world.run(30)
    assert one.membership.state is State.FENCED


def test_a_read_that_does_not_show_the_key_fences(world: World) -> None:
    one = world.member("one")

    async def read(key: bytes, *, prefix: bool = False, local: bool = False) -> Range:
        return Range(world.store.counts.revision, world.store.counts.term, [])

    world.store.read = read  # type: ignore[method-assign]
    world.run(TTL_S * 500)
    assert one.log[-1] == ("fenced", "its key in etcd is gone")


def test_a_second_process_with_the_name_is_refused(world: World) -> None:
    """When it has waited as long as a lease lives that nobody renews."""
    one = world.member("one")
    world.run(1000)
    items = dict(world.store.items)
    second = Member(world, "one", "another disk")
    joining = world.start(second.join())
    world.run(TTL_S * 1000)
    assert not joining.done() and second.membership.waits == (
        "another process is, or was a moment ago, in the cluster as node 'one' (at one:1): waits up to 12 s for the "
        "end of its lease")
    world.run(3000)
    with pytest.raises(JoinRefused, match=r"another process is in the cluster as node 'one' \(at one:1\), and renews"):
        joining.result()
    assert world.store.items == items and one.membership.may_serve()
    world.driver.crashed.clear()


def test_a_new_disk_waits_for_the_lease_of_the_lost_one(world: World) -> None:
    first = world.member("one")
    first.kill()
    second = Member(world, "one", "another disk")
    joining = world.start(second.join())
    world.run(5000)
    assert not joining.done()
    world.store.end_lease(first.membership.lease)
    world.run(1000)
    assert joining.done() and second.membership.may_serve()


def test_a_node_takes_the_place_of_its_former_life(world: World) -> None:
    first, other = world.member("one"), world.member("other")
    first.kill()
    second = world.member("one")
    assert second.membership.epoch > first.membership.epoch
    assert other.membership.nodes["one"].epoch == second.membership.epoch
    assert other.log[-2:] == [("disappeared", "one"), ("appeared", "one")]


def test_there_is_exactly_one_leader_and_then_another(world: World) -> None:
    members = [world.member(name) for name in ("one", "two", "three")]
    world.run(1000)
    assert [member.membership.leader for member in members] == ["one"] * 3
    assert [member.membership.is_leader for member in members] == [True, False, False]
    members[0].kill()
    world.store.end_lease(members[0].membership.lease)
    world.run(1500)
    assert members[1].membership.leader == members[2].membership.leader in ("two", "three")
    assert sum(member.membership.is_leader for member in members[1:]) == 1
    assert world.store.items[LEADER].value.decode() == members[1].membership.leader


def test_a_lease_that_ends_while_its_node_joins_is_replaced(world: World) -> None:
    """etcd took longer for the transaction than the lease lives."""
    transact, leases = world.store.transact, []

    async def late(compares: Any, changes: Any) -> TransactionResult:
        leases.append(changes[0].lease)
        if len(leases) == 1:
            await world.store.revoke(leases[0])
            raise LeaseGone("the lease does not exist", retry=False)
        return await transact(compares, changes)

    world.store.transact = late  # type: ignore[method-assign]
    one = world.member("one")
    assert one.membership.may_serve() and one.membership.lease == leases[1] != leases[0]
