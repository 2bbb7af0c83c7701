"""Whose a node's name is: what is refused before anything in etcd has changed, and what no crash may be taken for."""
from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

import msgspec
import pytest
from cluster.world import TTL_S, Member, World
from kit.own_storage import OwnStorageInMemory, claim_of
from simulator.calls import ROOT, SimOps
from simulator.disk import Dead, Disk

from fluxmq._core.errors import CorruptError
from fluxmq.cluster.claim import Claim, JoinRefused, OldStorage
from fluxmq.cluster.keys import node_key, storage_key
from fluxmq.cluster.ports import Change
from fluxmq.storage.node_identity import NodeIdentity


@pytest.fixture
def world() -> World:
    return World()


def ended(world: World, member: Member) -> None:
    """Killed; its lease has ended."""
    member.kill()
    world.store.end_lease(member.membership.lease)
    world.run(50)


def refused(world: World, work: Coroutine[Any, Any, Any], error: type[Exception], match: str) -> None:
    items = dict(world.store.items)
    with pytest.raises(error, match=match):
        world.end(work, 60_000)
    assert world.store.items == items, "something was changed"
    world.driver.crashed.clear()


@pytest.mark.parametrize(("own", "record", "why"), [
    (("a", 0, ""), None, ""), (("a", 5, ""), None, ""),     # nothing is on record
    (("a", 0, ""), ("b", 7), ""),                           # a new disk for one that is lost
    (("a", 5, ""), ("a", 5), ""), (("a", 6, ""), ("a", 5), ""), (("a", 9, ""), ("a", 3), ""),
    (("a", 4, ""), ("a", 5), "old copy: it is of generation 4, and node 'one' has had it up to generation 5"),
    (("a", 0, ""), ("a", 1), "old copy"),                   # of before there were records
    (("a", 8, "b"), ("b", 7), ""),                          # the new disk again, whose registration was not done
    (("a", 8, "b"), ("b", 8), "run with another storage directory"),
    (("a", 8, "b"), ("c", 7), "run with another storage directory"),
    (("b", 7, ""), ("a", 8), "run with another storage directory"),
])
def test_which_directories_are_refused(world: World, own: tuple[str, int, str], record: tuple[str, int] | None,
                                       why: str) -> None:
    if record is not None:
        value = msgspec.json.encode({"identity": record[0], "generation": record[1]})
        world.store.apply([Change(storage_key("one"), value)])
    claim = claim_of("one", world.driver, TTL_S, OwnStorageInMemory(*own))
    if why:
        refused(world, claim.look(world.store), OldStorage, why)
    else:
        seen = world.end(claim.look(world.store))
        compare, change = world.end(claim.stake(seen))
        assert world.end(world.store.transact([compare], [change])).done
        assert claim.storage.generation > (record[1] if record else 0)
        world.end(claim_of("one", world.driver, TTL_S, OwnStorageInMemory(
            claim.storage.identity, claim.storage.generation)).look(world.store))


def test_a_node_that_has_been_replaced_meanwhile_does_not_come_back(world: World) -> None:
    first = world.member("one")
    ended(world, first)
    second = world.member("one", "another disk")
    ended(world, second)
    refused(world, Member(world, "one", "disk of one").join(), OldStorage, "set cluster.old_storage to set_aside")
    assert world.member("one", "another disk").membership.may_serve()


def test_each_life_is_another_generation(world: World) -> None:
    old = OwnStorageInMemory("disk of one")
    for generation in range(1, 4):
        member = world.member("one")
        assert member.storage.generation == generation
        ended(world, member)
    old.generation = 2      # as it was then
    world.disks["disk of one"] = old
    refused(world, Member(world, "one", "disk of one").join(), OldStorage, "old copy")


def test_a_directory_gets_older_while_its_node_serves(world: World) -> None:
    one = world.member("one")
    claim, copy = one.claim, OwnStorageInMemory("disk of one", one.storage.generation)
    world.end(claim.renew(world.store, one.membership.epoch))
    assert one.storage.generation == 2
    ended(world, one)
    world.disks["disk of one"] = copy
    refused(world, Member(world, "one", "disk of one").join(), OldStorage, "old copy")


