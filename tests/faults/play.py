"""One point, from the first start to the verdict; with a broker in this process or in one of its own."""
from __future__ import annotations

import random
import traceback
from collections.abc import Callable
from typing import Any, Protocol

from faults.story import Ended, Host, Refused, Story, Wrong
from kit.faultydisk import FaultyDisk, Point, points_of

__all__ = ["Stage", "all_points", "chosen", "loses_power", "play"]

# stop+power: the machine loses power when the broker has stopped. kill+power: it does when the broker has started
# again, on a disk that is well, and read what the page cache has; what a sync that failed has dropped is not on the
# medium.
ENDS = ("kill", "power", "torn", "stop", "kill+power")
ENDS_OF_STOP = ("stop", "stop+power", "stop+torn")
CHECKPOINT_MORE = 0.2       # how often a restart takes one before the verdict: what was done wrong may show then only
CHECKPOINT_LAST = 0.5       # behind a point that lies before it
RESERVE_TURNS = 60          # after the first start the clock ticks, and space is reserved
CHECKPOINT_BETWEEN = 0.5    # of the kill and the loss of power: then the journal goes
PLACES = {"journal": "data/journal", "segment": "data/queues", "view": "data/state"}


class Stage(Host, Protocol):
    """A host on whose disk a point is played."""

    disk: FaultyDisk

    def stop(self) -> str:
        """As SIGTERM does. Returns what it complained of, "" if of nothing."""

    def crash(self, how: str, chance: random.Random) -> None:
        """Takes it down and leaves what a kill, or a loss of power, would leave at this instant."""


def play(stage: Stage, story: Story, point: Point | None, how: str, seed: int, first: bool) -> dict[str, Any]:
    """What became of it, for table.py. first: the broker finds nothing, instead of what `story` has prepared."""
    told: dict[str, Any] = {"point": f"{point}/{how}", "fired": "", "outcome": "unharmed", "text": ""}
    chance = random.Random(f"{seed} {point} {how}")
    story.host = stage
    stage.disk.phase = ""
    stage.disk.arm(point)
    try:
        _live(stage, story, point, how, chance, told, first)
        stage.disk.phase = ""
        _check_text(point, told)
        _restart(stage, story, chance)
    except Exception as error:
        text = str(error) if isinstance(error, Wrong) else traceback.format_exc()
        told["outcome"], told["text"] = "WRONG", f"{told['text']} | {text}"
    finally:
        stage.disk.phase = ""
        story.hang_up()
        told["fired"] = stage.disk.fired
    return told


def all_points(disk: FaultyDisk, run: Callable[[None, str, bool], dict[str, Any]]) -> list[Point]:
    """Those of the story, which `run` plays without any: (no point, its end, whether the broker finds nothing)."""
    counts: dict[tuple[str, str, str], int] = {}
    for first in (True, False):
        told = run(None, "stop", first)
        assert told["outcome"] == "unharmed", told
        counts |= disk.counts()
    return list(points_of(counts))


def loses_power(how: str) -> bool:
    """Whether this end asks what the medium has."""
    return how.endswith(("power", "torn"))


def _live(stage: Stage, story: Story, point: Point | None, how: str, chance: random.Random, told: dict[str, Any],
          first: bool) -> None:
    disk = stage.disk
    disk.phase = "first start" if first else "start"
    try:
        stage.start()
    except Refused as refused:
        told["outcome"], told["text"] = "refused", str(refused)
        disk.phase = ""
        stage.start()
    try:
        if first:
            for _ in range(RESERVE_TURNS):
                stage.turn()
            disk.phase = ""
            story.prepare()
        disk.phase = "load"
        story.load()
        # What is wrong with the journal shows only while it is needed.
        if point is None or point.phase in ("checkpoint", "stop") or chance.random() < CHECKPOINT_LAST:
            disk.phase = "checkpoint"
            story.checkpoint()
        story.hang_up()
    except Ended as ended:
        told["outcome"], told["text"] = "ended", str(ended)
    disk.phase = "stop"
    how, _, after = how.partition("+")
    if how == "stop" or (told["outcome"] == "ended" and chance.random() < 0.5):
        said = stage.stop()
        if said and told["outcome"] == "unharmed":
            told["outcome"], told["text"] = "ended", said
        disk.phase = ""
        if after or how != "stop":
            stage.crash(after or how, chance)
    else:
        disk.phase = ""
        stage.crash(how, chance)
        if after:
            story.hang_up()
            stage.start()
            story.round()
            if chance.random() < CHECKPOINT_BETWEEN:
                story.checkpoint()
            stage.crash(after, chance)
    story.hang_up()


def _check_text(point: Point | None, told: dict[str, Any]) -> None:
    """Whoever reads it knows where to look."""
    if point is None or told["outcome"] not in ("ended", "refused"):
        return
    if PLACES.get(point.kind, "data") not in told["text"]:
        raise Wrong("that names no file")


def _restart(stage: Stage, story: Story, chance: random.Random) -> None:
    stage.start()
    if chance.random() < CHECKPOINT_MORE:
        story.round()
        story.checkpoint()
        stage.crash("kill", chance)
        story.hang_up()
        stage.start()
    story.verdict()


def chosen(points: list[Point], wanted: int, chance: random.Random) -> list[tuple[Point, str]]:
    """So many of them, each with an end, from every kind in turn: a call in a phase on a kind of file, with its error.
    """
    kinds: dict[tuple[str, ...], list[tuple[Point, str]]] = {}
    for point in points:
        kind = kinds.setdefault((point.phase, point.call, point.kind, point.error), [])
        kind += [(point, how) for how in (ENDS_OF_STOP if point.phase == "stop" else ENDS)]
    names = sorted(kinds)
    chance.shuffle(names)
    for each in names:
        chance.shuffle(kinds[each])
    taken: list[tuple[Point, str]] = []
    while len(taken) < wanted and names:
        taken += [kinds[name].pop() for name in names]
        names = [name for name in names if kinds[name]]
    return taken[:wanted]
