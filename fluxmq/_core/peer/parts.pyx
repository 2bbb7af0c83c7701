# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, auto_pickle=False, embedsignature=True
"""Machine. A queue whose partitions are queues of their own. See peer/parts.pxd."""
cimport cython
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memset

from fluxmq._core.envelope.envelope cimport options_t, read_options
from fluxmq._core.hub.hub cimport Hub
from fluxmq._core.hub.origins cimport Use
from fluxmq._core.memory.commits cimport Commits
from fluxmq._core.memory.message cimport body_borrow, body_t, origin_of, origin_t, pub_t
from fluxmq._core.mqtt.consts cimport REASON_SERVER_UNAVAILABLE
from fluxmq._core.peer.outbox cimport PeerOutbox
from fluxmq._core.peer.queue_relay cimport QueueRelay, RelayMember
from fluxmq._core.queue import by_offset
from fluxmq._core.queue.claim cimport (
    CLAIM_HELD, DELIVER_KEPT, DELIVER_REFUSED, DELIVER_TAKEN, claim_let_go, claim_t,
)
from fluxmq._core.queue.cursor cimport Cursor
from fluxmq._core.queue.group cimport Group
from fluxmq._core.queue.lanes cimport lane_of, log_index
from fluxmq._core.queue.log cimport record_t
from fluxmq._core.queue.queue cimport hash_key, queue_mark
from fluxmq._core.queue.relay cimport RELAY_FORCED, RELAY_UNAWAITED, VERB_ACK, VERB_EXTEND, VERB_NACK
from fluxmq._core.queue.shared_room cimport SharedRoom
from fluxmq._core.wire.sizes cimport fit_u32

__all__ = ["PartMember", "Parts", "WholeMember"]


@cython.final
cdef class WholeMember:
    """Value. See peer/parts.pxd."""

    def open(self):
        """Its client has been told that it is a consumer: it gets messages from now on."""
        self.opened = True
        self.relay.queue.touch()

    def part(self, uint32_t partition) -> PartMember:
        """What stands for it in a partition's group, which it is to join. Made now if there is none."""
        cdef PartMember one = self.parts[partition]
        if one is None:
            one = PartMember.__new__(PartMember)
            one.whole = self
            one.partition = partition
            one.client = self.member.client
            one.mark = self.member.mark
            one.priority = self.member.priority
            self.parts[partition] = one
        return one

    def drop(self, uint32_t partition):
        """What stood for it in a partition has left that group."""
        self.parts[partition] = None


