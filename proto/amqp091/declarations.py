"""What declares: the numbers, the header and the stub; and the names that all files which are made have in common."""
from __future__ import annotations

import textwrap
from collections.abc import Iterator

from table import CLASSES, FRAMES, PROPERTIES, REPLIES, AmqpClass, Field, Method

__all__ = [
    "COLUMNS", "DEFAULTS", "MADE", "NUMBERS", "attribute", "class_name", "constant", "consts", "listed", "methods_pxd",
    "methods_pyi", "shown",
]

COLUMNS = 120
MADE = "Made by proto/amqp091/generate.py from the table beside it: change that, not this."
# C type, bytes.
NUMBERS = {"octet": ("uint8_t", 1), "short": ("uint16_t", 2), "long": ("uint32_t", 4), "longlong": ("uint64_t", 8)}
PYTHON = {"bit": "bool", "shortstr": "str", "longtext": "str", "longstr": "bytes", "table": "dict[str, Any]"}
# A field whose name Python has taken for itself.
TAKEN = {"global"}
DEFAULTS = {"bit": "False", "shortstr": '""', "longtext": '""', "longstr": 'b""', "table": "None"}


def attribute(field: Field) -> str:
    name = field.name.replace("-", "_")
    return name + "_" if name in TAKEN else name


def constant(name: str) -> str:
    return name.replace("-", "_").replace(".", "_").upper()


def class_name(amqp_class: AmqpClass, method: Method) -> str:
    return "".join(part.capitalize() for part in (amqp_class.name, *method.name.split("-")))


def shown(method: Method) -> list[Field]:
    return [field for field in method.fields if not field.reserved]


def listed(opening: str, parts: list[str], closing: str, between: str = ", ") -> str:
    """`opening` part, part, … `closing`, in lines that hang under the first part. None is cut where it has a space."""
    text = between.join(part.replace(" ", "\0") for part in parts)
    lines = textwrap.wrap(text, COLUMNS - len(opening) - len(closing), break_long_words=False, break_on_hyphens=False)
    return opening + ("\n" + " " * len(opening)).join(lines).replace("\0", " ") + closing


# ── numbers ──────────────────────────────────────────────────────────────────────────────────────────────────


def consts() -> Iterator[str]:
    yield f'''# cython: language_level=3
"""The numbers of AMQP 0-9-1: frame types, methods, reply codes, property flags.

C enums, for cimport only. {MADE}
"""

cdef enum:            # frame types, and the octet that ends each frame'''
    for name, value in FRAMES.items():
        yield f"    FRAME_{constant(name)} = {value if name != 'end' else hex(value).upper().replace('X', 'x')}"
    for amqp_class in CLASSES:
        yield f"\ncdef enum:            # {amqp_class.name}: class << 16 | method, the first four bytes of its frame"
        for method in amqp_class.methods:
            yield (f"    {constant(amqp_class.name)}_{constant(method.name)} = "
                   f"{amqp_class.number} << 16 | {method.number}")
    yield "\ncdef enum:            # the classes themselves"
    for amqp_class in CLASSES:
        yield f"    CLASS_{constant(amqp_class.name)} = {amqp_class.number}"
    yield "\ncdef enum:            # reply codes"
    for reply in REPLIES:
        line = f"    REPLY_{constant(reply.name).removeprefix('REPLY_')} = {reply.code}"
        yield line + (f"{'':{40 - len(line)}}# closes the {reply.closes}" if reply.closes else "")
    yield "\ncdef enum:            # bits of the property flags"
    for entry in PROPERTIES:
        yield f"    PROPERTY_{constant(entry.name)} = 1 << {entry.bit}"


# ── header and stub ──────────────────────────────────────────────────────────────────────────────────────────


def methods_pxd() -> Iterator[str]:
    yield f'''# cython: language_level=3
"""The methods of AMQP 0-9-1 as values: one class for each, its fields with the specification's names, `_` for `-`.

For what is cold, tests and clients; publish, deliver and acknowledgements are read and written in place where they
are hot. Reserved fields are not shown; `global`, which is a word of Python's, is global_.
{MADE}
"""
from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t

from fluxmq._core.amqp091.fields cimport writer_t
from fluxmq._core.wire.primitives cimport Cursor


cdef class Method:
    """Root of all methods."""
    cdef uint32_t code(self) except? 0          # class << 16 | method, as in amqp091_consts
    cdef tuple values(self)                     # the fields, in the order of the constructor
    cdef int read(self, Cursor* c) except -1    # the arguments; the cursor stands where they end
    cdef int write(self, writer_t* w) except -1

# decode_method without a bytes object: at..end is the payload of a method frame.
cdef Method method_read(const uint8_t* at, const uint8_t* end)'''
    for amqp_class in CLASSES:
        for method in amqp_class.methods:
            yield f"\n\ncdef class {class_name(amqp_class, method)}(Method):"
            for field in shown(method):
                kind = NUMBERS[field.kind][0] if field.kind in NUMBERS else {
                    "bit": "bint", "table": "dict", "longstr": "bytes"}.get(field.kind, "str")
                yield f"    cdef readonly {kind} {attribute(field)}"
            if not shown(method):
                yield "    pass"


def methods_pyi() -> Iterator[str]:
    yield '''from typing import Any, ClassVar, final

from typing_extensions import disjoint_base

@disjoint_base
class Method:
    number: ClassVar[int]
    name: ClassVar[str]
    fields: ClassVar[tuple[str, ...]]
    by_client: ClassVar[bool]
    by_server: ClassVar[bool]
    synchronous: ClassVar[bool]
    has_content: ClassVar[bool]
    def __init__(self) -> None: ...
    def encode(self) -> bytes: ...
    def frame(self, channel: int) -> bytes: ...
    def __eq__(self, value: object, /) -> bool: ...
    __hash__: ClassVar[None]  # type: ignore[assignment]

METHODS: dict[int, type[Method]]

def decode_method(payload: bytes) -> Method: ...'''
    for amqp_class in CLASSES:
        for method in amqp_class.methods:
            opening = f"\n@final\nclass {class_name(amqp_class, method)}(Method):"
            if not shown(method):
                yield f"{opening} ..."
                continue
            yield opening
            for field in shown(method):
                yield f"    @property\n    def {attribute(field)}(self) -> {PYTHON.get(field.kind, 'int')}: ..."
            yield "    def __init__(\n        self,\n        *,"
            for field in shown(method):
                kind = PYTHON.get(field.kind, "int") + (" | None" if field.kind == "table" else "")
                yield f"        {attribute(field)}: {kind} = {DEFAULTS.get(field.kind, '0')},"
            yield "    ) -> None: ..."
