# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
# cython: embedsignature=True, auto_pickle=False, freethreading_compatible=False
"""The format of segment files: what is drawn here is what stands on disk. All integers are little-endian.

    file `<log, 16 hex digits>/<first offset, 16 hex digits>.seg`: a header, batches without gaps, and a footer as soon
    as the file is sealed (only the last file of a log is not)

    header
    ┌────────┬─────────────┬─────┬──────────────┬─────────┬─────────┬──────────┬─────┐
    │ "FMQS" │ version = 1 │ log │ first offset │ follows │ file id │ reserved │ CRC │  48 bytes
    │        │ u32         │ u64 │ u64          │ u64     │ u64     │ u32 = 0  │ u32 │
    └────────┴─────────────┴─────┴──────────────┴─────────┴─────────┴──────────┴─────┘
      follows    how far the file before this one reaches; 0: this is the first file that the log ever had
      file id    random; where every other CRC in the file begins, so that no batch of another file passes for one of it

    batch
    ┌───────┬──────┬──────────┬──────────┬─────────┬─────────┬────────┬───────┬─────┬────────┬─────┬─────┬─────┬───────┐
    │ first │ last │ time min │ time max │ due min │ due max │ synced │ count │ raw │ stored │ how │ CRC │ CRC │ bytes │
    │ u64   │ u64  │ i64      │ i64      │ i64     │ i64     │ u64    │ u32   │ u32 │ u32    │ u32 │ u32 │ u32 │ …     │
    └───────┴──────┴──────────┴──────────┴─────────┴─────────┴────────┴───────┴─────┴────────┴─────┴─────┴─────┴───────┘
      80 bytes, then `stored` bytes which are, when unpacked, `raw` bytes of messages as drawn in queue/log.pxd
      first, last   offsets of the first and the last message; between them offsets may be missing
      due min, max  of a delay log; else 0
      synced        all bytes of the file below this position were known to be on the medium when this was written
      how           0: stored as they are; 1: zstd
      CRC, CRC      CRC32-C of the stored bytes; CRC32-C of the 76 bytes before it, so it covers the first CRC too

    footer: index, then trailer; the trailer's last byte is the file's
    ┌────────┬─────────┬───────┬─────────────┬───────────┬──────────┬─────┬───────────────────┬───────────────┐
    │ "FMQI" │ batches │ pairs │ batches CRC │ pairs CRC │ reserved │ CRC │ batch, 56 bytes … │ due, offset … │
    │        │ u32     │ u64   │ u32         │ u32       │ u32 = 0  │ u32 │                   │ i64, u64      │
    └────────┴─────────┴───────┴─────────────┴───────────┴──────────┴─────┴───────────────────┴───────────────┘
      one entry per batch: u64 first, last, position; i64 time max, due min, due max; u32 raw, count
      one pair per message that has a due time
    ┌────────────────┬───────┬──────┬──────────┬───────────┬──────────┬─────────┬────────┬─────┐
    │ index position │ reach │ last │ messages │ raw bytes │ time max │ due max │ "FMQT" │ CRC │  64 bytes
    │ u64            │ u64   │ u64  │ u64      │ u64       │ i64      │ i64     │        │ u32 │
    └────────────────┴───────┴──────┴──────────┴───────────┴──────────┴─────────┴────────┴─────┘
      reach      what the next file says in `follows`: last + 1, or more where a repair gave up what was behind

Why a header has its own CRC, and why `synced`: as in journal_format.pyx. A batch that does not hold was either under
way when power went, and is cut off; or it was safe and the medium changed it, and a later header whose `synced` lies
behind it says so. Which of the two decides between a start and a refusal.

Why `follows` and `reach`: offsets may have holes, so two files do not show by their offsets alone that nothing is
missing between them. With these a missing file is seen, and a footer that went bad costs nothing: the batches are all
there when they reach what the next file follows.

Why the pairs: a delay log must know when all of its messages are due, also after a restart, without unpacking them.
"""
cimport cython
from libc.stdint cimport uint8_t, uint16_t
from libc.stdlib cimport free, realloc
from libc.string cimport memcmp, memcpy, memset

