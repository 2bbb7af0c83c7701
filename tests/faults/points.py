"""Runs stories on a disk that errs, thousands of them in this process, which has the libraries preloaded
(tests/faults/test_points.py starts it).

    points.py BASE SEED COUNT PART/PARTS
                                    points of this part of them, of all kinds, until so many have come: a line of JSON
                                    for each
    points.py BASE SEED ID          this one
    points.py BASE SEED planted=NAME
                                    points at which a broker with this defect might fail (planted.py); whole=NAME: one
                                    without it
    points.py BASE SEED flips=COUNT so many files of which a bit has changed (flips.py)
    points.py BASE SEED gone        each file, of which nothing is left
"""
from __future__ import annotations

import copy
import json
import random
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from faults.flips import FILES, files_of, flip, outcome_of, take_away
from faults.hosts import LocalHost, QuickLoop, prepare_process, settle
from faults.planted import DEFECTS, plant, suspected
from faults.play import all_points, chosen, loses_power, play
from faults.story import Story
from kit.faultydisk import FaultyDisk, Point
from kit.powercut import PowerCut

MORE = 1.25                 # drawn for each that is wanted: some do not come, threads do not always do the same


class Runner:
    """All points of one process. base: the directory of both libraries."""

    def __init__(self, base: Path, seed: int) -> None:
        prepare_process()
        self.base, self.seed = base, seed
        self.disk = FaultyDisk(base, base / "faultydisk.control")
        self.disk.hurry(5)
        self.cut = PowerCut(base)
        self.live = self.cut.live
        self.loop = QuickLoop()
        self.lives = 0
        self.prepared = Story()
        self.template = base / "template"
        self._prepare()

    def host(self, cut: bool) -> LocalHost:
        self.lives += 1
        place = self.live / str(self.lives)
        return LocalHost(self.loop, place, self.disk, self.cut if cut else None)

    def _prepare(self) -> None:
        host = self.prepared.host = self.host(False)
        host.place.mkdir()
        host.start()
        self.prepared.prepare()
        host.crash("kill", random.Random(0))
        self.prepared.hang_up()
        del self.prepared.host          # a copy of the story finds another
        host.place.rename(self.template)

    def run(self, point: Point | None, how: str, first: bool = False) -> dict[str, Any]:
        """first: a broker that finds nothing."""
        self.cut.forget()
        self.cut.rest(not loses_power(how))
        host = self.host(loses_power(how))
        if first:
            host.place.mkdir()
        else:
            shutil.copytree(self.template, host.place)
        if host.cut is not None:
            settle(host.place)
        try:
            return play(host, Story() if first else copy.deepcopy(self.prepared), point, how, self.seed, first)
        finally:
            host.stop()
            for place in self.live.iterdir():
                shutil.rmtree(place)

    def everything(self) -> list[Point]:
        return all_points(self.disk, self.run)

    def flip(self, number: int) -> dict[str, Any]:
        """Number so many of the seed, on what the prepared broker left."""
        chance = random.Random(f"{self.seed} flip {number}")
        kind = sorted(FILES)[number % len(FILES)]
        return self._changed(kind, lambda data: flip(data, kind, chance))

    def gone(self) -> Iterator[dict[str, Any]]:
        """Each file of what the prepared broker left."""
        data = self.template / "data"
        for kind in FILES:
            for path in files_of(data, kind):
                name = path.relative_to(data)
                yield self._changed(kind, lambda data, kind=kind, name=name: take_away(data / name, data, kind))

    def _changed(self, kind: str, change: Callable[[Path], tuple[str, set[int] | None]]) -> dict[str, Any]:
        host = self.host(False)
        shutil.copytree(self.template, host.place)
        changed, there = change(host.place / "data")
        told = outcome_of(host, copy.deepcopy(self.prepared), kind, changed, there)
        shutil.rmtree(host.place)
        return told


def main() -> None:
    base, seed, wanted = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    runner = Runner(base, seed)
    wanted_fired = 0
    if wanted.startswith("flips="):
        for number in range(int(wanted.removeprefix("flips="))):
            print(json.dumps(runner.flip(number)), flush=True)
        return
    if wanted == "gone":
        for told in runner.gone():
            print(json.dumps(told), flush=True)
        return
    verb, _, defect = wanted.partition("=")
    if defect in DEFECTS:
        points = suspected(runner.everything, defect)
        if verb == "planted":
            plant(defect)
    elif wanted.isdigit():
        part, parts = map(int, sys.argv[4].split("/"))
        everything = runner.everything()
        wanted_fired = int(wanted)
        # Of the same list in each process: so that the parts have together what is asked for of each kind.
        points = chosen(everything, int(wanted_fired * parts * MORE), random.Random(seed))[part::parts]
        print(json.dumps({"points": len(everything), "chosen": len(points)}), flush=True)
    else:
        point, _, how = wanted.partition("/")
        points = [(Point.read(point), how)]
    fired = 0
    for point, how in points:
        told = runner.run(point, how, point.phase == "first start")
        print(json.dumps(told), flush=True)
        fired += bool(told["fired"])
        if wanted_fired and fired == wanted_fired:
            return


if __name__ == "__main__":
    main()
