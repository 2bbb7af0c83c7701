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
 * Each shadow is replaced by rename, so a kill during a sync leaves the state before or after it. (What a sector that
 * was under way looks like is powercut.py's torn mode.) Bytes that another thread writes during a sync may be kept too.
 * sync() and syncfs() end the program: nobody here should call them, and ignoring them would be a lie. O_SYNC, O_DSYNC
 * and msync() are ignored, which loses more than a disk would.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const char *live, *shadow;
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

static void keep_file(int fd, const char *id)
{
    char self[64], temporary[PATH_MAX], piece[65536];
    snprintf(self, sizeof self, "/proc/self/fd/%d", fd);
    int from = open(self, O_RDONLY | O_CLOEXEC);
    if (from < 0)
        die(self);
    int into = begin(temporary);
    ssize_t got;
    while ((got = read(from, piece, sizeof piece)) > 0)
        put(into, piece, (size_t)got);
    if (got < 0)
        die("read");
    close(from);
    finish(into, temporary, "files", id);
}

static void keep_directory(int fd, const char *id, int deep)
{
    char temporary[PATH_MAX], child[80];
    int again = openat(fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *listing = again < 0 ? NULL : fdopendir(again);
    if (!listing)
        die("opendir");
    int into = deep ? -1 : begin(temporary);
    struct dirent *entry;
    while ((entry = readdir(listing))) {
        struct stat found;
        if (!strcmp(entry->d_name, ".") || !strcmp(entry->d_name, ".."))
            continue;
        if (fstatat(fd, entry->d_name, &found, AT_SYMLINK_NOFOLLOW) < 0 || powercut_id(fd, entry->d_name, child) < 0)
            continue; /* gone meanwhile */
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
            put(into, S_ISDIR(found.st_mode) ? "d" : "f", 1);
            put(into, child, strlen(child));
            put(into, "/", 1);
            put(into, entry->d_name, strlen(entry->d_name) + 1);
        }
    }
    closedir(listing);
    if (deep)
        keep_directory(fd, id, 0);
    else
        finish(into, temporary, "dirs", id);
}

__attribute__((constructor))
static void prepare(void)
{
    char path[PATH_MAX], id[80];
    live = getenv("POWERCUT_DIR");
    shadow = getenv("POWERCUT_SHADOW");
    if (!live || !shadow)
        return;
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
    if (!live || !shadow)
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
    if (S_ISDIR(found.st_mode))
        keep_directory(fd, id, 0);
    else
        keep_file(fd, id);
    pthread_mutex_unlock(&lock);
    return 0;
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
    if (ours(fd)) {
        errno = ENOSYS;
        die("syncfs() is not modelled");
    }
    return pass_on("syncfs", fd);
}

void sync(void)
{
    errno = ENOSYS;
    die("sync() is not modelled");
}
