# cython: language_level=3
"""Kinds of records in the journal, and what their bodies hold. Numbers are big-endian.

Sessions, and what is of the whole node. A session is named by its number; every record of a session is skipped in
replay when the view's copy of that session already holds its batch.

    1 SESSION      u64 session, then the session's head as hub/persist.pyx writes it
    2 SESSION_END  u64 session
    3 SUBSCRIBE    u64 session, u8 options, u32 identifier, filter
    4 UNSUBSCRIBE  u64 session, filter
    5 MESSAGE      u64 message, i64 expires_at, u8 qos, u16 topic length, u32 properties length, u32 payload length,
                   u32 targets, topic, properties, payload, then per target:
                   u64 session, u64 sequence, u16 packet id (0 = waiting), u8 first byte, u8 n, n x u32 identifiers;
                   the last of these may be the mark of a share group (GROUP_MARK)
    6 SENT         u64 session, u64 sequence, u16 packet id      left the queue, is in flight under this id; sequence
                                                                 0: ids up to this one may be in use
    7 SETTLED      u64 session, u64 sequence                     acknowledged, expired or evicted
    8 RELEASED     u64 session, u64 sequence                     PUBREC came: PUBREL from now on
    9 RECEIVED     u64 session, u16 packet id                    inbound QoS 2, [MQTT-4.3.3-10]
   10 COMPLETED    u64 session, u16 packet id                    PUBREL came
   11 RETAINED     of an earlier version: as 15, but with the namespace's name (u16 length) behind the lengths
   12 LINK         u64 session, msgpack: connected, steady ms, expiry interval s, whether a will waits
   13 CLOCK        i64 steady ms, i64 wall ms                   of the turn that ends here (memory/node.pxd)
   14 NAMESPACE    u64 namespace, u8 flags, u16 length, name    1: an operator made it; 2: it has ended, and has no name
   15 RETAINED     u64 namespace, i64 expires_at, u8 qos, u16 topic length, u32 properties length,
                   u32 payload length, topic, properties, payload; an empty payload clears
   16 PEER_POSITION u64 epoch, u64 sequence, node             frames of a node applied here (peer/inbox.pxd)
   17 RETAINED_REVISION u64 revision, u8 flags, u16 length, namespace, topic     what the cluster has of a retained
                   message (engine/retained_revisions.py)
   18 ARRIVAL      u64 session, u32 step, u8 what: a session comes from another node; steps count from 0
                   what  1: u64 number of the first message, i64 steady ms, then a part (engine/sessions/parts.py)
                         2: it is active
                         3: u64 session that joins it and ends, u8 1: with what that has in flight
   19 ORIGIN       u64 name, u16 packet id, u64 use, u64 mark, u8 flags, n × u64 session      a message that was had
                   (hub/origins.pxd)
   30 ORIGIN_END   u64 name, [u16 packet id, u64 use]           forgets one, or all of a name
   31 RETAINED_VERSION  as 15, then u64 version, u64 life, u8 1: the payload is at another node, and not here
                   (hub/retained_store.pxd)

Queues. QueueRecord and GroupRecord are the structs of engine/queues/records.py; the message of an APPEND is
little-endian, as in memory and in segments (queue/log.pxd).

   20 APPEND       u64 log, message
   21 CLAIM        u64 group, u64 log, u64 first offset, u32 n, u16 delivery count      n messages in a row;
                   in lines other than a node's journal also u64 life of the node whose member holds them, u64 member
                   (Member.mark)
   22 SETTLE       u64 group, u64 log, u64 first offset, u32 n
   23 RETURN       u64 group, u64 log, u64 offset, u16 delivery count, i64 not before (ms, 0 = at once; -1, -2: never)
   24 QUEUE        u64 queue, msgpack QueueRecord               declared or changed
   25 QUEUE_END    u64 queue                                    deleted, with its logs and groups
   26 GROUP        u64 group, msgpack GroupRecord               made or changed
   27 GROUP_END    u64 group
   28 CURSOR       u64 group, u64 log, u64 next offset          seek, stream commit: what is below is settled, no more
   29 TRIM         u64 log, u64 first offset, [u64 next]        retention, purge, drop-head: what is below is gone; no
                                                                message below next is still to come
   36 PRODUCED     u64 queue, u64 highest, u32 length, producer, bitmap (big-endian)    the sequences of a producer that
                   were appended (engine/queues/deduplication.py)
   37 QUEUE_ORIGIN u64 queue, u64 name, u16 packet id, u64 use, u8 what: of a message of QoS 2 (hub/origins.pxd)
                   0: the queue has had it; 1: it was released, and copies may come. Not in the journal of a node
   38 OWNER        u64 group, u32 partition, u64 life, u64 member     of an exclusive or single group: who gets the
                   messages of a partition, as in a CLAIM; 0 and 0: nobody. Not in the journal of a node

Exchanges. StoredExchange and BindingRecord are the structs of engine/exchanges/records.py.

   32 EXCHANGE     u64 exchange, msgpack StoredExchange
   33 EXCHANGE_END u64 exchange
   34 BIND         u64 binding, msgpack BindingRecord
   35 UNBIND       u64 binding

Replication groups of which the node has a replica (raft/records.pyx, engine/replicas.py).

   39 REPLICA      u64 group, u64 incarnation, u32 replica, u32 starts, u8 flags, u64 term, u32 vote, u64 commit,
                   u64 index and u64 term of an entry that the copies have, then the members as of it
                   flags  1: the log is damaged
                          2: a copy as of that entry is coming; it counts when the view has it
                          4: the whole log behind that entry follows; nothing in front of this is needed
   40 REPLICA_END  u64 group                                    the node has none of it any more
   41 ENTRY        u64 group, u64 index, then the entry as a message of Raft has it. It replaces one of another term at
                   its index, and all behind that

A namespace is named by its number in the table of the record's line (memory/commits.pxd).
"""
from libc.stdint cimport uint8_t

