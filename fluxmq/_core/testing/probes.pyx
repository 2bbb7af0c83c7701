# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
# cython: embedsignature=True, auto_pickle=False
"""What Python cannot reach of the core, made reachable for tests and bench/micro. The broker never imports it."""
cimport cython
from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t, uintptr_t

from fluxmq._core.debug cimport FLUXMQ_DEBUG_BUILD
from fluxmq._core.disk.journal cimport Journal
from fluxmq._core.hub.hub cimport Hub
from fluxmq._core.memory.message cimport ids_t, live, msg_t
from fluxmq._core.pubsub.retained cimport RetainedNode, RetainedTree
from fluxmq._core.pubsub.session cimport Session
from fluxmq._core.queue.claim cimport (
    CLAIM_DYING, CLAIM_HELD, CLAIM_READY, CLAIM_WAITING, Member, claim_member, claim_t,
)
from fluxmq._core.queue.cursor cimport Cursor
from fluxmq._core.queue.group cimport Group
from fluxmq._core.queue.log cimport Log, record_t
from fluxmq._core.queue.stream cimport StreamReader

__all__ = ["DEBUG_BUILD", "ReaderProbe", "claims_of", "gathered", "holders_known", "live_objects", "pump_queues",
           "retained_nodes", "session_state"]

DEBUG_BUILD = FLUXMQ_DEBUG_BUILD != 0

cdef dict NAMES = {CLAIM_HELD: "held", CLAIM_READY: "ready", CLAIM_WAITING: "waiting", CLAIM_DYING: "dying"}


def live_objects() -> dict:
    """How many of each kind are allocated now, in the whole process."""
    return live


def retained_nodes(RetainedTree tree not None) -> int:
    """Nodes of the tree below its root: as many as its topics have distinct prefixes of levels."""
    cdef RetainedNode node
    cdef list waiting = [tree.root]
    cdef size_t count = 0
    while waiting:
        node = waiting.pop()
        if node.children is not None:
            count += len(node.children)
            waiting.extend(node.children.values())
    return count


def gathered(Journal journal not None) -> int:
    """Records in the batch that gathers."""
    return journal.gather.records


cdef tuple delivery(uint64_t sequence, uint8_t first, msg_t* msg, ids_t* ids):
    """A message as a session holds it; what is released has neither payload nor identifiers any more."""
    if msg == NULL:
        return sequence, first, None, ()
    return (sequence, first, (<const char*>msg.body.payload)[:msg.body.payload_length],
            tuple([ids.items[i] for i in range(ids.count)]) if ids != NULL else ())


def session_state(Session session not None) -> dict:
    """What of a session must survive a crash: the window as {packet id: delivery}, the line as a list of deliveries,
    the inbound identifiers. A delivery is (sequence, first byte, payload or None once released, identifiers)."""
    cdef uint32_t i
    window = {}
    if session.slots != NULL:
        for i in range(session.slots_mask + 1):
            if session.slots[i].packet_id:
                window[session.slots[i].packet_id] = delivery(session.slots[i].sequence, session.slots[i].first,
                                                              session.slots[i].msg, session.slots[i].ids)
    line = []
    for i in range(session.queued):
        entry = &session.queue[(session.queue_head + i) & session.queue_mask]
        line.append(delivery(entry.sequence, entry.first, entry.msg, entry.ids))
    received = [n for n in range(1, 65536) if session.has_received(<uint16_t>n)]
    return {"window": window, "line": line, "received": received,
            "subscriptions": dict(session.subscriptions)}


def pump_queues(Hub hub not None) -> bool:
    """The end of a turn, as far as queues are concerned: changed ones hand out what they can. True: some have changed
    again, so that the next turn comes at once."""
    hub.node.turn += 1
    hub.pump_queues()
    return bool(hub.ledger.unpumped)


def claims_of(Group group not None) -> dict:
    """{(log number, offset): (state, deliveries, due, member)} of every claim; state is held, ready, waiting or dying,
    due the end of the lease (monotonic ms, 0 = none) or of the wait (steady clock ms; of one that dies below 0)."""
    cdef Cursor cursor
    cdef claim_t* claim
    cdef uint32_t i
    found = {}
    for cursor in group.cursors:
        for i in range(cursor.table_mask + 1 if cursor.table != NULL else 0):
            claim = cursor.table[i]
            while claim != NULL:
                state = NAMES[claim.state]
                member = <object><Member>claim_member(claim, CLAIM_HELD) if claim.state == CLAIM_HELD else None
                found[cursor.log.number, claim.offset] = state, claim.deliveries, claim.due_ms, member
                claim = claim.chain
    return found


def holders_known(Group group not None) -> int:
    """Of a copy's group: how many (life, member) it remembers."""
    return 0 if group.holders is None else len(group.holders)


@cython.final
cdef class ReaderProbe(StreamReader):
    """Machine. A reader of a stream in Python. room: how many it takes without an acknowledgement. keeping: whether it
    acknowledges at all. `seen`: offsets in the order of delivery. The other arguments are StreamReader's."""
    cdef public uint32_t room
    cdef public bint keeping
    cdef readonly list seen
    cdef dict claims

    def __init__(self, Log log not None, uint64_t position, *, uint32_t room=1, bint keeping=True, **more):
        StreamReader.__init__(self, log, position, **more)
        self.room = room
        self.keeping = keeping
        self.seen = []
        self.claims = {}

    cdef uint32_t credit(self) noexcept:
        return self.room - self.held if self.room > self.held else 0

    cdef bint keeps(self) noexcept:
        return self.keeping

    cdef int deliver(self, claim_t* claim, const record_t* record) except -1:
        self.seen.append(record.offset)
        if claim != NULL:
            self.claims[record.offset] = <uintptr_t>claim
        return 1

    def acknowledge_at(self, uint64_t offset):
        """The client has acknowledged it."""
        self.acknowledge(<claim_t*><uintptr_t>self.claims.pop(offset))

    @property
    def outstanding(self) -> list:
        """Offsets delivered and not acknowledged."""
        return sorted(self.claims)

    def hang_up(self):
        """Its connection has ended."""
        self.claims.clear()
        self.forget()
