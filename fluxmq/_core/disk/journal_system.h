/* The system calls of the journal's writer, for journal.pyx: those of journal_file_ops with errno in the answer (so
 * that an answer cannot be separated from its reason between threads), and waiting on the monotonic clock, which Cython
 * has no declarations for.
 */
#ifndef FLUXMQ_JOURNAL_SYSTEM_H
#define FLUXMQ_JOURNAL_SYSTEM_H

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/eventfd.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

static int64_t fluxmq_pwrite(int fd, const void *data, size_t length, int64_t at)
{
    ssize_t done = pwrite(fd, data, length, (off_t)at);
    return done < 0 ? -(int64_t)errno : (int64_t)done;
}
static int64_t fluxmq_fdatasync(int fd) { return fdatasync(fd) < 0 ? -(int64_t)errno : 0; }
static int64_t fluxmq_fsync(int fd) { return fsync(fd) < 0 ? -(int64_t)errno : 0; }
static int64_t fluxmq_ftruncate(int fd, int64_t length)
{
    return ftruncate(fd, (off_t)length) < 0 ? -(int64_t)errno : 0;
}
static int64_t fluxmq_open(int directory, const char *name, int flags, unsigned int mode)
{
    int fd = openat(directory, name, flags, (mode_t)mode);
    return fd < 0 ? -(int64_t)errno : fd;
}
static int64_t fluxmq_rename(int directory, const char *old, const char *new_name)
{
    return renameat(directory, old, directory, new_name) < 0 ? -(int64_t)errno : 0;
}
static int64_t fluxmq_unlink(int directory, const char *name)
{
    return unlinkat(directory, name, 0) < 0 ? -(int64_t)errno : 0;
}
static int64_t fluxmq_close(int fd) { return close(fd) < 0 ? -(int64_t)errno : 0; }
static int64_t fluxmq_monotonic(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * INT64_C(1000000000) + now.tv_nsec;
}
static int fluxmq_cond_init(pthread_cond_t *cond)
{
    pthread_condattr_t how;
    pthread_condattr_init(&how);
    pthread_condattr_setclock(&how, CLOCK_MONOTONIC);
    int failed = pthread_cond_init(cond, &how);
    pthread_condattr_destroy(&how);
    return failed;
}
static void fluxmq_cond_wait_until(pthread_cond_t *cond, pthread_mutex_t *lock, int64_t deadline)
{
    struct timespec at = {deadline / INT64_C(1000000000), deadline % INT64_C(1000000000)};
    pthread_cond_timedwait(cond, lock, &at);
}
static int64_t fluxmq_size(int fd)
{
    struct stat found;
    return fstat(fd, &found) < 0 ? -(int64_t)errno : (int64_t)found.st_size;
}

#endif
