"""The whole core with sanitizers (`tox -e debug`), then the long tests, with one seed after the other, for as long as
there is time.

    python tests/soak.py [--seeds 1-20] [--minutes M] [pytest's options]

A seed that fails ends the run: exit status 1, and the command that plays it again. Without `--seeds` it is seed 1,
without `--minutes` all of it. When the time is over no further test begins; what was not played is said. Pytest's
options choose among the long tests; the sanitizers are left out then.
"""
from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time

NO_TESTS = 5        # what pytest says when nothing was selected
SHOWN = "tox -e debug"
SANITIZED = [sys.executable, "-m", "tox", "run", "-e", "debug"]


def seeds(text: str) -> range:
    """`7`, or `1-20`. Raises ValueError."""
    first, _, last = text.partition("-")
    found = range(int(first), int(last or first) + 1)
    if not found:
        raise ValueError(f"{text} has no seed in it")
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=seeds, default=range(1, 2), metavar="N-M")
    parser.add_argument("--minutes", type=float, metavar="M")
    options, rest = parser.parse_known_args()
    until = time.time() + 60 * options.minutes if options.minutes else None
    environment = os.environ | ({"FLUXMQ_TEST_UNTIL": str(until)} if until else {})
    if not rest and subprocess.run(SANITIZED, check=False, env=environment).returncode:
        print(f"failed with sanitizers; again: {SHOWN}", file=sys.stderr)
        return 1
    for seed in options.seeds:
        if until is not None and time.time() >= until:
            print(f"the time is over: seeds {seed} to {options.seeds[-1]} were not played")
            return 0
        command = [sys.executable, "-m", "pytest", "-m", "soak", "--disk", "--seed", str(seed), *rest]
        status = subprocess.run(command, check=False, env=environment).returncode
        if status:
            again = " ".join(["tox -e soak -- --seeds", str(seed), *rest])
            print("no test was selected" if status == NO_TESTS else f"seed {seed} failed; again: {again}",
                  file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
