"""Casts in Cython that make a number of 64 bits one of fewer: `<uint32_t>len(data)`, `<int>(end - at)`.

Reads declarations as text, which takes a second where Cython's own analysis takes minutes. It knows what a function
and its module declare, the fields of all classes and structs, and what compiled functions return. What it does not know
(a Python object, whose conversion Cython checks) it takes for narrow; a field that has 64 bits anywhere has them
everywhere.
"""
from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

__all__ = ["Cast", "Declared", "all_casts", "casts"]

BITS = {"uint8_t": 8, "int8_t": 8, "char": 8, "uint16_t": 16, "int16_t": 16, "short": 16, "uint32_t": 32, "int32_t": 32,
        "int": 32, "unsigned": 32, "unsigned int": 32, "uint64_t": 64, "int64_t": 64, "size_t": 64, "ssize_t": 64,
        "Py_ssize_t": 64, "ptrdiff_t": 64, "long": 64, "long long": 64, "unsigned long long": 64}
TYPE = r"(?:const )?(?:unsigned long long|long long|unsigned int|[A-Za-z_]\w*)"
NARROW = re.compile(r"<(u?int(?:8|16|32)_t|int|char|short|unsigned(?: int)?)>(?!\w*\*)")
VARIABLE = re.compile(rf"^(?:cdef )?(?:public |readonly |inline )*({TYPE})((?:\[[^\]]*\]|\*)*)"
                      r" ?(\**\w+ *(?:[=,].*)?)$")
FUNCTION = re.compile(rf"^(?:cdef|cpdef|def)\b(?: inline)? ?(?:({TYPE})(\**) )?(\**)(\w+)\(")
PRIMARY = re.compile(r"[A-Za-z_]\w*|\d[\w.]*|\(")
MARK = re.compile(r"#.*\b(?:fits|low bits): \S")
# What needs no helper, by its form. A Python object or a C string has no 2 GiB: what comes from outside is limited to
# an eighth of that before it is one. read_number reads as many bytes as it is told.
PROVEN = re.compile(r"<(?:uint32_t|int)>(?:len|strlen|PyBytes_GET_SIZE)\(|<uint8_t>read_number\(&?c, 1,"
                    r"|<uint16_t>read_number\(&?c, 2,|<uint32_t>read_number\(&?c, 4,|<uint32_t>\(\w+ >> 32\)")
COMPARED = re.compile(r"[<>=!]=| (?:<|>|in|is|and|or|not) ")
MASKED = re.compile(r"(?:&|%) ?(?:0x[0-9A-Fa-f]{1,8}|\d{1,5})\b")
BYTEWISE = re.compile(r"put_u\d+")       # writers of integers, byte by byte


@dataclass(frozen=True)
class Kind:
    """bits: of the number; of what it points to, if it is a pointer or an array."""

    bits: int
    pointer: bool = False


@dataclass(frozen=True)
class Cast:
    line: int
    text: str


@dataclass
class Declared:
    """Fields of classes and structs, and what functions return, of all files."""

    fields: dict[str, int] = field(default_factory=dict)
    arrays: dict[str, int] = field(default_factory=dict)
    returns: dict[str, int] = field(default_factory=dict)

    @classmethod
    def of(cls, texts: Iterable[str]) -> Declared:
        found = cls()
        for text in texts:
            inside = False
            for line in text.splitlines():
                bare = line.split("#")[0].strip()
                if not line.startswith((" ", "\t")) and bare:
                    inside = bool(re.match(r"(?:cdef|ctypedef) (?:extern|class|struct|union|packed)", bare))
                if match := FUNCTION.match(bare) or (FUNCTION.match("cdef " + bare) if inside else None):
                    if match[1] in BITS and not (match[2] or match[3]):
                        name = match[4]
                        found.returns[name] = max(found.returns.get(name, 0), BITS[match[1]])
                elif inside:
                    for name, kind in variables(bare):
                        into = found.arrays if kind.pointer else found.fields
                        into[name] = max(into.get(name, 0), kind.bits)
        return found


def variables(line: str) -> Iterator[tuple[str, Kind]]:
    """Of one declaration."""
    match = VARIABLE.match(line)
    if match is None or (base := match[1].removeprefix("const ")) not in BITS:
        return
    for part in split(match[3]):
        name = part.split("=")[0].strip()
        if re.fullmatch(r"\**\w+", name):
            yield name.lstrip("*"), Kind(BITS[base], bool(match[2]) or name.startswith("*"))


def split(text: str) -> list[str]:
    """At commas outside of brackets."""
    parts, depth, at = [], 0, 0
    for i, c in enumerate(text):
        depth += (c in "([{") - (c in ")]}")
        if c == "," and depth == 0:
            parts.append(text[at:i])
            at = i + 1
    return [*parts, text[at:]]


