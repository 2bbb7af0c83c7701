# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
# cython: embedsignature=True, auto_pickle=False
"""The methods of AMQP 0-9-1 as values. amqp091/methods.pxd lists the fields.

Made by proto/amqp091/generate.py from the table beside it: change that, not this.
It is one file because nobody reads or changes it but the program.

Built with keywords, compared by value, not hashable (they hold tables). Text is str: UTF-8, and surrogates for bytes
that are not, so that any bytes survive. Tables are what decode_table answers.
"""
cimport cython
from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t

from fluxmq._core.amqp091.consts cimport (
    BASIC_ACK, BASIC_CANCEL, BASIC_CANCEL_OK, BASIC_CONSUME, BASIC_CONSUME_OK, BASIC_DELIVER, BASIC_GET,
    BASIC_GET_EMPTY, BASIC_GET_OK, BASIC_NACK, BASIC_PUBLISH, BASIC_QOS, BASIC_QOS_OK, BASIC_RECOVER,
    BASIC_RECOVER_ASYNC, BASIC_RECOVER_OK, BASIC_REJECT, BASIC_RETURN, CHANNEL_CLOSE, CHANNEL_CLOSE_OK, CHANNEL_FLOW,
    CHANNEL_FLOW_OK, CHANNEL_OPEN, CHANNEL_OPEN_OK, CLASS_BASIC, CLASS_CHANNEL, CLASS_CONFIRM, CLASS_CONNECTION,
    CLASS_EXCHANGE, CLASS_QUEUE, CLASS_TX, CONFIRM_SELECT, CONFIRM_SELECT_OK, CONNECTION_BLOCKED, CONNECTION_CLOSE,
    CONNECTION_CLOSE_OK, CONNECTION_OPEN, CONNECTION_OPEN_OK, CONNECTION_SECURE, CONNECTION_SECURE_OK, CONNECTION_START,
    CONNECTION_START_OK, CONNECTION_TUNE, CONNECTION_TUNE_OK, CONNECTION_UNBLOCKED, CONNECTION_UPDATE_SECRET,
    CONNECTION_UPDATE_SECRET_OK, EXCHANGE_BIND, EXCHANGE_BIND_OK, EXCHANGE_DECLARE, EXCHANGE_DECLARE_OK,
    EXCHANGE_DELETE, EXCHANGE_DELETE_OK, EXCHANGE_UNBIND, EXCHANGE_UNBIND_OK, FRAME_END, FRAME_METHOD, QUEUE_BIND,
    QUEUE_BIND_OK, QUEUE_DECLARE, QUEUE_DECLARE_OK, QUEUE_DELETE, QUEUE_DELETE_OK, QUEUE_PURGE, QUEUE_PURGE_OK,
    QUEUE_UNBIND, QUEUE_UNBIND_OK, REPLY_COMMAND_INVALID, REPLY_FRAME_ERROR, REPLY_NOT_IMPLEMENTED, TX_COMMIT,
    TX_COMMIT_OK, TX_ROLLBACK, TX_ROLLBACK_OK, TX_SELECT, TX_SELECT_OK)
from fluxmq._core.amqp091.fields cimport (
    expect_end, read_longstr, read_longtext, read_number, read_shortstr, read_table, write_longstr,
    write_longtext, write_number, write_shortstr, write_table, writer_bytes, writer_close, writer_more, writer_open,
    writer_t)
from fluxmq._core.wire.primitives cimport Cursor, peek_u32, put_u8, put_u16, put_u32
from fluxmq._core.wire.sizes cimport fit_u32

from fluxmq._core.errors import ProtocolError, UsageError


cdef class Method:
    """Value. Root of the methods; carries what they share and is never built itself.

    number: class << 16 | method. fields: names of the attributes. by_client, by_server: who may send it. synchronous:
    the peer must answer it. has_content: a content header follows.
    """

    number = 0
    name = ""
    fields = ()
    by_client = False
    by_server = False
    synchronous = False
    has_content = False

    def __init__(self) -> None:
        if type(self) is Method:
            raise TypeError("Method is a root; build one of the methods derived from it")

    @cython.final
    cdef uint32_t code(self) except? 0:
        return self.number

    @cython.final
    cdef tuple values(self):
        return tuple([getattr(self, name) for name in self.fields])

    cdef int read(self, Cursor* c) except -1:
        return 0

    cdef int write(self, writer_t* w) except -1:
        return 0

    def encode(self) -> bytes:
        """The payload of its frame: class, method, arguments. Raises UsageError when one does not fit the wire."""
        cdef writer_t w
        writer_open(&w)
        try:
            write_number(&w, self.code(), 4)
            self.write(&w)
            return writer_bytes(&w)
        finally:
            writer_close(&w)

    def frame(self, channel: int) -> bytes:
        """Its whole frame, from the type to the octet that ends it."""
        cdef writer_t w
        cdef uint8_t* p
        if not 0 <= channel <= 0xFFFF:
            raise UsageError(f"a channel is 0 to 65535, not {channel}")
        writer_open(&w)
        try:
            p = put_u16(put_u8(writer_more(&w, 7), FRAME_METHOD), <uint16_t>channel)
            write_number(&w, self.code(), 4)
            self.write(&w)
            put_u32(w.data + 3, fit_u32(w.used - 7))
            writer_more(&w, 1)[0] = FRAME_END
            return writer_bytes(&w)
        finally:
            writer_close(&w)

    def __eq__(self, other: object) -> bool:
        if type(self) is not type(other):
            return NotImplemented
        return self.values() == (<Method>other).values()

    __hash__ = None

    def __repr__(self) -> str:
        shown = ", ".join(f"{name}={value!r}" for name, value in zip(self.fields, self.values()))
        return f"{type(self).__name__}({shown})"


@cython.final
cdef class ConnectionStart(Method):
    """Value. connection.start (10, 10): answered by start-ok."""

    number = CONNECTION_START
    name = "connection.start"
    fields = ("version_major", "version_minor", "server_properties", "mechanisms", "locales")
    by_server = True
    synchronous = True

    def __init__(self, *, uint8_t version_major=0, uint8_t version_minor=0, dict server_properties=None,
                 str mechanisms not None="", str locales not None="") -> None:
        self.version_major = version_major
        self.version_minor = version_minor
        self.server_properties = {} if server_properties is None else server_properties
        self.mechanisms = mechanisms
        self.locales = locales

    cdef int read(self, Cursor* c) except -1:
        self.version_major = <uint8_t>read_number(c, 1, "the version-major of connection.start")
        self.version_minor = <uint8_t>read_number(c, 1, "the version-minor of connection.start")
        self.server_properties = read_table(c, "the server-properties of connection.start")
        self.mechanisms = read_longtext(c, "the mechanisms of connection.start")
        self.locales = read_longtext(c, "the locales of connection.start")
        return 0

    cdef int write(self, writer_t* w) except -1:
        write_number(w, self.version_major, 1)
        write_number(w, self.version_minor, 1)
        write_table(w, self.server_properties, "server-properties")
        write_longtext(w, self.mechanisms, "mechanisms")
        write_longtext(w, self.locales, "locales")
        return 0


