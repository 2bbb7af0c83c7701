"""The data directory of a running node as a crash at this instant would leave it. RocksDB merges tables by itself: a
copy during which its files changed is made again."""
from __future__ import annotations

import shutil
from pathlib import Path

from kit.node import Node
from kit.watch import wait_until

__all__ = ["copy_data", "crashed"]


def crashed(node: Node, target: Path) -> Path:
    """What a loss of power would leave now; the node stops."""
    node.settle()
    copy_data(node.directory / "data", target / "data")
    node.stop()
    return target


def copy_data(data: Path, target: Path) -> None:
    """Nothing is being written to the journal meanwhile."""
    def files() -> list[tuple[str, int, int]]:
        found = [(path, path.stat()) for path in sorted((data / "state").glob("*"))]
        return [(path.name, stat.st_size, stat.st_mtime_ns) for path, stat in found]

    def copied() -> bool:
        shutil.rmtree(target, ignore_errors=True)
        try:
            before = files()
            shutil.copytree(data, target)
            return files() == before
        except (shutil.Error, FileNotFoundError):
            return False

    wait_until(copied)
