"""Line charts as inline SVG, drawn here: no scripts, no fonts, nothing from outside. matplotlib would not follow
the page's style.

Colours are classes that the page's style gives values for light and dark; each series also has its own dash pattern, so
that the colours are not needed. The figures stand in a table beside it (page.py).
"""
from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape

__all__ = ["Series", "decades", "line_chart", "short", "ticks"]

WIDTH, HEIGHT = 720, 260
LEFT, RIGHT, TOP, BOTTOM = 72, 12, 28, 40
TICKS = 5
DECADES_FINE = 3            # beyond this number of decades, a logarithmic axis has labels only at powers of ten

Point = tuple[float, float | None]


@dataclass(slots=True, frozen=True)
class Series:
    """style: a class of the page's style. points: (x, y) in order of x; a y of None breaks the line."""

    name: str
    style: str
    points: Sequence[Point]


def ticks(low: float, high: float, count: int = TICKS) -> list[float]:
    """Round numbers (1, 2 or 5 times a power of ten) from about low to about high that cover both."""
    if not high > low:
        high = low + (abs(low) or 1)
    raw = (high - low) / count
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= raw * (1 - 1e-9))
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [number * step for number in range(first, last + 1)]


def decades(low: float, high: float) -> list[float]:
    """1, 2 and 5 times powers of ten from `low` (above 0) or less to `high` or more; powers alone where those many."""
    first, last = math.floor(math.log10(low) + 1e-9), math.ceil(math.log10(high) - 1e-9)
    last = max(last, first + 1)
    between = (1, 2, 5) if last - first <= DECADES_FINE else (1,)
    return [10.0 ** power * factor for power in range(first, last) for factor in between] + [10.0 ** last]


def line_chart(identity: str, title: str, x_unit: str, y_unit: str, series: Sequence[Series], *,
               across: Callable[[float], str] | None = None) -> str:
    """An <svg> with axes from zero. identity: unique in the page. Without points, a sentence that says so.

    across: makes the horizontal axis logarithmic, and is how its values are written; an x of 0 stands at its left end.
    """
    known = [(x, y) for one in series for x, y in one.points if y is not None and math.isfinite(y)]
    above = [x for x, _ in known if x > 0]
    if not known or (across is not None and not above):
        return "<p>Not measured.</p>"
    sideways = ticks(0, max(x for x, _ in known)) if across is None else decades(min(above), max(above))
    up = ticks(0, max(y for _, y in known))

    def part(x: float) -> float:
        """Position of x on the horizontal axis: 0 to 1."""
        if across is None:
            return x / sideways[-1]
        return math.log(max(x, sideways[0]) / sideways[0]) / math.log(sideways[-1] / sideways[0])

    def at(x: float, y: float) -> tuple[float, float]:
        return (LEFT + (WIDTH - LEFT - RIGHT) * part(x), HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * y / up[-1])

    parts = [f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-labelledby="{identity}-t {identity}-d">',
             f'<title id="{identity}-t">{escape(title)}</title>',
             f'<desc id="{identity}-d">{escape(described(series, y_unit))}</desc>']
    for y in up:
        _, height = at(0, y)
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{height:.1f}" y2="{height:.1f}"/>'
                     f'<text x="{LEFT - 8}" y="{height + 4:.1f}" text-anchor="end">{short(y)}</text>')
    for x in sideways:
        place, _ = at(x, 0)
        if across is not None:
            parts.append(f'<line class="grid" x1="{place:.1f}" x2="{place:.1f}" y1="{TOP}" y2="{HEIGHT - BOTTOM}"/>')
        text = short(x) if across is None else escape(across(x))
        anchor = "end" if x == sideways[-1] and across is not None else "middle"       # else cut off
        parts.append(f'<text x="{place:.1f}" y="{HEIGHT - BOTTOM + 18}" text-anchor="{anchor}">{text}</text>')
    parts.append(f'<text x="{WIDTH - RIGHT}" y="{HEIGHT - 4}" text-anchor="end">{escape(x_unit)}</text>'
                 f'<text x="4" y="12">{escape(y_unit)}</text>')
    for one in series:
        for run in runs(one.points):
            places = [at(x, y) for x, y in run]
            if len(places) == 1:
                parts.append(f'<circle class="{one.style}" cx="{places[0][0]:.1f}" cy="{places[0][1]:.1f}" r="3"/>')
            else:
                parts.append(f'<polyline class="{one.style}" points="'
                             + " ".join(f"{x:.1f},{y:.1f}" for x, y in places) + '"/>')
    return "\n".join([*parts, "</svg>"])


def runs(points: Sequence[Point]) -> list[list[tuple[float, float]]]:
    """Splits a line at missing points."""
    found: list[list[tuple[float, float]]] = [[]]
    for x, y in points:
        if y is not None and math.isfinite(y):
            found[-1].append((x, y))
        elif found[-1]:
            found.append([])
    return [run for run in found if run]


def described(series: Sequence[Series], unit: str) -> str:
    """The chart in words, for readers who cannot see it."""
    said = []
    for one in series:
        known = [y for _, y in one.points if y is not None]
        said.append(f"{one.name}: from {short(min(known))} to {short(max(known))} {unit}" if known
                    else f"{one.name}: not measured")
    return "; ".join(said)


def short(value: float) -> str:
    """Three significant digits, with k, M or G."""
    for factor, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= factor:
            return f"{value / factor:.3g} {letter}"
    return f"{value:.3g}"
