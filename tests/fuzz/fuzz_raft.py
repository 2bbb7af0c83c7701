"""Mutation fuzzer of the frames between replicas. Deterministic: a seed and an iteration number are an input.

    python tests/fuzz/fuzz_raft.py [--seconds S | --iterations N] [--seed K] [--out DIR]

Each iteration takes records, some of which are spoilt before their CRC is made, and spoils the frame of them in a few
places. Allowed outcomes: what the naive reading finds too; or a CorruptError where that refuses as well. Whatever else
happens is written to regressions/raft/ as a file, which the tests replay from then on.
"""
from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from random import Random

if __name__ == "__main__":    # run as a script: the tree's root and tests/ are not on the path yet
    sys.path[:0] = [str(Path(__file__).parents[2]), str(Path(__file__).parents[1])]

from fuzz.fuzzing import Fuzzer, mutate
from kit.exact import exact
from oracle import raft

from fluxmq._core.errors import CorruptError
from fluxmq._core.raft.messages import KINDS, Entry, Message, MessageKind
from fluxmq._core.raft.wire import decode_frame, encode_frames

SPICE = bytes((*range(12), 33, 66, 74, 0x7F, 0x80, 0xFF))
FIRST_LENGTH = 9            # where the length of the first record ends
MESSAGE_SUMMED = 74


def make_inputs(seed: int, iteration: int) -> list[tuple[int, bytes]]:
    rng = Random(seed << 32 | iteration)
    data = bytearray(raft.frame(*(random_record(rng) for _ in range(rng.choice((1, 1, 1, 2, 5))))))
    for _ in range(rng.choice((0, 0, 1, 2, 4))):
        mutate(rng, data, SPICE, rng.choice((None, FIRST_LENGTH)))
    return [(0, bytes(data))]


def random_record(rng: Random) -> bytes:
    """Of a frame that is right, or of a body that is not."""
    kind = rng.choice((1, 1, 2, 3, 3, rng.randrange(6)))
    if kind not in (1, 2):
        return raft.record(kind, rng.randbytes(rng.randrange(20)))
    count = 1 if kind == 1 else rng.randrange(1, 5)
    out = [(rng.getrandbits(64), random_message(rng, kind == 2)) for _ in range(count)]
    [frame] = encode_frames(out, 1 << 20)
    body = bytearray(frame[5 + 9:])
    if rng.random() < 0.3:
        mutate(rng, body, SPICE)
    return raft.record(kind, bytes(body), MESSAGE_SUMMED if kind == 1 else None)


def random_message(rng: Random, heartbeat: bool) -> Message:
    if heartbeat:
        return Message(rng.choice((MessageKind.HEARTBEAT, MessageKind.ALIVE)), rng.getrandbits(32),
                       rng.getrandbits(64), sender=1, commit=rng.getrandbits(64))
    kind = rng.choice([kind for kind in MessageKind if kind not in (MessageKind.HEARTBEAT, MessageKind.ALIVE)])
    entries = [Entry(rng.getrandbits(64), rng.randrange(4), rng.randbytes(rng.choice((0, 1, 20, 300))))
               for _ in range(rng.randrange(4))] if kind == MessageKind.APPEND else []
    return Message(kind, rng.getrandbits(32), rng.getrandbits(64), sender=1, index=rng.getrandbits(64), log_term=2,
                   refused=rng.random() < 0.5, forced=rng.random() < 0.5, entries=entries)


def check(kind: int, data: bytes, seen: Counter[str]) -> None:
    """Raises what must not happen."""
    try:
        expected = raft.read(data)
    except raft.Malformed:
        expected = None
    try:
        messages, replicas = decode_frame(exact(data))
    except CorruptError as error:
        assert expected is None
        seen[f"refused: {str(error)[:20]}"] += 1
        return
    found = []
    for group, message in messages:
        *numbers, entries = message.astuple()
        assert isinstance(entries, list)
        found.append((group, (*numbers, [entry.astuple() for entry in entries])))
        seen[KINDS[message.kind - 1]] += 1
    assert (found, replicas) == expected
    seen["frame" if replicas is None else "replicas"] += 1


FUZZER = Fuzzer("raft", "Mutation fuzzer of the frames between replicas.", make_inputs, check)

if __name__ == "__main__":
    FUZZER.main()
