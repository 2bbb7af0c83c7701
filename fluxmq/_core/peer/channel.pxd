"""What the sender of a stream waits for by itself at the other node: that of queues which one commit line there has.

    a publish, a barrier ─► the next position of the channel's line here ─► COMMITTED: all up to it; REFUSED: this one

Channel 0 is of the queues that the owner's journal commits. Each other one is of a group of nodes that replicates
queues (QueueRelay.replication_group). A group may stand still for long, while the other node acknowledges the frames
with what it was sent. So nothing of a channel waits for another one, and this has what frames need not know of channel
0, whose frames are kept until the journal has what they caused:

    - how far the channel went in each frame, so that what is not decided in time is given up;
    - the settlements of consumers, until a barrier behind them is committed: if it is refused as undone, or the other
      node dies, the consumers keep them for the next owner;
    - how many bytes are not decided. They may be a part of the window; then publishers to the channel are not read
      until half of that is (Hub.crowded).
"""
from libc.stdint cimport uint16_t, uint64_t

from fluxmq._core.hub.targets cimport PeerHop
from fluxmq._core.memory.commits cimport Line

cdef enum:
    CHANNEL_PART = 4                # of the window: what one channel may have undecided

cdef class Channel(PeerHop):
    cdef readonly uint16_t number
    cdef readonly uint64_t group            # 0: the owner's journal
    cdef readonly Line line
    cdef readonly uint64_t waiting_bytes    # of frames whose part of the channel is not decided, and of settlements
    cdef uint64_t limit                     # of these
    # of the frame that gathers, if the channel has a part of it
    cdef bint used
    cdef bint settled                       # it has settlements
    cdef bint open                          # there is no barrier behind the last of these yet
    cdef uint64_t barrier                   # the last one that is awaited
    cdef uint64_t gathered                  # bytes of publishes and barriers
    # of frames that were made
    cdef uint64_t told                      # the other node has committed everything up to this position
    cdef object marks                       # deque: (frame, the channel's last position in it, bytes), not committed
    cdef object kept                        # deque: (barrier, frame, records, nobody else waits for the barrier)
    # Settlements of one turn may be divided into frames: barrier at the end of one for which nobody else waits ->
    # those that are awaited and came later in the turn, which hear if it is refused.
    cdef dict behind
    cdef uint64_t own_barrier               # the last of these
    cdef uint64_t own_turn                  # and the turn (Commits.turn_mark) in which it was made

    cdef inline bint full(self) noexcept:
        return self.number != 0 and self.waiting_bytes + self.gathered >= self.limit

    # The frame of this number is made. settlements: its records of these, or None. own: nobody waits for the last
    # barrier but the channel.
    cdef int close_frame(self, uint64_t frame, bytes settlements, bint own) except -1
    cdef int committed(self, uint64_t position) except -1
    # A barrier that is awaited comes at this position, in the turn with this mark.
    cdef int note_barrier(self, uint64_t position, uint64_t turn) except -1
    # The settlements in front of a barrier that is refused, or None. undone: they were given up, so the caller has them
    # from now on. own: as above.
    cdef bytes take_refused(self, uint64_t barrier, bint undone, bint* own)
    # Gives up what frames before this one have; 0: everything.
    cdef int give_up_before(self, uint64_t frame, str why) except -1
    # Connections that have ended are not paused any more: nothing else drops them.
    cdef int forget_ended(self) except -1
    # Nobody will say what became of the frames up to this one. Returns their settlements, oldest first.
    cdef list lose(self, uint64_t frame, str why)
