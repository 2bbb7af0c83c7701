"""Raft's state machine (_core/raft) beside etcd/raft: the same steps, and equal states after each of them. What is
compared and what is not, and why, is in kit/raft_pairs.py."""
from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from kit.etcd_raft import EtcdRaft, build_etcd_raft
from kit.raft_pairs import Pairs
from kit.sizes import some

SCHEDULES, STEPS = 250, 80      # of a part
SHOWN = 12
# Otherwise the schedules would be too quiet to prove anything.
HAPPEN = ("COPY", "committed", "compacted", "cuts", "members", "members cut", "restarted", "stepped down", "terms",
          "transfers")


@pytest.fixture(scope="session")
def program(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What is compiled stays in pytest's cache, if there is one: the first time takes ten seconds of a processor."""
    cache = getattr(request.config, "cache", None)
    return build_etcd_raft(tmp_path_factory.mktemp("go") if cache is None else cache.mkdir("go"))


@pytest.fixture
def etcd_raft(program: Path, tmp_path: Path) -> Iterator[EtcdRaft]:
    oracle = EtcdRaft(program, tmp_path / "errors")
    yield oracle
    oracle.close()


@pytest.mark.parametrize("part", some(8, range(800)))
def test_it_does_what_etcd_raft_does(etcd_raft: EtcdRaft, part: int) -> None:
    """2 000 schedules, of 200 000. A failure names its seed, and the steps before."""
    seen: Counter[str] = Counter()
    for seed in range(SCHEDULES * part, SCHEDULES * (part + 1)):
        pairs = Pairs(seed, etcd_raft)
        try:
            pairs.play(STEPS)
        except Exception as error:
            error.add_note("\n".join([f"seed {seed}, after {len(pairs.steps)} steps:", *pairs.steps[-SHOWN:]]))
            raise
        seen += pairs.seen
    assert min(seen[what] for what in HAPPEN) >= 3, seen
