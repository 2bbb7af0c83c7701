# System calls and POSIX threads for disk/journal.pyx; the reasons stand in journal_system.h.
from libc.stddef cimport size_t
from libc.stdint cimport int64_t


cdef extern from "disk/journal_system.h" nogil:
    ctypedef struct pthread_mutex_t:
        pass
    ctypedef struct pthread_cond_t:
        pass

    # Each returns what the call of its name returns, or minus errno instead of -1.
    int64_t fluxmq_pwrite(int fd, const void* data, size_t length, int64_t at) noexcept
    int64_t fluxmq_fdatasync(int fd) noexcept
    int64_t fluxmq_fsync(int fd) noexcept
    int64_t fluxmq_ftruncate(int fd, int64_t length) noexcept
    int64_t fluxmq_open(int directory, const char* name, int flags, unsigned int mode) noexcept
    int64_t fluxmq_rename(int directory, const char* old, const char* new) noexcept
    int64_t fluxmq_unlink(int directory, const char* name) noexcept
    int64_t fluxmq_close(int fd) noexcept
    int64_t fluxmq_monotonic() noexcept
    int fluxmq_cond_init(pthread_cond_t* cond) noexcept
    void fluxmq_cond_wait_until(pthread_cond_t* cond, pthread_mutex_t* lock, int64_t deadline) noexcept
    int64_t fluxmq_size(int fd) noexcept

    int pthread_mutex_init(pthread_mutex_t* lock, void* how) noexcept
    int pthread_mutex_destroy(pthread_mutex_t* lock) noexcept
    int pthread_mutex_lock(pthread_mutex_t* lock) noexcept
    int pthread_mutex_unlock(pthread_mutex_t* lock) noexcept
    int pthread_cond_init(pthread_cond_t* cond, void* how) noexcept
    int pthread_cond_destroy(pthread_cond_t* cond) noexcept
    int pthread_cond_wait(pthread_cond_t* cond, pthread_mutex_t* lock) noexcept
    int pthread_cond_signal(pthread_cond_t* cond) noexcept
    int pthread_cond_broadcast(pthread_cond_t* cond) noexcept

    int eventfd(unsigned int start, int flags) noexcept
    int close_fd "close"(int fd) noexcept
    ssize_t read_fd "read"(int fd, void* into, size_t length) noexcept
    ssize_t write_fd "write"(int fd, const void* data, size_t length) noexcept
    enum:
        AT_FDCWD
        EFD_CLOEXEC
        EFD_NONBLOCK
        O_CLOEXEC
        O_CREAT
        O_DIRECTORY
        O_RDONLY
        O_RDWR
        O_TRUNC
