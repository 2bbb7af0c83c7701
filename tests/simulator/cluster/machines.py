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
    def look_ms(self) -> int | None:
        """When the next look is due, by the world's clock; None if other timers are due before it."""
        due_ms = self.driver.look_ms
        return None if due_ms is None else self.world_ms(due_ms)

    def look_until(self, until_ms: int) -> None:
        """All looks before that, by the world's clock, were in vain."""
        while (due_ms := self.driver.look_ms) is not None and (at_ms := self.world_ms(due_ms)) < until_ms:
            every_ms = self.driver.look_every_ms
            if self._rate == MILLION:
                self.driver.looked(due_ms + -(-(until_ms - at_ms) // every_ms) * every_ms)
            else:
                self.driver.looked(self._offset_ms + at_ms * self._rate // MILLION + every_ms)

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
        self.always_checks = False      # and at that of each look: they do something because time has passed
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
        self._wake()                # whoever calls this may have done anything
        while True:
            self.settle()
            if condition is not None and condition():
                return True
            if self._still():
                due_ms = self._next_ms(looks=False)
                if self._look_until(end_ms + 1 if due_ms is None or due_ms > end_ms else due_ms, condition):
                    return True
            due_ms = self._next_ms()
            if due_ms is None or due_ms > end_ms:
                self.now_ms = end_ms
                return False
            self.now_ms = due_ms

    def _wake(self) -> None:
        """Something was done, so looks may find something."""
        for process in self.processes.values():
            process.driver.may_find = process.driver.looks

    def _still(self) -> bool:
        """Nothing happens but looks in vain (`SimDriver.look`) until another timer is due."""
        return not self.events.due and not any(process.driver.may_find or process.driver.due
                                               for process in self.processes.values() if process.runs)

    def _look_until(self, until_ms: int, condition: Callable[[], object] | None) -> bool:
        """All looks before that, none of which is done: the history is as if each had been, and played in a part of the
        time. The condition is asked for after each; whether it holds."""
        looking = [process for process in self.processes.values() if process.runs and process.driver.looks]
        while condition is not None or self.always_checks:
            at_ms = min((at_ms for process in looking if (at_ms := process.look_ms) is not None), default=until_ms)
            if at_ms >= until_ms:
                return False
            self.now_ms = at_ms
            for process in looking:
                process.look_until(at_ms + 1)
            if self.always_checks:
                for check in self.checks:
                    check()
            if condition is not None and condition():
                return True
            if not self._still():
                return False
        for process in looking:
            process.look_until(until_ms)
        return False

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
        acts = self.events.acts
        self.events.acts = 0
        for process in processes:
            acts += process.driver.acts
            process.driver.acts = 0
        if acts:
            self._wake()
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

    def _next_ms(self, *, looks: bool = True) -> int | None:
        found = self.events.next_ms
        for process in self.processes.values():
            driver = process.driver
            if process.runs and (due_ms := driver.next_ms if looks else driver.next_but_look_ms) is not None:
                at_ms = max(process.world_ms(due_ms), self.now_ms + 1)
                if found is None or at_ms < found:
                    found = at_ms
        return found