@cython.final
cdef class ConnectionStartOk(Method):
    """Value. connection.start-ok (10, 11)."""

    number = CONNECTION_START_OK
    name = "connection.start-ok"
    fields = ("client_properties", "mechanism", "response", "locale")
    by_client = True

    def __init__(self, *, dict client_properties=None, str mechanism not None="", bytes response not None=b"",
                 str locale not None="") -> None:
        self.client_properties = {} if client_properties is None else client_properties
        self.mechanism = mechanism
        self.response = response
        self.locale = locale

    cdef int read(self, Cursor* c) except -1:
        self.client_properties = read_table(c, "the client-properties of connection.start-ok")
        self.mechanism = read_shortstr(c, "the mechanism of connection.start-ok")
        self.response = read_longstr(c, "the response of connection.start-ok")
        self.locale = read_shortstr(c, "the locale of connection.start-ok")
        return 0

    cdef int write(self, writer_t* w) except -1:
        write_table(w, self.client_properties, "client-properties")
        write_shortstr(w, self.mechanism, "mechanism")
        write_longstr(w, self.response, "response")
        write_shortstr(w, self.locale, "locale")
        return 0


@cython.final
cdef class ConnectionSecure(Method):
    """Value. connection.secure (10, 20): answered by secure-ok."""

    number = CONNECTION_SECURE
    name = "connection.secure"
    fields = ("challenge",)
    by_server = True
    synchronous = True

    def __init__(self, *, bytes challenge not None=b"") -> None:
        self.challenge = challenge

    cdef int read(self, Cursor* c) except -1:
        self.challenge = read_longstr(c, "the challenge of connection.secure")
        return 0

    cdef int write(self, writer_t* w) except -1:
        write_longstr(w, self.challenge, "challenge")
        return 0


@cython.final
cdef class ConnectionSecureOk(Method):
    """Value. connection.secure-ok (10, 21)."""

    number = CONNECTION_SECURE_OK
    name = "connection.secure-ok"
    fields = ("response",)
    by_client = True

    def __init__(self, *, bytes response not None=b"") -> None:
        self.response = response

    cdef int read(self, Cursor* c) except -1:
        self.response = read_longstr(c, "the response of connection.secure-ok")
        return 0

    cdef int write(self, writer_t* w) except -1:
        write_longstr(w, self.response, "response")
        return 0


@cython.final
cdef class ConnectionTune(Method):
    """Value. connection.tune (10, 30): answered by tune-ok."""

    number = CONNECTION_TUNE
    name = "connection.tune"
    fields = ("channel_max", "frame_max", "heartbeat")
    by_server = True
    synchronous = True

    def __init__(self, *, uint16_t channel_max=0, uint32_t frame_max=0, uint16_t heartbeat=0) -> None:
        self.channel_max = channel_max
        self.frame_max = frame_max
        self.heartbeat = heartbeat

    cdef int read(self, Cursor* c) except -1:
        self.channel_max = <uint16_t>read_number(c, 2, "the channel-max of connection.tune")
        self.frame_max = <uint32_t>read_number(c, 4, "the frame-max of connection.tune")
        self.heartbeat = <uint16_t>read_number(c, 2, "the heartbeat of connection.tune")
        return 0

    cdef int write(self, writer_t* w) except -1:
        write_number(w, self.channel_max, 2)
        write_number(w, self.frame_max, 4)
        write_number(w, self.heartbeat, 2)
        return 0


@cython.final
cdef class ConnectionTuneOk(Method):
    """Value. connection.tune-ok (10, 31)."""

    number = CONNECTION_TUNE_OK
    name = "connection.tune-ok"
    fields = ("channel_max", "frame_max", "heartbeat")
    by_client = True

    def __init__(self, *, uint16_t channel_max=0, uint32_t frame_max=0, uint16_t heartbeat=0) -> None:
        self.channel_max = channel_max
        self.frame_max = frame_max
        self.heartbeat = heartbeat

    cdef int read(self, Cursor* c) except -1:
        self.channel_max = <uint16_t>read_number(c, 2, "the channel-max of connection.tune-ok")
        self.frame_max = <uint32_t>read_number(c, 4, "the frame-max of connection.tune-ok")
        self.heartbeat = <uint16_t>read_number(c, 2, "the heartbeat of connection.tune-ok")
        return 0

    cdef int write(self, writer_t* w) except -1:
        write_number(w, self.channel_max, 2)
        write_number(w, self.frame_max, 4)
        write_number(w, self.heartbeat, 2)
        return 0


@cython.final
cdef class ConnectionOpen(Method):
    """Value. connection.open (10, 40): answered by open-ok."""

    number = CONNECTION_OPEN
    name = "connection.open"
    fields = ("virtual_host",)
    by_client = True
    synchronous = True

    def __init__(self, *, str virtual_host not None="") -> None:
        self.virtual_host = virtual_host

    cdef int read(self, Cursor* c) except -1:
        self.virtual_host = read_shortstr(c, "the virtual-host of connection.open")
        read_shortstr(c, "a reserved field of connection.open")
        read_number(c, 1, "a reserved field of connection.open")
        return 0

    cdef int write(self, writer_t* w) except -1:
        write_shortstr(w, self.virtual_host, "virtual-host")
        write_shortstr(w, "", "reserved")
        write_number(w, 0, 1)
        return 0


@cython.final
cdef class ConnectionOpenOk(Method):
    """Value. connection.open-ok (10, 41)."""

    number = CONNECTION_OPEN_OK
    name = "connection.open-ok"
    by_server = True

    cdef int read(self, Cursor* c) except -1:
        read_shortstr(c, "a reserved field of connection.open-ok")
        return 0

    cdef int write(self, writer_t* w) except -1:
        write_shortstr(w, "", "reserved")
        return 0


@cython.final
cdef class ConnectionClose(Method):
    """Value. connection.close (10, 50): answered by close-ok."""

    number = CONNECTION_CLOSE
    name = "connection.close"
    fields = ("reply_code", "reply_text", "class_id", "method_id")
    by_client = True
    by_server = True
    synchronous = True

    def __init__(self, *, uint16_t reply_code=0, str reply_text not None="", uint16_t class_id=0,
                 uint16_t method_id=0) -> None:
        self.reply_code = reply_code
        self.reply_text = reply_text
        self.class_id = class_id
        self.method_id = method_id

    cdef int read(self, Cursor* c) except -1:
        self.reply_code = <uint16_t>read_number(c, 2, "the reply-code of connection.close")
        self.reply_text = read_shortstr(c, "the reply-text of connection.close")
        self.class_id = <uint16_t>read_number(c, 2, "the class-id of connection.close")
        self.method_id = <uint16_t>read_number(c, 2, "the method-id of connection.close")
        return 0

    cdef int write(self, writer_t* w) except -1:
        write_number(w, self.reply_code, 2)
        write_shortstr(w, self.reply_text, "reply-text")
        write_number(w, self.class_id, 2)
        write_number(w, self.method_id, 2)
        return 0


@cython.final
cdef class ConnectionCloseOk(Method):
    """Value. connection.close-ok (10, 51)."""

    number = CONNECTION_CLOSE_OK
    name = "connection.close-ok"
    by_client = True
    by_server = True


