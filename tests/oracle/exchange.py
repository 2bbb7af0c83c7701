"""Routing by exchanges, slowly: bindings in a list, every one asked, patterns by recursion, values decoded into Python.

It shares no idea with the compiled index: the oracle of `_core/exchange`. `table` makes header tables for both.
"""
from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass, field

__all__ = ["Field", "NaiveExchange", "NaiveExchanges", "headers_match", "table", "topic_matches"]

Field = tuple[bytes, str, object]   # name, kind, value; of F a list of fields, of A a list of (kind, value)

FORMATS = {"t": ">?", "b": ">b", "B": ">B", "s": ">h", "u": ">H", "I": ">i", "i": ">I", "l": ">q", "L": ">q", "T": ">Q",
           "f": ">f", "d": ">d"}


def value(kind: str, it: object) -> bytes:
    """A value on the wire, with its kind in front."""
    if kind in ("S", "x"):
        assert isinstance(it, bytes)
        return kind.encode() + len(it).to_bytes(4, "big") + it
    if kind == "D":
        assert isinstance(it, tuple)
        return b"D" + struct.pack(">BI", *it)
    if kind == "V":
        return b"V"
    if kind in ("F", "A"):
        assert isinstance(it, list)
        body = table(it) if kind == "F" else b"".join(value(*one) for one in it)
        return kind.encode() + len(body).to_bytes(4, "big") + body
    return kind.encode() + struct.pack(FORMATS[kind], it)


def table(fields: Iterable[Field]) -> bytes:
    """A field table on the wire, without its length."""
    return b"".join(bytes((len(name),)) + name + value(kind, it) for name, kind, it in fields)


def topic_matches(pattern: list[bytes], words: list[bytes]) -> bool:
    """Whether a binding's words match a routing key's."""
    if not pattern:
        return not words
    if pattern[0] == b"#":
        return any(topic_matches(pattern[1:], words[at:]) for at in range(len(words) + 1))
    return bool(words) and pattern[0] in (b"*", words[0]) and topic_matches(pattern[1:], words[1:])


def words_of(key: bytes) -> list[bytes]:
    return key.split(b".") if key else []


def plain(kind: str, it: object) -> object:
    """What is compared with ==: of the same class and equal."""
    if kind in ("S", "x"):
        return "string", it
    if kind in ("F", "A"):
        assert isinstance(it, list)
        if not it:
            return "list", ()
        if kind == "F":
            return "table", tuple((name, same_kind(one), plain(one, inner)) for name, one, inner in it)
        return "array", tuple((same_kind(one), plain(one, inner)) for one, inner in it)
    if kind == "f":
        assert isinstance(it, int | float)
        return "number", struct.unpack(">f", struct.pack(">f", it))[0]
    if kind in ("t", "D", "V"):
        return kind, it
    if it != it:
        return object()     # a NaN: equal to nothing, also where Python looks at identity first
    return "number", it


def same_kind(kind: str) -> str:
    return "l" if kind == "L" else kind


def headers_match(arguments: list[Field], headers: list[Field]) -> bool:
    """Names in either are different from each other."""
    how: object = b"all"
    for name, kind, it in arguments:
        if name == b"x-match" and kind == "S" and it in (b"any", b"any-with-x", b"all-with-x"):
            how = it
    asked = [one for one in arguments if one[0] != b"x-match"]
    if how in (b"all", b"any"):
        asked = [one for one in asked if not one[0].startswith(b"x-")]
    given = {name: plain(kind, it) for name, kind, it in headers}
    answers = [name in given and (kind == "V" or given[name] == plain(kind, it)) for name, kind, it in asked]
    return all(answers) if how in (b"all", b"all-with-x") else any(answers)


@dataclass
class NaiveExchange:
    type: str
    alternate: str | None = None
    mqtt: bool = False
    bindings: list[tuple[str, str, bytes, list[Field]]] = field(default_factory=list)  # "queue" | "exchange", name, …


class NaiveExchanges:
    """names are texts; the default exchange is "" """

    def __init__(self) -> None:
        self.exchanges: dict[str, NaiveExchange] = {}
        self.queues: set[str] = set()

    def ways(self, name: str, key: bytes, headers: list[Field]) -> list[tuple[str, str]]:
        it = self.exchanges[name]
        if not name:
            return [("queue", key.decode())] if key.decode() in self.queues else []
        found = []
        for kind, to, bound, arguments in it.bindings:
            if (it.type == "fanout" or (it.type == "direct" and bound == key)
                    or (it.type == "topic" and topic_matches(words_of(bound), words_of(key)))
                    or (it.type == "headers" and headers_match(arguments, headers))):
                found.append((kind, to))
        if not found and it.alternate and it.alternate in self.exchanges:    # the default exchange is no alternate
            found.append(("exchange", it.alternate))
        return found

    def route(self, name: str, key: bytes, headers: list[Field]) -> tuple[set[str], bool] | None:
        """Names of queues, and whether MQTT topics are met."""
        if name not in self.exchanges:
            return None
        seen, queues, work = {name}, set(), [name]
        while work:
            for kind, to in self.ways(work.pop(), key, headers):
                if kind == "queue":
                    queues.add(to)
                elif to not in seen:
                    seen.add(to)
                    work.append(to)
        return queues, any(self.exchanges[one].mqtt for one in seen)
