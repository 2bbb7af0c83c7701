"""Writes records of durable changes to the journal. Answers that wait for them are in memory/commits.

Ring 0 decides which changes are durable, the journal writes them, and Hub.release releases what waited. Without a
journal (`storage.type: memory`) nothing is recorded.

Records: disk/record_kinds.pxd.
"""
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t

from fluxmq._core.disk.journal cimport Journal
from fluxmq._core.memory.commits cimport Commits, Line
from fluxmq._core.memory.message cimport body_t, ids_t, msg_t
from fluxmq._core.memory.namespace cimport Namespace
from fluxmq._core.memory.node cimport node_t

cdef struct cache_t:            # chunks of logs that are also in segments (queue/cache.pyx)
    void* coldest               # chunk_t* of queue/log.pxd, which imports this file
    void* warmest
    uint64_t bytes              # of their data

cdef struct target_t:       # one session that a message being journalled goes to
    uint64_t session
    uint64_t sequence
    ids_t* ids              # borrowed until the record is written
    uint16_t packet_id
    uint8_t first

cdef class Ledger:
    cdef node_t node                    # state shared by the whole node
    cdef readonly Journal journal       # None: nothing is durable
    cdef readonly Commits commits       # every record moves its mark
    cdef public bint full               # the disk is full: durable queues refuse messages, so that consumers can go on
    cdef public str full_why            # reason for the refusal, shown to clients; None: never full so far
    cdef public str away_why            # why the last message for a queue of another node was refused (queue/relay.pxd)
    cdef public uint64_t refused_away   # how many were
    cdef public uint64_t refused_elsewhere      # how many because the node forwards none (cluster.raft.write_policy)
    cdef public size_t batch_bytes_max  # durable queues refuse messages while the gathering batch is larger
    cdef public uint64_t message_last   # last message number assigned
    cdef target_t* targets              # of the message being published
    cdef uint32_t targets_count
    cdef uint32_t targets_capacity
    cdef readonly list sessions_with_drops      # dropped messages of these are not reported in the log yet
    cdef uint64_t clock_batch           # batch of the last CLOCK record, and the number of its records then
    cdef uint32_t clock_records
    cdef list unpumped         # changed queues, to be pumped before the batch of this turn is submitted
    cdef public uint64_t life  # epoch of this node's life in its cluster; 0: it is alone
    cdef public uint64_t identity_last      # see Hub.next_identity; 0: the node is alone, and gives out none
    # (name, packet identifier, use) of a message of QoS 2 -> queues of other lines than the journal that have had it.
    cdef readonly dict in_lines
    cdef list limited          # Members, StreamReaders and Groups that got nothing because of the limits of claims
    # The node joins a cluster, and does not know yet which queues other nodes have: its own are not pumped, because
    # what dies in them may have to go to one of those. None: it knows.
    cdef dict not_pumped
    cdef list clock_dirty      # queues changed since the last timer sweep (take_clock_dirty)
    cdef dict dirty_queues     # durable queues changed since the last checkpoint: keys
    cdef cache_t cache         # chunks of logs that may be evicted
    cdef readonly list dead             # numbers of messages that are in the view but no longer in use

    cdef uint64_t next_identity(self) noexcept
    cdef bint active(self) noexcept
    cdef uint64_t batch(self) noexcept
    # Whether records of a line are kept: false only for the journal's line on a node without a journal.
    cdef bint keeps(self, Line line) noexcept
    # Room for one record of a queue, log or group of this line. Raises StorageError.
    cdef uint8_t* reserve(self, Line line, uint8_t kind, uint32_t length) except NULL
    # A record was written for this line: moves the mark, so that answers wait for it.
    cdef int recorded(self, Line line) except -1
    # Journal.submit() and poll(), for a node with a journal; each ends the batch with a CLOCK record. So no record on
    # disk is younger than the last CLOCK: a restart never starts the steady clock before a deadline on disk was set.
    cpdef int submit(self) except -1
    cpdef int poll(self) except -1
    cdef int close_batch(self) except -1
    # An answer relies on an earlier record of this line that may not be committed: makes it wait for that.
    cdef int wait_for_earlier(self, Line line) except -1
    cdef int write_sequence(self, uint8_t kind, uint64_t session, uint64_t sequence) except -1
    cdef int write_sent(self, uint64_t session, uint64_t sequence, uint16_t packet_id) except -1
    cdef int write_packet_id(self, uint8_t kind, uint64_t session, uint16_t packet_id) except -1
    cdef int write_message(self, msg_t* msg) except -1
    # version 0: of a node without others, which gives none.
    cdef int write_retained(self, const body_t* body, uint8_t qos, Namespace namespace, uint64_t version=*,
                            uint64_t life=*, bint absent=*) except -1
    # The number of the namespace in records of this line. The first use in a line other than the journal records it.
    cdef uint64_t namespace_number(self, Line line, Namespace namespace) except? 0xFFFFFFFF
    cdef int add_target(self, uint64_t session, uint64_t sequence, uint16_t packet_id, uint8_t first,
                        ids_t* ids) except -1
    cdef void drop_target(self, uint64_t session, uint64_t sequence) noexcept
    cdef void forget(self, msg_t* msg) noexcept
