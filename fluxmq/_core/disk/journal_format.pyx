# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
# cython: embedsignature=True, auto_pickle=False, freethreading_compatible=False
"""The journal's format: what is drawn here is what stands on disk. All integers are little-endian.

    file `journal-<file number, 16 hex digits>.log`
    ┌─────────┬──────────┬─────────────┬─────────────┬─────────┬──────────┬───────┐
    │ "FMQJ"  │ version  │ file number │ first batch │ file id │ reserved │ CRC   │  40 bytes
    │ 4 bytes │ u32 = 1  │ u64         │ u64         │ u64     │ u32 = 0  │ u32   │
    └─────────┴──────────┴─────────────┴─────────────┴─────────┴──────────┴───────┘
    followed by batches, without gaps, each number one higher than the one before; then
      - the end of the file, or
      - 32 zero bytes and whatever an earlier life of a recycled file left.

    batch
    ┌────────┬────────┬────────┬─────────┬─────────────┬────────────┬─────────────────┐
    │ number │ synced │ length │ records │ records CRC │ header CRC │ records …       │
    │ u64    │ u64    │ u32    │ u32     │ u32         │ u32        │ `length` bytes  │
    └────────┴────────┴────────┴─────────┴─────────────┴────────────┴─────────────────┘
      number       of this batch, from 1
      synced       every batch up to this one was known to be on the medium when this one was written
      length       bytes of records;  records  how many they are
      records CRC  CRC32-C over the records, seeded with the file id
      header CRC   CRC32-C over the 28 bytes before it, seeded with the file id (so it covers the records CRC too)

    record
    ┌──────┬────────┬────────────────┐
    │ kind │ length │ body           │   kinds belong to the engine; the journal only carries them
    │ u8   │ u32    │ `length` bytes │
    └──────┴────────┴────────────────┘

Why the id is in every CRC: a recycled file still holds whole, well-formed batches of its earlier life. Under the new
id none of their CRCs hold, and their numbers are too low besides.

Why `synced`: a bad batch means one of two things. Either power went while it was on its way to the medium, and nobody
was told that it is safe: then it and all that follows is cut off. Or it was safe and the medium changed it: then
opening would lose acknowledged data in silence. A later batch header that says `synced >= bad batch` tells the second
from the first. "A later batch exists" would not do: in buffered mode several batches may be under way at once, and
a power loss may leave the later and take the earlier.

Why the header has a CRC of its own: that proof is looked for at every byte behind the damage, which must not cost
a CRC over the rest of the file each time.
"""
from libc.string cimport memcpy

from fluxmq._core.wire.crc32c cimport crc32c_by_table
from fluxmq._core.wire.sizes cimport fit_u32

from fluxmq._core.errors import CorruptError, UsageError

FILE_HEADER_SIZE = FILE_HEADER_BYTES
BATCH_HEADER_SIZE = BATCH_HEADER_BYTES


cdef void encode_file_header(uint8_t* into, uint64_t number, uint64_t first_batch, uint64_t file_id) noexcept nogil:
    memcpy(into, <const char*>b"FMQJ", 4)
    put_u32_le(into + 4, FORMAT_VERSION)
    put_u64_le(into + 8, number)
    put_u64_le(into + 16, first_batch)
    put_u64_le(into + 24, file_id)
    put_u32_le(into + 32, 0)
    put_u32_le(into + 36, crc32c_extend(0, into, 36))


cdef void seal_batch(uint8_t* batch, uint64_t number, uint64_t synced, uint32_t length, uint32_t records,
                     uint32_t seed) noexcept nogil:
    put_u64_le(batch, number)
    put_u64_le(batch + 8, synced)
    put_u32_le(batch + 16, length)
    put_u32_le(batch + 20, records)
    put_u32_le(batch + 24, crc32c_extend(seed, batch + BATCH_HEADER_BYTES, length))
    put_u32_le(batch + 28, crc32c_extend(seed, batch, 28))


def decode_file_header(const uint8_t[::1] data not None):
    """(file number, first batch, file id) of a journal file.

    Raises CorruptError with the reason; the caller adds the file's name.
    """
    if data.shape[0] < FILE_HEADER_BYTES:
        raise CorruptError(f"it is {data.shape[0]} bytes long, shorter than its own header of {FILE_HEADER_BYTES}")
    cdef const uint8_t* raw = &data[0]
    if bytes(raw[:4]) != b"FMQJ":
        raise CorruptError("it does not begin with the letters FMQJ, so it is no journal file")
    if crc32c_extend(0, raw, 36) != peek_u32_le(raw + 36):
        raise CorruptError("the CRC of its header does not hold")
    if peek_u32_le(raw + 4) != FORMAT_VERSION:
        raise CorruptError(f"its format is version {peek_u32_le(raw + 4)}, this program reads version {FORMAT_VERSION}")
    return peek_u64_le(raw + 8), peek_u64_le(raw + 16), peek_u64_le(raw + 24)


cdef inline bint header_holds(const uint8_t* at, uint32_t seed) noexcept nogil:
    return crc32c_extend(seed, at, 28) == peek_u32_le(at + 28)


