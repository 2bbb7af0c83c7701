"""Parses values of a query: a boolean, a number, a partition. Each raises QueueRefused, invalid, for other values."""
from __future__ import annotations

from collections.abc import Mapping

from fluxmq.engine.ports.queues import QueueRefused

__all__ = ["number", "partition", "truth"]

_TRUTHS = {"": True, "1": True, "true": True, "0": False, "false": False}


def truth(query: Mapping[str, str], word: str) -> bool:
    """False if it is missing."""
    text = query.get(word, "false")
    if text not in _TRUTHS:
        raise QueueRefused("invalid", f"{word} is true or false, not {text!r}")
    return _TRUTHS[text]


def number(query: Mapping[str, str], word: str, default: int | None, minimum: int, maximum: int) -> int | None:
    """A number from minimum to maximum; default if it is missing."""
    text = query.get(word)
    if text is None:
        return default
    if not (text.isascii() and text.isdigit() and len(text) <= 10 and minimum <= int(text) <= maximum):
        raise QueueRefused("invalid", f"{word} is a number from {minimum} to {maximum}, not {text!r}")
    return int(text)


def partition(query: Mapping[str, str]) -> int | None:
    """None means all partitions."""
    return number(query, "partition", None, 0, 65535)
