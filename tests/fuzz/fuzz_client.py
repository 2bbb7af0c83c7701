"""Mutation fuzzer of the client's machine. Deterministic: a seed and an iteration number are an input.

    python tests/fuzz/fuzz_client.py [--seconds S | --iterations N] [--seed K] [--out DIR]

Each iteration takes packets of a server and spoils them in a few places. Allowed outcomes: they are read, or a
ProtocolError closes the machine; the same whether they come whole or in pieces; and every message is one that the
decoder reads from the same bytes, in its order. Whatever else happens is written to regressions/client/ as a file,
which the tests replay from then on.
"""
from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from random import Random

if __name__ == "__main__":    # run as a script: the tree's root and tests/ are not on the path yet
    sys.path[:0] = [str(Path(__file__).parents[2]), str(Path(__file__).parents[1])]

from fuzz.fuzzing import Fuzzer
from kit.client_machine import cut, outcome, spoil, stream
from kit.exact import exact

from fluxmq._core.errors import ProtocolError
from fluxmq._core.mqtt.decode import Decoder
from fluxmq._core.mqtt.packets import Publish

MANUAL = 8      # bit of the first byte of a kept input; the rest of it is the version


def make_inputs(seed: int, iteration: int) -> list[tuple[int, bytes]]:
    """(version and whether acknowledged by hand, bytes)."""
    rng = Random(f"{seed}/{iteration}")
    version = rng.choice((4, 5))
    wire = stream(rng, version)
    return [(version | rng.choice((0, MANUAL)), spoil(rng, wire) if rng.random() < 0.8 else wire)]


def publishes(data: bytes, version: int) -> list[bytes]:
    """Payloads that the decoder reads before the first thing that it refuses."""
    decoder = Decoder(version)
    decoder.feed(data)
    found = []
    try:
        while (packet := decoder.next_packet()) is not None:
            if isinstance(packet, Publish):
                found.append(packet.payload)
    except ProtocolError:
        pass
    return found


def check(kind: int, data: bytes, seen: Counter[str]) -> None:
    version, manual = kind & ~MANUAL, bool(kind & MANUAL)
    whole = outcome(version, manual, [exact(data)])
    pieces = cut(Random(data), data)
    assert outcome(version, manual, [exact(piece) for piece in pieces]) == whole, "cut in pieces it is something else"
    events, _, _, reason = whole
    left = iter(publishes(data, version))
    for event in events:
        if isinstance(event, tuple) and len(event) == 7:
            assert any(payload == event[1] for payload in left), f"nobody sent {event!r}"
            seen["message"] += 1
        else:
            seen[event[0] if isinstance(event, tuple) else type(event).__name__] += 1
    seen["read" if reason is None else f"refused 0x{reason:02X}"] += 1


FUZZER = Fuzzer("client", "Mutation fuzzer of the client's machine.", make_inputs, check, 20_261_121)

if __name__ == "__main__":
    FUZZER.main()
