"""What replicas of a group say to each other, and the entries of their log. Bytes: see raft/messages.pyx."""
from libc.stddef cimport size_t
from libc.stdint cimport uint8_t, uint32_t, uint64_t

cdef enum:
    ENTRY_HEAD_BYTES = 17       # in front of the data of an entry
    MESSAGE_HEAD_BYTES = 66     # in front of the entries of a message

cpdef enum:
    ENTRY_NOTHING = 0           # of a leader that begins
    ENTRY_RECORDS = 1           # of a commit line
    ENTRY_MEMBERS = 2           # who is a replica from here on (members_of)

cpdef enum MessageKind:
    APPEND = 1                  # index, log_term: of the entry in front of `entries`; commit
    APPENDED = 2                # index: everything up to it is there. Refused: that of the APPEND; hint, hint_term
    HEARTBEAT = 3               # commit: as far as the receiver has acknowledged
    ALIVE = 4                   # the answer
    VOTE = 5                    # index, log_term: of the last entry; forced: a leader has asked for it
    VOTED = 6                   # refused or not
    PRE_VOTE = 7                # as VOTE, in the term that would be
    PRE_VOTED = 8
    CAMPAIGN = 9                # of the leader: take over now
    COPY = 10                   # index, log_term: what it lacks is not in the log any more; it needs a copy up to there

cdef class Entry:
    """Immutable. data: opaque, but of ENTRY_MEMBERS."""
    cdef readonly uint64_t term
    cdef readonly uint8_t kind
    cdef readonly bytes data

cdef class Message:
    """Plain data. sender, to: numbers of replicas."""
    cdef public uint8_t kind
    cdef public uint32_t sender
    cdef public uint32_t to
    cdef public uint64_t term
    cdef public uint64_t index
    cdef public uint64_t log_term
    cdef public uint64_t commit
    cdef public uint64_t hint
    cdef public uint64_t hint_term
    cdef public bint refused
    cdef public bint forced
    cdef public list entries        # of Entry

# Writes an entry, ENTRY_HEAD_BYTES more than its data. Returns the end.
cdef uint8_t* put_entry(uint8_t* at, Entry entry) except NULL
# The entry at `at`, which moves behind it. Raises CorruptError: it is cut off, or not what was written.
cdef Entry take_entry(const uint8_t** at, const uint8_t* end)
# As many bytes as put_message writes.
cdef size_t message_bytes(Message message) except 0
# Writes a message. Returns the end.
cdef uint8_t* put_message(uint8_t* start, Message message) except NULL
# The message that is all of these bytes. Raises CorruptError: see decode_message.
cdef Message message_at(const uint8_t* at, const uint8_t* end)
