"""The data source over three real nodes, by the admin socket of one that does not have the queue."""
from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kit.cluster import Cluster
from kit.source import QueueBroker, row
from kit.tools import missing_tool

try:
    from pyspark.sql.streaming.datasource import ReadAllAvailable

    from fluxmq.spark.source.columns import SCHEMA, SourceError
    from fluxmq.spark.source.data_source import FluxDataSource, FluxReader
    from fluxmq.spark.source.place import QueueLog
    from fluxmq.spark.source.stream import FluxStreamReader
except ImportError:
    missing_tool("PySpark is not installed (pip install '.[spark]')")

HERE, OWNER = 0, 1


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("cluster"), 3, ttl_s=6) as cluster:
        yield cluster
        for broker in cluster.brokers:
            broker.check()


@pytest.fixture
def here(cluster: Cluster) -> QueueBroker:
    return QueueBroker(cluster[HERE])


def declare(here: QueueBroker, name: str, **spec: Any) -> str:
    """The node that has it."""
    admin = here.admin
    admin.ask("PUT", "queues", name, body=spec)
    node = admin.ask("GET", "queues", name)["node"]
    admin.close()
    return str(node)


def drop(here: QueueBroker, *names: str) -> None:
    admin = here.admin
    for name in names:
        admin.ask("DELETE", "queues", name)
    admin.close()


def queue_of(cluster: Cluster, here: QueueBroker, name: str, **spec: Any) -> str:
    """A queue that OWNER has: of as many as it takes."""
    for number in range(12):
        if declare(here, f"{name}-{number}", **spec) == cluster.names[OWNER]:
            return f"{name}-{number}"
    raise AssertionError("it gets no queue")


def options(place: QueueBroker, queue: str, **more: str) -> dict[str, str]:
    return {"queue": queue, "admin": place.socket, **more}


def payloads(made: FluxReader | FluxStreamReader, parts: Any) -> list[int]:
    return sorted(int(found["payload"]) for part in parts for batch in made.read(part) for found in batch.to_pylist())


def table(place: QueueBroker, queue: str, **more: str) -> list[int]:
    made = FluxDataSource(options(place, queue, **more)).reader(SCHEMA)
    assert isinstance(made, FluxReader)
    return payloads(made, made.partitions())


def stream(place: QueueBroker, queue: str, **more: str) -> FluxStreamReader:
    made = FluxDataSource(options(place, queue, **more)).streamReader(SCHEMA)
    assert isinstance(made, FluxStreamReader)
    return made


def test_every_node_reads_the_queues_of_all(cluster: Cluster, here: QueueBroker) -> None:
    """By name and by pattern, in a table and in a stream that goes on at another node."""
    names = [f"all-{number}" for number in range(3)]
    owners = {declare(here, name, type="stream") for name in names}
    assert owners == set(cluster.names)
    for number, name in enumerate(names):
        here.put(name, 1000, 1000 * number)
    for broker in cluster.brokers:
        place = QueueBroker(broker)
        for number, name in enumerate(names):
            assert table(place, name) == list(range(1000 * number, 1000 * (number + 1)))
        assert table(place, "all-*") == list(range(3000))
    first = stream(here, "all-*")
    begin = first.initialOffset()
    end = first.latestOffset(begin, ReadAllAvailable())
    assert payloads(first, first.partitions(begin, end)) == list(range(3000))
    here.put(names[0], 10, 3000)
    second = stream(QueueBroker(cluster[2]), "all-*")
    following = second.latestOffset(end, ReadAllAvailable())
    assert payloads(second, second.partitions(end, following)) == list(range(3000, 3010))
    drop(here, *names)


def test_a_queue_of_the_same_name_at_another_node_is_another_one(cluster: Cluster, here: QueueBroker) -> None:
    """Also where its log has the same number there."""
    name = queue_of(cluster, here, "again", type="stream")
    here.put(name, 5)
    made = stream(here, name)
    begin = made.initialOffset()
    (entry,) = begin[name].values()
    parts = made.partitions(begin, made.latestOffset(begin, ReadAllAvailable()))
    drop(here, name)
    admin = here.admin
    admin.ask("PUT", "queues", name, body={"type": "stream"})
    here.put(name, 5)
    log = admin.ask("GET", "queues", name, "logs")
    admin.close()
    assert log["identity"] != entry["queue"]
    entry["log"] = log["logs"][0]["log"]
    with pytest.raises(SourceError, match="deleted and made again since"):
        made.latestOffset(begin, ReadAllAvailable())
    with pytest.raises(SourceError, match="deleted and made again while"):
        payloads(made, parts)
    drop(here, name)


def test_a_reader_waits_for_the_node_that_has_the_queue(cluster: Cluster, here: QueueBroker, tmp_path: Path) -> None:
    """For so long as it was told, and names it then; the first question is answered at once."""
    name = queue_of(cluster, here, "waits", type="stream")
    here.put(name, 500)
    made = stream(here, name, timeoutSeconds="90")
    begin = made.initialOffset()
    end = made.latestOffset(begin, ReadAllAvailable())
    parts = made.partitions(begin, end)
    cluster[OWNER].kill()
    with pytest.raises(SourceError, match=f"node {cluster.names[OWNER]}"):
        table(here, name)
    impatient = stream(here, name, timeoutSeconds="1")
    impatient.place.names()
    with pytest.raises(SourceError, match=f"node {cluster.names[OWNER]}"):
        impatient.latestOffset(begin, ReadAllAvailable())
    found: list[int] = []
    reading = threading.Thread(target=lambda: found.extend(payloads(made, parts)))
    reading.start()
    cluster.wait(lambda: cluster.names[OWNER] not in cluster.nodes(HERE))
    assert reading.is_alive() and not found
    cluster[OWNER].start()
    reading.join(120)
    assert found == list(range(500))
    cluster.wait(cluster.everybody_serves)
    drop(here, name)


