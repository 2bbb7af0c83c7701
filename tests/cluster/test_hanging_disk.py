"""A disk that hangs: no call returns, and nothing errs."""
from __future__ import annotations

import json
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from kit.cluster import Cluster
from kit.slowdisk import SlowDisk
from oracle.mqtt import Connect, Puback, Publish

from fluxmq.app import exit_codes

LIMIT_S = 3


def ready(cluster: Cluster, number: int) -> tuple[int, dict[str, Any]]:
    """What /ready answers; 0: nobody does."""
    host, port = cluster[number].health
    try:
        with urllib.request.urlopen(f"http://{host}:{port}/ready", timeout=10) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as refused:
        return refused.code, json.load(refused)
    except OSError:     # between two lives of the node
        return 0, {}


def test_others_take_over_and_the_node_comes_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The node whose disk hangs confirms nothing, gives its lease up and says why. Its session is at another node, with
    what was acknowledged, while the disk still hangs. When that goes on the node joins again; and one whose disk does
    not go on can be stopped."""
    disk = SlowDisk(tmp_path, monkeypatch)
    nodes = Cluster(tmp_path / "nodes", 2, ttl_s=8, settings={
        "cluster.disk_timeout": LIMIT_S, "server.shutdown_timeout": 1})
    nodes[1].environ["SLOWDISK_HOLD"] = str(tmp_path / "never")
    with nodes as cluster:      # the members of etcd do not sync through the library of C
        reader = cluster.client(0)
        reader.connect("reader", clean_start=False, properties=[("session_expiry_interval", 1000)])
        reader.subscribe("t/#", qos=1)
        publisher = cluster.client(0)
        publisher.connect("publisher")
        publisher.send(Publish(topic="t/1", payload=b"confirmed", qos=1, packet_id=1))
        publisher.expect(Puback, packet_id=1)
        reader.drop()
        with disk.held():
            publisher.send(Publish(topic="t/2", payload=b"not confirmed", qos=1, packet_id=2))
            cluster.wait(lambda: ready(cluster, 0)[0] == 503)
            publisher.expect_closed()
            status, said = ready(cluster, 0)
            assert status == 503 and "cluster.disk_timeout" in said["checks"]["cluster"]["details"], said
            cluster.wait(lambda: "n0" not in cluster.nodes(1))
            reader = cluster.client(1)
            reader.connect("reader", clean_start=False, properties=[("session_expiry_interval", 1000)])
            assert ready(cluster, 0)[0] == 503
        cluster.wait(lambda: ready(cluster, 0)[0] == 200)
        cluster.wait(cluster.everybody_serves)
        reader.receive("t/1", b"confirmed")
        assert cluster[0].stderr().count("joins the cluster again: the disk has not completed a write") == 1
        with disk.held():
            cluster.client(0).send(Connect(client_id="again", properties=[("session_expiry_interval", 1000)]))
            cluster.wait(lambda: ready(cluster, 0)[0] == 503)
            assert cluster[0].terminate() == exit_codes.STORAGE
            assert "the disk hangs, and is not waited for any more" in cluster[0].stderr()
        cluster[0].start()
        cluster.wait(cluster.everybody_serves)
