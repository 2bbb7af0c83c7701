/* A disk that forgets on power loss, as a library to preload.
 *
 * Everything under $POWERCUT_DIR stays an ordinary file. Beside it, under $POWERCUT_SHADOW, stands what a loss of power
 * at this instant would leave, by the letter of POSIX and no more:
 *
 *   - the content of a file is what it was when fsync or fdatasync of it last returned; a file never synced is empty;
 *   - the names in a directory are what they were when fsync of the directory last returned. So a new name, a rename or
 *     an unlink is lost without it, whatever became of the file.
 *
 * Real file systems keep more (ext4 writes a new file's name with its fsync). Leaving that out is what makes the test
 * strict. So only the syncs need to be interposed: whatever way bytes and names took, they are looked at then.
 *
 *   shadow/files/<id>   content at the last sync          <id>: inode number and birth time, so that a number
 *   shadow/dirs/<id>    names at the last sync:                 which the file system uses again is another file
 *                       'd' or 'f', id, '/', name, NUL, …
 *   shadow/root         id of $POWERCUT_DIR; if missing, what the directory holds at program start is durable
 *
 * A sync that fails (faultydisk.c says of which file: powercut_dropped) loses for good what it should have written:
 * Linux calls the pages clean, so a later sync that succeeds brings none of them. Each page of 4096 bytes that differed
 * from the shadow then stays as the shadow has it (zeros behind its end), until it is written again (powercut_wrote)
 * and synced. Reading gives the new bytes all the while, as the page cache does. Names are not lost that way: they are
 * the file system's, and the next fsync of the directory brings them.
 *
 *   shadow/lost/<id>    the numbers of these pages, u32 each
 *
 * Each shadow is replaced by rename, so a kill during a sync leaves the state before or after it. (What a sector that
 * was under way looks like is powercut.py's torn mode.) Bytes that another thread writes during a sync may be kept too.
 * syncfs() keeps all of $POWERCUT_DIR. sync() ends the program: nobody here should call it, and ignoring it would be a
 * lie. O_SYNC, O_DSYNC and msync() are ignored, which loses more than a disk would.
 *
 * $POWERCUT_GATE is two descriptors, "3,4": before each sync the path goes to the first, as a line, and the thread
 * waits for a byte from the second. So who holds the other ends sees each instant at which what is durable changes.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { PAGE = 4096 };

static const char *live, *shadow;
static int resting; /* nobody will ask what a loss of power would leave */
static int gate_ask = -1, gate_answer = -1;
static int any_lost; /* a sync has failed, in this process or in one before it */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static void die(const char *what)
{
    fprintf(stderr, "powercut: %s: %s\n", what, strerror(errno));
    abort();
}

/* For powercut.py too. 0, or -1 and errno. */
int powercut_id(int directory, const char *path, char id[80])
{
    struct statx found;
    if (statx(directory, path, AT_SYMLINK_NOFOLLOW | (*path ? 0 : AT_EMPTY_PATH), STATX_BASIC_STATS | STATX_BTIME,
              &found) < 0)
        return -1;
    snprintf(id, 80, "%llu-%lld-%u", (unsigned long long)found.stx_ino, (long long)found.stx_btime.tv_sec,
             found.stx_btime.tv_nsec);
    return 0;
}

