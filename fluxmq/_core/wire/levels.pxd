# cython: language_level=3
"""Topics against patterns: filters in which `#` may stand anywhere."""
from libc.stdint cimport uint8_t

# `#` matches any number of levels, also none. `$` has no special meaning.
cdef bint levels_match(const uint8_t* p, const uint8_t* p_end, const uint8_t* t, const uint8_t* t_end) noexcept nogil
