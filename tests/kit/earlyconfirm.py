"""Brokers that confirm too early: their journals say that something is written, and write nothing.

    environ |= early_confirm(tmp_path, mark="mqtt-")    # for the brokers, and for whoever starts them

From the first batch on in which the mark occurs, a broker confirms what is on no disk: `kill -9` loses it for certain.
"""
from __future__ import annotations

import os
import subprocess
from pathlib import Path

from kit.tools import require_tool

__all__ = ["early_confirm"]

SOURCE = Path(__file__).with_name("earlyconfirm.c")


def early_confirm(directory: Path, mark: str) -> dict[str, str]:
    """What to add to the environment."""
    library = directory / "earlyconfirm.so"
    gcc = require_tool("gcc", package="gcc")
    subprocess.run([gcc, "-shared", "-fPIC", "-O1", "-Wall", "-Wextra", "-Werror", "-o", library, SOURCE, "-ldl"],
                   check=True)
    # Behind what is there: a sanitizer's library must come first.
    return {"LD_PRELOAD": " ".join([*os.environ.get("LD_PRELOAD", "").split(), str(library)]),
            "EARLYCONFIRM_MARK": mark}
