"""A FluxMQ that is slower by a known part, without a word of that in the product.

    slow = slow_home(tmp_path, monkeypatch, percent=33)     # a broker that is started from there is
"""
from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from kit.python import HOME
from kit.tools import require_tool

__all__ = ["slow_home"]

SOURCE = Path(__file__).with_name("slowdown.c")


def slow_home(directory: Path, monkeypatch: pytest.MonkeyPatch, percent: int) -> Path:
    """A directory with the `fluxmq` that the tests import. A process that imports it from there, and by no other path,
    uses so many percent more of a processor for what it does."""
    library = directory / "slowdown.so"
    gcc = require_tool("gcc", package="gcc")
    subprocess.run([gcc, "-shared", "-fPIC", "-O1", "-Wall", "-Wextra", "-Werror", "-o", library, SOURCE, "-ldl"],
                   check=True)
    home = directory / "slow"
    home.symlink_to(HOME, target_is_directory=True)
    # Behind what is there: a sanitizer's library must come first.
    monkeypatch.setenv("LD_PRELOAD", " ".join([*os.environ.get("LD_PRELOAD", "").split(), str(library)]))
    monkeypatch.setenv("SLOWDOWN_HOME", str(home))
    monkeypatch.setenv("SLOWDOWN_PERCENT", str(percent))
    return home
