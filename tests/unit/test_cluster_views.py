"""What operators see of a cluster: the admin routes, `fluxmq cluster`, readiness and metrics, with a fake behind them;
and of a node by itself, with the real thing."""
from __future__ import annotations

import asyncio
import json
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from kit.admin_node import AdminNode
from kit.overview import FakeOverview
from kit.watch import wait_until
from msgspec.structs import replace

from fluxmq.admin.metrics import Metrics
from fluxmq.app import cli
from fluxmq.app.admin_client import AdminError
from fluxmq.app.cluster_views import cluster_check, cluster_metrics
from fluxmq.app.config import load
from fluxmq.app.server import Server
from fluxmq.cluster.solo import SoloOverview
from fluxmq.engine.ports.overview import LeavingView, NodeView
from fluxmq.engine.ports.queues import QueueRefused
from fluxmq.model.metrics import METRICS


@pytest.fixture
def overview() -> FakeOverview:
    return FakeOverview()


@pytest.fixture
def node(tmp_path: Path, overview: FakeOverview) -> Iterator[AdminNode]:
    node = AdminNode(tmp_path / "admin.sock", cluster=overview)
    node.start()
    yield node
    node.stop()


def run(node: AdminNode, *arguments: str) -> Result:
    return CliRunner().invoke(cli.cli, ["cluster", *arguments, "--socket", str(node.path)], standalone_mode=False)


def lines(node: AdminNode, *arguments: str) -> list[list[str]]:
    result = run(node, *arguments)
    assert result.exception is None, result.output
    return [line.split() for line in result.output.splitlines()]


def as_json(node: AdminNode, *arguments: str) -> Any:
    return json.loads(run(node, *arguments, "--json").output)


# --- fluxmq cluster ------------------------------------------------------------------------------------------------

def test_status_shows_this_node_and_what_went_to_each_other(node: AdminNode, overview: FakeOverview) -> None:
    found = lines(node, "status")
    for line in (["node", "one"], ["state", "serving"], ["cluster", "c1"], ["leader", "two"],
                 ["nodes", "2", "of", "3", "have", "a", "lease"], ["lease", "left", "8.2s"], ["epoch", "5"],
                 ["caches", "up", "to", "date,", "revision", "40"], ["sessions", "3", "of", "7", "are", "here"],
                 ["two", "yes", "1", "2", "3", "4", "5", "6", "7", "8", "0", "-"],
                 ["three", "no", *("0",) * 8, "2", "no", "route\\x1b", "to", "host"]):
        assert line in found
    own, *others = overview.view.nodes
    overview.set(behind=1, nodes=(replace(own, adopted=2), *others))
    assert ["sessions", "3", "of", "7", "are", "here,", "2", "of", "them", "adopted"] in lines(node, "status")
    assert ["caches", "1", "revision", "behind", "41"] in lines(node, "status")
    assert as_json(node, "status")["peers"][1]["credit_bytes"] == 7


@pytest.mark.parametrize(("state", "reason", "status", "said"), [
    ("serving", "", 0, "serving"), ("leaving", "an operator asked for it", 0, "leaving: an operator asked for it"),
    ("joining", "waits for two", 1, "joining: waits for two"),
    ("fenced", "its key is gone", 1, "fenced: its key is gone"),
    ("without_quorum", "etcd has no leader", 1, "without quorum: etcd has no leader")])
def test_the_exit_status_of_status_says_whether_all_is_well(node: AdminNode, overview: FakeOverview, state: str,
                                                            reason: str, status: int, said: str) -> None:
    overview.set(state=state, reason=reason)
    result = run(node, "status")
    assert result.return_value == status and said in result.output
    assert run(node, "status", "--json").return_value == status


def test_what_of_a_node_that_serves_does_not_work_is_told(node: AdminNode, overview: FakeOverview) -> None:
    overview.set(degraded=("the listener has ended",))
    result = run(node, "status")
    assert result.return_value == 1 and ["degraded", "the", "listener", "has", "ended"] in lines(node, "status")
    assert cluster_check(overview.view) == {"status": "degraded", "details": "the listener has ended"}
    overview.set(state="without_quorum", reason="no leader")
    assert cluster_check(overview.view) == {
        "status": "degraded", "details": "without quorum: no leader; the listener has ended"}
    overview.set(state="fenced", reason="its key is gone")
    assert cluster_check(overview.view) == {
        "status": "down", "details": "fenced: its key is gone; the listener has ended"}


