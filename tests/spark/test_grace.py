"""Who leaves waits for deliveries, with a clock set by hand."""
from __future__ import annotations

import pytest

from fluxmq.spark.player.grace import GRACE_S, Grace

SECOND = 1_000_000_000


def test_leaving_waits_as_long_as_deliveries_come_close_together() -> None:
    now = 5 * SECOND
    wait = Grace(lambda: now)
    assert wait.left_s(False) == 0
    assert wait.left_s(True) == GRACE_S
    now += SECOND * 3 // 4
    assert wait.left_s(True) == pytest.approx(0.25)
    wait.came()
    assert wait.left_s(True) == GRACE_S
    now += SECOND
    assert wait.left_s(True) == 0


def test_what_came_before_the_wish_to_leave_does_not_shorten_it() -> None:
    now = 5 * SECOND
    wait = Grace(lambda: now)
    wait.came()
    now += 10 * SECOND
    assert wait.left_s(True) == GRACE_S


def test_a_wish_that_was_granted_is_forgotten() -> None:
    """The next one has its whole time again."""
    now = 5 * SECOND
    wait = Grace(lambda: now)
    assert wait.left_s(True) == GRACE_S
    now += 2 * SECOND
    assert wait.left_s(True) == 0
    assert wait.left_s(True) == GRACE_S


def test_who_waits_for_nothing_any_more_may_leave_at_once() -> None:
    now = 5 * SECOND
    wait = Grace(lambda: now)
    wait.left_s(True)
    now += SECOND // 2
    assert wait.left_s(False) == 0
    assert wait.left_s(True) == GRACE_S
