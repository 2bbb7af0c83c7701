"""For the cold half: messages of a group, named by log and offset. See the .pyx."""
from libc.stdint cimport uint64_t

from fluxmq._core.queue.group cimport Group

cpdef int seek(Group group, uint64_t log_number, uint64_t next) except -1