def homes(here: QueueBroker, name: str) -> list[str]:
    """The node of each partition."""
    admin = here.admin
    found = admin.ask("GET", "queues", name)["partition_list"]
    admin.close()
    return [entry["node"] for entry in found]


@pytest.mark.parametrize("kind", ["stream", "classic"])
def test_a_divided_queue_is_one_table_and_one_stream(cluster: Cluster, here: QueueBroker, kind: str) -> None:
    """Its partitions are at three nodes. Offsets of a run hold in the next one, at another node, where partitions have
    moved meanwhile."""
    cluster.wait(cluster.everybody_serves)
    name = f"divided-{kind}"
    declare(here, name, type=kind, partitions=3)
    assert sorted(homes(here, name)) == sorted(cluster.names)
    here.put(name, 900)
    for broker in cluster.brokers:
        place = QueueBroker(broker)
        assert table(place, name) == list(range(900))
        assert [log.next for log in place_logs(place, name)] == [300, 300, 300]
        assert place.shown(name) == shown(place, name)
    ends = json.dumps({name: {"0": 100, "1": 200, "2": 300}})
    assert len(table(here, name, startingOffsets=ends)) == 300
    assert len(table(here, name, endingOffsets=ends)) == 600
    first = stream(here, name)
    begin = first.initialOffset()
    assert set(begin[name]) == {"0", "1", "2"} and len({entry["queue"] for entry in begin[name].values()}) == 1
    end = first.latestOffset(begin, ReadAllAvailable())
    assert payloads(first, first.partitions(begin, end)) == list(range(900))
    here.put(name, 90, 900)
    before = homes(here, name)
    admin = here.admin
    for partition in range(2):
        admin.ask("POST", "queues", name, "move", body={
            "node": next(node for node in cluster.names if node != before[partition]), "partition": partition})
    admin.close()
    assert all(now != then for now, then in zip(homes(here, name)[:2], before, strict=False))
    second = stream(QueueBroker(cluster[2]), name)
    following = second.latestOffset(json.loads(json.dumps(end)), ReadAllAvailable())
    assert payloads(second, second.partitions(end, following)) == list(range(900, 990))
    again = stream(QueueBroker(cluster[1]), name)       # the same batch, as after a failure
    assert payloads(again, again.partitions(end, following)) == list(range(900, 990))
    drop(here, name)
    declare(here, name, type=kind, partitions=3)
    with pytest.raises(SourceError, match="deleted and made again since"):
        again.latestOffset(following, ReadAllAvailable())
    drop(here, name)


def place_logs(place: QueueBroker, name: str) -> list[QueueLog]:
    return stream(place, name).place.logs(name).logs


def shown(place: QueueBroker, name: str) -> list[tuple[Any, ...]]:
    """What the source reads, as QueueBroker.shown has it."""
    made = FluxDataSource(options(place, name)).reader(SCHEMA)
    assert isinstance(made, FluxReader)
    return sorted(row(found) for part in made.partitions() for batch in made.read(part) for found in batch.to_pylist())


def test_a_reader_waits_for_the_node_of_one_partition(cluster: Cluster, here: QueueBroker) -> None:
    """All partitions are one queue: what is read is never only some of them."""
    cluster.wait(cluster.everybody_serves)
    declare(here, "partly", type="stream", partitions=3)
    here.put("partly", 300)
    lost = homes(here, "partly").index(cluster.names[OWNER])
    made = stream(here, "partly", timeoutSeconds="90")
    begin = made.initialOffset()
    parts = made.partitions(begin, made.latestOffset(begin, ReadAllAvailable()))
    assert len(parts) == 3
    cluster[OWNER].kill()
    cluster.wait(lambda: cluster.names[OWNER] not in cluster.nodes(HERE))
    with pytest.raises(SourceError, match=f"partition {lost} is at node {cluster.names[OWNER]}"):
        table(here, "partly")
    there = [part for part in parts if part.log.partition != lost]
    assert len(payloads(made, there)) == 200
    found: list[int] = []
    reading = threading.Thread(target=lambda: found.extend(payloads(made, made.partitions(
        begin, made.latestOffset(begin, ReadAllAvailable())))))
    reading.start()
    reading.join(2)
    assert reading.is_alive() and not found
    cluster[OWNER].start()
    reading.join(120)
    assert found == list(range(300))
    cluster.wait(cluster.everybody_serves)
    drop(here, "partly")


def test_a_storage_directory_has_the_partitions_of_its_node(cluster: Cluster, here: QueueBroker) -> None:
    """Each as a queue of its own, so its partition is 0 there."""
    cluster.wait(cluster.everybody_serves)
    declare(here, "stored", type="stream", partitions=3)
    here.put("stored", 30)
    at = homes(here, "stored").index(cluster.names[HERE])
    found = FluxDataSource({"queue": f"$part-{at}-3-stored", "logs": str(here.data)}).reader(SCHEMA)
    assert isinstance(found, FluxReader)
    rows = [row for part in found.partitions() for batch in found.read(part) for row in batch.to_pylist()]
    assert {row["partition"] for row in rows} == {0} and [row["offset"] for row in rows] == list(range(10))
    with pytest.raises(SourceError, match="stored"):
        FluxDataSource({"queue": "stored", "logs": str(here.data)}).reader(SCHEMA).partitions()
    drop(here, "stored")
