"""What the mutation fuzzers share: bytes are spoilt, tried, and kept where something happens that must not."""
from __future__ import annotations

import argparse
import hashlib
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random

__all__ = ["Fuzzer", "mutate"]

REGRESSIONS = Path(__file__).parent / "regressions"


def mutate(rng: Random, data: bytearray, spice: bytes, length_at: int | None = None) -> None:
    """Spoils one place. spice: bytes that mean something. length_at: where a length is; None: it may be anywhere."""
    at = rng.randrange(len(data) + 1)
    end = min(len(data), at + rng.choice((1, 1, 2, 4, 16)))
    match rng.randrange(7):
        case 0 if at < len(data):
            data[at] ^= 1 << rng.randrange(8)
        case 1 if at < len(data):
            data[at] = rng.choice(spice)
        case 2:
            data[at:at] = bytes(rng.choice(spice) for _ in range(rng.choice((1, 2, 5))))
        case 3:
            del data[at:end]
        case 4:
            data[at:at] = data[at:end]    # repeat: fields, properties, filters twice
        case 5:
            del data[at:]
        case _ if (place := at if length_at is None else length_at) < len(data):
            data[place] = (data[place] + rng.choice((-2, -1, 1, 2))) & 0xFF    # nearly the right length


@dataclass(frozen=True)
class Fuzzer:
    """inputs: of a seed and an iteration number, and of nothing else: (kind, bytes) of each input of the iteration.
    check: tries one, and raises what must not happen. kinds: what inputs that once failed are tried as, whatever they
    were."""

    name: str
    about: str
    inputs: Callable[[int, int], list[tuple[int, bytes]]]
    check: Callable[[int, bytes, Counter[str]], None]
    seed: int = 20160
    kinds: tuple[int, ...] = ()

    @property
    def regressions(self) -> Path:
        return REGRESSIONS / self.name

    def run(self, seed: int, iterations: int, seconds: float | None = None, out: Path | None = None) -> Counter[str]:
        """So many iterations, or as many as fit in so many seconds. Returns what was seen, for a look at the coverage.

        A failing input is written to `out` as one byte of kind and the bytes, and its exception passes on.
        """
        seen: Counter[str] = Counter()
        started = time.monotonic()
        iteration = 0
        while iteration < iterations if seconds is None else time.monotonic() - started < seconds:
            for kind, data in self.inputs(seed, iteration):
                try:
                    self.check(kind, data, seen)
                except BaseException as error:
                    if not isinstance(error, KeyboardInterrupt):
                        path = (out or self.regressions) / f"{hashlib.sha256(data).hexdigest()[:16]}.bin"
                        path.parent.mkdir(parents=True, exist_ok=True)
                        path.write_bytes(bytes((kind,)) + data)
                        error.add_note(f"seed {seed}, iteration {iteration}, input kept in {path}")
                    raise
            iteration += 1
        seen["iterations"] = iteration
        return seen

    def main(self) -> None:
        parser = argparse.ArgumentParser(description=self.about)
        parser.add_argument("--seconds", type=float, help="run for so long instead of a number of iterations")
        parser.add_argument("--iterations", type=int, default=20_000)
        parser.add_argument("--seed", type=int, default=self.seed)
        parser.add_argument("--out", type=Path, default=self.regressions, help="where failing inputs go")
        options = parser.parse_args()
        for name, count in sorted(self.run(options.seed, options.iterations, options.seconds, options.out).items()):
            print(f"{count:9} {name}")
