"""XXH64: published values, the oracle, and any pieces."""
from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from oracle.xxh64 import xxh64 as oracle

from fluxmq._core.wire.xxh64 import xxh64

PUBLISHED = [
    (b"", 0, 0xEF46DB3751D8E999),
    (b"a", 0, 0xD24EC4F1A98C6E5B),
    (b"abc", 0, 0x44BC2CF5AD770999),
    (b"xxhash", 0, 0x32DD38952C4BC720),
    (b"xxhash", 20141025, 0xB559B98D844E0635),
    (b"Nobody inspects the spammish repetition", 0, 0xFBCEA83C8A378BF1),
]


@pytest.mark.parametrize(("data", "seed", "wanted"), PUBLISHED)
def test_published_values(data: bytes, seed: int, wanted: int) -> None:
    assert xxh64(data, seed) == oracle(data, seed) == wanted


@given(st.binary(max_size=200), st.integers(0, 2**64 - 1), st.lists(st.integers(0, 200)))
def test_any_pieces_give_the_same(data: bytes, seed: int, cuts: list[int]) -> None:
    pieces = tuple(sorted(min(cut, len(data)) for cut in cuts)) or (0,)
    assert xxh64(data, seed) == xxh64(data, seed, pieces=pieces) == oracle(data, seed)
