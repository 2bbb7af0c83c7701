"""The seed of a history of brokers decides everything in it."""
from __future__ import annotations

import subprocess
import sys

import pytest
from kit.python import environment
from simulator.cluster import told
from simulator.cluster.told import HISTORIES

SEED_STEP = 1_000_000
COUNT, COUNT_LONG = 2, 20       # in a process more than one: later ones find what earlier ones have left behind


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("count", [COUNT, pytest.param(COUNT_LONG, marks=pytest.mark.soak)])
def test_a_seed_decides_everything(seed: int, count: int) -> None:
    """In two processes, with other hashes and addresses, and in another order."""
    numbers = [str(seed * SEED_STEP + number) for number in range(1, count + 1)]
    plays = [subprocess.Popen([sys.executable, told.__file__, *order], stdout=subprocess.PIPE, text=True,
                              env=environment(PYTHONHASHSEED=str(number)))
             for number, order in enumerate((numbers, numbers[::-1]))]
    first, second = (play.communicate()[0].split("\n\n") for play in plays)
    assert [play.returncode for play in plays] == [0, 0]
    assert len(first) == len(second) == count * len(HISTORIES) + 1
    for number in range(count):
        for kind in range(len(HISTORIES)):
            here = first[number * len(HISTORIES) + kind].split("\n")
            there = second[(count - 1 - number) * len(HISTORIES) + kind].split("\n")
            assert len(here) > 100
            assert here == there, f"history {numbers[number]} of {HISTORIES[kind].__name__}"
