"""File, environment and flags, each read into a list of what it gives: (key, value, where it stands).

YAML is read as version 1.2 reads it: `yes`, `on`, `0755`, `1:30` and dates are not what 1.1 makes of them. The node
tree is walked along the schema, so that every key knows its line, and nothing outside the schema is ever expanded.
"""
import difflib
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from fluxmq.model.config_keys import KEYS, SECTIONS
from fluxmq.model.config_refused import ALIASES, refusal

__all__ = ["ENVIRONMENT_PREFIX", "FILE_BYTES_MAX", "Given", "Problem", "from_environment", "from_file", "from_sets",
           "unknown_key"]

ENVIRONMENT_PREFIX = "FLUXMQ__"
# The whole schema with every comment is 10 KiB; a file of more than this is another file.
FILE_BYTES_MAX = 1 << 20


class Given(NamedTuple):
    """A value for a key, not converted yet. origin: for people, "fluxmq.yaml:12"."""

    path: str
    value: Any
    origin: str


class Problem(NamedTuple):
    """path: the key as written, "" for the source as a whole. text: what is wrong and what is allowed."""

    path: str
    text: str


class _Loader(yaml.SafeLoader):
    """SafeLoader with the core schema of YAML 1.2 (section 10.3.2)."""

    yaml_implicit_resolvers: dict[str, Any] = {}
    yaml_constructors = dict(yaml.SafeLoader.yaml_constructors)


def _integer(loader: _Loader, node: yaml.ScalarNode) -> int:
    text = loader.construct_scalar(node)
    return int(text, 16 if text.startswith("0x") else 8 if text.startswith("0o") else 10)


def _float(loader: _Loader, node: yaml.ScalarNode) -> float:
    return float(loader.construct_scalar(node))


for _tag, _pattern, _first in (
    ("null", r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    ("bool", r"true|True|TRUE|false|False|FALSE", list("tTfF")),
    # 18 digits: what is longer is no number that any key takes, and int() would refuse it past 4 300
    ("int", r"[-+]?[0-9]{1,18}|0x[0-9a-fA-F]{1,15}|0o[0-7]{1,20}", list("-+0123456789")),
    ("float", r"[-+]?(\.[0-9]+|[0-9]{1,18}(\.[0-9]*)?)([eE][-+]?[0-9]{1,3})?", list("-+.0123456789")),
):
    _Loader.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", re.compile(rf"^(?:{_pattern})$", re.ASCII), _first)
_Loader.add_constructor("tag:yaml.org,2002:int", _integer)
_Loader.add_constructor("tag:yaml.org,2002:float", _float)


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


def _resolve(path: str, origin: str) -> tuple[str, str] | Problem:
    """A written path to a key of the schema, and where it stands; or what is wrong with it."""
    if path in ALIASES:
        return ALIASES[path], f"{origin}, written as {path}"
    if path in KEYS:
        return path, origin
    if path in SECTIONS:
        below = [key for key in (*KEYS, *SECTIONS) if key.startswith(path + ".") and "." not in key[len(path) + 1:]]
        return Problem(path, f"is a section, set a key in it: {', '.join(below)} ({origin})")
    return Problem(path, f"{unknown_key(path)} ({origin})")


class _FileReader:
    """One walk over the node tree of one file."""

    def __init__(self, name: str, loader: _Loader) -> None:
        self.name = name
        self.loader = loader
        self.given: list[Given] = []
        self.problems: list[Problem] = []

    def section(self, node: yaml.Node, prefix: str) -> None:
        path = prefix.rstrip(".")
        if isinstance(node, yaml.ScalarNode) and node.tag == "tag:yaml.org,2002:null":
            return
        if not isinstance(node, yaml.MappingNode):
            self.problems.append(Problem(path, f"must be a section with keys ({self.at(node)})"))
            return
        seen: dict[str, tuple[str, str]] = {}
        for key_node, value_node in node.value:
            where = self.at(key_node)
            if not isinstance(key_node, yaml.ScalarNode) or not key_node.value or "." in key_node.value:
                wrong = "a key must be one word, and what is below it indented"
                self.problems.append(Problem(path, f"{wrong} ({where})"))
                continue
            name = prefix + str(key_node.value)
            target = ALIASES.get(name, name)
            if target in seen:
                first, first_where = seen[target]
                twice = "is there twice" if first == name else f"and {first} are names of the same key: keep one"
                self.problems.append(Problem(name, f"{twice} ({first_where} and {where})"))
                continue
            seen[target] = name, where
            if name in SECTIONS:
                self.section(value_node, name + ".")
            else:
                self.leaf(name, value_node, where)

    def leaf(self, name: str, node: yaml.Node, where: str) -> None:
        resolved = _resolve(name, where)
        if isinstance(resolved, Problem):
            self.problems.append(resolved)
            return
        try:
            value = self.loader.construct_object(node, deep=True)
        except (yaml.YAMLError, ValueError, RecursionError):
            self.problems.append(Problem(name, f"a value with a tag or an alias that cannot be read ({where})"))
            return
        self.given.append(Given(resolved[0], value, resolved[1]))

    def at(self, node: yaml.Node) -> str:
        return f"{self.name}:{node.start_mark.line + 1}"


def from_file(file: Path) -> tuple[list[Given], list[Problem]]:
    """What one YAML document gives."""
    try:
        with file.open("rb") as stream:
            content = stream.read(FILE_BYTES_MAX + 1)
    except OSError as error:
        return [], [Problem("", f"cannot read {file}: {error.strerror}")]
    if len(content) > FILE_BYTES_MAX:
        return [], [Problem("", f"{file} is larger than {FILE_BYTES_MAX} bytes: that is no configuration")]
    try:
        loader = _Loader(content)
        root = loader.get_node() if loader.check_node() else None
        if root is None:
            return [], []
        if loader.check_node():
            return [], [Problem("", f"{file} holds more than one YAML document; one is allowed")]
        reader = _FileReader(str(file), loader)
        reader.section(root, "")
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        where = f"{file}:{mark.line + 1}, column {mark.column + 1}" if mark else str(file)
        return [], [Problem("", f"{where}: not YAML: {error.problem}")]
    except yaml.YAMLError:
        return [], [Problem("", f"{file} is not text in UTF-8")]
    except RecursionError:
        return [], [Problem("", f"{file} is nested too deeply")]
    return reader.given, reader.problems


def _from_text(path: str, text: str, origin: str) -> Given | Problem:
    """A value that came as text: as it is for keys that hold text, otherwise a YAML scalar or list."""
    resolved = _resolve(path, origin)
    if isinstance(resolved, Problem):
        return resolved
    quoted = len(text) >= 2 and text[0] == text[-1] and text[0] in "'\""
    if KEYS[resolved[0]].kind in ("text", "choice", "address") and not quoted:
        return Given(resolved[0], text, resolved[1])
    try:
        value = yaml.load(text, _Loader)
    except (yaml.YAMLError, ValueError, RecursionError):
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
