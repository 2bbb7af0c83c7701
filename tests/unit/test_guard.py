"""Failed logins by a clock set by hand: what is refused later, who is banned, when that ends, and who is left alone."""
from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from fluxmq.access.guard import Guard
from fluxmq.access.guesses import FIRST_DELAY_MS, Ban, Guesses, Rules
from fluxmq.model.config import Config
from fluxmq.model.origins import Networks

RULES = Rules(delay_after=3, delay_max_ms=8000, ban_after=10, ban_origin_after=50, ban_ms=600_000)
HERE, THERE, ELSEWHERE = b"\x0a\0\0\1", b"\x0a\0\0\2", b"\x20\x01\x0d\xb8\0\0\0\1"


def machine(**changed: int) -> Guesses:
    return Guesses(RULES._replace(**changed), bytes(32))


def fail(guesses: Guesses, times: int, origin: bytes = HERE, account: str = "anna", now_ms: int = 0) -> list[int]:
    """Delays of so many failures at once."""
    return [guesses.failed(origin, account, now_ms).delay_ms for _ in range(times)]


def test_refusals_come_later_and_later_up_to_a_bound() -> None:
    assert fail(machine(), 9) == [0, 0, 0, 500, 1000, 2000, 4000, 8000, 8000]
    assert fail(machine(delay_after=0), 2) == [500, 1000]
    assert fail(machine(delay_max_ms=0), 9) == [0] * 9
    assert max(fail(machine(ban_after=0, ban_origin_after=0), 500)) == 8000     # 2 ** 500 is not asked for


def test_a_user_is_banned_where_he_failed_and_nowhere_else() -> None:
    guesses = machine()
    fail(guesses, 9)
    assert guesses.banned(HERE, "anna", 0) is None
    [ban] = guesses.failed(HERE, "anna", 0).bans
    assert (ban.origin, ban.account, ban.failures, ban.until_ms) == (HERE, "anna", 10, 600_000)
    assert guesses.banned(HERE, "anna", 599_999) == ban
    for origin, account in ((THERE, "anna"), (HERE, "bert"), (HERE, ""), (ELSEWHERE, "anna")):
        assert guesses.banned(origin, account, 0) is None
    assert not guesses.shuts_out(HERE, 0)
    assert list(guesses.bans(0)) == [ban] and guesses.ended(599_999) == []
    assert guesses.banned(HERE, "anna", 600_000) is None and list(guesses.bans(600_000)) == []
    assert guesses.ended(600_000) == [ban] and guesses.ended(600_000) == []
    assert guesses.failed(HERE, "anna", 600_000).delay_ms == 0      # and begins anew


def test_an_address_is_banned_for_what_it_tries_of_many() -> None:
    guesses = machine()
    for number in range(49):
        assert guesses.failed(HERE, f"user{number}", 0).bans == []
    [ban] = guesses.failed(HERE, "root", 0).bans
    assert (ban.account, ban.failures) == (None, 50)
    assert guesses.shuts_out(HERE, 599_999) and guesses.banned(HERE, "somebody", 0) == ban
    assert not guesses.shuts_out(THERE, 0) and not guesses.shuts_out(HERE, 600_000)


def test_one_account_alone_never_bans_its_address() -> None:
    """A device with a wrong password tries as often as it may, for a day: who shares its address is left alone, also
    where somebody mistypes now and then."""
    guesses = machine()
    for now_ms in range(0, 24 * 3_600_000, 1000):
        guesses.ended(now_ms)
        if guesses.banned(HERE, "device", now_ms) is None:
            assert all(ban.account == "device" for ban in guesses.failed(HERE, "device", now_ms).bans)
        if now_ms % 300_000 == 0:
            assert guesses.failed(HERE, f"user{now_ms}", now_ms).bans == []
        assert not guesses.shuts_out(HERE, now_ms)


def test_who_has_logged_in_there_is_no_part_of_an_address_s_ban() -> None:
    guesses = machine()
    guesses.succeeded(HERE, "anna")
    for number in range(50):
        guesses.failed(HERE, f"user{number}", 0)
    assert not guesses.shuts_out(HERE, 0)       # the user could not get in
    assert guesses.banned(HERE, "anna", 0) is None
    assert guesses.banned(HERE, "bert", 0) is not None
    # its failures make that ban no longer
    assert not any(ban.account is None for _ in range(9) for ban in guesses.failed(HERE, "anna", 1).bans)
    guesses.succeeded(HERE, "anna")
    # but its own failures ban it there: guesses of its password must end, too
    fail(guesses, 10)
    assert guesses.banned(HERE, "anna", 0) is not None


