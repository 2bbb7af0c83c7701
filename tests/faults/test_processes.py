"""As test_points.py, with brokers that are processes of their own: some points of all kinds, and in `tox -e soak` every
call of the story with every error.

    pytest tests/faults/test_processes.py --point checkpoint:pwrite:segment:1:EIO/power --seed 1
"""
from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from faults.processes import ProcessRunner
from faults.table import TABLE, table
from kit.faultydisk import Point

Record = Callable[[str, object], None]
POINTS = 30
MORE = 1.2                  # some points do not come: threads do not always do the same
SECONDS_MAX = 1500          # of a machine that is busy with other things
HOURS = 3600.0


@pytest.fixture
def runner(pytestconfig: pytest.Config) -> Iterator[ProcessRunner]:
    """In memory: nothing here asks a medium."""
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None) as directory:
        runner = ProcessRunner(Path(directory), pytestconfig.getoption("--seed"))
        yield runner
        runner.close()


def judge(results: Iterable[dict[str, Any]], seed: int, wanted: int, record: Record) -> None:
    found = list(results)
    record(TABLE, f"{len(found)} points with processes, seed {seed}\n\n{table(found)}")
    wrong = [told for told in found if told["outcome"] == "WRONG"]
    for told in wrong:
        print(f"pytest {Path(__file__).name} --seed {seed} --point {told['point']}\n    {told['text']}")
    assert not wrong, f"{len(wrong)} points"
    fired = sum(bool(told["fired"]) for told in found)
    assert fired >= wanted, f"only {fired} points came"


def each(runner: ProcessRunner, points: Iterable[tuple[Point, str]]) -> Iterator[dict[str, Any]]:
    for point, how in points:
        yield runner.run(point, how, point.phase == "first start")


@pytest.mark.timeout(SECONDS_MAX)
def test_some_calls_fail_once(runner: ProcessRunner, record_property: Record, pytestconfig: pytest.Config) -> None:
    seed, only = pytestconfig.getoption("--seed"), pytestconfig.getoption("--point")
    if only:
        point, _, how = only.partition("/")
        judge(each(runner, [(Point.read(point), how)]), seed, 1, record_property)
        return
    judge(each(runner, runner.chosen(int(POINTS * MORE))), seed, POINTS, record_property)


@pytest.mark.soak
@pytest.mark.timeout(12 * HOURS)
def test_every_call_fails_once(runner: ProcessRunner, record_property: Record, pytestconfig: pytest.Config) -> None:
    seed = pytestconfig.getoption("--seed")
    points = runner.chosen(1 << 30)
    ends: dict[Point, list[str]] = {}
    for point, how in points:
        ends.setdefault(point, []).append(how)
    once = [(point, hows[0]) for point, hows in ends.items()]       # each with one end, drawn by the seed
    judge(each(runner, once), seed, len(once) * 9 // 10, record_property)
