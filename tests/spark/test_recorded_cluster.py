"""Three nodes that record: their recordings are one, and a replay of it is judged as that of a single broker's."""
from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from kit import histories as kit
from kit.broker import Broker
from kit.client import Client
from kit.cluster import Cluster
from kit.story import events_of

from fluxmq.record.merging import ClusterRecording, open_recordings
from fluxmq.record.reading import RecordingError
from fluxmq.spark.replay.replaying import ReplayRequest, replay_here

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NAMES = ["n0", "n1", "n2"]
KEPT = {"session_expiry_interval": 1000}
PUBLISHES = 10
QUIET_S = 0.5

pytestmark = pytest.mark.timeout(500)


def its_recordings(broker: Broker) -> list[Path]:
    return sorted((broker.directory / "fluxmq-recordings").iterdir())


def traffic(cluster: Cluster) -> None:
    """`watch` stays on n2, `pub` on n1; the session of `sub` goes from n0 to n2, taken over there, and back to n0,
    which was started again meanwhile. Every publish is on n1, so every delivery is on another node."""
    def taken_by(number: int, turn: int) -> Client:
        client = cluster.client(number)
        assert client.connect("sub", clean_start=False, properties=KEPT).session_present == (turn > 0)
        return client

    def published(turn: int) -> None:
        for count in range(PUBLISHES):
            publisher.publish(f"t/{turn}", b"number %d of turn %d" % (count, turn), 1)
        for client in (watch, sub):
            for count in range(PUBLISHES):
                client.receive(f"t/{turn}", b"number %d of turn %d" % (count, turn))

    watch, publisher = cluster.client(2), cluster.client(1)
    watch.connect("watch")
    watch.subscribe("t/#", qos=1)
    publisher.connect("pub")
    sub = taken_by(0, 0)
    sub.subscribe("t/#", qos=1)
    published(0)
    old, sub = sub, taken_by(2, 1)
    old.expect_closed(0x8E)
    published(1)
    assert cluster[0].terminate() == 0
    cluster[0].start()
    cluster.wait(cluster.everybody_serves)
    old, sub = sub, taken_by(0, 2)
    old.expect_closed(0x8E)
    published(2)
    for client in (sub, watch, publisher):
        client.disconnect()


@pytest.fixture(scope="module")
def recordings(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, list[Path]]]:
    """By node."""
    place = tmp_path_factory.mktemp("cluster")
    with Cluster(place, 3, settings={"record.enabled": True, "record.payload": "full"}) as cluster:
        traffic(cluster)
    yield {name: its_recordings(broker) for name, broker in zip(NAMES, cluster.brokers, strict=True)}


@contextmanager
def fresh(place: Path) -> Iterator[str]:
    """A broker to play against; its address."""
    one = Broker(place).start()
    try:
        yield "{}:{}".format(*one.address)
        one.check()
    finally:
        one.stop()


def test_the_recordings_of_the_nodes_are_one(recordings: dict[str, list[Path]]) -> None:
    assert [len(recordings[name]) for name in NAMES] == [2, 1, 1]
    found = open_recordings(*(path for paths in recordings.values() for path in paths))
    assert isinstance(found, ClusterRecording) and found.missing == []
    assert [one.manifest.cluster.node for one in found.nodes] == ["n0", "n0", "n1", "n2"]
    assert found.manifest.end == "broker ended" and set(NAMES) == set(found.manifest.cluster.nodes)
    rows = found.table().to_pylist()
    assert [row["time_ns"] for row in rows] == sorted(row["time_ns"] for row in rows)      # of one clock
    published = {row["payload"]: row for row in rows if row["kind"] == "PUBLISH" and row["direction"] == "in"}
    delivered = [row for row in rows if row["kind"] == "PUBLISH" and row["direction"] == "out"]
    assert len(published) == 3 * PUBLISHES and {row["connection"] % 4 for row in published.values()} == {2}
    got = Counter(row["payload"] for row in delivered)
    assert got == dict.fromkeys(published, 2)
    assert {row["connection"] % 4 for row in delivered} == {0, 1, 3}
    assert all(row["time_ns"] >= published[row["payload"]]["time_ns"] for row in delivered)
    names = {row["connection"]: row["client_id"] for row in rows if row["client_id"]}
    assert Counter(names.values()) == {"watch": 1, "pub": 1, "sub": 3}
    acknowledged = {row["seq"]: row["connection"] for row in rows}
    answers = [row for row in rows if row["answers"] is not None]
    assert answers and all(acknowledged[row["answers"]] == row["connection"] for row in answers)


