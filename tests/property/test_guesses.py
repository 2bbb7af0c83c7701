"""Counting failed logins against the simplest thing that does the same: lists of what happened, without a bound."""
from __future__ import annotations

from fractions import Fraction
from typing import NamedTuple

from hypothesis import given, settings
from hypothesis import strategies as st

from fluxmq.access.guesses import FIRST_DELAY_MS, Guesses, Rules

RULES = st.builds(Rules, st.integers(0, 4), st.sampled_from([0, 700, 5000]), st.integers(0, 5), st.integers(0, 6),
                  st.sampled_from([10, 1000, 100_000]))
PLACES = st.sampled_from([b"1", b"1", b"1", b"2"])
NAMES = st.sampled_from(["anna", "bert", ""])


class Step(NamedTuple):
    pause_ms: int
    verb: str
    place: bytes
    name: str


STEPS = st.lists(st.builds(Step, st.sampled_from([0, 0, 0, 1, 3, 100, 999, 5000]),
                           st.sampled_from(["fail"] * 6 + ["succeed"] * 2 + ["lift", "lift one"]), PLACES, NAMES),
                 min_size=5, max_size=80)


class Oracle:
    """Counts are fractions that shrink as time goes; a ban is a line in a list."""

    def __init__(self, rules: Rules) -> None:
        self.rules, self.now = rules, 0
        self.counts: dict[object, Fraction] = {}
        self.bans: list[tuple[bytes, str | None, int]] = []
        self.known: set[tuple[bytes, str]] = set()

    def unit(self, key: object) -> int:
        """Milliseconds in which one failure is forgotten."""
        needed = self.rules.ban_origin_after if isinstance(key, bytes) else self.rules.ban_after
        return max(1, self.rules.ban_ms // (needed or 10))

    def go_on(self, pause_ms: int) -> None:
        self.now += pause_ms
        self.counts = {key: max(Fraction(0), count - Fraction(pause_ms, self.unit(key)))
                       for key, count in self.counts.items()}

    def banned(self, place: bytes, name: str) -> bool:
        standing = [(where, who) for where, who, until in self.bans if until > self.now and where == place]
        return (place, name) in standing or ((place, None) in standing and (place, name) not in self.known)

    def shut(self, place: bytes) -> bool:
        return any(where == place and who is None and until > self.now for where, who, until in self.bans) and not any(
            where == place for where, _ in self.known)

    def fail(self, place: bytes, name: str) -> tuple[int, set[str | None]]:
        counted = []
        is_banned = any(where == place and who is None and until > self.now for where, who, until in self.bans)
        for key in ((place, name), place, name):
            if key == place and is_banned:
                counted.append(Fraction(0))
                continue
            self.counts[key] = self.counts.get(key, Fraction(0)) + 1
            counted.append(-(-self.counts[key] // 1))
        of_pair, of_place, of_name = counted
        begun: set[str | None] = set()
        if 0 < self.rules.ban_after <= of_pair:
            begun.add(name)
            del self.counts[place, name]
        if 0 < self.rules.ban_origin_after <= of_place:
            begun.add(None)
            del self.counts[place]
        self.bans += [(place, who, self.now + self.rules.ban_ms) for who in begun]
        over = max(of_pair, of_place, 0 if (place, name) in self.known else of_name) - self.rules.delay_after
        delay = FIRST_DELAY_MS * 2 ** (over - 1) if over > 0 else 0
        return min(delay, self.rules.delay_max_ms), begun


@settings(max_examples=300)
@given(RULES, STEPS)
def test_the_machine_does_as_the_oracle(rules: Rules, steps: list[Step]) -> None:
    guesses, oracle = Guesses(rules, bytes(16)), Oracle(rules)
    begun = ended = 0
    for pause_ms, verb, place, name in steps:
        oracle.go_on(pause_ms)
        now = oracle.now
        ended += len(guesses.ended(now))
        if verb == "succeed":
            guesses.succeeded(place, name)
            oracle.known.add((place, name))
            oracle.counts.pop((place, name), None)
        elif verb.startswith("lift"):
            who = name if verb == "lift one" else None
            lifted = {ban.account for ban in guesses.lift(place, who)}
            standing = {each for where, each, until in oracle.bans if where == place and until > now}
            assert lifted == (standing if who is None else standing & {who})
            oracle.bans = [ban for ban in oracle.bans if ban[0] != place or ban[1] not in lifted]
            oracle.counts.pop(place, None)
            ended += len(lifted)
        elif not oracle.banned(place, name):
            failure = guesses.failed(place, name, now)
            delay, bans = oracle.fail(place, name)
            assert failure.delay_ms == delay
            assert {ban.account for ban in failure.bans} == bans
            assert all(ban.until_ms == now + rules.ban_ms and ban.origin == place for ban in failure.bans)
            begun += len(failure.bans)
        for where in (b"1", b"2"):
            assert guesses.shuts_out(where, now) == oracle.shut(where)
            for who in ("anna", "bert", ""):
                assert (guesses.banned(where, who, now) is not None) == oracle.banned(where, who)
        assert guesses.standing == len(list(guesses.bans(now))) == begun - ended
