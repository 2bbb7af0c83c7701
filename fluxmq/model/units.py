"""Durations, sizes and numbers of things as people write them. Inside, a duration is a float of seconds and a size an
int of bytes.

    duration = number of seconds | 1*( number ( "d" | "h" | "m" | "s" | "ms" | "us" ) )     "1m30s", "250ms", 60, 0.5
    size     = number of bytes   | number ( "B" | "KiB" | "MiB" | "GiB" | "TiB" )           "64KiB", 65536

Decimal units (kB, MB) are refused instead of guessed at: half of those who write them mean powers of two. humanfriendly
guesses, and rounds what it writes.
Parsing raises ValueError with a sentence; both `format_` functions write what their parser reads back exactly.
"""
import math
import re
from decimal import Decimal

__all__ = ["count_of", "format_duration", "format_size", "parse_duration", "parse_size"]

_DURATION_UNITS = {"d": 86400, "h": 3600, "m": 60, "s": 1}
# As exponents: 15 * 1e-6 is not the float nearest to 0.000015, "15e-6" is.
_DURATION_EXPONENTS = {"ms": "e-3", "us": "e-6"}
_SIZE_UNITS = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}
_NUMBER = r"[0-9]+(?:\.[0-9]+)?"
_DURATION = re.compile(rf"(?:{_NUMBER}(?:d|h|ms|us|m|s))+", re.ASCII)
_DURATION_PART = re.compile(rf"({_NUMBER})(d|h|ms|us|m|s)", re.ASCII)
_PLAIN = re.compile(_NUMBER, re.ASCII)
_SIZE = re.compile(rf"({_NUMBER}) ?([A-Za-z]+)", re.ASCII)
# Longer texts are mistakes, and int() of a very long one raises an error of its own.
_TEXT_LENGTH_MAX = 40


def count_of(number: int, word: str) -> str:
    """So many of these: "1 queue", "2 queues"."""
    return f"{number} {word}{'' if number == 1 else 's'}"


def parse_duration(value: object) -> float:
    """Seconds. Refuses booleans, negative numbers, what is not finite, and a unit given twice."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return _seconds(value)
    if not isinstance(value, str) or len(value) > _TEXT_LENGTH_MAX:
        raise ValueError("not a duration")
    text = value.strip()
    if _PLAIN.fullmatch(text):
        return _seconds(float(text))
    if not _DURATION.fullmatch(text):
        raise ValueError("not a duration")
    parts = _DURATION_PART.findall(text)
    if len({unit for _, unit in parts}) != len(parts):
        raise ValueError("a unit is given twice")
    # fsum: "1.1s100ms" and the like come out as the nearest float, whatever the order of the parts
    return _seconds(math.fsum(
        float(number) * _DURATION_UNITS[unit] if unit in _DURATION_UNITS else float(number + _DURATION_EXPONENTS[unit])
        for number, unit in parts))


def _seconds(value: float) -> float:
    try:
        seconds = float(value)
    except OverflowError:
        raise ValueError("too large for a duration") from None
    if not math.isfinite(seconds) or seconds < 0:
        raise ValueError("a duration is a finite number, not negative")
    return seconds


def format_duration(seconds: float) -> str:
    """The shortest common writing: "1m30s", "250ms", "0s"; where no unit fits exactly, seconds with decimals."""
    if seconds == 0:
        return "0s"
    if seconds >= 1 and seconds == int(seconds):
        rest, parts = int(seconds), []
        for unit, factor in (("d", 86400), ("h", 3600), ("m", 60), ("s", 1)):
            count, rest = divmod(rest, factor)
            if count:
                parts.append(f"{count}{unit}")
        return "".join(parts)
    for unit, exponent in _DURATION_EXPONENTS.items():
        count = round(seconds / float(f"1{exponent}"))
        if 0 < count < 1_000_000 and float(f"{count}{exponent}") == seconds:
            return f"{count}{unit}"
    return f"{Decimal(repr(seconds)):f}s"


def parse_size(value: object) -> int:
    """Bytes. Refuses booleans, negative numbers, parts of bytes and decimal units."""
    if isinstance(value, int) and not isinstance(value, bool):
        if value < 0:
            raise ValueError("a size is not negative")
        return value
    if not isinstance(value, str) or len(value) > _TEXT_LENGTH_MAX:
        raise ValueError("not a size")
    text = value.strip()
    if text.isascii() and text.isdigit():
        return int(text)
    match = _SIZE.fullmatch(text)
    if match is None:
        raise ValueError("not a size")
    number, unit = match.groups()
    if unit not in _SIZE_UNITS:
        near = next((known for known in _SIZE_UNITS if known[0].lower() == unit[0].lower()), None)
        raise ValueError(f"{unit} is not a unit of size" + (f"; write {number}{near}" if near else ""))
    size = float(number) * _SIZE_UNITS[unit] if "." in number else int(number) * _SIZE_UNITS[unit]
    if size != int(size):
        raise ValueError("not a whole number of bytes")
    return int(size)


def format_size(size: int) -> str:
    """With the largest unit that divides it: "64KiB"; a number without unit below that ("1500")."""
    for unit in ("TiB", "GiB", "MiB", "KiB"):
        if size and size % _SIZE_UNITS[unit] == 0:
            return f"{size // _SIZE_UNITS[unit]}{unit}"
    return str(size)