@cython.final
cdef class ConnectionBlocked(Method):
    """Value. connection.blocked (10, 60)."""

    number = CONNECTION_BLOCKED
    name = "connection.blocked"
    fields = ("reason",)
    by_server = True

    def __init__(self, *, str reason not None="") -> None:
        self.reason = reason

    cdef int read(self, Cursor* c) except -1:
        self.reason = read_shortstr(c, "the reason of connection.blocked")
        return 0

    cdef int write(self, writer_t* w) except -1:
        write_shortstr(w, self.reason, "reason")
        return 0


@cython.final
cdef class ConnectionUnblocked(Method):
    """Value. connection.unblocked (10, 61)."""

    number = CONNECTION_UNBLOCKED
    name = "connection.unblocked"
    by_server = True


@cython.final
cdef class ConnectionUpdateSecret(Method):
    """Value. connection.update-secret (10, 70): answered by update-secret-ok."""

    number = CONNECTION_UPDATE_SECRET
    name = "connection.update-secret"
    fields = ("new_secret", "reason")
    by_client = True
    synchronous = True

    def __init__(self, *, bytes new_secret not None=b"", str reason not None="") -> None:
        self.new_secret = new_secret
        self.reason = reason

    cdef int read(self, Cursor* c) except -1:
        self.new_secret = read_longstr(c, "the new-secret of connection.update-secret")
        self.reason = read_shortstr(c, "the reason of connection.update-secret")
        return 0

    cdef int write(self, writer_t* w) except -1:
        write_longstr(w, self.new_secret, "new-secret")
        write_shortstr(w, self.reason, "reason")
        return 0


@cython.final
cdef class ConnectionUpdateSecretOk(Method):
    """Value. connection.update-secret-ok (10, 71)."""

    number = CONNECTION_UPDATE_SECRET_OK
    name = "connection.update-secret-ok"
    by_server = True


@cython.final
cdef class ChannelOpen(Method):
    """Value. channel.open (20, 10): answered by open-ok."""

    number = CHANNEL_OPEN
    name = "channel.open"
    by_client = True
    synchronous = True

    cdef int read(self, Cursor* c) except -1:
        read_shortstr(c, "a reserved field of channel.open")
        return 0

    cdef int write(self, writer_t* w) except -1:
        write_shortstr(w, "", "reserved")
        return 0


@cython.final
cdef class ChannelOpenOk(Method):
    """Value. channel.open-ok (20, 11)."""

    number = CHANNEL_OPEN_OK
    name = "channel.open-ok"
    by_server = True

    cdef int read(self, Cursor* c) except -1:
        read_longstr(c, "a reserved field of channel.open-ok")
        return 0

    cdef int write(self, writer_t* w) except -1:
        write_longstr(w, b"", "reserved")
        return 0


@cython.final
cdef class ChannelFlow(Method):
    """Value. channel.flow (20, 20): answered by flow-ok."""

    number = CHANNEL_FLOW
    name = "channel.flow"
    fields = ("active",)
    by_client = True
    by_server = True
    synchronous = True

    def __init__(self, *, bint active=False) -> None:
        self.active = active

    cdef int read(self, Cursor* c) except -1:
        cdef uint8_t bits
        bits = <uint8_t>read_number(c, 1, "the bits of channel.flow")
        self.active = bits & 1
        return 0

    cdef int write(self, writer_t* w) except -1:
        write_number(w, self.active, 1)
        return 0


@cython.final
cdef class ChannelFlowOk(Method):
    """Value. channel.flow-ok (20, 21)."""

    number = CHANNEL_FLOW_OK
    name = "channel.flow-ok"
    fields = ("active",)
    by_client = True
    by_server = True

    def __init__(self, *, bint active=False) -> None:
        self.active = active

    cdef int read(self, Cursor* c) except -1:
        cdef uint8_t bits
        bits = <uint8_t>read_number(c, 1, "the bits of channel.flow-ok")
        self.active = bits & 1
        return 0

    cdef int write(self, writer_t* w) except -1:
        write_number(w, self.active, 1)
        return 0


@cython.final
cdef class ChannelClose(Method):
    """Value. channel.close (20, 40): answered by close-ok."""

    number = CHANNEL_CLOSE
    name = "channel.close"
    fields = ("reply_code", "reply_text", "class_id", "method_id")
    by_client = True
    by_server = True
    synchronous = True

    def __init__(self, *, uint16_t reply_code=0, str reply_text not None="", uint16_t class_id=0,
                 uint16_t method_id=0) -> None:
        self.reply_code = reply_code
        self.reply_text = reply_text
        self.class_id = class_id
        self.method_id = method_id

    cdef int read(self, Cursor* c) except -1:
        self.reply_code = <uint16_t>read_number(c, 2, "the reply-code of channel.close")
        self.reply_text = read_shortstr(c, "the reply-text of channel.close")
        self.class_id = <uint16_t>read_number(c, 2, "the class-id of channel.close")
        self.method_id = <uint16_t>read_number(c, 2, "the method-id of channel.close")
        return 0

    cdef int write(self, writer_t* w) except -1:
        write_number(w, self.reply_code, 2)
        write_shortstr(w, self.reply_text, "reply-text")
        write_number(w, self.class_id, 2)
        write_number(w, self.method_id, 2)
        return 0


@cython.final
cdef class ChannelCloseOk(Method):
    """Value. channel.close-ok (20, 41)."""

    number = CHANNEL_CLOSE_OK
    name = "channel.close-ok"
    by_client = True
    by_server = True


@cython.final
cdef class ExchangeDeclare(Method):
    """Value. exchange.declare (40, 10): answered by declare-ok."""

    number = EXCHANGE_DECLARE
    name = "exchange.declare"
    fields = ("exchange", "type", "passive", "durable", "auto_delete", "internal", "no_wait", "arguments")
    by_client = True
    synchronous = True

    def __init__(self, *, str exchange not None="", str type not None="", bint passive=False,
                 bint durable=False, bint auto_delete=False, bint internal=False, bint no_wait=False,
                 dict arguments=None) -> None:
        self.exchange = exchange
        self.type = type
        self.passive = passive
        self.durable = durable
        self.auto_delete = auto_delete
        self.internal = internal
        self.no_wait = no_wait
        self.arguments = {} if arguments is None else arguments

    cdef int read(self, Cursor* c) except -1:
        cdef uint8_t bits
        read_number(c, 2, "a reserved field of exchange.declare")
        self.exchange = read_shortstr(c, "the exchange of exchange.declare")
        self.type = read_shortstr(c, "the type of exchange.declare")
        bits = <uint8_t>read_number(c, 1, "the bits of exchange.declare")
        self.passive = bits & 1
        self.durable = bits >> 1 & 1
        self.auto_delete = bits >> 2 & 1
        self.internal = bits >> 3 & 1
        self.no_wait = bits >> 4 & 1
        self.arguments = read_table(c, "the arguments of exchange.declare")
        return 0

    cdef int write(self, writer_t* w) except -1:
        write_number(w, 0, 2)
        write_shortstr(w, self.exchange, "exchange")
        write_shortstr(w, self.type, "type")
        write_number(w, self.passive | self.durable << 1 | self.auto_delete << 2 | self.internal << 3 |
                        self.no_wait << 4, 1)
        write_table(w, self.arguments, "arguments")
        return 0