static int begin(char temporary[PATH_MAX])
{
    snprintf(temporary, PATH_MAX, "%s/new-%d", shadow, (int)getpid());
    int fd = open(temporary, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    if (fd < 0)
        die(temporary);
    return fd;
}

static void finish(int fd, const char *temporary, const char *kind, const char *id)
{
    char final[PATH_MAX];
    snprintf(final, sizeof final, "%s/%s%s%s", shadow, kind, *kind ? "/" : "", id);
    close(fd);
    if (rename(temporary, final) < 0)
        die(final);
}

static void put(int fd, const char *data, size_t length)
{
    while (length) {
        ssize_t done = write(fd, data, length);
        if (done < 0)
            die("write");
        data += done;
        length -= (size_t)done;
    }
}

/* The lock is held. */
static void gate(int fd)
{
    char self[64], path[PATH_MAX], go;
    if (gate_ask < 0)
        return;
    snprintf(self, sizeof self, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(self, path, sizeof path - 1);
    if (length < 0)
        die(self);
    path[length] = '\n';
    if (write(gate_ask, path, (size_t)length + 1) != length + 1 || read(gate_answer, &go, 1) != 1)
        _exit(1); /* nobody looks any more */
}

/* ── pages that a failed sync has dropped ────────────────────────────────────────────────────────────────────────── */

struct lost {
    uint32_t *pages;
    size_t count, room;
};

static void add_lost(struct lost *lost, uint32_t page)
{
    if (lost->count == lost->room) {
        lost->room = lost->room ? 2 * lost->room : 64;
        lost->pages = realloc(lost->pages, lost->room * sizeof *lost->pages);
        if (!lost->pages)
            die("realloc");
    }
    lost->pages[lost->count++] = page;
}

static int is_lost(const struct lost *lost, uint32_t page)
{
    for (size_t at = 0; at < lost->count; at++)
        if (lost->pages[at] == page)
            return 1;
    return 0;
}

static void name_lost(char path[PATH_MAX], const char *id) { snprintf(path, PATH_MAX, "%s/lost/%s", shadow, id); }

static struct lost read_lost(const char *id)
{
    struct lost found = {0};
    char path[PATH_MAX];
    uint32_t page;
    if (!any_lost)
        return found;
    name_lost(path, id);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return found;
    while (read(fd, &page, sizeof page) == sizeof page)
        add_lost(&found, page);
    close(fd);
    return found;
}

static void write_lost(const char *id, const struct lost *lost)
{
    char temporary[PATH_MAX], path[PATH_MAX];
    if (!lost->count) {
        name_lost(path, id);
        unlink(path);
        return;
    }
    int fd = begin(temporary);
    put(fd, (const char *)lost->pages, lost->count * sizeof *lost->pages);
    finish(fd, temporary, "lost", id);
}

/* ── content ─────────────────────────────────────────────────────────────────────────────────────────────────────── */

static int open_again(int fd)
{
    char self[64];
    snprintf(self, sizeof self, "/proc/self/fd/%d", fd);
    int again = open(self, O_RDONLY | O_CLOEXEC);
    if (again < 0)
        die(self);
    return again;
}

static int open_shadow(const char *id)
{
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%s/files/%s", shadow, id);
    return open(path, O_RDONLY | O_CLOEXEC);
}

/* Of one page: what the file has, less at its end; of the shadow, zeros behind its end. */
static size_t page_of(int fd, uint32_t page, char into[PAGE])
{
    size_t done = 0;
    ssize_t got = 0;
    memset(into, 0, PAGE);
    while (fd >= 0 && done < PAGE && (got = pread(fd, into + done, PAGE - done, (off_t)page * PAGE + (off_t)done)) > 0)
        done += (size_t)got;
    if (got < 0)
        die("pread");
    return done;
}

static void keep_file(int fd, const char *id)
{
    char temporary[PATH_MAX], piece[65536], old[PAGE];
    struct lost lost = read_lost(id);
    int from = open_again(fd), before = lost.count ? open_shadow(id) : -1;
    int into = begin(temporary);
    size_t got;
    uint32_t page = 0;
    if (!lost.count) {
        ssize_t some;
        while ((some = read(from, piece, sizeof piece)) > 0)
            put(into, piece, (size_t)some);
        if (some < 0)
            die("read");
    } else
        for (; (got = page_of(from, page, piece)) > 0; page++) {
            int drop = is_lost(&lost, page);
            if (drop)
                page_of(before, page, old);
            put(into, drop ? old : piece, got);
        }
    if (before >= 0)
        close(before);
    close(from);
    free(lost.pages);
    finish(into, temporary, "files", id);
}

static void drop_file(int fd, const char *id)
{
    char here[PAGE], kept[PAGE];
    struct lost lost = read_lost(id);
    int from = open_again(fd), before = open_shadow(id);
    for (uint32_t page = 0; page_of(from, page, here) > 0; page++) {
        page_of(before, page, kept);
        if (memcmp(here, kept, PAGE) && !is_lost(&lost, page))
            add_lost(&lost, page);
    }
    if (before >= 0)
        close(before);
    close(from);
    any_lost = 1;
    write_lost(id, &lost);
    free(lost.pages);
}

/* Of all files below it. */
static void drop_below(int fd)
{
    int again = openat(fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *listing = again < 0 ? NULL : fdopendir(again);
    struct dirent *entry;
    struct stat found;
    char id[80];
    if (!listing)
        die("opendir");
    while ((entry = readdir(listing))) {
        if (!strcmp(entry->d_name, ".") || !strcmp(entry->d_name, "..")
            || fstatat(fd, entry->d_name, &found, AT_SYMLINK_NOFOLLOW) < 0
            || (!S_ISDIR(found.st_mode) && !S_ISREG(found.st_mode)))
            continue;
        int below = openat(fd, entry->d_name, O_RDONLY | O_CLOEXEC);
        if (below < 0 || powercut_id(below, "", id) < 0)
            die(entry->d_name);
        if (S_ISDIR(found.st_mode))
            drop_below(below);
        else
            drop_file(below, id);
        close(below);
    }
    closedir(listing);
}

/* deep: all that is below it, too. */
static void keep_directory(int fd, const char *id, int deep)
{
    char temporary[PATH_MAX], child[80];
    int again = openat(fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *listing = again < 0 ? NULL : fdopendir(again);
    if (!listing)
        die("opendir");
    int into = deep ? -1 : begin(temporary);
    char *names = NULL; /* written at once: there are many, and each sync of a directory writes all */
    size_t length = 0, room = 0;
    struct dirent *entry;
    while ((entry = readdir(listing))) {
        struct stat found;
        if (!strcmp(entry->d_name, ".") || !strcmp(entry->d_name, ".."))
            continue;
        if (fstatat(fd, entry->d_name, &found, AT_SYMLINK_NOFOLLOW) < 0 || powercut_id(fd, entry->d_name, child) < 0)
            continue; /* gone meanwhile */
        if (!S_ISDIR(found.st_mode) && !S_ISREG(found.st_mode))
            continue;
        if (deep) {
            int below = openat(fd, entry->d_name, O_RDONLY | O_CLOEXEC);
            if (below < 0)
                die(entry->d_name);
            if (S_ISDIR(found.st_mode))
                keep_directory(below, child, 1);
            else
                keep_file(below, child);
            close(below);
        } else {
            if (room - length < sizeof child + sizeof entry->d_name + 2 && !(names = realloc(names, room += 1 << 16)))
                die("realloc");
            length += 1 + (size_t)sprintf(names + length, "%c%s/%s", S_ISDIR(found.st_mode) ? 'd' : 'f', child,
                                          entry->d_name);
        }
    }
    closedir(listing);
    if (deep) {
        keep_directory(fd, id, 0);
        return;
    }
    put(into, names, length);
    free(names);
    finish(into, temporary, "dirs", id);
}

static void look_for_lost(void)
{
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%s/lost", shadow);
    DIR *listing = opendir(path);
    struct dirent *entry;
    while (listing && (entry = readdir(listing)))
        any_lost |= entry->d_name[0] != '.';
    if (listing)
        closedir(listing);
}

__attribute__((constructor))
static void prepare(void)
{
    char path[PATH_MAX], id[80];
    live = getenv("POWERCUT_DIR");
    shadow = getenv("POWERCUT_SHADOW");
    if (!live || !shadow)
        return;
    if (getenv("POWERCUT_GATE") && sscanf(getenv("POWERCUT_GATE"), "%d,%d", &gate_ask, &gate_answer) != 2)
        die("POWERCUT_GATE");
    look_for_lost();
    pthread_atfork(NULL, NULL, look_for_lost);
    snprintf(path, sizeof path, "%s/root", shadow);
    if (access(path, F_OK) == 0)
        return;
    int fd = open(live, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0 || powercut_id(fd, "", id) < 0)
        die(live);
    keep_directory(fd, id, 1);
    close(fd);
    fd = begin(path);
    put(fd, id, strlen(id));
    finish(fd, path, "", "root");
}

static int ours(int fd)
{
    char self[64], path[PATH_MAX];
    if (!live || !shadow || resting)
        return 0;
    snprintf(self, sizeof self, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(self, path, sizeof path - 1);
    if (length < 0)
        return 0;
    path[length] = 0;
    size_t prefix = strlen(live);
    return !strncmp(path, live, prefix) && (path[prefix] == '/' || path[prefix] == 0);
}

static int keep(int fd)
{
    char id[80];
    struct stat found;
    if (fstat(fd, &found) < 0 || powercut_id(fd, "", id) < 0)
        return -1;
    pthread_mutex_lock(&lock);
    gate(fd);
    if (S_ISDIR(found.st_mode))
        keep_directory(fd, id, 0);
    else
        keep_file(fd, id);
    pthread_mutex_unlock(&lock);
    return 0;
}

/* For powercut.py: from now on nothing is kept of what is synced, or again all of it. */
void powercut_rest(int whether) { resting = whether; }

/* For faultydisk.c: a sync of this file has failed. What was to be written is lost. */
void powercut_dropped(int fd)
{
    char id[80];
    struct stat found;
    if (!ours(fd) || fstat(fd, &found) < 0 || !S_ISREG(found.st_mode) || powercut_id(fd, "", id) < 0)
        return;
    pthread_mutex_lock(&lock);
    drop_file(fd, id);
    pthread_mutex_unlock(&lock);
}

/* For faultydisk.c: a syncfs() that this descriptor was given has failed. */
void powercut_dropped_all(int fd)
{
    if (!ours(fd))
        return;
    int top = open(live, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (top < 0)
        die(live);
    pthread_mutex_lock(&lock);
    drop_below(top);
    pthread_mutex_unlock(&lock);
    close(top);
}

/* For faultydisk.c: these bytes of the file were written, or cut off; the next sync that succeeds brings their pages.
 */
void powercut_wrote(int fd, off_t at, size_t length)
{
    char id[80];
    if (!any_lost || !length || !ours(fd) || powercut_id(fd, "", id) < 0)
        return;
    pthread_mutex_lock(&lock);
    struct lost lost = read_lost(id);
    size_t left = 0;
    uint64_t end = length > (size_t)INT64_MAX - (size_t)at ? INT64_MAX : (uint64_t)at + length;
    for (size_t each = 0; each < lost.count; each++)
        if (lost.pages[each] < (uint64_t)at / PAGE || lost.pages[each] > (end - 1) / PAGE)
            lost.pages[left++] = lost.pages[each];
    if (left < lost.count) {
        lost.count = left;
        write_lost(id, &lost);
    }
    free(lost.pages);
    pthread_mutex_unlock(&lock);
}

static int pass_on(const char *name, int fd)
{
    int (*next)(int) = (int (*)(int))dlsym(RTLD_NEXT, name);
    return next(fd);
}

int fsync(int fd) { return ours(fd) ? keep(fd) : pass_on("fsync", fd); }
int fdatasync(int fd) { return ours(fd) ? keep(fd) : pass_on("fdatasync", fd); }

int syncfs(int fd)
{
    char id[80];
    if (!ours(fd))
        return pass_on("syncfs", fd);
    int top = open(live, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (top < 0 || powercut_id(top, "", id) < 0)
        die(live);
    pthread_mutex_lock(&lock);
    gate(top);
    keep_directory(top, id, 1);
    pthread_mutex_unlock(&lock);
    close(top);
    return 0;
}

void sync(void)
{
    errno = ENOSYS;
    die("sync() is not modelled");
}
