# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, auto_pickle=False, embedsignature=True
"""Machine. Encodes a page of a log's messages: the answer of the admin socket to a browse that accepts
`application/vnd.fluxmq.messages`. All integers are little-endian.

    ┌────────┬─────────────┬─────┬───────┬─────┬──────┬──────────────────┐
    │ "FMQM" │ version = 1 │ log │ first │ end │ next │ messages …       │
    │        │ u32         │ u64 │ u64   │ u64 │ u64  │ queue/log.pxd    │
    └────────┴─────────────┴─────┴───────┴─────┴──────┴──────────────────┘
      log        the number of the log; never reused, so a different number under the same name is a different queue
      first      the oldest offset kept
      end        messages below are durable, so an offset names the same message after a crash; the page has no others
      next       the offset from which the next page continues; all messages of this page's range below it were examined
      messages   encoded as in chunks and segments, one after another
"""
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.string cimport memcmp, memcpy

from fluxmq._core.disk.journal_format cimport peek_u32_le, peek_u64_le, put_u32_le, put_u64_le
from fluxmq._core.queue.log cimport NOTHING_WANTED, Log, Needed, chunk_t, record_t

from fluxmq._core.errors import CorruptError

__all__ = ["PAGE_TYPE", "decode_page", "durable_end", "encode_page"]

PAGE_TYPE = "application/vnd.fluxmq.messages"

cdef enum:
    HEAD = 40
    PAGE_VERSION = 1
    LOOK_MAX = 65536            # messages examined for one page: those of a classic queue may all be settled


cpdef uint64_t durable_end(Log log):
    """The offset of the first message that is not durable yet; `next` if all are."""
    return log.committed_end()


def encode_page(Log log not None, Needed needs, uint64_t start, uint64_t stop, size_t bytes_max):
    """Returns (page, next, loading) of the needed messages in [start, stop) (needs: None, all of them), with about
    bytes_max, but at least one. loading: the next one must be read from disk first (`log.wanted` is set)."""
    cdef uint64_t end = durable_end(log)
    cdef uint64_t upto = min(stop, end)
    cdef uint64_t here = max(start, log.first)
    cdef uint32_t looked = 0
    cdef chunk_t* chunk = NULL
    cdef const record_t* record
    cdef bytearray made = bytearray(HEAD)
    cdef bint loading = 0
    cdef uint8_t* head
    while here < upto and looked < LOOK_MAX and <size_t>len(made) < bytes_max + HEAD:
        record = log.find(here, &chunk)
        if record == NULL:
            loading = log.wanted != NOTHING_WANTED
            if not loading:
                here = upto
            break
        while record != NULL and record.offset < upto:
            looked += 1
            here = record.offset + 1
            if needs is None or needs.is_needed(record.offset):
                made += (<const char*>record)[:record.size]
                if <size_t>len(made) >= bytes_max + HEAD:
                    break
            record = log.following(chunk, record)
        else:
            if record != NULL:
                here = upto
    head = <uint8_t*>made
    memcpy(head, <const char*>b"FMQM", 4)
    put_u32_le(head + 4, PAGE_VERSION)
    put_u64_le(head + 8, log.number)
    put_u64_le(head + 16, log.first)
    put_u64_le(head + 24, end)
    put_u64_le(head + 32, here)
    return bytes(made), here, loading


def decode_page(const uint8_t[::1] page not None):
    """Returns (log, first, end, next, messages) of a page; messages: a view of it. Raises CorruptError."""
    if page.shape[0] < HEAD or memcmp(&page[0], <const char*>b"FMQM", 4) != 0:
        raise CorruptError("it does not begin with the letters FMQM, so it is no page of messages")
    if peek_u32_le(&page[4]) != PAGE_VERSION:
        raise CorruptError(
            f"it is a page of version {peek_u32_le(&page[4])}, this program reads version {PAGE_VERSION}")
    return (peek_u64_le(&page[8]), peek_u64_le(&page[16]), peek_u64_le(&page[24]), peek_u64_le(&page[32]),
            memoryview(page)[HEAD:])
