"""A program of Node.js that is driven by lines of JSON: each command has an id, and so has its answer; what has none
happened by itself."""
from __future__ import annotations

import itertools
import json
import os
import queue
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kit.tools import require_tool

__all__ = ["Program"]

Line = dict[str, Any]


class Program:
    """modules: where its packages are. on_event: called with each line that answers nothing, on a thread of its own.
    timeout: seconds for the answer of a command."""

    def __init__(self, script: Path, modules: Path, on_event: Callable[[Line], None], timeout: float) -> None:
        self._on_event, self._timeout = on_event, timeout
        self._answers: dict[int, queue.Queue[Line]] = {}
        self._numbers = itertools.count(1)
        self._process = subprocess.Popen(
            [require_tool("node", package="nodejs"), str(script)], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            text=True, env=dict(os.environ, NODE_PATH=str(modules)))
        threading.Thread(target=self._read, daemon=True).start()

    def ask(self, verb: str, **arguments: Any) -> Line:
        """One command and its answer."""
        number = next(self._numbers)
        answer = self._answers[number] = queue.Queue()
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"id": number, "do": verb, **arguments}) + "\n")
        self._process.stdin.flush()
        try:
            return answer.get(timeout=self._timeout)
        except queue.Empty:
            raise TimeoutError(f"{verb} did not end") from None
        finally:
            del self._answers[number]

    def stop(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(self._timeout)

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            found = json.loads(line)
            if "id" in found:
                self._answers[found["id"]].put(found)
            else:
                self._on_event(found)
