"""Points with brokers that are processes of their own, over a disk that errs."""
from __future__ import annotations

import copy
import random
import shutil
import time
from pathlib import Path
from typing import Any

from faults.play import all_points, chosen, play
from faults.story import Refused, Story, Wrong
from kit.broker import ACCIDENTS, Broker, BrokerDied
from kit.faultydisk import FaultyDisk, Point
from kit.nursery import Nursery, Process
from kit.powercut import PowerCut
from kit.python import TESTS, environment

__all__ = ["ProcessHost", "ProcessRunner"]

PROGRAM = Path(__file__).with_name("fault_node.py")
TURN_S = 0.004
TOLD_BYTES = 3000           # of what it said last


class _Broker(Broker):
    """Made by the nursery. orders: where it looks for them."""

    def __init__(self, directory: Path, settings: dict[str, object], nursery: Nursery, orders: Path) -> None:
        super().__init__(directory, settings)
        self.nursery, self.orders = nursery, orders

    def _start(self) -> Broker:
        command = super()._command()
        out, err = self._log("stdout"), self._log("stderr")
        out.write_bytes(b"")
        asked = {"arguments": command[command.index("run"):], "stdout": str(out), "stderr": str(err),
                 "orders": str(self.orders)}
        self.process = Process(self.nursery, self.nursery.ask("spawn", asked))
        self._wait_until_ready()
        return self


class ProcessHost:
    """The broker in a process. base: for what is beside its data; place: `place/data` is what it finds, below cut.live.
    """

    turns_max = 5_000

    def __init__(self, base: Path, place: Path, disk: FaultyDisk, cut: PowerCut, nursery: Nursery) -> None:
        self.base, self.place, self.disk, self.cut, self.nursery = base, place, disk, cut, nursery
        self.orders = base / "orders"
        self.orders.mkdir(parents=True)
        self.broker = _Broker(base / "broker", {
            "storage.dir": place / "data", "broker.sys_interval": 0, "server.health_enabled": False,
            "server.mqtt.websocket.plain.addr": "", "server.amqp091.plain.addr": "", "server.admin_socket": "off"},
            nursery, self.orders)
        self._said = 0
        self._gone = ""

    # ── as the story wants it ────────────────────────────────────────────────────────────────────────────

    @property
    def address(self) -> tuple[str, int]:
        return self.broker.address

    @property
    def ended(self) -> str | None:
        process = self.broker.process
        if process is None:
            return self._gone or None
        if process.poll() is None:
            return None
        self.broker.process = None
        self._gone = self._told() or f"exit code {process.returncode} without a word"
        return self._gone

    def _told(self) -> str:
        """What it said since it started. Raises BrokerDied for a traceback."""
        text = self.broker.stderr(self._said)
        if any(sign in text for sign in ACCIDENTS):
            raise Wrong(f"the broker had an accident, which tells an operator nothing: {text[-TOLD_BYTES:]}")
        return text[-TOLD_BYTES:].strip()

    @property
    def checkpoints(self) -> int:
        path = self.orders / "checkpoints"
        return path.stat().st_size if path.exists() else 0

    def start(self) -> None:
        self._said, self._gone = self.broker.stderr_size(), ""
        for order in self.orders.iterdir():
            order.unlink()
        try:
            self.broker.start()
        except BrokerDied:
            raise Refused(self._told()) from None

    def turn(self) -> None:
        time.sleep(TURN_S)

    def begin_checkpoint(self) -> None:
        (self.orders / "checkpoint").touch()

    def declare(self, queue: str) -> None:
        self._order(f"declare {queue}")

    def delete(self, queue: str) -> None:
        self._order(f"delete {queue}")

    def _order(self, text: str) -> None:
        """Done when the file is gone, or never."""
        order = self.orders / text
        order.touch()
        for _ in range(self.turns_max):
            if not order.exists() or self.ended is not None:
                return
            self.turn()
        raise BrokerDied("the clock of the broker stands still")

    # ── the ends ─────────────────────────────────────────────────────────────────────────────────────────

    def stop(self) -> str:
        process = self.broker.process
        if process is None:
            return ""
        code = self.broker.terminate() if process.poll() is None else process.returncode
        self.broker.process = None
        told = self._told()
        return told if code else ""

    def crash(self, how: str, chance: random.Random) -> None:
        process = self.broker.process
        if process is not None and process.poll() is None:
            self.broker.kill()
        self.broker.process = None
        if how != "kill":
            left = self.base / "left"
            self.cut.restore(left, torn=chance if how == "torn" else None, below=self.place)
            shutil.rmtree(self.place)
            left.rename(self.place)
            self.nursery.ask("settle", str(self.place))


class ProcessRunner:
    """All points of one test. base: where everything goes."""

    def __init__(self, base: Path, seed: int) -> None:
        self.base, self.seed = base, seed
        self.disk, self.cut = FaultyDisk(base), PowerCut(base)
        libraries = f"{self.disk.env['LD_PRELOAD']} {self.cut.library}"     # a sync that fails has not happened there
        self.nursery = Nursery(PROGRAM, environment(TESTS, **self.cut.env | self.disk.env | {"LD_PRELOAD": libraries}),
                               base / "errors")
        self.points = 0
        self.template = base / "template"
        self.prepared = Story()
        host = self.prepared.host = self._host()
        host.place.mkdir()
        host.start()
        self.prepared.prepare()
        host.crash("kill", random.Random(0))
        self.prepared.hang_up()
        del self.prepared.host              # a copy of the story finds another
        host.place.rename(self.template)

    def close(self) -> None:
        self.nursery.close()

    def _host(self) -> ProcessHost:
        self.points += 1
        return ProcessHost(self.base / str(self.points), self.cut.live / str(self.points), self.disk, self.cut,
                           self.nursery)

    def run(self, point: Point | None, how: str, first: bool = False) -> dict[str, Any]:
        """As points.py's."""
        host = self._host()
        if first:
            host.place.mkdir()
        else:
            shutil.copytree(self.template, host.place)
        self.nursery.ask("settle", str(host.place))
        try:
            return play(host, Story() if first else copy.deepcopy(self.prepared), point, how, self.seed, first)
        finally:
            host.broker.stop()
            shutil.rmtree(host.base)
            shutil.rmtree(host.place)
            self.cut.forget()

    def chosen(self, wanted: int) -> list[tuple[Point, str]]:
        """So many of them, of all kinds."""
        return chosen(all_points(self.disk, self.run), wanted, random.Random(self.seed))
