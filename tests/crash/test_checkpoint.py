"""A checkpoint cut off inside RocksDB: by a kill or a loss of power, at every sync that RocksDB makes of its files."""
from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from kit import journals
from kit.powercut import PowerCut
from kit.python import TESTS, environment
from unit.test_store import assert_holds

from fluxmq._core.errors import FluxError


class Instants:
    """The checkpointing program, which holds still before each sync. `said`: the last number that it called durable."""

    def __init__(self, cut: PowerCut, program: str) -> None:
        asked, ask = os.pipe()
        answer, self.go = os.pipe()
        self.process = subprocess.Popen(
            [sys.executable, journals.__file__, program, str(cut.live), "fsync"], stdout=subprocess.PIPE,
            pass_fds=(ask, answer), env=environment(TESTS, **cut.env, POWERCUT_GATE=f"{ask},{answer}"))
        os.close(ask)
        os.close(answer)
        assert self.process.stdout is not None
        os.set_blocking(self.process.stdout.fileno(), False)
        self.asked = os.fdopen(asked)
        self.output = b""

    @property
    def said(self) -> int:
        assert self.process.stdout is not None
        self.output += self.process.stdout.read() or b""
        lines = self.output.split(b"\n")[:-1]
        return int(lines[-1]) if lines else 0

    def next(self) -> Path:
        """Of which file or directory the next sync is. No thread of the program runs until `on`."""
        line = self.asked.readline()
        assert line, "the program ended"
        self.process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self.process.pid, os.WSTOPPED)
        return Path(line.removesuffix("\n"))

    def on(self) -> None:
        self.process.send_signal(signal.SIGCONT)
        os.write(self.go, b"g")

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()
        self.asked.close()
        os.close(self.go)


@pytest.mark.parametrize("how", ["store", "store-in-parts"])
def test_a_checkpoint_is_whole_or_not_there_at_each_of_its_syncs(tmp_path: Path, how: str) -> None:
    """Cut off inside RocksDB, by a kill or by a loss of power: what is durable changes only with a sync, so all that
    can be found on a disk which keeps nothing by itself is looked at; and at each instant also a torn disk."""
    cut = PowerCut(tmp_path / "cut")
    program, seen = Instants(cut, how), Counter[str]()
    try:
        while seen["MANIFEST"] < 6:
            path = program.next()
            if path.is_relative_to(cut.live / "state"):
                seen[path.name.partition("-")[0] if path.is_file() else "directory"] += 1
                said = program.said
                for name, left in (("power", cut.restore(tmp_path / "power")),
                                   ("torn", cut.restore(tmp_path / "torn", random.Random(seen.total()))),
                                   ("kill", shutil.copytree(cut.live, tmp_path / "kill"))):
                    try:
                        assert_holds(left, said)
                    except (AssertionError, FluxError) as error:
                        error.add_note(f"{name}, before the sync of {path}, after {dict(seen)}")
                        raise
                    shutil.rmtree(left)
            program.on()
    finally:
        program.close()
    assert seen["directory"] > 0
