"""Chunks of all logs of a node that segments have too and that nobody holds: they may go, those read longest ago first.

A list through the chunks themselves: one joins when its last other holder lets go of it, or when a checkpoint wrote
it; it leaves when somebody holds it, and moves to the warm end when it is read. So how much may go is always known,
and what goes first is found without a look at what stays.
"""
cdef void cache_in(void* chunk) noexcept
cdef void cache_out(void* chunk) noexcept