@cython.final
cdef class ExchangeDeclareOk(Method):
    """Value. exchange.declare-ok (40, 11)."""

    number = EXCHANGE_DECLARE_OK
    name = "exchange.declare-ok"
    by_server = True


@cython.final
cdef class ExchangeDelete(Method):
    """Value. exchange.delete (40, 20): answered by delete-ok."""

    number = EXCHANGE_DELETE
    name = "exchange.delete"
    fields = ("exchange", "if_unused", "no_wait")
    by_client = True
    synchronous = True

    def __init__(self, *, str exchange not None="", bint if_unused=False, bint no_wait=False) -> None:
        self.exchange = exchange
        self.if_unused = if_unused
        self.no_wait = no_wait

    cdef int read(self, Cursor* c) except -1:
        cdef uint8_t bits
        read_number(c, 2, "a reserved field of exchange.delete")
        self.exchange = read_shortstr(c, "the exchange of exchange.delete")
        bits = <uint8_t>read_number(c, 1, "the bits of exchange.delete")
        self.if_unused = bits & 1
        self.no_wait = bits >> 1 & 1
        return 0

    cdef int write(self, writer_t* w) except -1:
        write_number(w, 0, 2)
        write_shortstr(w, self.exchange, "exchange")
        write_number(w, self.if_unused | self.no_wait << 1, 1)
        return 0


@cython.final
cdef class ExchangeDeleteOk(Method):
    """Value. exchange.delete-ok (40, 21)."""

    number = EXCHANGE_DELETE_OK
    name = "exchange.delete-ok"
    by_server = True


@cython.final
cdef class ExchangeBind(Method):
    """Value. exchange.bind (40, 30): answered by bind-ok."""

    number = EXCHANGE_BIND
    name = "exchange.bind"
    fields = ("destination", "source", "routing_key", "no_wait", "arguments")
    by_client = True
    synchronous = True

    def __init__(self, *, str destination not None="", str source not None="", str routing_key not None="",
                 bint no_wait=False, dict arguments=None) -> None:
        self.destination = destination
        self.source = source
        self.routing_key = routing_key
        self.no_wait = no_wait
        self.arguments = {} if arguments is None else arguments

    cdef int read(self, Cursor* c) except -1:
        cdef uint8_t bits
        read_number(c, 2, "a reserved field of exchange.bind")
        self.destination = read_shortstr(c, "the destination of exchange.bind")
        self.source = read_shortstr(c, "the source of exchange.bind")
        self.routing_key = read_shortstr(c, "the routing-key of exchange.bind")
        bits = <uint8_t>read_number(c, 1, "the bits of exchange.bind")
        self.no_wait = bits & 1
        self.arguments = read_table(c, "the arguments of exchange.bind")
        return 0

    cdef int write(self, writer_t* w) except -1:
        write_number(w, 0, 2)
        write_shortstr(w, self.destination, "destination")
        write_shortstr(w, self.source, "source")
        write_shortstr(w, self.routing_key, "routing-key")
        write_number(w, self.no_wait, 1)
        write_table(w, self.arguments, "arguments")
        return 0


@cython.final
cdef class ExchangeBindOk(Method):
    """Value. exchange.bind-ok (40, 31)."""

    number = EXCHANGE_BIND_OK
    name = "exchange.bind-ok"
    by_server = True


@cython.final
cdef class ExchangeUnbind(Method):
    """Value. exchange.unbind (40, 40): answered by unbind-ok."""

    number = EXCHANGE_UNBIND
    name = "exchange.unbind"
    fields = ("destination", "source", "routing_key", "no_wait", "arguments")
    by_client = True
    synchronous = True

    def __init__(self, *, str destination not None="", str source not None="", str routing_key not None="",
                 bint no_wait=False, dict arguments=None) -> None:
        self.destination = destination
        self.source = source
        self.routing_key = routing_key
        self.no_wait = no_wait
        self.arguments = {} if arguments is None else arguments

    cdef int read(self, Cursor* c) except -1:
        cdef uint8_t bits
        read_number(c, 2, "a reserved field of exchange.unbind")
        self.destination = read_shortstr(c, "the destination of exchange.unbind")
        self.source = read_shortstr(c, "the source of exchange.unbind")
        self.routing_key = read_shortstr(c, "the routing-key of exchange.unbind")
        bits = <uint8_t>read_number(c, 1, "the bits of exchange.unbind")
        self.no_wait = bits & 1
        self.arguments = read_table(c, "the arguments of exchange.unbind")
        return 0

    cdef int write(self, writer_t* w) except -1:
        write_number(w, 0, 2)
        write_shortstr(w, self.destination, "destination")
        write_shortstr(w, self.source, "source")
        write_shortstr(w, self.routing_key, "routing-key")
        write_number(w, self.no_wait, 1)
        write_table(w, self.arguments, "arguments")
        return 0


@cython.final
cdef class ExchangeUnbindOk(Method):
    """Value. exchange.unbind-ok (40, 51)."""

    number = EXCHANGE_UNBIND_OK
    name = "exchange.unbind-ok"
    by_server = True


@cython.final
cdef class QueueDeclare(Method):
    """Value. queue.declare (50, 10): answered by declare-ok."""

    number = QUEUE_DECLARE
    name = "queue.declare"
    fields = ("queue", "passive", "durable", "exclusive", "auto_delete", "no_wait", "arguments")
    by_client = True
    synchronous = True

    def __init__(self, *, str queue not None="", bint passive=False, bint durable=False, bint exclusive=False,
                 bint auto_delete=False, bint no_wait=False, dict arguments=None) -> None:
        self.queue = queue
        self.passive = passive
        self.durable = durable
        self.exclusive = exclusive
        self.auto_delete = auto_delete
        self.no_wait = no_wait
        self.arguments = {} if arguments is None else arguments

    cdef int read(self, Cursor* c) except -1:
        cdef uint8_t bits
        read_number(c, 2, "a reserved field of queue.declare")
        self.queue = read_shortstr(c, "the queue of queue.declare")
        bits = <uint8_t>read_number(c, 1, "the bits of queue.declare")
        self.passive = bits & 1
        self.durable = bits >> 1 & 1
        self.exclusive = bits >> 2 & 1
        self.auto_delete = bits >> 3 & 1
        self.no_wait = bits >> 4 & 1
        self.arguments = read_table(c, "the arguments of queue.declare")
        return 0

    cdef int write(self, writer_t* w) except -1:
        write_number(w, 0, 2)
        write_shortstr(w, self.queue, "queue")
        write_number(w, self.passive | self.durable << 1 | self.exclusive << 2 | self.auto_delete << 3 |
                        self.no_wait << 4, 1)
        write_table(w, self.arguments, "arguments")
        return 0


