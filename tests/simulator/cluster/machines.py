"""Processes and their clocks: what of a simulated cluster may be paused, killed and started again, and when it runs.

    world = Machines(seed)
    node = world.process("n1")              # runs; node.driver is engine.ports.driver.Driver of its present life
    world.run_for(1.5)                      # seconds of the world's clock
    node.pause(); node.resume()             # SIGSTOP, SIGCONT
    node.kill(); node.start()               # SIGKILL, another life with another driver

Everything happens in one thread. A process runs when something of it is due: a timer of its driver, or what was
delivered to it. Time passes only in between. What is due at one instant runs in an order that depends on the seed only.
"""
from __future__ import annotations

import random
from collections.abc import Callable

from simulator.driver import SimDriver

__all__ = ["Machines", "Process"]

START_MS = 1_000_000
MILLION = 1_000_000
ROUNDS_MAX = 3000       # at one instant; a world that needs more of them hangs


class Process:
    """One process and the clock of its machine. The clock goes on while the process is paused or dead.

    rate_ppm: how much faster than the world's the clock runs, in millionths. life: counts the starts.
    """

    def __init__(self, world: Machines, name: str, *, offset_ms: int = 0, rate_ppm: int = 0) -> None:
        self.name = name
        self.life = 0
        self.alive = False
        self.paused = False
        self.dark = False       # dead, and its machine too: nobody even refuses connections
        self._world = world
        self._offset_ms = offset_ms
        self._rate = MILLION + rate_ppm
        self.driver = SimDriver(self.now_ms)
        # Called when this process dies, with whether its kernel still tells others (False: the machine lost its power).
        self.at_death: dict[object, Callable[[bool], None]] = {}

    def now_ms(self) -> int:
        """The clock of this machine."""
        return self._offset_ms + self._world.now_ms * self._rate // MILLION

    def now(self) -> float:
        """The same in seconds, as CLOCK_BOOTTIME."""
        return self.now_ms() / 1000

    def world_ms(self, local_ms: int) -> int:
        """When this clock has reached local_ms, by the world's clock."""
        return -(-(local_ms - self._offset_ms) * MILLION // self._rate)

    @property
    def runs(self) -> bool:
        """Neither paused nor dead."""
        return self.alive and not self.paused

    def start(self) -> None:
        """Another life: nothing of the former one is left."""
        assert not self.alive, f"{self.name} runs"
        self.life += 1
        self.alive, self.paused, self.dark = True, False, False
        self.driver = SimDriver(self.now_ms)

    def kill(self, *, silent: bool = False) -> None:
        """SIGKILL. silent: loss of power, so nobody is told that connections are gone."""
        assert self.alive, f"{self.name} is dead"
        self.alive, self.paused, self.dark = False, False, silent
        self.driver.drop()
        callbacks = list(self.at_death.values())
        self.at_death.clear()
        for call in callbacks:
            call(not silent)
        self._world.tell(None)

    def pause(self) -> None:
        """SIGSTOP: what is due waits, what is delivered waits, the clock goes on."""
        assert self.alive, f"{self.name} is dead"
        self.paused = True
        self._world.tell(None)

    def resume(self) -> None:
        """SIGCONT. What has waited is done in an order that depends on the seed: what was delivered first, or the
        timers."""
        assert self.paused, f"{self.name} is not paused"
        self.paused = False
        if self._world.chance.random() < 0.5:
            self.driver.timers_first()
        self._world.tell(self)

    def deliver(self, life: int, call: Callable[[], object]) -> None:
        """call() is done by this process when it runs, if that is still the same life."""
        if self.alive and life == self.life:
            self.driver.soon(call)


class Machines:
    """The processes, and the clock of the world. events: what happens outside of any process, such as arrivals."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.now_ms = START_MS
        self.events = SimDriver(lambda: self.now_ms)
        self.processes: dict[str, Process] = {}
        self.checks: list[Callable[[], None]] = []      # called at each instant at which something happened
        # Called when a process was paused, resumed (then with it) or killed.
        self.on_change: list[Callable[[Process | None], None]] = []

    def process(self, name: str, *, offset_ms: int = 0, rate_ppm: int = 0) -> Process:
        """A new process, which runs."""
        assert name not in self.processes
        process = self.processes[name] = Process(self, name, offset_ms=offset_ms, rate_ppm=rate_ppm)
        process.start()
        return process

    def tell(self, resumed: Process | None) -> None:
        """A process was paused, resumed or killed."""
        for call in self.on_change:
            call(resumed)

    @property
    def now(self) -> float:
        """Seconds of the world's clock."""
        return self.now_ms / 1000

    def run_for(self, seconds: float) -> None:
        """Lets time pass."""
        self._run(seconds, None)

    def run_until(self, condition: Callable[[], object], limit_s: float = 60.0) -> None:
        """Lets time pass until the condition holds. Raises AssertionError when it does not within limit_s."""
        assert self._run(limit_s, condition), f"not within {limit_s} s"

    def holds_within(self, condition: Callable[[], object], limit_s: float) -> bool:
        """Lets time pass until the condition holds or limit_s is over; whether it holds."""
        return self._run(limit_s, condition)

    def _run(self, seconds: float, condition: Callable[[], object] | None) -> bool:
        end_ms = self.now_ms + round(seconds * 1000)
        while True:
            self.settle()
            if condition is not None and condition():
                return True
            due_ms = self._next_ms()
            if due_ms is None or due_ms > end_ms:
                self.now_ms = end_ms
                return False
            self.now_ms = due_ms

    def settle(self) -> None:
        """Everything that is due now."""
        processes = list(self.processes.values())
        for _ in range(ROUNDS_MAX):
            ran = self._run_driver(self.events)
            for process in processes:
                if process.runs:
                    ran |= self._run_driver(process.driver)
            if not ran:
                break
        else:
            raise AssertionError(f"nothing comes to rest at {self.now_ms} ms")
        for check in self.checks:
            check()

    def _run_driver(self, driver: SimDriver) -> bool:
        """What is due there; whether anything was."""
        if not driver.due:
            return False
        driver.run_ready()
        while driver.threads and not driver.held:
            driver.run_thread(self.chance.randrange(len(driver.threads)))
        return True

    def _next_ms(self) -> int | None:
        found = self.events.next_ms
        for process in self.processes.values():
            if process.runs and (due_ms := process.driver.next_ms) is not None:
                at_ms = max(process.world_ms(due_ms), self.now_ms + 1)
                if found is None or at_ms < found:
                    found = at_ms
        return found