@cython.final
cdef class PartMember(Member):
    """Machine. See peer/parts.pxd."""

    cdef Cursor cursor_of_whole(self, uint64_t offset):
        return <Cursor>self.whole.group.cursors[log_index(self.partition, fit_u32(lane_of(offset)),
                                                          self.whole.relay.queue.lanes)]

    cdef uint32_t credit(self) noexcept:
        cdef uint32_t room, others
        if not self.whole.opened or self.whole.rests or self.whole.member.group is None:
            return 0
        if self.whole.pulls:
            return 1
        room = self.whole.member.credit()
        if room == 0 or (<Group>self.group).relay is not None:
            return room
        others = self.awaited()
        return room - others if room > others else 0

    cdef SharedRoom sharing(self):
        if self.whole.shared is None:
            self.whole.shared = SharedRoom()
        return self.whole.shared

    cdef uint32_t shared_room(self) noexcept:
        if not self.whole.opened or self.whole.member.group is None:
            return 1
        return max(self.whole.member.credit(), <uint32_t>1)

    cdef uint32_t awaited(self) noexcept:
        """Partitions of other nodes of which a message waits here: they come before more of this one."""
        cdef PartMember one
        cdef RelayMember relayed
        cdef uint32_t found = 0
        for one in self.whole.parts:
            relayed = one.relayed() if one is not None else None
            found += relayed is not None and relayed.waiting_count != 0
        return found

    cdef RelayMember relayed(self):
        """What the relay of its partition knows of it; None: it is not attached to another node."""
        cdef PeerOutbox outbox
        if self.number == 0 or self.group is None or (<Group>self.group).relay is None:
            return None
        outbox = (<QueueRelay>(<Group>self.group).relay).outbox
        return None if outbox is None else outbox.members.get(self.number)

    cdef int deliver(self, claim_t* claim, const record_t* record) except -1:
        if self.whole.pulls and (<Group>self.group).relay is None:
            self.got = claim                # until take(): its client hears first what else there is
            self.got_record = record
            return DELIVER_KEPT
        return DELIVER_TAKEN if self.hand_on(claim, record) else DELIVER_REFUSED

    cdef bint hand_on(self, claim_t* claim, const record_t* record) except -1:
        """Gives the consumer the message. 0: it did not take it."""
        cdef WholeMember whole = self.whole
        cdef Queue queue = whole.relay.queue
        cdef Queue part = whole.relay.queues[self.partition]
        queue.awaits_claims = part.awaits_claims    # it leaves when the partition's claim is on the disk
        if whole.shared is not None:
            whole.shared.stale = True
        try:
            return whole.group.pass_on(self.cursor_of_whole(claim.offset), claim.offset, claim.deliveries, record,
                                       claim.chunk, whole.member)
        finally:
            queue.awaits_claims = False

    cdef int withdraw(self, claim_t* claim) except -1:
        cdef claim_t* own
        if claim == self.got:
            self.got = NULL
            return 0
        own = self.cursor_of_whole(claim.offset).find(claim.offset)
        if own != NULL and own.state == CLAIM_HELD and own.member == <void*>self.whole.member:
            self.whole.member.withdraw(own)
            self.whole.group.drop_held(own)
            self.whole.relay.queue.touch()
        return 0

    cdef void forget(self, claim_t* claim) noexcept:
        """An operator has settled it by its offset."""
        try:
            self.withdraw(claim)
        except Exception:
            pass                            # without memory for that: what its client says of it has no effect any more


