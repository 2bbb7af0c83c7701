"""Histories of the whole broker, each from one seed (docs/internals/simulator.md)."""
from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from simulator.history import Failed, play
from simulator.play import keep

HERE = Path(__file__).resolve().parent
HISTORIES, EACH = 300, 50
SOAK, SOAK_EACH = 50_000, 1000
SEED_STEP = 1_000_000       # between the histories of one --seed and of the next


def histories(first: int, count: int) -> None:
    """Plays them; a failure is written down and told."""
    for seed in range(first, first + count):
        try:
            play(seed)
        except Failed as failed:
            pytest.fail(f"{failed}\n{keep(failed)}\npython tests/simulator/play.py {seed}", pytrace=False)


def test_seeds_that_once_failed() -> None:
    for line in (HERE / "seeds.txt").read_text().splitlines():
        if line and not line.startswith("#"):
            histories(int(line), 1)


@pytest.mark.parametrize("part", range(HISTORIES // EACH))
def test_histories(part: int, seed: int) -> None:
    histories(seed * SEED_STEP + part * EACH, EACH)


@pytest.mark.soak
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("part", range(SOAK // SOAK_EACH))
def test_many_histories(part: int, seed: int) -> None:
    """Each part in a process of its own: nodes that died stay in memory, in cycles that cannot be cleared."""
    first = seed * SEED_STEP + HISTORIES + part * SOAK_EACH
    played = subprocess.run([sys.executable, HERE / "play.py", str(first), "--count", str(SOAK_EACH)],
                            capture_output=True, text=True)
    assert played.returncode == 0, played.stdout + played.stderr


def test_a_seed_decides_everything(seed: int) -> None:
    """Also in another process, in which hashes and addresses are others."""
    first = seed * SEED_STEP
    traces = ["\n".join(play(first + number).trace) for number in range(5)]
    assert traces == ["\n".join(play(first + number).trace) for number in range(5)]
    for number, trace in enumerate(traces):
        again = subprocess.run([sys.executable, HERE / "play.py", str(first + number)], capture_output=True, text=True,
                               check=True, env=os.environ | {"PYTHONHASHSEED": str(number + 7)})
        assert again.stdout.removesuffix("\nnothing is wrong\n") == trace
