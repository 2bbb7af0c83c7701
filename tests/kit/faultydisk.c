/* A disk whose system calls err, as a library to preload. faultydisk.py says what for.
 *
 * Every call on a file below $FAULTYDISK_DIR is counted by phase, call and kind of file; sockets and other files are
 * never looked at. The test and the library share the file $FAULTYDISK_CONTROL (struct control): the test says which
 * phase it is and which call of it fails, and how: an errno, or SHORT, where the call does a part of what it was asked.
 * The call that fails does nothing on the disk, but close(), which closes as Linux does, and syncs: what these should
 * have written is lost for good (powercut.c, where that is preloaded too). EINTR comes before anything has happened.
 *
 * What kind a file is follows from its path below a directory that is called `data`, the `storage.dir` of the broker:
 *
 *     data/journal/<file>    journal        data/reserve     reserve
 *     data/state/<file>      view           data/<other>     other
 *     data/queues/<log>/<file>  segment     each of these directories, and data itself: directory
 *
 * Interposed are the names that the C library exports, so calls that it makes by itself are not seen: write() behind
 * fwrite(), openat() behind opendir(), which is therefore a call of its own here. Left out are calls that a broker does
 * not make on its files: mmap(), and link(), which only a repair needs.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

enum { NO_KIND, JOURNAL, SEGMENT, RESERVE, VIEW, DIRECTORY, OTHER, KINDS };
enum { OPEN, READ, PREAD, WRITE, PWRITE, FSYNC, FDATASYNC, SYNCFS, FTRUNCATE, FALLOCATE, RENAME, UNLINK, MKDIR, RMDIR,
       STAT, FSTAT, STATVFS, CLOSE, OPENDIR, READDIR, CALLS };
enum { PHASES = 8, FDS = 1 << 16, PATH_ROOM = 256, SHORT = -1 };

/* As faultydisk.py has it. Phase 0 is nobody's: nothing is counted and nothing fails. */
struct control {
    uint32_t phase, armed_phase, armed_call, armed_kind, armed_nth;
    int32_t armed_error;
    uint32_t fired, hurry_ms;
    char path[PATH_ROOM];
    uint32_t counts[PHASES][CALLS][KINDS];
};

/* Of powercut.c, if it is there. */
extern void powercut_dropped(int fd) __attribute__((weak));
extern void powercut_dropped_all(int fd) __attribute__((weak));
extern void powercut_wrote(int fd, off_t at, size_t length) __attribute__((weak));

static struct control *control;
static const char *below;
static size_t below_length;
static unsigned char kinds[FDS];
static pid_t frozen_by;                 /* the thread that looks at the disk while nobody may change it */
static __thread int inside;             /* in a sync: what powercut.c calls there is no call of the program */

static void *next(const char *name)
{
    void *found = dlsym(RTLD_NEXT, name);
    if (!found) {
        fprintf(stderr, "faultydisk: the C library has no %s\n", name);
        abort();
    }
    return found;
}

