"""Mutation fuzzer of the client's machine. Deterministic: a seed and an iteration number are an input.

    python tests/fuzz/fuzz_client.py [--seconds S | --iterations N] [--seed K] [--out DIR]

Each iteration takes packets of a server and spoils them in a few places. Allowed outcomes: they are read, or a
ProtocolError closes the machine; the same whether they come whole or in pieces; and every message is one that the
decoder reads from the same bytes, in its order. Whatever else happens is written to regressions/client/ as a file,
which the tests replay from then on.
"""
from __future__ import annotations

import argparse
import hashlib
import sys
import time
from collections import Counter
from pathlib import Path
from random import Random

if __name__ == "__main__":    # run as a script: the tree's root and tests/ are not on the path yet
    sys.path[:0] = [str(Path(__file__).parents[2]), str(Path(__file__).parents[1])]

from kit.client_machine import cut, outcome, spoil, stream
from kit.exact import exact

from fluxmq._core.errors import ProtocolError
from fluxmq._core.mqtt.decode import Decoder
from fluxmq._core.mqtt.packets import Publish

REGRESSIONS = Path(__file__).parent / "regressions" / "client"
SEED = 20_261_121
MANUAL = 8      # bit of the first byte of a kept input; the rest of it is the version


def make_input(seed: int, iteration: int) -> tuple[int, bytes]:
    """(version and whether acknowledged by hand, bytes)."""
    rng = Random(f"{seed}/{iteration}")
    version = rng.choice((4, 5))
    wire = stream(rng, version)
    return version | rng.choice((0, MANUAL)), spoil(rng, wire) if rng.random() < 0.8 else wire


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


def run(seed: int, iterations: int, seconds: float | None = None, out: Path = REGRESSIONS) -> Counter[str]:
    """So many iterations, or as many as fit in so many seconds. Returns what was seen, for a look at the coverage.

    A failing input is written to `out` as one byte of kind and the bytes, and its exception passes on.
    """
    seen: Counter[str] = Counter()
    started = time.monotonic()
    iteration = 0
    while iteration < iterations if seconds is None else time.monotonic() - started < seconds:
        kind, data = make_input(seed, iteration)
        try:
            check(kind, data, seen)
        except BaseException as error:
            if not isinstance(error, KeyboardInterrupt):
                out.mkdir(parents=True, exist_ok=True)
                path = out / f"{hashlib.sha256(data).hexdigest()[:16]}.bin"
                path.write_bytes(bytes((kind,)) + data)
                error.add_note(f"seed {seed}, iteration {iteration}, input kept in {path}")
            raise
        iteration += 1
    seen["iterations"] = iteration
    return seen


def main() -> None:
    parser = argparse.ArgumentParser(description="Mutation fuzzer of the client's protocol machine.")
    parser.add_argument("--seconds", type=float, help="run for so long instead of a number of iterations")
    parser.add_argument("--iterations", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--out", type=Path, default=REGRESSIONS, help="where failing inputs go")
    options = parser.parse_args()
    for name, count in sorted(run(options.seed, options.iterations, options.seconds, options.out).items()):
        print(f"{count:9} {name}")


if __name__ == "__main__":
    main()
