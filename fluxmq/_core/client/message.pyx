# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, auto_pickle=False, embedsignature=True
"""A message that the client received. The fields are in client/message.pxd."""
cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport uint8_t, uint32_t

from fluxmq._core.client.properties import Properties
from fluxmq._core.mqtt.consts cimport PUBLISH
from fluxmq._core.mqtt.props cimport read_properties
from fluxmq._core.wire.primitives cimport Cursor, put_varint

__all__ = ["Message"]


@cython.final
@cython.freelist(1024)
cdef class Message:
    """Value. A PUBLISH that arrived; made by the machine, never by callers. MQTT 5.0 section 3.3.

    topic: bytes, UTF-8, checked; aliases are resolved. packet_id: 0 with QoS 0. properties: as on the wire, without
    their length. acknowledged: PUBACK or PUBREC was sent; always False with QoS 0.
    """

    def __init__(self) -> None:
        raise TypeError("messages are made by a connection")

    def parsed(self):
        """The properties as a list of (identifier, value) with names; empty before MQTT 5."""
        cdef uint8_t[4] room
        cdef Cursor c
        cdef uint8_t* end = put_varint(room, <uint32_t>PyBytes_GET_SIZE(self.properties))
        cdef bytes whole = PyBytes_FromStringAndSize(<const char*>room, end - <uint8_t*>room) + self.properties
        c.at = <const uint8_t*>PyBytes_AS_STRING(whole)
        c.end = c.at + PyBytes_GET_SIZE(whole)
        return Properties(read_properties(&c, PUBLISH))

    def __repr__(self) -> str:
        return (f"Message(topic={self.topic!r}, payload={self.payload[:64]!r}, qos={self.qos}, retain={self.retain}, "
                f"dup={self.dup}, packet_id={self.packet_id})")
