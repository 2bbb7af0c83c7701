"""Programs of other people that a test needs, by their name and Debian package."""
from __future__ import annotations

import os
import shutil

import pytest

__all__ = ["require_tool"]

# Debian puts servers where only root's PATH looks.
PLACES = os.pathsep.join((os.environ.get("PATH", os.defpath), "/usr/local/sbin", "/usr/sbin", "/sbin"))


def require_tool(name: str, *, package: str) -> str:
    """Path of the program. Without it the test is skipped, or fails when FLUXMQ_REQUIRE_TOOLS=1."""
    path = shutil.which(name, path=PLACES)
    if path is not None:
        return path
    text = f"{name} is not installed (Debian package: {package})"
    if os.environ.get("FLUXMQ_REQUIRE_TOOLS") == "1":
        pytest.fail(text, pytrace=False)
    pytest.skip(text)
