"""The configuration's structs read as a list of keys: type, what is allowed, default, description, conversion.

Loading, `config keys`, `config show` and the guide all use KEYS, and KEYS is made from the
structs; so none of them can name a key that the others do not know. entry_keys.py has those of one queue, namespace or
group.
"""
import json
import re
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from typing import Any, get_type_hints

import msgspec
from msgspec import inspect

from fluxmq.model.address import parse_address
from fluxmq.model.config import Config
from fluxmq.model.config_types import describe, description_of
from fluxmq.model.entries import KIND_MAX
from fluxmq.model.namespaces import read_namespaces, write_namespace
from fluxmq.model.queues import read_specs, write_spec
from fluxmq.model.raft import read_groups, read_patterns, read_peers, write_groups, write_patterns
from fluxmq.model.units import format_duration, format_size, parse_duration, parse_size

__all__ = ["KEYS", "SECTIONS", "Key", "build", "keys_of", "values"]

# Kinds whose values have parts with keys of their own, and how these are read and written.
_READ: Mapping[str, Callable[[object], Any]] = {
    "queues": read_specs, "namespaces": read_namespaces, "groups": read_groups, "patterns": read_patterns,
    "nodes": read_peers}
_WRITE: Mapping[str, Callable[[Any], Any]] = {
    "queues": lambda specs: [write_spec(spec) for spec in specs],
    "namespaces": lambda specs: [write_namespace(spec) for spec in specs],
    "groups": write_groups, "patterns": write_patterns}

_BARE = re.compile(r"[a-z][a-z0-9.]*", re.ASCII)


class Key(msgspec.Struct, frozen=True, kw_only=True):
    """One leaf of the schema.

    path: dotted. kind: duration, size, address, boolean, integer, choice, text, list, map, queues,
    namespaces, groups, patterns or nodes. allowed: half a sentence.
    default: as it stands in the struct. choices: of a choice, otherwise ().
    """

    path: str
    kind: str
    allowed: str
    default: Any
    description: str
    choices: tuple[str, ...]
    hint: Any

    def convert(self, value: object) -> Any:
        """The value as it stands in the struct. Raises ValueError with what is wrong or, alone, what is allowed."""
        if self.kind in _READ:
            return _READ[self.kind](value)
        if self.kind == "duration":
            value = parse_duration(value)
        elif self.kind == "size":
            value = parse_size(value)
        elif self.kind == "map" and value is None:  # as a section without keys
            value = {}
        try:
            converted = msgspec.convert(value, self.hint)
        except msgspec.ValidationError:
            raise ValueError("") from None
        if self.kind in ("duration", "size") and converted > KIND_MAX[self.kind]:
            raise ValueError("too large")
        if self.kind == "address" and converted:
            parse_address(converted)
        if not all(text.isprintable() for text in _texts(converted)):
            raise ValueError("it contains characters that cannot be printed")
        return converted

    def format(self, value: Any) -> str:
        """As YAML in one line, such that the loader reads it back."""
        if self.kind == "duration":
            return format_duration(value)
        if self.kind == "size":
            return format_size(value)
        if self.kind == "choice" and _BARE.fullmatch(value):
            return str(value)
        if self.kind in _WRITE:
            value = _WRITE[self.kind](value)
        return json.dumps(value, ensure_ascii=False)


def _texts(value: object) -> Iterator[str]:
    """The texts in a value of any kind but queues and namespaces."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, tuple):
        yield from value
    elif isinstance(value, dict):
        yield from value
        yield from value.values()


@cache
def _info(hint: Any) -> inspect.Type:
    """Of a leaf. Many have the same, and msgspec takes longest for structs, whose fields are read here anyway."""
    return inspect.type_info(hint)


def _walk(default: msgspec.Struct, prefix: str) -> Iterator[Key | tuple[str, str]]:
    """Keys, and before those of a section its (path, docstring), in the order of declaration."""
    cls = type(default)
    hints = get_type_hints(cls, include_extras=True)
    yield prefix.rstrip("."), " ".join((cls.__doc__ or "").split())
    for name in cls.__struct_fields__:
        value, hint, path = getattr(default, name), hints[name], prefix + name
        if isinstance(value, msgspec.Struct):
            yield from _walk(value, path + ".")
        else:
            info = _info(hint)
            kind, allowed, choices = describe(info, hint)
            yield Key(path=path, kind=kind, allowed=allowed, default=value, choices=choices,
                      description=description_of(info), hint=hint)


def keys_of(default: msgspec.Struct, prefix: str) -> tuple[Mapping[str, Key], Mapping[str, str]]:
    """Of a struct: its keys by path, and the docstrings of its sections."""
    keys = list(_walk(default, prefix))
    return ({item.path: item for item in keys if isinstance(item, Key)},
            {item[0]: item[1] for item in keys if not isinstance(item, Key)})


KEYS, SECTIONS = keys_of(Config(), "")


def values(config: Config) -> dict[str, Any]:
    """Dotted path to value, every key, in the order of the schema."""
    values_by_path: dict[str, Any] = {}
    for path in KEYS:
        value: Any = config
        for name in path.split("."):
            value = getattr(value, name)
        values_by_path[path] = value
    return values_by_path


def build(given: Mapping[str, Any]) -> Config:
    """The configuration that has these (converted) values by path, and defaults for the rest."""
    def section(default: Any, prefix: str) -> Any:
        parts = {}
        for name in default.__struct_fields__:
            value = getattr(default, name)
            if isinstance(value, msgspec.Struct):
                parts[name] = section(value, f"{prefix}{name}.")
            else:
                parts[name] = given.get(prefix + name, value)
        return type(default)(**parts)

    built = section(Config(), "")
    assert isinstance(built, Config)
    return built