from fluxmq._core.disk.journal_format cimport crc_seed, peek_u32_le, peek_u64_le, put_u32_le, put_u64_le
from fluxmq._core.wire.crc32c cimport crc32c_extend
from fluxmq._core.wire.sizes cimport fit_u32

from fluxmq._core.errors import CorruptError, UsageError

HEADER_SIZE = SEGMENT_HEADER_BYTES
BATCH_HEADER_SIZE = SEGMENT_BATCH_BYTES
INDEX_HEADER_SIZE = SEGMENT_INDEX_BYTES
TRAILER_SIZE = SEGMENT_TRAILER_BYTES
STORED_PLAIN = 0
STORED_ZSTD = 1

cdef struct batch_t:
    uint64_t first
    uint64_t last
    int64_t time_min
    int64_t time_max
    int64_t due_min
    int64_t due_max
    uint64_t synced
    uint32_t count
    uint32_t raw
    uint32_t stored
    uint32_t how
    uint32_t crc

# State of a walk over a batch's messages.
cdef struct summary_t:
    uint64_t first
    uint64_t last
    int64_t time_min
    int64_t time_max
    int64_t due_min
    int64_t due_max
    uint32_t count
    uint32_t dues


cdef inline uint16_t peek_u16_le(const uint8_t* at) noexcept nogil:
    return <uint16_t>(at[0] | at[1] << 8)


# ------------------------------------------------------------------------------------------------------ file header


def encode_header(uint64_t log, uint64_t first, uint64_t follows, uint64_t file_id):
    """The 48 bytes at the start of a file."""
    cdef uint8_t raw[SEGMENT_HEADER_BYTES]
    memcpy(raw, <const char*>b"FMQS", 4)
    put_u32_le(raw + 4, SEGMENT_VERSION)
    put_u64_le(raw + 8, log)
    put_u64_le(raw + 16, first)
    put_u64_le(raw + 24, follows)
    put_u64_le(raw + 32, file_id)
    put_u32_le(raw + 40, 0)
    put_u32_le(raw + 44, crc32c_extend(0, raw, 44))
    return <bytes>raw[:SEGMENT_HEADER_BYTES]


def decode_header(const uint8_t[::1] data not None):
    """(log, first offset, follows, file id). Raises CorruptError with the reason; the caller adds the file's name."""
    if data.shape[0] < SEGMENT_HEADER_BYTES:
        raise CorruptError(f"it is {data.shape[0]} bytes long, shorter than its own header of {SEGMENT_HEADER_BYTES}")
    cdef const uint8_t* raw = &data[0]
    if memcmp(raw, <const char*>b"FMQS", 4) != 0:
        raise CorruptError("it does not begin with the letters FMQS, so it is no segment file")
    if crc32c_extend(0, raw, 44) != peek_u32_le(raw + 44):
        raise CorruptError("the CRC of its header does not hold")
    if peek_u32_le(raw + 4) != SEGMENT_VERSION:
        raise CorruptError(
            f"its format is version {peek_u32_le(raw + 4)}, this program reads version {SEGMENT_VERSION}")
    return peek_u64_le(raw + 8), peek_u64_le(raw + 16), peek_u64_le(raw + 24), peek_u64_le(raw + 32)


# ----------------------------------------------------------------------------------------------------------- batches


cdef inline bint header_holds(const uint8_t* at, uint32_t seed) noexcept nogil:
    return crc32c_extend(seed, at, 76) == peek_u32_le(at + 76)