@cython.final
cdef class QueueDeclareOk(Method):
    """Value. queue.declare-ok (50, 11)."""

    number = QUEUE_DECLARE_OK
    name = "queue.declare-ok"
    fields = ("queue", "message_count", "consumer_count")
    by_server = True

    def __init__(self, *, str queue not None="", uint32_t message_count=0, uint32_t consumer_count=0) -> None:
        self.queue = queue
        self.message_count = message_count
        self.consumer_count = consumer_count

    cdef int read(self, Cursor* c) except -1:
        self.queue = read_shortstr(c, "the queue of queue.declare-ok")
        self.message_count = <uint32_t>read_number(c, 4, "the message-count of queue.declare-ok")
        self.consumer_count = <uint32_t>read_number(c, 4, "the consumer-count of queue.declare-ok")
        return 0

    cdef int write(self, writer_t* w) except -1:
        write_shortstr(w, self.queue, "queue")
        write_number(w, self.message_count, 4)
        write_number(w, self.consumer_count, 4)
        return 0


@cython.final
cdef class QueueBind(Method):
    """Value. queue.bind (50, 20): answered by bind-ok."""

    number = QUEUE_BIND
    name = "queue.bind"
    fields = ("queue", "exchange", "routing_key", "no_wait", "arguments")
    by_client = True
    synchronous = True

    def __init__(self, *, str queue not None="", str exchange not None="", str routing_key not None="",
                 bint no_wait=False, dict arguments=None) -> None:
        self.queue = queue
        self.exchange = exchange
        self.routing_key = routing_key
        self.no_wait = no_wait
        self.arguments = {} if arguments is None else arguments

    cdef int read(self, Cursor* c) except -1:
        cdef uint8_t bits
        read_number(c, 2, "a reserved field of queue.bind")
        self.queue = read_shortstr(c, "the queue of queue.bind")
        self.exchange = read_shortstr(c, "the exchange of queue.bind")
        self.routing_key = read_shortstr(c, "the routing-key of queue.bind")
        bits = <uint8_t>read_number(c, 1, "the bits of queue.bind")
        self.no_wait = bits & 1
        self.arguments = read_table(c, "the arguments of queue.bind")
        return 0

    cdef int write(self, writer_t* w) except -1:
        write_number(w, 0, 2)
        write_shortstr(w, self.queue, "queue")
        write_shortstr(w, self.exchange, "exchange")
        write_shortstr(w, self.routing_key, "routing-key")
        write_number(w, self.no_wait, 1)
        write_table(w, self.arguments, "arguments")
        return 0


@cython.final
cdef class QueueBindOk(Method):
    """Value. queue.bind-ok (50, 21)."""

    number = QUEUE_BIND_OK
    name = "queue.bind-ok"
    by_server = True


@cython.final
cdef class QueuePurge(Method):
    """Value. queue.purge (50, 30): answered by purge-ok."""

    number = QUEUE_PURGE
    name = "queue.purge"
    fields = ("queue", "no_wait")
    by_client = True
    synchronous = True

    def __init__(self, *, str queue not None="", bint no_wait=False) -> None:
        self.queue = queue
        self.no_wait = no_wait

    cdef int read(self, Cursor* c) except -1:
        cdef uint8_t bits
        read_number(c, 2, "a reserved field of queue.purge")
        self.queue = read_shortstr(c, "the queue of queue.purge")
        bits = <uint8_t>read_number(c, 1, "the bits of queue.purge")
        self.no_wait = bits & 1
        return 0

    cdef int write(self, writer_t* w) except -1:
        write_number(w, 0, 2)
        write_shortstr(w, self.queue, "queue")
        write_number(w, self.no_wait, 1)
        return 0


@cython.final
cdef class QueuePurgeOk(Method):
    """Value. queue.purge-ok (50, 31)."""

    number = QUEUE_PURGE_OK
    name = "queue.purge-ok"
    fields = ("message_count",)
    by_server = True

    def __init__(self, *, uint32_t message_count=0) -> None:
        self.message_count = message_count

    cdef int read(self, Cursor* c) except -1:
        self.message_count = <uint32_t>read_number(c, 4, "the message-count of queue.purge-ok")
        return 0

    cdef int write(self, writer_t* w) except -1:
        write_number(w, self.message_count, 4)
        return 0


@cython.final
cdef class QueueDelete(Method):
    """Value. queue.delete (50, 40): answered by delete-ok."""

    number = QUEUE_DELETE
    name = "queue.delete"
    fields = ("queue", "if_unused", "if_empty", "no_wait")
    by_client = True
    synchronous = True

    def __init__(self, *, str queue not None="", bint if_unused=False, bint if_empty=False, bint no_wait=False) -> None:
        self.queue = queue
        self.if_unused = if_unused
        self.if_empty = if_empty
        self.no_wait = no_wait

    cdef int read(self, Cursor* c) except -1:
        cdef uint8_t bits
        read_number(c, 2, "a reserved field of queue.delete")
        self.queue = read_shortstr(c, "the queue of queue.delete")
        bits = <uint8_t>read_number(c, 1, "the bits of queue.delete")
        self.if_unused = bits & 1
        self.if_empty = bits >> 1 & 1
        self.no_wait = bits >> 2 & 1
        return 0

    cdef int write(self, writer_t* w) except -1:
        write_number(w, 0, 2)
        write_shortstr(w, self.queue, "queue")
        write_number(w, self.if_unused | self.if_empty << 1 | self.no_wait << 2, 1)
        return 0


@cython.final
cdef class QueueDeleteOk(Method):
    """Value. queue.delete-ok (50, 41)."""

    number = QUEUE_DELETE_OK
    name = "queue.delete-ok"
    fields = ("message_count",)
    by_server = True

    def __init__(self, *, uint32_t message_count=0) -> None:
        self.message_count = message_count

    cdef int read(self, Cursor* c) except -1:
        self.message_count = <uint32_t>read_number(c, 4, "the message-count of queue.delete-ok")
        return 0

    cdef int write(self, writer_t* w) except -1:
        write_number(w, self.message_count, 4)
        return 0


@cython.final
cdef class QueueUnbind(Method):
    """Value. queue.unbind (50, 50): answered by unbind-ok."""

    number = QUEUE_UNBIND
    name = "queue.unbind"
    fields = ("queue", "exchange", "routing_key", "arguments")
    by_client = True
    synchronous = True

    def __init__(self, *, str queue not None="", str exchange not None="", str routing_key not None="",
                 dict arguments=None) -> None:
        self.queue = queue
        self.exchange = exchange
        self.routing_key = routing_key
        self.arguments = {} if arguments is None else arguments

    cdef int read(self, Cursor* c) except -1:
        read_number(c, 2, "a reserved field of queue.unbind")
        self.queue = read_shortstr(c, "the queue of queue.unbind")
        self.exchange = read_shortstr(c, "the exchange of queue.unbind")
        self.routing_key = read_shortstr(c, "the routing-key of queue.unbind")
        self.arguments = read_table(c, "the arguments of queue.unbind")
        return 0

    cdef int write(self, writer_t* w) except -1:
        write_number(w, 0, 2)
        write_shortstr(w, self.queue, "queue")
        write_shortstr(w, self.exchange, "exchange")
        write_shortstr(w, self.routing_key, "routing-key")
        write_table(w, self.arguments, "arguments")
        return 0


@cython.final
cdef class QueueUnbindOk(Method):
    """Value. queue.unbind-ok (50, 51)."""

    number = QUEUE_UNBIND_OK
    name = "queue.unbind-ok"
    by_server = True