def test_failures_elsewhere_delay_strangers_and_ban_nobody() -> None:
    guesses = machine()
    guesses.succeeded(HERE, "anna")
    for number in range(10_000):
        failure = guesses.failed(b"\x0b\0" + number.to_bytes(2), "anna", 0)
        assert failure.bans == []
    assert failure.delay_ms == 8000             # from an address that never failed before
    assert fail(guesses, 3) == [0, 0, 0]        # it mistypes where it is known
    assert fail(guesses, 1, THERE) == [8000]    # and where it is not
    assert guesses.banned(HERE, "anna", 0) is guesses.banned(THERE, "anna", 0) is None


def test_success_forgets_the_user_s_failures_and_not_the_address_s() -> None:
    guesses = machine()
    fail(guesses, 9)
    guesses.succeeded(HERE, "anna")
    assert guesses.failed(HERE, "anna", 0).bans == []
    for number in range(39):
        assert guesses.failed(HERE, f"user{number}", 0).bans == []
    [ban] = guesses.failed(HERE, "last", 0).bans        # the fiftieth: an account of one's own washes nothing clean
    assert ban.account is None


def test_failures_are_forgotten_evenly() -> None:
    guesses = machine()
    fail(guesses, 9)
    assert guesses.failed(HERE, "anna", 60_000).bans == []      # one is forgotten each minute
    [ban] = guesses.failed(HERE, "anna", 60_000).bans
    assert ban.failures == 10


def test_nothing_bans_where_that_is_off() -> None:
    guesses = machine(ban_after=0, ban_origin_after=0)
    fail(guesses, 1000)
    assert list(guesses.bans(0)) == []


def test_lifting() -> None:
    guesses = machine()
    for account in ("anna", "bert"):
        fail(guesses, 10, account=account)
    assert guesses.lift(THERE) == guesses.lift(HERE, "carl") == []
    assert [ban.account for ban in guesses.lift(HERE, "anna")] == ["anna"]
    assert guesses.banned(HERE, "anna", 0) is None and guesses.banned(HERE, "bert", 0) is not None
    fail(guesses, 10)
    assert {ban.account for ban in guesses.lift(HERE)} == {"anna", "bert"}
    assert guesses.standing == 0


def test_bans_of_elsewhere_are_in_the_order_of_their_ends() -> None:
    guesses = Guesses(RULES, bytes(32), entries_max=4)
    fail(guesses, 10)                                       # until 600 000
    for until_ms in (900_000, 300_000, 700_000):
        assert guesses.learn(Ban(THERE, f"user{until_ms}", 10, until_ms))
    assert not guesses.learn(Ban(THERE, "user300000", 10, 200_000))     # sooner than what is known
    assert [ban.until_ms for ban in guesses.bans(0)] == [300_000, 600_000, 700_000, 900_000]
    assert guesses.learn(Ban(THERE, None, 50, 800_000))                 # displaces the one that ends first
    assert [ban.until_ms for ban in guesses.ended(700_000)] == [600_000, 700_000]
    assert guesses.unlearn(THERE, None, 800_000) is None                # it is over by itself
    assert guesses.unlearn(THERE, "user900000", 0) == Ban(THERE, "user900000", 10, 900_000)
    assert [ban.account for ban in guesses.ended(10**9)] == [None]


def test_tables_are_bounded_and_failures_elsewhere_lift_no_ban() -> None:
    guesses = Guesses(RULES, bytes(32), entries_max=100, known_max=100)
    fail(guesses, 10)
    for number in range(5000):
        origin = b"\x0b\0" + number.to_bytes(2)
        guesses.succeeded(origin, "carl")
        guesses.failed(origin, f"user{number}", 0)
    assert guesses.banned(HERE, "anna", 0) is not None
    assert [len(table) for table in (guesses._pairs, guesses._origins, guesses._accounts, guesses._known,
                                     guesses._known_of)] == [100] * 5
    for number in range(200):
        fail(guesses, 10, b"\x0c\0" + number.to_bytes(2))
    assert guesses.standing == 100


class World:
    """A guard whose clocks and timers are the test's."""

    def __init__(self, **how: Any) -> None:
        self.now = 1000.0
        self.timers: list[tuple[float, Callable[[], None]]] = []
        self.said: list[tuple[str, str, dict[str, Any]]] = []
        self.answers: list[str] = []
        self.guard = Guard(machine(), clock=lambda: self.now, wall=lambda: self.now + 1_800_000_000,
                           later=lambda delay, then: self.timers.append((delay, then)),
                           on_log=lambda level, _, text, fields: self.said.append((level, text, fields)), **how)

    def fail(self, origin: bytes = HERE, account: str = "anna") -> bool:
        return self.guard.failed(origin, account, lambda: self.answers.append(account))


