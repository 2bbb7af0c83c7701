# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, auto_pickle=False, embedsignature=True
"""Machine. Messages of share groups that look for another member: those of a session that ends, and those that a node
keeps until a member, perhaps of another node, has them (engine/sessions/parked.py).

A message here is a tuple (topic, payload, properties, QoS, retain, expires_at): its bytes are copied, because all of
this happens when a session or a node ends, not for each message.
"""
cimport cython
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memset

from fluxmq._core.disk.record_kinds cimport RECORD_SETTLED
from fluxmq._core.hub.hub cimport Hub
from fluxmq._core.hub.targets cimport PeerHop
from fluxmq._core.memory.message cimport (
    FORMAT_MQTT, body_borrow, ids_drop, mark_of, msg_t, once_of, once_t, origin_t, pub_own, pub_t,
)
from fluxmq._core.memory.namespace cimport Namespace
from fluxmq._core.pubsub.session cimport (
    SLOT_HELD, SLOT_SENT, SLOT_UNSENT, SLOT_WAITING, Session, entry_t, slot_t,
)
from fluxmq._core.pubsub.share_group cimport GroupTaker, ShareGroup
from fluxmq._core.pubsub.topics cimport topics_of
from fluxmq._core.pubsub.trie cimport SUB_RETAIN_AS_PUBLISHED

__all__ = ["Expecting", "give", "keep", "kept", "left_behind", "mark_given", "settle", "settled_elsewhere"]


cdef tuple message_of(const msg_t* msg, uint8_t first, uint8_t qos):
    return ((<const char*>msg.body.topic)[:msg.body.topic_length],
            (<const char*>msg.body.payload)[:msg.body.payload_length],
            (<const char*>msg.body.properties)[:msg.body.properties_length], qos, first & 1 != 0, msg.body.expires_at)


cdef int fill(pub_t* pub, Namespace namespace, tuple message) except -1:
    """The bytes belong to the tuple."""
    cdef bytes topic, payload, properties
    topic, payload, properties, qos, retain, expires_at = message
    memset(pub, 0, sizeof(pub_t))
    body_borrow(&pub.body, topic, properties, payload, expires_at, FORMAT_MQTT)
    pub.topics = topics_of(namespace)
    pub.qos = qos
    pub.retain = retain
    return 0


cdef inline bint has_expired(Hub hub, const msg_t* msg) noexcept:
    return msg.body.expires_at != 0 and msg.body.expires_at <= hub.node.steady_ms


def left_behind(Hub hub not None, Session session not None, int qos_max=2) -> list:
    """What a session has of share groups and another member may get, in the order in which it came: [(mark of the
    group, message)]. qos_max: of the messages. Of QoS 1 all that was not acknowledged; of QoS 2 only what has never
    left: a delivery that has begun is not given to anybody else [MQTT-4.8.2-5]."""
    cdef slot_t* slot
    cdef entry_t* entry
    cdef uint32_t i, mark
    cdef uint8_t qos
    cdef bint unsent
    cdef list found = []
    if session.slots != NULL:
        for i in range(session.slots_mask + 1):
            slot = &session.slots[i]
            mark = mark_of(slot.ids) if slot.packet_id and slot.msg != NULL and slot.sequence else 0
            if mark == 0 or has_expired(hub, slot.msg):
                continue
            qos = slot.first >> 1 & 3
            unsent = slot.state == SLOT_HELD or slot.state == SLOT_UNSENT
            qos = slot.msg.qos if unsent else qos
            if qos <= qos_max and (qos == 1 or unsent):
                found.append((slot.sequence, mark, message_of(slot.msg, slot.first, qos)))
    for i in range(session.queued):
        entry = &session.queue[(session.queue_head + i) & session.queue_mask]
        mark = mark_of(entry.ids)
        if mark and entry.msg.qos <= qos_max and not has_expired(hub, entry.msg):
            found.append((entry.sequence, mark, message_of(entry.msg, entry.first, entry.msg.qos)))
    found.sort()
    return [(mark, message) for _, mark, message in found]


