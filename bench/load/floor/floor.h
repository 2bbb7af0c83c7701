/* What the two floor programs share: sockets, and just enough MQTT for a client to believe in them.
 *
 * A connection that subscribes is a subscriber, one that publishes is a publisher. CONNECT gets CONNACK, SUBSCRIBE gets
 * SUBACK with QoS 0; nothing else is understood. QoS 0 only. */
#ifndef FLOOR_H
#define FLOOR_H

#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#define PEERS_MAX 20000
#define HELLO_MAX 1024
#define EVENTS 256

enum role { ROLE_NEW, ROLE_CONNECTED, ROLE_SUBSCRIBER, ROLE_PUBLISHER };

static void die(const char *what) {
    perror(what);
    exit(1);
}

static void raise_limit(void) {
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) == 0) {
        limit.rlim_cur = limit.rlim_max;
        setrlimit(RLIMIT_NOFILE, &limit);
    }
}

/* Listens on a free port of 127.0.0.1 and prints it, alone on the first line. */
static int listen_loopback(void) {
    struct sockaddr_in at = {0};
    socklen_t size = sizeof at;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    if (fd < 0) die("socket");
    at.sin_family = AF_INET;
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (bind(fd, (struct sockaddr *)&at, sizeof at) || listen(fd, 4096)) die("listen");
    if (getsockname(fd, (struct sockaddr *)&at, &size)) die("getsockname");
    printf("%d\n", ntohs(at.sin_port));
    fflush(stdout);
    return fd;
}

static int accept_one(int listener) {
    int one = 1, fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK);
    if (fd >= 0) setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    return fd;
}

static void watch(int epoll, int op, int fd, uint32_t events, void *who) {
    struct epoll_event e;
    e.events = events;
    e.data.ptr = who;
    epoll_ctl(epoll, op, fd, &e);
}

/* Length of the packet at `data`: whole bytes, 0 when its header is not complete yet, (size_t)-1 when it cannot be. */
static size_t packet_size(const uint8_t *data, size_t have) {
    size_t size = 0, at = 1;
    unsigned shift = 0;
    do {
        if (at >= have) return 0;
        if (shift > 21) return (size_t)-1;
        size |= (size_t)(data[at] & 0x7f) << shift;
        shift += 7;
    } while (data[at++] & 0x80);
    return at + size;
}

/* Answers the CONNECT and SUBSCRIBE packets at the start of data; how many bytes they were.
 * The first PUBLISH ends it: from there on the connection is a publisher. */
static size_t greet(int fd, enum role *role, int *version, const uint8_t *data, size_t have) {
    size_t at = 0, size;
    while (at < have) {
        uint8_t kind = data[at] >> 4;
        if (kind == 3) {
            *role = ROLE_PUBLISHER;
            return at;
        }
        size = packet_size(data + at, have - at);
        if (size == 0 || size > have - at) return at;
        if (kind == 1) {
            const uint8_t *body = data + at + 1;
            while (*body++ & 0x80) {}
            *version = body[6];
            if (*version == 5) send(fd, "\x20\x03\x00\x00\x00", 5, MSG_NOSIGNAL);
            else send(fd, "\x20\x02\x00\x00", 4, MSG_NOSIGNAL);
            *role = ROLE_CONNECTED;
        } else if (kind == 8) {
            const uint8_t *body = data + at + 1;
            uint8_t answer[6] = {0x90, 3, 0, 0, 0, 0};
            while (*body++ & 0x80) {}
            answer[2] = body[0];
            answer[3] = body[1];
            if (*version == 5) answer[1] = 4;
            send(fd, answer, 2 + answer[1], MSG_NOSIGNAL);
            *role = ROLE_SUBSCRIBER;
        }
        at += size;
    }
    return at;
}

#endif
