"""Every key of the section `cluster` is alive: for each, something that differs between two of its values. Those that
another test shows are named with it."""
from __future__ import annotations

import base64
import json
import socket
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from kit.broker import BrokerDied, free_port
from kit.cluster import Cluster
from kit.etcd import QUICK, EtcdServer, etcd_binary
from kit.tree import ROOT
from oracle.mqtt import Puback, Publish

from fluxmq.model.config_keys import KEYS

VALUES = "test_cluster_config.py::test_what_cannot_work_is_refused_with_the_key_and_what_to_write"
TLS = "test_tls.py::test_three_nodes_are_one_broker"
ELSEWHERE = {
    "cluster.enabled": "test_processes.py::test_one_leader_and_every_node_known_to_all",
    "cluster.leave_timeout": "test_leaving.py::test_a_rolling_restart_loses_nothing",
    "cluster.old_storage": "test_names.py::test_an_old_copy_of_a_directory",
    "cluster.disk_timeout": "test_hanging_disk.py::test_others_take_over_and_the_node_comes_back",
    "cluster.etcd.initial_cluster": "test_processes.py::test_one_leader_and_every_node_known_to_all",
    "cluster.etcd.bootstrap": "test_voters.py::test_one_node_grows_to_three_and_a_wiped_one_is_added_anew",
    "cluster.etcd.tls": TLS, "cluster.transport.tls": TLS,
    "cluster.raft": VALUES,  # each of them has one value in this version
}
HERE = ("node_id", "lease_ttl", "route_publish_timeout", "etcd.data_dir", "etcd.bind_addr", "etcd.client_addr",
        "etcd.hybrid_retained_size_threshold", "etcd.endpoints", "etcd.binary", "etcd.allow_unsafe_version",
        "etcd.quota_bytes", "transport.bind_addr", "transport.peers", "transport.window_bytes")


def ask(address: str, path: str, body: dict[str, Any] | None = None) -> Any:
    """What etcd's HTTP answers; JSON if there is a body."""
    data = None if body is None else json.dumps(body).encode()
    with urllib.request.urlopen(urllib.request.Request(f"http://{address}{path}", data), timeout=10) as answer:
        text = answer.read().decode()
    return text if body is None else json.loads(text)


def keys_in_etcd(address: str) -> set[str]:
    first, last = (base64.b64encode(key).decode() for key in (b"/mqtt/", b"/mqtt0"))
    found = ask(address, "/v3/kv/range", {"key": first, "range_end": last, "keys_only": True})
    return {base64.b64decode(item["key"]).decode() for item in found.get("kvs", ())}


def test_every_key_is_looked_at() -> None:
    ours = {key for key in KEYS if key.startswith("cluster.")}
    here = {f"cluster.{key}" for key in HERE}
    elsewhere = {key for key in ours for prefix in ELSEWHERE if key == prefix or key.startswith(prefix + ".")}
    assert here | elsewhere == ours and not here & elsewhere
    for named in ELSEWHERE.values():
        file, _, test = named.partition("::")
        assert any(f"def {test}(" in path.read_text() for path in (ROOT / "tests").rglob(file)), named


def test_one_node_and_its_member(tmp_path: Path) -> None:
    """Two values of what a node of its own shows: name, lease, directory, addresses, program, quota, registration."""
    for number in range(2):
        folder = tmp_path / str(number)
        folder.mkdir()
        program = folder / "etcd"
        program.write_text(f'#!/bin/sh\necho >> {folder}/called\nexec {etcd_binary()} "$@"\n')
        program.chmod(0o755)
        port, peer, quota, ttl = free_port(), free_port(), (32 + number) << 20, (20, 60)[number]
        settings = {
            "cluster.node_id": f"name-{number}", "cluster.lease_ttl": ttl, "cluster.etcd.initial_cluster": "",
            "cluster.etcd.data_dir": str(folder / "member"), "cluster.etcd.binary": str(program),
            "cluster.etcd.quota_bytes": quota, "cluster.transport.bind_addr": f"127.0.0.1:{port}",
            "cluster.transport.peers": {f"name-{number}": f"localhost:{port}"} if number else {},
            "cluster.etcd.bind_addr": f"127.0.0.1:{peer}",
        }
        with Cluster(folder, 1, settings=settings) as cluster:
            view, client_addr = cluster.view(0), str(cluster[0].settings["cluster.etcd.client_addr"])
            own = view["nodes"][0]
            assert view["local"] == own["id"] == f"name-{number}"
            assert (ttl - 10) * 1000 < own["lease_left_ms"] <= ttl * 1000
            assert (own["address"], own["port"]) == (("127.0.0.1", "localhost")[number], port)
            socket.create_connection(("127.0.0.1", port), 5).close()
            assert (folder / "member" / "member").is_dir() and (folder / "called").exists()
            [shown] = [line for line in ask(client_addr, "/metrics").splitlines()
                       if line.startswith("etcd_server_quota_backend_bytes ")]
            assert float(shown.split()[1]) == quota
            assert "etcdserver" in ask(f"127.0.0.1:{peer}", "/version")


