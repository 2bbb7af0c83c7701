"""The lives of a node in one process: it is built anew when it has lost its lease, and not when it was told to end."""
from __future__ import annotations

import base64
import json
import signal
import urllib.request
from pathlib import Path

from kit.cluster import Cluster

LIVES = 6
RETAINED, RETAINED_BYTES = 2000, 10_000


def take_lease(cluster: Cluster) -> None:
    """Deletes the key by which the first node is one of the cluster."""
    key = base64.b64encode(b"/mqtt/nodes/n0").decode()
    request = urllib.request.Request(f"http://{cluster[0].settings['cluster.etcd.client_addr']}/v3/kv/deleterange",
                                     json.dumps({"key": key}).encode())
    with urllib.request.urlopen(request, timeout=10) as answer:
        assert json.loads(answer.read()).get("deleted") == "1"


def pid_of(cluster: Cluster) -> int:
    process = cluster[0].process
    assert process is not None
    return process.pid


def resident(cluster: Cluster) -> int:
    """Bytes of the first node's process."""
    status = Path(f"/proc/{pid_of(cluster)}/status").read_text()
    return int(next(line for line in status.splitlines() if line.startswith("VmRSS:")).split()[1]) * 1024


def epoch_of(cluster: Cluster) -> int:
    """Of the first node's present life; 0: it has none that can be asked."""
    try:
        return cluster.epochs()[0]
    except OSError:
        return 0


def test_former_lives_leave_no_memory(tmp_path: Path) -> None:
    with Cluster(tmp_path, 1) as cluster:
        publisher = cluster.client(0)
        publisher.connect("publisher")
        for number in range(RETAINED):
            publisher.publish(f"kept/{number}", number.to_bytes(4, "big") * (RETAINED_BYTES // 4), 1, retain=True)
        publisher.close()
        pid, held = pid_of(cluster), 0
        for life in range(LIVES):
            epoch = epoch_of(cluster)
            take_lease(cluster)
            cluster.wait(lambda epoch=epoch: epoch_of(cluster) > epoch and cluster.everybody_serves())
            if life == 1:
                held = resident(cluster)
        assert pid_of(cluster) == pid
        assert resident(cluster) - held < 2 * RETAINED * RETAINED_BYTES, "former lives are still there"
        reader = cluster.client(0)
        reader.connect("reader")
        reader.subscribe("kept/7", qos=1)
        assert reader.receive().payload == (7).to_bytes(4, "big") * (RETAINED_BYTES // 4)


def test_a_node_that_is_told_to_end_has_no_other_life(tmp_path: Path) -> None:
    """It finds both at once: that it has lost its lease, and SIGTERM."""
    with Cluster(tmp_path, 2, ttl_s=4) as cluster:
        cluster.pause(1)
        cluster.wait(lambda: "n1" not in cluster.nodes(0))
        process = cluster[1].process
        assert process is not None
        process.send_signal(signal.SIGTERM)
        cluster.resume(1)
        assert process.wait(60) == 0
        assert "joins the cluster again" in cluster[1].stderr()
