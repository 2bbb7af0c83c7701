"""What defines: one class for each method, which reads and writes its arguments, and decode_method."""
from __future__ import annotations

import textwrap
from collections.abc import Iterator

from declarations import COLUMNS, DEFAULTS, MADE, NUMBERS, attribute, class_name, constant, listed, shown
from table import CLASSES, AmqpClass, Field, Method

__all__ = ["methods_pyx"]


def octets(method: Method) -> Iterator[list[Field]]:
    """The fields in the portions they are read and written in: one, or as many bits as share an octet."""
    bits: list[Field] = []
    for field in method.fields:
        if field.kind == "bit" and len(bits) < 8:
            bits.append(field)
            continue
        if bits:
            yield bits
        bits = [field] if field.kind == "bit" else []
        if field.kind != "bit":
            yield [field]
    if bits:
        yield bits


def reading(part: list[Field], full: str) -> Iterator[str]:
    field = part[0]
    named = [one for one in part if not one.reserved]
    what = f'"the {field.name} of {full}"' if named else f'"a reserved field of {full}"'
    if field.kind == "bit":
        yield f'bits = <uint8_t>read_number(c, 1, "the bits of {full}")' if named else f"read_number(c, 1, {what})"
        for place, one in enumerate(part):
            if not one.reserved:
                yield f"self.{attribute(one)} = bits >> {place} & 1" if place else f"self.{attribute(one)} = bits & 1"
        return
    kind, size = NUMBERS.get(field.kind, ("", 0))
    read = f"read_number(c, {size}, {what})" if size else f"read_{field.kind}(c, {what})"
    cast = f"<{kind}>" if size else ""
    yield f"self.{attribute(field)} = {cast}{read}" if named else read


def writing(part: list[Field]) -> str:
    field = part[0]
    value = "" if field.reserved else f"self.{attribute(field)}"
    if field.kind == "bit":
        terms = [f"self.{attribute(one)}" + (f" << {place}" if place else "") for place, one in enumerate(part)
                 if not one.reserved]
        return listed("        write_number(w, ", terms or ["0"], ", 1)", " | ").lstrip()
    if field.kind in NUMBERS:
        return f"write_number(w, {value or '0'}, {NUMBERS[field.kind][1]})"
    empty = {"shortstr": '""', "longstr": 'b""'}.get(field.kind, "")
    return f'write_{field.kind}(w, {value or empty}, "{field.name}")'


def documented(amqp_class: AmqpClass, method: Method) -> str:
    text = f"Value. {amqp_class.name}.{method.name} ({amqp_class.number}, {method.number})"
    if method.answers:
        text += f": answered by {' or '.join(method.answers)}"
    return text + (", content follows." if method.content else ".")


def one_class(amqp_class: AmqpClass, method: Method) -> Iterator[str]:
    name, fields = class_name(amqp_class, method), shown(method)
    full = f"{amqp_class.name}.{method.name}"
    number = f"{constant(amqp_class.name)}_{constant(method.name)}"
    yield f'\n\n@cython.final\ncdef class {name}(Method):\n    """{documented(amqp_class, method)}"""\n'
    yield f"    number = {number}\n    name = \"{full}\""
    if fields:
        quoted = [f'"{attribute(field)}"' for field in fields]
        yield listed("    fields = (", quoted, ",)" if len(quoted) == 1 else ")")
    for flag, holds in (("by_client", method.sender != "server"), ("by_server", method.sender != "client"),
                        ("synchronous", bool(method.answers)), ("has_content", method.content)):
        if holds:
            yield f"    {flag} = True"
    if fields:
        yield ""
        yield listed("    def __init__(", ["self", "*", *map(parameter, fields)], ") -> None:")
        for field in fields:
            given = attribute(field)
            yield f"        self.{given} = " + (f"{{}} if {given} is None else {given}" if field.kind == "table"
                                                else given)
    if method.fields:
        yield "\n    cdef int read(self, Cursor* c) except -1:"
        if any(field.kind == "bit" and not field.reserved for field in method.fields):
            yield "        cdef uint8_t bits"
        yield from (f"        {line}" for part in octets(method) for line in reading(part, full))
        yield "        return 0\n\n    cdef int write(self, writer_t* w) except -1:"
        yield from (f"        {writing(part)}" for part in octets(method))
        yield "        return 0"


def parameter(field: Field) -> str:
    kind = NUMBERS[field.kind][0] if field.kind in NUMBERS else {
        "bit": "bint", "table": "dict", "longstr": "bytes not None"}.get(field.kind, "str not None")
    name, _, rest = kind.partition(" ")
    return f"{name} {attribute(field)}{' ' + rest if rest else ''}={DEFAULTS.get(field.kind, '0')}"


OPENING = '''# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
# cython: embedsignature=True, auto_pickle=False
"""The methods of AMQP 0-9-1 as values. amqp091/methods.pxd lists the fields.

{made}
It is one file because nobody reads or changes it but the program.

Built with keywords, compared by value, not hashable (they hold tables). Text is str: UTF-8, and surrogates for bytes
that are not, so that any bytes survive. Tables are what decode_table answers.
"""
cimport cython
from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t

{consts}
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
            raise UsageError(f"a channel is 0 to 65535, not {{channel}}")
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
        shown = ", ".join(f"{{name}}={{value!r}}" for name, value in zip(self.fields, self.values()))
        return f"{{type(self).__name__}}({{shown}})"'''

DECODING = '''

cdef Method blank(uint32_t number):
    """A method that is not filled in."""
    cdef type made = METHODS_BY_NUMBER.get(number)
    cdef uint32_t which = number >> 16
    if made is not None:
        return <Method>made.__new__(made)
{implemented}
        raise ProtocolError(REPLY_COMMAND_INVALID, f"class {{which}} has no method {{number & 0xFFFF}}")
    raise ProtocolError(REPLY_NOT_IMPLEMENTED, f"class {{which}} is not one of those that are implemented")


cdef Method method_read(const uint8_t* at, const uint8_t* end):
    cdef Cursor c
    cdef Method method
    if end - at < 4:
        raise ProtocolError(REPLY_FRAME_ERROR, f"a method frame of {{end - at}} bytes has no class and method")
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


cdef dict METHODS_BY_NUMBER = {{cls.number: cls for cls in (
{classes})}}
METHODS = METHODS_BY_NUMBER'''


def cimports() -> str:
    used = {f"{constant(one.name)}_{constant(method.name)}" for one in CLASSES for method in one.methods}
    used |= {f"CLASS_{constant(one.name)}" for one in CLASSES}
    used |= {"FRAME_END", "FRAME_METHOD", "REPLY_COMMAND_INVALID", "REPLY_FRAME_ERROR", "REPLY_NOT_IMPLEMENTED"}
    lines = textwrap.wrap(", ".join(sorted(used)) + ")", COLUMNS - 4)
    return "from fluxmq._core.amqp091.consts cimport (\n" + "\n".join(f"    {line}" for line in lines)


def methods_pyx() -> Iterator[str]:
    yield OPENING.format(made=MADE, consts=cimports())
    for amqp_class in CLASSES:
        for method in amqp_class.methods:
            yield from one_class(amqp_class, method)
    implemented = listed("    if which in (", [f"CLASS_{constant(one.name)}" for one in CLASSES], "):")
    names = ", ".join(class_name(one, method) for one in CLASSES for method in one.methods)
    classes = textwrap.fill(names, COLUMNS, initial_indent="    ", subsequent_indent="    ")
    yield DECODING.format(implemented=implemented, classes=classes)
