"""Votes in etcd that are taken and given by command: three real processes."""
from __future__ import annotations

from pathlib import Path

from kit.cluster import Cluster, cluster_command

VOTER = ("voter", True)


def test_votes_are_taken_and_given(tmp_path: Path) -> None:
    with Cluster(tmp_path, 3) as cluster:
        epochs = {name: node["epoch"] for name, node in cluster.nodes(0).items()}
        assert "n2 has no vote any more" in cluster_command(cluster[0], "voters", "remove", "n2", "--yes")
        without = {"n0": VOTER, "n1": VOTER, "n2": ("none", None)}
        for number in range(3):
            cluster.wait(lambda number=number: cluster.votes(number) == without)  # type: ignore[misc]
        assert "etcd has no member n2" in cluster_command(cluster[1], "voters", "remove", "n2", "--yes")
        assert "has a member of etcd already" in cluster_command(cluster[2], "voters", "add", "n1")
        # It serves its clients as before, in the same life, and after a restart too.
        subscriber, publisher = cluster.client(2), cluster.client(0)
        subscriber.connect("s")
        subscriber.subscribe("vote/#", qos=1)
        publisher.connect("p")
        publisher.publish("vote/x", b"1", 1)
        subscriber.receive("vote/x", b"1")
        assert {name: node["epoch"] for name, node in cluster.nodes(2).items()} == epochs
        cluster[2].restart()
        assert cluster.votes(2)["n2"] == ("none", None)

        cluster.wait(lambda: "n2 has a vote" in cluster_command(cluster[0], "voters", "add", "n2"))
        for number in range(3):
            cluster.wait(lambda number=number: cluster.votes(number) == dict.fromkeys(  # type: ignore[misc]
                cluster.names, VOTER))
        # Two that are well are the majority: neither may go.
        cluster[1].kill()
        cluster.wait(lambda: cluster.votes(0)["n1"] == ("voter", False))
        assert "start these first" in cluster_command(cluster[0], "voters", "remove", "n2", "--yes")
        # So it is with leaving, for a pause too.
        for more, hint in (((), "SIGTERM stops this node even so"), (("--keep-vote",), "SIGTERM stops this node")):
            said = cluster_command(cluster[2], "leave", "--yes", *more)
            assert ("start these first" in said or "must be well" in said) and hint in said
        assert cluster.view(2)["state"] == "serving"
        assert "n1 has no vote any more" in cluster_command(cluster[0], "voters", "remove", "n1", "--yes")
        assert "without --keep-vote" in cluster_command(cluster[2], "leave", "--yes", "--keep-vote")
        said = cluster_command(cluster[2], "leave", "--yes")
        assert "n2 has given back its vote in etcd: etcd has 1 member with a vote now, and needs 1 of it" in said
        # It gets its vote again when it is back, for nobody has taken it.
        cluster[2].stop()
        cluster[2].start()
        cluster.wait(lambda: cluster.votes(0) == {"n0": VOTER, "n2": VOTER})
