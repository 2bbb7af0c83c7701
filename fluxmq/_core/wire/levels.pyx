# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, auto_pickle=False
"""Topics against patterns. See wire/levels.pxd; Python does not see this module."""
from libc.string cimport memcmp


cdef bint levels_match(const uint8_t* p, const uint8_t* p_end, const uint8_t* t, const uint8_t* t_end) noexcept nogil:
    """Matches level by level; at a mismatch the last `#` takes one more level. So the cost is at most the product of
    the numbers of levels."""
    cdef const uint8_t* again_p = NULL      # behind the last `#`
    cdef const uint8_t* again_t = NULL      # where matching behind it began
    cdef const uint8_t* level
    cdef const uint8_t* p_next
    cdef bint p_done = 0
    cdef bint t_done = 0
    while True:
        if not p_done:
            p_next = p
            while p_next < p_end and p_next[0] != 47:
                p_next += 1
            if p_next - p == 1 and p[0] == 35:
                p_done = p_next == p_end
                if p_done:
                    return 1
                p = p_next + 1
                again_p = p
                again_t = t if not t_done else NULL
                continue
            if not t_done:
                level = t
                while level < t_end and level[0] != 47:
                    level += 1
                if (p_next - p == 1 and p[0] == 43) or (p_next - p == level - t
                                                        and memcmp(p, t, <size_t>(p_next - p)) == 0):
                    p_done = p_next == p_end
                    p = p_next + 1
                    t_done = level == t_end
                    t = level + 1
                    continue
        elif t_done:
            return 1
        if again_t == NULL:
            return 0
        # matching behind the last `#` begins one level further
        while again_t < t_end and again_t[0] != 47:
            again_t += 1
        p = again_p
        p_done = 0
        if again_t == t_end:
            again_t = NULL
            t_done = 1
        else:
            again_t += 1
            t = again_t
            t_done = 0