@pytest.mark.parametrize(("threshold", "kind"), [(100, "data"), (101, "data"), (99, "index")])
def test_size_of_retained_messages(tmp_path: Path, threshold: int, kind: str) -> None:
    """Payloads smaller than this are in etcd whole."""
    with Cluster(tmp_path, 1, settings={"cluster.etcd.hybrid_retained_size_threshold": threshold}) as cluster:
        client = cluster.client(0)
        client.connect("c")
        client.publish("t", bytes(99), 1, retain=True)
        address = str(cluster[0].settings["cluster.etcd.client_addr"])
        cluster.wait(lambda: f"/mqtt/retained-{kind}/t" in keys_in_etcd(address))


def test_an_etcd_elsewhere(tmp_path: Path) -> None:
    """The node starts no member of its own."""
    server = EtcdServer(tmp_path, "elsewhere", QUICK)
    server.start(f"elsewhere={server.peer_url}")
    try:
        server.wait_ready()
        settings = {"cluster.etcd.endpoints": [server.address], "cluster.etcd.initial_cluster": ""}
        with Cluster(tmp_path / "node", 1, settings=settings) as cluster:
            assert cluster.view(0)["state"] == "serving"
            assert "/mqtt/nodes/n0" in keys_in_etcd(server.address)
            assert not (cluster[0].directory / "data" / "etcd").exists()
            assert "the etcd member is started" not in cluster[0].stderr()
    finally:
        server.kill()


def test_an_etcd_that_damages_data(tmp_path: Path) -> None:
    """A program that says it is 3.5.1 is refused, unless it is allowed."""
    program = tmp_path / "etcd"
    program.write_text('#!/bin/sh\n[ "$1" = --version ] && echo "etcd Version: 3.5.1" && exit\n'
                       f'exec {etcd_binary()} "$@"\n')
    program.chmod(0o755)
    settings: dict[str, object] = {"cluster.etcd.binary": str(program)}
    with pytest.raises(BrokerDied, match=r"allow_unsafe_version"), Cluster(tmp_path / "refused", 1, settings=settings):
        pass
    settings["cluster.etcd.allow_unsafe_version"] = True
    with Cluster(tmp_path / "allowed", 1, settings=settings) as cluster:
        assert cluster.view(0)["state"] == "serving"


@pytest.mark.parametrize(("window", "timeout_s"), [(1 << 20, 0.5), (2 << 20, 3600)])
def test_a_peer_that_does_not_answer(tmp_path: Path, window: int, timeout_s: float) -> None:
    """What may be sent to it, and how long a publish waits for it."""
    settings = {"cluster.transport.window_bytes": window, "cluster.route_publish_timeout": timeout_s}
    with Cluster(tmp_path, 2, ttl_s=60, settings=settings) as cluster:
        cluster.wait(lambda: cluster.view(0)["peers"] and cluster.view(0)["peers"][0]["connected"])
        cluster.wait(lambda: cluster.view(0)["peers"][0]["credit_bytes"] == window)
        subscriber, publisher = cluster.client(1), cluster.client(0)
        subscriber.connect("s")
        subscriber.subscribe("t", qos=1)
        publisher.connect("p")
        cluster.pause(1)
        publisher.send(Publish(topic="t", payload=b"", qos=1, packet_id=1))
        if timeout_s < 1:
            publisher.expect(Puback, packet_id=1, reason=0x80)
            cluster.resume(1)
        else:
            publisher.expect_quiet()
            cluster.resume(1)
            publisher.expect(Puback, packet_id=1, reason=0)
        subscriber.receive("t")
