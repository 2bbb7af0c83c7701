"""Bans for failed logins between nodes: they hold on all, for their time, whatever becomes of their node."""
from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from cluster.world import NO_MEMBERSHIP, World

from fluxmq.access.guard import Guard
from fluxmq.access.guesses import Guesses, Rules
from fluxmq.cluster import keys
from fluxmq.cluster.bans import LEASE_SHARED_S, Bans, Value
from fluxmq.cluster.feed import Feed
from fluxmq.cluster.keys import ban_key
from fluxmq.cluster.ports import Change
from fluxmq.engine.ports.guard import BanInfo
from fluxmq.engine.ports.queues import QueueRefused
from fluxmq.model.origins import read_origin

RULES = Rules(delay_after=3, delay_max_ms=8000, ban_after=10, ban_origin_after=50, ban_ms=600_000)
ADDRESS, NETWORK = "10.0.0.1", "2001:db8:0:1::/64"
HERE = read_origin(ADDRESS)
WALL_S = 1_800_000_000.0


class Member:
    """What a node has of bans. clock_s: how far its wall clock is ahead."""

    def __init__(self, world: World, name: str, clock_s: float = 0.0) -> None:
        self.world = world
        self.said: list[str] = []
        log: Any = lambda level, cause, text, fields: self.said.append(text)  # noqa: E731
        self.guard = Guard(Guesses(RULES, name.encode() * 8), clock=lambda: world.ms / 1000 + len(name) * 1000,
                           wall=lambda: WALL_S + world.ms / 1000 + clock_s, later=lambda delay, then: None, on_log=log)
        self.feed = Feed(world.store, world.driver, NO_MEMBERSHIP)
        self.bans = Bans(name, world.store, self.feed, world.driver, log=log)
        self.bans.attach(self.guard)
        self.guard.shared = self.bans
        self.feed.listen((keys.BAN_ADDRESS, keys.BAN_USER), self.bans.on_event)
        world.end(self.feed.load())
        world.start(self.feed.follow())
        world.run(50)

    def fail(self, account: str = "anna", times: int = 10, origin: bytes = HERE) -> None:
        for _ in range(times):
            self.guard.failed(origin, account, lambda: None)

    def banned(self, account: str = "anna", origin: bytes = HERE) -> bool:
        return self.guard.refusal(origin, account) is not None

    def lift(self, address: str = ADDRESS, user: str | None = None) -> Sequence[BanInfo]:
        lifted: Sequence[BanInfo] = self.world.end(self.guard.lift(address, user), 20_000)
        return lifted

    def kill(self) -> None:
        self.feed.close()
        self.bans.close("killed")


@pytest.fixture
def world() -> World:
    return World()


def three(world: World) -> list[Member]:
    return [Member(world, name) for name in ("one", "two", "three")]


def everywhere(members: Sequence[Member], account: str = "anna", origin: bytes = HERE) -> set[bool]:
    return {member.banned(account, origin) for member in members}


def test_an_administrator_bans_on_all_nodes(world: World) -> None:
    """Longer than nodes ban by themselves, and who has logged in from there, too."""
    members = three(world)
    members[2].guard.succeeded(HERE, "anna")
    members[0].guard.ban(ADDRESS, None, 3600)
    world.run(200)
    assert everywhere(members) == {True}
    world.run(3_590_000)
    assert everywhere(members) == {True}
    world.run(20_000)
    assert everywhere(members) == {False}
    members[1].guard.ban(ADDRESS, "anna", 60)
    world.run(200)
    assert everywhere(members) == {True} and everywhere(members, "bert") == {False}
    assert [ban.user for ban in members[2].lift()] == ["anna"]
    world.run(200)
    assert everywhere(members) == {False}


@pytest.mark.parametrize("account", ["anna", "", "a/b%c", "\udcff", "ä" * 300])
@pytest.mark.parametrize("address", [ADDRESS, NETWORK])
def test_a_ban_of_one_node_holds_on_all_and_ends_everywhere_by_itself(world: World, account: str, address: str) -> None:
    members, origin = three(world), read_origin(address)
    members[0].fail(account, origin=origin)
    world.run(200)
    # of a name that is longer than any user's, the others know the first 255 characters
    assert everywhere(members[:1], account, origin) == everywhere(members, account[:255], origin) == {True}
    assert everywhere(members, "bert", origin) == {False}
    [shown] = members[1].guard.bans(10)
    assert (shown.address, shown.user, shown.failures) == (address, account[:255], 10) and shown.seconds == 600
    world.ms += 600_000
    assert everywhere(members, account[:255], origin) == {False}
    for member in members:
        member.guard.tick()
        assert member.guard.standing == 0
    world.store.end_lease(next(iter(world.store.leases)))       # as its time to live has passed
    assert not world.store.items


def test_the_ban_of_an_address_shuts_it_out_everywhere(world: World) -> None:
    members = three(world)
    for number in range(50):
        members[2].fail(f"user{number}", 1)
    world.run(200)
    assert [member.guard.shuts_out(HERE) for member in members] == [True] * 3
    assert list(world.store.items) == [ban_key(ADDRESS)]


def test_a_ban_survives_its_node_and_is_known_to_one_that_starts(world: World) -> None:
    members = three(world)
    members[0].fail()
    world.run(200)
    members[0].kill()
    assert Member(world, "one").banned()
    assert all(item.lease for item in world.store.items.values())


