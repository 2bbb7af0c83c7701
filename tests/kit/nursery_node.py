"""Imports what `fluxmq run` imports, and then forks for whoever asks (kit/nursery.py).

    spawn {program, stdout, stderr, cwd, env}     `python PROGRAM…`; the answer is its number (line of JSON, as all)
    wait PID                                      its exit status, when it has ended

A child leaves the loop that reads these, and runs and ends as an interpreter does that was started for it.
"""
from __future__ import annotations

import json
import os
import runpy
import signal
import sys
from pathlib import Path
from typing import Any

import fluxmq.app.config
import fluxmq.app.server  # noqa: F401


def spawned() -> dict[str, Any] | None:
    """Answers until the end of the input. What a child is to be; None when this is not one."""
    for line in sys.stdin:
        verb, asked = json.loads(line)
        answer = os.fork() if verb == "spawn" else os.waitstatus_to_exitcode(os.waitpid(asked, 0)[1])
        if verb == "spawn" and answer == 0:
            return asked        # type: ignore[no-any-return]
        print(json.dumps(answer), flush=True)
    return None


def become(asked: dict[str, Any]) -> None:
    """As the interpreter does it for the words of a command line."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number, (name, how) in enumerate((("/dev/null", os.O_RDONLY),
                                          (asked["stdout"], os.O_WRONLY),
                                          (asked["stderr"], os.O_WRONLY | os.O_CREAT | os.O_APPEND))):
        opened = os.open(name, how, 0o666)
        os.dup2(opened, number)
        os.close(opened)
    sys.stdin = open(0, closefd=False)          # noqa: SIM115  the other has read ahead
    os.chdir(asked["cwd"])
    os.environ.clear()
    os.environ.update(asked["env"])
    first, *words = asked["program"]
    if first == "-m":
        sys.path[0] = asked["cwd"]
        sys.argv = ["-m", *words[1:]]
        runpy.run_module(words[0], run_name="__main__", alter_sys=True)
    else:
        sys.path[0] = str(Path(first).parent)
        sys.argv = [first, *words]
        runpy.run_path(first, run_name="__main__")


if __name__ == "__main__":
    # Ctrl-C at a terminal is for the test that asks, and for what was forked.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    child = spawned()
    if child is not None:
        become(child)
