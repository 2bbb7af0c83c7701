"""The chunks of all logs of a node that are also in segments and not in use: they may be evicted, least recently read
first.

A list linked through the chunks themselves: a chunk is added when its last user releases it, or when a checkpoint has
written it; it is removed while it is in use, and moves to the end when it is read. So the total size of the list is
always known, and the next chunk to evict is found without examining the others.
"""
cdef void cache_in(void* chunk) noexcept
cdef void cache_out(void* chunk) noexcept
