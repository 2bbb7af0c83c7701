"""The files of this repository, as the tests of tidiness see them."""
from __future__ import annotations

import subprocess
from pathlib import Path

__all__ = ["ROOT", "sources"]

ROOT = Path(__file__).resolve().parents[2]
NOT_OURS = {"build", "dist", "__pycache__", "node_modules", "fluxmq-data"}


def _all() -> list[Path]:
    """What git knows or would add; without git (an unpacked sdist), what is there and not made by a build."""
    try:
        listed = subprocess.run(["git", "-C", ROOT, "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
                                check=True, capture_output=True).stdout.decode()
        found = [ROOT / name for name in listed.split("\0") if name]
    except (OSError, subprocess.CalledProcessError):
        found = [path for path in ROOT.rglob("*") if not any(
            part in NOT_OURS or (part.startswith(".") and part != ".ci") or part.endswith(".egg-info")
            for part in path.relative_to(ROOT).parts)]
    return sorted(path for path in found if path.is_file())


# Asked once, while tests are collected: those that look at files start no process.
FILES = _all()


def sources(folder: Path = ROOT) -> list[Path]:
    """Every file under a folder that belongs to the project."""
    return [path for path in FILES if folder == ROOT or folder in path.parents]