@cython.final
cdef class Parts(Relay):
    """Machine. queue: the whole, made to be forwarded (`elsewhere`)."""

    def __init__(self, Queue queue not None, Hub hub not None):
        self.queue = queue
        self.hub = hub
        self.queues = [None] * queue.partitions
        self.members = []
        self.unsaid = set()
        queue.forward_to(self)

    def bind(self, uint32_t partition, Queue queue):
        """The queue that a partition is, from now on; None: it is not known any more."""
        self.queues[partition] = queue

    @property
    def consumers(self) -> list:
        """WholeMember."""
        return [one for one in self.members if one is not None]

    def of(self, Member member not None) -> WholeMember:
        """What is known of a consumer. Raises KeyError."""
        cdef WholeMember one
        if 0 < member.number <= <uint32_t>len(self.members):
            one = self.members[member.number - 1]
            if one is not None and one.member is member:
                return one
        raise KeyError(member)

    # ---------------------------------------------------------------- publishes

    cdef bint reaches(self, uint32_t partition) noexcept:
        cdef Queue queue = self.queues[partition]
        if queue is None:
            return 0
        return queue.relay is None or (<QueueRelay>queue.relay).reaches()

    def is_reached(self, uint32_t partition) -> bool:
        """Whether a partition has an owner that takes messages."""
        return self.reaches(partition)

    @property
    def missing(self) -> dict:
        """Partitions without an owner that takes messages, and the node that has their messages; "": it is not
        known."""
        return {at: self.queues[at].relay.owner if self.queues[at] is not None else ""
                for at in range(len(self.queues)) if not self.reaches(<uint32_t>at)}

    @property
    def owners(self) -> set:
        """The nodes that have partitions; "": this one."""
        return {"" if queue is not None and queue.relay is None else "?" if queue is None else queue.relay.owner
                for queue in self.queues}

    cdef uint32_t partition_of(self, const options_t* options, const pub_t* pub):
        """The partition of a message: the same on every node, and when it comes again, wherever that can be."""
        cdef uint32_t count = <uint32_t>len(self.queues)
        cdef uint32_t found, tried
        cdef const origin_t* origin = origin_of(pub)
        if options.key != NULL:
            return hash_key(options.key, options.key_length) % count
        if options.producer != NULL and options.has_sequence:
            return hash_key(options.producer, options.producer_length) % count
        if origin != NULL:
            return (queue_mark(origin.name) + origin.packet_id) % count
        found = self.turn % count
        for tried in range(count):
            if self.reaches((found + tried) % count):
                found = (found + tried) % count
                break
        self.turn = (found + 1) % count
        return found

    def part_of(self, bytes topic not None, bytes properties not None, int format) -> Queue | None:
        """The partition for a dead letter; None: this node does not know it yet."""
        cdef body_t body
        cdef options_t options
        body_borrow(&body, topic, properties, b"", 0, <uint8_t>format)
        if read_options(&body, self.hub.node, &options):
            memset(&options, 0, sizeof(options))
        return self.queues[self.partition_of(&options, NULL)]

    cdef int publish(self, const body_t* body, uint8_t qos, int awaited, const pub_t* pub) except -1:
        cdef options_t options
        cdef Queue part
        cdef uint32_t partition
        cdef int reason = read_options(body, self.hub.node, &options)
        if reason and awaited != RELAY_FORCED:
            self.queue.refused(&self.queue.counts.refused_properties)
            return reason
        if reason:
            memset(&options, 0, sizeof(options))
        partition = self.partition_of(&options, pub)
        part = self.queues[partition]
        if part is None:
            self.queue.refused(&self.queue.counts.refused_away)
            self.queue.ledger.refused_away += 1
            self.queue.ledger.away_why = f"no node has partition {partition} of the queue at present"
            return REASON_SERVER_UNAVAILABLE
        if part.relay is not None:
            return part.relay.publish(body, qos, awaited, pub)
        return self.publish_here(part, body, qos, awaited, pub)

    cdef int publish_here(self, Queue part, const body_t* body, uint8_t qos, int awaited, const pub_t* pub) except -1:
        cdef Commits commits = self.hub.commits
        cdef uint64_t mark = commits.mark
        cdef Use known
        cdef int reason
        if origin_of(pub) != NULL:
            known = self.hub.origins.find(origin_of(pub))
            if known is not None and known.has_queue(queue_mark(part.identity)):
                self.hub.ledger.wait_for_earlier(part.line)
                return 0
        reason = part.put_forced(body, qos) if awaited == RELAY_FORCED else part.put(body, qos, NULL)
        if reason == 0:
            part.note_origin(origin_of(pub))
        if reason == 0 and awaited == RELAY_UNAWAITED:
            commits.take_back(mark)         # the publisher does not wait for a capture
        return reason

    # ---------------------------------------------------------------- consumers

    cdef int joined(self, object group, Member member, bint pulls) except -1:
        cdef WholeMember one = WholeMember.__new__(WholeMember)
        cdef Py_ssize_t at
        one.member = member
        one.group = <Group>group
        one.relay = self
        one.pulls = pulls
        one.parts = [None] * len(self.queues)
        if member.mark == 0:
            member.mark = self.hub.next_identity() or 1
        for at in range(len(self.members)):
            if self.members[at] is None:
                self.members[at] = one
                member.number = fit_u32(at) + 1
                return 0
        self.members.append(one)
        member.number = <uint32_t>len(self.members)
        return 0

    cdef int left(self, object group, Member member) except -1:
        cdef WholeMember whole = self.of(member)
        cdef PartMember one
        for one in whole.parts:
            if one is not None and one.group is not None:
                self.on_leave(one)
        self.members[member.number - 1] = None
        member.number = 0
        return 0

    cdef int rests(self, Member member) except -1:
        cdef WholeMember whole = self.of(member)
        cdef PartMember one
        whole.rests = True
        for one in whole.parts:
            if one is not None and one.group is not None:
                self.on_rest(one)
        return 0

    def take(self, Member member not None) -> bool:
        """Gives a consumer that pulls the message that has come for it. False: there is none."""
        cdef PartMember one
        cdef claim_t* claim
        cdef Group group
        for one in self.of(member).parts:
            if one is None or one.group is None:
                continue
            group = <Group>one.group
            if one.got != NULL:
                claim, one.got = one.got, NULL
                try:
                    if one.hand_on(claim, one.got_record):
                        return True
                    group.give_back(claim, 0, False)
                finally:
                    claim_let_go(claim)
                return False
            if group.relay is not None and (<QueueRelay>group.relay).of(one).take():
                return True
        return False

    def await_owner(self, Member member not None, uint32_t log, list offsets not None):
        """As QueueRelay.await_owner. log: index in the whole queue."""
        cdef uint32_t lanes = self.queue.lanes
        cdef PartMember one = self.of(member).parts[log // lanes]
        if one is not None and one.group is not None and (<Group>one.group).relay is not None:
            (<QueueRelay>(<Group>one.group).relay).await_owner(one, log % lanes, offsets)

    def share_again(self):
        """Divides the rooms of consumers anew: a partition that does not use what it was told gives it to others, of
        which all that they were told has come, however long ago: a client may wait until it has its prefetch."""
        cdef WholeMember one
        cdef PartMember part
        cdef RelayMember relayed
        for one in self.members:
            if one is None or one.shared is None or not one.opened or one.rests:
                continue
            for part in one.parts:
                relayed = part.relayed() if part is not None else None
                if relayed is not None and relayed.told_room() == 0 and part.held:
                    relayed.hungry_ms = self.hub.node.mono_ms
            one.shared.changed()

    cdef int settle(self, object group, claim_t* claim, uint8_t verb, int64_t ms, bint counts, str reason) except -1:
        cdef WholeMember whole = self.members[(<Member>claim.member).number - 1]
        cdef uint32_t partition = (<Cursor>claim.cursor).partition
        cdef uint64_t offset = claim.offset
        cdef PartMember one = whole.parts[partition]
        cdef Group there
        cdef Cursor cursor
        cdef claim_t* known
        if verb != VERB_EXTEND:
            (<Group>group).drop_held(claim)
            self.queue.touch()
        if one is None or one.group is None:
            return 0
        there = <Group>one.group
        cursor = <Cursor>there.cursors[lane_of(offset)]
        known = cursor.find(offset)
        if known == NULL or known.state != CLAIM_HELD or known.member != <void*>one:
            return 0
        self.unsaid.add(partition)
        if there.relay is not None:
            return there.relay.settle(there, known, verb, ms, counts, reason)
        if verb == VERB_ACK:
            there.settle(known)
        elif verb == VERB_NACK:
            if ms < 0:
                ms = self.backoff(one, known.deliveries)
            there.give_back(known, ms, counts)
        elif verb == VERB_EXTEND:
            by_offset.extend(there, cursor.log.number, offset, ms)
        else:
            there.reject(known, reason or "rejected")
        return 0

    cdef int barrier(self) except -1:
        cdef Queue queue
        cdef Group group
        cdef set unsaid
        unsaid, self.unsaid = self.unsaid, set()
        for partition in unsaid:
            queue = self.queues[partition]
            if queue is None:
                continue
            if queue.relay is not None:
                queue.relay.barrier()
            else:
                for group in queue.groups:
                    group.write_records()
        return 0

    cdef int pump(self) except -1:
        """Members may have more room, or less: the partitions give, or tell their owners. They take turns."""
        cdef Queue queue
        cdef uint32_t count = <uint32_t>len(self.queues)
        cdef uint32_t at
        self.turn_pumped = (self.turn_pumped + 1) % count
        for at in range(count):
            queue = self.queues[(self.turn_pumped + at) % count]
            if queue is not None:
                queue.touch()
        return 0
