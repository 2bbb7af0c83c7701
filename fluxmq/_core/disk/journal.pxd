# The journal: the node's only commit point. This file has its interface for C; disk/journal.pyx describes the threads
# and the reasons, disk/journal_format.pyx the bytes on disk.
from libc.stddef cimport size_t
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

from fluxmq._core.disk.journal_system cimport pthread_cond_t, pthread_mutex_t


# The system calls of the journal, which tests replace to simulate a faulty disk. Each returns what the call of its name
# returns, or minus errno instead of -1. NULL stands for the system's own.
cdef struct journal_file_ops:
    int64_t (*pwrite)(int fd, const void* data, size_t length, int64_t at) noexcept nogil
    int64_t (*fdatasync)(int fd) noexcept nogil
    int64_t (*fsync)(int fd) noexcept nogil
    int64_t (*ftruncate)(int fd, int64_t length) noexcept nogil
    int64_t (*open)(int directory, const char* name, int flags, unsigned int mode) noexcept nogil
    int64_t (*rename)(int directory, const char* old, const char* new) noexcept nogil
    int64_t (*unlink)(int directory, const char* name) noexcept nogil
    int64_t (*close)(int fd) noexcept nogil
    int64_t (*size)(int fd) noexcept nogil
    int64_t (*monotonic)() noexcept nogil           # nanoseconds; never an error


cdef enum:
    SPARES_MAX = 4


cdef struct batch_buffer:
    uint8_t* data       # the batch's header (filled when it is written), then its records; NULL before the first use
    size_t length       # bytes used, header included; BATCH_HEADER_BYTES when it holds no record
    size_t room         # bytes allocated; invariant: length + BATCH_HEADER_BYTES (the end mark) <= room
    uint32_t records


# A file that is no longer written to.
cdef struct old_file:
    uint64_t number
    uint64_t first      # its first batch and its last one
    uint64_t last
    uint64_t bytes      # its size, including stale bytes of an earlier use


cdef enum journal_status:
    JOURNAL_OK = 0
    JOURNAL_FULL = 1    # no space (or no descriptors): the writer retries until it succeeds; `durable` stands still
    JOURNAL_FAILED = 2  # the medium failed: `durable` never moves again


# Handle. Two threads use it: the loop thread, which calls everything but run() and retire(), and the writer's.
cdef class Journal:
    # ---- used by the loop thread
    cdef readonly uint64_t gathering    # the batch to which records are appended; the previous one was handed over
    cdef readonly uint64_t durable      # every batch up to this one is on the medium ("fsync") or written ("buffered")
    cdef readonly int event_fd          # eventfd, non-blocking; readable when poll() must be called
    cdef readonly uint64_t file_bytes   # size of the current file, as of the last poll()
    cdef readonly int status            # journal_status, as of the last poll()
    cdef readonly bint buffered         # the mode
    # Whether retired files are kept for reuse, and zeros written ahead; off while their space is needed.
    cdef public bint recycling
    cdef batch_buffer gather            # batch `gathering`
    cdef size_t handed_bytes            # of the batch being written; 0 once poll() saw it durable
    cdef bint closed

    # ---- shared, under `lock`
    cdef pthread_mutex_t lock
    cdef pthread_cond_t wake            # work for the writer
    cdef pthread_cond_t writer_ended    # run() has returned
    cdef bint running
    cdef bint stopping
    cdef bint pending                   # `writing` is the writer's; otherwise the loop may exchange it for `gather`
    cdef batch_buffer writing
    cdef uint64_t writing_number
    cdef uint64_t written               # becomes `durable` at the next poll()
    cdef uint64_t rotate_before         # begin a new file before this batch; 0: not requested
    cdef uint64_t current_number        # the current file
    cdef uint64_t current_first
    cdef uint64_t current_bytes         # offset of the next batch
    cdef old_file* old                  # earlier files, oldest first
    cdef size_t old_count
    cdef size_t old_room
    cdef uint32_t spares                # bit i: a retired file is kept for reuse as SPARE_NAMES[i]
    cdef int state                      # journal_status
    cdef int error                      # errno behind `state`
    cdef const char* error_call         # the call that failed
    cdef uint64_t count_batches         # counters since this object was made, for metrics: batches written,
    cdef uint64_t count_bytes           # their bytes, headers included,
    cdef uint64_t count_syncs           # fdatasyncs of batches that succeeded,
    cdef uint64_t count_sync_ns         # and their duration

    # ---- used by the writer only
    cdef int directory_fd
    cdef int file_fd
    cdef uint32_t file_seed
    cdef uint64_t file_physical         # size of the current file; above current_bytes it is stale
    cdef uint64_t synced                # last batch known to be on the medium
    cdef bint unsynced                  # buffered mode: written, not yet synced
    cdef int64_t sync_due               # monotonic nanoseconds
    cdef int64_t interval               # nanoseconds between syncs in buffered mode
    cdef uint64_t identity
    cdef uint64_t file_bytes_max
    cdef uint64_t recycle_bytes_max
    cdef journal_file_ops ops
    cdef str directory

    # Room for ONE record body of `length` bytes in the gathering batch. The caller fills exactly that many before its
    # next call on this object, after which the pointer is invalid.
    cdef uint8_t* reserve(self, uint8_t kind, uint32_t length) except NULL
    # Called at the end of a loop turn: 1 if the gathered batch went to the writer, 0 if it was empty or the writer is
    # busy (then poll() hands it over). Raises StorageError once the writer has failed.
    cpdef int submit(self) except -1
    # Called when event_fd is readable: moves `durable`, hands over the gathered batch. 1 if `durable` moved. Raises
    # StorageError once the writer has failed for good.
    cpdef int poll(self) except -1
    # Bytes of records that are not durable yet.
    cpdef size_t backlog(self) noexcept

    cdef int hand_over(self) noexcept nogil
    cdef int serve(self, bint closing) noexcept nogil
    cdef bint step(self, bint waits) noexcept nogil
    cdef void wait_until(self, int64_t deadline) noexcept nogil
    cdef void settle(self, int error) noexcept nogil
    cdef void notify(self) noexcept nogil
    cdef int write_batch(self) noexcept nogil
    cdef void write_ahead(self, uint64_t at) noexcept nogil
    cdef int sync_file(self) noexcept nogil
    cdef int sync_data(self, int fd) noexcept nogil
    cdef int sync_directory(self) noexcept nogil
    cdef bint drop_spares(self) noexcept nogil
    cdef int write_all(self, int fd, const uint8_t* data, size_t length, uint64_t at) noexcept nogil
    cdef int open_file(self, uint64_t number, uint64_t first, const char* made) noexcept nogil
    cdef void began(self, uint64_t number, uint64_t first) noexcept nogil
    cdef int rotate_file(self) noexcept nogil
    cdef int remember_old(self, uint64_t number, uint64_t first, uint64_t last, uint64_t size) noexcept nogil
    cdef int remove_old(self, old_file* file, uint32_t slot) noexcept nogil
    cdef uint64_t counted(self, const uint64_t* counter) noexcept
    cdef object failure(self)
    cdef void close_files(self) noexcept
