"""A queue on the publish path: its logs, its limits, the groups and readers to pump. See queue/queue.pyx.

The cold operations (declare, delete, groups, dead letters, timers) are in engine/queues/ and configure this object.
"""
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

from fluxmq._core.envelope.envelope cimport options_t
from fluxmq._core.memory.commits cimport Line
from fluxmq._core.memory.ledger cimport Ledger
from fluxmq._core.memory.message cimport FORMAT_MQTT, body_t, origin_t, pub_t
from fluxmq._core.memory.namespace cimport Namespace
from fluxmq._core.queue.claim cimport GroupOwner, queue_counts_t
from fluxmq._core.queue.cursor cimport Cursor
from fluxmq._core.queue.delay cimport Delays
from fluxmq._core.queue.group cimport Group
from fluxmq._core.queue.log cimport Log, Needed
from fluxmq._core.queue.policy cimport queue_policy_t
from fluxmq._core.queue.relay cimport Relay
from fluxmq._core.wire.queue_address cimport has_queue_prefix

cdef enum:
    QUEUE_CLASSIC = 0
    QUEUE_STREAM = 1
    QUEUE_EPHEMERAL = 2

cdef struct queue_limits_t:         # from the configuration (set_limits); 0: no limit
    uint64_t messages_max
    uint64_t bytes_max
    uint32_t payload_max
    int64_t ttl_ms
    bint drop_head                  # when full: drop the oldest message; else refuse the new one
    bint capture_confirmed          # a captured publish is acknowledged after the append, and refused with it
    # of POLICY_AMQP091, under which messages_max and bytes_max stay 0
    bint at_once                    # time to live 0: deliver to a consumer with credit now, or expire
    bint dead_letter_refused        # a message refused for lack of room is dead-lettered
    int64_t ready_max               # limit of unclaimed messages; -1: none
    int64_t ready_bytes_max         # limit of the bytes of their bodies; -1: none

cdef enum:
    GAUGES = 7                      # numbers of queue_numbers (queue/stats)

cdef struct queue_sums_t:           # the queue's share of QueueSums, as of its last measurement
    uint64_t[GAUGES] gauges
    queue_counts_t counts

# The partition of a key is this modulo their number. FNV-1a without a seed, because it must never change.
cdef inline uint32_t hash_key(const uint8_t* key, uint32_t length) noexcept nogil:
    cdef uint32_t h = 2166136261
    cdef uint32_t i
    for i in range(length):
        h = (h ^ key[i]) * 16777619
    return h ^ h >> 15

# Stands for a queue among the groups that have had a message with an origin (hub/origins.pxd).
cdef inline bint is_for_one_queue(const body_t* body) noexcept:
    """Whether a message is addressed to a queue by MQTT, so that nobody has it if that queue has not: its publisher is
    told. A queue that ends is no refusal of what came by an exchange, or as a captured topic: as if it had ended
    before."""
    return body.format == FORMAT_MQTT and has_queue_prefix(body.topic, body.topic_length)


cdef inline uint32_t queue_mark(uint64_t identity) noexcept nogil:
    cdef uint64_t mixed = (identity ^ identity >> 32) * <uint64_t>0x9E3779B97F4A7C15
    return max(<uint32_t>(mixed >> 32), <uint32_t>1)

cdef class LogNeeds(Needed):
    """Tells which messages of one log are still needed: some group has not settled them."""
    cdef list cursors
    cdef Cursor last                        # of them, who needed a message last

