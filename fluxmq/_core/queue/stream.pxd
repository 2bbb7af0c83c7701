"""A reader of a stream: a position in one log that moves on as messages are delivered. Knows no protocol.

Messages are not claimed or settled: every reader gets all of them. A reader keeps its unacknowledged deliveries, in
order, so that its group's position (commit) never passes a message that may not have arrived.
"""
from libc.stdint cimport uint32_t, uint64_t

from fluxmq._core.memory.ledger cimport Ledger
from fluxmq._core.memory.link cimport link_t
from fluxmq._core.queue.claim cimport Filter, GroupOwner, claim_t
from fluxmq._core.queue.group cimport Group
from fluxmq._core.queue.log cimport Log, record_t

cdef enum:
    CLAIM_STREAM = 4            # claim_t.state of a delivery of a reader; claim_t.member is the reader
    CLAIM_STREAM_DONE = 5       # acknowledged, but an earlier one is not

cdef class Feed:
    """What another node reads of a stream: pumped with its queue. A base class: _core/peer/feed."""
    cdef readonly bint stalled              # it needs messages that must be read from disk first
    cdef int pump(self) except -1

cdef class StreamReader:
    cdef readonly Log log
    cdef readonly uint64_t next             # offset of the next message to deliver
    cdef readonly uint64_t acknowledged     # everything below is acknowledged
    cdef readonly Group group               # commit() moves its position; None: an anonymous reader
    cdef readonly bint manual               # only commit() moves it; else acknowledgements do (auto_commit)
    cdef public GroupOwner owner
    cdef public Filter filter
    cdef readonly bint stalled
    cdef public bint paused                 # its client does not know yet that it is a consumer: it gets nothing
    cdef readonly uint32_t held             # delivered and not acknowledged
    cdef readonly uint32_t remembered       # those, and acknowledged ones behind the oldest of them
    cdef public uint32_t held_max           # limit of `remembered`; 0: the node's limit for a consumer
    cdef readonly bint limited              # it has credit, but `remembered` is at its limit
    cdef public str client                  # name of the client, for messages to users
    cdef link_t* carrier                    # counted: the link of its connection; NULL: none
    cdef claim_t* oldest
    cdef claim_t* newest

    cdef uint32_t credit(self) noexcept
    # Called once, before the first pump: see Member.
    cdef void carried_by(self, link_t* link) noexcept
    cdef bint takes(self) except -1
    cdef void unlimit(self) noexcept
    # 1: taken; 0: not now. With keeps() the claim is its handle until `acknowledge` or `forget`.
    cdef int deliver(self, claim_t* claim, const record_t* record) except -1
    # Whether deliveries are acknowledged (QoS 1 and 2): then deliver gets a claim, else NULL.
    cdef bint keeps(self) noexcept
    cdef int pump(self) except -1
    cdef int acknowledge(self, claim_t* claim) except -1
    cdef void forget(self) noexcept
    cdef void pass_over(self, uint64_t offset) noexcept
    cdef claim_t* remember(self, uint64_t offset) except NULL
    cdef void take_back(self, claim_t* claim) noexcept
    cdef void drop(self, claim_t* claim) noexcept
