# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
# cython: embedsignature=True, auto_pickle=False
"""Machine. The output of a client's connection: encodes PUBLISH and acknowledgements into a buffer.

This is the hot path; mqtt/encode encodes other packets. The fields are in client/writer.pxd.
"""
cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.unicode cimport PyUnicode_AsUTF8AndSize
from libc.stdint cimport uint8_t, uint16_t, uint32_t
from libc.stdlib cimport free, malloc, realloc
from libc.string cimport memcpy

from fluxmq._core.debug cimport is_transition
from fluxmq._core.errors import UsageError
from fluxmq._core.mqtt.consts cimport *
from fluxmq._core.mqtt.props cimport publish_props_t, scan_publish_props, write_properties
from fluxmq._core.wire.primitives cimport VARINT_MAX, put_bytes16, put_u8, put_u16, put_varint, varint_size
from fluxmq._core.wire.sizes cimport fit_u16, fit_u32
from fluxmq._core.wire.text cimport TEXT_OK, topic_valid

__all__ = ["TRANSITIONS", "ClientWriter"]

STATES = ("NEW", "CONNECTING", "OPEN", "CLOSED")        # by number
TRANSITIONS = {
    ("NEW", "start"): "CONNECTING",
    ("NEW", "end"): "CLOSED",
    ("CONNECTING", "CONNACK"): "OPEN",
    ("CONNECTING", "CONNACK with an error"): "CLOSED",
    ("CONNECTING", "end"): "CLOSED",
    ("OPEN", "end"): "CLOSED",
    ("CLOSED", "end"): "CLOSED",
}

cdef bint may_follow(int state, int after) noexcept:
    return is_transition(STATES, TRANSITIONS, state, after)

cdef enum:
    OUT_BYTES_FULL = 131072     # worth a system call of its own
    OUT_BYTES_KEPT = 65536      # buffer that an idle connection keeps


cdef int view_of(object value, const char** data, Py_ssize_t* n, str what) except -1:
    """The bytes of a bytes or str, borrowed while the object lives."""
    if type(value) is bytes:
        data[0] = PyBytes_AS_STRING(value)
        n[0] = PyBytes_GET_SIZE(value)
    elif isinstance(value, str):
        try:
            data[0] = PyUnicode_AsUTF8AndSize(value, n)
        except UnicodeEncodeError:
            raise UsageError(f"{what} holds a surrogate, which UTF-8 cannot carry") from None
    else:
        raise UsageError(f"{what} must be bytes or str, not {type(value).__name__}")
    return 0


cdef bytes without_length(bytes encoded):
    """Properties without the leading varint."""
    cdef Py_ssize_t start = 1
    while <uint8_t>encoded[start - 1] & 0x80:
        start += 1
    return encoded[start:]


