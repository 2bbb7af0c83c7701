"""What the receiver of a stream answers in one of its channels but 0 (channel.pxd): each when the lines that it
concerns have decided it, whatever becomes of other channels, and of the journal, for which the frames wait.

    a frame ─► what its records of the channel have given to each line ─► a wait in that line
                                                                              │ all of the frame are decided
               REFUSED: publishes that were given up, at once; barriers ◄─────┤
               COMMITTED: all up to the frame's last position ◄───────────────┘ as soon as it is the first

A barrier that is awaited is refused if anything that the channel has settled or asked before it, and that was not
decided when it came, was given up: as undone, if what its own frame has settled was.
"""
from libc.stdint cimport uint16_t, uint64_t

from fluxmq._core.memory.commits cimport Commits, Line
from fluxmq._core.peer.outbox cimport PeerOutbox

cdef enum asked_kind:           # what else a position of a line stands for
    ASKED_PUBLISHES             # nothing: of publishes, if any, that hear what becomes of them
    ASKED_MORE                  # settlements, questions: barriers hear of it

cdef class Asked:
    cdef readonly uint16_t number
    cdef PeerOutbox outbox              # for the answers
    # of the next frame
    cdef bint used                      # the inbox has it in its list of those with something in the frame
    cdef uint64_t upto                  # its last position; 0: it asks for nothing
    cdef list lines                     # what it has for them: [(line, position in it, [publishes], asked_kind)]
    cdef list sent                      # the same for lines to other nodes, since the queue is there by now
    cdef list barriers                  # positions of those that are awaited
    # of those before it
    cdef object waits                   # deque of AskedWait
    cdef uint64_t last                  # number of the last of these
    cdef uint64_t lost_first            # of barriers of these, up to lost_last, something was given up
    cdef uint64_t lost_last
    cdef str lost                       # why; None: nothing was

    # The next frame has something for a line. position: of the publish that it is; 0: it is none, or nobody waits.
    cdef int note(self, Line line, uint64_t position) except -1
    # It has given something to a line to another node, since the queue is there by now. position: as above.
    cdef int note_sent(self, Line line, uint64_t at, uint64_t position, asked_kind kind) except -1
    # The frame was applied.
    cdef int close_frame(self, Commits commits) except -1
    cdef int look(self, object decided) except -1
    cdef int lose(self, object undone, str why) except -1
    cdef int tell(self) except -1
    cdef int refuse(self, uint64_t position, uint16_t code, str why, bint undone) except -1
