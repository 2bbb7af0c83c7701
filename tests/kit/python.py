"""Other processes with the fluxmq that the tests themselves import: installed, or this tree's built in place."""
from __future__ import annotations

import os
from pathlib import Path

import fluxmq

__all__ = ["environment"]

HOME = str(Path(fluxmq.__file__).resolve().parents[1])


def environment(**more: str) -> dict[str, str]:
    """The environment for `sys.executable -m fluxmq`, whatever its working directory."""
    return os.environ | {"PYTHONPATH": HOME} | more