@cython.final
cdef class BasicQos(Method):
    """Value. basic.qos (60, 10): answered by qos-ok."""

    number = BASIC_QOS
    name = "basic.qos"
    fields = ("prefetch_size", "prefetch_count", "global_")
    by_client = True
    synchronous = True

    def __init__(self, *, uint32_t prefetch_size=0, uint16_t prefetch_count=0, bint global_=False) -> None:
        self.prefetch_size = prefetch_size
        self.prefetch_count = prefetch_count
        self.global_ = global_

    cdef int read(self, Cursor* c) except -1:
        cdef uint8_t bits
        self.prefetch_size = <uint32_t>read_number(c, 4, "the prefetch-size of basic.qos")
        self.prefetch_count = <uint16_t>read_number(c, 2, "the prefetch-count of basic.qos")
        bits = <uint8_t>read_number(c, 1, "the bits of basic.qos")
        self.global_ = bits & 1
        return 0

    cdef int write(self, writer_t* w) except -1:
        write_number(w, self.prefetch_size, 4)
        write_number(w, self.prefetch_count, 2)
        write_number(w, self.global_, 1)
        return 0


@cython.final
cdef class BasicQosOk(Method):
    """Value. basic.qos-ok (60, 11)."""

    number = BASIC_QOS_OK
    name = "basic.qos-ok"
    by_server = True


@cython.final
cdef class BasicConsume(Method):
    """Value. basic.consume (60, 20): answered by consume-ok."""

    number = BASIC_CONSUME
    name = "basic.consume"
    fields = ("queue", "consumer_tag", "no_local", "no_ack", "exclusive", "no_wait", "arguments")
    by_client = True
    synchronous = True

    def __init__(self, *, str queue not None="", str consumer_tag not None="", bint no_local=False,
                 bint no_ack=False, bint exclusive=False, bint no_wait=False, dict arguments=None) -> None:
        self.queue = queue
        self.consumer_tag = consumer_tag
        self.no_local = no_local
        self.no_ack = no_ack
        self.exclusive = exclusive
        self.no_wait = no_wait
        self.arguments = {} if arguments is None else arguments

    cdef int read(self, Cursor* c) except -1:
        cdef uint8_t bits
        read_number(c, 2, "a reserved field of basic.consume")
        self.queue = read_shortstr(c, "the queue of basic.consume")
        self.consumer_tag = read_shortstr(c, "the consumer-tag of basic.consume")
        bits = <uint8_t>read_number(c, 1, "the bits of basic.consume")
        self.no_local = bits & 1
        self.no_ack = bits >> 1 & 1
        self.exclusive = bits >> 2 & 1
        self.no_wait = bits >> 3 & 1
        self.arguments = read_table(c, "the arguments of basic.consume")
        return 0

    cdef int write(self, writer_t* w) except -1:
        write_number(w, 0, 2)
        write_shortstr(w, self.queue, "queue")
        write_shortstr(w, self.consumer_tag, "consumer-tag")
        write_number(w, self.no_local | self.no_ack << 1 | self.exclusive << 2 | self.no_wait << 3, 1)
        write_table(w, self.arguments, "arguments")
        return 0


@cython.final
cdef class BasicConsumeOk(Method):
    """Value. basic.consume-ok (60, 21)."""

    number = BASIC_CONSUME_OK
    name = "basic.consume-ok"
    fields = ("consumer_tag",)
    by_server = True

    def __init__(self, *, str consumer_tag not None="") -> None:
        self.consumer_tag = consumer_tag

    cdef int read(self, Cursor* c) except -1:
        self.consumer_tag = read_shortstr(c, "the consumer-tag of basic.consume-ok")
        return 0

    cdef int write(self, writer_t* w) except -1:
        write_shortstr(w, self.consumer_tag, "consumer-tag")
        return 0


@cython.final
cdef class BasicCancel(Method):
    """Value. basic.cancel (60, 30): answered by cancel-ok."""

    number = BASIC_CANCEL
    name = "basic.cancel"
    fields = ("consumer_tag", "no_wait")
    by_client = True
    by_server = True
    synchronous = True

    def __init__(self, *, str consumer_tag not None="", bint no_wait=False) -> None:
        self.consumer_tag = consumer_tag
        self.no_wait = no_wait

    cdef int read(self, Cursor* c) except -1:
        cdef uint8_t bits
        self.consumer_tag = read_shortstr(c, "the consumer-tag of basic.cancel")
        bits = <uint8_t>read_number(c, 1, "the bits of basic.cancel")
        self.no_wait = bits & 1
        return 0

    cdef int write(self, writer_t* w) except -1:
        write_shortstr(w, self.consumer_tag, "consumer-tag")
        write_number(w, self.no_wait, 1)
        return 0


@cython.final
cdef class BasicCancelOk(Method):
    """Value. basic.cancel-ok (60, 31)."""

    number = BASIC_CANCEL_OK
    name = "basic.cancel-ok"
    fields = ("consumer_tag",)
    by_client = True
    by_server = True

    def __init__(self, *, str consumer_tag not None="") -> None:
        self.consumer_tag = consumer_tag

    cdef int read(self, Cursor* c) except -1:
        self.consumer_tag = read_shortstr(c, "the consumer-tag of basic.cancel-ok")
        return 0

    cdef int write(self, writer_t* w) except -1:
        write_shortstr(w, self.consumer_tag, "consumer-tag")
        return 0


@cython.final
cdef class BasicPublish(Method):
    """Value. basic.publish (60, 40), content follows."""

    number = BASIC_PUBLISH
    name = "basic.publish"
    fields = ("exchange", "routing_key", "mandatory", "immediate")
    by_client = True
    has_content = True

    def __init__(self, *, str exchange not None="", str routing_key not None="", bint mandatory=False,
                 bint immediate=False) -> None:
        self.exchange = exchange
        self.routing_key = routing_key
        self.mandatory = mandatory
        self.immediate = immediate

    cdef int read(self, Cursor* c) except -1:
        cdef uint8_t bits
        read_number(c, 2, "a reserved field of basic.publish")
        self.exchange = read_shortstr(c, "the exchange of basic.publish")
        self.routing_key = read_shortstr(c, "the routing-key of basic.publish")
        bits = <uint8_t>read_number(c, 1, "the bits of basic.publish")
        self.mandatory = bits & 1
        self.immediate = bits >> 1 & 1
        return 0

    cdef int write(self, writer_t* w) except -1:
        write_number(w, 0, 2)
        write_shortstr(w, self.exchange, "exchange")
        write_shortstr(w, self.routing_key, "routing-key")
        write_number(w, self.mandatory | self.immediate << 1, 1)
        return 0


@cython.final
cdef class BasicReturn(Method):
    """Value. basic.return (60, 50), content follows."""

    number = BASIC_RETURN
    name = "basic.return"
    fields = ("reply_code", "reply_text", "exchange", "routing_key")
    by_server = True
    has_content = True

    def __init__(self, *, uint16_t reply_code=0, str reply_text not None="", str exchange not None="",
                 str routing_key not None="") -> None:
        self.reply_code = reply_code
        self.reply_text = reply_text
        self.exchange = exchange
        self.routing_key = routing_key

    cdef int read(self, Cursor* c) except -1:
        self.reply_code = <uint16_t>read_number(c, 2, "the reply-code of basic.return")
        self.reply_text = read_shortstr(c, "the reply-text of basic.return")
        self.exchange = read_shortstr(c, "the exchange of basic.return")
        self.routing_key = read_shortstr(c, "the routing-key of basic.return")
        return 0

    cdef int write(self, writer_t* w) except -1:
        write_number(w, self.reply_code, 2)
        write_shortstr(w, self.reply_text, "reply-text")
        write_shortstr(w, self.exchange, "exchange")
        write_shortstr(w, self.routing_key, "routing-key")
        return 0


