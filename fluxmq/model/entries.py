"""An entry of a list of the configuration, read from what a user wrote and written back: of `queues`,
`namespaces`, `cluster.raft.groups` and others.

Durations are written as everywhere (90s, 250ms), sizes too (64KiB); inside they are float seconds and int bytes.
"""
from __future__ import annotations

import difflib
import functools
from collections.abc import Callable, Hashable, Mapping
from typing import Any, TypeVar, get_type_hints

import msgspec
from msgspec import Struct, inspect

from fluxmq.model import limits
from fluxmq.model.config_types import describe
from fluxmq.model.units import format_duration, format_size, parse_duration, parse_size

__all__ = ["KIND_MAX", "SpecError", "read_list", "read_struct", "write_struct"]

T = TypeVar("T")

KIND_MAX = {"duration": limits.INTERVAL_SECONDS_MAX, "size": limits.SIZE_BYTES_MAX}


class SpecError(ValueError):
    """path: of the key, such as limits.max_depth, or [3].type in a list. text: what is wrong, and what is allowed.
    more: what else is wrong."""

    def __init__(self, path: str, text: str, more: tuple[SpecError, ...] = ()) -> None:
        super().__init__(f"{path}: {text}" if path else text)
        self.path = path
        self.text = text
        self.more = more

    def __reduce__(self) -> tuple[type, tuple[str, str, tuple[SpecError, ...]]]:
        return type(self), (self.path, self.text, self.more)


class _Wrong:
    """What is wrong with several parts of something: each is read with `with wrong:`, and all is raised by done()."""

    def __init__(self) -> None:
        self._found: list[SpecError] = []

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> bool:
        if not isinstance(error, SpecError):
            return False
        self._found += [SpecError(error.path, error.text), *error.more]
        return True

    def done(self) -> None:
        """Raises SpecError: the first, with the others."""
        if self._found:
            raise SpecError(self._found[0].path, self._found[0].text, tuple(self._found[1:]))


def _written(cls: type[Struct], key: str, value: Any) -> Any:
    info = _shape(cls)[0][key].type
    extra: dict[str, Any] = {}
    while isinstance(info, inspect.Metadata):
        extra |= info.extra or {}
        info = info.type
    if extra.get("kind") == "duration":
        return format_duration(value)
    if extra.get("kind") == "size":
        return format_size(value)
    return list(value) if isinstance(value, tuple) else value


@functools.cache
def _shape(cls: type[Struct]) -> tuple[dict[str, inspect.Field], dict[str, Any]]:
    """Fields and their types, by name. Cached: they take a millisecond to find, and queues may be thousands."""
    info = inspect.type_info(cls)
    assert isinstance(info, inspect.StructType)
    return {field.name: field for field in info.fields}, get_type_hints(cls, include_extras=True)


def read_struct(cls: type[Struct], given: object, path: str, *, what: str,
                refused: Mapping[str, str] | None = None) -> Struct:
    """An entry, or a section of one. path: its key, with a dot at the end. what: its name in messages. refused:
    keys of other versions, dotted for those of a section, and what to write instead. Raises SpecError about all keys
    that are wrong."""
    if not isinstance(given, Mapping):
        raise SpecError(path.rstrip("."), f"a section is expected, with keys such as {_example(cls)}")
    fields, hints = _shape(cls)
    values: dict[str, Any] = {}
    wrong = _Wrong()
    for key, value in given.items():
        with wrong:
            if key not in fields:
                near = difflib.get_close_matches(str(key), fields, 1)
                if key in (refused or ()):
                    raise SpecError(f"{path}{key}", (refused or {})[key])
                raise SpecError(f"{path}{key}", "there is no such key" + (f"; did you mean {near[0]}?" if near else
                                                                          f"; there are {', '.join(fields)}"))
            values[key] = _leaf(hints[key], fields[key].type, value, f"{path}{key}", what, _below(key, refused))
    with wrong:
        if "name" in fields and "name" not in given:
            raise SpecError(f"{path}name", f"is needed: every {what} has a name")
    wrong.done()
    return cls(**values)


def _below(section: str, refused: Mapping[str, str] | None) -> dict[str, str]:
    """The refused keys of a section."""
    return {key.removeprefix(f"{section}."): why for key, why in (refused or {}).items()
            if key.startswith(f"{section}.")}


def read_list(given: object, read: Callable[[Any, str], T],
              named: Callable[[T], tuple[Hashable, str]], key: str = "name") -> tuple[T, ...]:
    """The entries of a list. read: of an entry and its path. named: what is to be there once, and how it is shown. key:
    the one that says it.
    Raises ValueError for what is no list, and SpecError about all that is wrong."""
    if not isinstance(given, list | tuple):
        raise ValueError("")
    found: dict[Hashable, T] = {}
    wrong = _Wrong()
    for at, entry in enumerate(given):
        with wrong:
            one = read(entry, f"[{at}].")
            name, shown = named(one)
            if found.setdefault(name, one) is not one:
                raise SpecError(f"[{at}].{key}", f"{shown!r} is named twice")
    wrong.done()
    return tuple(found.values())


def write_struct(spec: Struct, plain: Struct, *always: str) -> dict[str, Any]:
    """As a user would write it: the keys that differ from `plain`, and those of `always`."""
    entry: dict[str, Any] = {key: getattr(spec, key) for key in always}
    for key in type(spec).__struct_fields__:
        value, default = getattr(spec, key), getattr(plain, key)
        if value == default or key in always:
            continue
        if isinstance(value, Struct):
            value = {name: _written(type(value), name, getattr(value, name)) for name in value.__struct_fields__
                     if getattr(value, name) != getattr(default, name)}
        else:
            value = _written(type(spec), key, value)
        entry[key] = value
    return entry


def _example(cls: type[Struct]) -> str:
    return ", ".join(cls.__struct_fields__[:3])


def _leaf(hint: Any, info: inspect.Type, value: object, path: str, what: str, refused: Mapping[str, str]) -> Any:
    if isinstance(info, inspect.StructType):
        return read_struct(info.cls, value, f"{path}.", what=what, refused=refused)
    written = info
    extra: dict[str, Any] = {}
    while isinstance(info, inspect.Metadata):
        extra |= info.extra or {}
        info = info.type
    try:
        if extra.get("kind") == "duration":
            value = parse_duration(value)
        elif extra.get("kind") == "size":
            value = parse_size(value)
        if isinstance(info, inspect.VarTupleType) and isinstance(value, list):
            value = tuple(value)
        converted = msgspec.convert(value, hint)
        if "kind" in extra and converted > KIND_MAX.get(extra["kind"], converted):
            raise ValueError("too large")
        return converted
    except (ValueError, msgspec.ValidationError):
        _, allowed, choices = describe(written, hint)
        near = difflib.get_close_matches(str(value).lower(), choices, 1)
        raise SpecError(path, f"{_shown(value)} cannot be used; allowed: {allowed}"
                              + (f"; the nearest is {near[0]}" if near else "")) from None


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
