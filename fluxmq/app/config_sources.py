"""Reads environment and flags into lists of values (config_given.py). For files see config_yaml.py.

A value for a key that is not text is a YAML scalar or list. A single plain word is parsed here, so that the YAML parser
is imported only for a file or a more complex value.
"""
import difflib
import re
from collections.abc import Iterable, Mapping, Sequence

from fluxmq.app.config_given import Given, Problem, resolve
from fluxmq.app.config_words import is_word, word
from fluxmq.model.config_keys import KEYS

__all__ = ["ENVIRONMENT_PREFIX", "from_environment", "from_sets"]

ENVIRONMENT_PREFIX = "FLUXMQ__"


def _from_text(path: str, text: str, origin: str) -> Given | Problem:
    """Reads a value from a text: unchanged for keys that have text, otherwise a YAML scalar or list."""
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
    except NotYaml as error:
        return Problem(path, f"{text[:60]!r} is not a YAML value{': ' if str(error) else ''}{error} ({origin})")
    return Given(resolved[0], value, resolved[1])


def _collect(entries: Iterable[Given | Problem]) -> tuple[list[Given], list[Problem]]:
    entries = list(entries)
    return ([entry for entry in entries if isinstance(entry, Given)],
            [entry for entry in entries if isinstance(entry, Problem)])


def _squeezed(name: str) -> str:
    return re.sub(r"[^A-Z0-9]", "", name.upper())


# Variable names without underscores -> the key that is meant.
_MEANT = {_squeezed(f"FLUXMQ{path}"): path for path in KEYS}


def from_environment(environment: Mapping[str, str]) -> tuple[list[Given], list[Problem]]:
    """Reads variables like FLUXMQ__SERVER__MQTT__TCP__PLAIN__ADDR. An unknown one is a problem, because a misspelt
    variable would otherwise be hard to find. So is one that begins with FLUXMQ_ and resembles a key; others with that
    prefix are ignored."""
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
    """Reads `--set key.path=value`; if a key repeats, the last one applies, as usual for flags."""
    def entries() -> Iterable[Given | Problem]:
        for text in sets:
            path, equals, value = text.partition("=")
            if not path.strip():
                yield Problem("", f"--set {text!r} names no key: write --set key.path=value")
            elif not equals:
                yield Problem(path, f"--set {text!r} has no value: write --set {path or 'key.path'}=value")
            else:
                yield _from_text(path.strip(), value.strip(), f"--set {path.strip()}")

    return _collect(entries())