def closing(text: str, at: int) -> int:
    """Index behind the bracket that closes the one at `at`; of what ends before that, its end."""
    depth = 0
    for i in range(at, len(text)):
        depth += (text[i] in "([{") - (text[i] in ")]}")
        if depth == 0:
            return i + 1
    return len(text)


class Scope:
    """What is known where a cast stands."""

    def __init__(self, declared: Declared) -> None:
        self.declared = declared
        self.module: dict[str, Kind] = {}
        self.local: dict[str, Kind] = {}

    def primary(self, text: str, at: int) -> tuple[Kind, int]:
        """A name, a number or brackets with all that follows: `a.b[c](d)`; and where it ends."""
        match = PRIMARY.match(text, at)
        if match is None:
            return Kind(0), at + 1
        end = match.end()
        if match[0] == "(":
            end = closing(text, at)
            kind = Kind(self.bits(text[at + 1:end - 1]))
        elif match[0][0].isdigit():
            kind = Kind(0)
        else:
            kind = self.local.get(match[0]) or self.module.get(match[0]) or Kind(0)
        name = match[0]
        while end < len(text) and text[end] in ".[(":
            if text[end] == ".":
                follows = re.compile(r"\w*").match(text, end + 1)
                assert follows is not None
                name, end = follows[0], follows.end()
                known = self.declared
                kind = (Kind(known.fields[name]) if name in known.fields
                        else Kind(known.arrays[name], True) if name in known.arrays else Kind(0))
            elif text[end] == "[":
                end, kind = closing(text, end), Kind(kind.bits if kind.pointer else 0)
            else:
                stop = closing(text, end)
                kind, end = self.call(name, text[end + 1:stop - 1]), stop
        return kind, end

    def call(self, name: str, arguments: str) -> Kind:
        if name in ("min", "max"):
            sizes = [self.bits(part) for part in split(arguments)]
            return Kind(min(size or 1 for size in sizes) if name == "min" else max(sizes))
        return Kind(64 if name in ("len", "strlen") else 0 if name == "sizeof" else self.declared.returns.get(name, 0))

    def bits(self, text: str) -> int:
        """Of an expression: of the widest of its parts; 64 of a difference of pointers; 0: few, or not known."""
        if COMPARED.search(text) or MASKED.search(text):
            return 0
        at, widest, pointers = 0, 0, 0
        while at < len(text):
            cast = re.compile(r"<([\w ]+)(\**)>").match(text, at)
            if cast is not None:
                start = cast.end()
                _, at = self.primary(text, start)
                constant = re.fullmatch(r"[A-Z\d_x]+", text[start:at].strip()) is not None
                widest = max(widest, 0 if cast[2] or constant else BITS.get(cast[1], 0))
            elif PRIMARY.match(text, at):
                kind, at = self.primary(text, at)
                pointers += kind.pointer
                widest = max(widest, 0 if kind.pointer else kind.bits)
            else:
                at += 1
        return 64 if pointers > 1 and "-" in text else widest


def casts(text: str, declared: Declared) -> list[Cast]:
    """The casts of a file that narrow a number of 64 bits and have no mark with a reason."""
    scope = Scope(declared)
    found: list[Cast] = []
    header, quoted, bytewise = "", False, False
    for number, line in enumerate(text.splitlines(), 1):
        if line.count('"""') % 2:
            quoted = not quoted
            continue
        bare = re.sub(r"\"[^\"]*\"", '""', line).split("#")[0].rstrip()
        if quoted or not bare.strip():
            continue
        if header or FUNCTION.match(bare.strip()):
            header += bare.strip() + " "
            if not header.rstrip().endswith(":") and bare.startswith((" " * 5, header.strip()[:4])) and "(" in header \
                    and header.count("(") > header.count(")"):
                continue
            first = header.index("(")
            bytewise = BYTEWISE.search(header[:first]) is not None
            scope.local = {name: kind for part in split(header[first + 1:closing(header, first) - 1])
                           for name, kind in variables(part.split("=")[0].strip())}
            header = ""
        elif bare.strip().startswith("cdef "):
            for name, kind in variables(bare.strip()):
                (scope.local if line.startswith(" ") else scope.module)[name] = kind
        for match in NARROW.finditer(bare):
            at = match.end()
            if bytewise or PROVEN.match(bare, match.start()):
                continue
            while at < len(bare) and bare[at] in "-~":
                at += 1
            inner = re.compile(r"<([\w ]+)(\**)>").match(bare, at)
            bits = BITS.get(inner[1], 0) if inner else scope.primary(bare, at)[0].bits
            if bits == 64 and not MARK.search(line):
                found.append(Cast(number, line.strip()))
    return found


def all_casts(paths: Iterable[Path]) -> dict[Path, list[Cast]]:
    texts = {path: path.read_text(encoding="utf-8") for path in paths}
    declared = Declared.of(texts.values())
    return {path: found for path, text in texts.items() if (found := casts(text, declared))}