@cython.final
cdef class BasicDeliver(Method):
    """Value. basic.deliver (60, 60), content follows."""

    number = BASIC_DELIVER
    name = "basic.deliver"
    fields = ("consumer_tag", "delivery_tag", "redelivered", "exchange", "routing_key")
    by_server = True
    has_content = True

    def __init__(self, *, str consumer_tag not None="", uint64_t delivery_tag=0, bint redelivered=False,
                 str exchange not None="", str routing_key not None="") -> None:
        self.consumer_tag = consumer_tag
        self.delivery_tag = delivery_tag
        self.redelivered = redelivered
        self.exchange = exchange
        self.routing_key = routing_key

    cdef int read(self, Cursor* c) except -1:
        cdef uint8_t bits
        self.consumer_tag = read_shortstr(c, "the consumer-tag of basic.deliver")
        self.delivery_tag = <uint64_t>read_number(c, 8, "the delivery-tag of basic.deliver")
        bits = <uint8_t>read_number(c, 1, "the bits of basic.deliver")
        self.redelivered = bits & 1
        self.exchange = read_shortstr(c, "the exchange of basic.deliver")
        self.routing_key = read_shortstr(c, "the routing-key of basic.deliver")
        return 0

    cdef int write(self, writer_t* w) except -1:
        write_shortstr(w, self.consumer_tag, "consumer-tag")
        write_number(w, self.delivery_tag, 8)
        write_number(w, self.redelivered, 1)
        write_shortstr(w, self.exchange, "exchange")
        write_shortstr(w, self.routing_key, "routing-key")
        return 0


@cython.final
cdef class BasicGet(Method):
    """Value. basic.get (60, 70): answered by get-ok or get-empty."""

    number = BASIC_GET
    name = "basic.get"
    fields = ("queue", "no_ack")
    by_client = True
    synchronous = True

    def __init__(self, *, str queue not None="", bint no_ack=False) -> None:
        self.queue = queue
        self.no_ack = no_ack

    cdef int read(self, Cursor* c) except -1:
        cdef uint8_t bits
        read_number(c, 2, "a reserved field of basic.get")
        self.queue = read_shortstr(c, "the queue of basic.get")
        bits = <uint8_t>read_number(c, 1, "the bits of basic.get")
        self.no_ack = bits & 1
        return 0

    cdef int write(self, writer_t* w) except -1:
        write_number(w, 0, 2)
        write_shortstr(w, self.queue, "queue")
        write_number(w, self.no_ack, 1)
        return 0


@cython.final
cdef class BasicGetOk(Method):
    """Value. basic.get-ok (60, 71), content follows."""

    number = BASIC_GET_OK
    name = "basic.get-ok"
    fields = ("delivery_tag", "redelivered", "exchange", "routing_key", "message_count")
    by_server = True
    has_content = True

    def __init__(self, *, uint64_t delivery_tag=0, bint redelivered=False, str exchange not None="",
                 str routing_key not None="", uint32_t message_count=0) -> None:
        self.delivery_tag = delivery_tag
        self.redelivered = redelivered
        self.exchange = exchange
        self.routing_key = routing_key
        self.message_count = message_count

    cdef int read(self, Cursor* c) except -1:
        cdef uint8_t bits
        self.delivery_tag = <uint64_t>read_number(c, 8, "the delivery-tag of basic.get-ok")
        bits = <uint8_t>read_number(c, 1, "the bits of basic.get-ok")
        self.redelivered = bits & 1
        self.exchange = read_shortstr(c, "the exchange of basic.get-ok")
        self.routing_key = read_shortstr(c, "the routing-key of basic.get-ok")
        self.message_count = <uint32_t>read_number(c, 4, "the message-count of basic.get-ok")
        return 0

    cdef int write(self, writer_t* w) except -1:
        write_number(w, self.delivery_tag, 8)
        write_number(w, self.redelivered, 1)
        write_shortstr(w, self.exchange, "exchange")
        write_shortstr(w, self.routing_key, "routing-key")
        write_number(w, self.message_count, 4)
        return 0


@cython.final
cdef class BasicGetEmpty(Method):
    """Value. basic.get-empty (60, 72)."""

    number = BASIC_GET_EMPTY
    name = "basic.get-empty"
    by_server = True

    cdef int read(self, Cursor* c) except -1:
        read_shortstr(c, "a reserved field of basic.get-empty")
        return 0

    cdef int write(self, writer_t* w) except -1:
        write_shortstr(w, "", "reserved")
        return 0


@cython.final
cdef class BasicAck(Method):
    """Value. basic.ack (60, 80)."""

    number = BASIC_ACK
    name = "basic.ack"
    fields = ("delivery_tag", "multiple")
    by_client = True
    by_server = True

    def __init__(self, *, uint64_t delivery_tag=0, bint multiple=False) -> None:
        self.delivery_tag = delivery_tag
        self.multiple = multiple

    cdef int read(self, Cursor* c) except -1:
        cdef uint8_t bits
        self.delivery_tag = <uint64_t>read_number(c, 8, "the delivery-tag of basic.ack")
        bits = <uint8_t>read_number(c, 1, "the bits of basic.ack")
        self.multiple = bits & 1
        return 0

    cdef int write(self, writer_t* w) except -1:
        write_number(w, self.delivery_tag, 8)
        write_number(w, self.multiple, 1)
        return 0


@cython.final
cdef class BasicReject(Method):
    """Value. basic.reject (60, 90)."""

    number = BASIC_REJECT
    name = "basic.reject"
    fields = ("delivery_tag", "requeue")
    by_client = True

    def __init__(self, *, uint64_t delivery_tag=0, bint requeue=False) -> None:
        self.delivery_tag = delivery_tag
        self.requeue = requeue

    cdef int read(self, Cursor* c) except -1:
        cdef uint8_t bits
        self.delivery_tag = <uint64_t>read_number(c, 8, "the delivery-tag of basic.reject")
        bits = <uint8_t>read_number(c, 1, "the bits of basic.reject")
        self.requeue = bits & 1
        return 0

    cdef int write(self, writer_t* w) except -1:
        write_number(w, self.delivery_tag, 8)
        write_number(w, self.requeue, 1)
        return 0


@cython.final
cdef class BasicRecoverAsync(Method):
    """Value. basic.recover-async (60, 100)."""

    number = BASIC_RECOVER_ASYNC
    name = "basic.recover-async"
    fields = ("requeue",)
    by_client = True

    def __init__(self, *, bint requeue=False) -> None:
        self.requeue = requeue

    cdef int read(self, Cursor* c) except -1:
        cdef uint8_t bits
        bits = <uint8_t>read_number(c, 1, "the bits of basic.recover-async")
        self.requeue = bits & 1
        return 0

    cdef int write(self, writer_t* w) except -1:
        write_number(w, self.requeue, 1)
        return 0


