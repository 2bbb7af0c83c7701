"""A value that a source of the configuration has for a key, or a problem in it: (key, value, location)."""
import difflib
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from fluxmq.model.config_keys import KEYS, SECTIONS
from fluxmq.model.config_refused import ALIASES, refusal

__all__ = ["Given", "Problem", "resolve", "unknown_key"]


class Given(NamedTuple):
    """A value for a key, not converted yet. origin: its location in readable form, "fluxmq.yaml:12". lines: those of
    the parts of a list or section, by their paths in it, such as "[3].type"."""

    path: str
    value: Any
    origin: str
    lines: Mapping[str, str] = MappingProxyType({})

    def origin_of(self, path: str) -> str:
        """The location of the part that is named, or of the nearest around it."""
        while path and path not in self.lines:
            path = path[:max(path.rfind("."), path.rfind("["), 0)]
        return self.lines.get(path, self.origin)


class Problem(NamedTuple):
    """path: the key as written, "" for the source as a whole. text: what is wrong and what is allowed."""

    path: str
    text: str


def unknown_key(path: str) -> str:
    """Text about an unknown key, with the most similar known one."""
    reason = refusal(path)
    if reason is not None:
        return reason
    parent, _, name = path.rpartition(".")
    while parent not in SECTIONS:
        parent, _, name = parent.rpartition(".")
    prefix = f"{parent}." if parent else ""
    children = {other[len(prefix):].partition(".")[0]: None for other in (*SECTIONS, *KEYS) if other.startswith(prefix)}
    children.pop("", None)
    elsewhere = next((key for key in KEYS if key.rpartition(".")[2] == name and prefix + name == path), None)
    if elsewhere is not None:
        return f"unknown key; there is {elsewhere}"
    near = difflib.get_close_matches(name, children, 1)
    if near:
        return f"unknown key; the nearest is {prefix}{near[0]}"
    return f"unknown key; {parent or 'at the top there are'}{' has' if parent else ''} {', '.join(children)}"


def resolve(path: str, origin: str) -> tuple[str, str] | Problem:
    """Resolves a written path to a key of the schema and its location, or to a problem."""
    if path in ALIASES:
        return ALIASES[path], f"{origin}, written as {path}"
    if path in KEYS:
        return path, origin
    if path in SECTIONS:
        below = [key for key in (*KEYS, *SECTIONS) if key.startswith(path + ".") and "." not in key[len(path) + 1:]]
        return Problem(path, f"is a section, set a key in it: {', '.join(below)} ({origin})")
    return Problem(path, f"{unknown_key(path)} ({origin})")
