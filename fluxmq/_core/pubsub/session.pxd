"""One client's session: the window of messages in flight, the queue behind it ("line"), inbound QoS 2 identifiers.

State of an outbound message (slot_t.state), MQTT 5.0 section 4.3; TRANSITIONS in the .pyx is the table:

    FREE ──send──► SENT ──PUBACK──► FREE                    SENT ──PUBREC──► RELEASED ──PUBCOMP──► FREE
    FREE ──record──► HELD ──commit──► SENT                  SENT ──record PUBREC──► RELEASE_HELD ──commit──► RELEASED
    HELD ──refuse──► FREE                                   SENT ──PUBREC with an error, too large──► FREE
    SENT, WAITING ──attach──► WAITING ──window──► SENT      with DUP
    HELD, UNSENT ──attach──► UNSENT ──window──► SENT        without DUP: it never left [MQTT-3.3.1-1]
    RELEASED, RELEASE_HELD ──attach──► RELEASE_HELD         then PUBREL again

Not in the table: slots with messages of queues end with the connection in any state, all others with the session. Slots
restored from disk begin as WAITING, because they may have been sent before, or as RELEASE_HELD.

A slot is HELD until a commit line has committed what its PUBLISH depends on:
    - in a journalled session each QoS 2 PUBLISH, and its PUBREL (RELEASE_HELD): if it were sent before it is on disk, a
      crash in between could deliver the same message twice;
    - in a journalled session a QoS 1 PUBLISH behind one that is HELD for the journal, to keep the order;
    - in any session a queue's message whose claim is not committed yet (deliver_claim).
"""
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t

from fluxmq._core.memory.commits cimport ticket_t
from fluxmq._core.memory.flag cimport flag_t
from fluxmq._core.memory.ledger cimport Ledger
from fluxmq._core.memory.link cimport link_t
from fluxmq._core.memory.message cimport ids_t, msg_t, pub_t
from fluxmq._core.memory.namespace cimport Namespace
from fluxmq._core.memory.node cimport node_t
from fluxmq._core.memory.tickets cimport Tickets
from fluxmq._core.pubsub.routes cimport hop_t

cdef enum:
    SLOT_FREE = 0
    SLOT_HELD = 1
    SLOT_SENT = 2
    SLOT_WAITING = 3
    SLOT_RELEASE_HELD = 4
    SLOT_RELEASED = 5
    SLOT_UNSENT = 6

cdef struct slot_t:
    msg_t* msg              # counted; NULL once released; for a queue's message, once it was sent
    ids_t* ids              # counted, or NULL
    void* claim             # a queue's claim_t, until this client settles it; else NULL
    uint64_t sequence       # order in which messages entered the session; 0: from a queue, gone with the connection
    uint16_t packet_id      # 0 = free
    uint8_t first           # first byte of its PUBLISH without DUP
    uint8_t state
    uint32_t line           # HELD: the commit line that it waits for

cdef struct entry_t:        # a message that waits for window, buffer or client
    msg_t* msg              # counted
    ids_t* ids              # counted, or NULL
    uint64_t sequence
    uint8_t first

cdef class ClaimKeeper:
    """Base class: callbacks about messages that queues deliver through a session."""
    # The client has acknowledged it. reason: from its PUBACK, PUBREC or PUBCOMP.
    cdef int on_acknowledged(self, void* claim, uint8_t reason) except -1
    # The delivery ends without an acknowledgement, because the connection has ended or the message is too large for it.
    # sent: the message may have reached the client.
    cdef int on_abandoned(self, void* claim, bint sent) except -1
    # There is room in window or buffer again: deliveries may resume.
    cdef int on_room(self) except -1

cdef class Replay:
    """Base class: retained messages for a session's subscriptions that are not sent yet."""
    # There may be room in window or buffer again.
    cdef int on_room(self, Session session) except -1
    cdef int on_attach(self, Session session) except -1