cdef enum:
    RECORD_SESSION = 1
    RECORD_SESSION_END = 2
    RECORD_SUBSCRIBE = 3
    RECORD_UNSUBSCRIBE = 4
    RECORD_MESSAGE = 5
    RECORD_SENT = 6
    RECORD_SETTLED = 7
    RECORD_RELEASED = 8
    RECORD_RECEIVED = 9
    RECORD_COMPLETED = 10
    RECORD_RETAINED_NAMED = 11
    RECORD_LINK = 12
    RECORD_CLOCK = 13
    RECORD_NAMESPACE = 14
    RECORD_RETAINED = 15
    RECORD_PEER_POSITION = 16
    RECORD_RETAINED_REVISION = 17
    RECORD_ARRIVAL = 18
    RECORD_ORIGIN = 19
    RECORD_APPEND = 20
    RECORD_CLAIM = 21
    RECORD_SETTLE = 22
    RECORD_RETURN = 23
    RECORD_QUEUE = 24
    RECORD_QUEUE_END = 25
    RECORD_GROUP = 26
    RECORD_GROUP_END = 27
    RECORD_CURSOR = 28
    RECORD_TRIM = 29
    RECORD_ORIGIN_END = 30
    RECORD_RETAINED_VERSION = 31
    RECORD_EXCHANGE = 32
    RECORD_EXCHANGE_END = 33
    RECORD_BIND = 34
    RECORD_UNBIND = 35
    RECORD_PRODUCED = 36
    RECORD_QUEUE_ORIGIN = 37
    RECORD_OWNER = 38
    RECORD_REPLICA = 39
    RECORD_REPLICA_END = 40
    RECORD_ENTRY = 41


cdef enum:                      # what a QUEUE_ORIGIN says (engine/queues/records.py)
    ORIGIN_OF_QUEUE_HAD = 0
    ORIGIN_OF_QUEUE_RELEASED = 1


# Whether records of this kind are about queues, and begin with the number of one, of a log or of a group.
cdef inline bint is_of_queues(uint8_t kind) noexcept nogil:
    return RECORD_APPEND <= kind <= RECORD_TRIM or RECORD_PRODUCED <= kind <= RECORD_OWNER


# Whether records of this kind are about a replica, and begin with the number of its group.
cdef inline bint is_of_replicas(uint8_t kind) noexcept nogil:
    return RECORD_REPLICA <= kind <= RECORD_ENTRY


# Whether this version has records of this kind, whatever they are about.
cdef inline bint is_known(uint8_t kind) noexcept nogil:
    return RECORD_SESSION <= kind <= RECORD_ENTRY
