"""Raft's state machine (_core/raft) among replicas that end, disks that lose what was not synced, and a network that
loses, repeats and overtakes. What must hold is checked after every step (kit/raft); in the end everything works again,
and everybody gets everything."""
from __future__ import annotations

from collections import Counter

import pytest
from kit.raft import World
from kit.sizes import some

SIZES = (3, 5, 3, 2, 1)
STEPS = 5000


def play(seed: int) -> World:
    world = World(seed, SIZES[seed % len(SIZES)], spare=seed % 3)
    for _ in range(STEPS):
        world.step(changes=seed % 2 == 0)
    world.settle()
    return world


@pytest.mark.parametrize("part", some(12, range(500)))
def test_what_is_committed_stays(part: int) -> None:
    """Forty worlds each: a failure names its seed."""
    seen: Counter[str] = Counter()
    for seed in range(40 * part, 40 * part + 40):
        try:
            seen += play(seed).seen
        except Exception as error:
            error.add_note(f"seed {seed}")
            raise
    # Otherwise the worlds would be too quiet to prove anything.
    assert min(seen[what] for what in ("terms", "killed", "copied", "members", "transfers", "cuts")) >= 3, seen
