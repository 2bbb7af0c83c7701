"""A cluster in which some nodes run the former version of FluxMQ: a built tree of another commit.

    with MixedCluster(tmp_path, former_home(), former=[0, 2]) as cluster:
        cluster.upgrade(0)                              # stopped, and started with this version on its directory

FLUXMQ_TEST_FORMER names the directory that has its package `fluxmq`; `.ci/former` sets it to the one that the gate has
built of the commit in bench/BASELINE, for the command that it runs. Both versions run with this interpreter and what is
installed beside it.
"""
from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Collection
from pathlib import Path

import pytest

from kit.broker import Broker
from kit.cluster import Cluster
from kit.python import HOME, environment, of_home

__all__ = ["FORMER", "MixedCluster", "former_home"]

FORMER = "FLUXMQ_TEST_FORMER"
SECONDS = 60
# Of streams between nodes: the lowest and the highest.
TELL = "import json; from fluxmq.cluster.messages import VERSIONS; print(json.dumps(VERSIONS))"


def former_home() -> Path:
    """The directory of the former version. Skips the test without one, and with one that speaks no version of streams
    that this one does: whoever gave that up did not do it by accident."""
    if not os.environ.get(FORMER):
        pytest.skip(f"needs the former version, in a directory that {FORMER} names: tox -e gate builds it, and runs "
                    "this", allow_module_level=True)
    home = Path(os.environ[FORMER]).resolve()
    theirs, ours = _versions(home), _versions(Path(HOME))
    if theirs[1] < ours[0]:
        pytest.skip(f"the former version speaks versions {theirs} of streams, this one {ours}", allow_module_level=True)
    return home


def _versions(home: Path) -> tuple[int, int]:
    done = subprocess.run([sys.executable, "-P", "-c", TELL], env=environment(**of_home(home)), capture_output=True,
                          text=True, timeout=SECONDS, check=False)
    assert done.returncode == 0, f"{home} has no FluxMQ that can be in a cluster: {done.stderr[-2000:]}"
    lowest, highest = json.loads(done.stdout)
    return lowest, highest


class MixedCluster(Cluster):
    """As Cluster. home: of the former version. former: the numbers of the nodes that begin with it."""

    def __init__(self, directory: Path, home: Path, *, former: Collection[int], count: int = 3, ttl_s: int = 8,
                 settings: dict[str, object] | None = None) -> None:
        self._home = home
        self._former = {f"n{number}" for number in former}
        super().__init__(directory, count, ttl_s=ttl_s, settings=settings)

    def _made(self, name: str, settings: dict[str, object], environ: dict[str, str]) -> Broker:
        return super()._made(name, settings, environ | (of_home(self._home) if name in self._former else {}))

    def home(self, number: int) -> Path:
        """Where the core comes from that a node runs."""
        process = self[number].process
        assert process is not None
        part = f"{os.sep}fluxmq{os.sep}_core{os.sep}"
        with open(f"/proc/{process.pid}/maps") as maps:
            found = {line[line.index(os.sep):].partition(part)[0] for line in maps if part in line}
        assert len(found) == 1, found
        return Path(found.pop()).resolve()

    def upgrade(self, number: int) -> None:
        """Stops a node in good order, and starts this version with what it has left."""
        assert self[number].terminate() == 0
        for name in of_home(self._home):
            del self[number].environ[name]
        self[number].start()
