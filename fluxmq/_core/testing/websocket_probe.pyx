# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
# cython: embedsignature=True, auto_pickle=False
"""The inbound half of RFC 6455 by itself (net/websocket.pxd), for tests: it needs no socket, and what it is given lies
in memory of exactly that size, so that AddressSanitizer sees a read or a write beyond its end."""
from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdint cimport uint8_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy, memset

from fluxmq._core.net.websocket cimport ws_t, ws_unframe

__all__ = ["unframe"]


def unframe(list pieces not None) -> tuple:
    """What becomes of bytes that arrive in these pieces, up to the one that ends the connection: how many were looked
    at, the last result (WS_*), the bytes of binary frames, the payload of the Pong and of the Close that are due (None:
    none is).

    Raises MemoryError."""
    cdef ws_t ws
    cdef bytes piece
    cdef uint8_t* data
    cdef size_t n, got
    cdef int result = 0
    cdef int looked = 0
    taken = []
    memset(&ws, 0, sizeof(ws))
    for piece in pieces:
        n = <size_t>len(piece)
        data = <uint8_t*>malloc(n if n else 1)
        if data == NULL:
            raise MemoryError
        memcpy(data, <const char*>piece, n)
        result = ws_unframe(&ws, data, n, &got)
        taken.append(PyBytes_FromStringAndSize(<const char*>data, <Py_ssize_t>got))
        free(data)
        looked += 1
        if result:
            break
    pong = PyBytes_FromStringAndSize(<const char*>ws.pong, ws.pong_have) if ws.pong_due else None
    close = PyBytes_FromStringAndSize(<const char*>ws.close, ws.close_have) if ws.close_due else None
    return looked, result, b"".join(taken), pong, close
