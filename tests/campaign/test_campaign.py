"""The campaign (play.py) for a while, and that its books see what is wrong."""
from __future__ import annotations

from collections import Counter
from itertools import islice
from pathlib import Path
from random import Random

import pytest
from campaign.books import Findings, disordered, missing, repeated
from campaign.faults import PROXIED, SPACED, Fault
from campaign.rounds import Campaign, Round, deck, summary


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_nothing_acknowledged_is_lost(tmp_path: Path, seed: int) -> None:
    """Each fault twice."""
    played = Campaign(tmp_path, seed, ttl_s=4).play(2 * len(PROXIED), lambda one: print(one.line()))
    wrong = [line for one in played if one.found for line in (one.line(), *one.found.told)]
    assert not wrong, "\n".join([*wrong, summary(played, seed)])


def test_the_books_see_what_is_wrong() -> None:
    sent = [b"p 1", b"p 2", b"p 3", b"p 4"]
    assert missing(sent, [b"p 4", b"p 1", b"p 2"]) == [b"p 3"]
    assert repeated([b"p 1", b"p 1", b"p 2", b"x"], Counter(sent)) == [b"p 1", b"x"]
    assert repeated([b"p 1", b"p 1"], Counter({b"p 1": 2})) == []
    assert disordered(sent, [b"p 1", b"p 3", b"p 2", b"p 3", b"p 4", b"p 1", b"x"]) == [b"p 2"]
    assert disordered(sent, [b"p 2", b"p 4"]) == []


def test_what_a_dead_node_excuses_is_counted_apart() -> None:
    found = Findings()
    found.note("lost", [], "anywhere")
    found.note("repeated", [b"p 1"], "from p to s", excused=True)
    assert not found and found.told == [] and found.excused == {"repeated": 1}
    found.note("lost", [b"p %d" % number for number in range(7)], "from p to s")
    assert found and found.told == ["lost: 7 from p to s: p 0, p 1, p 2, p 3, p 4, …"]
    one = Round(3, "kill", "kill -9 of n1", 700, 200, 12.3, found)
    assert one.line() == ("round 3: kill -9 of n1: 700 publishes acknowledged, 200 confirms; 7 lost (1 excused); "
                          "12 s")
    well = Round(4, "still", "n0 stands still", 100, 0, 3.0)
    assert "; ok; 3 s" in well.line()
    said = summary([one, well], 9).splitlines()
    assert said[0] == "2 rounds with seed 9: 800 publishes acknowledged, 200 confirms"
    assert said[1:] == ["kill 1, still 1", "7 lost, 0 repeated, 0 out of order, 0 wills missing, 0 retained wrong, 0 "
                        "stale, 0 births undone, 0 sessions lost, 0 stuck, 0 accidents", "wrong: rounds 3"]


@pytest.mark.parametrize("faults", [PROXIED, SPACED], ids=["proxies", "namespaces"])
def test_each_fault_has_its_turn(faults: dict[str, Fault]) -> None:
    drawn = list(islice(deck(Random(1), tuple(faults)), 2 * len(faults)))
    assert set(drawn[:len(faults)]) == set(drawn[len(faults):]) == set(faults)
    assert drawn == list(islice(deck(Random(1), tuple(faults)), 2 * len(faults)))
