"""Reading the access list's file: YAML to rules (acl.py), with errors that name file, line and rule.

The document is walked as nodes and not as objects, because only nodes know their line, and because YAML's guesses are
unwelcome here: a user named 42 or yes is a name.
"""
import difflib
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import yaml

from fluxmq._core.errors import ConfigError
from fluxmq.access.acl import VERBS, Acl, Rule, topic_problem

__all__ = ["acl_problems", "load_acl", "parse_acl"]

FORMAT_VERSION = "1"
FILE_SIZE_BYTES_MAX = 16 << 20
LINE_MAX = 1000     # that is looked at for a mistake
# A list whose end is in a comment, for an unquoted # is ahead of it.
_OPEN_LIST = re.compile(r"""\[(?:[^\]#"']|"[^"]*"|'[^']*'|(?<![\s,\[])#)*(?<=[\s,\[])#[^\[]*\]""")
_RULE_KEYS = ("allow", "deny", "user", "client", "anonymous", "namespace", "topics")
_NULL_TAG = "tag:yaml.org,2002:null"


def load_acl(path: str | os.PathLike[str]) -> Acl:
    """Read the file. Raises ConfigError(file, text) with line and rule when it is missing or damaged."""
    return parse_acl(_text_of(path), str(path))


def acl_problems(path: str | os.PathLike[str]) -> list[ConfigError]:
    """What is wrong with the file: with each of its rules, or with all of it."""
    reader = _Reader(str(path))
    try:
        for _ in reader.rules(_document(_text_of(path), str(path)), goes_on=True):
            pass
    except ConfigError as error:
        return [error]
    return reader.wrong


