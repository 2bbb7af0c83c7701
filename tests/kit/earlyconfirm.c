/* A journal that says "written" and writes nothing, for tests (earlyconfirm.py): the broker then confirms what is on no
 * disk. It begins, in each process, with the first batch in which $EARLYCONFIRM_MARK occurs, and goes on to the end of
 * the process: so what is in the file is whole, and a start finds nothing wrong with it.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <unistd.h>

static volatile int forgets;

/* Whether this write of a journal is to be forgotten. */
static int forgotten(int fd, const void *from, size_t length)
{
    char link[64], path[PATH_MAX];
    const char *mark = getenv("EARLYCONFIRM_MARK");
    if (!mark || (!forgets && !memmem(from, length, mark, strlen(mark))))
        return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t size = readlink(link, path, sizeof path - 1);
    if (size < 0)
        return 0;
    path[size] = 0;
    if (!strstr(path, "data/journal/"))
        return 0;
    forgets = 1;
    return 1;
}

#define FORGETFUL(name, offset)                                             \
    ssize_t name(int fd, const void *from, size_t length, offset at)        \
    {                                                                       \
        static ssize_t (*real)(int, const void *, size_t, offset);          \
        if (!real)                                                          \
            *(void **)&real = dlsym(RTLD_NEXT, #name);                      \
        return forgotten(fd, from, length) ? (ssize_t)length : real(fd, from, length, at); \
    }

FORGETFUL(pwrite, off_t)
FORGETFUL(pwrite64, off64_t)
