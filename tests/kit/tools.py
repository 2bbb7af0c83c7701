"""Programs of other people that a test needs, by their name and Debian package."""
from __future__ import annotations

import os
import shutil
from typing import NoReturn

import pytest

__all__ = ["missing_tool", "require_tool"]

# Debian puts servers where only root's PATH looks.
PLACES = os.pathsep.join((os.environ.get("PATH", os.defpath), "/usr/local/sbin", "/usr/sbin", "/sbin"))


def require_tool(name: str, *, package: str) -> str:
    """Path of the program. Without it the test is skipped, or fails when FLUXMQ_REQUIRE_TOOLS=1."""
    path = shutil.which(name, path=PLACES)
    if path is None:
        missing_tool(f"{name} is not installed (Debian package: {package})")
    return path


def missing_tool(text: str) -> NoReturn:
    """Skip the test, or fail it when FLUXMQ_REQUIRE_TOOLS=1. text: which program or package is missing."""
    if os.environ.get("FLUXMQ_REQUIRE_TOOLS") == "1":
        pytest.fail(text, pytrace=False)
    pytest.skip(text)
