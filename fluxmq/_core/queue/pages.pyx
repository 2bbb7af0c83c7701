# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, auto_pickle=False, embedsignature=True
"""Memory for the messages of a chunk. See queue/pages.pxd. Python does not see this module."""
from libc.stdlib cimport free, malloc

from posix.mman cimport MAP_ANONYMOUS, MAP_FAILED, MAP_PRIVATE, PROT_READ, PROT_WRITE, mmap, munmap

from fluxmq._core.queue.log cimport CHUNK_BYTES_MAX

cdef enum:
    SPARES_MAX = 16                 # blocks of CHUNK_BYTES_MAX that are kept for reuse

cdef uint8_t* spares[SPARES_MAX]
cdef uint32_t spares_count = 0


cdef uint8_t* data_new(uint32_t room) except NULL:
    """Allocates large blocks by mapping them: a heap cannot return memory that was freed between other blocks, and
    would grow to a multiple of the chunks. A few are kept, because new pages cost more than copying messages into
    them."""
    global spares_count
    cdef uint8_t* data
    if room < CHUNK_BYTES_MAX:
        data = <uint8_t*>malloc(room)
    elif room == CHUNK_BYTES_MAX and spares_count:
        spares_count -= 1
        data = spares[spares_count]
    else:
        data = <uint8_t*>mmap(NULL, room, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)
        if data == <uint8_t*>MAP_FAILED:
            data = NULL
    if data == NULL:
        raise MemoryError()
    return data


cdef void data_free(uint8_t* data, uint32_t room) noexcept:
    global spares_count
    if room < CHUNK_BYTES_MAX:
        free(data)
    elif room == CHUNK_BYTES_MAX and spares_count < SPARES_MAX:
        spares[spares_count] = data
        spares_count += 1
    else:
        munmap(data, room)
