"""A number of 64 bits becomes one of fewer through wire/sizes.pxd, or with a reason beside the cast: a cast says
nothing when the number does not fit, and what is then copied does not fit either."""
from __future__ import annotations

from kit.narrowing import Declared, all_casts, casts
from kit.tree import ROOT, sources

WHAT_TO_DO = """
Each of these casts may lose bits of a number of 64. Use fit_u32 and the like (fluxmq/_core/wire/sizes.pxd): the
process ends where the number does not fit. Or low_u32 if the lowest bits are what is wanted. Or say beside the cast why
it fits, or why not: `# fits: the limit is 255`, `# low bits: of a hash`.
"""


def test_every_cast_that_narrows_a_size_is_checked_or_says_why() -> None:
    found = all_casts([path for path in sources(ROOT / "fluxmq") if path.suffix in (".pyx", ".pxd")])
    wrong = [f"{path.relative_to(ROOT)}:{cast.line}: {cast.text}" for path, each in found.items() for cast in each]
    assert not wrong, "\n".join([WHAT_TO_DO, *wrong])


HEADER = """
cdef struct blob_t:
    uint32_t refs
    size_t room

cdef class Transport:
    cdef size_t carry_length
    cdef uint8_t* carry
    cdef uint8_t[14] header

cdef size_t packet_bytes(const uint8_t* data, size_t n) noexcept
"""
# What was cast where an announced size became a small number, and its kin.
SEEN = ["blob_new(<uint32_t>size)", "x = <uint32_t>(end - at)", "x = <int>packet_bytes(at, 4)",
        "x = <uint16_t>len(group)", "x = <uint8_t>self.carry_length", "x = <uint32_t>(16 + blob.room)",
        "x = <uint32_t>self.many[1].carry_length",
        "x = <uint32_t>-size", "x = <uint32_t><uint64_t>small", "x = <uint32_t>max(size, 8)",
        "x = <int32_t>(size >> 3)"]
QUIET = ["x = <uint32_t>at[0] << 24", "x = <uint32_t>small", "x = <uint64_t>size", "x = <uint32_t>len(name)",
         "x = <uint8_t>self.header[2]", "x = <uint32_t>blob.refs", "x = <uint32_t>(size & 0xFF)", "x = fit_u32(size)",
         "x = <uint32_t>min(size, ROOM_MAX)", "x = <const uint8_t*>at", "x = <int>(size == 4)",
         "x = <uint32_t>1 << small",
         "x = <uint32_t>size     # fits: at most 255", "x = <uint8_t>self.carry[0]", "x = <uint32_t>sizeof(blob_t)"]


def narrowed(line: str) -> int:
    text = f"cdef int f(self, const uint8_t* at, size_t size, uint32_t small,\n           blob_t* blob) except -1:\n" \
           f"    cdef const uint8_t* end = at + size\n    {line}\n"
    return len(casts(text, Declared.of([HEADER, text])))


def test_the_rule_sees_what_it_looks_for() -> None:
    assert [line for line in SEEN if not narrowed(line)] == []
    assert [line for line in QUIET if narrowed(line)] == []
