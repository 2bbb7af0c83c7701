"""A queue as the publish path sees it: where a message goes, whether there is room, who is told. See queue/queue.pyx.

The cold verbs (declare, delete, groups, dead letters, time) are in engine/queues/ and configure this object.
"""
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

from fluxmq._core.envelope.envelope cimport options_t
from fluxmq._core.memory.commits cimport Line
from fluxmq._core.memory.ledger cimport Ledger
from fluxmq._core.memory.message cimport body_t, pub_t
from fluxmq._core.memory.namespace cimport Namespace
from fluxmq._core.queue.claim cimport GroupOwner, queue_counts_t
from fluxmq._core.queue.cursor cimport Cursor
from fluxmq._core.queue.delay cimport Delays
from fluxmq._core.queue.group cimport Group
from fluxmq._core.queue.log cimport Log, Needed
from fluxmq._core.queue.policy cimport queue_policy_t

cdef enum:
    QUEUE_CLASSIC = 0
    QUEUE_STREAM = 1
    QUEUE_EPHEMERAL = 2

cdef class LogNeeds(Needed):
    """Which messages of one log some group has not settled."""
    cdef list cursors
    cdef Cursor last                        # of them, who needed a message last

cdef class Queue(GroupOwner):
    cdef readonly uint64_t number
    cdef readonly bytes name
    cdef readonly Namespace namespace
    cdef readonly tuple address             # (name of the namespace, name): its key in the engine's tables
    cdef readonly uint8_t kind              # QUEUE_*
    cdef readonly bint durable              # what it holds and what becomes of it is recorded
    cdef readonly list logs                 # Log, partition-major: logs[partition * lanes + lane]
    cdef readonly uint32_t lanes
    cdef readonly uint32_t partitions
    cdef readonly list groups               # Group: what is pumped
    cdef readonly list readers              # StreamReader; not changed in place, as `patterns`
    cdef queue_policy_t policy              # how it treats its limits and expiry
    # limits, from the configuration; 0 = none
    cdef public uint64_t messages_max
    cdef public uint64_t bytes_max
    cdef public uint32_t payload_max
    cdef public int64_t ttl_ms
    cdef public bint drop_head              # full: the oldest gives way; else the new one is refused
    # limits of POLICY_AMQP091, under which bytes_max and messages_max stay 0
    cdef public bint at_once                # a time to live of 0: who has credit now gets it, or nobody
    cdef public int64_t ready_max           # messages that nobody has; -1: any number
    cdef public int64_t ready_bytes_max     # bytes of their bodies; -1: any number
    cdef readonly int64_t expiry_ms         # when the next one at a head expires: steady clock; 0: none
    cdef public bint dead_letter_refused    # a message that is refused for lack of room goes to dead letters
    cdef bint expiring                      # a message may be here that expires
    cdef bint pumping                       # within pump()
    cdef public bint capture_confirmed      # an ordinary topic's publisher waits for the append, and is refused with it
    cdef public object events               # engine/queues/events.py: what the cold half decides; None: nobody is there
    cdef public Delays delays               # None: nothing was ever delayed
    cdef public object wake                 # asks for a turn, outside of one
    cdef public str damage                  # why nothing comes or goes any more but settlements; None: all is well
    cdef readonly uint64_t floors_read      # of groups' cursors, to find out what all have settled
    cdef Ledger ledger
    # It applies what another instance decides (engine/queues/recovery/line.py), and decides nothing itself.
    cdef public bint following
    cdef readonly Line line               # where what it records is committed
    cdef uint32_t turn_partition
    cdef uint64_t[7] told                   # what it has in QueueSums (queue_stats)
    cdef queue_counts_t told_counts
    cdef uint32_t* behind                   # by log: the group that had settled least when it was looked for last
    # bindings of amq.topic, kept by Hub.bind_queue
    cdef uint32_t bindings                  # how many
    cdef list patterns                      # bytes, for levels_match: of those whose filter matches more than they
    cdef uint64_t passed                    # the last publish that it has got (pub_t.passing)
    cdef bint news                          # in ledger.news
    cdef public bint stirred                # in ledger.stirred
    cdef public bint marked                 # in ledger.marked
    cdef bint ended                         # deleted: in ledger.marked no more

    # A publish arrived here. Returns 0, or the MQTT 5 reason code with which it is refused. wide: it matches filters of
    # bindings only, which match more than they (SUB_WIDE).
    cdef int take(self, pub_t* pub, bint wide) except -1
    cdef int put(self, const body_t* body, uint8_t qos) except -1
    cdef bint is_bound(self, const body_t* body) noexcept
    cdef int no_space(self) except -1
    cdef int refused(self, uint64_t* count) except -1
    cdef int append(self, const body_t* body, uint8_t qos, const options_t* options) except -1
    cdef int pump(self) except -1
    cdef int tidy_heads(self, Group group) except -1
    cdef int stir(self) except -1
    cdef int end(self) except -1
    cdef uint64_t kept(self)
    cdef uint64_t kept_bytes(self)
    cdef uint64_t unsettled(self)
    cdef bint is_address(self, const body_t* body) noexcept
    cdef bint is_full(self, const body_t* body)
    cdef bint namespace_is_full(self, const body_t* body) except -1
    cdef int note_ready(self, body_t* kept) except -1
    cdef int overflowed(self, const body_t* body) except -1
    cdef bint is_over_ready(self, const body_t* body) except -1
    cdef bint make_room(self, const body_t* body) except -1
    cdef int delay(self, const body_t* body, uint8_t qos, const options_t* options) except -1
    cdef int move_due(self) except -1
    cdef int trim_settled(self) except -1
    cdef uint64_t lowest_floor(self, uint32_t at, Log log)
    cdef int read_options(self, const body_t* body, options_t* options) except -1