cdef class SessionFacts:
    # As C values, because an idle client holds little else: each Python integer would cost 40 bytes.
    cdef public int64_t asked_ms        # Hub.mono_ms when the CONNECT came by which its client is connected
    cdef public int64_t since_ms        # Hub.steady_ms at the last change of whether it is connected
    cdef public uint32_t expiry_s       # Session Expiry Interval, MQTT 5.0 section 3.1.2.11.2
    cdef public uint32_t epoch          # grows with every connect and disconnect, so that older timers do nothing
    cdef public uint16_t keep_alive_s
    cdef public uint8_t version         # of the protocol; 0: no client has connected, the session came from other nodes
    cdef public flag_t kept             # survives its connection
    cdef public flag_t restored         # came from disk and has not been connected since
    cdef public flag_t here             # its client has its CONNACK: it counts as connected in its share groups
    cdef public flag_t durable          # announced so: other nodes keep messages for it when this one dies
    cdef public flag_t frozen           # on its way to another node
    cdef public flag_t counted          # each use of a packet identifier is known: all its nodes still live

cdef class Session:
    # identity
    cdef readonly bytes name            # client identifier, UTF-8
    cdef readonly Namespace namespace
    cdef readonly uint64_t number       # its identifier in journal and view; 0 until it is journalled
    cdef public flag_t journalled       # its changes are recorded
    cdef public flag_t dirty            # changed by hot operations since the view's copy was made
    # when it is full: drop the new message, not the oldest
    cdef public flag_t queue_rejects
    # Of `replay`: it needs the window too, so that the line leaves it every second place; and which of both gets the
    # next single free place.
    cdef uint8_t sharing
    cdef uint8_t odd
    cdef readonly uint32_t received_count   # inbound QoS 2
    # state of the cold half (engine/sessions/state.py), not used here
    cdef dict filters                   # `subscriptions`; None: there is none, as of most that are idle
    cdef public object data
    # MovingSession (hub/moving), which says from which nodes it takes messages; None: from all. Only the hub looks.
    cdef public object moving
    # connection
    cdef link_t* link                   # counted; NULL while the client is disconnected
    # What answers to former connections wait for in other lines than the journal. None: nothing. The client concludes
    # from what this session has received, for instance which of its QoS 2 messages, that it need not send that again.
    cdef Tickets unanswered
    cdef node_t* node
    cdef Ledger ledger
    # window
    cdef slot_t* slots                  # slot of a packet id: id & mask
    cdef uint32_t slots_mask            # slots - 1; 0 = none yet
    cdef uint32_t slots_used
    cdef readonly uint32_t outstanding  # slots whose PUBLISH counts against the Receive Maximum, [MQTT-3.3.4-9]
    cdef uint32_t held                  # slots in state HELD for the journal: later messages wait for it too
    cdef uint64_t held_upto             # the last batch that any of them waits for
    cdef readonly uint64_t window_bytes # of messages in the window
    cdef readonly uint32_t window       # min(Receive Maximum, max_inflight_messages); invariant: PUBLISH only below it
    cdef uint16_t packet_id_last
    cdef uint16_t packet_id_kept        # identifiers up to here are recorded as possibly in use (keep_packet_ids)
    cdef uint64_t sequence_last
    cdef uint16_t* resend               # packet ids to send again on this connection, in order
    cdef uint32_t resend_count
    cdef uint32_t resend_next
    # line
    cdef entry_t* queue                 # ring
    cdef uint32_t queue_mask
    cdef uint32_t queue_head
    cdef readonly uint32_t queued
    cdef public uint32_t queue_max
    cdef readonly uint64_t queued_bytes
    cdef public uint64_t queue_bytes_max
    cdef readonly uint64_t dropped
    cdef uint64_t unlogged_drops        # dropped, QoS 0 too, not logged yet; while not 0: in Ledger.sessions_with_drops
    # messages of queues: in the window like others, never on disk; docs/internals/queues.md
    cdef public ClaimKeeper claim_keeper
    cdef uint32_t claimed               # slots that came from a queue
    cdef uint32_t forget_at             # slot at which forget_claim starts to search
    # retained messages share the window with the line, so that neither starves the other
    cdef Replay replay                  # None: all was sent
    # inbound QoS 2
    cdef uint8_t* received              # bitmap of packet ids, 8 KiB, made on first use

    cpdef clear(self)
    cdef int lose(self) except -1
    cdef int deliver_hop(self, pub_t* pub, const hop_t* hop) except -1
    cdef int deliver(self, pub_t* pub, uint8_t options, ids_t* ids) except -1
    cdef int hold(self, slot_t* slot) except -1
    cdef int deliver_claim(self, msg_t* msg, uint8_t first, ids_t* ids, void* claim,
                           ticket_t ticket) except -1
    cdef int drop_claims(self) except -1
    cdef bint keeps_packet_id(self, uint16_t packet_id) noexcept
    cdef int keep_packet_ids(self, uint16_t packet_id) except -1
    cdef int acknowledge_claim(self, slot_t* slot, uint8_t reason) except -1
    cdef void forget_claim(self, void* claim) noexcept
    cdef int deliver_retained(self, pub_t* pub, uint8_t qos, ids_t* ids) except -1
    cdef bint takes_retained(self, bint in_window, size_t bytes_max) noexcept
    cdef int send_new(self, msg_t* msg, uint8_t first, ids_t* ids, uint64_t sequence) except -1
    cdef int deliver_now(self, msg_t* msg, uint8_t first, ids_t* ids) except -1
    cdef int enqueue(self, msg_t* msg, uint8_t first, ids_t* ids, uint64_t sequence) except -1
    cdef slot_t* slot_new(self) except NULL
    cdef slot_t* slot_find(self, uint16_t packet_id) noexcept
    cdef void slot_free(self, slot_t* slot) noexcept
    cdef void put_message(self, slot_t* slot, msg_t* msg) noexcept
    cdef void drop_message(self, slot_t* slot) noexcept
    cdef bint has_room(self, msg_t* msg) noexcept
    cdef int grow_slots(self) except -1
    cdef int settle(self, slot_t* slot, uint8_t reason) except -1
    cdef int pop(self, entry_t* out) noexcept
    cdef int drop_oldest(self) except -1
    cdef int send_slot(self, slot_t* slot, uint8_t dup) except -1
    cdef int pump(self) except -1
    cdef int on_puback(self, uint16_t packet_id, uint8_t reason) except -1
    cdef int on_pubrec(self, uint16_t packet_id, uint8_t reason) except -1
    cdef int on_pubcomp(self, uint16_t packet_id) except -1
    # The commit that the message or PUBREL with a packet id waited for is done (release) or given up (refuse).
    cdef int release(self, uint16_t packet_id, uint32_t line) except -1
    cdef int refuse(self, uint16_t packet_id, uint32_t line) except -1
    cdef int receive(self, uint16_t packet_id) except -1
    cdef int complete(self, uint16_t packet_id) except -1
    cdef bint has_received(self, uint16_t packet_id) noexcept
    # at start, from disk: no policy, no record
    cdef int restore_queued(self, msg_t* msg, uint8_t first, ids_t* ids, uint64_t sequence) except -1
    cdef slot_t* restore_slot(self, uint16_t packet_id) except NULL
    cdef bint take_queued(self, uint64_t sequence, entry_t* out) noexcept
    # from another node (hub/transfer.pxd): no record
    cdef int put_behind(self, uint64_t place, const entry_t* entries, uint32_t count) except -1
    cdef int trim(self) except -1
    cpdef mark_received(self, uint16_t packet_id, bint received)
    cdef int push(self, msg_t* msg, uint8_t first, ids_t* ids, uint64_t sequence) except -1
    cdef int grow_queue(self, uint32_t more) except -1
    cdef void attach(self, link_t* link, uint32_t window)
    cdef int leave_link(self) except -1
    cpdef int detach(self) except -1
