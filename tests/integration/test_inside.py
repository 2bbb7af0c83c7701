"""What a running broker shows of itself over HTTP."""
from __future__ import annotations

import contextlib
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from kit.broker import Broker
from kit.client import Client
from prometheus_client.parser import text_string_to_metric_families

from fluxmq.model.metrics import METRICS


@pytest.fixture(params=["rocksdb", "memory"])
def broker(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Broker]:
    running = Broker(tmp_path, {"storage.type": request.param}).start()
    yield running
    running.check()
    running.stop()


def get(broker: Broker, path: str) -> str:
    host, port = broker.health
    with urllib.request.urlopen(f"http://{host}:{port}{path}", timeout=10) as answer:
        return str(answer.read().decode())


def test_every_metric_has_a_value_from_the_running_broker(broker: Broker) -> None:
    with contextlib.closing(Client(broker.address, 5)) as client:
        client.connect("c", clean_start=True, properties={"session_expiry_interval": 3600})
        client.subscribe("t", qos=1)
        client.publish("t", b"x", qos=1)
        client.receive("t", b"x")
        families = {family.name: family for family in text_string_to_metric_families(get(broker, "/metrics"))}
    for metric in METRICS:
        if metric.clustered:
            assert metric.name.removesuffix("_total") not in families, metric.name
            continue
        assert families[metric.name.removesuffix("_total")].samples, metric.name
    sync = {sample.name: sample.value for sample in families["fluxmq_journal_sync_seconds"].samples}
    assert (sync["fluxmq_journal_sync_seconds_count"] > 0) == (broker.settings["storage.type"] == "rocksdb")


def test_ready_and_healthy(broker: Broker) -> None:
    assert '"ready"' in get(broker, "/ready")
    assert '"healthy"' in get(broker, "/health")