cdef inline void take_batch(const uint8_t* at, batch_t* out) noexcept nogil:
    out.first = peek_u64_le(at)
    out.last = peek_u64_le(at + 8)
    out.time_min = <int64_t>peek_u64_le(at + 16)
    out.time_max = <int64_t>peek_u64_le(at + 24)
    out.due_min = <int64_t>peek_u64_le(at + 32)
    out.due_max = <int64_t>peek_u64_le(at + 40)
    out.synced = peek_u64_le(at + 48)
    out.count = peek_u32_le(at + 56)
    out.raw = peek_u32_le(at + 60)
    out.stored = peek_u32_le(at + 64)
    out.how = peek_u32_le(at + 68)
    out.crc = peek_u32_le(at + 72)


# Whether a complete batch with a valid header is at data[cursor:total].
cdef inline bint batch_fits(const uint8_t* data, size_t total, size_t cursor, uint32_t seed,
                            batch_t* out) noexcept nogil:
    if cursor > total or total - cursor < SEGMENT_BATCH_BYTES:
        return False
    if not header_holds(data + cursor, seed):
        return False
    take_batch(data + cursor, out)
    return total - cursor - SEGMENT_BATCH_BYTES >= out.stored


def encode_batch_header(tuple block not None, const uint8_t[::1] stored not None, uint32_t how, uint64_t synced,
                        uint64_t file_id):
    """The 80 bytes before `stored`, which is the block's bytes encoded as `how` says. block: from an Export."""
    cdef uint8_t raw[SEGMENT_BATCH_BYTES]
    cdef uint32_t seed = crc_seed(file_id)
    cdef size_t length = <size_t>stored.shape[0]
    cdef size_t whole = <size_t>len(block[7])
    cdef uint32_t crc
    if whole == 0 or length == 0 or whole > SEGMENT_BLOCK_BYTES_MAX or length > SEGMENT_BLOCK_BYTES_MAX:
        raise UsageError(f"a batch holds 1 to {SEGMENT_BLOCK_BYTES_MAX} bytes, not {whole}")
    put_u64_le(raw, block[0])
    put_u64_le(raw + 8, block[1])
    put_u64_le(raw + 16, <uint64_t><int64_t>block[3])
    put_u64_le(raw + 24, <uint64_t><int64_t>block[4])
    put_u64_le(raw + 32, <uint64_t><int64_t>block[5])
    put_u64_le(raw + 40, <uint64_t><int64_t>block[6])
    put_u64_le(raw + 48, synced)
    put_u32_le(raw + 56, block[2])
    put_u32_le(raw + 60, fit_u32(whole))
    put_u32_le(raw + 64, fit_u32(length))
    put_u32_le(raw + 68, how)
    with nogil:
        crc = crc32c_extend(seed, &stored[0], length)
    put_u32_le(raw + 72, crc)
    put_u32_le(raw + 76, crc32c_extend(seed, raw, 76))
    return <bytes>raw[:SEGMENT_BATCH_BYTES]


def batch_at(const uint8_t[::1] data not None, size_t at, uint64_t file_id):
    """(first, last, count, time_min, time_max, due_min, due_max, raw, how, begin, end) of the batch with a valid header
    at `at`, or None. begin, end: of its stored bytes, which `batch_holds` checks."""
    cdef batch_t batch
    cdef size_t total = <size_t>data.shape[0]
    if total == 0 or not batch_fits(&data[0], total, at, crc_seed(file_id), &batch):
        return None
    return (batch.first, batch.last, batch.count, batch.time_min, batch.time_max, batch.due_min, batch.due_max,
            batch.raw, batch.how, at + SEGMENT_BATCH_BYTES, at + SEGMENT_BATCH_BYTES + batch.stored)


def batch_holds(const uint8_t[::1] data not None, size_t at, uint64_t file_id) -> bool:
    """Whether a complete and valid batch is at `at`, including its stored bytes."""
    cdef batch_t batch
    cdef size_t total = <size_t>data.shape[0]
    cdef uint32_t seed = crc_seed(file_id)
    cdef uint32_t crc
    if total == 0 or not batch_fits(&data[0], total, at, seed, &batch):
        return False
    with nogil:
        crc = crc32c_extend(seed, &data[at + SEGMENT_BATCH_BYTES], batch.stored)
    return crc == batch.crc


