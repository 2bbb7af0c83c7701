"""System calls that Cython's libc does not declare. Header only."""
from libc.stdint cimport int64_t, uint16_t, uint32_t, uint64_t

cdef extern from * nogil:
    """
    #include <errno.h>
    #include <netinet/in.h>
    #include <netinet/tcp.h>
    #include <sys/epoll.h>
    #include <sys/prctl.h>
    #include <sys/socket.h>
    #include <sys/syscall.h>
    #include <time.h>
    #include <unistd.h>

    #ifndef IP_BIND_ADDRESS_NO_PORT
    #define IP_BIND_ADDRESS_NO_PORT 24
    #endif

    static inline uint64_t load_clock(void) {
        struct timespec t;
        clock_gettime(CLOCK_MONOTONIC, &t);
        return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
    }

    /* Waits are in nanoseconds: at 5 000 messages/s a rounded millisecond is five messages. A kernel older than 5.11
       has no epoll_pwait2; there a wait below a millisecond becomes a poll: exact too, at the cost of our own core. */
    static inline int load_wait(int epoll, struct epoll_event *events, int room, int64_t ns) {
    #ifdef SYS_epoll_pwait2
        static int missing = 0;
        if (ns > 0 && !missing) {
            struct timespec t = { ns / 1000000000, ns % 1000000000 };
            int got = (int)syscall(SYS_epoll_pwait2, epoll, events, room, &t, NULL, (size_t)8);
            if (got >= 0 || errno != ENOSYS) return got;
            missing = 1;
        }
    #endif
        return epoll_wait(epoll, events, room, ns < 0 ? -1 : (int)(ns / 1000000));
    }

    /* The default timer slack of 50 us would be added to every wait. */
    static inline void load_sharp_timers(void) { prctl(PR_SET_TIMERSLACK, 1000UL, 0, 0, 0); }

    static inline int load_errno(void) { return errno; }

    static inline int load_watch(int epoll, int op, int fd, uint32_t events, uint32_t tag) {
        struct epoll_event e;
        e.events = events;
        e.data.u64 = tag;
        return epoll_ctl(epoll, op, fd, &e);
    }

    /* A connection in progress from source to target (both host byte order); the descriptor, or -errno. */
    static inline int load_connect(uint32_t source, uint32_t target, uint16_t port) {
        struct sockaddr_in from = {0}, to = {0};
        int one = 1, code, fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
        if (fd < 0) return -errno;
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        if (source) {
            from.sin_family = AF_INET;
            from.sin_addr.s_addr = htonl(source);
            setsockopt(fd, IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, &one, sizeof one);
            if (bind(fd, (struct sockaddr *)&from, sizeof from)) { code = errno; close(fd); return -code; }
        }
        to.sin_family = AF_INET;
        to.sin_addr.s_addr = htonl(target);
        to.sin_port = htons(port);
        if (connect(fd, (struct sockaddr *)&to, sizeof to) && errno != EINPROGRESS) {
            code = errno; close(fd); return -code;
        }
        return fd;
    }

    static inline int load_socket_error(int fd) {
        int code = 0;
        socklen_t size = sizeof code;
        return getsockopt(fd, SOL_SOCKET, SO_ERROR, &code, &size) ? errno : code;
    }
    """
    ctypedef struct epoll_data_t:
        uint64_t u64
    struct epoll_event:
        uint32_t events
        epoll_data_t data
    enum:
        EPOLLIN
        EPOLLOUT
        EPOLLERR
        EPOLLHUP
        EPOLL_CTL_ADD
        EPOLL_CTL_MOD
        EPOLL_CTL_DEL
        MSG_DONTWAIT
        MSG_NOSIGNAL
        MSG_TRUNC
        EAGAIN
        EINTR
    int epoll_create1(int flags)
    ssize_t send(int fd, const void* data, size_t size, int flags)
    ssize_t recv(int fd, void* data, size_t size, int flags)
    int close(int fd)
    uint64_t load_clock()
    int load_wait(int epoll, epoll_event* events, int room, int64_t ns)
    void load_sharp_timers()
    int load_errno()
    int load_watch(int epoll, int op, int fd, uint32_t events, uint32_t tag)
    int load_connect(uint32_t source, uint32_t target, uint16_t port)
    int load_socket_error(int fd)
