"""A broker process with small journal files, over a disk that may forget, with libraries to preload."""
from __future__ import annotations

import random
import shutil
import subprocess
from pathlib import Path

import pytest
from kit.broker import Broker
from kit.powercut import PowerCut

NODE = Path(__file__).with_name("small_node.py")


def build_library(source: Path, directory: Path) -> Path:
    """Compiles a C file into a library to preload."""
    library = directory / f"{source.stem}.so"
    if not library.exists():
        gcc = shutil.which("gcc")
        if gcc is None:
            pytest.skip("gcc is missing (Debian package gcc)")
        subprocess.run([gcc, "-shared", "-fPIC", "-O1", "-Wall", "-Wextra", "-Werror", "-o", library, source, "-ldl",
                        "-lpthread"], check=True)
    return library


class CrashBroker(Broker):
    """As Broker."""

    def __init__(self, directory: Path, settings: dict[str, object] | None = None,
                 environ: dict[str, str] | None = None) -> None:
        super().__init__(directory, {"broker.sys_interval": 0, "log.level": "debug"} | (settings or {}), environ)

    def _command(self) -> list[str]:
        command = super()._command()
        at = command.index("-m")
        command[at:at + 2] = [str(NODE)]
        return command

    def crash(self) -> None:
        """What a kill leaves is what the next start finds."""
        self.kill()

    def checkpoints(self) -> int:
        """How many checkpoints the log tells of, over all starts."""
        return sum("checkpoint" in line and "upto" in line for line in self.stderr().splitlines())


class PoweredBroker(CrashBroker):
    """Its disk loses, with each crash, what was not synced, and of half of that a part only."""

    def __init__(self, directory: Path, chance: random.Random) -> None:
        super().__init__(directory)
        self.chance = chance
        self.lives = 0
        self._insert_disk()

    def _insert_disk(self, content: Path | None = None) -> None:
        self.lives += 1
        self.cut = PowerCut(self.directory / f"cut{self.lives}", content)
        self.settings["storage.dir"] = self.cut.live / "data"
        self.environ |= self.cut.env

    def crash(self) -> None:
        self.kill()
        old = self.cut.live
        left = self.directory / f"disk{self.lives}"
        self.cut.restore(left, torn=self.chance if self.chance.random() < 0.5 else None)
        shutil.rmtree(self.cut.shadow)
        shutil.rmtree(old)
        self._insert_disk(left)


__all__ = ["CrashBroker", "PoweredBroker", "build_library"]
