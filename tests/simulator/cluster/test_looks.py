"""Looks in vain are passed over, and a history is as if each had been done (machines.py)."""
from __future__ import annotations

import random
from functools import partial

import pytest
from simulator.cluster.machines import Machines
from simulator.driver import SimDriver


def history(seed: int, *, over: bool) -> tuple[list[tuple[int, str]], int]:
    """What happens in a world whose processes look for work, and how often they do. over: looks in vain may be passed
    over; else each may find something."""
    world, chance = Machines(seed), random.Random(seed)
    happened: list[tuple[int, str]] = []
    looks = 0
    for name in ("a", "b", "c"):
        process = world.process(name, rate_ppm=chance.choice((0, 0, 70_000)), offset_ms=chance.randrange(50))
        work: list[int] = []
        period_s = chance.choice((0.001, 0.007, 0.05))

        def look(name: str = name, work: list[int] = work) -> bool:
            nonlocal looks
            looks += 1
            if work:
                happened.append((world.now_ms, f"{name} finds {work.pop(0)}"))
                return True
            return not over

        def come(number: int, name: str = name, work: list[int] = work, driver: SimDriver = process.driver) -> None:
            happened.append((world.now_ms, f"{number} comes to {name}"))
            work.append(number)
            driver.later(random.Random(number).choice((0.0, 0.001, 0.003, 0.4)),
                         lambda: happened.append((world.now_ms, f"{name} is late with {number}")))

        process.driver.look(lambda period_s=period_s: period_s, look)   # type: ignore[misc]
        for number in range(20):
            world.events.later(chance.random() * 20, partial(come, number))
    for step in range(12):
        now_ms = world.now_ms
        if step % 3 == 1:
            at_ms = now_ms + chance.randrange(1, 900)
            world.run_until(lambda at_ms=at_ms: world.now_ms >= at_ms)      # type: ignore[misc]
        elif step % 3 == 2:
            world.processes["b"].pause()
            world.run_for(chance.random())
            world.processes["b"].resume()
        world.run_for(chance.choice((0.0, 0.001, 0.5, 4.0)))
        happened.append((world.now_ms, "step"))
    return happened, looks


@pytest.mark.parametrize("seed", range(8))
def test_a_history_is_the_same_without_looks_in_vain(seed: int) -> None:
    happened, looks = history(seed, over=False)
    shorter, fewer = history(seed, over=True)
    assert shorter == happened
    assert len(happened) > 60 and fewer < looks / 2
