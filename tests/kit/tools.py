"""Programs of other people that a test needs, by their name and Debian package."""
from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import NoReturn

import pytest

__all__ = ["missing_tool", "npm_modules", "require_tool"]

NPM_SECONDS = 120
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
    pytest.skip(text, allow_module_level=True)


def npm_modules(cache: Path, package: str) -> Path:
    """The `node_modules` of an npm package ("mqtt@5") and what it needs, installed below `cache` once.

    A directory for each package, for npm throws out what it has not been told of; and it comes to its place whole, for
    several processes may want it at once.
    """
    name = package.partition("@")[0]
    place = cache / name
    if (place / "node_modules" / name / "package.json").exists():
        return place / "node_modules"
    require_tool("node", package="nodejs")
    making = cache / f"{name}.{os.getpid()}"
    making.mkdir(parents=True, exist_ok=True)
    command = [require_tool("npm", package="npm"), "install", "--no-audit", "--no-fund", "--no-save",
               "--ignore-scripts", "--prefix", str(making), package]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=NPM_SECONDS, check=False)
        whole = (making / "node_modules" / name / "package.json").exists()
        problem = "" if done.returncode == 0 and whole else done.stderr.strip() or "npm did not say why"
    except subprocess.TimeoutExpired:
        problem = f"took longer than {NPM_SECONDS} s"
    if problem:
        missing_tool(f"the npm package {package} cannot be installed: {problem[-500:]}")
    try:
        making.rename(place)
    except OSError:  # another process was faster
        shutil.rmtree(making, ignore_errors=True)
    return place / "node_modules"
