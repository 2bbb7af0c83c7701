"""A log: messages in order, each with an offset. In memory it consists of chunks, which the storage ring loads from and
writes to segments (docs/internals/queues.md). Knows nothing of queues, groups or protocols.

The encoding of a message is the same in a chunk, in an APPEND record and in a segment; little-endian, not aligned on
disk, 8-aligned in chunks and batches (`size` is a multiple of 8; the padding is zero):

    ┌──────┬─────────────┬────────┬─────────┬────────────┬────────────┬────────────────┬───────────┬─────┬──────────┐
    │ size │ payload len │ offset │ time_ms │ expires_at │ not_before │ properties len │ topic len │ qos │ priority │
    │ u32  │ u32         │ u64    │ i64     │ i64        │ i64        │ u32            │ u16       │ u8  │ u8       │
    └──────┴─────────────┴────────┴─────────┴────────────┴────────────┴────────────────┴───────────┴─────┴──────────┘
    time_ms is by the wall clock of who appended it, expires_at and not_before by the line's clock (Line.shift_ms).
    Outside of a log, in body_t and Record, they are by the node's.
    48 bytes, then topic, properties (as FORMAT_* in memory/message.pxd says), payload, padding.
    qos: bits 0 to 3 the QoS, bits 4 to 7 the FORMAT_*
"""
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t

from fluxmq._core.memory.commits cimport Line, ticket_t
from fluxmq._core.memory.ledger cimport Ledger, cache_t
from fluxmq._core.memory.namespace cimport Namespace
from fluxmq._core.memory.spans cimport spans_t
from fluxmq._core.memory.message cimport body_t
from fluxmq._core.queue.sizes cimport Sizes

cdef enum:
    CHUNK_BYTES_MAX = 262144    # a larger message gets a chunk of its own

cdef enum:
    CHUNK_OPEN = 0              # the tail: appended to
    CHUNK_SEALED = 1            # being exported; nothing is appended any more
    CHUNK_FLUSHED = 2           # stored in segments: it may be dropped

cdef struct record_t:
    uint32_t size               # of the whole record
    uint32_t payload_length
    uint64_t offset
    int64_t time_ms             # appended: wall clock, ms
    int64_t expires_at          # the line's clock, ms; 0 = never
    int64_t not_before          # delay logs: due time, the line's clock, ms; otherwise 0
    uint32_t properties_length
    uint16_t topic_length
    uint8_t qos                 # and format, see above
    uint8_t priority

cdef struct chunk_t:
    uint32_t refs               # the log's own and one per claim or reader
    uint32_t count
    uint32_t used               # bytes of data
    uint32_t room
    uint64_t first              # first offset that it covers; invariant: records are in ascending order of offset
    uint64_t last               # offset of the last record
    uint64_t covers             # a loaded chunk: every kept offset in [first, covers) is in it. The tail: last + 1
    uint64_t batch              # journal batch of the oldest record in it
    int64_t time_max            # latest time of its messages: of the last one, unless the clock was set back
    uint64_t used_turn          # the node's turn when it was last read, for eviction
    uint8_t state               # CHUNK_*
    bint cached                 # in the node's list of chunks that may be evicted (queue/cache.pxd)
    chunk_t* colder             # its neighbours there
    chunk_t* warmer
    cache_t* cache              # that list, and the log that has the chunk, borrowed; NULL: no log has it any more
    void* log
    uint8_t* taken              # a bit for each record that an export took; NULL: all
    uint32_t* at                # [count] byte positions in data
    uint32_t at_room
    uint8_t* data

cdef uint64_t NOTHING_WANTED

cdef class Needed:
    cdef bint is_needed(self, uint64_t offset) noexcept

