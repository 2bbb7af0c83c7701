"""Who is at the other end of a socket. Header only."""

cdef extern from "<sys/socket.h>" nogil:
    cdef struct sockaddr:
        pass
    int getpeername(int fd, sockaddr* address, unsigned int* length)
    int AF_INET
    int AF_INET6

cdef extern from "<arpa/inet.h>" nogil:
    const char* inet_ntop(int family, const void* address, char* text, unsigned int size)


cdef inline str peer_name(int fd):
    """"address:port" of the other end of a socket."""
    cdef unsigned char[128] address
    cdef char[64] text
    cdef unsigned int length = 128
    cdef int family
    if getpeername(fd, <sockaddr*>address, &length) < 0:
        return ""
    family = address[0] | address[1] << 8
    if family == AF_INET and inet_ntop(AF_INET, address + 4, text, 64) != NULL:
        return f"{text.decode()}:{address[2] << 8 | address[3]}"
    if family == AF_INET6 and inet_ntop(AF_INET6, address + 8, text, 64) != NULL:
        return f"[{text.decode()}]:{address[2] << 8 | address[3]}"
    return ""
