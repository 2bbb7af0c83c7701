"""Where a message comes from, by which a node of a cluster knows one that it has had already.

    of a client     name: the incarnation of its session; its packet identifier; the use of that identifier
    a will          name: the will's identity; packet identifier 0; use 1

A node keeps, in memory and with its journal, which origins it has had until it hears that they are over: the client has
released the packet identifier (ORIGIN_END), or the session or will is no more (forget). A message with an origin that
it has goes only to those sessions that were not here then (Hub.publish_once).

    origin          name ─► packet identifier ─► uses
    journal         ORIGIN, in the batch that has what the message caused; ORIGIN_END
    view            'o' u64 name, u16 packet id, u64 use    u64 mark, u8 flags, [u32 m, m × u64 session that has it],
                                                            [u32 k, k × u64 mark of a share group of which a member has
                                                            it], n × u64 session that has it not, big-endian

A session that comes from another node brings the origins that it has had there, and those of its own messages
(bring). They come by another way than RELEASE, so those that are released meanwhile are remembered (watch),
RELEASED_MAX of them at most: if there are more, none is brought, and what is repeated may come twice, but nothing is
lost. The same when a publisher has moved: RELEASE comes from its new node, and copies that its former node had sent
may come behind that, of which nobody here is to get one (expect). And when a queue has moved: copies that a node had
sent to its former owner come through that one (expect_forwarded). Only what its publisher has sent again can have
such a copy.

Use 0 is unknown: a node that has made a session from what others knew of it does not know how often its identifiers
were used. It means every use of a packet identifier. But a node that was away has not heard what was released
meanwhile: what it has from before (`former`) is recognised by its exact use only.
"""
from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t

from fluxmq._core.memory.ledger cimport Ledger
from fluxmq._core.memory.message cimport origin_t

cdef enum:
    # This node, or one from which the publisher has moved here, has published it: share groups and queues have had it,
    # too.
    ORIGIN_PUBLISHED = 1
    ORIGIN_BROUGHT = 2          # nobody here has had it, but `had` and `groups`
    ORIGIN_HAD = 4              # in the value only: `had` is not empty
    ORIGIN_GROUPS = 8           # in the value only: `groups` is not empty
    ORIGIN_FLAGS = 15

cdef class Use:
    cdef readonly uint64_t use
    cdef readonly uint64_t mark         # sessions up to this number were here, and have had it
    cdef readonly tuple missed          # numbers of those that were here, and have not
    cdef readonly tuple had             # numbers of sessions that have had it at another node
    cdef readonly tuple groups          # marks of share groups: a member has had it, or this node keeps it for one
    cdef readonly uint8_t flags
    cdef readonly bint spread           # another node may have it
    cdef readonly bint again            # it may have been published more than once
    cdef readonly bint recorded
    cdef readonly bint former           # from before this life of the node, and not confirmed since
    cdef readonly bint loaded           # from before this life of the node
    cdef bint gone                      # Origins does not have it any more
    cdef uint64_t name
    cdef uint16_t packet_id
    cdef bint had_by(self, uint64_t session) except -1
    cdef bint has_group(self, uint32_t group) except -1
    cdef bint has_queue(self, uint32_t mark) except -1
    cdef bytes value(self)

cdef class Origins:
    cdef Ledger ledger
    cdef dict names                     # name -> packet identifier -> list of Use
    cdef list fresh                     # uses of this life of the node; some are gone
    cdef size_t fresh_gone              # how many
    cdef dict changed                   # keys of rows of the view -> None, since the last export
    cdef readonly uint32_t watching     # sessions that are being taken over
    cdef dict ended                     # (name, packet identifier) -> uses that have ended while there were such
    cdef bint overrun                   # there were more of these than are remembered: nothing is brought any more
    cdef readonly uint32_t expecting    # publishers whose former node may have copies of what they have released since
    cdef readonly uint32_t forwarding   # queues that have moved here, and of which copies may come by the former owner
    cdef dict released                  # (name, packet identifier, use) that have ended while there were such ->
                                        # marks of the groups and queues that had it; None: all here
    cdef Use over                       # known of such a copy: everybody has had it

    cdef Use find(self, const origin_t* origin)
    # Whether it is a late copy.
    cdef bint is_late(self, const origin_t* origin) except -1
    # The use of a packet identifier that was not released; 0: none is known. former: also one from a former life.
    cdef uint64_t use_of(self, uint64_t name, uint16_t packet_id, bint former) except? 0xFFFFFFFFFFFFFFFF
    # Notes what has come. known: of find(). took: marks of share groups that have it here. recorded: what it caused is
    # on its way to the disk.
    cdef int note(self, const origin_t* origin, Use known, uint64_t mark, bint published, list missed, list took,
                  bint recorded) except -1
    # Notes that this node has it for a share group.
    cdef int note_group(self, const origin_t* origin, uint32_t group, bint recorded) except -1
    cdef int record(self, uint64_t name, uint16_t packet_id, Use use) except -1
    # Forgets a use of a packet identifier; 0: all of them. Returns whether another node may have it.
    cdef bint end(self, uint64_t name, uint16_t packet_id, uint64_t use) except -1
    cdef int note_released(self, uint64_t name, uint16_t packet_id, uint64_t use, tuple groups) except -1
    cdef Use put(self, uint64_t name, uint16_t packet_id, uint64_t use)
    cdef int drop(self, uint64_t name, object packet_id, uint64_t use) except -1
    cdef int forgotten(self, Use use) except -1
    cdef int touch(self, uint64_t name, uint16_t packet_id, uint64_t use) except -1