def test_a_replay_delivers_what_the_cluster_did_and_verify_finds_nothing(
        tmp_path: Path, spark: SparkSession, recordings: dict[str, list[Path]]) -> None:
    from fluxmq.spark.verify.violations import counts, judged, violations

    place = tmp_path / "all"
    for paths in recordings.values():
        for path in paths:
            shutil.copytree(path, place / path.name)
    with fresh(tmp_path / "broker") as address:
        summary = replay_here(ReplayRequest(recording=str(place), out=str(tmp_path / "out"), broker=address,
                                            quiet_s=QUIET_S, speed=None))
    assert summary.complete, summary.why
    assert summary.recorded == {"publish": 3 * PUBLISHES, "delivery": 6 * PUBLISHES, "settlement": 0}
    assert {name: summary.counts[name] for name in ("publish", "delivery", "connect")} == {
        "publish": 3 * PUBLISHES, "delivery": 6 * PUBLISHES, "connect": 5}
    assert (summary.recording["nodes"], summary.recording["moves"]) == (NAMES, 2)
    rows: list[dict[str, Any]] = events_of(tmp_path / "out")
    assert [row["detail"]["session_present"] for row in rows
            if (row["event"], row["client"]) == ("connect", "sub")] == [False, True, True]
    events = kit.frame(spark, {"cluster": rows})
    tables = judged(events, settle_ns=int(QUIET_S * 1e9))
    assert violations(tables).collect() == [] and counts(tables, events)["must"] >= PUBLISHES


def test_a_replay_against_a_cluster_puts_clients_where_they_were(tmp_path: Path, spark: SparkSession,
                                                                 recordings: dict[str, list[Path]]) -> None:
    """A recorded client connects to the node of the same rank; what is delivered between nodes is judged as ever. The
    cluster records the replay, so it is seen where each client was."""
    from fluxmq.spark.verify.violations import counts, judged, violations

    paths = tuple(str(path) for its in recordings.values() for path in its)
    with Cluster(tmp_path / "again", 3, settings={"record.enabled": True}) as cluster:
        cluster.wait(cluster.everybody_serves)
        brokers = ",".join("{}:{}".format(*broker.address) for broker in cluster.brokers)
        summary = replay_here(ReplayRequest(recording=paths, out=str(tmp_path / "out"), broker=brokers, speed=None,
                                            quiet_s=QUIET_S))
    assert summary.complete, summary.why
    assert summary.counts["delivery"] == 6 * PUBLISHES and summary.broker["address"] == brokers
    rows: list[dict[str, Any]] = events_of(tmp_path / "out")
    events = kit.frame(spark, {"cluster": rows})
    tables = judged(events, settle_ns=int(QUIET_S * 1e9), several=True)
    assert violations(tables).collect() == [] and counts(tables, events)["must"] >= PUBLISHES
    again = open_recordings(*(path for broker in cluster.brokers for path in its_recordings(broker)))
    places = {(row["client_id"], row["connection"] % 3) for row in again.table().to_pylist()
              if row["kind"] == "PUBLISH"}
    assert places == {("watch", 2), ("pub", 1), ("sub", 0), ("sub", 2)}


def test_a_recording_of_another_cluster_is_refused(tmp_path: Path, recordings: dict[str, list[Path]]) -> None:
    with Cluster(tmp_path, 1, settings={"record.enabled": True}) as cluster:
        env = cluster.view(0)["env"]
    (other,) = its_recordings(cluster[0])
    with pytest.raises(RecordingError, match=f"are of different clusters: .* and {env}"):
        open_recordings(recordings["n1"][0], other)