cdef class Log:
    cdef readonly uint64_t number
    cdef public uint64_t disk           # its number in the view and in segments; 0: they do not have it
    cdef readonly bint volatile         # in memory only: nothing is recorded
    cdef readonly uint64_t first        # oldest offset kept
    cdef readonly uint64_t next         # offset of the next append
    cdef readonly uint64_t flushed      # offsets below are in segments, or trimmed
    cdef readonly uint64_t unflushed_bytes      # of messages in memory that are not in segments
    cdef readonly uint64_t kept_bytes   # of all messages kept, in segments or not yet
    cdef Namespace namespace            # counts these bytes too; None: the log belongs to no queue yet
    cdef readonly bint uncertain        # kept_bytes is partly estimated: restore_sizes() corrects it
    cdef readonly uint64_t memory       # bytes of all chunks
    cdef readonly uint64_t messages_in  # appended since start, and their bytes: for metrics
    cdef readonly uint64_t bytes_in
    cdef public uint64_t wanted         # an offset that a reader needs and no chunk has; else NOTHING_WANTED
    cdef public bint loading            # the storage ring is reading it
    # Contents of the view (engine/queues/recovery/store): `first` and `next` of its `l`, the end of its `k`.
    cdef public uint64_t stored_first
    cdef public uint64_t stored_next
    cdef public uint64_t kept_upto      # NOTHING_WANTED: no `k`
    cdef Sizes sizes                    # of segments at or above `first`
    cdef Ledger ledger
    cdef chunk_t** chunks               # ascending; those not flushed are at the end
    cdef uint32_t chunks_count
    cdef uint32_t chunks_room
    cdef readonly Line line               # commit line of its records
    cdef spans_t spans                  # of messages that may not be committed yet
    cdef bint positions_only            # another Log of this number has the messages: queue/lend.pyx
    cdef readonly bint retains          # what is trimmed stays until it is committed: the same
    cdef chunk_t** retained             # ascending, below all chunks
    cdef readonly uint32_t retained_count
    cdef uint32_t retained_room
    cdef uint32_t room_hint             # bytes of the next tail chunk
    cdef uint32_t found                 # index of the chunk found last

    # Appends one message, in memory and in the journal's gathering batch. Returns its offset. offset_high: the lane, in
    # the top byte of each offset of this log (given once, at construction; `first`, `next` carry it too).
    # Raises MemoryError, StorageError; then nothing was appended.
    cdef uint64_t append(self, const body_t* body, uint8_t qos, uint8_t priority,
                         int64_t not_before) except? 0xFFFFFFFFFFFFFFFF
    # The first kept record at or above `offset`, its chunk in *chunk (borrowed: hold it to keep it). NULL: there is
    # none (offset >= next), or it must be read from disk first (then `wanted` says so).
    cdef const record_t* find(self, uint64_t offset, chunk_t** chunk) noexcept
    # Now, by the clock of its line.
    cdef int64_t now(self) noexcept
    # The commit required before a message may be delivered; position 0: none.
    cdef ticket_t waits_for(self, uint64_t offset) noexcept
    # The offset of the first message that is not committed yet; `next` if all are.
    cdef uint64_t committed_end(self) noexcept
    # The record after this one in its chunk, or NULL.
    cdef const record_t* following(self, chunk_t* chunk, const record_t* record) noexcept
    cdef void keep(self, int64_t bytes) noexcept
    # The log belongs to a queue of this namespace: counts its bytes there.
    cpdef count_for(self, Namespace namespace)
    cdef chunk_t* tail_for(self, uint32_t size) except NULL
    cdef int insert(self, uint32_t at, chunk_t* chunk) except -1
    cdef int retain(self, uint32_t at, chunk_t* chunk) except -1
    cdef void take_out(self, uint32_t at) noexcept
    cdef void let_go(self, chunk_t* chunk) noexcept
    # Records the message that is the chunk's last one; if that fails it is not in the chunk.
    cdef int journal(self, chunk_t* chunk, const record_t* record) except -1
    cdef void added(self, chunk_t* chunk, const record_t* record) noexcept
    cdef uint32_t chunk_of(self, uint64_t offset) noexcept
    cdef int fill(self, chunk_t* chunk, bytes block, uint64_t first, uint64_t covers) except -1
    cdef void uncount(self, uint64_t first) noexcept
    cdef uint64_t bytes_between(self, uint64_t start, uint64_t end, bint* whole) noexcept
    # At recovery: applies the message of one APPEND, as replay() does; it need not be aligned. Raises CorruptError.
    cdef int replay_append(self, const uint8_t* message, size_t length) except -1
    cdef int take_back(self, const record_t* head, const uint8_t* message) except -1
    # Appends a message of this log from another node, with its offset, and records it; one below `next` the log has
    # already. shift_ms: added to its times by the steady clock, which is another one there. Raises CorruptError if the
    # bytes are no message of this log; MemoryError, StorageError.
    cdef int take_in(self, const uint8_t* message, size_t length, int64_t shift_ms) except -1
    # Removes everything below `first`, and chunks that contain nothing else.
    cpdef trim(self, uint64_t first)

cdef void chunk_hold(chunk_t* chunk) noexcept
cdef void chunk_drop(chunk_t* chunk) noexcept
cdef chunk_t* chunk_new(uint32_t room) except NULL
# Makes the record at a position of data the chunk's last one.
cdef int chunk_index(chunk_t* chunk, uint32_t position) except -1
# Index of the first record at or above offset; count when there is none.
cdef uint32_t chunk_search(const chunk_t* chunk, uint64_t offset) noexcept
# Size of the kept records from i up to end.
cdef uint64_t chunk_bytes(const chunk_t* chunk, uint32_t i, uint32_t end) noexcept
cdef inline const record_t* record_at(const chunk_t* chunk, uint32_t i) noexcept:
    return <const record_t*>(chunk.data + chunk.at[i])
# A chunk that no log has, with one message: `size` bytes, as a log has it, but for its expiry.
cdef chunk_t* chunk_of_message(const uint8_t* message, uint32_t size, int64_t expires_at) except NULL
# Borrowed, like `record` itself. shift_ms: of its line.
cdef void record_body(const record_t* record, int64_t shift_ms, body_t* out) noexcept
# A deadline by the clock of a line with this shift; 0 (never) stays.
cdef inline int64_t shifted(int64_t deadline, int64_t shift_ms) noexcept:
    return max(deadline + shift_ms, <int64_t>1) if deadline else 0

# Whether a message begins at `at`, which has `n` bytes behind it, and ends within these.
cdef bint record_holds(const uint8_t* at, size_t n) noexcept
