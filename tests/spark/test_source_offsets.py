"""Offsets of streams, without Spark around them: shares of a trigger, what is new, what is gone."""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from kit.source import QueueBroker
from kit.tools import missing_tool

try:
    from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

    from fluxmq.spark.source.columns import SCHEMA, SourceError
    from fluxmq.spark.source.data_source import FluxDataSource
    from fluxmq.spark.source.place import LogRange, QueueLog, QueueLogs
    from fluxmq.spark.source.stream import FluxStreamReader
except ImportError:
    missing_tool("PySpark is not installed (pip install '.[spark]')")

Start = Callable[..., QueueBroker]
ALL = ReadAllAvailable()


def reader(world: QueueBroker, **options: object) -> FluxStreamReader:
    given = {"admin": world.socket} | {name: str(value) for name, value in options.items()}
    made = FluxDataSource(given).streamReader(SCHEMA)
    assert isinstance(made, FluxStreamReader)
    return made


def batch(made: FluxStreamReader, start: dict[str, Any], end: dict[str, Any]) -> list[int]:
    """The numbers that a batch holds."""
    return sorted(int(row["payload"]) for part in made.partitions(start, end) for found in made.read(part)
                  for row in found.to_pylist())


def test_each_partition_has_its_share(start_queues: Start) -> None:
    world = start_queues({"name": "s", "type": "stream", "partitions": 3})
    world.put("s", 90, user_properties=lambda n: [["partition-key", "a"]] if n < 60 else [])
    made = reader(world, queue="s", maxMessagesPerTrigger=20)
    limit = made.getDefaultReadLimit()
    assert limit == ReadMaxRows(20)
    start, found = made.initialOffset(), []
    while (end := made.latestOffset(start, limit)) != start:
        numbers = batch(made, start, end)
        assert 0 < len(numbers) <= 20
        found += numbers
        start = end
    assert sorted(found) == list(range(90))
    assert batch(made, start, start) == []
    assert made.latestOffset(made.initialOffset(), ALL) == start, "a trigger may want all"


def test_a_batch_that_is_run_again_is_cut_as_it_was(start_queues: Start) -> None:
    world = start_queues({"name": "s", "type": "stream", "partitions": 2})
    world.put("s", 100)
    made = reader(world, queue="s", minPartitions=5)
    start = made.initialOffset()
    end = made.latestOffset(start, ALL)

    def cuts() -> list[tuple[int, int, int]]:
        return [(part.log.partition, part.start, part.end) for part in made.partitions(start, end)
                if isinstance(part, LogRange)]

    before = cuts()
    assert len(before) == 6, "three of each"
    world.put("s", 1000, 100, user_properties=[["pad", "x" * 3000]])
    assert cuts() == before


def test_a_new_queue_and_one_made_again(start_queues: Start) -> None:
    world = start_queues()
    admin = world.admin
    admin.ask("PUT", "queues", "s-1", body={"type": "stream"})
    world.put("s-1", 10)
    made, lax = reader(world, queue="s-*"), reader(world, queue="s-*", failOnDataLoss=False)
    first = made.latestOffset(made.initialOffset(), ALL)
    admin.ask("PUT", "queues", "s-2", body={"type": "stream"})
    world.put("s-2", 5, 100)
    second = made.latestOffset(first, ALL)
    assert batch(made, first, second) == list(range(100, 105))
    assert made.latestOffset(second, ALL) == second and batch(made, second, second) == []
    admin.ask("DELETE", "queues", "s-1")
    admin.ask("PUT", "queues", "s-1", body={"type": "stream"})
    world.put("s-1", 3, 200)
    with pytest.raises(SourceError, match="queue s-1 was deleted and made again since it was read"):
        made.latestOffset(second, ALL)
    third = lax.latestOffset(second, ALL)
    assert batch(lax, second, third) == [200, 201, 202]
    assert lax.latestOffset(third, ALL) == third


@pytest.mark.parametrize("kind", ["admin", "logs"])
def test_a_queue_that_is_deleted(start_queues: Start, kind: str) -> None:
    """Also one that a pattern matched, and also between the planning of a batch and its running."""
    world = start_queues({"name": "s-1", "type": "stream"})
    admin = world.admin
    admin.ask("PUT", "queues", "s-2", body={"type": "stream"})
    world.put("s-1", 10)
    world.put("s-2", 5, 100)
    place = {"admin": world.socket} if kind == "admin" else {"admin": "", "logs": world.data}
    strict, lax = reader(world, queue="s-*", **place), reader(world, queue="s-*", failOnDataLoss=False, **place)
    start = strict.initialOffset()
    end = strict.latestOffset(start, ALL)
    admin.ask("DELETE", "queues", "s-2")
    for call in (lambda: strict.latestOffset(start, ALL), lambda: strict.partitions(start, end)):
        with pytest.raises(SourceError, match=r"queue s-2 was deleted .* \(.*there is no queue s-2"):
            call()
    assert batch(lax, start, end) == list(range(10))
    after = lax.latestOffset(start, ALL)
    assert set(after) == {"s-1"} and batch(lax, start, after) == list(range(10))
    named = reader(world, queue="s-1,s-2", failOnDataLoss=False, **place)
    named.prepareForTriggerAvailableNow()
    assert batch(named, start, named.latestOffset(start, ALL)) == list(range(10))
    admin.ask("PUT", "queues", "s-2", body={"type": "stream"})
    world.put("s-2", 3, 200)
    assert batch(lax, after, lax.latestOffset(after, ALL)) == [200, 201, 202]
    other = reader(world, queue="s-1", **place)
    assert set(other.latestOffset(end, ALL)) == {"s-1", "s-2"}, "the option was changed: that is no loss"


