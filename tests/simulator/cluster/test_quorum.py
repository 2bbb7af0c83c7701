"""Brokers over etcd without quorum: histories, and defects that they must find."""
from __future__ import annotations

from typing import Any

import pytest
from simulator.cluster.quorum_history import Wrong, play

from fluxmq.cluster import quorum
from fluxmq.cluster.membership import Membership
from fluxmq.cluster.quorum import Quorum

SEED_STEP = 1_000_000


@pytest.mark.timeout(600)
def test_histories(seed: int) -> None:
    histories = [play(seed * SEED_STEP + part * 100 + number) for part in range(2) for number in range(5)]
    # They do something.
    counts = {name: sum(history.counts[name] for history in histories) for name in histories[0].counts}
    assert counts["fences"] > 5 and counts["outages"] + counts["cut off"] + counts["leaders"] > 3
    assert sum(len(history.kept) for history in histories) > 500


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("part", range(20))
def test_many_histories(part: int, seed: int) -> None:
    for number in range(200):
        play(seed * SEED_STEP + 10_000 + part * 1000 + number)


# ── the judge sees ───────────────────────────────────────────────────────────────────────────────────────────


def _serves_on_by_itself(self: Quorum, voters: frozenset[int]) -> float:
    """A node believes its own member alone, too, as if that were a majority."""
    watch = self._watch
    word = None if watch is None else self._words.get(watch.number)
    return max(CERTAIN(self, voters), -quorum.VALID_S if word is None else word.upto_s)


def _serves_on_with_a_leader(self: Quorum, voters: frozenset[int]) -> float:
    """Without quorum means: no renewal."""
    return self._clock_s()


def _never_fenced(self: Membership, sent_s: float, ttl_s: float) -> None:
    EXTEND(self, sent_s, 1e6)


async def _waits_not(self: Membership) -> None:
    pass


def _believes_old_words(self: Quorum, voters: frozenset[int]) -> float:
    """An answer is good for a second longer than takeovers wait."""
    return CERTAIN(self, voters) + 1.2


async def _renews_without_read(self: Membership) -> str:
    sent = self._clock_s()
    renewal = await self._store.renew(self.lease)
    if renewal.ttl_s > 0:
        self._extend(sent, renewal.ttl_s)
        return ""
    return "gone"


def _gives_up_at_once(self: Membership) -> bool:
    """A node without an answer in time gives its place up, instead of waiting for a late one."""
    return False


CERTAIN, EXTEND = Quorum._certain, Membership._extend
DEFECTS: list[tuple[type, str, Any]] = [
    (Quorum, "_certain", _serves_on_by_itself), (Quorum, "_certain", _serves_on_with_a_leader),
    (Membership, "_extend", _never_fenced), (Membership, "wait_takeover_delay", _waits_not),
    (Quorum, "_certain", _believes_old_words), (Membership, "_renew", _renews_without_read),
    (Membership, "may_return", property(_gives_up_at_once))]
NAMES = [getattr(defect, "fget", defect).__name__ for _, _, defect in DEFECTS]
FOUND_WITHIN = 300


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(("owner", "name", "defect"), DEFECTS, ids=NAMES)
def test_a_defect_is_found(seed: int, owner: type, name: str, defect: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(owner, name, defect)
    for number in range(FOUND_WITHIN):
        try:
            play(seed * SEED_STEP + number)
        except Wrong as wrong:
            print(number, str(wrong).partition("\n")[0])
            return
    pytest.fail(f"the defect is not found within {FOUND_WITHIN} histories")
