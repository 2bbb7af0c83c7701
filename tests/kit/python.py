"""Other processes with the fluxmq that the tests themselves import: installed, or this tree's built in place; or with
another one, where a test asks for it."""
from __future__ import annotations

import os
from pathlib import Path

import fluxmq

__all__ = ["HOME", "TESTS", "environment", "of_home"]

TESTS = Path(__file__).resolve().parents[1]     # what tests import from each other: kit, oracle, …
HOME = str(Path(fluxmq.__file__).resolve().parents[1])


def environment(*folders: str | Path, **more: str) -> dict[str, str]:
    """The environment for `sys.executable -m fluxmq`, whatever its working directory.

    folders: to import from besides.
    """
    return os.environ | {"PYTHONPATH": os.pathsep.join((HOME, *map(str, folders)))} | more


def of_home(home: str | Path) -> dict[str, str]:
    """What a process has in its environment besides, to run the `fluxmq` of that directory."""
    return {"PYTHONPATH": str(home)}
