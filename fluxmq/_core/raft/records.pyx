# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, auto_pickle=False, embedsignature=True
"""Codec. What the journal has of a replica: the records REPLICA and ENTRY (disk/record_kinds.pxd). Bodies are here
without the number of the group, with which both begin.
"""
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport uint8_t, uint32_t, uint64_t

cimport cython

from fluxmq._core.errors import CorruptError
from fluxmq._core.raft.log cimport EntryLog
from fluxmq._core.raft.messages cimport ENTRY_HEAD_BYTES, Entry, put_entry, take_entry
from fluxmq._core.raft.messages import encode_members, members_of
from fluxmq._core.wire.primitives cimport peek_u32, peek_u64, put_u32, put_u64

__all__ = ["ReplicaState", "encode_entry", "encode_replica", "entry_of", "replica_of"]

cdef enum:
    STATE_BYTES = 53
    FLAG_DAMAGED = 1
    FLAG_COMING = 2
    FLAG_WHOLE = 4


@cython.final
cdef class ReplicaState:
    """Plain data: what a replica has on its disk beside its log.

    incarnation: of the group. number: of the replica; nobody else gets it. starts: how often the replica was started.
    term, vote: as of Raft. commit: up to here entries are known to be committed; it may be more. damaged: something of
    its log is lost that it may have acknowledged."""

    def __init__(self, uint64_t incarnation, uint32_t number, *, uint32_t starts=0, uint64_t term=0, uint32_t vote=0,
                 uint64_t commit=0, bint damaged=False):
        self.incarnation = incarnation
        self.number = number
        self.starts = starts
        self.term = term
        self.vote = vote
        self.commit = commit
        self.damaged = damaged

    def astuple(self) -> tuple:
        """Its fields in the order of the arguments."""
        return self.incarnation, self.number, self.starts, self.term, self.vote, self.commit, self.damaged

    def __repr__(self):
        return f"ReplicaState{self.astuple()}"


def encode_replica(ReplicaState state not None, EntryLog log not None, uint64_t applied, *, bint coming=False,
                   bint whole=False) -> bytes:
    """The body of a REPLICA record. applied: an entry of the log, or its base, that the copies have. coming: that is
    so when a copy has been installed, of which this is the base. whole: all that is behind this entry follows."""
    cdef bytes made = PyBytes_FromStringAndSize(NULL, STATE_BYTES)
    cdef uint8_t* at = <uint8_t*>PyBytes_AS_STRING(made)
    members = log.members_at(applied)
    at = put_u64(at, state.incarnation)
    at = put_u32(at, state.number)
    at = put_u32(at, state.starts)
    at[0] = (FLAG_DAMAGED if state.damaged else 0) | (FLAG_COMING if coming else 0) | (FLAG_WHOLE if whole else 0)
    at = put_u64(at + 1, state.term)
    at = put_u32(at, state.vote)
    at = put_u64(at, state.commit)
    at = put_u64(at, applied)
    put_u64(at, log.term(applied))
    return made + encode_members(*members)


def replica_of(bytes body not None) -> tuple:
    """(ReplicaState, a log without entries that begins behind what the copies have, coming, whole). Raises
    CorruptError."""
    cdef const uint8_t* at = <const uint8_t*>PyBytes_AS_STRING(body)
    if len(body) < STATE_BYTES or peek_u32(at + 8) == 0 or at[16] > (FLAG_DAMAGED | FLAG_COMING | FLAG_WHOLE):
        raise CorruptError("a REPLICA record is cut off, of no replica, or has unknown flags")
    return (ReplicaState(peek_u64(at), peek_u32(at + 8), starts=peek_u32(at + 12), term=peek_u64(at + 17),
                         vote=peek_u32(at + 25), commit=peek_u64(at + 29), damaged=at[16] & FLAG_DAMAGED != 0),
            EntryLog(*members_of(body[STATE_BYTES:]), peek_u64(at + 37), peek_u64(at + 45)),
            at[16] & FLAG_COMING != 0, at[16] & FLAG_WHOLE != 0)


def encode_entry(uint64_t index, Entry entry not None) -> bytes:
    """The body of an ENTRY record."""
    cdef bytes made = PyBytes_FromStringAndSize(NULL, 8 + ENTRY_HEAD_BYTES + len(entry.data))
    put_entry(put_u64(<uint8_t*>PyBytes_AS_STRING(made), index), entry)
    return made


def entry_of(bytes body not None) -> tuple:
    """(index, Entry) of an ENTRY record. Raises CorruptError."""
    cdef const uint8_t* at = <const uint8_t*>PyBytes_AS_STRING(body)
    cdef const uint8_t* end = at + len(body)
    cdef Entry entry
    cdef uint64_t index
    if end - at < 8:
        raise CorruptError("an ENTRY record is cut off")
    index = peek_u64(at)
    at += 8
    entry = take_entry(&at, end)
    if index == 0 or entry.term == 0 or at != end:
        raise CorruptError("an ENTRY record has no index or term, or is longer than it says")
    return index, entry
