"""What it costs to wait for a commit line.

    pytest bench/micro/bench_commits.py --benchmark-columns=min,median,rounds

1 000 links answer once in each round, each for two things that were given to commit lines: `one`, twice to the same
line, as on a node whose journal is the only one; `two`, to one line each, which commit one after the other. extra_info
has the nanoseconds per answer, from giving to leaving. FLUXMQ_BENCH_SMOKE=1 makes it short.
"""
import os
from typing import Any

import pytest

from fluxmq._core.hub.hub import Hub
from fluxmq._core.testing.commits_probe import WaitingLink, wait_rounds
from fluxmq.bench.micro.timing import note_nanoseconds

LINKS = 1000
ROUNDS = 2 if os.environ.get("FLUXMQ_BENCH_SMOKE") == "1" else 200


@pytest.mark.parametrize("lines", ["one", "two"])
def test_wait(benchmark: Any, lines: str) -> None:
    hub = Hub(None)
    links = [WaitingLink(hub) for _ in range(LINKS)]
    first, second = hub.commits.open_line("first"), hub.commits.open_line("second")
    if lines == "one":
        second = first
    assert wait_rounds(hub, links, first, second, 1) == LINKS
    benchmark.pedantic(wait_rounds, (hub, links, first, second, ROUNDS), rounds=5, warmup_rounds=1)
    note_nanoseconds(benchmark, "ns_per_answer", ROUNDS * LINKS)
