"""What a replica has on its disk beside its log. Bytes: see raft/records.pyx."""
from libc.stdint cimport uint32_t, uint64_t

cdef class ReplicaState:
    cdef readonly uint64_t incarnation
    cdef readonly uint32_t number
    cdef public uint32_t starts
    cdef public uint64_t term
    cdef public uint32_t vote
    cdef public uint64_t commit
    cdef public bint damaged
