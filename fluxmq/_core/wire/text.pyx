# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
# cython: embedsignature=True, auto_pickle=False
"""Validation of UTF-8 strings, topic names and filters. The contract is in wire/text.pxd.

Almost every topic is ASCII, so both hot functions process eight bytes at a time and use a byte loop only for the last
bytes and from the first byte above 0x7F on. In a 64-bit word w of ASCII bytes, (w - 0x01..) & ~w & 0x80.. is non-zero
exactly if some byte of w is zero; after XOR with a repeated character it finds that character.
"""
from libc.stdint cimport uint8_t, uint64_t
from libc.string cimport memchr, memcmp, memcpy

cdef enum:
    BRIDGE_BYTES = 23       # of $SYS/broker/connection/
    STATE_BYTES = 6         # of /state

cdef extern from *:
    """
    /* Macros, so that the compiler sees constants: an enum cannot hold 64 bits, a variable would be loaded. */
    #define FLUXMQ_ONES  UINT64_C(0x0101010101010101)
    #define FLUXMQ_HIGHS UINT64_C(0x8080808080808080)
    #define FLUXMQ_LOWS  UINT64_C(0x7F7F7F7F7F7F7F7F)
    """
    const uint64_t ONES "FLUXMQ_ONES"
    const uint64_t HIGHS "FLUXMQ_HIGHS"
    const uint64_t LOWS "FLUXMQ_LOWS"
    int popcount64 "__builtin_popcountll"(unsigned long long) noexcept nogil


cdef inline uint64_t holds_zero(uint64_t word) noexcept nogil:
    return (word - ONES) & ~word & HIGHS


cdef inline size_t sequence_length(const uint8_t* p, size_t n) noexcept nogil:
    """Length of the multi-byte UTF-8 sequence at p[0] >= 0x80, n bytes of which can be read; 0 = ill formed.

    Table 3-7 of the Unicode standard: the second byte's range shuts out overlong forms (after E0, F0), surrogates
    (after ED) and what lies above U+10FFFF (after F4).
    """
    cdef uint8_t lead = p[0], low = 0x80, high = 0xBF
    if lead < 0xC2 or lead > 0xF4 or n < 2:
        return 0
    if lead == 0xE0:
        low = 0xA0
    elif lead == 0xED:
        high = 0x9F
    elif lead == 0xF0:
        low = 0x90
    elif lead == 0xF4:
        high = 0x8F
    if p[1] < low or p[1] > high:
        return 0
    if lead < 0xE0:
        return 2
    if n < 3 or p[2] & 0xC0 != 0x80:
        return 0
    if lead < 0xF0:
        return 3
    if n < 4 or p[3] & 0xC0 != 0x80:
        return 0
    return 4


cdef bint text_valid(const uint8_t* p, size_t n) noexcept nogil:
    cdef const uint8_t* end = p + n
    cdef uint64_t word
    cdef size_t length
    while p < end:
        while end - p >= 8:
            memcpy(&word, p, 8)
            if word & HIGHS or holds_zero(word):
                break
            p += 8
        # At most eight characters one by one, then words again, so that mixed scripts stay cheap.
        for _ in range(8):
            if p == end:
                return 1
            if p[0] < 0x80:
                if p[0] == 0:
                    return 0
                p += 1
                continue
            length = sequence_length(p, <size_t>(end - p))
            if length == 0:
                return 0
            p += length
    return 1


cdef int topic_valid(const uint8_t* p, size_t n, size_t levels_max) noexcept nogil:
    cdef const uint8_t* at = p
    cdef const uint8_t* end = p + n
    cdef uint64_t word, slash
    cdef size_t levels = 1
    cdef bint wild = 0, checked = 0
    if n == 0:
        return RULES_BAD
    while end - at >= 8:
        memcpy(&word, at, 8)
        if word & HIGHS or holds_zero(word):
            break
        if holds_zero(word ^ (ONES * 0x2B)) or holds_zero(word ^ (ONES * 0x23)):
            wild = 1
        # Counting needs the exact form, in which no borrow crosses bytes.
        slash = word ^ (ONES * 0x2F)
        levels += <size_t>popcount64(~((slash & LOWS) + LOWS) & HIGHS)
        at += 8
    while at < end:
        if at[0] == 0x2F:
            levels += 1
        elif at[0] == 0x2B or at[0] == 0x23:
            wild = 1
        elif at[0] == 0:
            return TEXT_BAD
        elif at[0] >= 0x80 and not checked:
            # Checked once for the rest; no byte of a longer sequence looks like "/", "+" or "#".
            if not text_valid(at, <size_t>(end - at)):
                return TEXT_BAD
            checked = 1
        at += 1
    if wild or (levels_max and levels > levels_max):
        return RULES_BAD
    return TEXT_OK


