"""The histories of the other files with many more seeds: `tox -e soak`."""
from __future__ import annotations

import pytest
from simulator.cluster.histories import KINDS

SEED_STEP = 1_000_000       # between the histories of one --seed and of the next
PARTS, EACH = 15, 200       # 60 000 of all kinds


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("name", KINDS)
def test_many(name: str, part: int, seed: int) -> None:
    first = seed * SEED_STEP + part * EACH
    for number in range(first, first + EACH):
        try:
            KINDS[name](number)
        except Exception as error:
            error.add_note(f"history {number} of {name!r}")
            raise
