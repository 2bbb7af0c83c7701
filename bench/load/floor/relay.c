/* The floor under throughput: an epoll relay that parses nothing.
 *
 * relay [pairs]   prints its port; what a publisher sends goes, byte for byte, to all subscribers, or with `pairs` to
 *                 one: the k-th publisher's bytes to the k-th subscriber, in the order of connecting (all subscribers
 *                 must connect before the first publisher).
 *
 * After the greeting no byte is looked at, so with several publishers to one subscriber a message cut in two by a full
 * socket could be torn. With windows smaller than socket buffers, as in the benchmarks, each send arrives whole. */
#include "floor.h"

#define READ_SIZE (256 * 1024)

struct peer {
    int fd, version;
    enum role role;
    int number;             /* in the order of connecting */
    uint8_t *waiting;       /* a subscriber's bytes that its socket did not take */
    size_t start, end, room;
    uint8_t hello[HELLO_MAX];
    size_t hello_size;
};

static struct peer *subscribers[PEERS_MAX];
static int subscribers_count, peers_count, epoll, pairs;
static uint8_t inbox[READ_SIZE];

static void drop(struct peer *p) {
    for (int i = 0; i < subscribers_count; i++)
        if (subscribers[i] == p) subscribers[i] = NULL;
    while (subscribers_count && !subscribers[subscribers_count - 1]) subscribers_count--;
    if (!subscribers_count) peers_count = 0;
    close(p->fd);
    free(p->waiting);
    free(p);
}

static void keep(struct peer *p, const uint8_t *data, size_t size) {
    if (p->end + size > p->room) {
        memmove(p->waiting, p->waiting + p->start, p->end - p->start);
        p->end -= p->start;
        p->start = 0;
        if (p->end + size > p->room) {
            p->room = (p->end + size) * 2;
            p->waiting = realloc(p->waiting, p->room);
            if (!p->waiting) die("memory");
        }
    }
    memcpy(p->waiting + p->end, data, size);
    p->end += size;
}

static void give(struct peer *p, const uint8_t *data, size_t size) {
    ssize_t sent = 0;
    if (p->end == p->start) {
        sent = send(p->fd, data, size, MSG_NOSIGNAL);
        if (sent == (ssize_t)size) return;
        if (sent < 0) sent = 0;
        watch(epoll, EPOLL_CTL_MOD, p->fd, EPOLLIN | EPOLLOUT, p);
    }
    keep(p, data + sent, size - (size_t)sent);
}

static void on_writable(struct peer *p) {
    ssize_t sent = send(p->fd, p->waiting + p->start, p->end - p->start, MSG_NOSIGNAL);
    if (sent > 0) p->start += (size_t)sent;
    if (p->start == p->end) {
        p->start = p->end = 0;
        watch(epoll, EPOLL_CTL_MOD, p->fd, EPOLLIN, p);
    }
}

static void relay(struct peer *p, const uint8_t *data, size_t size) {
    if (pairs) {
        int to = p->number - subscribers_count;
        if (to >= 0 && to < subscribers_count && subscribers[to]) give(subscribers[to], data, size);
        return;
    }
    for (int i = 0; i < subscribers_count; i++)
        if (subscribers[i]) give(subscribers[i], data, size);
}

static void on_readable(struct peer *p) {
    ssize_t got = recv(p->fd, inbox, sizeof inbox, 0);
    size_t used;
    if (got <= 0) {
        if (got == 0 || errno != EAGAIN) drop(p);
        return;
    }
    if (p->role == ROLE_PUBLISHER) {
        relay(p, inbox, (size_t)got);
        return;
    }
    if (p->role == ROLE_SUBSCRIBER) return;
    if (p->hello_size + (size_t)got > HELLO_MAX && p->role == ROLE_NEW) {
        drop(p);
        return;
    }
    if (p->hello_size) {
        memmove(inbox + p->hello_size, inbox, (size_t)got);
        memcpy(inbox, p->hello, p->hello_size);
        got += (ssize_t)p->hello_size;
    }
    used = greet(p->fd, &p->role, &p->version, inbox, (size_t)got);
    p->hello_size = 0;
    if (p->role == ROLE_PUBLISHER) {
        relay(p, inbox + used, (size_t)got - used);
    } else if (p->role == ROLE_SUBSCRIBER) {
        /* SUBSCRIBE packets may arrive in another order than their connections. */
        int at = pairs ? p->number : subscribers_count;
        if (at >= PEERS_MAX) {
            drop(p);
            return;
        }
        subscribers[at] = p;
        if (at >= subscribers_count) subscribers_count = at + 1;
    } else if ((size_t)got - used <= HELLO_MAX) {
        p->hello_size = (size_t)got - used;
        memcpy(p->hello, inbox + used, p->hello_size);
    }
}

int main(int argc, char **argv) {
    struct epoll_event events[EVENTS];
    int listener;
    pairs = argc > 1 && !strcmp(argv[1], "pairs");
    raise_limit();
    epoll = epoll_create1(0);
    listener = listen_loopback();
    watch(epoll, EPOLL_CTL_ADD, listener, EPOLLIN, NULL);
    for (;;) {
        int got = epoll_wait(epoll, events, EVENTS, -1);
        for (int i = 0; i < got; i++) {
            struct peer *p = events[i].data.ptr;
            if (p) {
                if (events[i].events & EPOLLOUT) on_writable(p);
                if (events[i].events & ~(uint32_t)EPOLLOUT) on_readable(p);
                continue;
            }
            int fd = accept_one(listener);
            if (fd < 0) continue;
            if (subscribers_count >= PEERS_MAX - 1 || !(p = calloc(1, sizeof *p))) {
                close(fd);
                continue;
            }
            p->fd = fd;
            p->number = peers_count++;
            watch(epoll, EPOLL_CTL_ADD, fd, EPOLLIN, p);
        }
    }
}
