/* A broker that is slower than it is: preloaded, before each wait for events, it burns a part of the processor time
 * that the thread has used since the wait before, SLOWDOWN_PERCENT of it. Only in a process whose PYTHONPATH is
 * SLOWDOWN_HOME, so that of two brokers with the same environment one is slow. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <time.h>

static __thread long long since;
static long percent = -1;

static long long spent(void)
{
    struct timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return now.tv_sec * 1000000000LL + now.tv_nsec;
}

static void slow_down(void)
{
    if (percent < 0) {
        const char *home = getenv("PYTHONPATH"), *wanted = getenv("SLOWDOWN_HOME"), *part = getenv("SLOWDOWN_PERCENT");
        percent = home && wanted && part && strcmp(home, wanted) == 0 ? atol(part) : 0;
    }
    if (percent > 0) {
        long long now = spent(), until = now + (now - since) * percent / 100;
        while (since && now < until)
            now = spent();
        since = now;
    }
}

int epoll_wait(int fd, struct epoll_event *events, int count, int timeout)
{
    static int (*real)(int, struct epoll_event *, int, int);
    if (!real)
        *(void **)&real = dlsym(RTLD_NEXT, "epoll_wait");
    slow_down();
    return real(fd, events, count, timeout);
}

int epoll_pwait(int fd, struct epoll_event *events, int count, int timeout, const sigset_t *mask)
{
    static int (*real)(int, struct epoll_event *, int, int, const sigset_t *);
    if (!real)
        *(void **)&real = dlsym(RTLD_NEXT, "epoll_pwait");
    slow_down();
    return real(fd, events, count, timeout, mask);
}
