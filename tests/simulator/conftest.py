"""What tests of the simulator share."""
from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest
from simulator.node import LIVES


@pytest.fixture(scope="module", autouse=True)
def lives_end() -> Iterator[None]:
    """No broker of a file outlives it. What waits for commits refers to a broker unseen by the collector, and each has
    descriptors; a worker with millions of objects collects rarely by itself."""
    yield
    for node in list(LIVES):
        if hasattr(node, "hub"):  # it has begun to start
            node.hub.end()
    while gc.collect():  # a coroutine that is collected ends then, and leaves more to collect
        pass
