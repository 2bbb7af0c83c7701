"""Every system call of journal, segments, reserve and view fails once, at the first start, at a start, under load, in a
checkpoint and at the stop; then the broker is killed, loses power, or stops, and starts again. Nothing that was
confirmed is lost: points of all kinds, some of each, and in `tox -e soak` 2 000, in one process over a disk that errs
(points.py, kit/faultydisk.c).

    pytest tests/faults/test_points.py --point checkpoint:pwrite:segment:1:EIO/power --seed 1
"""
from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from faults.planted import DEFECTS
from faults.table import TABLE, table, table_of_flips
from kit.faultydisk import FaultyDisk
from kit.powercut import PowerCut
from kit.python import TESTS, environment

Record = Callable[[str, object], None]
POINTS, POINTS_LONG = 312, 2000         # of 311 kinds: phase, call, kind of file and error; each has one at least
FLIPS = 60
PLANTED_ROUNDS = 20
PARTS = 4                   # run side by side: a point waits for threads of RocksDB and the journal half of its time
SECONDS_MAX = 1500          # of a machine that is busy with other things
PROGRAM = Path(__file__).with_name("points.py")


@pytest.fixture
def base() -> Iterator[Path]:
    """In memory: nothing here asks a medium."""
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None) as directory:
        yield Path(directory)


class Child:
    """points.py, in a directory of its own; what it says goes to a file, so that it never waits for us."""

    def __init__(self, base: Path, seed: int, *what: str) -> None:
        base.mkdir(parents=True)
        cut, disk = PowerCut(base), FaultyDisk(base)
        libraries = [disk.env["LD_PRELOAD"], str(cut.library)]     # a sync that fails has not happened on the medium
        env = environment(TESTS, **cut.env | disk.env | {"LD_PRELOAD": " ".join(libraries)})
        self.told, self.errors = base / "told", base / "errors"
        with self.told.open("wb") as told, self.errors.open("wb") as errors:
            self.process = subprocess.Popen([sys.executable, str(PROGRAM), str(base), str(seed), *what], env=env,
                                            stdout=told, stderr=errors)

    def results(self) -> list[dict[str, Any]]:
        """What it says of each point, at its end."""
        assert self.process.wait() == 0, self.errors.read_text()[-5000:]
        return [json.loads(line) for line in self.told.read_text().splitlines()]

    def stop(self) -> None:
        self.process.kill()
        self.process.wait()


def run(base: Path, seed: int, *whats: tuple[str, ...]) -> list[dict[str, Any]]:
    """What children say that run side by side, each with the words of its own."""
    children = [Child(base / str(number), seed, *what) for number, what in enumerate(whats)]
    try:
        return [told for child in children for told in child.results()]
    finally:
        for child in children:
            child.stop()


@pytest.mark.timeout(SECONDS_MAX)
@pytest.mark.parametrize("points", [POINTS, pytest.param(POINTS_LONG, marks=pytest.mark.soak)])
def test_every_call_fails_once(base: Path, record_property: Record, pytestconfig: pytest.Config, points: int) -> None:
    seed, only = pytestconfig.getoption("--seed"), pytestconfig.getoption("--point")
    whats = [(only,)] if only else [(str(points // PARTS), f"{part}/{PARTS}") for part in range(PARTS)]
    results = [told for told in run(base, seed, *whats) if "point" in told]
    record_property(TABLE, f"{len(results)} points in one process, seed {seed}\n\n{table(results)}")
    wrong = [told for told in results if told["outcome"] == "WRONG"]
    for told in wrong:
        print(f"pytest {Path(__file__).name} --seed {seed} --point {told['point']}\n    {told['text']}")
    assert not wrong, f"{len(wrong)} points"
    fired = sum(bool(told["fired"]) for told in results)
    assert fired >= (1 if only else points), f"only {fired} points came"


@pytest.mark.timeout(SECONDS_MAX)
def test_planted_defects_are_found(base: Path) -> None:
    """The points see what they are there to see: planted.py says which defects these are. What a sync that fails had to
    bring is up to threads, so one round over the points where a defect could show may miss it."""
    for defect in DEFECTS:
        place = base / defect.replace(" ", "-")
        assert any(told["fired"] and told["outcome"] == "WRONG" for seed in range(1, PLANTED_ROUNDS + 1)
                   for told in run(place / str(seed), seed, (f"planted={defect}",))), defect


@pytest.mark.timeout(SECONDS_MAX)
def test_every_flipped_bit_is_harmless_or_repaired(base: Path, record_property: Record,
                                                   pytestconfig: pytest.Config) -> None:
    seed = pytestconfig.getoption("--seed")
    results = run(base, seed, (f"flips={FLIPS}",))
    print("\n".join(f"{told['outcome']:<9} {told['flip']}" for told in results))
    record_property(TABLE, f"{len(results)} flipped bits, seed {seed}\n\n{table_of_flips(results)}")
    assert [told for told in results if told["outcome"] == "WRONG"] == []
    assert {told["outcome"] for told in results} >= {"unharmed", "repaired"}


@pytest.mark.timeout(SECONDS_MAX)
def test_no_file_that_is_gone_is_a_silent_loss(base: Path, record_property: Record,
                                               pytestconfig: pytest.Config) -> None:
    results = run(base, pytestconfig.getoption("--seed"), ("gone",))
    print("\n".join(f"{told['outcome']:<9} {told['flip']}" for told in results))
    record_property(TABLE, f"{len(results)} files that are gone\n\n{table_of_flips(results, 'gone from')}")
    assert [told for told in results if told["outcome"] == "WRONG"] == []
    by_folder = {told["flip"].partition("/")[0]: told["outcome"] for told in results}
    assert by_folder["queues"] == by_folder["state"] == "repaired" and "journal" in by_folder
