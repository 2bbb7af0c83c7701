# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
# cython: embedsignature=True, auto_pickle=False
"""MQTT packets to bytes. mqtt/decode reads them back as equal packets.

Fields are checked here. A field that the version cannot carry (properties before 5, a reason code in a 3.1.1 PUBACK)
raises UsageError: the caller decides what a peer of an older version gets. A reason code of 0 without properties is
written in the short form.
"""
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport uint8_t, uint16_t, uint32_t
from libc.string cimport memcpy

from fluxmq._core.errors import UsageError
from fluxmq._core.mqtt.consts cimport *
from fluxmq._core.mqtt.decode cimport reason_fits
from fluxmq._core.mqtt.fields cimport write_binary, write_number, write_text
from fluxmq._core.mqtt.packets cimport (
    Ack, Auth, Connect, ConnAck, Disconnect, Packet, Publish, SubAck, Subscribe, Subscription, UnsubAck, Unsubscribe,
    Will,
)
from fluxmq._core.mqtt.props cimport write_properties
from fluxmq._core.wire.primitives cimport VARINT_MAX, put_u8, put_varint, varint_size
from fluxmq._core.wire.sizes cimport fit_u32
from fluxmq._core.wire.text cimport TEXT_OK, topic_valid


cdef bytes properties_if(list properties, int where, int version):
    if version >= LEVEL_5:
        return write_properties(properties, where)
    if properties:
        raise UsageError("properties need MQTT 5")
    return b""


cdef bytes packet_id_of(int packet_id):
    if not 1 <= packet_id <= 65535:
        raise UsageError(f"packet_id must be 1 to 65535, not {packet_id}")
    return packet_id.to_bytes(2, "big")


cdef bytes reason_of(object reason, int kind, int version):
    if not isinstance(reason, int) or not 0 <= reason <= 255 or not reason_fits(kind, reason, version):
        raise UsageError(f"{reason!r} is not a reason code of packet type {kind} in protocol level {version}")
    return bytes((reason,))


cdef bytes topic_of(str topic, str what):
    cdef bytes data = write_text(topic, what)
    if topic_valid(<const uint8_t*>PyBytes_AS_STRING(data) + 2, <size_t>PyBytes_GET_SIZE(data) - 2, 0) != TEXT_OK:
        raise UsageError(f"{what} must not be empty nor hold a wildcard: {topic!r}")
    return data


cdef int check_qos(int qos, str what) except -1:
    if not 0 <= qos <= 2:
        raise UsageError(f"{what} must be 0, 1 or 2, not {qos}")
    return 0


cdef int check_authentication(Packet packet) except -1:
    if (packet.get(PROPERTY_AUTHENTICATION_DATA) is not None
            and packet.get(PROPERTY_AUTHENTICATION_METHOD) is None):
        raise UsageError("authentication_data needs an authentication_method")
    return 0


cdef bytes encode_connect(Connect packet):
    cdef int level = packet.protocol_level
    cdef int flags = packet.clean_start << 1
    cdef Will will = packet.will
    if not LEVEL_31 <= level <= LEVEL_5:
        raise UsageError(f"protocol_level must be 3, 4 or 5, not {level}")
    if level < LEVEL_5 and packet.password is not None and packet.username is None:
        raise UsageError("before version 5 there is no password without a user name")
    if not packet.client_id and (level == LEVEL_31 or (level == LEVEL_311 and not packet.clean_start)):
        raise UsageError("an empty client_id needs MQTT 5, or MQTT 3.1.1 with clean_start")
    check_authentication(packet)
    parts = [write_number(packet.keep_alive, 2, "keep_alive"), properties_if(packet.properties, CONNECT, level),
             write_text(packet.client_id, "client_id")]
    if will is not None:
        check_qos(will.qos, "the will's qos")
        flags |= 0x04 | will.qos << 3 | will.retain << 5
        parts += [properties_if(will.properties, WILL, level), topic_of(will.topic, "the will's topic"),
                  write_binary(will.payload, "the will's payload")]
    if packet.username is not None:
        flags |= 0x80
        parts.append(write_text(packet.username, "username"))
    if packet.password is not None:
        flags |= 0x40
        parts.append(write_binary(packet.password, "password"))
    name = b"\x00\x06MQIsdp" if level == LEVEL_31 else b"\x00\x04MQTT"
    return name + bytes((level, flags)) + b"".join(parts)


