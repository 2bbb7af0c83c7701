# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
# cython: embedsignature=True, auto_pickle=False, freethreading_compatible=False
"""The journal: every durable change of a loop turn is one batch, one write, one fdatasync, many acks.

Two buffers, two threads. The loop thread appends records to the gathering buffer; at the end of its turn it gives the
buffer to the writer, if the writer is idle, and takes the other one. While the writer writes and syncs batch n, batch
n+1 gathers. When n is done, the writer signals the eventfd; the loop advances `durable`, releases the acks that waited
for n, and hands over n+1. So the size of a batch adapts to the load and to the speed of the disk, without a setting.
The writer never needs the GIL; one mutex, which no thread holds during a system call, protects the shared state.

                 submit/poll: hand over                  write, sync
        gathering ────────────────────► writing (pending) ──────────► written ──poll──► durable
            ▲                                  │    ▲
            └────────── buffers swap ──────────┘    └── no space: again after 0.5 s, the same batch

It is one file because both threads change the same state, protected by that mutex.

What may fail:
  - A shortage (ENOSPC, EDQUOT, EFBIG; EMFILE and ENFILE when a file is opened). The file is truncated to its size
    before the batch, files kept for reuse are removed, and the same batch is tried again until it fits. `durable` does
    not advance meanwhile, so nothing is acknowledged that could be lost, and the journal continues when there is space.
  - fdatasync, or any other error of a write. This is final. After a failed sync the kernel may have dropped the dirty
    pages and marked them clean, so a second sync that succeeds proves nothing. poll() and submit() raise StorageError.

Files. rotate() requests a new file at the next batch boundary; the writer begins one by itself when the current file
has reached its size. The writer writes and syncs the header under a temporary name, renames the file and syncs the
directory, so a journal file never exists without a complete header. retire() removes files, and keeps some as the next
ones to be written: overwriting allocated blocks changes no metadata, and fdatasync then costs about 0.6 of what it
costs while a file grows (ext4, measured; docs/internals/storage.md). In a recycled file, and in one that has zeros in
front of its batches, an end mark of 32 zero bytes follows the last batch.
"""
cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from libc.errno cimport EDQUOT, EFBIG, EINTR, EIO, EMFILE, ENFILE, ENOENT, ENOMEM, ENOSPC, errno
from libc.stdint cimport uintptr_t
from libc.stdio cimport snprintf
from libc.stdlib cimport free, malloc, realloc
from libc.string cimport memcpy, memmove, memset

import os

from fluxmq._core.debug cimport ensure
from fluxmq._core.errors import StorageError, UsageError

from fluxmq._core.disk.journal_format cimport (
    BATCH_BYTES_MAX,
    BATCH_HEADER_BYTES,
    FILE_HEADER_BYTES,
    RECORD_HEADER_BYTES,
    crc_seed,
    encode_file_header,
    file_id_of,
    put_u32_le,
    seal_batch,
)
from fluxmq._core.disk.journal_system cimport (
    AT_FDCWD, EFD_CLOEXEC, EFD_NONBLOCK, O_CLOEXEC, O_CREAT, O_DIRECTORY, O_RDONLY, O_RDWR, O_TRUNC, close_fd, eventfd,
    fluxmq_close, fluxmq_cond_init, fluxmq_cond_wait_until, fluxmq_fdatasync, fluxmq_fsync, fluxmq_ftruncate,
    fluxmq_monotonic, fluxmq_open, fluxmq_pwrite, fluxmq_rename, fluxmq_size, fluxmq_unlink, pthread_cond_broadcast,
    pthread_cond_destroy, pthread_cond_init, pthread_cond_signal, pthread_cond_wait, pthread_mutex_destroy,
    pthread_mutex_init, pthread_mutex_lock, pthread_mutex_unlock, read_fd, write_fd,
)
from fluxmq._core.wire.sizes cimport fit_u32

# Number of retired files kept for reuse. Under full load a checkpoint retires several at once, and syncing a growing
# file takes many times as long as syncing one with allocated blocks.
cdef const char* SPARE_NAMES[SPARES_MAX]
SPARE_NAMES[:] = [b"journal.spare", b"journal.spare1", b"journal.spare2", b"journal.spare3"]
cdef const char* NEXT_NAME = b"journal.next"

