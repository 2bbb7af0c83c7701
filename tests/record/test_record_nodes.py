"""`fluxmq record` with several --attach: the nodes of a cluster are recorded by one command."""
from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from kit.broker import Broker
from kit.cluster import Cluster, fluxmq
from kit.python import environment
from kit.watch import metric, wait_until

from fluxmq.record.merging import ClusterRecording, open_recordings

END_SECONDS = 60.0


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("cluster"), 2) as cluster:
        cluster.wait(cluster.everybody_serves)
        yield cluster


def attach(*brokers: Broker) -> list[str]:
    return [word for broker in brokers for word in ("--attach", str(broker.directory / "data" / "admin.sock"))]


def recording(broker: Broker) -> bool:
    return metric(broker, "fluxmq_recording") == 1


def test_all_nodes_are_recorded_until_it_is_interrupted(cluster: Cluster, tmp_path: Path) -> None:
    command = subprocess.Popen(
        [sys.executable, "-P", "-m", "fluxmq", "record", *attach(*cluster.brokers), "--dir", str(tmp_path / "all"),
         "--payload", "full", "--topic", "t/#", "--max-time", "3s"],
        env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        wait_until(lambda: all(map(recording, cluster.brokers)))
        subscriber, publisher = cluster.client(0), cluster.client(1)
        subscriber.connect("sub")
        subscriber.subscribe("#", qos=1)
        publisher.connect("pub")
        for topic in ("t/1", "not/recorded"):
            publisher.publish(topic, b"x", 1)
            subscriber.receive(topic, b"x")
        command.send_signal(signal.SIGINT)
        out, err = command.communicate(timeout=END_SECONDS)
    finally:
        command.kill()
        command.wait()
    assert (command.returncode, err) == (0, "")
    assert [line.partition(":")[0] for line in out.splitlines()] == [f"{tmp_path / 'all'}/node=n{n}" for n in range(2)]
    assert out.count("(stopped)") == 2
    found = open_recordings(tmp_path / "all")
    assert isinstance(found, ClusterRecording) and found.missing == []
    assert (found.manifest.end, found.manifest.options["max_seconds"]) == ("stopped", 3.0)
    rows = found.table(["connection", "kind", "direction", "topic", "payload"]).to_pylist()
    assert [(row["connection"] % 2, row["direction"], row["topic"], row["payload"]) for row in rows
            if row["kind"] == "PUBLISH"] == [(1, "in", "t/1", b"x"), (0, "out", "t/1", b"x")]
    wait_until(lambda: not any(map(recording, cluster.brokers)))


def test_the_recordings_end_when_the_command_is_killed(cluster: Cluster, tmp_path: Path) -> None:
    command = subprocess.Popen(
        [sys.executable, "-P", "-m", "fluxmq", "record", *attach(*cluster.brokers), "--dir", str(tmp_path / "all")],
        env=environment(), stdout=subprocess.DEVNULL)
    try:
        wait_until(lambda: all(map(recording, cluster.brokers)))
    finally:
        command.kill()
        command.wait()
    wait_until(lambda: not any(map(recording, cluster.brokers)))
    wait_until(lambda: all((tmp_path / "all" / f"node=n{n}" / "_manifest.json").exists() for n in range(2)))
    wait_until(lambda: open_recordings(tmp_path / "all").manifest.end == "stopped")


def test_one_that_cannot_be_recorded_ends_the_others(cluster: Cluster, tmp_path: Path) -> None:
    first = subprocess.Popen([sys.executable, "-P", "-m", "fluxmq", "record", *attach(cluster[1]), "--dir",
                              str(tmp_path / "first")], env=environment(), stdout=subprocess.PIPE)
    try:
        wait_until(lambda: recording(cluster[1]))
        said = fluxmq("record", *attach(*cluster.brokers), "--dir", str(tmp_path / "both"))
        assert "this broker is being recorded already" in said
        wait_until(lambda: not recording(cluster[0]))
        assert recording(cluster[1])
    finally:
        first.terminate()
        first.communicate(timeout=END_SECONDS)
    wait_until(lambda: not recording(cluster[1]))


def test_brokers_that_are_no_nodes_of_one_cluster(cluster: Cluster, tmp_path: Path) -> None:
    alone = Broker(tmp_path / "alone").start()
    try:
        assert "this broker is in no cluster" in fluxmq("record", *attach(cluster[0], alone))
        assert "are both of node n1" in fluxmq("record", *attach(cluster[1], cluster[1]))
    finally:
        alone.stop()
    with Cluster(tmp_path / "other", 1) as other:
        assert "are of different clusters" in fluxmq("record", *attach(cluster[0], other[0]))
    assert not any(map(recording, cluster.brokers))
