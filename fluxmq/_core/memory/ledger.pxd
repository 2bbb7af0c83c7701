"""What must be durable: records of session state into the journal. What waits for them is in memory/commits.

Ring 0 decides which change is durable; the journal makes it so; Hub.release lets go what waited. With no journal
(`storage.type: memory`) nothing is recorded.

Records: disk/record_kinds.pxd.
"""
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t

from fluxmq._core.disk.journal cimport Journal
from fluxmq._core.memory.commits cimport Commits, Line
from fluxmq._core.memory.message cimport body_t, ids_t, msg_t
from fluxmq._core.memory.namespace cimport Namespace
from fluxmq._core.memory.node cimport node_t

cdef struct cache_t:            # chunks of logs that segments have too (queue/cache.pyx)
    void* coldest               # chunk_t*; what that is, queue/log.pxd says, which needs this file
    void* warmest
    uint64_t bytes              # of their data

cdef struct target_t:       # one session that a message being journalled goes to
    uint64_t session
    uint64_t sequence
    ids_t* ids              # borrowed until the record is written
    uint16_t packet_id
    uint8_t first

cdef class Ledger:
    cdef node_t node                    # what everything of this node shares
    cdef readonly Journal journal       # None: nothing is durable
    cdef readonly Commits commits       # whose mark every record moves
    cdef public bint full               # the disk is: durable queues take nothing new, so that consumers can go on
    cdef public str full_why            # what is short, for whoever is refused; None: nothing was yet
    cdef public size_t batch_bytes_max  # a gathering batch that is larger takes nothing new into durable queues
    cdef public uint64_t message_last   # last message number given out
    cdef target_t* targets              # of the message being published
    cdef uint32_t targets_count
    cdef uint32_t targets_capacity
    cdef readonly list losing           # sessions with messages dropped for want of room that no line has told of yet
    cdef uint64_t clock_batch           # where the last CLOCK went: batch, and how many records that had then
    cdef uint32_t clock_records
    cdef list news             # queues to pump before the batch of this turn is handed over
    cdef list limited          # Members, StreamReaders and Groups that got nothing because of how many claims there are
    cdef list stirred          # queues that something happened to since the clock looked at them last
    cdef dict marked           # durable queues that something happened to since a checkpoint took them over: keys
    cdef cache_t cache         # chunks of logs that may go
    cdef readonly list dead             # numbers of messages that the view has and nobody holds any more

    cdef bint active(self) noexcept
    cdef uint64_t batch(self) noexcept
    # Whether what is recorded for a line is kept anywhere: a node without a journal has other lines at most.
    cdef bint keeps(self, Line line) noexcept
    # Room for one record of a queue, log or group of this line, with its other records. Raises StorageError.
    cdef uint8_t* reserve(self, Line line, uint8_t kind, uint32_t length) except NULL
    # Something was recorded for this line: who compares marks waits for it.
    cdef int recorded(self, Line line) except -1
    # Journal.submit() and poll(), for a node with a journal: who hands a batch over closes it with the time. So no
    # record in it is younger than the last CLOCK that is on disk, and no clock begins before any deadline was set.
    cpdef int submit(self) except -1
    cpdef int poll(self) except -1
    cdef int close_batch(self) except -1
    # An answer relies on what is recorded in this line already and may not be committed: it waits for it.
    cdef int wait_for_earlier(self, Line line) except -1
    cdef int write_sequence(self, uint8_t kind, uint64_t session, uint64_t sequence) except -1
    cdef int write_sent(self, uint64_t session, uint64_t sequence, uint16_t packet_id) except -1
    cdef int write_packet_id(self, uint8_t kind, uint64_t session, uint16_t packet_id) except -1
    cdef int write_message(self, msg_t* msg) except -1
    cdef int write_retained(self, const body_t* body, uint8_t qos, Namespace namespace) except -1
    # By which records of this line name the namespace. The first use of one in a line that is not the journal says so.
    cdef uint64_t namespace_number(self, Line line, Namespace namespace) except? 0xFFFFFFFF
    cdef int add_target(self, uint64_t session, uint64_t sequence, uint16_t packet_id, uint8_t first,
                        ids_t* ids) except -1
    cdef void drop_target(self, uint64_t session, uint64_t sequence) noexcept
    cdef void forget(self, msg_t* msg) noexcept
