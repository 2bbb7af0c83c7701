"""What this node sends to another one: messages for its subscribers, what this node's subscribers want, retained
messages, and words of the cold half.

It is built of four layers, each in a file: frames (stream.pxd, with the states), what waits for commits (late.pxd),
what the nodes tell each other of queues (queue_stream.pxd), and this.

When the other node has died, the outbox may be parked: it goes on to take messages of QoS 1 and 2, and keeps them until
direct() gives them to the nodes that have adopted its sessions. Nobody waits for interest any more.
"""
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

from fluxmq._core.memory.message cimport body_t, origin_t, pub_t
from fluxmq._core.peer.frames cimport version_t
from fluxmq._core.peer.queue_stream cimport QueueStream
from fluxmq._core.pubsub.topics cimport Topics

cdef class PeerOutbox(QueueStream):
    cdef Topics topics                  # of the last message, and its number in this stream
    cdef uint32_t number
    cdef readonly uint64_t group_frame  # number of the frame with the last message for a share group
    cdef readonly uint64_t dropped      # messages of QoS 0
    cdef public uint64_t life           # epoch of the other node's life

    cdef int take_message(self, pub_t* pub, bytes group, bytes filter) except -1
    # whole: with its payload, which is of `size` bytes.
    cdef int take_retained(self, bytes namespace, const body_t* body, uint8_t flags, const origin_t* origin,
                           version_t version, bint whole, uint32_t size) except -1
    cdef int direct_one(self, pub_t* pub, uint64_t life) except -1
    cdef int direct_frame(self, bytes frame, int64_t since_ms, uint64_t life, list outboxes, bint here, PeerOutbox back,
                          list names) except -1
