"""Numbers and names as text for people."""
from __future__ import annotations

__all__ = ["count_text", "number", "printable", "seconds_text", "size_text", "with_unit"]

UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


def size_text(number: float) -> str:
    unit = 0
    while abs(number) >= 1024 and unit < len(UNITS) - 1:
        number /= 1024
        unit += 1
    return f"{number:.0f} {UNITS[unit]}" if unit == 0 or number >= 100 else f"{number:.1f} {UNITS[unit]}"


def count_text(number: float) -> str:
    return f"{number:,.0f}" if number >= 100 or number == int(number) else f"{number:.3g}"


def seconds_text(number: float) -> str:
    if number < 120:
        return f"{number:.3g} s"
    return f"{number / 60:.1f} min" if number < 7200 else f"{number / 3600:.1f} h"


def printable(text: str) -> str:
    """A name chosen by a client, with control characters made harmless for a terminal."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def with_unit(value: float | None, unit: str) -> str:
    """A value of a measure. Times are in the unit that makes them short: 62 k µs are 62 ms."""
    if unit == "µs" and value is not None:
        for bound, name in ((1e3, "µs"), (1e6, "ms")):
            if abs(value) < bound:
                return f"{value / bound * 1e3:.3g} {name}"
        return f"{value / 1e6:.3g} s"
    return f"{number(value)} {unit}"


def number(value: float | None) -> str:
    if value is None:
        return "-"
    if abs(value) >= 1e6:
        return f"{value / 1e6:.2f} M"
    return f"{value / 1e3:.0f} k" if abs(value) >= 1e4 else f"{value:.4g}"
