"""The address of a socket's peer. Header only."""
from fluxmq._core.wire.primitives cimport peek_u16

cdef extern from "<sys/socket.h>" nogil:
    cdef struct sockaddr:
        pass
    int getpeername(int fd, sockaddr* address, unsigned int* length)
    int AF_INET
    int AF_INET6

cdef extern from "<arpa/inet.h>" nogil:
    const char* inet_ntop(int family, const void* address, char* text, unsigned int size)

cdef enum:
    PEER_BYTES = 128            # of a sockaddr_storage


cdef inline bytes peer_ip(const unsigned char* address, unsigned int length):
    """The IP address in a socket address: 4 or 16 bytes in network order; b"" of other families."""
    cdef int family = address[0] | address[1] << 8 if length >= 2 else 0
    if family == AF_INET and length >= 8:
        return (<const char*>address + 4)[:4]
    if family == AF_INET6 and length >= 24:
        return (<const char*>address + 8)[:16]
    return b""


cdef inline str peer_name(int fd):
    """"address:port" of a socket's peer; "" if it has none."""
    cdef unsigned char[128] address
    cdef char[64] text
    cdef unsigned int length = 128
    cdef int family
    if getpeername(fd, <sockaddr*>address, &length) < 0:
        return ""
    family = address[0] | address[1] << 8
    if family == AF_INET and inet_ntop(AF_INET, address + 4, text, 64) != NULL:
        return f"{text.decode()}:{peek_u16(address + 2)}"
    if family == AF_INET6 and inet_ntop(AF_INET6, address + 8, text, 64) != NULL:
        return f"[{text.decode()}]:{peek_u16(address + 2)}"
    return ""