cdef class Queue(GroupOwner):
    cdef readonly uint64_t number
    cdef readonly bytes name
    cdef readonly Namespace namespace
    cdef readonly tuple address             # (name of the namespace, name): its key in the engine's tables
    cdef readonly uint8_t kind              # QUEUE_*
    cdef readonly bint durable              # its messages, and what groups do with them, are recorded
    cdef readonly list logs                 # Log, partition-major: logs[partition * lanes + lane]
    cdef readonly uint32_t lanes
    cdef readonly uint32_t partitions
    cdef readonly list groups               # Group: pumped with the queue
    cdef readonly list readers              # StreamReader; replaced instead of changed in place, like `patterns`
    cdef readonly list feeds                # Feed, of a stream: what other nodes read
    cdef queue_policy_t policy              # rules for limits and expiry
    cdef readonly queue_limits_t limits
    cdef readonly int64_t expiry_ms         # when the next message at a head expires: steady clock; 0: none
    cdef bint expiring                      # a kept message may have an expiry
    cdef int64_t alarm_ms                   # the engine looks at it then, apart from its ticks: steady clock; 0: not
    cdef bint pumping                       # within pump()
    cdef public object events               # engine/queues/events.py: callbacks to the cold half; None: there are none
    cdef public Delays delays               # None: nothing was ever delayed
    cdef public Relay relay                 # another node has its messages; None: this one
    cdef public bint resting                # its consumers get nothing: it is about to move to another node
    cdef public bint ending                 # a cluster decides whether it is deleted: it takes no messages until then
    cdef readonly bint awaits_claims        # deliveries wait until their claims are committed
    cdef public uint64_t identity           # its number in the cluster; 0: it is known to this node only
    cdef public object wake                 # requests a turn, outside of one
    cdef public str damage                  # why the queue only accepts settlements any more; None: not damaged
    cdef readonly uint64_t floors_read      # number of cursors read by lowest_floor()
    cdef Ledger ledger
    # It applies the decisions of another instance (engine/queues/recovery/line.py) and makes none itself.
    cdef public bint following
    cdef readonly Line line                 # commit line of its records
    cdef uint32_t turn_partition
    cdef queue_sums_t measured
    cdef uint32_t* behind                   # by log: the group that had settled least in the last lowest_floor()
    # bindings of amq.topic, maintained by Targets.bind_queue
    cdef uint32_t bindings                  # number of bindings
    cdef list patterns                      # bytes, for levels_match: bindings narrower than their filter
    cdef uint64_t passed                    # number of the last publish appended (pub_t.passing)
    cdef bint unpumped                      # in ledger.unpumped
    cdef public bint clock_dirty            # in ledger.clock_dirty
    cdef public bint dirty                  # in ledger.dirty_queues
    cdef bint ended                         # deleted: must not be in ledger.dirty_queues

    # Takes a publish. Returns 0, or the MQTT 5 reason code of the refusal. wide: only filters that are wider than their
    # bindings match (SUB_WIDE), so the bindings must be checked.
    cdef int take(self, pub_t* pub, bint wide) except -1
    # Whether who publishes this waits for the queue.
    cdef bint is_awaited(self, const pub_t* pub) except -1
    cdef bint is_copy(self) noexcept
    cdef bint rests(self) noexcept
    # It has the message of QoS 2 with this origin, or NULL. Whoever leads its line next is to know that.
    cdef int note_origin(self, const origin_t* origin) except -1
    # This node has heard that the origin is over.
    cdef int origin_over(self, tuple key) except -1
    cdef int write_origin(self, tuple key, uint8_t what) except -1
    cdef int put(self, const body_t* body, uint8_t qos, const pub_t* pub) except -1
    cdef int put_forced(self, const body_t* body, uint8_t qos) except -1    # a dead letter, as it is
    cdef int relay_publish(self, const pub_t* pub, const body_t* body) except -1
    cdef bint is_bound(self, const body_t* body) noexcept
    # Something is due soon: asks the engine to look then.
    cdef int due_soon(self, int64_t at_ms) except -1
    cdef int no_space(self, const body_t* body) except -1
    cdef int refused(self, uint64_t* count) except -1
    cdef int append(self, const body_t* body, uint8_t qos, const options_t* options) except -1
    cdef int pump(self) except -1
    cdef int tidy_heads(self, Group group) except -1
    cdef int mark_clock_dirty(self) except -1
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
