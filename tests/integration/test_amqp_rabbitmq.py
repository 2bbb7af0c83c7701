"""The AMQP load generator against RabbitMQ, started as `fluxmq bench` starts it: every row at smoke size."""
from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from kit.amqp_server import FakeAmqp
from kit.watch import wait_until

from fluxmq._core.amqp091 import methods as m
from fluxmq.bench.load import amqp_cli, rabbitmq, rabbitmq_cluster
from fluxmq.bench.load.amqp_options import AmqpOptions
from fluxmq.bench.load.amqp_rows import AMQP_ROWS, AMQP_SMOKE
from fluxmq.bench.load.amqp_runner import run_amqp
from fluxmq.bench.load.amqp_session import Session, SessionError
from fluxmq.bench.load.brokers import Broker, BrokerError, Needs, start_broker
from fluxmq.bench.load.cli import bench
from fluxmq.bench.load.procinfo import children
from fluxmq.bench.load.rabbitmq_cluster import RabbitCluster

SHORT: dict[str, Any] = {"duration": 0.3, "warmup": 0.1, "drain": 20.0, "stall": 600.0}


def require_rabbitmq() -> tuple[str, str]:
    """Its programs. Where it is missing the test is skipped, whatever FLUXMQ_REQUIRE_TOOLS says: it brings Erlang with
    it, and what the generator does is shown with a broker of our own as well (test_amqp_generator.py)."""
    programs = rabbitmq.find_rabbitmq()
    if programs is None:
        pytest.skip("rabbitmq is not installed (Debian package: rabbitmq-server)")
    return programs


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("rabbitmq")


@pytest.fixture(scope="module")
def broker(folder: Path) -> Iterator[Broker]:
    require_rabbitmq()
    with start_broker("rabbitmq", Needs(folder=folder)) as running:
        yield running


@pytest.mark.parametrize("row", AMQP_ROWS)
def test_every_row_loses_nothing(broker: Broker, row: str) -> None:
    given = SHORT | AMQP_ROWS[row] | AMQP_SMOKE.get(row, {})
    figures = run_amqp(AmqpOptions(addr=broker.addresses["amqp"], broker_pid=broker.pid, **given))
    total = figures["total"]
    assert figures["drained"] and figures["server"].startswith("RabbitMQ ")
    assert total["sent"] > 0
    assert total["acked"] == (total["sent"] if given.get("confirms", True) else 0)
    readers = given.get("subs", 1)
    fanout = readers if given["queue"] == "stream" else min(readers, 1)
    assert total["delivered"] == total["received"] == total["expected"] == total["sent"] * fanout
    assert not any(total[fault] for fault in ("lost", "duplicates", "reordered", "foreign", "refused", "returned",
                                              "redelivered", "stalls", "pauses"))
    assert figures["broker_cpu_seconds"] > 0


@pytest.mark.parametrize("given", [
    {"queues": "fanout", "subs": 3, "ack_every": 10}, {"queues": "pairs", "pubs": 3, "subs": 3, "prefetch": 0},
    {"queue": "quorum", "size": 300_000, "window": 5}, {"rate": 1000.0, "ack_every": 0}])
def test_other_ways_to_load(broker: Broker, given: dict[str, Any]) -> None:
    total = run_amqp(AmqpOptions(addr=broker.addresses["amqp"], **SHORT | given))["total"]
    assert total["acked"] == total["sent"] > 0
    assert total["delivered"] == total["expected"] == total["sent"] * (3 if given.get("queues") == "fanout" else 1)


def test_rabbitmq_says_why(broker: Broker) -> None:
    with pytest.raises(SessionError, match="403 ACCESS_REFUSED"):
        run_amqp(AmqpOptions(addr=broker.addresses["amqp"], password="wrong"))
    with pytest.raises(SessionError, match=r"refused: 530 NOT_ALLOWED"):
        run_amqp(AmqpOptions(addr=broker.addresses["amqp"], vhost="/nowhere"))


def test_it_keeps_to_itself_and_ends_with_everything_it_started(broker: Broker, folder: Path) -> None:
    """It is the last test of this broker, and ends it: a start of RabbitMQ takes many seconds."""
    with broker:
        assert isinstance(broker, rabbitmq.RabbitMQ)
        assert broker.addresses["amqp"].startswith("127.0.0.1:")
        started = [*children(broker.pid), *children(broker.epmd.pid)]
        assert len(started) > 2
        assert (folder / "mnesia").is_dir() and (folder / ".erlang.cookie").exists()
    assert [pid for pid in (broker.pid, broker.epmd.pid) if Path(f"/proc/{pid}").exists()] == []


def test_the_command_starts_it(tmp_path: Path) -> None:
    require_rabbitmq()
    said = CliRunner().invoke(bench, ["amqp", "--start", "--dir", str(tmp_path), "--row", "queue-work", "--smoke",
                                      "--json"])
    assert said.exit_code == 0, said.output
    figures = json.loads(said.output)
    assert figures["total"]["lost"] == 0 and figures["broker_cpu_seconds"] > 0
    assert os.listdir(tmp_path) == []


def test_it_says_when_it_is_not_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rabbitmq, "DEBIAN_PROGRAM", str(tmp_path / "none"))
    monkeypatch.setattr(rabbitmq, "PLACES", str(tmp_path))
    with pytest.raises(BrokerError, match=r"rabbitmq is not installed \(Debian package: rabbitmq-server\)"):
        start_broker("rabbitmq", Needs(folder=tmp_path))
    for nodes in "13":
        said = CliRunner().invoke(bench, ["amqp", "--start", "--nodes", nodes, "--dir", str(tmp_path)])
        assert (said.exit_code, "is not installed" in said.output) == (1, True)
    assert os.listdir(tmp_path) == []


