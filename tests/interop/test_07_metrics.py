"""The snapshot of a whole server has exactly the metrics of the table, in the table's form."""
from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from fluxmq.admin.metrics import Metrics
from fluxmq.app.config import load
from fluxmq.app.server import Server
from fluxmq.model.metrics import METRICS


@pytest.mark.parametrize("storage", ["rocksdb", "memory"])
def test_snapshot_is_the_table(storage: str, tmp_path: Path) -> None:
    async def render() -> tuple[set[str], str]:
        config, _ = load(None, {}, [
            f"storage.type={storage}", f"storage.dir={tmp_path / 'data'}", "server.mqtt.tcp.plain.addr=127.0.0.1:0",
            "server.mqtt.websocket.plain.addr=127.0.0.1:0", "server.amqp091.plain.addr=127.0.0.1:0",
            "server.health_addr=127.0.0.1:0"])
        server = Server(config)
        try:
            server.initialize()
            before = Metrics(server.snapshots.metrics, strict=True).render()
            await server.start()
            names = set(server.snapshots.metrics())
            return names, (before + Metrics(server.snapshots.metrics, strict=True).render()).decode()
        finally:
            await server.stop()

    names, page = asyncio.run(render())
    assert names == {metric.name for metric in METRICS if not metric.clustered}
    for metric in METRICS:
        assert (f"# HELP {metric.name} {metric.help}\n" in page) != metric.clustered
