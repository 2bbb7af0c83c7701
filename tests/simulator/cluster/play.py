"""Plays histories of a cluster, of all kinds of a mix in turn (MIXES), until one goes wrong.

    python tests/simulator/cluster/play.py SEED [--count N] [--mix sessions|queues|divided | --only KIND]

History number i is of one kind and begins with SEED + i. Status 1: one went wrong.
"""
from __future__ import annotations

import argparse
import sys
import traceback
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent))

from simulator.cluster.histories import KINDS, MIXES


def reason(error: BaseException) -> str:
    """Its first line, or where it was raised."""
    text = str(error).partition("\n")[0]
    if not text:
        where = traceback.extract_tb(error.__traceback__)[-1]
        text = f"{type(error).__name__} in {where.name}: {where.line}"
    return text.replace(";", ",")[:80]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("seed", type=int)
    parser.add_argument("--count", type=int, default=1, metavar="N")
    parser.add_argument("--mix", choices=sorted(MIXES), default="sessions")
    parser.add_argument("--only", choices=sorted(KINDS), metavar="KIND", help="one of: " + ", ".join(KINDS))
    options = parser.parse_args()
    names = [options.only] if options.only else MIXES[options.mix]
    for number in range(options.count):
        name = names[number % len(names)]
        try:
            KINDS[name](options.seed + number)
        except Exception as error:
            traceback.print_exc()
            print(f"history {number + 1}, {name}: {reason(error)}; seed {options.seed + number}")
            return 1
    print("nothing is wrong")
    return 0


if __name__ == "__main__":
    sys.exit(main())