def test_a_start_that_fails_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    programs = require_rabbitmq()
    broken = tmp_path / "rabbitmq-server"
    broken.write_text("#!/bin/sh\necho it cannot be done\nexit 3\n")
    broken.chmod(0o755)
    monkeypatch.setattr(rabbitmq, "find_rabbitmq", lambda: (str(broken), programs[1]))
    epmds: list[Broker] = []
    start_epmd = rabbitmq.start_epmd

    def remembered(program: str, needs: Needs) -> Broker:
        epmds.append(start_epmd(program, needs))
        return epmds[0]

    monkeypatch.setattr(rabbitmq, "start_epmd", remembered)
    with pytest.raises(BrokerError, match="it cannot be done"):
        start_broker("rabbitmq", Needs(folder=tmp_path))
    assert epmds[0].process.poll() is not None


def wait_ended(pids: list[int]) -> None:
    """Until none runs; a child of a node ends when it reads the end of its pipe, and init takes its time to collect
    it."""
    wait_until(lambda: all(state(pid) in "ZX" for pid in pids))


def state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "X"


@pytest.mark.soak       # three starts of RabbitMQ; what it shows is of RabbitMQ, and of how the comparison sets it up
@pytest.mark.timeout(600)
def test_a_cluster_has_the_queue_on_one_node_and_clients_on_the_others(tmp_path: Path) -> None:
    require_rabbitmq()
    with RabbitCluster(tmp_path) as cluster:
        assert cluster.epmd is not None
        pids = [pid for node in [*cluster.nodes, cluster.epmd] for pid in children(node.pid)]
        assert len(pids) > len(cluster.nodes) + 1
        owner, publisher, consumer = (cluster.address(number) for number in range(3))
        figures = run_amqp(AmqpOptions(addr=publisher, queue_addr=owner, sub_addrs=(consumer,), **SHORT))
        total = figures["total"]
        assert total["sent"] == total["acked"] == total["delivered"] == total["received"] > 0 and figures["drained"]
        options = AmqpOptions(addr=consumer)
        declaring, other = Session(options, None, addr=owner), Session(options, None)
        declaring.call(m.QueueDeclare(queue="home", durable=True))
        other.call(m.QueueDeclare(queue="home", passive=True))
        cluster.nodes[0].stop()
        declaring.close()
        with pytest.raises(SessionError, match="404 NOT_FOUND"):
            other.call(m.QueueDeclare(queue="home", passive=True))
        other.close()
    assert cluster.nodes == []
    wait_ended(pids)


@pytest.mark.parametrize("error", [KeyboardInterrupt, BrokerError])
def test_a_cluster_that_does_not_come_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                                     error: type[BaseException]) -> None:
    """Ctrl-C, or an error, when all nodes were started."""
    programs = require_rabbitmq()
    program = tmp_path / "rabbitmq-server"
    program.write_text("#!/bin/sh\nexec sleep 600\n")
    program.chmod(0o755)
    monkeypatch.setattr(rabbitmq_cluster, "find_rabbitmq", lambda: (str(program), programs[1]))
    waited: list[Broker] = []

    def wait(broker: Broker, _needs: Needs, _seconds: float) -> None:
        waited.append(broker)
        if len(waited) == 4:
            raise error

    monkeypatch.setattr(rabbitmq_cluster, "wait_listening", wait)
    cluster = RabbitCluster(tmp_path)
    with pytest.raises(error), cluster:
        raise AssertionError("it has started")
    assert len({broker.pid for broker in waited}) == 3
    wait_ended([broker.pid for broker in waited])
    assert (cluster.nodes, cluster.epmd) == ([], None)


def test_nodes_that_are_no_cluster_are_refused(tmp_path: Path) -> None:
    """One that finds nobody to join starts alone, and then the clients of the others would wait for nothing."""
    with FakeAmqp() as one, FakeAmqp() as two:
        cluster = RabbitCluster(tmp_path, 2, [Broker("rabbitmq", None, {"amqp": peer.addr})  # type: ignore[arg-type]
                                              for peer in (one, two)])
        with pytest.raises(SessionError, match=f"{two.addr} refused: 404"):
            cluster.check()
    assert len(one.queues) == 1 and not two.queues


@pytest.mark.parametrize(("nodes", "publishers", "consumers"), [(2, 1, 0), (3, 1, 2)])
def test_roles_of_the_nodes_that_the_command_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nodes: int,
                                                    publishers: int, consumers: int) -> None:
    runs: list[AmqpOptions] = []

    class Fake(RabbitCluster):
        def __enter__(self) -> RabbitCluster:
            assert self.count == nodes
            return self

        def address(self, number: int) -> str:
            return f"127.0.0.{number}:5672"

    monkeypatch.setattr(amqp_cli, "RabbitCluster", Fake)
    monkeypatch.setattr(amqp_cli, "run_amqp", lambda options: runs.append(options) or {"total": {"lost": 0}})
    said = CliRunner().invoke(bench, ["amqp", "--start", "--nodes", str(nodes), "--dir", str(tmp_path), "--json"])
    assert said.exit_code == 0, said.output
    assert [(run.queue_addr, run.addr, run.sub_addrs) for run in runs] == [
        ("127.0.0.0:5672", f"127.0.0.{publishers}:5672", (f"127.0.0.{consumers}:5672",))]
    said = CliRunner().invoke(bench, ["amqp", "--nodes", "3"])
    assert (said.exit_code, "--start" in said.output) == (2, True)
