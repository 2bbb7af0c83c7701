"""Between memory and disk: sessions and messages to and from bytes of the view; replay of journal records.

View keys (the values are drawn in hub/persist.pyx):

    's' u64 session     its head (msgpack, engine/sessions/state.py), subscriptions, window, line, inbound QoS 2
    'm' u64 message     one message that a stored session still needs
    'n' u64 namespace   u8 flags (1: kept, 2: ended, the number is not reused), u16 length, name
    't' u64 namespace, topic     one retained message
    'o' …               where a message that was had came from (hub/origins.pxd)
    'r' u16 length, namespace, topic     the same in an earlier version: read, and written as 't'

A checkpoint is taken while the state changes, so replay may apply a record to a state that includes it already.
Therefore replay is idempotent: a target is added only if its sequence is new to the session; every other record states
the new value.
"""
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t

from fluxmq._core.hub.hub cimport Hub
from fluxmq._core.memory.commits cimport Line
from fluxmq._core.memory.message cimport ids_t, msg_t
from fluxmq._core.pubsub.session cimport Session, slot_t
from fluxmq._core.queue.line cimport LineObjects
from fluxmq._core.wire.primitives cimport Cursor

cdef class Loader:
    cdef readonly Hub hub
    cdef readonly Line line             # source of the records
    cdef readonly list stale_keys       # keys of an earlier version, which the next checkpoint deletes
    cdef readonly dict sessions         # number -> Session
    cdef dict messages                  # number -> MessageHold
    cdef readonly uint64_t message_last
    cdef readonly uint64_t records
    cdef public LineObjects queues      # of queues' messages; None: their records are cold, too
    cdef object on_cold                 # (kind, session number, body): called for records of cold operations

    cdef int fill_entry(self, Session session, Cursor* c) except -1
    cdef int apply(self, uint8_t kind, const uint8_t* at, const uint8_t* end) except -1
    cdef int apply_message(self, const uint8_t* at, const uint8_t* end) except -1
    cdef int apply_retained(self, const uint8_t* at, const uint8_t* end, uint8_t kind) except -1
    cdef int add_target(self, Session session, msg_t* msg, uint64_t sequence, uint16_t packet_id, uint8_t first,
                        ids_t* ids) except -1
    cdef int apply_sent(self, Session session, uint64_t sequence, uint16_t packet_id) except -1
    cdef int apply_settled(self, Session session, uint64_t sequence) except -1
    cdef slot_t* slot_of(self, Session session, uint64_t sequence) noexcept
