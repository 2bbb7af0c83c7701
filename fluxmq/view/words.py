"""Texts of the view: numbers that are short, names that fit and cannot move a cursor."""
from collections.abc import Sequence

from fluxmq._core.record.counts import BUCKETS, bucket_us

__all__ = ["amount", "fitted", "percentile", "plain_text", "took"]


def plain_text(text: str) -> str:
    """Without what could move a cursor; names come from clients."""
    return text if text.isprintable() else "".join(c if c.isprintable() else "?" for c in text)


def fitted(text: str, width: int) -> str:
    """Of exactly that width; what is too long loses its middle."""
    text = plain_text(text)
    if len(text) > width:
        tail = (width - 1) // 2
        text = text[:width - 1 - tail] + "~" + text[len(text) - tail:]
    return text.ljust(width)


def amount(value: float) -> str:
    """Four signs at most, as 9999, 12k, 1.2M."""
    if value < 0:
        return "?"
    if value < 10 and value != int(value):
        return f"{value:.1f}"
    for unit in ("", "k", "M", "G"):
        if value < 999.5 or (unit == "" and value < 9999.5):
            return f"{value:.0f}{unit}" if unit == "" or value >= 99.5 else f"{value:.1f}{unit}".replace(".0", "")
        value /= 1000
    return f"{value:.0f}T"


def took(us: float) -> str:
    """A latency."""
    if us < 0:
        return "-"
    if us < 1000:
        return f"{us:.0f}µs"
    if us < 1_000_000:
        return f"{us / 1000:.1f}ms" if us < 100_000 else f"{us / 1000:.0f}ms"
    return f"{us / 1_000_000:.1f}s"


def percentile(buckets: Sequence[int], share: float) -> float:
    """µs; -1: nothing was counted."""
    total = sum(buckets)
    if not total:
        return -1.0
    left = share * total
    for at, count in enumerate(buckets):
        left -= count
        if left <= 0 and count:
            return bucket_us(at)
    return bucket_us(BUCKETS - 1)
