"""The messages of a session as bytes for another node, and back. engine/sessions/transfer.py has the whole protocol.

    Snapshot(session) ──► take(size) ──► bytes ──► check_entries ──► restore_entries    a new session
                                                                └──► insert_entries     what came to it later
    merge_sessions      the messages of one session, ahead of what another has not sent

Entries, one behind the other; big-endian:

    ┌──────────┬───────────┬───────┬───────┬─────┬───────┬─────────┬───────────────┬────────────┬─────────┐
    │ sequence │ packet id │ state │ first │ QoS │ ids   │ left ms │ lengths       │ ids        │ message │
    │ u64      │ u16       │ u8    │ u8    │ u8  │ u8 n  │ i64     │ u16, u32, u32 │ n × u32    │         │
    └──────────┴───────────┴───────┴───────┴─────┴───────┴─────────┴───────────────┴────────────┴─────────┘
    packet id   0: in the line
    state       MOVED_*: what became of it at the other node
    first       first byte of its PUBLISH, without DUP. QoS: of the message as it was published
    left        until it expires; -1: never
    lengths     topic, properties, payload; all 0 if released, which has no message any more

They are in the order of their sequences: in flight and in the line.
"""
from libc.stdint cimport uint8_t, uint16_t, uint64_t

from fluxmq._core.memory.ledger cimport Ledger
from fluxmq._core.memory.message cimport ids_t, msg_t
from fluxmq._core.pubsub.session cimport Session

cdef enum:
    MOVED_QUEUED = 0
    MOVED_SENT = 1              # may have reached the client
    MOVED_UNSENT = 2            # has a packet identifier and never left
    MOVED_RELEASED = 3          # PUBREC came

cdef struct moved_t:
    msg_t* msg                  # counted; NULL if released
    ids_t* ids                  # counted, or NULL
    uint64_t sequence
    uint16_t packet_id
    uint8_t first
    uint8_t state

cdef class Snapshot:
    cdef Ledger ledger
    cdef moved_t* items
    cdef size_t count
    cdef size_t at              # those in front were taken
    cdef readonly uint64_t upto         # sequence of the last message that had entered the session
    cdef readonly uint64_t last         # sequence of the last entry taken
    cdef readonly uint16_t packet_id_last       # identifiers continue behind it

    cdef int add(self, moved_t item) except -1
    cdef void drop(self, size_t i) noexcept
    cdef int gather(self, Session session, bint flights, uint64_t after) except -1