cdef bytes encode_connack(ConnAck packet, int version):
    if packet.session_present and packet.reason_code:
        raise UsageError("session_present must be False when the connection is refused")
    check_authentication(packet)
    return (bytes((packet.session_present,)) + reason_of(packet.reason_code, CONNACK, version)
            + properties_if(packet.properties, CONNACK, version))


cdef bytes encode_publish(Publish packet, int version):
    """The whole packet in one allocation: the payload is copied once."""
    cdef bytes topic, middle, whole
    cdef size_t size
    cdef uint8_t* p
    check_qos(packet.qos, "qos")
    if packet.dup and packet.qos == 0:
        raise UsageError("dup must be False when qos is 0")
    if (packet.packet_id == 0) != (packet.qos == 0):
        raise UsageError("packet_id must be 0 when qos is 0, and 1 to 65535 otherwise")
    middle = properties_if(packet.properties, PUBLISH, version)
    if packet.qos:
        middle = packet_id_of(packet.packet_id) + middle
    if packet.topic:
        topic = topic_of(packet.topic, "topic")
    elif version >= LEVEL_5 and packet.get(PROPERTY_TOPIC_ALIAS) is not None:
        topic = b"\0\0"
    else:
        raise UsageError("an empty topic needs MQTT 5 and a topic alias")
    size = <size_t>(PyBytes_GET_SIZE(topic) + PyBytes_GET_SIZE(middle) + PyBytes_GET_SIZE(packet.payload))
    check_size(size)
    whole = PyBytes_FromStringAndSize(NULL, 1 + varint_size(fit_u32(size)) + <Py_ssize_t>size)
    p = <uint8_t*>PyBytes_AS_STRING(whole)
    p = put_u8(p, <uint8_t>(PUBLISH << 4 | packet.dup << 3 | packet.qos << 1 | packet.retain))
    p = put_varint(p, fit_u32(size))
    for part in (topic, middle, packet.payload):
        memcpy(p, PyBytes_AS_STRING(<bytes>part), <size_t>PyBytes_GET_SIZE(<bytes>part))
        p += PyBytes_GET_SIZE(<bytes>part)
    return whole


cdef bytes encode_ack(Ack packet, int version):
    cdef bytes body = packet_id_of(packet.packet_id)
    reason = reason_of(packet.reason_code, packet.packet_type, version)
    properties = properties_if(packet.properties, packet.packet_type, version)
    if version < LEVEL_5 or not (packet.reason_code or packet.properties):
        return body
    return body + reason + (properties if packet.properties else b"")


cdef bytes encode_subscription(Subscription one, int version):
    cdef bytes filter = write_text(one.filter, "a topic filter")
    check_qos(one.qos, "a subscription's qos")
    if not one.filter:
        raise UsageError("a topic filter must not be empty")
    if not 0 <= one.retain_handling <= 2:
        raise UsageError(f"retain_handling must be 0, 1 or 2, not {one.retain_handling}")
    if version < LEVEL_5 and (one.no_local or one.retain_as_published or one.retain_handling):
        raise UsageError("subscription options other than qos need MQTT 5")
    if one.no_local and one.filter.startswith("$share/"):
        raise UsageError("no_local must be False on a shared subscription")
    return filter + bytes((one.qos | one.no_local << 2 | one.retain_as_published << 3 | one.retain_handling << 4,))


cdef bytes encode_subscribe(Subscribe packet, int version):
    if not packet.subscriptions or not all(isinstance(one, Subscription) for one in packet.subscriptions):
        raise UsageError("subscriptions must be a list of Subscription, at least one")
    return (packet_id_of(packet.packet_id) + properties_if(packet.properties, SUBSCRIBE, version)
            + b"".join([encode_subscription(one, version) for one in packet.subscriptions]))


