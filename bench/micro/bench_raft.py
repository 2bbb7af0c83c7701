"""What replication costs without a disk and a network: three replicas of a group in one process, with messages that are
given from one to the other, as objects or as bytes.

    pytest bench/micro/bench_raft.py --benchmark-columns=min,median,rounds

Each round proposes BATCHES times `count` entries of 256 bytes at the leader; all are on every disk and committed
everywhere when it ends. extra_info has the nanoseconds for each entry, of all three replicas together.
FLUXMQ_BENCH_SMOKE=1 makes it short.
"""
from __future__ import annotations

import os
from typing import Any

import pytest

from fluxmq._core.raft.log import EntryLog
from fluxmq._core.raft.machine import Raft
from fluxmq._core.raft.messages import ENTRY_RECORDS, decode_message, encode_message
from fluxmq.bench.micro.timing import note_nanoseconds

BATCHES = 10 if os.environ.get("FLUXMQ_BENCH_SMOKE") == "1" else 1000


def settle(replicas: list[Raft], as_bytes: bool) -> None:
    """Until nobody has anything to say."""
    moved = True
    while moved:
        moved = False
        for replica in replicas:
            taken = replica.take()
            if not taken:
                continue
            moved = True
            replica.persisted(taken.number)
            for message in taken.now + taken.later:
                replicas[message.to - 1].step(decode_message(encode_message(message)) if as_bytes else message)


@pytest.mark.parametrize("way", ["objects", "bytes"])
@pytest.mark.parametrize("count", [1, 100])
def test_entries(benchmark: Any, count: int, way: str) -> None:
    replicas = [Raft(number, EntryLog({1, 2, 3}), lambda n: 0) for number in (1, 2, 3)]
    replicas[0].campaign()
    settle(replicas, way == "bytes")
    assert replicas[0].leads
    batch = [(ENTRY_RECORDS, bytes(256))] * count

    def rounds() -> None:
        for _ in range(BATCHES):
            last = replicas[0].propose(batch)
            settle(replicas, way == "bytes")
            assert replicas[2].commit == last
            for replica in replicas:
                replica.forget(last)

    benchmark.pedantic(rounds, rounds=5, warmup_rounds=1)
    note_nanoseconds(benchmark, "ns_per_entry", BATCHES * count)