cdef enum:
    NAME_BYTES = 32
    BUFFER_BYTES_MIN = 64 * 1024
    # A buffer that was enlarged by a burst is freed after it.
    BUFFER_BYTES_KEPT_MAX = 4 * 1024 * 1024
    AHEAD_BYTES = 1024 * 1024           # zeros before a growing file's batches, and up to which batch they pay
    AHEAD_BATCH_MAX = 32 * 1024

cdef uint8_t ZEROS[AHEAD_BYTES]         # never written: one page of memory

cdef int64_t SECOND = 1_000_000_000
cdef int64_t RETRY_INTERVAL = 500_000_000

cdef journal_file_ops ops_of(const journal_file_ops* given) noexcept:
    """The system's calls, except those given."""
    cdef journal_file_ops ops
    ops.pwrite = given.pwrite if given and given.pwrite else fluxmq_pwrite
    ops.fdatasync = given.fdatasync if given and given.fdatasync else fluxmq_fdatasync
    ops.fsync = given.fsync if given and given.fsync else fluxmq_fsync
    ops.ftruncate = given.ftruncate if given and given.ftruncate else fluxmq_ftruncate
    ops.open = given.open if given and given.open else fluxmq_open
    ops.rename = given.rename if given and given.rename else fluxmq_rename
    ops.unlink = given.unlink if given and given.unlink else fluxmq_unlink
    ops.close = given.close if given and given.close else fluxmq_close
    ops.size = given.size if given and given.size else fluxmq_size
    ops.monotonic = given.monotonic if given and given.monotonic else fluxmq_monotonic
    return ops

# Names of shortages by errno.
SHORTAGES = {ENOSPC: "the disk is full", EDQUOT: "the disk quota is used up",
             EFBIG: "files may not grow (ulimit -f, or the file system)",
             EMFILE: "the process has no file descriptors left (ulimit -n)",
             ENFILE: "the system has no file descriptors left"}

globals().update(JOURNAL_OK=JOURNAL_OK, JOURNAL_FULL=JOURNAL_FULL, JOURNAL_FAILED=JOURNAL_FAILED)


cdef inline bint passes(int error) noexcept nogil:
    """Whether this error is a shortage, which goes away when there is space again."""
    return error == ENOSPC or error == EDQUOT or error == EFBIG or error == EMFILE or error == ENFILE


cdef inline void name_of(char* into, uint64_t number) noexcept nogil:
    snprintf(into, NAME_BYTES, b"journal-%016llx.log", <unsigned long long>number)


cdef bint grow(batch_buffer* buffer, size_t needed) noexcept nogil:
    cdef size_t room = buffer.room if buffer.room else <size_t>BUFFER_BYTES_MIN
    while room < needed:
        room *= 2
    cdef uint8_t* data = <uint8_t*>realloc(buffer.data, room)
    if data == NULL:
        return False
    buffer.data = data
    buffer.room = room
    return True


cdef inline void empty(batch_buffer* buffer) noexcept nogil:
    if buffer.room > BUFFER_BYTES_KEPT_MAX:
        free(buffer.data)
        buffer.data = NULL
        buffer.room = 0
    buffer.length = BATCH_HEADER_BYTES
    buffer.records = 0


