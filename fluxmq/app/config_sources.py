"""Environment and flags, each read into a list of what it gives: (key, value, where it stands). Files: config_yaml.py.

A value for a key that is not text is a YAML scalar or list. One plain word needs no parser of YAML, so that one is
imported only when there is a file, or a value of more than that.
"""
import difflib
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from fluxmq.app.config_words import is_word, word
from fluxmq.model.config_keys import KEYS, SECTIONS
from fluxmq.model.config_refused import ALIASES, refusal

__all__ = ["ENVIRONMENT_PREFIX", "Given", "Problem", "from_environment", "from_sets", "resolve", "unknown_key"]

ENVIRONMENT_PREFIX = "FLUXMQ__"


class Given(NamedTuple):
    """A value for a key, not converted yet. origin: for people, "fluxmq.yaml:12"."""

    path: str
    value: Any
    origin: str


class Problem(NamedTuple):
    """path: the key as written, "" for the source as a whole. text: what is wrong and what is allowed."""

    path: str
    text: str


def unknown_key(path: str) -> str:
    """Why there is no such key, and the nearest that there is."""
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
    """A written path to a key of the schema, and where it stands; or what is wrong with it."""
    if path in ALIASES:
        return ALIASES[path], f"{origin}, written as {path}"
    if path in KEYS:
        return path, origin
    if path in SECTIONS:
        below = [key for key in (*KEYS, *SECTIONS) if key.startswith(path + ".") and "." not in key[len(path) + 1:]]
        return Problem(path, f"is a section, set a key in it: {', '.join(below)} ({origin})")
    return Problem(path, f"{unknown_key(path)} ({origin})")


def _from_text(path: str, text: str, origin: str) -> Given | Problem:
    """A value that came as text: as it is for keys that hold text, otherwise a YAML scalar or list."""
    resolved = resolve(path, origin)
    if isinstance(resolved, Problem):
        return resolved
    quoted = len(text) >= 2 and text[0] == text[-1] and text[0] in "'\""
    if KEYS[resolved[0]].kind in ("text", "choice", "address") and not quoted:
        return Given(resolved[0], text, resolved[1])
    if is_word(text):
        return Given(resolved[0], word(text), resolved[1])
    from fluxmq.app.config_yaml import NotYaml, read_value

    try:
        value = read_value(text)
    except NotYaml:
        return Problem(path, f"{text[:60]!r} is not a YAML value ({origin})")
    return Given(resolved[0], value, resolved[1])


def _collect(entries: Iterable[Given | Problem]) -> tuple[list[Given], list[Problem]]:
    entries = list(entries)
    return ([entry for entry in entries if isinstance(entry, Given)],
            [entry for entry in entries if isinstance(entry, Problem)])


def _squeezed(name: str) -> str:
    return re.sub(r"[^A-Z0-9]", "", name.upper())


# By what is left of a variable's name without underscores: the key that it means.
_MEANT = {_squeezed(f"FLUXMQ{path}"): path for path in KEYS}


def from_environment(environment: Mapping[str, str]) -> tuple[list[Given], list[Problem]]:
    """What variables like FLUXMQ__SERVER__MQTT__TCP__PLAIN__ADDR give. An unknown one is a problem: a misspelt variable
    would otherwise be the hardest setting to find. So is one that begins with FLUXMQ_ and means a key; others that do
    are not ours."""
    def entries() -> Iterable[Given | Problem]:
        for name in sorted(environment):
            if not name.upper().startswith(ENVIRONMENT_PREFIX):
                near = difflib.get_close_matches(_squeezed(name), _MEANT, 1, 0.9) if (
                    name.upper().startswith("FLUXMQ_")) else []
                if near:
                    meant = _MEANT[near[0]]
                    yield Problem(meant, f"the variable {name} is not read: write "
                                  f"{ENVIRONMENT_PREFIX}{meant.replace('.', '__').upper()}")
                continue
            path = name[len(ENVIRONMENT_PREFIX):].lower().replace("__", ".")
            if name != name.upper():
                yield Problem(path, f"write the variable {name} in capitals: {name.upper()}")
                continue
            yield _from_text(path, environment[name], f"environment {name}")

    return _collect(entries())


def from_sets(sets: Sequence[str]) -> tuple[list[Given], list[Problem]]:
    """What `--set key.path=value` gives; of one key the last counts, as with flags everywhere."""
    def entries() -> Iterable[Given | Problem]:
        for text in sets:
            path, equals, value = text.partition("=")
            if not equals:
                yield Problem(path, f"--set {text!r} has no value: write --set {path or 'key.path'}=value")
            else:
                yield _from_text(path.strip(), value.strip(), f"--set {path.strip()}")

    return _collect(entries())
