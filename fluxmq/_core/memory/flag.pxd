"""A boolean of one byte, for structs and classes of which there are many: a bint is an int."""

cdef extern from "<stdbool.h>":
    ctypedef bint flag_t "bool"
