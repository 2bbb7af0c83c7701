"""What a running broker does in stories told by chance is found right; each change of what it did is found.

The stories are replayed at once one after the other against one broker, in this process, and judged by one job.
"""
from __future__ import annotations

import copy
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from kit import histories as kit
from kit.broker import Broker
from kit.stories import chance_story
from kit.story import events_of

from fluxmq.spark.replay.replaying import ReplayRequest, replay_here

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Rows = list[dict[str, Any]]
PICKS = 3               # changes of each kind
QUIET_S = 0.3           # that nothing comes any more at the end; the settling time, too
STORIES_LONG = 150

# Spark starts, and its first jobs are compiled, in the first test: of a machine with other work that takes minutes.
pytestmark = pytest.mark.timeout(500)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    one = Broker(tmp_path_factory.mktemp("broker"))
    one.start()
    yield one
    one.stop()
    one.check()


def replayed(broker: Broker, place: Path, seed: int, *, speed: float | None = None, **story: Any) -> Rows:
    name = f"{seed}-{speed}-{len(list(place.iterdir()))}"
    chance_story(seed, f"s{name}c", **story).write(place / f"{name}.rec")
    replay_here(ReplayRequest(recording=str(place / f"{name}.rec"), out=str(place / f"{name}.out"), speed=speed,
                              broker="{}:{}".format(*broker.address), quiet_s=QUIET_S))
    return events_of(place / f"{name}.out")


def judged(spark: SparkSession, histories: dict[str, Rows]) -> tuple[list[Any], dict[str, int]]:
    from fluxmq.spark.verify.violations import counts, judged, violations

    events = kit.frame(spark, histories)
    tables = judged(events, settle_ns=int(QUIET_S * 1e9))
    return violations(tables).collect(), counts(tables, events)


# ── changes ──────────────────────────────────────────────────────────────────────────────────────────────────
# Of calm stories without `$share` at full speed: every traced delivery of QoS 1 or 2 that is not retained had to be.


class Scene:
    def __init__(self, rows: Rows, chance: random.Random) -> None:
        self.rows, self.chance = copy.deepcopy(rows), chance
        self.published = {(row["client_number"], row["op"]): row for row in self.rows if row["event"] == "publish"}
        self.got = [row for row in self.rows if row["event"] == "delivery" and row["publisher"] is not None
                    and (row["publisher"], row["publisher_op"]) in self.published and not row["retain"]]
        self.got = [row for row in self.got if not (self.of(row)["retain"] or self.of(row)["detail"])]

    def of(self, delivery: dict[str, Any]) -> dict[str, Any]:
        return self.published[delivery["publisher"], delivery["publisher_op"]]

    def one(self, *qos: int) -> dict[str, Any]:
        return self.chance.choice([row for row in self.got if row["qos"] in qos])

    def more(self, delivery: dict[str, Any], **other: Any) -> None:
        self.rows.append(delivery | {"op": delivery["op"] + 10_000, "sent": delivery["sent"] + 1} | other)


def drop(scene: Scene) -> str:
    scene.rows.remove(scene.one(1, 2))
    return "must-missing"


def twice(scene: Scene) -> str:
    scene.more(scene.one(2))
    return "duplicate"


def twice_with_qos_0(scene: Scene) -> str:
    scene.more(scene.one(0))
    return "duplicate"


def other_qos(scene: Scene) -> str:
    row = scene.one(1, 2)
    row["qos"] = 3 - row["qos"]
    return "must-not-delivered"


def to_a_stranger(scene: Scene) -> str:
    there = {(row["publisher"], row["publisher_op"], row["client_number"]) for row in scene.rows
             if row["event"] == "delivery"}
    row, number = scene.chance.choice([
        (row, number) for row in scene.got for number in {row["client_number"] for row in scene.rows}
        if (row["publisher"], row["publisher_op"], number) not in there and scene.of(row)["qos"]])
    client = next(one["client"] for one in scene.rows if one["client_number"] == number)
    scene.more(row, client_number=number, client=client)
    return "must-not-delivered"


def swapped(scene: Scene) -> str:
    """Two neighbours of one stream."""
    streams: dict[tuple[Any, ...], Rows] = {}
    for row in scene.got:
        streams.setdefault((row["client_number"], row["publisher"], row["topic"], row["qos"], scene.of(row)["qos"]),
                           []).append(row)
    rows = scene.chance.choice([rows for rows in streams.values() if len(rows) > 1])
    at = scene.chance.randrange(len(rows) - 1)
    rows[at]["op"], rows[at + 1]["op"] = rows[at + 1]["op"], rows[at]["op"]
    return "order"


def other_size(scene: Scene) -> str:
    scene.one(0, 1, 2)["size"] += 1
    return "must-not-delivered"


def other_topic(scene: Scene) -> str:
    scene.one(0, 1, 2)["topic"] += "x"
    return "must-not-delivered"


def other_trace(scene: Scene) -> str:
    scene.one(0, 1, 2)["publisher_op"] += 100_000
    return "must-not-delivered"


CHANGES: list[Callable[[Scene], str]] = [drop, twice, twice_with_qos_0, other_qos, to_a_stranger, swapped, other_size,
                                         other_topic, other_trace]


def look(spark: SparkSession, broker: Broker, place: Path, seeds: list[int]) -> None:
    """All stories of the seeds, restless and calm, slow and fast, and changes of the calm ones."""
    histories: dict[str, Rows] = {}
    wanted: dict[str, str] = {}
    for seed in seeds:
        histories[f"{seed} fast"] = replayed(broker, place, seed)
        histories[f"{seed} timed"] = replayed(broker, place, seed, speed=1000.0)
        histories[f"{seed} calm"] = replayed(broker, place, seed, calm=True)
        plain = histories[f"{seed} plain"] = replayed(broker, place, seed, calm=True, shared=0.0)
        for change in CHANGES:
            for pick in range(PICKS):
                name = f"{seed} {change.__name__} {pick}"
                scene = Scene(plain, random.Random(name))
                wanted[name] = change(scene)
                histories[name] = scene.rows
    rows, counted = judged(spark, histories)
    wrong = [row for row in rows if row.run not in wanted]
    assert not wrong, wrong[0]
    found = {(row.run, row.kind) for row in rows}
    assert not [name for name, kind in wanted.items() if (name, kind) not in found]
    assert counted["must"] > 1000 and counted["group_must"] > 10


def test_stories_by_chance(spark: SparkSession, broker: Broker, tmp_path: Path) -> None:
    look(spark, broker, tmp_path, [1, 2])


@pytest.mark.soak
@pytest.mark.timeout(7200)
def test_many_stories_by_chance(spark: SparkSession, broker: Broker, tmp_path: Path, seed: int) -> None:
    for first in range(1000 * seed, 1000 * seed + STORIES_LONG, 10):
        (tmp_path / str(first)).mkdir()
        look(spark, broker, tmp_path / str(first), list(range(first, first + 10)))
