"""The table of metrics against Prometheus' own rules, and the page against the table."""
import re

import pytest
from prometheus_client import REGISTRY
from prometheus_client.parser import text_string_to_metric_families

from fluxmq._core.errors import UsageError
from fluxmq.admin.metrics import Metrics
from fluxmq.model.metrics import METRICS, Snapshot


def full() -> dict[str, object]:
    """A snapshot with everything: each value is the metric's place in the table."""
    snapshot: dict[str, object] = {}
    for place, metric in enumerate(METRICS):
        if metric.kind == "summary":
            snapshot[metric.name] = {("sum",): place + 0.5, ("count",): place}
        elif metric.labels:
            first = tuple(label.values[0] if label.values else "1.2.3" for label in metric.labels)
            snapshot[metric.name] = {first: place}
        else:
            snapshot[metric.name] = place
    return snapshot


def page(snapshot: Snapshot, strict: bool = True) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    text = Metrics(lambda: snapshot, strict).render().decode()
    return {(sample.name, tuple(sample.labels.items())): sample.value
            for family in text_string_to_metric_families(text) for sample in family.samples}


def test_names_follow_the_rules() -> None:
    assert len({metric.name for metric in METRICS}) == len(METRICS)
    for metric in METRICS:
        assert re.fullmatch(r"fluxmq_[a-z_]+", metric.name), metric.name
        assert metric.name.endswith("_total") == (metric.kind == "counter"), metric.name
        assert metric.help.endswith(".") and metric.help[0].isupper(), metric.name
        assert metric.unit in ("", "bytes", "seconds")
        assert not metric.unit or metric.unit in metric.name, metric.name
        for label in metric.labels:
            assert re.fullmatch(r"[a-z]+", label.name) and len(set(label.values)) == len(label.values)


def test_every_metric_is_on_the_page_with_its_value() -> None:
    samples = page(full())  # type: ignore[arg-type]
    for place, metric in enumerate(METRICS):
        if metric.kind == "summary":
            assert samples[f"{metric.name}_sum", ()] == place + 0.5
            assert samples[f"{metric.name}_count", ()] == place
        else:
            labels = tuple((label.name, label.values[0] if label.values else "1.2.3") for label in metric.labels)
            assert samples[metric.name, labels] == place


def test_a_series_is_there_before_it_first_happens() -> None:
    samples = page(full())  # type: ignore[arg-type]
    assert samples["fluxmq_messages_dropped_total", (("reason", "expired"),)] == 0
    assert samples["fluxmq_packets_sent_total", (("type", "auth"),)] == 0


def test_the_process_is_on_the_page_and_the_global_registry_is_not() -> None:
    samples = page(full())  # type: ignore[arg-type]
    assert ("process_resident_memory_bytes", ()) in samples
    assert not any(name.startswith("python_") for name, _ in samples)
    assert not any(family.name.startswith("fluxmq") for family in REGISTRY.collect())


@pytest.mark.parametrize(("change", "part"), [
    ({"fluxmq_nonsense": 1}, "not in the table"),
    ({"fluxmq_connections": None}, "not in the snapshot"),
    ({"fluxmq_connections": {("a",): 1}}, "wrong form"),
    ({"fluxmq_acl_denied_total": 1}, "wrong form"),
    ({"fluxmq_acl_denied_total": {("read",): 1}}, "not among"),
    ({"fluxmq_acl_denied_total": {("publish", "x"): 1}}, "not among"),
    ({"fluxmq_journal_sync_seconds": {("mean",): 1}}, "not among")])
def test_strict_finds_what_does_not_fit_and_otherwise_the_rest_is_served(change: dict[str, object], part: str) -> None:
    snapshot = {name: value for name, value in {**full(), **change}.items() if value is not None}
    with pytest.raises(UsageError, match=part):
        Metrics(lambda: snapshot, strict=True).render()  # type: ignore[arg-type, return-value]
    samples = page(snapshot, strict=False)  # type: ignore[arg-type]
    assert samples["fluxmq_sessions", ()] > 0
    assert not any("nonsense" in name or "read" in dict(labels).values() for name, labels in samples)


def test_without_a_cluster_the_page_has_none_of_its_metrics_and_with_one_all() -> None:
    alone = {name: value for name, value in full().items() if "cluster" not in name}
    assert not any("cluster" in name for name, _ in page(alone))  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="fluxmq_cluster_epoch"):
        page({**alone, "fluxmq_cluster_nodes": 3})  # type: ignore[dict-item]


def test_the_snapshot_is_taken_per_page_and_not_before() -> None:
    calls = []

    def snapshot() -> Snapshot:
        calls.append(1)
        return {"fluxmq_connections": len(calls)}

    metrics = Metrics(snapshot)
    assert not calls
    for expected in (1, 2):
        assert f"fluxmq_connections {expected}.0\n".encode() in metrics.render()