def test_members_lists_every_node_also_one_that_is_down(node: AdminNode) -> None:
    assert lines(node, "members")[1:] == [
        ["one", "(this", "one)", "10.0.0.1", "7948", "11", "serving", "no", "5", "8.2s", "voter", "1"],
        ["three", "-", "-", "-", "down", "no", "-", "-", "learner,", "does", "not", "answer", "-"],
        ["two", "10.0.0.2", "7949", "22", "serving", "yes", "9", "-", "-", "1"]]
    assert [one["id"] for one in as_json(node, "members")["nodes"]] == ["one", "three", "two"]


def test_sessions_counts_those_of_each_node(node: AdminNode) -> None:
    assert lines(node, "sessions")[1:] == [["one", "(this", "one)", "serving", "3", "0"], ["three", "down", "0", "0"],
                                           ["two", "serving", "4", "1"], ["7", "in", "all"]]
    assert as_json(node, "sessions") == {"sessions": {"one": 3, "three": 0, "two": 4},
                                         "adopted": {"one": 0, "three": 0, "two": 1}, "total": 7}


def test_voters_are_added_and_removed(node: AdminNode, overview: FakeOverview) -> None:
    assert "three has a vote" in run(node, "voters", "add", "three").output
    words = ["cluster", "voters", "remove", "two", "--socket", str(node.path)]
    result = CliRunner().invoke(cli.cli, words, input="n\n")
    assert isinstance(result.exception, AdminError) and "nothing was done" in str(result.exception)
    assert "two has no vote any more" in run(node, "voters", "remove", "two", "--yes").output
    assert overview.changes == [("add", "three"), ("remove", "two")]
    overview.refusal = QueueRefused("conflict", "without two etcd has 2 members with a vote", "")
    assert "without two etcd has 2" in str(run(node, "voters", "remove", "two", "--yes").exception)


def test_leave_asks_first(node: AdminNode, overview: FakeOverview) -> None:
    result = CliRunner().invoke(cli.cli, ["cluster", "leave", "--socket", str(node.path)], input="n\n")
    assert isinstance(result.exception, AdminError) and "nothing was done" in str(result.exception)
    assert overview.leaves == 0
    assert "one leaves" in run(node, "leave", "--yes", "--no-wait").output
    assert overview.leaves == 1


def test_leave_waits_until_the_broker_has_stopped(tmp_path: Path, overview: FakeOverview) -> None:
    node = AdminNode(tmp_path / "other.sock", cluster=overview)
    node.start()
    results: list[Result] = []
    command = threading.Thread(target=lambda: results.append(run(node, "leave", "--yes")))
    command.start()
    try:
        wait_until(lambda: overview.leaves)
        node.do(lambda: overview.progress.extend([
            LeavingView(node="one", state="leaving", sessions=1, queues=3),
            LeavingView(node="one", state="leaving", queues=2, moved=1, queue="jobs", to="two"),
            LeavingView(node="one", state="leaving", moved=2, ended=True, stay={"mine": "it is exclusive"})]))
        wait_until(lambda: any(view.ended for view in overview.told))
        assert command.is_alive()
    finally:
        node.stop()
    command.join(30)
    assert results[0].exception is None
    said = results[0].output
    for line in ("1 session to hand over, 3 queues to move\n",
                 "0 sessions to hand over, 2 queues to move: jobs goes to node two\n",
                 "one has left, and 2 queues moved", "\nqueue mine stays with it: it is exclusive\n"):
        assert line in said
    assert "its log says" not in said


def test_leave_does_not_guess_what_a_node_that_was_killed_has_moved(tmp_path: Path, overview: FakeOverview) -> None:
    node = AdminNode(tmp_path / "other.sock", cluster=overview)
    overview.progress = [LeavingView(node="one", state="leaving", queues=2, moved=1)]
    node.start()
    results: list[Result] = []
    command = threading.Thread(target=lambda: results.append(run(node, "leave", "--yes", "--json")))
    command.start()
    wait_until(lambda: overview.leaves)
    node.stop()
    command.join(30)
    told = json.loads(results[0].stdout)
    assert told["left"] and told.get("stay") is None


def test_leave_ends_with_an_error_if_the_node_stays(node: AdminNode, overview: FakeOverview) -> None:
    results: list[Result] = []
    command = threading.Thread(target=lambda: results.append(run(node, "leave", "--yes")))
    command.start()
    wait_until(lambda: overview.leaves)
    node.do(lambda: overview.set(state="fenced", reason="its key is gone"))
    command.join(30)
    assert "one does not leave: it is fenced: its key is gone" in str(results[0].exception)


def test_leave_says_why_it_is_refused(node: AdminNode, overview: FakeOverview) -> None:
    overview.refusal = QueueRefused("unavailable", "nobody can take the sessions over", "start another node")
    result = run(node, "leave", "--yes")
    assert "nobody can take the sessions over (start another node)" in str(result.exception)


