"""A terminal for tests: of tmux, in which a command runs as a user would run it."""
from __future__ import annotations

import os
import re
import shlex
import subprocess
import time
from pathlib import Path

from kit.python import environment
from kit.tools import require_tool

__all__ = ["Screen"]

PATIENCE_S = 60.0   # only a failing test needs it


class Screen:
    """A terminal of tmux in which a shell runs a command; `prompt` stands there again when it has ended."""

    def __init__(self, directory: Path, words: list[str], columns: int = 80, rows: int = 24, **env: str) -> None:
        self._tmux = [require_tool("tmux", package="tmux"), "-f", os.devnull, "-S", str(directory / "tmux.sock")]
        self.status = directory / "status"
        self.status.unlink(missing_ok=True)
        script = directory / "viz.sh"
        script.write_text(f"stty -a < /dev/tty > {directory}/before\necho the-prompt\n{shlex.join(words)}\n"
                          f"echo $? > {self.status}.new\nstty -a < /dev/tty > {directory}/after\n"
                          f"mv {self.status}.new {self.status}\nsleep 1000\n")
        subprocess.run([*self._tmux, "new-session", "-d", "-x", str(columns), "-y", str(rows), "sh", str(script)],
                       check=True, env={**environment(), "LANG": "C.UTF-8", "LC_ALL": "C.UTF-8", **env}, cwd=directory)
        self._directory = directory

    def tmux(self, *words: str) -> str:
        return subprocess.run([*self._tmux, *words], check=True, capture_output=True, text=True).stdout

    def text(self, *words: str) -> str:
        return self.tmux("capture-pane", "-p", *words)

    def press(self, *keys: str) -> None:
        self.tmux("send-keys", *keys)

    def until(self, *parts: str) -> str:
        """The screen once it matches all of these regular expressions."""
        deadline = time.monotonic() + PATIENCE_S
        while True:
            text = self.text()
            if all(re.search(part, text) for part in parts):
                return text
            assert time.monotonic() < deadline, text
            time.sleep(0.05)

    def ended(self) -> int:
        """The exit status; the terminal is as it was."""
        deadline = time.monotonic() + PATIENCE_S
        while not self.status.exists():
            assert time.monotonic() < deadline, self.text()
            time.sleep(0.02)
        before, after = ((self._directory / name).read_text().partition("line =")[2] for name in ("before", "after"))
        assert before == after      # but for its size, which stands in front
        # The first screen is back, and the cursor can be seen.
        assert self.tmux("display", "-p", "#{alternate_on} #{cursor_flag}").split() == ["0", "1"]
        return int(self.status.read_text())

    def process(self) -> int:
        """Of the view."""
        shell = int(self.tmux("display", "-p", "#{pane_pid}"))
        found = subprocess.run(["ps", "-o", "pid=,args=", "--ppid", str(shell)], check=True, capture_output=True,
                               text=True).stdout
        return next(int(line.split()[0]) for line in found.splitlines() if "viz" in line)

    def close(self) -> None:
        subprocess.run([*self._tmux, "kill-server"], check=False, capture_output=True)
