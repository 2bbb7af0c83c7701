/* Which bytes a process received, wrote to its journal, synced and sent, in which order: a library to preload.
 *
 * One line of the log is one event; the lock makes their order a total one. What arrives at the disk or arrives from a
 * peer is logged when the call has returned, what leaves for a peer before it is made. So if a send stands behind a
 * sync
 * in the log, the sync had returned before the first byte could leave.
 *
 *     u8 kind ('r' received, 'w' written, 's' synced, 'o' going out, 'd' done: how much of it, i64)
 *     u32 descriptor  u32 length  bytes   (host order)
 *
 * $TRACE_LOG: where. $TRACE_FAIL: while that file exists, fdatasync of a journal file fails with EIO.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

static int out = -1;
static const char *fail;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

__attribute__((constructor))
static void prepare(void)
{
    const char *path = getenv("TRACE_LOG");
    fail = getenv("TRACE_FAIL");
    if (path)
        out = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
}

static void note(char kind, int fd, const struct iovec *parts, size_t count, size_t length)
{
    char head[9];
    uint32_t number = (uint32_t)fd, size = (uint32_t)length;
    struct iovec all[65];
    size_t used = 1;
    if (out < 0)
        return;
    int before = errno;
    head[0] = kind;
    memcpy(head + 1, &number, 4);
    memcpy(head + 5, &size, 4);
    all[0] = (struct iovec){head, sizeof head};
    for (size_t at = 0; at < count && length; at++) {
        all[used] = parts[at];
        if (all[used].iov_len > length)
            all[used].iov_len = length;
        length -= all[used++].iov_len;
    }
    pthread_mutex_lock(&lock);
    if (writev(out, all, (int)used) < 0)
        abort();
    pthread_mutex_unlock(&lock);
    errno = before;
}

static void note_one(char kind, int fd, const void *data, size_t length)
{
    struct iovec part = {(void *)data, length};
    note(kind, fd, &part, 1, length);
}

static int in_journal(int fd)
{
    char self[64], path[PATH_MAX];
    snprintf(self, sizeof self, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(self, path, sizeof path - 1);
    if (length < 0)
        return 0;
    path[length] = 0;
    return strstr(path, "/journal/") != NULL;
}

#define NEXT(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

ssize_t recv(int fd, void *data, size_t room, int flags)
{
    ssize_t got = NEXT(recv)(fd, data, room, flags);
    if (got > 0)
        note_one('r', fd, data, (size_t)got);
    return got;
}

static ssize_t gone(int fd, ssize_t done)
{
    int64_t how_much = done;
    note_one('d', fd, &how_much, sizeof how_much);
    return done;
}

ssize_t send(int fd, const void *data, size_t length, int flags)
{
    note_one('o', fd, data, length);
    return gone(fd, NEXT(send)(fd, data, length, flags));
}

ssize_t sendmsg(int fd, const struct msghdr *message, int flags)
{
    size_t length = 0;
    for (size_t at = 0; at < message->msg_iovlen; at++)
        length += message->msg_iov[at].iov_len;
    note('o', fd, message->msg_iov, message->msg_iovlen, length);
    return gone(fd, NEXT(sendmsg)(fd, message, flags));
}

ssize_t pwrite(int fd, const void *data, size_t length, off_t at)
{
    ssize_t done = NEXT(pwrite)(fd, data, length, at);
    if (done > 0 && in_journal(fd))
        note_one('w', fd, data, (size_t)done);
    return done;
}

ssize_t pwrite64(int fd, const void *data, size_t length, off64_t at)
{
    ssize_t done = NEXT(pwrite64)(fd, data, length, at);
    if (done > 0 && in_journal(fd))
        note_one('w', fd, data, (size_t)done);
    return done;
}

int fdatasync(int fd)
{
    int ours = in_journal(fd);
    if (ours && fail && access(fail, F_OK) == 0) {
        errno = EIO;
        return -1;
    }
    int answer = NEXT(fdatasync)(fd);
    if (ours && answer == 0)
        note_one('s', fd, "", 0);
    return answer;
}