cdef class ClientWriter:
    """Machine. Base class of ClientMachine; never instantiated itself."""

    def __cinit__(self, *args, **kwargs):
        self.out = NULL
        self.state = NEW
        self.version = LEVEL_5
        self.packet_bytes_max_out = VARINT_MAX + 5
        self.aliases_out = {}

    def __dealloc__(self):
        free(self.out)

    def output_ready(self) -> None:
        """There is output. Called once until it is taken, and not from within feed. Override it."""

    def output_full(self) -> None:
        """There is so much output that it should be taken now. Override it."""

    @property
    def pending_bytes(self) -> int:
        """Number of bytes that take_output would return."""
        return self.out_bytes

    def take_output(self) -> bytes:
        """Removes and returns the output; b"" if there is none."""
        cdef bytes taken = PyBytes_FromStringAndSize(<const char*>self.out, self.out_bytes)
        self.out_bytes = 0
        if self.out_room > OUT_BYTES_KEPT:
            free(self.out)
            self.out = NULL
            self.out_room = 0
        return taken

    cdef uint8_t* room(self, size_t n) except NULL:
        """Reserves n bytes; call `appended` with the number written."""
        cdef size_t wanted
        cdef uint8_t* grown
        if self.out_bytes + n > self.out_room:
            wanted = self.out_room * 2 if self.out_room else 256
            while wanted < self.out_bytes + n:
                wanted *= 2
            grown = <uint8_t*>realloc(self.out, wanted)
            if grown == NULL:
                raise MemoryError()
            self.out = grown
            self.out_room = wanted
        return self.out + self.out_bytes

    cdef int appended(self, size_t n) except -1:
        cdef bint first = self.out_bytes == 0
        self.out_bytes += n
        if self.out_bytes >= OUT_BYTES_FULL:
            self.output_full()
        elif first and not self.feeding:
            self.output_ready()
        return 0

    cdef int write(self, bytes packet) except -1:
        cdef size_t n = PyBytes_GET_SIZE(packet)
        memcpy(self.room(n), PyBytes_AS_STRING(packet), n)
        self.appended(n)
        return 0

    cdef int write_ack(self, int kind, int packet_id, int reason) except -1:
        cdef uint8_t* p
        cdef bint with_reason = reason != 0 and self.version >= LEVEL_5
        if self.state != OPEN:
            return 0
        p = self.room(5)
        p[0] = <uint8_t>(kind << 4 | (2 if kind == PUBREL else 0))
        p[1] = 3 if with_reason else 2
        put_u16(p + 2, <uint16_t>packet_id)
        if with_reason:
            p[4] = <uint8_t>reason
        self.appended(5 if with_reason else 4)
        return 0

    cdef int alias_for(self, object topic) except? -65536:
        """The alias of a topic. > 0: it has one; < 0: a new one; 0: none."""
        cdef object known
        if self.alias_max_out == 0:
            return 0
        known = self.aliases_out.get(topic)
        if known is not None:
            return known
        if len(self.aliases_out) >= self.alias_max_out:
            return 0
        self.aliases_out[topic] = len(self.aliases_out) + 1
        return -<int>len(self.aliases_out)

    cdef int write_publish(self, object topic, object payload, bytes properties, int first, int packet_id) except -1:
        cdef const char* text = NULL
        cdef const char* data = NULL
        cdef Py_ssize_t text_bytes = 0, data_bytes = 0, property_bytes = 0
        cdef size_t remaining, total
        cdef int alias = 0
        cdef uint8_t* p
        view_of(topic, &text, &text_bytes, "topic")
        view_of(payload, &data, &data_bytes, "payload")
        if topic is not self.topic_checked:
            if text_bytes > 65535 or topic_valid(<const uint8_t*>text, text_bytes, 0) != TEXT_OK:
                raise UsageError(f"topic must be 1 to 65535 bytes of UTF-8 without wildcards: {topic!r}")
            self.topic_checked = topic
        if self.version >= LEVEL_5:
            property_bytes = PyBytes_GET_SIZE(properties) if properties is not None else 0
            alias = self.alias_for(topic)
            if alias:
                property_bytes += 3
            if alias > 0:
                text_bytes = 0
        remaining = <size_t>(2 + text_bytes + data_bytes)
        if packet_id:
            remaining += 2
        if self.version >= LEVEL_5:
            remaining += <size_t>(varint_size(<uint32_t>min(property_bytes, VARINT_MAX)) + property_bytes)
        total = 1 + varint_size(<uint32_t>min(remaining, VARINT_MAX)) + remaining
        if remaining > VARINT_MAX or total > self.packet_bytes_max_out:
            if alias < 0:
                del self.aliases_out[topic]
            raise UsageError(f"a PUBLISH of {total} bytes; the server takes {self.packet_bytes_max_out}")
        p = put_u8(self.room(total), <uint8_t>first)
        p = put_varint(p, fit_u32(remaining))
        p = put_bytes16(p, text, fit_u16(text_bytes))
        if packet_id:
            p = put_u16(p, <uint16_t>packet_id)
        if self.version >= LEVEL_5:
            p = put_varint(p, fit_u32(property_bytes))
            if alias:
                p = put_u16(put_u8(p, PROPERTY_TOPIC_ALIAS), <uint16_t>(alias if alias > 0 else -alias))
                property_bytes -= 3
            if property_bytes:
                memcpy(p, PyBytes_AS_STRING(properties), property_bytes)
                p += property_bytes
        if data_bytes:
            memcpy(p, data, data_bytes)
        self.appended(total)
        return 0

    cdef bytes properties_of(self, object properties):
        """Properties of a PUBLISH as on the wire, without length; checked once per object."""
        cdef publish_props_t seen
        cdef uint8_t* scratch
        cdef int reason
        if self.version < LEVEL_5:
            raise UsageError("properties need MQTT 5")
        if type(properties) is not bytes:
            properties = without_length(write_properties(list(properties), PUBLISH))
        if properties is self.properties_checked:
            return properties
        scratch = <uint8_t*>malloc(PyBytes_GET_SIZE(properties) + 1)
        if scratch == NULL:
            raise MemoryError()
        reason = scan_publish_props(<const uint8_t*>PyBytes_AS_STRING(properties),
                                    <const uint8_t*>PyBytes_AS_STRING(properties) + PyBytes_GET_SIZE(properties), &seen,
                                    scratch)
        free(scratch)
        if reason:
            raise UsageError("properties must be those of a PUBLISH, as on the wire without their length")
        if seen.topic_alias or seen.has_subscription_id:
            raise UsageError("a client gives no topic_alias by hand (topic_aliases does), no subscription_identifier")
        self.properties_checked = properties
        return properties
