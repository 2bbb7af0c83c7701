/* The floor under durability: append one block, fdatasync, again.
 *
 * fsync_loop FILE BLOCK_SIZE SECONDS   prints the nanoseconds of each pair, one per line. The file is not removed. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static uint64_t now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

int main(int argc, char **argv) {
    uint64_t start, before, after, until;
    size_t size;
    char *block;
    int fd;
    if (argc != 4) {
        fprintf(stderr, "usage: fsync_loop FILE BLOCK_SIZE SECONDS\n");
        return 2;
    }
    size = (size_t)atol(argv[2]);
    until = (uint64_t)(atof(argv[3]) * 1e9);
    block = malloc(size);
    fd = open(argv[1], O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    if (fd < 0 || !block) {
        perror(argv[1]);
        return 1;
    }
    memset(block, 'x', size);
    start = before = now();
    do {
        if (write(fd, block, size) != (ssize_t)size || fdatasync(fd)) {
            perror("write and fdatasync");
            return 1;
        }
        after = now();
        printf("%llu\n", (unsigned long long)(after - before));
        before = now();
    } while (after - start < until);
    return 0;
}
