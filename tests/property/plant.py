"""Plants defects of queues that change hands, one at a time, in a copy of this tree: tests that each names must fail.

    python tests/property/plant.py [NAME …]

NAME is one of tests/property/defects, without .patch; none: all of them. The second line of each says what finds it.
Status 1: a defect was not found. tests/simulator/plant.py does the same with histories.
"""
from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from simulator.plant import LEFT_OUT, ROOT, plant

HERE = Path(__file__).resolve().parent
# What pytest says: tests failed, or it was broken off, as by a signal. Anything else is no verdict of a test.
FAILED, ENDED_BY_A_SIGNAL = 1, range(-64, 0)


def finds(tree: Path, tests: list[str]) -> tuple[bool, str]:
    """Whether a test fails, and which first."""
    options = ["-x", "-q", "-p", "no:xdist", "-p", "no:cacheprovider"]
    done = subprocess.run([sys.executable, "-m", "pytest", *options, *tests], cwd=tree, check=False,
                          capture_output=True, text=True)
    if done.returncode == 0:
        return False, ""
    if done.returncode in ENDED_BY_A_SIGNAL:
        return True, f"signal {-done.returncode}"
    failed = re.search(r"^FAILED (\S+)", done.stdout, re.MULTILINE)
    if done.returncode != FAILED or failed is None:
        raise SystemExit(f"pytest does not run:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return True, failed[1]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME")
    options = parser.parse_args()
    patches = [HERE / "defects" / f"{name}.patch" for name in options.names] or sorted(HERE.glob("defects/*.patch"))
    missed = 0
    with tempfile.TemporaryDirectory(prefix="fluxmq-plant-") as base:
        tree = Path(base) / "tree"
        shutil.copytree(ROOT, tree, symlinks=True, ignore=LEFT_OUT)     # times of files are kept: nothing is built anew
        for patch in patches:
            title, found_by, *_ = patch.read_text().splitlines()
            tests = found_by.removeprefix("Found by: ").split()
            plant(tree, patch)
            found, where = finds(tree, tests)
            plant(tree, patch, back=True)
            missed += not found
            print(f"{patch.stem:30} {where if found else 'NOT FOUND'}\n    {title}", flush=True)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
