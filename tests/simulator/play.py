"""Plays histories again, or looks for one that goes wrong.

    python tests/simulator/play.py SEED [--quiet]       one history: its trace, and the verdict
    python tests/simulator/play.py SEED --count N       N of them from SEED on, until one goes wrong

Status 1: one went wrong. It is written to tests/simulator/failures, too.
"""
from __future__ import annotations

import argparse
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
if __name__ == "__main__":
    sys.path.insert(0, str(HERE.parent))

from simulator.history import Failed, play  # noqa: E402

FAILURES = HERE / "failures"


def keep(failed: Failed) -> Path:
    """Writes a failure down; returns where."""
    FAILURES.mkdir(exist_ok=True)
    path = FAILURES / f"{failed.seed}.txt"
    path.write_text("\n".join([*failed.trace, "", str(failed), f"python tests/simulator/play.py {failed.seed}", ""]))
    return path


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("seed", type=int)
    parser.add_argument("--count", type=int, default=0, metavar="N")
    parser.add_argument("--quiet", action="store_true", help="only the verdict")
    options = parser.parse_args()
    for seed in range(options.seed, options.seed + max(options.count, 1)):
        try:
            world = play(seed)
        except Failed as failed:
            if not options.quiet and not options.count:
                print("\n".join(failed.trace))
            print(f"{failed}\nhistory {seed - options.seed + 1}, {failed.kind}; {keep(failed)}")
            return 1
        if not options.quiet and not options.count:
            print("\n".join(world.trace))
    print("nothing is wrong")
    return 0


if __name__ == "__main__":
    sys.exit(main())
