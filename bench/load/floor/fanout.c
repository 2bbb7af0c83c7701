/* The floor under large payloads: each PUBLISH is read once, whole, into one counted block, and goes from there to
 * all subscribers with writev: what a broker does at the least when payloads are too large to copy.
 *
 * fanout   prints its port. Only lengths are parsed; packets are forwarded as they came (QoS 0). */
#include "floor.h"

#define QUEUE_MAX 4096      /* blocks waiting for one subscriber; its publisher is not read while one has this many */
#define VECTORS 64
#define READ_ROOM (512 * 1024)

struct block {
    unsigned holders;
    size_t size;
    uint8_t data[];
};

struct peer {
    int fd, version;
    enum role role;
    /* publisher: the block that is being filled holds whole packets and the start of one more */
    struct block *filling;
    size_t room;
    /* subscriber: a ring of blocks; the first is sent up to `offset` */
    struct block **queue;
    unsigned first, count;
    size_t offset;
    int blocked, dirty;
};

static struct peer *subscribers[PEERS_MAX];
static int subscribers_count, epoll, full;
static struct peer *paused[PEERS_MAX];
static int paused_count;

static void release(struct block *b) {
    if (--b->holders == 0) free(b);
}

static void drop(struct peer *p) {
    for (int i = 0; i < subscribers_count; i++)
        if (subscribers[i] == p) subscribers[i--] = subscribers[--subscribers_count];
    while (p->count) {
        release(p->queue[p->first]);
        p->first = (p->first + 1) % QUEUE_MAX;
        if (p->count-- == QUEUE_MAX) full--;
    }
    close(p->fd);
    free(p->filling);
    free(p->queue);
    free(p);
}

static void flush(struct peer *p) {
    struct iovec vectors[VECTORS];
    while (p->count) {
        unsigned n = 0;
        ssize_t sent;
        for (; n < p->count && n < VECTORS; n++) {
            struct block *b = p->queue[(p->first + n) % QUEUE_MAX];
            size_t skip = n == 0 ? p->offset : 0;
            vectors[n].iov_base = b->data + skip;
            vectors[n].iov_len = b->size - skip;
        }
        sent = writev(p->fd, vectors, (int)n);
        if (sent < 0) break;
        while (sent > 0 && p->count) {
            struct block *b = p->queue[p->first];
            size_t left = b->size - p->offset;
            if ((size_t)sent < left) {
                p->offset += (size_t)sent;
                break;
            }
            sent -= (ssize_t)left;
            p->offset = 0;
            p->first = (p->first + 1) % QUEUE_MAX;
            if (p->count-- == QUEUE_MAX) full--;
            release(b);
        }
    }
    if ((p->count > 0) != p->blocked) {
        p->blocked = p->count > 0;
        watch(epoll, EPOLL_CTL_MOD, p->fd, EPOLLIN | (p->blocked ? EPOLLOUT : 0), p);
    }
    if (!full)
        while (paused_count) {
            struct peer *source = paused[--paused_count];
            watch(epoll, EPOLL_CTL_MOD, source->fd, EPOLLIN, source);
        }
}

static void spread(struct block *b) {
    b->holders = 1;
    for (int i = 0; i < subscribers_count; i++) {
        struct peer *p = subscribers[i];
        if (p->count == QUEUE_MAX) continue;
        p->queue[(p->first + p->count++) % QUEUE_MAX] = b;
        if (p->count == QUEUE_MAX) full++;
        b->holders++;
    }
    for (int i = 0; i < subscribers_count; i++)
        if (!subscribers[i]->blocked) flush(subscribers[i]);
    release(b);
}

static struct block *new_block(size_t room) {
    struct block *b = malloc(sizeof *b + room);
    if (!b) die("memory");
    b->holders = 1;
    b->size = 0;
    return b;
}

static void on_publisher(struct peer *p) {
    struct block *b = p->filling, *rest;
    size_t at = 0, size = 0;
    while (at < b->size) {
        size = packet_size(b->data + at, b->size - at);
        if (size == (size_t)-1) {
            drop(p);
            return;
        }
        if (size == 0 || size > b->size - at) break;
        at += size;
        size = 0;
    }
    if (at == 0 && size + 16 <= p->room) return;
    /* Whole packets go out; the start of the next moves to a block that has room for all of it. */
    p->room = size + 16 > READ_ROOM ? size + 16 : READ_ROOM;
    rest = new_block(p->room);
    rest->size = b->size - at;
    memcpy(rest->data, b->data + at, rest->size);
    p->filling = rest;
    if (at == 0) {
        free(b);
        return;
    }
    b->size = at;
    spread(b);
}

static void on_readable(struct peer *p) {
    ssize_t got;
    size_t used;
    struct block *b;
    if (full && p->role == ROLE_PUBLISHER && paused_count < PEERS_MAX) {
        watch(epoll, EPOLL_CTL_MOD, p->fd, 0, p);
        paused[paused_count++] = p;
        return;
    }
    if (!p->filling) {
        p->room = READ_ROOM;
        p->filling = new_block(p->room);
    }
    b = p->filling;
    got = recv(p->fd, b->data + b->size, p->room - b->size, 0);
    if (got <= 0) {
        if (got == 0 || errno != EAGAIN) drop(p);
        return;
    }
    b->size += (size_t)got;
    if (p->role != ROLE_PUBLISHER) {
        enum role before = p->role;
        used = greet(p->fd, &p->role, &p->version, b->data, b->size);
        memmove(b->data, b->data + used, b->size - used);
        b->size -= used;
        if (p->role == ROLE_SUBSCRIBER && before != ROLE_SUBSCRIBER) {
            p->queue = calloc(QUEUE_MAX, sizeof *p->queue);
            if (!p->queue) die("memory");
            subscribers[subscribers_count++] = p;
        }
    }
    if (p->role == ROLE_PUBLISHER) on_publisher(p);
}

int main(void) {
    struct epoll_event events[EVENTS];
    int listener;
    raise_limit();
    epoll = epoll_create1(0);
    listener = listen_loopback();
    watch(epoll, EPOLL_CTL_ADD, listener, EPOLLIN, NULL);
    for (;;) {
        int got = epoll_wait(epoll, events, EVENTS, -1);
        for (int i = 0; i < got; i++) {
            struct peer *p = events[i].data.ptr;
            if (p) {
                if (events[i].events & EPOLLOUT) flush(p);
                if (events[i].events & ~(uint32_t)EPOLLOUT) on_readable(p);
                continue;
            }
            int fd = accept_one(listener);
            if (fd < 0) continue;
            if (subscribers_count >= PEERS_MAX || !(p = calloc(1, sizeof *p))) {
                close(fd);
                continue;
            }
            p->fd = fd;
            watch(epoll, EPOLL_CTL_ADD, fd, EPOLLIN, p);
        }
    }
}