cdef bint utf8_valid(const uint8_t* p, size_t n) noexcept nogil:
    cdef const uint8_t* zero
    while n:
        zero = <const uint8_t*>memchr(p, 0, n)
        if zero == NULL:
            return text_valid(p, n)
        if not text_valid(p, zero - p):
            return 0
        n -= zero - p + 1
        p = zero + 1
    return 1


cdef int filter_valid(const uint8_t* p, size_t n, size_t levels_max) noexcept nogil:
    cdef size_t i, levels = 1
    if n == 0:
        return RULES_BAD
    if not text_valid(p, n):
        return TEXT_BAD
    for i in range(n):
        if p[i] == 0x2F:
            levels += 1
        elif p[i] == 0x2B or p[i] == 0x23:
            if i > 0 and p[i - 1] != 0x2F:
                return RULES_BAD
            if i + 1 < n and (p[i] == 0x23 or p[i + 1] != 0x2F):
                return RULES_BAD
    return RULES_BAD if levels_max and levels > levels_max else TEXT_OK


cdef bint is_reserved_topic(const uint8_t* p, size_t n) noexcept nogil:
    if n < 5 or memcmp(p, <const char*>b"$SYS/", 5) != 0:
        return 0
    return (n <= BRIDGE_BYTES + STATE_BYTES or memcmp(p, <const char*>b"$SYS/broker/connection/", BRIDGE_BYTES) != 0
            or memcmp(p + n - STATE_BYTES, <const char*>b"/state", STATE_BYTES) != 0)


cdef int share_split(const uint8_t* p, size_t n, const uint8_t** group, size_t* group_len,
                     const uint8_t** filter, size_t* filter_len) noexcept nogil:
    cdef const uint8_t* slash
    cdef size_t length
    if n < 7 or memcmp(p, <const char*>b"$share/", 7) != 0:
        return 0
    slash = <const uint8_t*>memchr(p + 7, 0x2F, n - 7)
    if slash == NULL:
        return -1
    length = <size_t>(slash - p) - 7
    if length == 0 or memchr(p + 7, 0x2B, length) != NULL or memchr(p + 7, 0x23, length) != NULL:
        return -1
    if slash + 1 == p + n:
        return -1
    group[0] = p + 7
    group_len[0] = length
    filter[0] = slash + 1
    filter_len[0] = n - 8 - length
    return 1


def is_text(bytes text not None) -> bool:
    """True if the bytes are a UTF-8 Encoded String without U+0000 (MQTT 5.0 section 1.5.4)."""
    return text_valid(<const uint8_t*><const char*>text, <size_t>len(text))


def check_topic(bytes topic not None, size_t levels_max=0) -> int:
    """1 = a valid topic name; 0 = empty, with a wildcard or with too many levels; -1 = not text (section 4.7)."""
    return topic_valid(<const uint8_t*><const char*>topic, <size_t>len(topic), levels_max)


def is_reserved(bytes topic not None) -> bool:
    """Whether only the broker publishes to this topic name: $SYS, but for the state of a bridge."""
    return is_reserved_topic(<const uint8_t*><const char*>topic, len(topic))


def check_filter(bytes filter not None, size_t levels_max=0) -> int:
    """1 = a valid topic filter; 0 = breaks the rules of wildcards or levels; -1 = not text (section 4.7)."""
    return filter_valid(<const uint8_t*><const char*>filter, <size_t>len(filter), levels_max)


def split_share(bytes filter not None) -> tuple[bytes, bytes] | None:
    """None if the filter is not shared, else (ShareName, topic filter) (section 4.8.2).

    Raises ValueError if it starts with "$share/" and is not a well formed share filter.
    """
    cdef const uint8_t* group = NULL
    cdef const uint8_t* inner = NULL
    cdef size_t group_len = 0, inner_len = 0
    cdef int kind = share_split(<const uint8_t*><const char*>filter, <size_t>len(filter),
                                &group, &group_len, &inner, &inner_len)
    if kind < 0:
        raise ValueError("a share filter is $share/NAME/FILTER with a NAME free of wildcards and a FILTER not empty")
    if kind == 0:
        return None
    return (<const char*>group)[:group_len], (<const char*>inner)[:inner_len]
