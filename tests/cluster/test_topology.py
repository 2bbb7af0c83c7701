"""`fluxmq topology` on three real nodes: who has what, epochs, lag, nodes that do not answer, moves; and `fluxmq pub`
and `sub` with the addresses of all nodes, while these die."""
from __future__ import annotations

import json
import os
import pty
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cluster.test_operations import Desk, queue_of
from kit.broker import Broker
from kit.cluster import Cluster
from kit.process import Started, fluxmq_said
from kit.watch import wait_until

HERE, OWNER, THIRD = 0, 1, 2


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("topology"), 3, ttl_s=6) as cluster:
        cluster.wait(cluster.everybody_serves)
        yield cluster


def socket(cluster: Cluster, number: int = HERE) -> list[str]:
    return ["--socket", str(cluster[number].directory / "data" / "admin.sock")]


def seen(cluster: Cluster, number: int = HERE) -> dict[str, Any]:
    """`fluxmq topology --json` at a node."""
    said = fluxmq_said("topology", "--json", *socket(cluster, number))
    assert said.status == 0, said.err
    found: dict[str, Any] = json.loads(said.out)
    return found


def parts(view: dict[str, Any], name: str) -> list[dict[str, Any]]:
    [queue] = [one for one in view["queues"] if one["name"] == name]
    places: list[dict[str, Any]] = queue["partition_list"]
    return places


def test_a_single_node(tmp_path: Path) -> None:
    """That node and its queues; on a terminal the picture is taken away at the end."""
    with Broker(tmp_path, {"queues": '[{"name": "orders"}]'}) as broker:
        fluxmq_said("pub", "--broker", "{}:{}".format(*broker.address), "--queue", "orders", "x")
        place = ["--socket", str(tmp_path / "data" / "admin.sock")]
        view = json.loads(fluxmq_said("topology", "--json", *place).out)
        [node], [one] = view["nodes"], parts(view, "orders")
        assert (view["state"], node["answers"], one["node"], one["epoch"]) == ("standalone", True, node["id"], 0)
        assert (one["messages"], one["lag"]) == (1, 1)
        outer, inner = pty.openpty()
        with os.fdopen(outer, "rb", buffering=0) as shown, os.fdopen(inner, "wb") as terminal, \
                Started("topology", "--watch", "--interval", "0.1", *place, stdout=terminal) as watching:
            seen = b""
            while seen.count(b"orders") < 2:
                seen += shown.read(10_000)
            watching.process.send_signal(signal.SIGTERM)
            assert watching.process.wait(60) == 0 and watching.err == ""
            while not seen.endswith(b"\x1b[?25h\x1b[?1049l"):
                seen += shown.read(10_000)
            assert seen.startswith(b"\x1b[?1049h\x1b[?25l\x1b[H")


def test_every_node_shows_the_same(cluster: Cluster) -> None:
    desk = Desk(cluster, HERE)
    desk.say("create", "split", "--partitions", "3")
    far, log = queue_of(cluster, "far"), queue_of(cluster, "log", "stream")
    broker = ["--broker", "{}:{}".format(*cluster[THIRD].address)]
    for name in ("split", far, log):
        fluxmq_said("pub", *broker, "--queue", name, "--lines", given=b"1\n2\n3\n4\n5\n6\n")
    for name, ack in (("split", "auto"), (far, "none"), (log, "auto")):
        fluxmq_said("sub", *broker, "--queue", name, "--group", "g", "--count", "2", "--ack", ack, "--from", "first")
    wait_until(lambda: [part["lag"] for part in parts(seen(cluster), log)] == [4])
    views = [seen(cluster, number) for number in range(3)]
    for number, view in enumerate(views):
        assert (view["state"], view["local"], view["missing"]) == ("serving", cluster.names[number], [])
        assert [node["id"] for node in view["nodes"]] == cluster.names
        assert all(node["answers"] and node["etcd"] == "voter" for node in view["nodes"])
        assert sum(node["leader"] for node in view["nodes"]) == 1
        assert view["queues"] == views[0]["queues"], "the numbers are those of the owners, at whatever node"
        split = parts(view, "split")
        assert sorted(part["node"] for part in split) == cluster.names
        assert [part["partition"] for part in split] == [0, 1, 2]
        assert sum(part["messages"] for part in split) == sum(part["lag"] for part in split) == 4
        [one], [stream] = parts(view, far), parts(view, log)
        assert (one["node"], one["state"], one["messages"], one["lag"]) == (cluster.names[OWNER], "running", 6, 6)
        assert (stream["messages"], stream["lag"]) == (6, 4)
        assert len({part["epoch"] for part in (*split, one, stream)} - {0}) == 5, "each was claimed by itself"


