# cython: language_level=3
"""A message that the client received; the machine makes one for each PUBLISH."""


cdef class Message:
    """Value. The fields of a PUBLISH."""
    cdef readonly bytes topic         # aliases resolved
    cdef readonly bytes payload
    cdef readonly int qos
    cdef readonly bint retain
    cdef readonly bint dup
    cdef readonly int packet_id       # 0 if and only if qos is 0
    cdef readonly bytes properties    # as on the wire, without their length; b"" before MQTT 5
    cdef readonly bint acknowledged
    cdef unsigned long long connection      # serial number of the machine that made it