def give(Hub hub not None, ShareGroup group not None, Namespace namespace not None, tuple message not None,
         bint here=False, uint64_t name=0, uint64_t use=0):
    """Delivers a message to one member of a group, of this node (here) or of any. Returns None if there is no member or
    it was dropped, the node that it was forwarded to (a GroupTaker), or True: a session of this node has it. name, use:
    of the origin with which it is forwarded (hub/origins.pxd); name 0: none."""
    cdef pub_t pub
    cdef origin_t origin = origin_t(name=name, use=use, packet_id=0, spread=False, doubtful=False)
    cdef once_t once = once_of(&origin)
    fill(&pub, namespace, message)
    if name:
        pub.once = &once
    taken = hub.publish_to_group(&pub, group, here)
    hub.touch()
    return group.takers[taken - 2] if taken >= 2 else True if taken else None


def settled_elsewhere(Hub hub not None, uint64_t name, uint64_t use):
    """A message that was forwarded with this origin is not kept any more: the other nodes need not know that they have
    had it."""
    cdef PeerHop peer
    for peer in hub.nodes:
        peer.release(name, 0, use)
    hub.touch()


# -------------------------------------------------------------------- kept, in a session that no client has

def keep(Hub hub not None, Session session not None, tuple message not None) -> bool:
    """Puts a message behind those that are kept, and records it. False: there was no room for it."""
    cdef pub_t pub
    cdef int taken
    fill(&pub, session.namespace, message)
    try:
        taken = session.deliver(&pub, 2 | SUB_RETAIN_AS_PUBLISHED, NULL)
        if hub.ledger.targets_count:
            hub.ledger.write_message(pub_own(&pub))
    except BaseException:
        hub.ledger.targets_count = 0
        raise
    finally:
        if pub.owned != NULL:
            hub.ledger.forget(pub.owned)
    return taken != 0


@cython.final
cdef class Expecting(GroupTaker):
    """Machine. Stands for the members of a group that were on a node that has died, and may come back: keeps what is
    published while the group has no other member. session: it is kept there."""
    cdef readonly Session session

    def __init__(self, Session session not None):
        self.session = session

    cdef int forward_group(self, pub_t* pub, bytes group, bytes filter) except -1:
        return self.session.deliver(pub, 2 | SUB_RETAIN_AS_PUBLISHED, NULL)


def kept(Session session not None, uint32_t most=0xFFFFFFFF, bint marked=True) -> list:
    """[(sequence, whether mark_given was called for it, message)], in order. most: of those that are not marked, only
    so many; marked: also those that are."""
    cdef slot_t* slot
    cdef entry_t* entry
    cdef uint32_t i
    cdef list found = []
    if session.slots != NULL and marked:
        for i in range(session.slots_mask + 1):
            slot = &session.slots[i]
            if slot.packet_id and slot.msg != NULL:
                found.append((slot.sequence, True, message_of(slot.msg, slot.first, slot.msg.qos)))
    for i in range(min(session.queued, most)):
        entry = &session.queue[(session.queue_head + i) & session.queue_mask]
        found.append((entry.sequence, False, message_of(entry.msg, entry.first, entry.msg.qos)))
    found.sort()
    return found


def mark_given(Session session not None, uint64_t sequence):
    """Records that a message may be with a member from now on: after a restart it is known."""
    cdef entry_t entry
    cdef slot_t* slot
    if not session.take_queued(sequence, &entry):
        return
    slot = session.slot_new()
    session.put_message(slot, entry.msg)
    slot.ids = entry.ids
    slot.first = entry.first
    slot.sequence = sequence
    slot.state = SLOT_WAITING
    if session.journalled:
        session.ledger.write_sent(session.number, sequence, slot.packet_id)
        session.dirty = 1


def settle(Session session not None, uint64_t sequence):
    """A member, or the node that it was given to, has it; or it is too late for it: it is kept no longer."""
    cdef entry_t entry
    cdef slot_t* slot
    cdef uint32_t i
    if session.take_queued(sequence, &entry):
        session.ledger.forget(entry.msg)
        ids_drop(entry.ids)
    else:
        if session.slots == NULL:
            return
        for i in range(session.slots_mask + 1):
            slot = &session.slots[i]
            if slot.packet_id and slot.sequence == sequence:
                session.slot_free(slot)
                break
        else:
            return
    if session.journalled:
        session.ledger.write_sequence(RECORD_SETTLED, session.number, sequence)
        session.dirty = 1
