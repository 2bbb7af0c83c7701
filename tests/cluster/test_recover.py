"""A majority of etcd's members is gone for good: three real processes."""
from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from kit.broker import Broker
from kit.cluster import Cluster, fluxmq

from fluxmq._core.errors import StorageError
from fluxmq.app.cluster_recover import _alone

VOTER = ("voter", True)


def test_a_directory_of_another_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path, flags: int) -> int:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("os.open", refuse)
    with pytest.raises(StorageError, match="may not be opened: run this as the user of the broker"), _alone(tmp_path):
        pass


def recover(broker: Broker, *words: str) -> str:
    """`fluxmq cluster recover` with the configuration of a node that does not run; what it says."""
    return fluxmq("cluster", "recover", *words, *broker.sets())


def test_recovery_from_the_loss_of_a_majority(tmp_path: Path) -> None:
    """Two of three directories are gone: what the third has is the cluster, and the others join anew."""
    with Cluster(tmp_path, 3) as cluster:
        client = cluster.client(0)
        client.connect("keeps", clean_start=False, properties={"session_expiry_interval": 1000})
        client.subscribe("kept/#", qos=1)
        client.drop()
        publisher = cluster.client(1)
        publisher.connect("p")
        publisher.publish("retained/x", b"from before", 1, retain=True)
        publisher.publish("kept/x", b"for a session", 1)
        cluster.wait(lambda: cluster.view(1)["retained_pending"] == 0)
        assert "is in use" in recover(cluster[0], "--yes")
        cluster[2].terminate()
        assert "there is nothing to recover" in recover(cluster[2], "--yes")
        for number in (1, 2):
            cluster[number].stop()
            shutil.rmtree(tmp_path / f"n{number}" / "data")
        cluster[0].stop()
        assert "is not the storage directory of a node" in recover(cluster[1], "--yes")
        assert "revision" in recover(cluster[0], "--look")
        assert "etcd has one member now" in recover(cluster[0], "--yes")
        cluster[0].start()
        assert cluster.votes(0)["n0"] == VOTER
        for number in (1, 2):
            cluster.wait(lambda number=number: f"n{number}" not in cluster.nodes(0))  # type: ignore[misc]
            cluster[number].settings["cluster.etcd.bootstrap"] = False
            cluster[number].start()
        cluster.wait(lambda: cluster.votes(0) == dict.fromkeys(cluster.names, VOTER))
        returned, reader = cluster.client(2), cluster.client(1)
        assert returned.connect("keeps", clean_start=False,
                                properties={"session_expiry_interval": 1000}).session_present
        returned.receive("kept/x", b"for a session")
        reader.connect("r")
        reader.subscribe("retained/#", qos=1)
        reader.receive("retained/x", b"from before")
