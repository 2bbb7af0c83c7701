"""Commands of `fluxmq`, run in this process."""
from __future__ import annotations

import contextlib
import io

from fluxmq.app import cli

__all__ = ["run"]


def run(*words: str) -> tuple[int, str]:
    """Exit status and everything that `fluxmq WORDS…` says."""
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        try:
            cli.main(words)
        except SystemExit as ended:
            assert isinstance(ended.code, int)
            return ended.code, said.getvalue()
    raise AssertionError("main() has returned")
