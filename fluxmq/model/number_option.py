"""Options of commands that take a number with a fraction: seconds, or so many a second."""
from __future__ import annotations

import math
from typing import Any

import click

__all__ = ["Number"]

GREATEST = float(0xFFFF_FFFF)   # 136 years: what is longer overflows the clocks of the system


class Number(click.FloatRange):
    """As click.FloatRange, which takes `nan` as being in every range, and `inf` where there is no upper limit."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        found: float = super().convert(value, param, ctx)
        if math.isnan(found) or abs(found) > GREATEST:
            self.fail(f"{value} is no number that can be used here: up to {GREATEST:.0f}", param, ctx)
        return found