@cython.final
cdef class BasicRecover(Method):
    """Value. basic.recover (60, 110): answered by recover-ok."""

    number = BASIC_RECOVER
    name = "basic.recover"
    fields = ("requeue",)
    by_client = True
    synchronous = True

    def __init__(self, *, bint requeue=False) -> None:
        self.requeue = requeue

    cdef int read(self, Cursor* c) except -1:
        cdef uint8_t bits
        bits = <uint8_t>read_number(c, 1, "the bits of basic.recover")
        self.requeue = bits & 1
        return 0

    cdef int write(self, writer_t* w) except -1:
        write_number(w, self.requeue, 1)
        return 0


@cython.final
cdef class BasicRecoverOk(Method):
    """Value. basic.recover-ok (60, 111)."""

    number = BASIC_RECOVER_OK
    name = "basic.recover-ok"
    by_server = True


@cython.final
cdef class BasicNack(Method):
    """Value. basic.nack (60, 120)."""

    number = BASIC_NACK
    name = "basic.nack"
    fields = ("delivery_tag", "multiple", "requeue")
    by_client = True
    by_server = True

    def __init__(self, *, uint64_t delivery_tag=0, bint multiple=False, bint requeue=False) -> None:
        self.delivery_tag = delivery_tag
        self.multiple = multiple
        self.requeue = requeue

    cdef int read(self, Cursor* c) except -1:
        cdef uint8_t bits
        self.delivery_tag = <uint64_t>read_number(c, 8, "the delivery-tag of basic.nack")
        bits = <uint8_t>read_number(c, 1, "the bits of basic.nack")
        self.multiple = bits & 1
        self.requeue = bits >> 1 & 1
        return 0

    cdef int write(self, writer_t* w) except -1:
        write_number(w, self.delivery_tag, 8)
        write_number(w, self.multiple | self.requeue << 1, 1)
        return 0


@cython.final
cdef class ConfirmSelect(Method):
    """Value. confirm.select (85, 10): answered by select-ok."""

    number = CONFIRM_SELECT
    name = "confirm.select"
    fields = ("no_wait",)
    by_client = True
    synchronous = True

    def __init__(self, *, bint no_wait=False) -> None:
        self.no_wait = no_wait

    cdef int read(self, Cursor* c) except -1:
        cdef uint8_t bits
        bits = <uint8_t>read_number(c, 1, "the bits of confirm.select")
        self.no_wait = bits & 1
        return 0

    cdef int write(self, writer_t* w) except -1:
        write_number(w, self.no_wait, 1)
        return 0


@cython.final
cdef class ConfirmSelectOk(Method):
    """Value. confirm.select-ok (85, 11)."""

    number = CONFIRM_SELECT_OK
    name = "confirm.select-ok"
    by_server = True


@cython.final
cdef class TxSelect(Method):
    """Value. tx.select (90, 10): answered by select-ok."""

    number = TX_SELECT
    name = "tx.select"
    by_client = True
    synchronous = True


@cython.final
cdef class TxSelectOk(Method):
    """Value. tx.select-ok (90, 11)."""

    number = TX_SELECT_OK
    name = "tx.select-ok"
    by_server = True


@cython.final
cdef class TxCommit(Method):
    """Value. tx.commit (90, 20): answered by commit-ok."""

    number = TX_COMMIT
    name = "tx.commit"
    by_client = True
    synchronous = True


@cython.final
cdef class TxCommitOk(Method):
    """Value. tx.commit-ok (90, 21)."""

    number = TX_COMMIT_OK
    name = "tx.commit-ok"
    by_server = True


@cython.final
cdef class TxRollback(Method):
    """Value. tx.rollback (90, 30): answered by rollback-ok."""

    number = TX_ROLLBACK
    name = "tx.rollback"
    by_client = True
    synchronous = True


@cython.final
cdef class TxRollbackOk(Method):
    """Value. tx.rollback-ok (90, 31)."""

    number = TX_ROLLBACK_OK
    name = "tx.rollback-ok"
    by_server = True


cdef Method blank(uint32_t number):
    """A method that is not filled in."""
    cdef type made = METHODS_BY_NUMBER.get(number)
    cdef uint32_t which = number >> 16
    if made is not None:
        return <Method>made.__new__(made)
    if which in (CLASS_CONNECTION, CLASS_CHANNEL, CLASS_EXCHANGE, CLASS_QUEUE, CLASS_BASIC, CLASS_CONFIRM, CLASS_TX):
        raise ProtocolError(REPLY_COMMAND_INVALID, f"class {which} has no method {number & 0xFFFF}")
    raise ProtocolError(REPLY_NOT_IMPLEMENTED, f"class {which} is not one of those that are implemented")


cdef Method method_read(const uint8_t* at, const uint8_t* end):
    cdef Cursor c
    cdef Method method
    if end - at < 4:
        raise ProtocolError(REPLY_FRAME_ERROR, f"a method frame of {end - at} bytes has no class and method")
    method = blank(peek_u32(at))
    c.at = at + 4
    c.end = end
    method.read(&c)
    expect_end(&c, method.name)
    return method


def decode_method(payload: bytes) -> Method:
    """The method in the payload of a method frame.

    Raises ProtocolError: 501 no class and method, 540 no such class, 503 no such method in it, 502 arguments that are
    cut short, too long, or not a table where one must be.
    """
    cdef bytes raw = payload
    cdef const uint8_t* at
    if raw is None:
        raise UsageError("a payload is bytes, not None")
    at = <const uint8_t*><const char*>raw
    return method_read(at, at + len(raw))


cdef dict METHODS_BY_NUMBER = {cls.number: cls for cls in (
    ConnectionStart, ConnectionStartOk, ConnectionSecure, ConnectionSecureOk, ConnectionTune, ConnectionTuneOk,
    ConnectionOpen, ConnectionOpenOk, ConnectionClose, ConnectionCloseOk, ConnectionBlocked, ConnectionUnblocked,
    ConnectionUpdateSecret, ConnectionUpdateSecretOk, ChannelOpen, ChannelOpenOk, ChannelFlow, ChannelFlowOk,
    ChannelClose, ChannelCloseOk, ExchangeDeclare, ExchangeDeclareOk, ExchangeDelete, ExchangeDeleteOk, ExchangeBind,
    ExchangeBindOk, ExchangeUnbind, ExchangeUnbindOk, QueueDeclare, QueueDeclareOk, QueueBind, QueueBindOk, QueuePurge,
    QueuePurgeOk, QueueDelete, QueueDeleteOk, QueueUnbind, QueueUnbindOk, BasicQos, BasicQosOk, BasicConsume,
    BasicConsumeOk, BasicCancel, BasicCancelOk, BasicPublish, BasicReturn, BasicDeliver, BasicGet, BasicGetOk,
    BasicGetEmpty, BasicAck, BasicReject, BasicRecoverAsync, BasicRecover, BasicRecoverOk, BasicNack, ConfirmSelect,
    ConfirmSelectOk, TxSelect, TxSelectOk, TxCommit, TxCommitOk, TxRollback, TxRollbackOk)}
METHODS = METHODS_BY_NUMBER