def test_what_is_late_waits_for_a_timer() -> None:
    world = World()
    assert [world.fail() for _ in range(5)] == [False] * 3 + [True] * 2
    assert len(world.answers) == 3 and world.guard.waiting == 2
    assert [delay for delay, _ in world.timers] == [FIRST_DELAY_MS / 1000, 1.0]
    for _, then in world.timers:
        then()
    assert len(world.answers) == 5 and (world.guard.waiting, world.guard.delayed) == (0, 2)


def test_so_many_wait_and_no_more_but_all_count() -> None:
    world = World(delayed_max=2)
    assert [world.fail() for _ in range(10)] == [False] * 3 + [True] * 2 + [False] * 5
    assert len(world.timers) == 2 and len(world.answers) == 8
    assert world.guard.refusal(HERE, "anna") is not None


def test_the_log_says_who_from_where_how_often_and_until_when() -> None:
    world = World()
    for _ in range(10):
        world.fail(ELSEWHERE)
    [(level, text, fields)] = world.said
    assert level == "warning" and "banned" in text
    assert fields == {"user": "anna", "address": "2001:db8:0:1::/64", "failures": 10, "until": "2027-01-15T08:26:40Z"}
    refused = world.guard.refusal(ELSEWHERE, "anna")
    assert refused is not None and refused.reason == 0x8A and "2027-01-15T08:26:40Z" in refused.text
    [shown] = world.guard.bans(10)
    assert (shown.address, shown.user, shown.failures, shown.seconds) == ("2001:db8:0:1::/64", "anna", 10, 600)
    assert shown.until_ms == 1_800_001_600_000 and world.guard.bans(0) == []
    world.now += 599
    world.guard.tick()
    assert len(world.said) == 1 and world.guard.standing == 1
    world.now += 1
    world.guard.tick()
    assert world.said[1] == ("info", "a ban has ended", {"user": "anna", "address": "2001:db8:0:1::/64",
                                                         "failures": 10})
    world.guard.tick()
    assert len(world.said) == 2 and world.guard.standing == 0
    assert world.guard.begun == {"user": 1, "address": 0}


def test_an_administrator_lifts_a_ban() -> None:
    world = World()
    for number in range(50):
        world.fail(account=f"user{number}")
    assert world.guard.shuts_out(HERE) and world.guard.begun["address"] == 1
    assert [ban.address for ban in asyncio.run(world.guard.lift("10.0.0.1"))] == ["10.0.0.1"]
    assert not world.guard.shuts_out(HERE) and "lifted" in world.said[-1][1]
    assert asyncio.run(world.guard.lift("10.0.0.1")) == []
    with pytest.raises(ValueError, match="no address"):
        asyncio.run(world.guard.lift("anna"))


def test_an_administrator_bans() -> None:
    """Also who has logged in from there, and for as long as asked; a network that is exempt cannot be banned."""
    world = World(exempt=Networks(["10.0.0.2", "192.0.2.0/24"]))
    guard = world.guard
    guard.succeeded(HERE, "anna")
    info = guard.ban("10.0.0.1", None, 3600)
    assert (info.address, info.user, info.failures, info.seconds) == ("10.0.0.1", None, 0, 3600)
    assert guard.shuts_out(HERE) and not guard.shuts_out(THERE)
    refused = guard.refusal(HERE, "anna")
    assert refused is not None and str(refused).startswith("banned until ")
    world.now += 3599
    assert guard.refusal(HERE, "anna") is not None
    world.now += 1
    assert guard.refusal(HERE, "anna") is None and not guard.shuts_out(HERE)
    guard.succeeded(HERE, "anna")
    guard.ban("10.0.0.1", "anna", 10)
    assert guard.refusal(HERE, "anna") is not None and guard.refusal(HERE, "bert") is None
    assert [ban.user for ban in asyncio.run(guard.lift("10.0.0.1"))] == ["anna"]
    assert guard.refusal(HERE, "anna") is None
    assert guard.ban("2001:db8:0:1::7", None, 10).address == "2001:db8:0:1::/64"
    for wrong in ("10.0.0.2", "192.0.2.7", "somewhere", ""):
        with pytest.raises(ValueError, match=r"exempt_networks|no address"):
            guard.ban(wrong, None, 10)


def test_the_defaults_are_those_of_the_tests() -> None:
    auth = Config().auth
    assert Rules(auth.delay_after, int(auth.delay_max * 1000), auth.ban_after, auth.ban_address_after,
                 int(auth.ban_time * 1000)) == RULES
