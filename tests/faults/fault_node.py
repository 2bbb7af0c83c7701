"""Brokers as processes of their own, which start in a moment: this program imports everything and then forks.

    spawn ARGUMENTS…       a broker, as `fluxmq ARGUMENTS…`; the answer is its number (line of JSON, as all)
    wait PID               its exit status, when it has ended
    settle DIRECTORY       what is there counts as synced (kit/powercut.c); the answer is nothing

A broker has small files and a clock that ticks often, and does what it is told by files in a directory, each removed
when it is done:

    checkpoint          take one now (the file `checkpoints` grows by a byte with each that succeeds)
    declare NAME        make a classic queue
    delete NAME         delete it
"""
from __future__ import annotations

import json
import os
import sys
import traceback
from pathlib import Path
from typing import Any

from faults.hosts import QUEUES, settle, small_files

from fluxmq.app import cli, server
from fluxmq.app.queue_setup import Queues
from fluxmq.engine import durability
from fluxmq.engine.ports.driver import Driver
from fluxmq.model.queues import QueueSpec

NEVER = 1 << 40
TICK_S = 0.01
_tick = Queues.tick
orders = Path()


class Keeper(durability.Keeper):
    """Takes a checkpoint when it is told to, and only then."""

    told = 0

    def __init__(self, broker: Any, store: Any, _file_bytes: int, driver: Driver) -> None:
        super().__init__(broker, store, NEVER, driver)

    def tick(self) -> None:
        with (orders / "checkpoints").open("ab") as file:
            file.write(bytes(self.checkpoints - self.told))
        self.told = self.checkpoints
        self.file_bytes = NEVER
        if (orders / "checkpoint").exists():
            (orders / "checkpoint").unlink()
            self.file_bytes = 0
        super().tick()
        self.file_bytes = NEVER


def obey(queues: Queues) -> None:
    """A tick of the clock."""
    for order in sorted(orders.iterdir()):
        verb, _, name = order.name.partition(" ")
        if verb == "declare":
            queues.manager.declare(QueueSpec(name=name))
            order.unlink()
        elif verb == "delete":
            if (b"/", name.encode()) in queues.manager.queues:
                queues.manager.delete((b"/", name.encode()))
            order.unlink()
    _tick(queues)


def declare(queues: Queues) -> None:
    """The queues of the story."""
    for queue in QUEUES:
        queues.manager.declare(QueueSpec(**queue))      # type: ignore[arg-type]


def spawn(asked: dict[str, Any]) -> int:
    """asked: arguments, stdout, stderr, orders."""
    global orders
    child = os.fork()
    if child:
        return child
    try:
        for number, (name, how) in enumerate((("/dev/null", os.O_RDONLY),
                                              (asked["stdout"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC),
                                              (asked["stderr"], os.O_WRONLY | os.O_CREAT | os.O_APPEND))):
            os.dup2(os.open(name, how, 0o600), number)
        orders = Path(asked["orders"])
        sys.argv = ["fluxmq", *asked["arguments"]]
        cli.main()
    except SystemExit as end:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(int(end.code or 0))
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
    os._exit(1)


def main() -> None:
    small_files()
    server.Keeper = Keeper                  # type: ignore[misc]
    server.TICK_S = TICK_S                  # type: ignore[misc]
    Queues.tick = obey                      # type: ignore[method-assign]
    Queues.declare = declare                # type: ignore[method-assign]
    durability.SPACE_RETRIES_S = 1
    for line in sys.stdin:
        verb, asked = json.loads(line)
        answer = None
        if verb == "spawn":
            answer = spawn(asked)
        elif verb == "wait":
            answer = os.waitstatus_to_exitcode(os.waitpid(asked, 0)[1])
        elif verb == "settle":
            settle(Path(asked))
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
