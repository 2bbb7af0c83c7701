"""Uncached match in the subscription index: 1 k, 100 k and 1 M distinct filters.

    pytest bench/micro/bench_match.py --benchmark-columns=min,median,rounds      # FLUXMQ_BENCH_SMOKE=1: 1 k and 10 k

Filters are about 30 bytes: 70 % exact, 20 % with one `+`, 10 % ending in `#`, one subscriber each. `exact`, `plus` and
`rest` ask for topics made from a filter of that kind (so at least one matches), `absent` for topics that no filter was
made from. Up to 100 000 topics, drawn from the whole index, are asked for once each per round, so that no match cache
would help, and the processor's little. extra_info: ns per match, matches per topic, bytes per filter (growth of the
resident set while the filters are added; none below 10 k, where pages are too coarse).
"""
import gc
import os
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest

from fluxmq._core.testing.trie_probe import TrieProbe

SMOKE = os.environ.get("FLUXMQ_BENCH_SMOKE") == "1"
SIZES = [1_000, 10_000] if SMOKE else [1_000, 100_000, 1_000_000]
TOPICS = 1_000 if SMOKE else 100_000
KINDS = ["exact", "plus", "rest", "absent"]
PROPERTIES = ["temperature", "pressure", "flow", "state", "current", "voltage"]


@dataclass
class Data:
    trie: TrieProbe
    bytes_per_filter: float | None
    topics: dict[str, list[bytes]] = field(default_factory=dict)


def topic_levels(rng: random.Random) -> list[bytes]:
    """A topic such as plant7/line03/dev04711/temperature: few plants and lines, many devices."""
    return [b"plant%d" % rng.randrange(40), b"line%02d" % rng.randrange(100), b"dev%05d" % rng.randrange(100_000),
            rng.choice(PROPERTIES).encode()]


def make_filter(rng: random.Random, kind: str) -> tuple[bytes, bytes]:
    """A filter of that kind, and a topic that it matches."""
    levels = topic_levels(rng)
    topic = b"/".join(levels)
    if kind == "plus":
        levels[rng.randrange(4)] = b"+"
    elif kind == "rest":
        levels[3:] = [b"#"]
    return b"/".join(levels), topic


@lru_cache(maxsize=1)       # one index at a time: the million takes a while to make and much memory
def data_of(size: int) -> Data:
    rng = random.Random(size)
    filters: dict[bytes, None] = {}
    topics: dict[str, list[bytes]] = {kind: [] for kind in KINDS}
    while len(filters) < size:
        kind = rng.choices(KINDS[:3], (70, 20, 10))[0]
        topic_filter, topic = make_filter(rng, kind)
        filters[topic_filter] = None
        topics[kind].append(topic)
    gc.collect()
    before = resident_bytes()
    trie = TrieProbe(rng.getrandbits(64))
    for key, topic_filter in enumerate(filters):
        trie.add(topic_filter, key)
    grown = resident_bytes() - before
    for kind in KINDS[:3]:
        topics[kind] = rng.sample(topics[kind], min(TOPICS, len(topics[kind])))
    topics["absent"] = [b"/".join(topic_levels(rng)) + b"/x" for _ in range(TOPICS)]
    return Data(trie, grown / size if size >= 10_000 else None, topics)


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", SIZES)
def test_match(benchmark: Any, report: Callable[[str], None], size: int, kind: str) -> None:
    data = data_of(size)
    topics = data.topics[kind]
    found = benchmark.pedantic(data.trie.match_many, args=(topics, 1), rounds=3 if SMOKE else 7, warmup_rounds=1)
    assert found >= (0 if kind == "absent" else len(topics))
    if benchmark.stats is None:         # --benchmark-disable takes no times
        return
    nanoseconds = benchmark.stats.stats.median / len(topics) * 1e9
    benchmark.extra_info.update(filters=size, ns_per_match=round(nanoseconds),
                                matches_per_topic=round(found / len(topics), 2),
                                bytes_per_filter=data.bytes_per_filter and round(data.bytes_per_filter))
    memory = "" if data.bytes_per_filter is None else f", {data.bytes_per_filter:.0f} B/filter"
    report(f"{size:>9,} filters, {kind:<6}: {nanoseconds:6.0f} ns per match, {found / len(topics):.2f} matches{memory}")


@pytest.fixture
def report(capsys: pytest.CaptureFixture[str]) -> Callable[[str], None]:
    def show(line: str) -> None:
        with capsys.disabled():
            print(f"\n{line}", end="")
    return show
