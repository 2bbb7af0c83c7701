"""Beats that periodic work on the event loop shares (app/driver)."""
from __future__ import annotations

import asyncio
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fluxmq.app.driver import LoopDriver, until_beat

periods = st.sampled_from([0.25, 0.5, 1.0])
times = st.floats(0.0, 1e7)


@given(period=periods, now=times)
def test_a_beat_is_half_a_period_away_at_least_and_one_and_a_half_at_most(period: float, now: float) -> None:
    left = until_beat(period, now)
    assert period / 2 - 1e-6 <= left <= period * 1.5 + 1e-6
    assert round((now + left) / period, 3).is_integer()


@given(period=periods, beat=st.integers(0, 10**7), late=st.floats(-0.4, 0.4))
def test_who_wakes_early_or_late_meets_the_next_beat(period: float, beat: int, late: float) -> None:
    now = (beat + late) * period
    assert now + until_beat(period, now) == pytest.approx((beat + 1) * period)


def test_the_driver_keeps_beats_of_the_monotonic_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    monkeypatch.setattr(asyncio, "sleep", sleep)
    monkeypatch.setattr(time, "monotonic", lambda: 1000.1)
    asyncio.run(LoopDriver().pace(0.25))    # type: ignore[arg-type]
    assert slept == [pytest.approx(0.15)]
