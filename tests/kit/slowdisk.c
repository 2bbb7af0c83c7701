/* A disk that takes its time, for tests (slowdisk.py): fdatasync and fsync last SLOWDISK_MS milliseconds longer, and as
 * long as the file SLOWDISK_HOLD exists they do not return at all.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <unistd.h>

static void wait_for_the_disk(void)
{
    const char *hold = getenv("SLOWDISK_HOLD");
    const char *milliseconds = getenv("SLOWDISK_MS");
    if (milliseconds)
        usleep((useconds_t)atoi(milliseconds) * 1000);
    while (hold && access(hold, F_OK) == 0)
        usleep(1000);
}

int fdatasync(int fd)
{
    static int (*real)(int);
    if (!real)
        *(void **)&real = dlsym(RTLD_NEXT, "fdatasync");
    wait_for_the_disk();
    return real(fd);
}

int fsync(int fd)
{
    static int (*real)(int);
    if (!real)
        *(void **)&real = dlsym(RTLD_NEXT, "fsync");
    wait_for_the_disk();
    return real(fd);
}