cdef bytes encode_unsubscribe(Unsubscribe packet, int version):
    if not packet.filters or not all(packet.filters):
        raise UsageError("filters must hold at least one topic filter, and none that is empty")
    return (packet_id_of(packet.packet_id) + properties_if(packet.properties, UNSUBSCRIBE, version)
            + b"".join([write_text(one, "a topic filter") for one in packet.filters]))


cdef bytes encode_reasons(int packet_id, list codes, list properties, int kind, int version):
    if bool(codes) == (kind == UNSUBACK and version < LEVEL_5):
        raise UsageError("reason_codes must hold one per topic filter, and be empty in an UNSUBACK before MQTT 5")
    return (packet_id_of(packet_id) + properties_if(properties, kind, version)
            + b"".join([reason_of(code, kind, version) for code in codes]))


cdef bytes encode_disconnect(Disconnect packet, int version):
    reason = reason_of(packet.reason_code, DISCONNECT, version)
    properties = properties_if(packet.properties, DISCONNECT, version)
    if not (packet.reason_code or packet.properties):
        return b""
    return reason + (properties if packet.properties else b"")


cdef bytes encode_auth(Auth packet, int version):
    if version < LEVEL_5:
        raise UsageError("AUTH needs MQTT 5")
    if packet.reason_code and packet.get(PROPERTY_AUTHENTICATION_METHOD) is None:
        raise UsageError("AUTH must name its authentication_method")
    check_authentication(packet)
    reason = reason_of(packet.reason_code, AUTH, version)
    if not (packet.reason_code or packet.properties):
        return b""
    return reason + write_properties(packet.properties, AUTH)


cdef int check_size(size_t size) except -1:
    if size > VARINT_MAX:
        raise UsageError(f"a packet of {size} bytes; the wire carries at most {VARINT_MAX} behind the fixed header")
    return 0


cdef bytes encode_body(Packet packet, int version):
    cdef int kind = packet.packet_type
    if kind == CONNECT:
        return encode_connect(<Connect>packet)
    if kind == CONNACK:
        return encode_connack(<ConnAck>packet, version)
    if PUBACK <= kind <= PUBCOMP:
        return encode_ack(<Ack>packet, version)
    if kind == SUBSCRIBE:
        return encode_subscribe(<Subscribe>packet, version)
    if kind == SUBACK:
        return encode_reasons((<SubAck>packet).packet_id, (<SubAck>packet).reason_codes,
                              (<SubAck>packet).properties, SUBACK, version)
    if kind == UNSUBSCRIBE:
        return encode_unsubscribe(<Unsubscribe>packet, version)
    if kind == UNSUBACK:
        return encode_reasons((<UnsubAck>packet).packet_id, (<UnsubAck>packet).reason_codes,
                              (<UnsubAck>packet).properties, UNSUBACK, version)
    if kind == DISCONNECT:
        return encode_disconnect(<Disconnect>packet, version)
    if kind == AUTH:
        return encode_auth(<Auth>packet, version)
    return b""    # PINGREQ, PINGRESP


def encode_packet(Packet packet not None, version: int) -> bytes:
    """The wire bytes of one packet, fixed header included.

    version: protocol level 3, 4 or 5; CONNECT uses its own protocol_level, and version must be that or 0.
    Raises UsageError if a field does not fit the wire or the version.
    """
    cdef int kind = packet.packet_type
    cdef uint8_t[5] header
    cdef uint8_t* p
    if kind == 0:
        raise UsageError(f"{type(packet).__name__} is part of a packet, not a packet")
    if kind == CONNECT:
        if version not in (0, (<Connect>packet).protocol_level):
            raise UsageError(f"CONNECT is of level {(<Connect>packet).protocol_level}, not {version}")
    elif not LEVEL_31 <= version <= LEVEL_5:
        raise UsageError(f"version must be 3, 4 or 5, not {version}")
    if kind == PUBLISH:
        return encode_publish(<Publish>packet, version)
    body = encode_body(packet, version)
    check_size(<size_t>len(body))
    p = put_u8(header, <uint8_t>(kind << 4 | (2 if kind in (PUBREL, SUBSCRIBE, UNSUBSCRIBE) else 0)))
    p = put_varint(p, <uint32_t>len(body))
    return PyBytes_FromStringAndSize(<const char*>header, p - <uint8_t*>header) + body
