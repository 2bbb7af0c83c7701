"""A terminal session as a file of asciinema, version 2: a header, then a line [seconds, "o", text] for each output.

https://docs.asciinema.org/manual/asciicast/v2/
"""
from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import IO

__all__ = ["Cast"]


class Cast:
    """Handle. Writes what a terminal is sent. clock: seconds. Raises OSError for a file that cannot be made; what the
    disk refuses later ends the recording, not the view (error)."""

    def __init__(self, path: Path, columns: int, rows: int, clock: object = time.monotonic) -> None:
        assert callable(clock)
        self._clock = clock
        self._since = clock()
        self.error = ""
        self._file: IO[str] | None = path.open("w", encoding="utf-8")
        self._line({"version": 2, "width": columns, "height": rows, "timestamp": int(time.time()),
                    "title": "fluxmq viz", "env": {"TERM": os.environ.get("TERM", "xterm")}})

    def _line(self, value: object) -> None:
        if self._file is not None:
            try:
                self._file.write(json.dumps(value, ensure_ascii=False) + "\n")
            except OSError as error:
                self.error = error.strerror or str(error)
                self._file = None

    def output(self, text: str) -> None:
        self._line([round(self._clock() - self._since, 6), "o", text])

    def resized(self, columns: int, rows: int) -> None:
        self._line([round(self._clock() - self._since, 6), "r", f"{columns}x{rows}"])

    def close(self) -> None:
        if self._file is not None:
            try:
                self._file.close()
            except OSError as error:
                self.error = error.strerror or str(error)
            self._file = None
