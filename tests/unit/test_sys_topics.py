"""Averages per minute below `$SYS/broker/load/`."""
from __future__ import annotations

import math

import pytest

from fluxmq.engine.sys_topics import LOADS, Loads


def counted(number: int) -> dict[str, str]:
    return dict.fromkeys(LOADS, str(number))


def test_an_even_load_is_approached_and_forgotten() -> None:
    """600 a minute, told every 10 s: after 15 minutes the average over 1 and 5 minutes is nearly that; after 15 minutes
    without anything, nearly nothing. The longer average lags behind."""
    loads = Loads()
    assert set(loads.take(counted(5), 1000).values()) == {"0.00"}         # what came before is not of this minute
    for step in range(1, 91):
        found = loads.take(counted(5 + 100 * step), 1000 + 10_000 * step)
    assert float(found["load/publish/received/1min"]) == pytest.approx(600, rel=1e-3)
    assert float(found["load/messages/sent/5min"]) == pytest.approx(600 * (1 - math.e ** -3), rel=1e-3)
    assert float(found["load/bytes/received/15min"]) == pytest.approx(600 * (1 - math.e ** -1), rel=1e-3)
    found = loads.take(counted(9005), 1000 + 900_000 + 900_000)
    assert float(found["load/publish/received/1min"]) == pytest.approx(0, abs=0.01)
    left = 600 * (1 - math.e ** -1) / math.e
    assert float(found["load/bytes/received/15min"]) == pytest.approx(left, rel=1e-3)


def test_names_are_those_of_mosquitto() -> None:
    assert {name for name in Loads().take(counted(0), 0) if name.endswith("/5min")} == {
        f"load/{what}/5min" for what in ("messages/received", "messages/sent", "publish/received", "publish/sent",
                                         "publish/dropped", "bytes/received", "bytes/sent")}


def test_two_at_the_same_moment_divide_by_nothing() -> None:
    loads = Loads()
    loads.take(counted(0), 5)
    assert loads.take(counted(100), 5)["load/bytes/sent/1min"] == "0.00"
    found = loads.take(counted(100), 60_005)["load/bytes/sent/1min"]
    assert float(found) == pytest.approx(100 * (1 - math.e ** -1), rel=1e-3)
