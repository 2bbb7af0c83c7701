"""Plants defects, one at a time, in a copy of this tree, and says within how many histories the simulator finds each.

    python tests/simulator/plant.py [NAME or PATCH …] [--cluster] [--seeds N] [--histories N]

    python tests/simulator/plant.py --cluster --mix queues      those of queues across nodes
    python tests/simulator/plant.py --cluster --mix divided     of queues whose partitions are at several nodes

NAME is one of tests/simulator/defects, with --cluster of tests/simulator/cluster/defects, queue_defects or
divided_defects (without .patch). PATCH is any file that `git apply` takes; without either it is all of them. The
seeds are drawn at the run. Status 1: a defect was not found for one of them, or a patch cannot be applied.
"""
from __future__ import annotations

import argparse
import os
import re
import secrets
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
HERE = Path(__file__).resolve().parent
LEFT_OUT = shutil.ignore_patterns(".git", ".tox", ".venv", "node_modules", "__pycache__", ".*_cache", ".hypothesis",
                                  "fluxmq-data", "dist", "failures", "*.html")
# With -c the working directory is where Python looks first: it plays the fluxmq of the tree it stands in.
PLAY = "import runpy; runpy.run_path('{path}', run_name='__main__')"
DEFECTS = {"sessions": "defects", "queues": "queue_defects", "divided": "divided_defects"}     # by mix
COMPILED = (".pyx", ".pxd", ".h", ".c")
FOUND = re.compile(r"^history (\d+), ([^;]*);", re.MULTILINE)


def title(patch: Path) -> str:
    """What the patch says that it is: its lines before the first diff."""
    head = patch.read_text().split("\n--- ", 1)[0].split("\ndiff ", 1)[0]
    return " ".join(line for line in head.splitlines() if line and not line.startswith(("---", "diff", "index")))


def changed(patch: Path) -> list[str]:
    """Paths that it changes."""
    return re.findall(r"^\+\+\+ b/(\S+)", patch.read_text(), re.MULTILINE)


def plant(tree: Path, patch: Path, *, back: bool = False) -> None:
    """Applies it in the tree, or takes it back, and compiles what has changed."""
    subprocess.run(["git", "apply", "--whitespace=nowarn", *(["-R"] if back else []), str(patch)], cwd=tree, check=True)
    now = time.time()
    for path in changed(patch):
        os.utime(tree / path, (now, now))       # later than what was compiled, also when it is taken back
    if any(path.endswith(COMPILED) for path in changed(patch)):
        built = subprocess.run([sys.executable, "setup.py", "build_ext", "--inplace", "-j2"], cwd=tree, check=False,
                               capture_output=True, text=True)
        if built.returncode:
            raise SystemExit(f"{patch.name} does not compile:\n{built.stdout[-3000:]}{built.stderr[-3000:]}")


def hunt(tree: Path, player: list[str], seed: int, histories: int) -> tuple[int, str]:
    """(the history in which it was found, what was wrong); 0: it was not. player: path of what plays them, and its
    options."""
    command = [sys.executable, "-c", PLAY.format(path=player[0]), str(seed), "--count", str(histories), *player[1:]]
    ended = subprocess.run(command, cwd=tree, check=False, capture_output=True, text=True)
    if ended.returncode == 0:
        return 0, ""
    found = FOUND.search(ended.stdout)
    if found is not None:
        return int(found[1]), found[2]
    if ended.returncode < 0:
        return 1, f"signal {-ended.returncode}"
    raise SystemExit(f"the simulator does not run:\n{ended.stdout[-2000:]}{ended.stderr[-3000:]}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("patches", nargs="*", metavar="NAME or PATCH")
    parser.add_argument("--cluster", action="store_true", help="play histories of several nodes")
    parser.add_argument("--mix", choices=tuple(DEFECTS), default="sessions",
                        help="of these histories of several nodes: without queues of the cluster, with queues, with "
                             "divided ones")
    parser.add_argument("--seeds", type=int, default=3, metavar="N")
    parser.add_argument("--histories", type=int, default=300, metavar="N")
    options = parser.parse_args()
    place = HERE / "cluster" if options.cluster else HERE
    player = [str((place / "play.py").relative_to(ROOT)), *(["--mix", options.mix] if options.cluster else [])]
    defects = place / (DEFECTS[options.mix] if options.cluster else "defects")
    patches = [defects / f"{name}.patch" if (defects / f"{name}.patch").exists() else Path(name).resolve()
               for name in options.patches] or sorted(defects.glob("*.patch"))
    seeds = [secrets.randbelow(1 << 40) for _ in range(options.seeds)]
    print(f"seeds {' '.join(map(str, seeds))}", flush=True)
    missed = 0
    with tempfile.TemporaryDirectory(prefix="fluxmq-plant-") as base:
        tree = Path(base) / "tree"
        shutil.copytree(ROOT, tree, symlinks=True, ignore=LEFT_OUT)     # times of files are kept: nothing is built anew
        for patch in patches:
            plant(tree, patch)
            results = [hunt(tree, player, seed, options.histories) for seed in seeds]
            plant(tree, patch, back=True)
            missed += any(not number for number, _ in results)
            shown = "  ".join(f"{number or 'NOT FOUND':>4} {kind}" for number, kind in results)
            print(f"{patch.stem:34} {shown}\n    {title(patch)}", flush=True)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