#define NEXT(name) \
    ({ \
        static __typeof__(&name) found_; \
        if (!found_) \
            found_ = (__typeof__(&name))next(#name); \
        found_; \
    })

__attribute__((constructor))
static void prepare(void)
{
    const char *path = getenv("FAULTYDISK_CONTROL");
    below = getenv("FAULTYDISK_DIR");
    if (!path || !below)
        return;
    below_length = strlen(below);
    int fd = NEXT(open)(path, O_RDWR | O_CLOEXEC);
    void *shared = fd < 0 ? MAP_FAILED : NEXT(mmap)(NULL, sizeof *control, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (shared == MAP_FAILED) {
        perror("faultydisk");
        abort();
    }
    NEXT(close)(fd);
    control = shared;
}

/* ── which file ──────────────────────────────────────────────────────────────────────────────────────────────────── */

static int kind_of_path(const char *path)
{
    if (!control || strncmp(path, below, below_length) || path[below_length] != '/')
        return NO_KIND;
    const char *at = path + below_length;
    while ((at = strstr(at, "/data")) && at[5] != 0 && at[5] != '/')
        at += 5;
    if (!at)
        return NO_KIND;
    at += 5;
    const char *slash = *at ? strchr(at + 1, '/') : NULL;
    if (!*at || !strcmp(at, "/journal") || !strcmp(at, "/state") || !strcmp(at, "/queues"))
        return DIRECTORY;
    if (!strncmp(at, "/journal/", 9))
        return JOURNAL;
    if (!strncmp(at, "/state/", 7))
        return VIEW;
    if (!strncmp(at, "/queues/", 8))
        return strchr(slash + 1, '/') ? SEGMENT : DIRECTORY;
    return !strcmp(at, "/reserve") ? RESERVE : OTHER;
}

static void absolute(int directory, const char *path, char into[PATH_MAX])
{
    char self[64];
    ssize_t length = 0;
    into[0] = 0;
    if (path[0] != '/') {
        if (directory == AT_FDCWD)
            length = getcwd(into, PATH_MAX - 2) ? (ssize_t)strlen(into) : 0;
        else {
            snprintf(self, sizeof self, "/proc/self/fd/%d", directory);
            length = readlink(self, into, PATH_MAX - 2);
        }
        if (length < 0)
            length = 0;
        into[length++] = '/';
    }
    snprintf(into + length, PATH_MAX - (size_t)length, "%s", path);
}

static int kind_at(int directory, const char *path, char into[PATH_MAX])
{
    if (!control || !path || !*path)
        return NO_KIND;
    absolute(directory, path, into);
    return kind_of_path(into);
}

static int kind_of(int fd) { return fd >= 0 && fd < FDS ? kinds[fd] : NO_KIND; }

static void remember(int fd, int kind)
{
    if (fd >= 0 && fd < FDS)
        kinds[fd] = (unsigned char)kind;
}

/* For faultydisk.py, in the process itself: descriptors of our files that are open. */
int faultydisk_open(void)
{
    int found = 0;
    for (int fd = 0; fd < FDS; fd++)
        found += kinds[fd] != NO_KIND;
    return found;
}

/* For the test, in the process itself: from now on the calls of all other threads on our files wait, until
 * faultydisk_freeze(0). */
void faultydisk_freeze(int on)
{
    __atomic_store_n(&frozen_by, on ? gettid() : 0, __ATOMIC_RELEASE);
    if (on)
        NEXT(usleep)(2000); /* a call that has begun ends */
}

/* ── which call ──────────────────────────────────────────────────────────────────────────────────────────────────── */

/* 0: goes on; SHORT; else the errno to fail with. */
static int fails(int call, int kind, int fd, const char *path)
{
    if (kind == NO_KIND || !control || inside)
        return 0;
    pid_t by;
    while ((by = __atomic_load_n(&frozen_by, __ATOMIC_ACQUIRE)) != 0 && by != gettid())
        NEXT(usleep)(100);
    uint32_t phase = __atomic_load_n(&control->phase, __ATOMIC_ACQUIRE);
    if (phase == 0 || phase >= PHASES)
        return 0;
    uint32_t nth = __atomic_add_fetch(&control->counts[phase][call][kind], 1, __ATOMIC_ACQ_REL);
    if (control->armed_phase != phase || control->armed_call != (uint32_t)call || control->armed_kind != (uint32_t)kind
        || control->armed_nth != nth)
        return 0;
    char self[64];
    ssize_t length = -1;
    if (path)
        length = snprintf(control->path, PATH_ROOM, "%s", path);
    else {
        snprintf(self, sizeof self, "/proc/self/fd/%d", fd);
        length = readlink(self, control->path, PATH_ROOM - 1);
    }
    control->path[length < 0 ? 0 : length >= PATH_ROOM ? PATH_ROOM - 1 : length] = 0;
    __atomic_store_n(&control->fired, 1, __ATOMIC_RELEASE);
    return control->armed_error;
}

/* A short count of one byte, or of none, would be none: then nothing has failed. */
static size_t part(size_t length)
{
    if (length < 2)
        __atomic_store_n(&control->fired, 0, __ATOMIC_RELEASE);
    return length < 2 ? length : length / 2;
}

#define REFUSE(call, kind, fd, path, answer) \
    do { \
        int error_ = fails(call, kind, fd, path); \
        if (error_ > 0) { \
            errno = error_; \
            return answer; \
        } \
    } while (0)

/* ── open and close ──────────────────────────────────────────────────────────────────────────────────────────────── */

static int open_as(int directory, const char *path, int flags, mode_t mode)
{
    char full[PATH_MAX];
    int kind = kind_at(directory, path, full);
    if (kind != NO_KIND && flags & O_DIRECTORY)
        kind = DIRECTORY;
    REFUSE(OPEN, kind, -1, full, -1);
    int fd = NEXT(openat)(directory, path, flags, mode);
    if (fd >= 0)
        remember(fd, kind);
    return fd;
}

#define WITH_MODE \
    mode_t mode = 0; \
    if (flags & (O_CREAT | __O_TMPFILE)) { \
        va_list more; \
        va_start(more, flags); \
        mode = va_arg(more, mode_t); \
        va_end(more); \
    }

int open(const char *path, int flags, ...) { WITH_MODE return open_as(AT_FDCWD, path, flags, mode); }
int open64(const char *path, int flags, ...) { WITH_MODE return open_as(AT_FDCWD, path, flags, mode); }
int openat(int in, const char *path, int flags, ...);   /* below: NEXT() of it is what all of these call */
int creat(const char *path, mode_t mode) { return open_as(AT_FDCWD, path, O_CREAT | O_WRONLY | O_TRUNC, mode); }
int openat(int in, const char *path, int flags, ...) { WITH_MODE return open_as(in, path, flags, mode); }
int openat64(int in, const char *path, int flags, ...) { WITH_MODE return open_as(in, path, flags, mode); }

static FILE *fopen_as(const char *name, const char *path, const char *how)
{
    char full[PATH_MAX];
    REFUSE(OPEN, kind_at(AT_FDCWD, path, full), -1, full, NULL);
    return ((FILE * (*)(const char *, const char *))next(name))(path, how);
}

FILE *fopen(const char *path, const char *how) { return fopen_as("fopen", path, how); }
FILE *fopen64(const char *path, const char *how) { return fopen_as("fopen64", path, how); }

int close(int fd)
{
    int kind = kind_of(fd), error = fails(CLOSE, kind, fd, NULL);
    remember(fd, NO_KIND);
    int answer = NEXT(close)(fd);
    if (error > 0) {
        errno = error;
        return -1;
    }
    return answer;
}

/* ── bytes ───────────────────────────────────────────────────────────────────────────────────────────────────────── */

#define COUNTED(call, fd, length) \
    int error = fails(call, kind_of(fd), fd, NULL); \
    if (error > 0) { \
        errno = error; \
        return -1; \
    } \
    if (error == SHORT) \
        length = part(length);

/* Bytes of one of our files are new. at: -1 for those before its offset. */
static ssize_t wrote(int fd, off64_t at, ssize_t done)
{
    if (done <= 0 || kind_of(fd) == NO_KIND || !powercut_wrote)
        return done;
    int before = errno;
    inside++;
    powercut_wrote(fd, at < 0 ? lseek(fd, 0, SEEK_CUR) - done : at, (size_t)done);
    inside--;
    errno = before;
    return done;
}

ssize_t read(int fd, void *into, size_t length) { COUNTED(READ, fd, length) return NEXT(read)(fd, into, length); }
ssize_t write(int fd, const void *from, size_t length)
{
    COUNTED(WRITE, fd, length) return wrote(fd, -1, NEXT(write)(fd, from, length));
}
ssize_t pread(int fd, void *into, size_t length, off_t at)
{
    COUNTED(PREAD, fd, length) return NEXT(pread)(fd, into, length, at);
}
ssize_t pread64(int fd, void *into, size_t length, off64_t at)
{
    COUNTED(PREAD, fd, length) return NEXT(pread64)(fd, into, length, at);
}
ssize_t pwrite(int fd, const void *from, size_t length, off_t at)
{
    COUNTED(PWRITE, fd, length) return wrote(fd, at, NEXT(pwrite)(fd, from, length, at));
}
ssize_t pwrite64(int fd, const void *from, size_t length, off64_t at)
{
    COUNTED(PWRITE, fd, length) return wrote(fd, at, NEXT(pwrite64)(fd, from, length, at));
}

/* Of several pieces a short count takes a part of the first only. */
#define PIECES(call, fd, count) \
    int error = fails(call, kind_of(fd), fd, NULL); \
    if (error > 0) { \
        errno = error; \
        return -1; \
    } \
    struct iovec piece; \
    if (error == SHORT && count > 0) { \
        piece = v[0]; \
        piece.iov_len = part(piece.iov_len); \
        v = &piece; \
        count = 1; \
    }

ssize_t readv(int fd, const struct iovec *v, int count) { PIECES(READ, fd, count) return NEXT(readv)(fd, v, count); }
ssize_t writev(int fd, const struct iovec *v, int count)
{
    PIECES(WRITE, fd, count) return wrote(fd, -1, NEXT(writev)(fd, v, count));
}
ssize_t preadv(int fd, const struct iovec *v, int count, off_t at)
{
    PIECES(PREAD, fd, count) return NEXT(preadv)(fd, v, count, at);
}
ssize_t pwritev(int fd, const struct iovec *v, int count, off_t at)
{
    PIECES(PWRITE, fd, count) return wrote(fd, at, NEXT(pwritev)(fd, v, count, at));
}

/* Glibc 2.26, and what CPython calls. */
ssize_t preadv64v2(int fd, const struct iovec *v, int count, off64_t at, int flags)
{
    PIECES(PREAD, fd, count) return NEXT(preadv64v2)(fd, v, count, at, flags);
}
ssize_t pwritev64v2(int fd, const struct iovec *v, int count, off64_t at, int flags)
{
    PIECES(PWRITE, fd, count) return wrote(fd, at, NEXT(pwritev64v2)(fd, v, count, at, flags));
}

/* ── syncs and sizes ─────────────────────────────────────────────────────────────────────────────────────────────── */

#define BY_FD(call, fd) REFUSE(call, kind_of(fd), fd, NULL, -1)

static int synced(int which, int (*call)(int), void (*dropped)(int), int fd)
{
    int error = fails(which, kind_of(fd), fd, NULL), answer = -1;
    inside++;
    if (error <= 0)
        answer = call(fd);
    else if (error != EINTR && dropped)
        dropped(fd);
    inside--;
    if (error > 0)
        errno = error;
    return answer;
}

int fsync(int fd) { return synced(FSYNC, NEXT(fsync), powercut_dropped, fd); }
int fdatasync(int fd) { return synced(FDATASYNC, NEXT(fdatasync), powercut_dropped, fd); }
int syncfs(int fd) { return synced(SYNCFS, NEXT(syncfs), powercut_dropped_all, fd); }
int sync_file_range(int fd, off64_t at, off64_t length, unsigned flags)
{
    BY_FD(FDATASYNC, fd);
    return NEXT(sync_file_range)(fd, at, length, flags);
}

/* What is behind a file's end is no page of it any more. */
static int cut(int fd, off64_t size, int answer)
{
    if (answer == 0)
        wrote(fd, size, SSIZE_MAX);
    return answer;
}

int ftruncate(int fd, off_t size) { BY_FD(FTRUNCATE, fd); return cut(fd, size, NEXT(ftruncate)(fd, size)); }
int ftruncate64(int fd, off64_t size) { BY_FD(FTRUNCATE, fd); return cut(fd, size, NEXT(ftruncate64)(fd, size)); }
int fallocate(int fd, int how, off_t at, off_t size)
{
    BY_FD(FALLOCATE, fd);
    return NEXT(fallocate)(fd, how, at, size);
}
int fallocate64(int fd, int how, off64_t at, off64_t size)
{
    BY_FD(FALLOCATE, fd);
    return NEXT(fallocate64)(fd, how, at, size);
}

static int posix_fallocate_as(const char *name, int fd, off64_t at, off64_t size)
{
    int error = fails(FALLOCATE, kind_of(fd), fd, NULL);
    return error > 0 ? error : ((int (*)(int, off64_t, off64_t))next(name))(fd, at, size);
}

int posix_fallocate(int fd, off_t at, off_t size) { return posix_fallocate_as("posix_fallocate", fd, at, size); }
int posix_fallocate64(int fd, off64_t at, off64_t size)
{
    return posix_fallocate_as("posix_fallocate64", fd, at, size);
}
int fstatvfs(int fd, struct statvfs *into) { BY_FD(STATVFS, fd); return NEXT(fstatvfs)(fd, into); }
int fstatvfs64(int fd, struct statvfs64 *into) { BY_FD(STATVFS, fd); return NEXT(fstatvfs64)(fd, into); }
int fstat(int fd, struct stat *into) { BY_FD(FSTAT, fd); return NEXT(fstat)(fd, into); }
int fstat64(int fd, struct stat64 *into) { BY_FD(FSTAT, fd); return NEXT(fstat64)(fd, into); }
int __fxstat(int version, int fd, struct stat *into);
int __fxstat64(int version, int fd, struct stat64 *into);
int __xstat(int version, const char *path, struct stat *into);
int __xstat64(int version, const char *path, struct stat64 *into);
int __fxstat(int version, int fd, struct stat *into) { BY_FD(FSTAT, fd); return NEXT(__fxstat)(version, fd, into); }
int __fxstat64(int version, int fd, struct stat64 *into)
{
    BY_FD(FSTAT, fd);
    return NEXT(__fxstat64)(version, fd, into);
}

/* ── names ───────────────────────────────────────────────────────────────────────────────────────────────────────── */

#define BY_NAME(call, in, path) \
    char full[PATH_MAX]; \
    REFUSE(call, kind_at(in, path, full), -1, full, -1)

int stat(const char *path, struct stat *into) { BY_NAME(STAT, AT_FDCWD, path); return NEXT(stat)(path, into); }
int stat64(const char *path, struct stat64 *into) { BY_NAME(STAT, AT_FDCWD, path); return NEXT(stat64)(path, into); }
int lstat(const char *path, struct stat *into) { BY_NAME(STAT, AT_FDCWD, path); return NEXT(lstat)(path, into); }
int lstat64(const char *path, struct stat64 *into) { BY_NAME(STAT, AT_FDCWD, path); return NEXT(lstat64)(path, into); }
int __xstat(int version, const char *path, struct stat *into)
{
    BY_NAME(STAT, AT_FDCWD, path);
    return NEXT(__xstat)(version, path, into);
}
int __xstat64(int version, const char *path, struct stat64 *into)
{
    BY_NAME(STAT, AT_FDCWD, path);
    return NEXT(__xstat64)(version, path, into);
}
int fstatat(int in, const char *path, struct stat *into, int flags)
{
    BY_NAME(STAT, in, path);
    return NEXT(fstatat)(in, path, into, flags);
}
int fstatat64(int in, const char *path, struct stat64 *into, int flags)
{
    BY_NAME(STAT, in, path);
    return NEXT(fstatat64)(in, path, into, flags);
}
int access(const char *path, int how) { BY_NAME(STAT, AT_FDCWD, path); return NEXT(access)(path, how); }
int statvfs(const char *path, struct statvfs *into)
{
    BY_NAME(STATVFS, AT_FDCWD, path);
    return NEXT(statvfs)(path, into);
}
int unlink(const char *path) { BY_NAME(UNLINK, AT_FDCWD, path); return NEXT(unlink)(path); }
int unlinkat(int in, const char *path, int flags)
{
    BY_NAME(flags & AT_REMOVEDIR ? RMDIR : UNLINK, in, path);
    return NEXT(unlinkat)(in, path, flags);
}
int mkdir(const char *path, mode_t mode) { BY_NAME(MKDIR, AT_FDCWD, path); return NEXT(mkdir)(path, mode); }
int rmdir(const char *path) { BY_NAME(RMDIR, AT_FDCWD, path); return NEXT(rmdir)(path); }
int rename(const char *old, const char *new) { BY_NAME(RENAME, AT_FDCWD, old); return NEXT(rename)(old, new); }
int renameat(int in, const char *old, int into, const char *new)
{
    BY_NAME(RENAME, in, old);
    return NEXT(renameat)(in, old, into, new);
}
/* ── what is in a directory ──────────────────────────────────────────────────────────────────────────────────────── */

DIR *opendir(const char *path)
{
    char full[PATH_MAX];
    int kind = kind_at(AT_FDCWD, path, full);
    REFUSE(OPENDIR, kind, -1, full, NULL);
    DIR *found = NEXT(opendir)(path);
    if (found)
        remember(dirfd(found), kind);
    return found;
}

int closedir(DIR *which)
{
    remember(dirfd(which), NO_KIND);
    return NEXT(closedir)(which);
}

struct dirent *readdir(DIR *which)
{
    REFUSE(READDIR, kind_of(dirfd(which)), dirfd(which), NULL, NULL);
    return NEXT(readdir)(which);
}

struct dirent64 *readdir64(DIR *which)
{
    REFUSE(READDIR, kind_of(dirfd(which)), dirfd(which), NULL, NULL);
    return NEXT(readdir64)(which);
}

/* ── time ────────────────────────────────────────────────────────────────────────────────────────────────────────── */

/* Who waits to try something again is woken after control->hurry_ms already: a test of thousands of points has no half
 * second for each. POSIX lets a wait end without a reason; RocksDB sleeps a second after a flush that failed. */
int usleep(useconds_t time)
{
    useconds_t most = control && control->hurry_ms ? control->hurry_ms * 1000 : time;
    return NEXT(usleep)(time < most ? time : most);
}

int pthread_cond_timedwait(pthread_cond_t *cond, pthread_mutex_t *mutex, const struct timespec *until)
{
    static int (*real)(pthread_cond_t *, pthread_mutex_t *, const struct timespec *);
    if (!real) {
        /* Without its version the name may mean what it meant in 1999. */
        void *found = dlvsym(RTLD_NEXT, "pthread_cond_timedwait", "GLIBC_2.3.2");
        *(void **)&real = found ? found : next("pthread_cond_timedwait");
    }
    if (!control || control->hurry_ms == 0)
        return real(cond, mutex, until);
    struct timespec soon;
    /* Nobody says by which clock: the number of seconds does. */
    clock_gettime(until->tv_sec > 1000000000 ? CLOCK_REALTIME : CLOCK_MONOTONIC, &soon);
    soon.tv_nsec += (long)control->hurry_ms * 1000000;
    soon.tv_sec += soon.tv_nsec / 1000000000;
    soon.tv_nsec %= 1000000000;
    if (soon.tv_sec > until->tv_sec || (soon.tv_sec == until->tv_sec && soon.tv_nsec >= until->tv_nsec))
        return real(cond, mutex, until);
    int answer = real(cond, mutex, &soon);
    return answer == ETIMEDOUT ? 0 : answer;
}