@cython.final
cdef class Journal:
    """Handle. The journal in one directory; the storage ring runs `run` on a thread of its own.

    directory: exists already, and belongs to this process (the caller locks it).
    identity: 64 random bits; with a file's number they make its id, so a restart must bring new ones.
    first_batch, first_file: the first numbers to use: one above the last that recovery found.
    files: (file number, first batch, last batch, bytes) of files that recovery read, oldest first, for retire().
    mode: "fsync" (a batch is durable once fdatasync returned) or "buffered" (once written; fdatasync every `interval`
        seconds on the same thread: kill -9 loses nothing, loss of power may lose the last interval).
    file_bytes_max: a file that has grown to this is followed by a new one, rotate() or not.
    recycle_bytes_max: a retired file larger than this is deleted, not used again.
    file_ops: address of a C struct journal_file_ops (disk/journal.pxd), 0 for the system's calls. For tests.

    Raises StorageError when the first file cannot be made.
    """

    def __cinit__(self):
        self.event_fd = self.directory_fd = self.file_fd = -1
        self.gather.length = self.writing.length = BATCH_HEADER_BYTES
        self.closed = True
        self.recycling = True
        pthread_mutex_init(&self.lock, NULL)
        fluxmq_cond_init(&self.wake)
        pthread_cond_init(&self.writer_ended, NULL)

    def __init__(self, directory, *, uint64_t identity, uint64_t first_batch=1, uint64_t first_file=1, files=(),
                 str mode="fsync", double interval=1.0, uint64_t file_bytes_max=64 * 1024 * 1024,
                 uint64_t recycle_bytes_max=128 * 1024 * 1024, uintptr_t file_ops=0):
        if self.event_fd != -1:
            raise UsageError("a Journal is opened once")
        if mode not in ("fsync", "buffered"):
            raise UsageError(f"the journal's mode is 'fsync' or 'buffered', not {mode!r}")
        if first_batch < 1 or first_file < 1:
            raise UsageError("batches and files are numbered from 1")
        if not 0.0 < interval <= 86400.0:
            raise UsageError("the interval of syncs is above 0 and at most a day")
        self.directory = os.fsdecode(directory)
        self.identity = identity
        self.buffered = mode == "buffered"
        self.interval = <int64_t>(interval * SECOND)
        self.file_bytes_max = file_bytes_max
        self.recycle_bytes_max = recycle_bytes_max
        self.ops = ops_of(<const journal_file_ops*>file_ops)
        self.gathering = first_batch
        self.durable = self.written = self.synced = first_batch - 1
        for number, first, last, size in files:
            if self.remember_old(number, first, last, size) != 0:
                raise MemoryError
        cdef bytes path = os.fsencode(self.directory)
        cdef int64_t opened = self.ops.open(AT_FDCWD, path, O_RDONLY | O_DIRECTORY | O_CLOEXEC, 0)
        if opened < 0:
            raise StorageError(f"cannot open the journal's directory {self.directory}: {os.strerror(-opened)}")
        self.directory_fd = <int>opened      # fits: a descriptor
        self.event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)
        if self.event_fd < 0:
            raise StorageError(f"cannot make an eventfd: {os.strerror(errno)}")
        # Files that were half made, or retired and not yet reused, when the broker crashed.
        cdef uint32_t slot
        for slot in range(SPARES_MAX):
            self.ops.unlink(self.directory_fd, SPARE_NAMES[slot])
        self.ops.unlink(self.directory_fd, NEXT_NAME)
        cdef int error = self.open_file(first_file, first_batch, NEXT_NAME)
        if error:
            raise StorageError(f"cannot make a journal file in {self.directory}: "
                               f"{self.error_call.decode()}: {os.strerror(error)}")
        self.began(first_file, first_batch)
        self.file_bytes = self.current_bytes
        self.closed = False

    def __dealloc__(self):
        # Happens only if close() was not called; run() holds a reference, so no thread is running here.
        self.close_files()
        free(self.gather.data)
        free(self.writing.data)
        free(self.old)
        pthread_cond_destroy(&self.writer_ended)
        pthread_cond_destroy(&self.wake)
        pthread_mutex_destroy(&self.lock)

    # ---------------------------------------------------------------- the loop thread

    cdef uint8_t* reserve(self, uint8_t kind, uint32_t length) except NULL:
        cdef size_t end = self.gather.length + RECORD_HEADER_BYTES + length
        if self.closed:
            raise UsageError("the journal is closed")
        # The end mark needs room behind the records.
        if end + BATCH_HEADER_BYTES > self.gather.room:
            if end > BATCH_BYTES_MAX:
                raise StorageError(f"more than {BATCH_BYTES_MAX} bytes wait for the journal in {self.directory}: "
                                   f"its disk does not keep up ({self.status_text})")
            if not grow(&self.gather, end + BATCH_HEADER_BYTES):
                raise MemoryError
        cdef uint8_t* at = self.gather.data + self.gather.length
        at[0] = kind
        put_u32_le(at + 1, length)
        self.gather.length = end
        self.gather.records += 1
        return at + RECORD_HEADER_BYTES

    def append(self, uint8_t kind, bytes body not None):
        """Append one record to the gathering batch; returns that batch's number.

        Raises UsageError when closed, StorageError when more waits than one batch may hold.
        """
        cdef size_t length = <size_t>PyBytes_GET_SIZE(body)
        if length > BATCH_BYTES_MAX:
            raise UsageError(f"a record of {length} bytes is larger than a batch may be ({BATCH_BYTES_MAX})")
        memcpy(self.reserve(kind, fit_u32(length)), PyBytes_AS_STRING(body), length)
        return self.gathering

    cdef int hand_over(self) noexcept nogil:
        """Under the lock, writer idle: exchanges the buffers if there is anything to write."""
        cdef batch_buffer other
        if self.pending or self.gather.records == 0 or self.state == JOURNAL_FAILED:
            return 0
        other = self.writing
        self.writing = self.gather
        self.gather = other
        empty(&self.gather)
        self.writing_number = self.gathering
        self.handed_bytes = self.writing.length - BATCH_HEADER_BYTES
        self.gathering += 1
        self.pending = True
        pthread_cond_signal(&self.wake)
        return 1

    cpdef int submit(self) except -1:
        """End of a loop turn: 1 if the gathered batch was handed to the writer, 0 if it has to wait for poll().

        Raises StorageError once the writer has failed.
        """
        if self.gather.records == 0:
            return 0
        if self.status == JOURNAL_FAILED:
            raise self.failure()
        cdef int handed
        pthread_mutex_lock(&self.lock)
        handed = self.hand_over()
        pthread_mutex_unlock(&self.lock)
        return handed

    cpdef int poll(self) except -1:
        """event_fd is readable: move `durable`, hand over what gathered. 1 if `durable` moved.

        Raises StorageError once the writer has failed for good, from then on at every call.
        """
        cdef uint64_t signals
        cdef uint64_t before = self.durable
        if self.closed:
            raise UsageError("the journal is closed")
        read_fd(self.event_fd, &signals, 8)
        pthread_mutex_lock(&self.lock)
        ensure(self.written >= self.durable and self.written < self.gathering)
        self.durable = self.written
        self.status = self.state
        self.file_bytes = self.current_bytes
        if not self.pending:
            self.handed_bytes = 0
        self.hand_over()
        pthread_mutex_unlock(&self.lock)
        if self.status == JOURNAL_FAILED:
            if self.durable == before:
                raise self.failure()
            # Acknowledgements of durable batches come first; the eventfd is still readable for the error.
            self.notify()
        return self.durable != before

    cpdef size_t backlog(self) noexcept:
        """Bytes of records gathered or being written that are not durable yet."""
        return self.gather.length - BATCH_HEADER_BYTES + self.handed_bytes

    @property
    def status_text(self):
        """What `status` means, with the system's error text: for logs and for /ready."""
        if self.status == JOURNAL_OK:
            return "ok"
        if self.status == JOURNAL_FULL:
            return f"waiting, {self.shortage}: {self.error_call.decode()}"
        return f"failed: {self.error_call.decode()}: {os.strerror(self.error)}"

    @property
    def shortage(self):
        """The shortage while `status` is JOURNAL_FULL, with the system's error text; else ""."""
        if self.status != JOURNAL_FULL:
            return ""
        return f"{SHORTAGES.get(self.error, 'something is short')}: {os.strerror(self.error)}"

    @property
    def firm(self):
        """The last batch known to be on the medium. In "fsync" mode `durable` becomes the same; in "buffered" mode this
        is behind `durable`. From any thread."""
        return self.counted(&self.synced)

    @property
    def broken(self):
        """Whether the writer has failed for good, which `status` shows only after the next poll(): the gathered batch
        is never handed over. From any thread."""
        cdef bint broken
        pthread_mutex_lock(&self.lock)
        broken = self.state == JOURNAL_FAILED
        pthread_mutex_unlock(&self.lock)
        return broken

    def hurry_sync(self):
        """In "buffered" mode: syncs what was written now, or after the batch being written, instead of at the end of
        the interval. Must be called again until `firm` has advanced far enough: a batch being written may restart the
        interval."""
        pthread_mutex_lock(&self.lock)
        if self.unsynced:
            self.sync_due = 1
            pthread_cond_signal(&self.wake)
        pthread_mutex_unlock(&self.lock)

    # Counters since this object was made; from any thread, at any time. See model/metrics.py.

    @property
    def batches_total(self):
        """Batches written."""
        return self.counted(&self.count_batches)

    @property
    def bytes_total(self):
        """Bytes of these batches, including their headers."""
        return self.counted(&self.count_bytes)

    @property
    def syncs(self):
        """Successful calls of fdatasync for batches."""
        return self.counted(&self.count_syncs)

    @property
    def sync_ns(self):
        """Duration of these calls in nanoseconds."""
        return self.counted(&self.count_sync_ns)

    cdef uint64_t counted(self, const uint64_t* counter) noexcept:
        cdef uint64_t value
        pthread_mutex_lock(&self.lock)
        value = counter[0]
        pthread_mutex_unlock(&self.lock)
        return value

    cdef object failure(self):
        return StorageError(f"the journal in {self.directory} cannot be written any more "
                            f"({self.error_call.decode()}: {os.strerror(self.error)}); nothing is acknowledged from "
                            f"here on. Check the disk, then restart: what was acknowledged is recovered")

    def rotate(self):
        """Begin a new file at the next batch boundary; returns the last batch in the files before it.

        When `durable` has reached that number and the view contains everything up to it, retire() may be called with
        it. While an earlier request is pending, it stays valid and its number is returned again.
        """
        cdef uint64_t last
        if self.closed:
            raise UsageError("the journal is closed")
        pthread_mutex_lock(&self.lock)
        if self.rotate_before != 0:
            last = self.rotate_before - 1
        else:
            last = self.gathering - 1
            if self.current_first != self.gathering:
                self.rotate_before = self.gathering
                pthread_cond_signal(&self.wake)
        pthread_mutex_unlock(&self.lock)
        return last

    # ---------------------------------------------------------------- any other thread, one at a time

    def retire(self, uint64_t upto_batch):
        """Remove the files that only hold batches up to `upto_batch`; returns how many. Makes system calls: call it
        from an executor. The file that is written now is never removed. While `recycling` is off, nothing is kept to be
        written again.

        Raises StorageError if a file cannot be removed.
        """
        cdef int removed = 0
        cdef int error = 0
        cdef uint32_t made = 0
        cdef uint32_t slot
        cdef old_file file
        with nogil:
            if not self.recycling:
                self.drop_spares()
            while error == 0:
                pthread_mutex_lock(&self.lock)
                if self.old_count == 0 or self.old[0].last > upto_batch:
                    pthread_mutex_unlock(&self.lock)
                    break
                file = self.old[0]
                slot = 0 if self.recycling and file.bytes <= self.recycle_bytes_max else SPARES_MAX
                while slot < SPARES_MAX and (self.spares | made) >> slot & 1:
                    slot += 1
                pthread_mutex_unlock(&self.lock)
                # Oldest first, so that the remaining files have no gap even after a crash here.
                error = self.remove_old(&file, slot)
                if error == 0:
                    made |= (1 << slot) & ((1 << SPARES_MAX) - 1)
                    removed += 1
                    pthread_mutex_lock(&self.lock)
                    self.old_count -= 1
                    memmove(self.old, self.old + 1, self.old_count * sizeof(old_file))
                    pthread_mutex_unlock(&self.lock)
            if removed and error == 0:
                error = self.sync_directory()
            if made and error == 0:
                # Only now: if the file's old name reappeared after a power failure, its new content would be found
                # under it.
                pthread_mutex_lock(&self.lock)
                self.spares |= made
                pthread_mutex_unlock(&self.lock)
        if error:
            raise StorageError(f"cannot remove journal files in {self.directory}: {os.strerror(error)}")
        return removed

    cdef int remove_old(self, old_file* file, uint32_t slot) noexcept nogil:
        cdef char name[NAME_BYTES]
        name_of(name, file.number)
        cdef int64_t answer = -1
        if slot < SPARES_MAX:
            answer = self.ops.rename(self.directory_fd, name, SPARE_NAMES[slot])
        if answer != 0:
            answer = self.ops.unlink(self.directory_fd, name)
        return 0 if answer == 0 or answer == -ENOENT else <int>-answer      # fits: an errno

    cdef bint drop_spares(self) noexcept nogil:
        """Deletes the retired files kept for reuse. False: there were none. The writer may look for one meanwhile, and
        then makes a new file."""
        cdef uint32_t slot
        cdef uint32_t had
        pthread_mutex_lock(&self.lock)
        had = self.spares
        self.spares = 0
        pthread_mutex_unlock(&self.lock)
        for slot in range(SPARES_MAX):
            if had >> slot & 1:
                self.ops.unlink(self.directory_fd, SPARE_NAMES[slot])
        return had != 0

    # ---------------------------------------------------------------- the writer's thread

    def run(self):
        """Write batches until close(); blocks, without the GIL. Runs on a thread that the caller owns.

        Returns early once the writer has failed for good; poll() tells. Returns at once if close() came before it.
        Raises UsageError if another thread is in here.
        """
        cdef int refused
        with nogil:
            refused = self.serve(False)
        if refused:
            raise UsageError("the journal's writer runs already")

    def end(self) -> bool:
        """Asks the writer to write and sync everything gathered, and to end; whether it has. Does not block, however
        long the disk takes, and close() does not wait for the writer once this was true. Nothing may be appended from
        the first call on, and no other call may follow but this one and close()."""
        cdef bint running
        pthread_mutex_lock(&self.lock)
        self.stopping = True
        pthread_cond_broadcast(&self.wake)
        running = self.running
        pthread_mutex_unlock(&self.lock)
        return not running

    def close(self):
        """Write and sync everything gathered, end run(), close the files. Blocks. No other call may follow, but close.

        Raises StorageError if something gathered could not be written: it was never durable, so never acknowledged.
        """
        cdef bint drained
        if self.closed:
            return
        with nogil:
            pthread_mutex_lock(&self.lock)
            self.stopping = True
            pthread_cond_broadcast(&self.wake)
            while self.running:
                pthread_cond_wait(&self.writer_ended, &self.lock)
            pthread_mutex_unlock(&self.lock)
            # If no thread ran the writer, or it ended early, this thread writes the rest.
            self.serve(True)
        self.closed = True
        self.status = self.state
        self.durable = self.written
        drained = not self.pending and self.gather.records == 0
        self.close_files()
        if self.status == JOURNAL_FAILED:
            raise self.failure()
        if not drained:
            raise StorageError(f"the journal in {self.directory} closed with {self.backlog()} bytes not written "
                               f"({self.status_text}); none of it had been acknowledged")

    cdef void close_files(self) noexcept:
        if self.file_fd >= 0:
            self.ops.close(self.file_fd)
        if self.directory_fd >= 0:
            self.ops.close(self.directory_fd)
        if self.event_fd >= 0:
            close_fd(self.event_fd)
        self.file_fd = self.directory_fd = self.event_fd = -1

    def work(self) -> bool:
        """Does one step of run() without waiting: for a caller that drives the writer itself instead of running run()
        in a thread. False: there is nothing to do.

        While `status` is JOURNAL_FULL each call retries once; run() waits half a second between retries.
        """
        cdef bint did
        pthread_mutex_lock(&self.lock)
        did = self.step(False)
        pthread_mutex_unlock(&self.lock)
        return did

    cdef int serve(self, bint closing) noexcept nogil:
        pthread_mutex_lock(&self.lock)
        if self.stopping and not closing:
            # The thread began late: close() does the rest, or did, and closes the files.
            pthread_mutex_unlock(&self.lock)
            return 0
        if self.running:
            pthread_mutex_unlock(&self.lock)
            return -1
        self.running = True
        while self.step(True):
            pass
        self.running = False
        pthread_cond_broadcast(&self.writer_ended)
        pthread_mutex_unlock(&self.lock)
        return 0

    cdef bint step(self, bint waits) noexcept nogil:
        """Does one step under the lock, which is released meanwhile. False: nothing is left to do, or, without `waits`,
        nothing can be done now."""
        cdef int error
        cdef bint due
        if self.state == JOURNAL_FAILED:
            return False
        due = self.unsynced and (self.stopping or self.ops.monotonic() >= self.sync_due)
        if due:
            pthread_mutex_unlock(&self.lock)
            error = self.sync_file()
            pthread_mutex_lock(&self.lock)
            if error:
                self.settle(error)
        elif self.rotate_before != 0 and not (self.pending and self.writing_number < self.rotate_before):
            error = self.rotate_file()
            if error == 0:
                self.rotate_before = 0
            self.settle(error)
        elif self.pending:
            pthread_mutex_unlock(&self.lock)
            error = self.write_batch()
            pthread_mutex_lock(&self.lock)
            if error == 0:
                self.written = self.writing_number
                self.current_bytes += self.writing.length
                if self.current_bytes >= self.file_bytes_max and self.rotate_before == 0:
                    self.rotate_before = self.writing_number + 1
                self.count_batches += 1
                self.count_bytes += self.writing.length
                self.pending = False
            self.settle(error)
            if error == 0 and self.stopping:
                self.hand_over()
        elif self.stopping:
            # The loop thread is in close(), so its gathered batch can be taken.
            return self.hand_over() == 1
        elif not waits:
            return False
        elif self.unsynced:
            self.wait_until(self.sync_due)
        else:
            pthread_cond_wait(&self.wake, &self.lock)
        if self.state == JOURNAL_FULL:
            pthread_mutex_unlock(&self.lock)
            due = self.drop_spares()
            pthread_mutex_lock(&self.lock)
            if due:
                return True     # there is space now
            if self.stopping or not waits:
                return False
            self.wait_until(self.ops.monotonic() + RETRY_INTERVAL)
        return True

    cdef void wait_until(self, int64_t deadline) noexcept nogil:
        fluxmq_cond_wait_until(&self.wake, &self.lock, deadline)

    cdef void settle(self, int error) noexcept nogil:
        """Under the lock: notes the result and notifies the loop."""
        cdef int state = JOURNAL_OK
        if error:
            state = JOURNAL_FULL if passes(error) else JOURNAL_FAILED
            self.error = error
        if error == 0 or state != self.state:
            self.state = state
            self.notify()

    cdef void notify(self) noexcept nogil:
        cdef uint64_t one = 1
        # EAGAIN means that the counter is at its maximum, so the loop is notified already.
        write_fd(self.event_fd, &one, 8)

    cdef int write_all(self, int fd, const uint8_t* data, size_t length, uint64_t at) noexcept nogil:
        cdef int64_t done
        while length:
            done = self.ops.pwrite(fd, data, length, <int64_t>at)
            if done == -EINTR:
                continue
            if done < 0:
                self.error_call = b"write"
                return <int>-done      # fits: an errno
            if done == 0:
                # Regular files do not do this; it is treated as "no space", so that it can neither loop nor count as
                # written.
                self.error_call = b"write"
                return ENOSPC
            data += done
            length -= <size_t>done
            at += <uint64_t>done
        return 0

    cdef int write_batch(self) noexcept nogil:
        """Returns 0 or errno. After an error nothing of the batch counts, and the next attempt begins at the same
        position."""
        cdef size_t length = self.writing.length
        cdef uint64_t at = self.current_bytes
        cdef int error
        # Batch numbers are consecutive, and the end mark, which is written behind the records, has room.
        ensure(self.writing_number == self.written + 1 and length + BATCH_HEADER_BYTES <= self.writing.room)
        seal_batch(self.writing.data, self.writing_number, self.synced, fit_u32(length - BATCH_HEADER_BYTES),
                   self.writing.records, self.file_seed)
        if at + length < self.file_physical:
            memset(self.writing.data + length, 0, BATCH_HEADER_BYTES)
            length += BATCH_HEADER_BYTES
        elif length <= AHEAD_BATCH_MAX and self.recycling:
            self.write_ahead(at + length)
        error = self.write_all(self.file_fd, self.writing.data, length, at)
        if error:
            # Frees the space of a partial batch, but not what a recycled file had before, which others could take. An
            # error does not matter: the next attempt overwrites the same bytes.
            self.ops.ftruncate(self.file_fd, <int64_t>(at if at > self.file_physical else self.file_physical))
            return error
        if at + length > self.file_physical:
            self.file_physical = at + length
        self.unsynced = True
        if not self.buffered:
            return self.sync_file()
        if self.sync_due == 0:
            self.sync_due = self.ops.monotonic() + self.interval
        return 0

    cdef void write_ahead(self, uint64_t at) noexcept nogil:
        """Writes zeros from here on, so that the next small batches overwrite allocated blocks, which makes syncs
        cheap. They also serve as an end mark. Without space for them nothing is written."""
        cdef uint64_t end = min(at + AHEAD_BYTES, self.file_bytes_max)
        if at >= end:
            return
        if self.write_all(self.file_fd, ZEROS, <size_t>(end - at), at) == 0:
            self.file_physical = end
        else:
            self.ops.ftruncate(self.file_fd, <int64_t>at)

    cdef int sync_file(self) noexcept nogil:
        """fdatasync of the current file. Every error is final: see the top of this file."""
        cdef int64_t began = self.ops.monotonic()
        cdef int error = self.sync_data(self.file_fd)
        if error:
            return error
        pthread_mutex_lock(&self.lock)
        self.count_syncs += 1
        self.count_sync_ns += <uint64_t>(self.ops.monotonic() - began)
        self.synced = self.written if self.buffered else self.writing_number
        self.unsynced = False
        self.sync_due = 0
        pthread_mutex_unlock(&self.lock)
        return 0

    cdef int sync_data(self, int fd) noexcept nogil:
        cdef int64_t answer = self.ops.fdatasync(fd)
        while answer == -EINTR:
            answer = self.ops.fdatasync(fd)
        if answer < 0:
            self.error_call = b"fdatasync"
            return EIO if passes(<int>-answer) else <int>-answer      # fits: an errno
        return 0

    cdef int sync_directory(self) noexcept nogil:
        cdef int64_t answer = self.ops.fsync(self.directory_fd)
        while answer == -EINTR:
            answer = self.ops.fsync(self.directory_fd)
        if answer < 0:
            self.error_call = b"fsync"
            return EIO if passes(<int>-answer) else <int>-answer      # fits: an errno
        return 0

    cdef int open_file(self, uint64_t number, uint64_t first, const char* made) noexcept nogil:
        """Makes journal file `number` from the one called `made`, NEXT_NAME for a new one, and makes it the current
        file. Returns 0, or errno, and then the old file stays the current one."""
        cdef char name[NAME_BYTES]
        cdef uint8_t head[FILE_HEADER_BYTES + BATCH_HEADER_BYTES]
        cdef uint64_t file_id = file_id_of(self.identity, number)
        cdef size_t length = FILE_HEADER_BYTES
        cdef int error = 0
        cdef int flags = O_RDWR | O_CLOEXEC | (O_CREAT | O_TRUNC if made == NEXT_NAME else 0)
        cdef int64_t answer = self.ops.open(self.directory_fd, made, flags, 0o640)
        while answer == -EINTR:
            answer = self.ops.open(self.directory_fd, made, flags, 0o640)
        if answer < 0:
            self.error_call = b"open"
            return <int>-answer      # fits: an errno
        cdef int fd = <int>answer      # fits: a descriptor
        cdef int64_t physical = self.ops.size(fd)
        if physical > FILE_HEADER_BYTES:
            length += BATCH_HEADER_BYTES
        memset(head, 0, sizeof(head))
        encode_file_header(head, number, first, file_id)
        error = self.write_all(fd, head, length, 0)
        if error == 0:
            error = self.sync_data(fd)
        name_of(name, number)
        if error == 0:
            error = <int>-self.ops.rename(self.directory_fd, made, name)
            if error:
                self.error_call = b"rename"
        if error == 0:
            error = self.sync_directory()
        if error:
            self.ops.close(fd)
            return error
        if self.file_fd >= 0:
            self.ops.close(self.file_fd)
        self.file_fd = fd
        self.file_seed = crc_seed(file_id)
        self.file_physical = <uint64_t>physical if physical > <int64_t>length else length
        return 0

    cdef void began(self, uint64_t number, uint64_t first) noexcept nogil:
        """Under the lock: called when open_file() has succeeded."""
        self.current_number = number
        self.current_first = first
        self.current_bytes = FILE_HEADER_BYTES

    cdef int rotate_file(self) noexcept nogil:
        """Under the lock, which is released for the system calls: only the writer changes what they use."""
        cdef uint64_t first = self.rotate_before
        cdef uint64_t old_number = self.current_number
        cdef uint64_t old_first = self.current_first
        cdef uint64_t old_bytes = self.file_physical
        cdef uint32_t slot = 0
        cdef int error = 0
        while slot < SPARES_MAX and not self.spares >> slot & 1:
            slot += 1
        pthread_mutex_unlock(&self.lock)
        # The existence of a later file implies that earlier ones are complete, so they must be on the medium before it.
        if self.unsynced:
            error = self.sync_file()
        if error == 0:
            error = self.open_file(old_number + 1, first, SPARE_NAMES[slot] if slot < SPARES_MAX else NEXT_NAME)
            if error == ENOENT and slot < SPARES_MAX:
                # The kept file has been deleted by a user: a new one is made.
                error = self.open_file(old_number + 1, first, NEXT_NAME)
        pthread_mutex_lock(&self.lock)
        if error == 0:
            self.spares &= ~(<uint32_t>1 << slot)
            self.began(old_number + 1, first)
            error = self.remember_old(old_number, old_first, first - 1, old_bytes)
        return error

    cdef int remember_old(self, uint64_t number, uint64_t first, uint64_t last, uint64_t size) noexcept nogil:
        cdef old_file* room
        if self.old_count == self.old_room:
            room = <old_file*>realloc(self.old, (self.old_room + 16) * sizeof(old_file))
            if room == NULL:
                self.error_call = b"realloc"
                return ENOMEM
            self.old = room
            self.old_room += 16
        self.old[self.old_count].number = number
        self.old[self.old_count].first = first
        self.old[self.old_count].last = last
        self.old[self.old_count].bytes = size
        self.old_count += 1
        return 0
