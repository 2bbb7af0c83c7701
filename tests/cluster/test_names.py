"""Who may be a node of a cluster: second processes, old directories, members that were removed. Real processes."""
from __future__ import annotations

import json
import shutil
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest
from kit.broker import Broker, BrokerDied
from kit.cluster import Cluster, cluster_command
from kit.etcd import EtcdServers
from kit.loops import run_on
from kit.python import environment

from fluxmq.cluster.etcd.client import EtcdStore

VOTER = ("voter", True)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Cluster:
    with Cluster(tmp_path_factory.mktemp("names"), 3, ttl_s=6) as made:
        made.wait(made.everybody_serves)
        yield made  # type: ignore[misc]


def members(cluster: Cluster, number: int) -> list[tuple[int, str]]:
    """(number, name) of etcd's members, as one of them has heard; "" of one whose name it does not know yet."""
    address = str(cluster[number].settings["cluster.etcd.bind_addr"])
    with urllib.request.urlopen(f"http://{address}/members", timeout=10) as answer:
        return sorted((one["id"], one.get("name", "")) for one in json.load(answer))


def ready(broker: Broker) -> dict[str, object]:
    host, port = broker.addresses["health"]
    with urllib.request.urlopen(f"http://{host}:{port}/ready", timeout=10) as answer:
        found: dict[str, object] = json.load(answer)
    return found


def test_a_second_process_with_the_same_configuration_touches_nothing(cluster: Cluster) -> None:
    pid, socket = cluster.member_pid(1), cluster[1].directory / "data" / "etcd" / "metrics:1"
    assert socket.exists()
    said = subprocess.run([sys.executable, "-m", "fluxmq", "run", *cluster[1].sets()], capture_output=True, text=True,
                          timeout=60, check=False, env=environment())
    assert said.returncode == 4 and "is in use by another broker" in said.stderr
    assert "etcd member" not in said.stderr and socket.exists() and cluster.member_pid(1) == pid


def test_a_machine_with_the_name_of_a_node_that_runs(cluster: Cluster) -> None:
    """It has an empty directory, and joins: the vote of the node is not taken from it."""
    before, epochs = members(cluster, 0), cluster.epochs()
    other = cluster.add()
    cluster.names.pop()
    cluster.brokers.pop()
    members_ = str(other.settings["cluster.etcd.initial_cluster"]).replace("n3=", "n1=")
    other.settings |= {"cluster.node_id": "n1", "cluster.etcd.initial_cluster": members_}
    with pytest.raises(BrokerDied, match=r"another process is in the cluster as node 'n1'.*cluster\.node_id"):
        other.start()
    assert members(cluster, 0) == before and cluster.epochs() == epochs
    assert cluster.votes(0) == dict.fromkeys(cluster.names, VOTER)


def test_a_member_that_somebody_has_removed_joins_again(cluster: Cluster) -> None:
    cluster.wait(lambda: cluster.votes(0) == dict.fromkeys(cluster.names, VOTER))
    [old] = [number for number, name in members(cluster, 0) if name == "n2"]
    epochs = cluster.epochs()

    async def remove() -> None:
        store = EtcdStore([str(cluster[0].settings["cluster.etcd.client_addr"])])
        await store.member_remove(old)
        await store.close()

    cluster.wait(lambda: removed(remove))
    degraded = "no vote in etcd: its member was removed from etcd, and not by fluxmq cluster voters remove"
    cluster.wait(lambda: degraded in cluster[2].stderr() or "degraded" in cluster_command(cluster[2], "status"))
    cluster.wait(lambda: cluster.votes(0) == dict.fromkeys(cluster.names, VOTER) == cluster.votes(2))
    cluster.wait(lambda: "n2" in [name for _, name in members(cluster, 0)])     # its votes were asked of a quorum
    [new] = [number for number, name in members(cluster, 0) if name == "n2"]
    assert new != old and cluster.epochs() == epochs
    cluster.wait(lambda: cluster.view(2)["degraded"] == [] and ready(cluster[2])["mode"] == "nominal")


def removed(remove: object) -> bool:
    """etcd refuses changes for 5 s after a member was away."""
    try:
        run_on("uvloop", remove())  # type: ignore[operator]
    except Exception:
        return False
    return True


def test_an_old_copy_of_a_directory(cluster: Cluster) -> None:
    data, old = cluster[1].directory / "data", cluster[1].directory / "old"
    cluster[1].kill()
    shutil.copytree(data, old, ignore=shutil.ignore_patterns("etcd", "admin.sock"))
    cluster[1].start()
    cluster[1].kill()
    own = cluster[1].directory / "own"
    own.mkdir()
    # All but etcd's directory is exchanged.
    for folder, of in ((data, own), (old, data)):
        for entry in list(folder.iterdir()):
            if entry.name not in ("etcd", "admin.sock"):
                entry.rename(of / entry.name)
    with pytest.raises(BrokerDied, match=r"is an old copy: it is of generation .*cluster\.old_storage to"):
        cluster[1].start()
    cluster[1].settings["cluster.old_storage"] = "set_aside"
    cluster[1].start()
    assert "the storage directory was set aside" in cluster[1].stderr()
    assert {entry.name for entry in (data / "former-1").iterdir()} >= {"journal", "state", "node-identity"}
    cluster.wait(cluster.everybody_serves)


def test_a_member_that_answers_keeps_its_vote(tmp_path: Path) -> None:
    """The node of its name has no lease: its member runs all the same, and is not replaced."""
    from cluster.etcd.test_own_member import Newcomer
    from cluster.etcd.test_own_member import members as named

    there = EtcdServers(tmp_path / "there", 2)
    try:
        newcomer = Newcomer(tmp_path, "etcd-2", there)
        newcomer.others = newcomer.others[:1]

        async def test() -> None:
            before = await named(there)
            async with newcomer.running() as own:
                with pytest.raises(Exception, match="another process runs as this node, and its vote is not taken"):
                    await own.enter()
            assert await named(there) == before

        run_on("uvloop", test(), seconds=60)
    finally:
        there.end()
