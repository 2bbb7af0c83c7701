"""The data source over three real nodes, by the admin socket of one that does not have the queue."""
from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kit.cluster import Cluster
from kit.source import QueueBroker
from kit.tools import missing_tool

try:
    from pyspark.sql.streaming.datasource import ReadAllAvailable

    from fluxmq.spark.source.columns import SCHEMA, SourceError
    from fluxmq.spark.source.data_source import FluxDataSource, FluxReader
    from fluxmq.spark.source.stream import FluxStreamReader
except ImportError:
    missing_tool("PySpark is not installed (pip install '.[spark]')")

HERE, OWNER = 0, 1


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("cluster"), 3, ttl_s=4) as cluster:
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
