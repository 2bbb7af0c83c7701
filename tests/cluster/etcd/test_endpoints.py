"""Endpoints that are closed while somebody waits for their connection."""
from __future__ import annotations

import asyncio
import gc

from cluster.etcd.conftest import Run
from kit.broker import free_port

from fluxmq.cluster.etcd.endpoints import Endpoint


def test_a_channel_that_is_closed_before_it_is_watched_complains_to_nobody(run: Run) -> None:
    """gRPC then raises in the task that watches it."""
    async def test() -> None:
        endpoint = Endpoint(f"127.0.0.1:{free_port()}", None)
        settled = asyncio.ensure_future(endpoint._settled(5.0))
        await asyncio.sleep(0)
        watching = endpoint._changing
        assert watching is not None and not watching.done()
        await endpoint.close()
        assert watching.done()
        await asyncio.wait([settled])
        del endpoint, watching, settled
        gc.collect()
        await asyncio.sleep(0)
    run(test())