def batch_at(const uint8_t[::1] data not None, size_t at, uint64_t file_id, uint64_t number):
    """(begin, end) of the records of batch `number` if it is complete and valid at offset `at`, else None."""
    cdef size_t total = <size_t>data.shape[0]
    if at > total or total - at < BATCH_HEADER_BYTES:
        return None
    cdef const uint8_t* raw = &data[at]
    cdef uint32_t seed = crc_seed(file_id)
    if peek_u64_le(raw) != number or not header_holds(raw, seed):
        return None
    cdef uint32_t length = peek_u32_le(raw + 16)
    if total - at - BATCH_HEADER_BYTES < length:
        return None
    cdef uint32_t crc
    with nogil:
        crc = crc32c_extend(seed, raw + BATCH_HEADER_BYTES, length)
    if crc != peek_u32_le(raw + 24):
        return None
    return at + BATCH_HEADER_BYTES, at + BATCH_HEADER_BYTES + length


def synced_at(const uint8_t[::1] data not None, size_t at):
    """The value of `synced` in the valid batch at offset `at`."""
    cdef size_t total = <size_t>data.shape[0]
    if at > total or total - at < BATCH_HEADER_BYTES:
        raise IndexError("no batch is there")
    return peek_u64_le(&data[at + 8])


def find_batch(const uint8_t[::1] data not None, size_t at, uint64_t file_id, uint64_t above, uint64_t synced=0):
    """Offset, from `at` on, of the first valid batch header with a number above `above` and `synced` of at least
    `synced`; None: there is none. Searches byte by byte, for use behind damage."""
    cdef size_t total = <size_t>data.shape[0]
    cdef uint32_t seed = crc_seed(file_id)
    cdef const uint8_t* raw
    cdef size_t cursor = at
    cdef bint found = False
    if total < BATCH_HEADER_BYTES:
        return None
    raw = &data[0]
    with nogil:
        while cursor <= total - BATCH_HEADER_BYTES:
            # The numbers are compared first, because that rejects nearly all positions without computing the CRC.
            if (peek_u64_le(raw + cursor) > above and peek_u64_le(raw + cursor + 8) >= synced
                    and peek_u64_le(raw + cursor + 8) < peek_u64_le(raw + cursor) and header_holds(raw + cursor, seed)):
                found = True
                break
            cursor += 1
    return cursor if found else None


def proof_of_sync(const uint8_t[::1] data not None, size_t at, uint64_t file_id, uint64_t number):
    """Offset, from `at` on, of a batch header which proves that batch `number` had reached the medium, or None."""
    return find_batch(data, at, file_id, number, number)


def clean_end(const uint8_t[::1] data not None, size_t at):
    """Whether the batches end at `at` as a writer ends them: by the end of the file, or by 32 zero bytes."""
    cdef size_t total = <size_t>data.shape[0]
    if at >= total:
        return at == total
    cdef size_t end = min(total, at + BATCH_HEADER_BYTES)
    while at < end:
        if data[at] != 0:
            return False
        at += 1
    return True


def iter_records(batch):
    """[(kind, body), …] of a batch as `fluxmq.storage.journal_files.read_batches` yields it.

    Raises CorruptError if the bytes are not records.
    """
    cdef const uint8_t[::1] view = batch
    cdef list found = []
    if view.shape[0] == 0:
        return found
    cdef const uint8_t* at = &view[0]
    cdef const uint8_t* end = at + view.shape[0]
    cdef const uint8_t* body = NULL
    cdef uint8_t kind = 0
    cdef uint32_t length = 0
    cdef int state
    while True:
        state = journal_next_record(&at, end, &kind, &body, &length)
        if state == 0:
            return found
        if state < 0:
            raise CorruptError(f"a journal batch does not divide into records after {len(found)} of them")
        found.append((kind, <bytes>body[:length]))


def crc32c(const uint8_t[::1] data not None, uint32_t crc=0, bint by_table=False):
    """CRC32-C of `data`, continued from the finished `crc`. `by_table`: without the processor's instruction."""
    if data.shape[0] == 0:
        return crc
    if by_table:
        return crc32c_by_table(crc, &data[0], <size_t>data.shape[0])
    return crc32c_extend(crc, &data[0], <size_t>data.shape[0])


def file_name(uint64_t number):
    """Name of journal file `number` inside the journal's directory."""
    return f"journal-{number:016x}.log"


def file_number(str name not None):
    """The number in a journal file's name, or None for any other name."""
    if len(name) != 28 or not name.startswith("journal-") or not name.endswith(".log"):
        return None
    digits = name[8:24]
    if any(digit not in "0123456789abcdef" for digit in digits):
        return None
    return int(digits, 16)


def encode_header(uint64_t number, uint64_t first_batch, uint64_t file_id):
    """The 40 bytes at the start of a journal file (for tools and tests; the journal writes its own)."""
    cdef uint8_t raw[FILE_HEADER_BYTES]
    encode_file_header(raw, number, first_batch, file_id)
    return <bytes>raw[:FILE_HEADER_BYTES]


def encode_batch(uint64_t number, uint64_t synced, records, uint64_t file_id):
    """One batch of `records`, a list of (kind, body), as in a file (for tools and tests)."""
    raw = bytearray(BATCH_HEADER_BYTES)
    for kind, body in records:
        raw += kind.to_bytes(1, "little") + len(body).to_bytes(4, "little") + body
    if len(raw) > BATCH_BYTES_MAX:
        raise UsageError(f"a batch holds at most {BATCH_BYTES_MAX} bytes, not {len(raw)}")
    cdef uint8_t[::1] view = raw
    seal_batch(&view[0], number, synced, fit_u32(len(raw) - BATCH_HEADER_BYTES), <uint32_t>len(records),
               crc_seed(file_id))
    return bytes(raw)