def test_an_epoch_grows_with_each_move(cluster: Cluster) -> None:
    name = queue_of(cluster, "moves")
    [before] = parts(seen(cluster), name)
    Desk(cluster, HERE).say("move", name, cluster.names[THIRD])
    for number in range(3):
        wait_until(lambda number=number: parts(seen(cluster, number), name)[0]["node"] == cluster.names[THIRD])
        [after] = parts(seen(cluster, number), name)
        assert after["epoch"] > before["epoch"] and after["state"] == "running"


def test_sessions_are_counted(cluster: Cluster) -> None:
    with Started("sub", "--broker", "{}:{}".format(*cluster[OWNER].address), "a", "--verbose") as one:
        one.says("subscribed")
        wait_until(lambda: seen(cluster)["nodes"][OWNER]["sessions"] >= 1)


def test_a_node_that_does_not_answer_is_named(cluster: Cluster) -> None:
    """Stopped, it has its lease for a while; then it is down. Also a node without any queue."""
    name = queue_of(cluster, "silent")
    text = fluxmq_said("topology", *socket(cluster)).out.decode()
    assert "does not answer" not in text and "(asked)" in text
    cluster.pause(OWNER)
    try:
        said = fluxmq_said("topology", *socket(cluster))
        assert f"numbers of node {cluster.names[OWNER]} are left out" in said.err or " down " in said.out.decode()
        wait_until(lambda: seen(cluster)["nodes"][OWNER]["state"] == "down")
        view = seen(cluster)
        [place] = parts(view, name)
        assert (place["node"], place["state"], place["epoch"], place["messages"]) == (
            cluster.names[OWNER], "away", 0, None)
        assert view["nodes"][OWNER]["answers"] is False
        row = next(line for line in fluxmq_said("topology", *socket(cluster)).lines if line.startswith(name))
        assert "away" in row
    finally:
        cluster.resume(OWNER)
    cluster.wait(cluster.everybody_serves)
    wait_until(lambda: parts(seen(cluster), name)[0]["state"] == "running")


def test_watching(cluster: Cluster) -> None:
    """A picture follows the other; a node that is asked and dies is told of; Ctrl-C is the end."""
    with Started("topology", "--watch", "--interval", "0.2", *socket(cluster, THIRD)) as one:
        while not one.line().startswith("QUEUE"):
            pass
        while not one.line().startswith("NODE"):
            pass
        ended = one.interrupt()
        assert (ended.status, ended.err) == (0, "")
    with Started("topology", "--watch", "--interval", "0.2", "--json", *socket(cluster, THIRD)) as one:
        assert json.loads(one.line())["local"] == cluster.names[THIRD]
        cluster[THIRD].kill()
        while "error" not in json.loads(one.line()):
            pass
        cluster[THIRD].start()
        while "error" in json.loads(one.line()):
            pass
        assert one.interrupt().status == 0
    cluster.wait(cluster.everybody_serves)


def test_clients_go_on_at_another_node(cluster: Cluster) -> None:
    """A publisher and a consumer of a queue, with the addresses of all nodes, whose nodes die one after the other. What
    was acknowledged arrives, and is printed once."""
    name = queue_of(cluster, "survives", at=THIRD)
    # They are to go from the first to the second: one after the other dies, not with etcd's leader, and a CONNECT waits
    # for the lease of the one before.
    first = next(number for number in (HERE, OWNER) if number != cluster.etcd_leader())
    nodes = (first, OWNER if first == HERE else HERE)
    brokers = ",".join("{}:{}".format(*cluster[number].address) for number in (*nodes, THIRD))
    patient = ("--broker", brokers, "--queue", name, "--connect-timeout", "60", "--verbose")
    with Started("sub", *patient, "--format", "%i %p") as one, Started("pub", *patient, "--lines") as source:
        one.says("subscribed")
        source.says("connected to")
        printed: list[str] = []
        for number in range(60):
            if number in (20, 40):
                node = nodes[number // 20 - 1]
                cluster[node].kill()
                source.says("connected again", number // 20)
                one.says("connected again", number // 20)
                cluster[node].start()
            source.write(f"{number}\n".encode())
            if number % 20 == 19:
                while f"{number}" not in [line.partition(" ")[2] for line in printed]:
                    printed.append(one.line())
        assert source.end().status == 0
        assert one.interrupt().status == 0
        names = [line.partition(" ")[0] for line in printed]
        assert len(names) == len(set(names)), "a message of the queue was printed twice"
        assert {line.partition(" ")[2] for line in printed} == {str(number) for number in range(60)}
    cluster.wait(cluster.everybody_serves)