def test_a_node_that_has_lost_its_name_leaves_the_record_alone(world: World) -> None:
    """Its directory must not get ahead of the one that has replaced it."""
    one = world.member("one")
    ended(world, one)
    world.member("one", "another disk")
    items = dict(world.store.items)
    world.end(one.claim.renew(world.store, one.membership.epoch))
    assert world.store.items == items and (one.storage.generation, one.storage.replaces) == (1, "")


def test_a_copy_of_a_directory_that_is_in_use_is_refused(world: World) -> None:
    """The process of the registration answers: the lease is not taken from it."""
    one = world.member("one")

    async def runs(address: str) -> bool:
        assert address == "one:1"
        return True

    copy = Claim("one", OwnStorageInMemory("disk of one", 1), TTL_S, world.driver, runs)
    refused(world, copy.look(world.store), JoinRefused, r"a copy of this storage directory is in the cluster .*one:1")
    assert node_key("one") in world.store.items and one.membership.may_serve()


# ── the file ─────────────────────────────────────────────────────────────────────────────────────────────────


def identity_of(disk: Disk, new: Callable[[], str] = lambda: "0123456789abcdef" * 2) -> NodeIdentity:
    return NodeIdentity(ROOT, SimOps(disk), new)


@pytest.mark.parametrize("replaced", [False, True])
@pytest.mark.parametrize("registered", [False, True])
def test_no_loss_of_power_is_taken_for_an_old_copy(world: World, replaced: bool, registered: bool) -> None:
    """At any call of the disk, before or behind the transaction."""
    deaths = 0
    for seed in range(120):
        chance = random.Random(seed)
        disk = Disk(chance)
        if replaced:
            world.store.apply([Change(storage_key("one"), b'{"identity":"lost","generation":7}')])
        else:
            world.store.apply([Change(storage_key("one"), None)])
        lives = chance.randint(1, 3)
        for life in range(lives):
            drawn = f"{chance.getrandbits(128):032x}"
            claim = claim_of("one", world.driver, TTL_S, identity_of(disk, partial(str, drawn)))
            seen = world.end(claim.look(world.store))
            disk.die_at = disk.calls + chance.randint(1, 9) if life == lives - 1 and not registered else None
            died = False
            with contextlib.suppress(Dead):
                died = True
                compare, change = world.end(claim.stake(seen))
                died = False
                world.end(world.store.transact([compare], [change]))
            deaths += died
            disk.crash(chance.choice(("power", "kill")))
        world.end(claim_of("one", world.driver, TTL_S, identity_of(disk)).look(world.store))
    assert registered or deaths > 20


def test_what_the_file_holds() -> None:
    disk = Disk(random.Random(1))
    first = identity_of(disk)
    assert (first.identity, first.generation, first.replaces) == ("0123456789abcdef" * 2, 0, "")
    first.advance(3, "other")
    first.advance(4)
    again = identity_of(disk, lambda: "new")
    assert (again.identity, again.generation, again.replaces) == (first.identity, 4, "other")


@pytest.mark.parametrize(("text", "identity", "generation"), [
    (b"abc", "abc", 0), (b"abc\n", None, 0), (b"", "new", 0), (b"abc\nx\n\n", None, 0), (b"\xff\n1\n\n", None, 0)])
def test_files_of_earlier_versions_and_of_a_bad_disk(text: bytes, identity: str | None, generation: int) -> None:
    disk = Disk(random.Random(1))
    fd = disk.open(str(ROOT / "node-identity"), True)
    disk.pwrite(fd, text, 0)
    if identity is None:
        with pytest.raises(CorruptError, match="its disk is damaged"):
            identity_of(disk)
    else:
        found = identity_of(disk, lambda: "new")
        assert (found.identity, found.generation) == (identity, generation)
