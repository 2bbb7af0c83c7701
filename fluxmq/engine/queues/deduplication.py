"""Producer deduplication: which sequences of a producer were appended already.

    (highest, bitmap)    bit n stands for the sequence n below the highest; what is below the window counts as appended
"""
from __future__ import annotations

__all__ = ["is_repeated", "together", "with_sequence"]

DEDUPLICATION_WINDOW = 1024  # sequences below a producer's highest that are remembered individually


def is_repeated(known: tuple[int, int] | None, sequence: int) -> bool:
    """Whether a producer has appended this sequence: exact within the window; below it, always true."""
    if known is None or sequence > known[0]:
        return False
    below = known[0] - sequence
    return below >= DEDUPLICATION_WINDOW or bool(known[1] >> below & 1)


def with_sequence(known: tuple[int, int] | None, sequence: int) -> tuple[int, int]:
    """Returns (highest, bitmap) with one more sequence; bit n is the sequence n below the highest."""
    if known is None:
        return sequence, 1
    highest, bits = known
    if sequence > highest:
        shift = sequence - highest
        return sequence, (bits << shift | 1) & (1 << DEDUPLICATION_WINDOW) - 1 if shift < DEDUPLICATION_WINDOW else 1
    return highest, bits | 1 << highest - sequence


def together(known: tuple[int, int] | None, other: tuple[int, int]) -> tuple[int, int]:
    """What either of two knows."""
    if known is None:
        return other
    lower, higher = sorted((known, other))
    below = higher[0] - lower[0]
    return higher[0], higher[1] | (lower[1] << below & (1 << DEDUPLICATION_WINDOW) - 1
                                   if below < DEDUPLICATION_WINDOW else 0)