def test_a_trigger_reads_what_was_there_when_it_began(start_queues: Start) -> None:
    world = start_queues({"name": "s-1", "type": "stream"})
    world.put("s-1", 10)
    made = reader(world, queue="s-*")
    start = made.initialOffset()
    made.prepareForTriggerAvailableNow()
    world.put("s-1", 10, 10)
    world.admin.ask("PUT", "queues", "s-2", body={"type": "stream"})
    world.put("s-2", 10, 20)
    end = made.latestOffset(start, ALL)
    assert batch(made, start, end) == list(range(10))
    assert made.latestOffset(end, ALL) == end
    again = reader(world, queue="s-*")
    assert batch(again, end, again.latestOffset(end, ALL)) == list(range(10, 30))


def test_where_a_stream_begins(start_queues: Start) -> None:
    world = start_queues({"name": "s", "type": "stream"})
    world.put("s", 10)
    time = world.browse("s")[-1]["time_ms"]
    for options, wanted in (({"startingOffsets": "latest"}, 10), ({"startingOffsets": '{"0": 4}'}, 4), ({}, 0),
                            ({"startingTimestamp": time + 1}, 10)):
        made = reader(world, queue="s", **options)
        assert made.initialOffset()["s"]["0"]["next"] == wanted
    with pytest.raises(SourceError, match="offset 11 of partition 0 of queue s is not there; there are 0 to 10"):
        reader(world, queue="s", startingOffsets='{"0": 11}').initialOffset()


def test_a_classic_queue_whose_consumers_are_ahead(start_queues: Start) -> None:
    """What they settled is no loss."""
    world = start_queues({"name": "c"})
    world.put("c", 10)
    made = reader(world, queue="c")
    start = made.initialOffset()
    world.admin.ask("POST", "queues", "c", "purge")
    world.put("c", 5, 10)
    end = made.latestOffset(start, ALL)
    assert batch(made, start, end) == list(range(10, 15))
    assert "lost" not in end["c"]["0"]


def test_storage_that_is_an_older_copy(start_queues: Start) -> None:
    world = start_queues({"name": "s", "type": "stream"})
    world.put("s", 10)
    made, lax = reader(world, queue="s"), reader(world, queue="s", failOnDataLoss=False)
    start = made.initialOffset()
    start["s"]["0"]["next"] = 25
    with pytest.raises(SourceError, match="ends at offset 10 of partition 0, but the query has read up to 25"):
        made.latestOffset(start, ALL)
    assert batch(lax, start, lax.latestOffset(start, ALL)) == []


class Shelf:
    """A place with one queue: what a node of a cluster says of its log."""

    number, identity, next = 5, "", 10

    def names(self) -> list[str]:
        return ["q"]

    def logs(self, queue: str, time_ms: int | None = None) -> QueueLogs:
        return QueueLogs(queue, "stream", [QueueLog(0, 0, self.number, 0, self.next, 100, None, self.identity)])

    def extra(self, queue: QueueLogs, log: QueueLog, start: int, end: int) -> None:
        """Nothing."""


@pytest.mark.parametrize(("before", "after", "same"), [
    ((5, "a"), (5, "a"), True), ((5, "a"), (9, "a"), True), ((5, "a"), (5, "b"), False), ((5, "a"), (9, "b"), False),
    ((5, ""), (5, ""), True), ((5, ""), (9, ""), False), ((5, ""), (5, "a"), True), ((5, ""), (9, "a"), False),
    ((5, "a"), (5, ""), True), ((5, "a"), (9, ""), False)])
def test_a_log_is_known_by_the_identity_of_its_queue(before: tuple[int, str], after: tuple[int, str],
                                                     same: bool) -> None:
    """Or by its number, where one of the two has no identity: a node by itself that became one of a cluster."""
    shelf = Shelf()
    made = FluxDataSource({"queue": "q", "admin": "nowhere"}).streamReader(SCHEMA)
    assert isinstance(made, FluxStreamReader)
    made.place = shelf  # type: ignore[assignment]
    shelf.number, shelf.identity = before
    start = made.initialOffset()
    end = made.latestOffset(start, ALL)
    shelf.number, shelf.identity = after
    shelf.next = 15
    if same:
        (part,) = made.partitions(start, end)
        assert isinstance(part, LogRange) and (part.start, part.end) == (0, 10)
        following = made.latestOffset(end, ALL)
        named = {"log": f"{after[0]:016x}"} | ({"queue": after[1]} if after[1] else {})
        assert following["q"]["0"] == named | {"next": 15}
        (part,) = made.partitions(end, following)
        assert isinstance(part, LogRange) and (part.start, part.end) == (10, 15)
        return
    with pytest.raises(SourceError, match="deleted and made again while it was read"):
        made.partitions(start, end)
    with pytest.raises(SourceError, match="deleted and made again since it was read"):
        made.latestOffset(end, ALL)
