"""Reads YAML, a file or one value, into a list of values (config_given.py).

YAML is read as version 1.2 (config_words.py). The node tree is walked along the schema, so that every key has a line
number and nothing outside the schema is expanded.
"""
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from fluxmq.app.config_given import Given, Problem, resolve
from fluxmq.app.config_words import KINDS
from fluxmq.model.config_keys import SECTIONS
from fluxmq.model.config_refused import ALIASES

__all__ = ["FILE_BYTES_MAX", "NotYaml", "from_file", "read_value"]

# The whole schema with all comments is 10 KiB; a larger file than this is no configuration.
FILE_BYTES_MAX = 1 << 20


class NotYaml(ValueError):
    """A text that is not a YAML value."""


class _Twice(yaml.YAMLError):
    """A key that is given twice in a value, such as an entry of a list. PyYAML takes the last one."""

    def __init__(self, key: str) -> None:
        super().__init__(f"{key[:60]!r} is given twice in it")


class _Loader(yaml.SafeLoader):
    """SafeLoader with the core schema of YAML 1.2 (section 10.3.2)."""

    yaml_implicit_resolvers: dict[str, Any] = {}
    yaml_constructors = dict(yaml.SafeLoader.yaml_constructors)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode):
                if key.value in seen:
                    raise _Twice(key.value)
                seen.add(key.value)
        return super().construct_mapping(node, deep)


def _number(loader: _Loader, node: yaml.ScalarNode) -> object:
    return KINDS[node.tag.rpartition(":")[2]][2](loader.construct_scalar(node))


for _tag, (_pattern, _first, _) in KINDS.items():
    _Loader.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", _pattern, _first)
for _tag in ("int", "float"):
    _Loader.add_constructor(f"tag:yaml.org,2002:{_tag}", _number)


def read_value(text: str) -> Any:
    """Reads a value from one line. Raises NotYaml, with what is wrong or with nothing."""
    try:
        return yaml.load(text, _Loader)
    except _Twice as error:
        raise NotYaml(str(error)) from None
    except (yaml.YAMLError, ValueError, RecursionError):
        raise NotYaml from None


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
                twice = "is given twice" if first == name else f"and {first} are names of the same key: keep one"
                self.problems.append(Problem(name, f"{twice} ({first_where} and {where})"))
                continue
            seen[target] = name, where
            if name in SECTIONS:
                self.section(value_node, name + ".")
            else:
                self.leaf(name, value_node, where)

    def leaf(self, name: str, node: yaml.Node, where: str) -> None:
        resolved = resolve(name, where)
        if isinstance(resolved, Problem):
            self.problems.append(resolved)
            return
        try:
            value = self.loader.construct_object(node, deep=True)
        except _Twice as error:
            self.problems.append(Problem(name, f"{error} ({where})"))
            return
        except (yaml.YAMLError, ValueError, RecursionError):
            self.problems.append(Problem(name, f"a value with a tag or an alias that cannot be read ({where})"))
            return
        self.given.append(Given(resolved[0], value, resolved[1], dict(self.parts(node, "", set()))))

    def parts(self, node: yaml.Node, path: str, seen: set[yaml.Node]) -> Iterator[tuple[str, str]]:
        """(path, line) of what is in a value; of what is there by an alias once, since it may be in itself."""
        if node in seen or isinstance(node, yaml.ScalarNode):
            return
        seen.add(node)
        inner = ([(f"{path}[{at}]", item, item) for at, item in enumerate(node.value)]
                 if isinstance(node, yaml.SequenceNode) else
                 [(f"{path}.{key.value}", key, item) for key, item in node.value if isinstance(key, yaml.ScalarNode)])
        for name, first, item in inner:
            yield name, self.at(first)
            yield from self.parts(item, name, seen)

    def at(self, node: yaml.Node) -> str:
        return f"{self.name}:{node.start_mark.line + 1}"


def from_file(file: Path) -> tuple[list[Given], list[Problem]]:
    """Reads the values of one YAML document."""
    try:
        with file.open("rb") as stream:
            content = stream.read(FILE_BYTES_MAX + 1)
    except OSError as error:
        return [], [Problem("", f"cannot read {file}: {error.strerror}")]
    if len(content) > FILE_BYTES_MAX:
        return [], [Problem("", f"{file} is larger than {FILE_BYTES_MAX} bytes: that is not a configuration")]
    try:
        loader = _Loader(content)
        root = loader.get_node() if loader.check_node() else None
        if root is None:
            return [], []
        if loader.check_node():
            return [], [Problem("", f"{file} contains more than one YAML document; one is allowed")]
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
