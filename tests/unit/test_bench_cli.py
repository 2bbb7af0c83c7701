"""When a comparison counts as failed."""
import pytest

import fluxmq.bench.load.brokers as brokers
from fluxmq.bench.load.brokers import BrokerError, start_mosquitto
from fluxmq.bench.load.cli import failed

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
