# cython: language_level=3
"""UTF-8 strings, topic names, topic filters, share filters: validity only (MQTT 5.0 sections 1.5.4, 4.7, 4.8).

All functions are pure, take borrowed bytes and need no GIL. `levels_max` bounds the number of topic levels, that is
the number of "/" plus one; 0 = no bound.
"""
from libc.stdint cimport uint8_t

cdef enum:
    TEXT_BAD = -1     # not well-formed UTF-8, or holds U+0000: a Malformed Packet
    RULES_BAD = 0     # valid text, but not a valid name or filter, or too many levels
    TEXT_OK = 1

# Well formed as Unicode defines it (shortest form, no surrogates, at most U+10FFFF) and without U+0000
# [MQTT-1.5.4-1] [MQTT-1.5.4-2]. U+FEFF is an ordinary character and stays [MQTT-1.5.4-3]. Empty text is valid.
cdef bint text_valid(const uint8_t* p, size_t n) noexcept nogil

# Well formed as Unicode defines it; a payload, where U+0000 is permitted (MQTT 5.0 section 3.3.2.3.2).
cdef bint utf8_valid(const uint8_t* p, size_t n) noexcept nogil

# A topic name: at least one character [MQTT-4.7.3-1], neither "+" nor "#" [MQTT-4.7.0-1].
# TEXT_OK, RULES_BAD or TEXT_BAD.
cdef int topic_valid(const uint8_t* p, size_t n, size_t levels_max) noexcept nogil

# A topic filter: "+" fills a whole level [MQTT-4.7.1-2], "#" fills the whole last level [MQTT-4.7.1-1].
# Split a share filter first. TEXT_OK, RULES_BAD or TEXT_BAD.
cdef int filter_valid(const uint8_t* p, size_t n, size_t levels_max) noexcept nogil

# A topic that only the broker publishes to (MQTT 5.0 section 4.7.2): of $SYS, but for what a mosquitto bridge says of
# itself there, $SYS/broker/connection/<name>/state.
cdef bint is_reserved_topic(const uint8_t* p, size_t n) noexcept nogil

# "$share/" ShareName "/" filter. 0: not shared (does not start with "$share/"), nothing is written.
# 1: shared and well formed; the four results point into p. -1: starts with "$share/" but the ShareName is empty or
# holds "+" or "#", or no filter follows [MQTT-4.8.2-1] [MQTT-4.8.2-2]. filter_valid checks the filter itself.
cdef int share_split(const uint8_t* p, size_t n, const uint8_t** group, size_t* group_len,
                     const uint8_t** filter, size_t* filter_len) noexcept nogil
