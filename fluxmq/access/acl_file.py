"""Reading the access list's file: YAML to rules (acl.py), with errors that name file, line and rule.

The document is walked as nodes and not as objects, because only nodes know their line, and because YAML's guesses are
unwelcome here: a user named 42 or yes is a name.
"""
import difflib
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import yaml

from fluxmq._core.errors import ConfigError
from fluxmq.access.acl import VERBS, Acl, Rule, topic_problem

__all__ = ["load_acl", "parse_acl"]

FORMAT_VERSION = "1"
FILE_SIZE_BYTES_MAX = 16 << 20
_RULE_KEYS = ("allow", "deny", "user", "client", "anonymous", "namespace", "topics")
_NULL_TAG = "tag:yaml.org,2002:null"


def load_acl(path: str | os.PathLike[str]) -> Acl:
    """Read the file. Raises ConfigError(file, text) with line and rule when it is missing or damaged."""
    try:
        with Path(path).open("rb") as file:
            data = file.read(FILE_SIZE_BYTES_MAX + 1)
        if len(data) > FILE_SIZE_BYTES_MAX:
            raise ConfigError(str(path), f"the access list is larger than {FILE_SIZE_BYTES_MAX >> 20} MiB")
        text = data.decode("utf-8-sig")
    except FileNotFoundError:
        raise ConfigError(str(path), "there is no such access list") from None
    except OSError as error:
        raise ConfigError(str(path), f"the access list cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigError(str(path), "the access list is not UTF-8 text") from None
    return parse_acl(text, str(path))


def parse_acl(text: str, path: str = "") -> Acl:
    """The access list that `text` holds. path: the file, for the errors. Raises ConfigError."""
    try:
        document = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        line = f"line {error.problem_mark.line + 1}: " if error.problem_mark else ""
        hint = " (quote what begins with *, %, # or $: \"*\")" if _looks_unquoted(error) else ""
        raise ConfigError(path, f"{line}this is not YAML: {error.problem}{hint}") from None
    except (yaml.YAMLError, RecursionError) as error:
        raise ConfigError(path, f"this is not YAML: {' '.join(str(error).split())}") from None
    return Acl(_Reader(path).rules(document))


def _looks_unquoted(error: yaml.MarkedYAMLError) -> bool:
    return any(word in f"{error.context} {error.problem}" for word in ("alias", "%", "cannot start any token"))


class _Reader:
    def __init__(self, path: str) -> None:
        self._path = path
        self._rule = 0  # its number, from 1; 0 outside of the rules

    def fail(self, node: yaml.Node | None, text: str) -> ConfigError:
        line = f"line {node.start_mark.line + 1}: " if node is not None else ""
        rule = f"rule {self._rule}: " if self._rule else ""
        return ConfigError(self._path, f"{line}{rule}{text}")

    def rules(self, document: yaml.Node | None) -> Iterator[Rule]:
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
            yield self._read_rule(node)

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
