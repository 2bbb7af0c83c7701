"""The model of etcd is judged itself: what etcd guarantees holds under faults. The last tests plant defects, which the
same judge must find."""
from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
from kit.python import TESTS, environment
from simulator.cluster.api import Fault
from simulator.cluster.etcd_history import Wrong, play
from simulator.cluster.raft import Message, Raft, Role, _Read
from simulator.cluster.service import Service
from simulator.cluster.store import SimWatch
from simulator.cluster.world import SimCluster

from fluxmq.cluster.ports import MetadataStore, Range, TransactionResult

SEED_STEP = 1_000_000
AGAIN = """
from simulator.cluster.etcd_history import play
history = play({seed})
print(*history.operations, *history.faults.trace, sep="\\n")
"""


@pytest.mark.parametrize("part", range(4))
def test_histories(part: int, seed: int) -> None:
    histories = [play(seed * SEED_STEP + part * 100 + number) for number in range(10)]
    # They do something.
    results = [one.result for history in histories for one in history.operations]
    assert sum(isinstance(one, Range) for one in results) > 50
    assert sum(isinstance(one, TransactionResult) and one.done for one in results) > 50
    assert results.count(None) > 10
    assert sum(len(history.cluster.etcd.leaders) for history in histories) > 15


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("part", range(20))
def test_many_histories(part: int, seed: int) -> None:
    for number in range(500):
        play(seed * SEED_STEP + 10_000 + part * 1000 + number)


def test_a_seed_decides_everything(seed: int) -> None:
    """Also in another process, in which hashes and addresses are others."""
    first = seed * SEED_STEP + 1
    history = play(first)
    told = "\n".join(map(str, [*history.operations, *history.faults.trace]))
    for number in range(2):
        again = subprocess.run([sys.executable, "-c", AGAIN.format(seed=first)], capture_output=True, text=True,
                               check=True, env=environment(TESTS, PYTHONHASHSEED=str(number + 7)))
        assert again.stdout == told + "\n"


def test_it_is_a_metadata_store(seed: int) -> None:
    store: MetadataStore = SimCluster(seed).store("n1")
    assert store


# ── the judge sees ───────────────────────────────────────────────────────────────────────────────────────────


def _votes_twice(raft: Raft) -> None:
    term, vote = raft._disk.term, raft._disk.vote
    SAVE(raft)
    raft._disk.term, raft._disk.vote = term, vote


def _saves_too_little(raft: Raft) -> None:
    SAVE(raft)
    del raft._disk.log[-2:]
    raft._disk.commit = min(raft._disk.commit, len(raft._disk.log))
    raft._changed_from = min(raft._changed_from, len(raft._disk.log) + 1)


def _commits_alone(raft: Raft) -> bool:
    raft._commit_to(raft.last)
    return True


def _votes_for_any_log(raft: Raft, message: Message) -> None:
    VOTE(raft, message._replace(log_term=1 << 30))


def _confirms_alone(raft: Raft, message: Message) -> None:
    if raft.role is Role.LEADER:
        raft._answer_read(_Read(message.context, raft.commit, message.source, raft.name))
    else:
        READ(raft, message)


def _reads_at_once(_service: Service, done: Callable[[Fault | None], object]) -> None:
    done(None)


def _leaves_out(watch: SimWatch) -> None:
    watch._last += bool(watch.endpoint)
    OPEN(watch)


def _reports_again(watch: SimWatch) -> None:
    watch._last = max(watch._last - 3, 0)
    OPEN(watch)


SAVE, VOTE, READ, OPEN = Raft.save, Raft._on_vote, Raft._on_read, SimWatch._open
DEFECTS = [(Raft, "save", _votes_twice), (Raft, "save", _saves_too_little), (Raft, "_maybe_commit", _commits_alone),
           (Raft, "_on_vote", _votes_for_any_log), (Raft, "_on_read", _confirms_alone),
           (Service, "read_index", _reads_at_once), (SimWatch, "_open", _leaves_out),
           (SimWatch, "_open", _reports_again)]
FOUND_WITHIN = 150


@pytest.mark.parametrize(("owner", "name", "defect"), DEFECTS, ids=[defect.__name__ for _, _, defect in DEFECTS])
def test_a_defect_of_the_model_is_found(seed: int, owner: type, name: str, defect: Callable[..., Any],
                                        monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(owner, name, defect)
    for number in range(FOUND_WITHIN):
        try:
            play(seed * SEED_STEP + number)
        except Wrong:
            print(defect.__name__, number)
            return
    pytest.fail(f"{defect.__name__} is not found within {FOUND_WITHIN} histories")