def test_without_a_broker_each_command_says_so(tmp_path: Path) -> None:
    for command in ("status", "members", "sessions", "leave"):
        result = CliRunner().invoke(cli.cli, ["cluster", command, "--socket", str(tmp_path / "no.sock")])
        assert "no broker answers" in str(result.exception)


# --- readiness and metrics -----------------------------------------------------------------------------------------

@pytest.mark.parametrize(("state", "reason", "check"), [
    ("standalone", "", None), ("serving", "", {"status": "up"}),
    ("without_quorum", "etcd has no leader", {"status": "up", "details": "without quorum: etcd has no leader"}),
    ("joining", "", {"status": "down", "details": "joining"}),
    ("fenced", "its key is gone", {"status": "down", "details": "fenced: its key is gone"}),
    ("leaving", "", {"status": "down", "details": "leaving"})])
def test_clients_are_sent_to_a_node_that_serves(overview: FakeOverview, state: str, reason: str,
                                                check: dict[str, str] | None) -> None:
    overview.set(state=state, reason=reason)
    assert cluster_check(overview.view) == check


def test_every_metric_of_a_cluster_has_its_number(overview: FakeOverview) -> None:
    overview.set(behind=2)
    found = cluster_metrics(overview.view)
    assert set(found) == {metric.name for metric in METRICS if metric.clustered}
    assert found["fluxmq_cluster_state"] == {("serving",): 1}
    assert [found[f"fluxmq_cluster_{name}"] for name in (
        "nodes", "leader", "epoch", "lease_left_seconds", "revisions_behind")] == [2, False, 5, 8.25, 2]
    assert found["fluxmq_cluster_sessions"] == {("one",): 3, ("two",): 4, ("three",): 0}
    assert found["fluxmq_cluster_sessions_adopted"] == {("one",): 0, ("two",): 1, ("three",): 0}
    assert [found[f"fluxmq_cluster_peer_{name}"]["two",] for name in (
        "connected", "sent_batches_total", "received_batches_total", "sent_messages_total", "received_messages_total",
        "sent_bytes_total", "received_bytes_total", "credit_bytes", "unacknowledged_bytes", "errors_total")] == [
        True, 1, 2, 3, 4, 5, 6, 7, 8, 0]


# --- whole servers -------------------------------------------------------------------------------------------------

async def page(address: str, path: str) -> tuple[int, str]:
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(f"GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
    head, _, body = (await reader.read()).partition(b"\r\n\r\n")
    writer.close()
    return int(head.split()[1]), body.decode()


def serve(tmp_path: Path, overview: FakeOverview | None, *paths: str) -> list[tuple[int, str]]:
    """What a server with this overview answers at its health port."""
    async def scenario() -> list[tuple[int, str]]:
        config, _ = load(None, {}, [f"storage.dir={tmp_path / 'data'}", "server.health_addr=127.0.0.1:0", *(
            f"server.{slot}.plain.addr=127.0.0.1:0" for slot in ("mqtt.tcp", "mqtt.websocket", "amqp091"))])
        server = Server(config, overview=overview)
        try:
            server.initialize()
            await server.start()
            assert server.health is not None
            Metrics(server.snapshots.metrics, strict=True).render()
            return [await page(server.health.address, path) for path in paths]
        finally:
            await server.stop()

    return asyncio.run(scenario())


def test_a_standalone_server_is_a_cluster_of_one(tmp_path: Path) -> None:
    (status, body), (ready, checks), (_, metrics) = serve(tmp_path, None, "/cluster", "/ready", "/metrics")
    shown = json.loads(body)
    assert status == 200 and (shown["env"], shown["state"], shown["peers"]) == ("", "standalone", [])
    assert [one["id"] for one in shown["nodes"]] == [shown["local"]] and shown["nodes"][0]["pid"] == os.getpid()
    assert ready == 200 and "cluster" not in checks and "fluxmq_cluster" not in metrics


def test_a_server_that_is_fenced_is_not_ready_and_says_why(tmp_path: Path, overview: FakeOverview) -> None:
    overview.set(state="fenced", reason="its key is gone")
    (ready, checks), (status, _), (_, metrics) = serve(tmp_path, overview, "/ready", "/cluster", "/metrics")
    assert ready == 503 and json.loads(checks)["checks"]["cluster"] == {
        "status": "down", "details": "fenced: its key is gone"}
    assert status == 200 and 'fluxmq_cluster_state{state="fenced"} 1.0' in metrics


def test_a_standalone_node_cannot_leave() -> None:
    alone = SoloOverview("host", 7, "1.0", lambda: 5)
    assert alone.snapshot().own == NodeView(id="host", pid=7, version="1.0", sessions=5)
    with pytest.raises(QueueRefused, match="no cluster that it could leave") as caught:
        asyncio.run(alone.leave())
    assert caught.value.kind == "conflict"