def _text_of(path: str | os.PathLike[str]) -> str:
    try:
        with Path(path).open("rb") as file:
            data = file.read(FILE_SIZE_BYTES_MAX + 1)
        if len(data) > FILE_SIZE_BYTES_MAX:
            raise ConfigError(str(path), f"the access list is larger than {FILE_SIZE_BYTES_MAX >> 20} MiB")
        return data.decode("utf-8-sig")
    except FileNotFoundError:
        raise ConfigError(str(path), "there is no such access list") from None
    except OSError as error:
        raise ConfigError(str(path), f"the access list cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigError(str(path), "the access list is not UTF-8 text") from None


def parse_acl(text: str, path: str = "") -> Acl:
    """The access list that `text` holds. path: the file, for the errors. Raises ConfigError."""
    return Acl(_Reader(path).rules(_document(text, path)))


def _document(text: str, path: str) -> yaml.Node | None:
    try:
        found: yaml.Node | None = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        if (open_list := _list_in_comment(text)) is not None:   # its end is in the comment, so the error is elsewhere
            number, rule = open_list
            raise ConfigError(path, f"line {number}: rule {rule}: an unquoted # begins a comment, so this list has no "
                                    'end: write "#"') from None
        line = f"line {error.problem_mark.line + 1}: " if error.problem_mark else ""
        hint = " (quote what begins with *, %, # or $: \"*\")" if _looks_unquoted(error) else ""
        raise ConfigError(path, f"{line}this is not YAML: {error.problem}{hint}") from None
    except (yaml.YAMLError, RecursionError) as error:
        raise ConfigError(path, f"this is not YAML: {' '.join(str(error).split())}") from None
    return found


def _list_in_comment(text: str) -> tuple[int, int] | None:
    """Of a list like `[a, #]` in one line: the number of the line, and of the rule."""
    rule = 0
    for number, line in enumerate(text.splitlines(), 1):
        rule += line.lstrip().startswith("- ") and ("allow:" in line or "deny:" in line)
        if len(line) < LINE_MAX and _OPEN_LIST.search(line):
            return number, rule
    return None


def _looks_unquoted(error: yaml.MarkedYAMLError) -> bool:
    return any(word in f"{error.context} {error.problem}" for word in ("alias", "%", "cannot start any token"))


class _Reader:
    """wrong: what is wrong with rules, of a reader that goes on behind such."""

    def __init__(self, path: str) -> None:
        self.wrong: list[ConfigError] = []
        self._path = path
        self._rule = 0  # its number, from 1; 0 outside of the rules

    def fail(self, node: yaml.Node | None, text: str) -> ConfigError:
        line = f"line {node.start_mark.line + 1}: " if node is not None else ""
        rule = f"rule {self._rule}: " if self._rule else ""
        return ConfigError(self._path, f"{line}{rule}{text}")

    def rules(self, document: yaml.Node | None, *, goes_on: bool = False) -> Iterator[Rule]:
        if not isinstance(document, yaml.MappingNode):
            raise self.fail(document, "an access list is `version: 1` and `rules:`, a list of rules")
        keys = self._mapping(document, ("version", "rules"))
        if "version" not in keys or "rules" not in keys:
            raise self.fail(document, "an access list needs both `version: 1` and `rules:`")
        version = keys["version"]
        if not isinstance(version, yaml.ScalarNode) or version.value != FORMAT_VERSION:
            raise self.fail(version, f"only version {FORMAT_VERSION} of the format is known")
        rules = keys["rules"]
        if not isinstance(rules, yaml.SequenceNode):
            raise self.fail(rules, "`rules` must be a list; `rules: []` denies everything")
        for self._rule, node in enumerate(rules.value, 1):
            try:
                rule = self._read_rule(node)
            except ConfigError as error:
                if not goes_on:
                    raise
                self.wrong.append(error)
            else:
                yield rule

    def _read_rule(self, node: yaml.Node) -> Rule:
        if not isinstance(node, yaml.MappingNode):
            raise self.fail(node, "a rule is a mapping, as {allow: publish, topics: [\"a/#\"]}")
        keys = self._mapping(node, _RULE_KEYS)
        if ("allow" in keys) == ("deny" in keys):
            raise self.fail(node, "a rule has either `allow` or `deny`")
        effect = "allow" if "allow" in keys else "deny"
        verb = self._text(keys[effect], effect)
        if verb not in VERBS:
            raise self.fail(keys[effect], f"`{effect}: {verb}` is not known; publish, subscribe and all are")
        if "topics" not in keys:
            raise self.fail(node, "a rule needs `topics`, a list of topic filters (all topics: [\"#\"])")
        anonymous = "anonymous" in keys
        if anonymous and self._text(keys["anonymous"], "anonymous") != "true":
            raise self.fail(keys["anonymous"], "`anonymous` is true or is left out")
        if anonymous and "user" in keys:
            raise self.fail(node, "`anonymous` and `user` exclude each other")
        return Rule(
            allows=effect == "allow", verb=verb, anonymous=anonymous,
            topics=self._list(keys["topics"], "topics", topic_problem),
            users=self._list(keys["user"], "user") if "user" in keys else (),
            clients=self._list(keys["client"], "client") if "client" in keys else (),
            namespaces=self._list(keys["namespace"], "namespace") if "namespace" in keys else (),
        )

    def _mapping(self, node: yaml.MappingNode, known: tuple[str, ...]) -> dict[str, yaml.Node]:
        keys: dict[str, yaml.Node] = {}
        for key, value in node.value:
            name = key.value if isinstance(key, yaml.ScalarNode) else "?"
            if name not in known:
                near = difflib.get_close_matches(name, known, 1)
                raise self.fail(key, f"the key `{name}` is not known; "
                                + (f"did you mean `{near[0]}`?" if near else f"known are {', '.join(known)}"))
            if name in keys:
                raise self.fail(key, f"the key `{name}` is given twice")
            keys[name] = value
        return keys

    def _text(self, node: yaml.Node, key: str) -> str:
        if not isinstance(node, yaml.ScalarNode) or node.tag == _NULL_TAG or not node.value:
            raise self.fail(node, f"`{key}` is empty where text is expected (an unquoted # begins a comment: "
                            "write \"#\")")
        return str(node.value)

    def _list(self, node: yaml.Node, key: str, problem: Callable[[str], str] | None = None) -> tuple[str, ...]:
        """A text or a list of texts."""
        nodes = node.value if isinstance(node, yaml.SequenceNode) else [node]
        if not nodes:
            raise self.fail(node, f"`{key}` is empty, so the rule would never apply")
        texts = []
        for item in nodes:
            text = self._text(item, key)
            wrong = problem(text) if problem else ""
            if wrong:
                raise self.fail(item, f"`{text}`: {wrong}")
            texts.append(text)
        return tuple(texts)