def test_bans_that_begin_within_a_minute_share_a_lease_that_outlasts_them(world: World) -> None:
    one = Member(world, "one")
    for number in range(4):
        one.fail(f"user{number}")
        world.run(200)
    assert len(world.store.items) == 4 and list(world.store.leases.values()) == [600 + LEASE_SHARED_S]
    world.ms += int(LEASE_SHARED_S * 1000)
    one.fail("carl")
    world.run(200)
    assert len(world.store.leases) == 2


def test_a_ban_is_lifted_through_any_node(world: World) -> None:
    members = three(world)
    for account in ("anna", "bert", "carl"):
        members[0].fail(account)
    world.run(200)
    assert [ban.user for ban in members[2].lift(user="bert")] == ["bert"]
    world.run(100)
    assert everywhere(members, "bert") == {False} and everywhere(members, "anna") == {True}
    assert {ban.user for ban in members[1].lift()} == {"anna", "carl"}
    world.run(100)
    assert everywhere(members, "anna") == {False} and not world.store.items
    assert members[1].lift() == []
    assert "a ban was lifted through another node" in members[0].said
    members[0].fail()                       # and may begin again
    world.run(200)
    assert everywhere(members) == {True}


def test_a_node_lifts_what_it_has_not_heard_of(world: World) -> None:
    one, two = Member(world, "one"), Member(world, "two")
    two.feed.close()
    one.fail()
    world.run(200)
    assert not two.banned() and [ban.user for ban in two.lift()] == ["anna"]
    world.run(100)
    assert not one.banned()


def test_a_ban_that_is_lifted_while_it_is_written_does_not_stay(world: World) -> None:
    one, two = Member(world, "one"), Member(world, "two")
    one.fail()
    assert [ban.user for ban in one.lift()] == ["anna"]
    world.run(500)
    assert not one.banned() and not two.banned() and not world.store.items


def test_two_nodes_ban_the_same_at_once(world: World) -> None:
    members = three(world)
    members[0].fail()
    world.ms += 1
    members[1].fail()
    world.run(500)
    [item] = world.store.items.values()
    assert everywhere(members) == {True} and len({round(member.guard.bans(1)[0].until_ms, -1)
                                                  for member in members}) == 1
    assert msgspec.json.decode(item.value, type=Value).node == "two"
    members[2].lift()
    world.run(100)
    assert everywhere(members) == {False}


def test_without_the_store_a_ban_holds_where_it_began_and_is_written_later(world: World) -> None:
    members = three(world)
    world.store.counts.fail = 10**9
    members[0].fail()
    world.run(8000)
    assert [member.banned() for member in members] == [True, False, False]
    world.store.counts.fail = 0
    world.run(3000)
    assert everywhere(members) == {True}
    assert any("cannot be written" in text for text in members[0].said)


def test_without_the_store_nothing_is_lifted(world: World) -> None:
    members = three(world)
    members[0].fail()
    world.run(200)
    world.store.counts.fail = 10**9
    with pytest.raises(QueueRefused, match="cannot lift bans now") as refused:
        members[1].lift()
    assert refused.value.kind == "unavailable" and everywhere(members) == {True}


def test_a_ban_that_is_over_before_the_store_is_back_is_not_written(world: World) -> None:
    one = Member(world, "one")
    world.store.counts.fail = 10**9
    one.fail()
    world.run(100)
    world.ms += 600_000
    world.run(7000)
    world.store.counts.fail = 0
    world.run(7000)
    assert not world.store.items and not one.banned()


def test_a_lease_that_is_gone_is_replaced(world: World) -> None:
    one, two = Member(world, "one"), Member(world, "two")
    one.fail()
    world.run(200)
    world.store.end_lease(next(iter(world.store.leases)))
    world.run(100)
    one.fail("bert")
    world.run(3000)
    assert two.banned("bert")


def test_answers_that_are_lost_and_a_watch_that_begins_anew(world: World) -> None:
    members = three(world)
    world.store.counts.lose_answers = 1
    members[0].fail()
    world.run(1000)
    assert everywhere(members) == {True}
    members[1].lift()
    world.store.compact()
    world.run(1000)
    assert everywhere(members) == {False}


@pytest.mark.parametrize("clock_s", [-86_400.0, 86_400.0])
def test_a_clock_that_is_wrong_by_a_day_bans_nobody_for_a_day(world: World, clock_s: float) -> None:
    one, two = Member(world, "one"), Member(world, "two", clock_s)
    one.fail()
    world.run(200)
    assert two.banned() == (clock_s < 0)
    world.ms += 600_000
    assert not two.banned()


def test_a_value_that_somebody_else_has_written_is_left_out_and_said(world: World) -> None:
    one = Member(world, "one")
    world.store.apply([Change(ban_key(ADDRESS, b"anna"), b"rubbish"), Change(ban_key("nowhere"), b"{}")])
    world.run(100)
    assert not one.banned() and any("cannot be read" in text for text in one.said)
    one.lift()
    assert ban_key(ADDRESS, b"anna") not in world.store.items


def test_a_node_by_itself_lifts_at_once(world: World) -> None:
    guard = Member(world, "one").guard
    guard.shared = None
    for _ in range(10):
        guard.failed(HERE, "anna", lambda: None)
    assert [ban.user for ban in asyncio.run(guard.lift(ADDRESS))] == ["anna"]
