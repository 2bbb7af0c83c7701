"""How much of a long list a run of CI plays: some of it, spread over the whole. The rest is for `tox -e soak`.

    @pytest.mark.parametrize("seed", some(24, range(60)))
"""
from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

__all__ = ["some"]


def some(count: int, values: Sequence[Any]) -> list[Any]:
    """All values, for parametrize; those that are not among the `count` for CI are marked `soak`. The first is among
    them."""
    assert 0 < count < len(values)
    played = {number * len(values) // count for number in range(count)}
    return [value if number in played else pytest.param(value, marks=pytest.mark.soak)
            for number, value in enumerate(values)]