def find_batch(const uint8_t[::1] data not None, size_t at, uint64_t file_id, uint64_t above, uint64_t synced):
    """Position, from `at` on, of the first valid batch header with a first offset of at least `above` and `synced` of
    at least `synced`; None: there is none. Searches byte by byte, for use behind damage."""
    cdef size_t total = <size_t>data.shape[0]
    cdef uint32_t seed = crc_seed(file_id)
    cdef const uint8_t* raw
    cdef size_t cursor = at
    cdef bint found = False
    if total < SEGMENT_BATCH_BYTES:
        return None
    raw = &data[0]
    with nogil:
        while cursor <= total - SEGMENT_BATCH_BYTES:
            # The numbers are compared first, because that rejects nearly all positions without computing the CRC.
            if (peek_u32_le(raw + cursor + 68) <= 1 and peek_u64_le(raw + cursor + 48) <= cursor
                    and peek_u64_le(raw + cursor + 48) >= synced and peek_u64_le(raw + cursor) >= above
                    and peek_u64_le(raw + cursor + 8) >= peek_u64_le(raw + cursor)
                    and header_holds(raw + cursor, seed)):
                found = True
                break
            cursor += 1
    return cursor if found else None


def walk(const uint8_t[::1] data not None, uint64_t file_id):
    """(index, synced): the batches of a file, by their headers, up to the first gap or invalid one; and the last one's
    value of `synced`."""
    cdef SegmentIndex index = SegmentIndex(SEGMENT_HEADER_BYTES)
    cdef uint32_t seed = crc_seed(file_id)
    cdef size_t total = <size_t>data.shape[0]
    cdef size_t cursor = SEGMENT_HEADER_BYTES
    cdef uint64_t above = 0, synced = 0
    cdef batch_t batch
    cdef entry_t entry
    while total != 0 and batch_fits(&data[0], total, cursor, seed, &batch):
        if batch.last < batch.first or batch.first < above or batch.stored == 0:
            break
        entry = entry_t(batch.first, batch.last, cursor, batch.time_max, batch.due_min, batch.due_max, batch.raw,
                        batch.count)
        cursor += SEGMENT_BATCH_BYTES + batch.stored
        index.append(&entry, cursor)
        above = batch.last + 1
        synced = batch.synced
    return index, synced


# ------------------------------------------------------------------------------------------------------------- index


