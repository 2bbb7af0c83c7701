"""The cluster of files that make none of their own. Each file starts it for itself."""
from __future__ import annotations

from collections.abc import Iterator

import pytest
from kit.cluster import Cluster


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Three nodes with a listener for AMQP 0-9-1."""
    with Cluster(tmp_path_factory.mktemp("cluster"), 3, ttl_s=6, settings={
            "server.amqp091.plain.addr": "127.0.0.1:0"}) as cluster:
        yield cluster
        for broker in cluster.brokers:
            broker.check()
