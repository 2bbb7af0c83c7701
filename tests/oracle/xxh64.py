"""XXH64 in plain Python, from its description: eight lines per step, no speed."""
from __future__ import annotations

P1, P2, P3, P4, P5 = (0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0x85EBCA77C2B2AE63,
                      0x27D4EB2F165667C5)
MASK = (1 << 64) - 1


def rotate(word: int, by: int) -> int:
    return (word << by | word >> (64 - by)) & MASK


def step(total: int, word: int) -> int:
    return rotate((total + word * P2) & MASK, 31) * P1 & MASK


def xxh64(data: bytes, seed: int = 0) -> int:
    """0 to 2^64 - 1."""
    whole = len(data) // 32 * 32
    hashed = (seed + P5) & MASK
    if whole:
        sums = [(seed + start) & MASK for start in (P1 + P2, P2, 0, -P1)]
        for at in range(0, whole, 32):
            words = [int.from_bytes(data[at + 8 * n:at + 8 * n + 8], "little") for n in range(4)]
            sums = [step(total, word) for total, word in zip(sums, words, strict=True)]
        hashed = sum(rotate(total, by) for total, by in zip(sums, (1, 7, 12, 18), strict=True)) & MASK
        for total in sums:
            hashed = ((hashed ^ step(0, total)) * P1 + P4) & MASK
    hashed = (hashed + len(data)) & MASK
    rest = data[whole:]
    while len(rest) >= 8:
        hashed = (rotate(hashed ^ step(0, int.from_bytes(rest[:8], "little")), 27) * P1 + P4) & MASK
        rest = rest[8:]
    if len(rest) >= 4:
        hashed = (rotate(hashed ^ int.from_bytes(rest[:4], "little") * P1 & MASK, 23) * P2 + P3) & MASK
        rest = rest[4:]
    for byte in rest:
        hashed = rotate(hashed ^ byte * P5 & MASK, 11) * P1 & MASK
    hashed = (hashed ^ hashed >> 33) * P2 & MASK
    hashed = (hashed ^ hashed >> 29) * P3 & MASK
    return hashed ^ hashed >> 32


def signed(word: int) -> int:
    return word - (1 << 64) if word >> 63 else word