@cython.final
cdef class SegmentIndex:
    """Positions of the batches of one file: filled by add(), or read by `decode_index`. `end` is where the next one
    would be."""

    def __cinit__(self, uint64_t end=SEGMENT_HEADER_BYTES):
        self.end = end

    def __dealloc__(self):
        free(self.entries)

    def __len__(self):
        return self.count

    cdef int append(self, const entry_t* entry, uint64_t end) except -1:
        cdef uint32_t room
        cdef entry_t* larger
        if self.count == self.room:
            room = self.room * 2 if self.room else 4
            larger = <entry_t*>realloc(self.entries, room * sizeof(entry_t))
            if larger == NULL:
                raise MemoryError
            self.entries, self.room = larger, room
        if self.count == 0 or entry.time_max > self.time_max:
            self.time_max = entry.time_max
        if entry.due_max > self.due_max:
            self.due_max = entry.due_max
        self.entries[self.count] = entry[0]
        self.count += 1
        self.messages += entry.count
        self.raw += entry.raw
        self.end = end
        return 0

    def add(self, tuple block not None, uint64_t end):
        """Adds a batch, from `self.end` to `end`."""
        cdef entry_t entry = entry_t(block[0], block[1], self.end, block[4], block[5], block[6],
                                     <uint32_t>len(block[7]), block[2])
        self.append(&entry, end)

    def cut(self, uint32_t count):
        """Keep the first `count` batches."""
        cdef uint32_t at
        cdef uint32_t were = self.count
        if count >= were:
            return
        cdef uint64_t end = self.entries[count].position
        self.count, self.messages, self.raw, self.time_max, self.due_max = 0, 0, 0, 0, 0
        for at in range(count):
            self.append(&self.entries[at], self.entries[at + 1].position)
        self.end = end

    def first_bad(self, const uint8_t[::1] data not None, uint64_t file_id, uint64_t position):
        """Number of the first batch at or behind `position` whose stored bytes are invalid; len(self): none is."""
        cdef uint32_t seed = crc_seed(file_id)
        cdef uint32_t at
        cdef const uint8_t* cursor
        cdef uint32_t crc
        for at in range(self.count):
            if self.entries[at].position < position:
                continue
            cursor = &data[self.entries[at].position]
            with nogil:
                crc = crc32c_extend(seed, cursor + SEGMENT_BATCH_BYTES, peek_u32_le(cursor + 64))
            if crc != peek_u32_le(cursor + 72):
                return at
        return self.count

    def find(self, uint64_t offset):
        """Number of the first batch that ends at or above `offset`; len(self): there is none."""
        cdef uint32_t low = 0, high = self.count, middle
        while low < high:
            middle = (low + high) >> 1
            if self.entries[middle].last < offset:
                low = middle + 1
            else:
                high = middle
        return low

    def find_time(self, int64_t time_ms):
        """Number of the first batch with a message of this time or later. Times are not ordered, because clocks are set
        back."""
        cdef uint32_t at
        for at in range(self.count):
            if self.entries[at].time_max >= time_ms:
                return at
        return self.count

    def first(self, uint32_t at):
        """First offset of batch `at`."""
        if at >= self.count:
            raise IndexError(at)
        return self.entries[at].first

    def last(self, uint32_t at):
        """Last offset of batch `at`."""
        if at >= self.count:
            raise IndexError(at)
        return self.entries[at].last

    def size(self, uint32_t at):
        """Bytes of the messages of batch `at`, unpacked."""
        if at >= self.count:
            raise IndexError(at)
        return self.entries[at].raw

    def due(self, uint32_t at):
        """Latest due time of batch `at`, 0 if it has none."""
        if at >= self.count:
            raise IndexError(at)
        return self.entries[at].due_max

    def span(self, uint32_t at, uint64_t bytes_max):
        """(number behind, position, position behind) of the batches from `at` on: at least one, and as many as have at
        most `bytes_max` raw bytes."""
        if at >= self.count:
            raise IndexError(at)
        cdef uint32_t stop = at + 1
        cdef uint64_t total = self.entries[at].raw
        while stop < self.count and total + self.entries[stop].raw <= bytes_max:
            total += self.entries[stop].raw
            stop += 1
        return stop, self.entries[at].position, self.entries[stop].position if stop < self.count else self.end

    def same(self, SegmentIndex other not None) -> bool:
        """Whether both have the same batches."""
        return (self.count == other.count and self.end == other.end and
                (self.count == 0 or memcmp(self.entries, other.entries, self.count * sizeof(entry_t)) == 0))

    def footer(self, const uint8_t[::1] pairs not None, uint64_t reach, uint64_t file_id):
        """The bytes of index and trailer, to be written at `self.end`. pairs: from `due_pairs` of each batch."""
        cdef size_t entries = self.count * <size_t>SEGMENT_ENTRY_BYTES
        cdef size_t dues = <size_t>pairs.shape[0]
        cdef size_t total = SEGMENT_INDEX_BYTES + entries + dues + SEGMENT_TRAILER_BYTES
        cdef uint32_t seed = crc_seed(file_id)
        cdef bytearray out = bytearray(total)
        cdef uint8_t* raw = out
        cdef uint8_t* at = raw + SEGMENT_INDEX_BYTES
        cdef uint32_t number
        for number in range(self.count):
            put_entry(at, &self.entries[number])
            at += SEGMENT_ENTRY_BYTES
        if dues:
            memcpy(at, &pairs[0], dues)
        memcpy(raw, <const char*>b"FMQI", 4)
        put_u32_le(raw + 4, self.count)
        put_u64_le(raw + 8, dues // 16)
        put_u32_le(raw + 16, crc32c_extend(seed, raw + SEGMENT_INDEX_BYTES, entries))
        put_u32_le(raw + 20, crc32c_extend(seed, at, dues))
        put_u32_le(raw + 28, crc32c_extend(seed, raw, 28))
        at += dues
        put_u64_le(at, self.end)
        put_u64_le(at + 8, reach)
        put_u64_le(at + 16, self.entries[self.count - 1].last if self.count else 0)
        put_u64_le(at + 24, self.messages)
        put_u64_le(at + 32, self.raw)
        put_u64_le(at + 40, <uint64_t>self.time_max)
        put_u64_le(at + 48, <uint64_t>self.due_max)
        memcpy(at + 56, <const char*>b"FMQT", 4)
        put_u32_le(at + 60, crc32c_extend(seed, at, 60))
        return bytes(out)


cdef inline void put_entry(uint8_t* at, const entry_t* entry) noexcept nogil:
    put_u64_le(at, entry.first)
    put_u64_le(at + 8, entry.last)
    put_u64_le(at + 16, entry.position)
    put_u64_le(at + 24, <uint64_t>entry.time_max)
    put_u64_le(at + 32, <uint64_t>entry.due_min)
    put_u64_le(at + 40, <uint64_t>entry.due_max)
    put_u32_le(at + 48, entry.raw)
    put_u32_le(at + 52, entry.count)


def decode_trailer(const uint8_t[::1] data not None, uint64_t size, uint64_t file_id):
    """(index position, reach, last, messages, raw bytes, time_max, due_max) from the last 64 bytes of a file of `size`
    bytes, or None if they are not its trailer."""
    if data.shape[0] != SEGMENT_TRAILER_BYTES:
        return None
    cdef const uint8_t* at = &data[0]
    if (memcmp(at + 56, <const char*>b"FMQT", 4) != 0
            or crc32c_extend(crc_seed(file_id), at, 60) != peek_u32_le(at + 60)):
        return None
    cdef uint64_t index = peek_u64_le(at)
    if index < SEGMENT_HEADER_BYTES or index + SEGMENT_INDEX_BYTES + SEGMENT_TRAILER_BYTES > size:
        return None
    return (index, peek_u64_le(at + 8), peek_u64_le(at + 16), peek_u64_le(at + 24), peek_u64_le(at + 32),
            <int64_t>peek_u64_le(at + 40), <int64_t>peek_u64_le(at + 48))


def decode_index(const uint8_t[::1] data not None, uint64_t position, uint64_t file_id):
    """(index, pairs or None) from the bytes between `position` and the trailer, or None if they are invalid. The pairs
    are None if only they are invalid."""
    cdef size_t total = <size_t>data.shape[0]
    cdef uint32_t seed = crc_seed(file_id)
    if total < SEGMENT_INDEX_BYTES:
        return None
    cdef const uint8_t* raw = &data[0]
    if memcmp(raw, <const char*>b"FMQI", 4) != 0 or crc32c_extend(seed, raw, 28) != peek_u32_le(raw + 28):
        return None
    cdef size_t count = peek_u32_le(raw + 4)
    cdef size_t entries = count * SEGMENT_ENTRY_BYTES
    cdef uint64_t dues = peek_u64_le(raw + 8) * 16
    if total - SEGMENT_INDEX_BYTES < entries or total - SEGMENT_INDEX_BYTES - entries != dues:
        return None
    if crc32c_extend(seed, raw + SEGMENT_INDEX_BYTES, entries) != peek_u32_le(raw + 16):
        return None
    cdef SegmentIndex index = SegmentIndex(position)
    cdef entry_t entry
    cdef size_t number
    cdef const uint8_t* at = raw + SEGMENT_INDEX_BYTES
    for number in range(count):
        entry = entry_t(peek_u64_le(at), peek_u64_le(at + 8), peek_u64_le(at + 16), <int64_t>peek_u64_le(at + 24),
                        <int64_t>peek_u64_le(at + 32), <int64_t>peek_u64_le(at + 40), peek_u32_le(at + 48),
                        peek_u32_le(at + 52))
        at += SEGMENT_ENTRY_BYTES
        index.append(&entry, position)
    if crc32c_extend(seed, at, dues) != peek_u32_le(raw + 20):
        return index, None
    return index, <bytes>at[:dues]


# ------------------------------------------------------------------------------------------- messages within a block


# Walks over all messages. Returns the number of bytes that are valid messages in order; all of them if the block is
# valid.
cdef size_t summarize(const uint8_t* raw, size_t total, summary_t* out) noexcept nogil:
    cdef size_t cursor = 0
    cdef uint32_t size
    cdef uint64_t offset
    cdef int64_t time, due
    memset(out, 0, sizeof(summary_t))
    while total - cursor >= SEGMENT_MESSAGE_BYTES:
        size = peek_u32_le(raw + cursor)
        offset = peek_u64_le(raw + cursor + 8)
        if size < SEGMENT_MESSAGE_BYTES or size % 8 != 0 or size > total - cursor:
            break
        if (<uint64_t>SEGMENT_MESSAGE_BYTES + peek_u32_le(raw + cursor + 4) + peek_u32_le(raw + cursor + 40)
                + peek_u16_le(raw + cursor + 44) > size):
            break
        if out.count and offset <= out.last:
            break
        time = <int64_t>peek_u64_le(raw + cursor + 16)
        due = <int64_t>peek_u64_le(raw + cursor + 32)
        if out.count == 0:
            out.first, out.time_min, out.time_max = offset, time, time
        out.last = offset
        out.time_min = min(out.time_min, time)
        out.time_max = max(out.time_max, time)
        if due != 0:
            out.due_min = due if out.dues == 0 else min(out.due_min, due)
            out.due_max = due if out.dues == 0 else max(out.due_max, due)
            out.dues += 1
        out.count += 1
        cursor += size
    return cursor


def block_of(raw, uint64_t first=0):
    """The block (as an Export gives it) of the messages in `raw` from offset `first` on; None: there are none.

    Raises CorruptError if these are not messages in ascending order of offset."""
    cdef const uint8_t[::1] view = raw
    cdef size_t total = <size_t>view.shape[0]
    cdef size_t skip = 0
    cdef summary_t all
    if total == 0:
        return None
    cdef size_t good = summarize(&view[0], total, &all)
    if good != total:
        raise CorruptError(f"a block of {total} bytes does not divide into messages behind byte {good}")
    while skip < total and peek_u64_le(&view[skip] + 8) < first:
        skip += peek_u32_le(&view[skip])
    if skip == total:
        return None
    if skip:
        summarize(&view[skip], total - skip, &all)
        raw = bytes(view[skip:])
    return all.first, all.last, all.count, all.time_min, all.time_max, all.due_min, all.due_max, raw


def due_pairs(const uint8_t[::1] raw not None):
    """(due, offset), 16 bytes each, of every message of a block with a due time."""
    cdef size_t total = <size_t>raw.shape[0]
    cdef summary_t all
    cdef size_t cursor = 0
    if total == 0:
        return b""
    cdef size_t good = summarize(&raw[0], total, &all)
    cdef bytearray out = bytearray(<size_t>all.dues * 16)
    cdef uint8_t* at = out
    while cursor < good:
        if peek_u64_le(&raw[cursor] + 32) != 0:
            memcpy(at, &raw[cursor] + 32, 8)
            memcpy(at + 8, &raw[cursor] + 8, 8)
            at += 16
        cursor += peek_u32_le(&raw[cursor])
    return bytes(out)


def take_messages(const uint8_t[::1] raw not None, list offsets not None):
    """{offset: bytes} of the requested messages of a block. offsets: ascending."""
    cdef size_t total = <size_t>raw.shape[0]
    cdef summary_t all
    cdef size_t cursor = 0
    cdef Py_ssize_t at = 0
    cdef uint64_t offset
    cdef dict found = {}
    if total == 0 or not offsets:
        return found
    cdef size_t good = summarize(&raw[0], total, &all)
    cdef uint64_t wanted = offsets[0]
    while cursor < good:
        offset = peek_u64_le(&raw[cursor] + 8)
        while wanted < offset:
            at += 1
            if at == len(offsets):
                return found
            wanted = offsets[at]
        if wanted == offset:
            found[offset] = (<const char*>&raw[cursor])[:peek_u32_le(&raw[cursor])]
        cursor += peek_u32_le(&raw[cursor])
    return found


def find_time(const uint8_t[::1] raw not None, int64_t time_ms):
    """Offset of the first message of a block with this time or a later one, or None."""
    cdef size_t total = <size_t>raw.shape[0]
    cdef summary_t all
    cdef size_t cursor = 0
    if total == 0:
        return None
    cdef size_t good = summarize(&raw[0], total, &all)
    while cursor < good:
        if <int64_t>peek_u64_le(&raw[cursor] + 16) >= time_ms:
            return peek_u64_le(&raw[cursor] + 8)
        cursor += peek_u32_le(&raw[cursor])
    return None


def messages_of(const uint8_t[::1] raw not None):
    """[(offset, time_ms, expires_at, not_before, qos, priority, topic, properties, payload)] of a block, for tools and
    tests. Raises CorruptError like `block_of`."""
    cdef size_t total = <size_t>raw.shape[0]
    cdef size_t cursor = 0
    cdef summary_t all
    cdef const uint8_t* at
    cdef const uint8_t* body
    cdef uint32_t payload, properties
    cdef uint16_t topic
    cdef list found = []
    if total != 0 and summarize(&raw[0], total, &all) != total:
        raise CorruptError(f"a block of {total} bytes does not divide into messages")
    while cursor < total:
        at = &raw[cursor]
        payload, properties, topic = peek_u32_le(at + 4), peek_u32_le(at + 40), peek_u16_le(at + 44)
        body = at + SEGMENT_MESSAGE_BYTES
        found.append((peek_u64_le(at + 8), <int64_t>peek_u64_le(at + 16), <int64_t>peek_u64_le(at + 24),
                      <int64_t>peek_u64_le(at + 32), at[46], at[47], <bytes>body[:topic],
                      <bytes>body[topic:topic + properties],
                      <bytes>body[topic + properties:topic + properties + payload]))
        cursor += peek_u32_le(at)
    return found


# ------------------------------------------------------------------------------------------------------------- names


cdef object hex16(str digits):
    if len(digits) != 16 or any(digit not in "0123456789abcdef" for digit in digits):
        return None
    return int(digits, 16)


def file_name(uint64_t first):
    """Name of the file whose first offset this is, inside its log's directory."""
    return f"{first:016x}.seg"


def file_first(str name not None):
    """The first offset in a segment file's name, or None for any other name."""
    return hex16(name[:16]) if name.endswith(".seg") and len(name) == 20 else None


def log_name(uint64_t number):
    """Name of a log's directory."""
    return f"{number:016x}"


def log_number(str name not None):
    """The number in the name of a log's directory, or None for any other name."""
    return hex16(name)
