"""Loads the configuration: defaults, then file, then environment, then flags. Reports all problems, not only the first.

    load("fluxmq.yaml", os.environ, ["log.level=debug"])  ->  (Config, {"log.level": "--set log.level", ...})

An invalid value is reported even if a stronger source overrides it, because the file is wrong nevertheless.
"""
import difflib
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from fluxmq._core.errors import ConfigError
from fluxmq.app.config_checks import check
from fluxmq.app.config_given import Given, Problem
from fluxmq.app.config_sources import from_environment, from_sets
from fluxmq.model.address import parse_address
from fluxmq.model.config import Config
from fluxmq.model.config_keys import KEYS, build
from fluxmq.model.config_keys import values as values_of
from fluxmq.model.config_refused import refusal
from fluxmq.model.entries import SpecError

__all__ = ["DEFAULT", "InvalidConfig", "Provenance", "load", "unread"]

# Dotted path of every key -> the source of its value, in readable form.
Provenance = dict[str, str]
DEFAULT = "default"
PORT_MAX = 65535


class InvalidConfig(ConfigError):
    """All problems of a configuration. problems: one ConfigError each, at least one. config: with the default where a
    value is wrong."""

    def __init__(self, problems: Sequence[ConfigError], config: Config) -> None:
        lines = [str(problem) for problem in problems]
        super().__init__("", lines[0] if len(lines) == 1 else "\n".join([f"{len(lines)} problems:", *lines]))
        self.problems = tuple(problems)
        self.config = config

    def __reduce__(self) -> tuple[type, tuple[tuple[ConfigError, ...], Config]]:
        return type(self), (self.problems, self.config)


def load(file: str | Path | None = None, environment: Mapping[str, str] | None = None,
         sets: Sequence[str] = (), port_offset: int = 0) -> tuple[Config, Provenance]:
    """Returns the configuration and the source of each value.

    file: YAML, None for none. environment: os.environ, or None to ignore it. sets: texts `key.path=value`. port_offset:
    is added to the port of each address that clients and operators connect to, but not to 0. Raises InvalidConfig.
    """
    sources = []
    if file is not None:
        from fluxmq.app.config_yaml import from_file

        sources.append(from_file(Path(file)))
    if environment is not None:
        sources.append(from_environment(environment))
    sources.append(from_sets(sets))
    problems: list[Problem] = []
    values: dict[str, Any] = {}
    provenance: Provenance = dict.fromkeys(KEYS, DEFAULT)
    origins: dict[str, str] = {}
    wrong_keys: set[str] = set()
    for given, wrong in sources:
        problems.extend(wrong)
        for entry in given:
            converted = _convert(entry)
            if isinstance(converted, list):
                problems.extend(converted)
                wrong_keys.add(entry.path)
            else:
                values[entry.path] = converted[0]
                provenance[entry.path] = entry.origin
                origins[entry.path] = entry.origin
                origins.update((entry.path + part, line) for part, line in entry.lines.items())
    config = build(values)
    if port_offset:
        problems += _move(config, port_offset, values, provenance)
        config = build(values)
    # An invalid key has its default in `config`, so checks that involve it would be meaningless.
    wrong_keys.update(problem.path for problem in problems)
    for paths, text in check(config):
        if not wrong_keys.intersection(paths):
            origin = next((origins[path] for path in paths if path in origins), None)
            problems.append(Problem(paths[0], f"{text} ({origin})" if origin else text))
    if problems:
        raise InvalidConfig([ConfigError(problem.path, problem.text) for problem in problems], config)
    return config, provenance


def _move(config: Config, port_offset: int, values: dict[str, Any], provenance: Provenance) -> Iterator[Problem]:
    """Adds the offset to ports of listeners."""
    if config.cluster.enabled:
        yield Problem("", "--port-offset cannot move a node of a cluster, whose addresses others know: give each node "
                          "its own in its file")
        return
    listening = [f"{path}.addr" for path, _ in config.listeners()]
    for path in [*listening, *(["server.health_addr"] if config.server.serves_health else [])]:
        address = parse_address(values.get(path, KEYS[path].default))
        if not address.port:
            continue
        moved = address._replace(port=address.port + port_offset)
        if moved.port > PORT_MAX:
            yield Problem(path, f"{address} cannot be moved by --port-offset {port_offset}: the last one is {PORT_MAX}")
            continue
        values[path] = str(moved)
        provenance[path] += f", moved by --port-offset {port_offset}"


def unread(running: Config, now: Config, provenance: Provenance) -> Iterator[str]:
    """A sentence for each key whose value a broker that runs does not have, because it was changed behind its start."""
    before = values_of(running)
    for path, value in values_of(now).items():
        if value != before[path]:
            old, new = (_short(KEYS[path].format(one)) for one in (before[path], value))
            changed = f"it is {new}, and {old} counts" if old != new else "it has changed"
            yield f"{path} is read at a start alone: {changed} until the next one ({provenance[path]})"


def _convert(given: Given) -> tuple[Any] | list[Problem]:
    key = KEYS[given.path]
    reason = refusal(given.path, given.value) if isinstance(given.value, (str, bool)) else None
    if reason is None:
        try:
            return (key.convert(given.value),)
        except SpecError as error:  # about keys inside the value, whose location is more precise
            return [Problem(f"{given.path}{one.path}", f"{one.text} ({given.origin_of(one.path)})")
                    for one in (error, *error.more)]
        except ValueError as error:
            reason = str(error)
    near: list[str] = []
    if key.choices and isinstance(given.value, str):
        near = difflib.get_close_matches(given.value.lower(), [choice for choice in key.choices if choice], 1)
    text = f"{_shown(given.value)} cannot be used{': ' if reason else ''}{reason}; allowed: {key.allowed}"
    return [Problem(given.path, f"{text}{f'; the nearest is {near[0]}' if near else ''} ({given.origin})")]


def _shown(value: object) -> str:
    """A value for a message: short, and a list only if it is flat (aliases can make a small one endless)."""
    if isinstance(value, dict):
        return "a section"
    if isinstance(value, list) and any(isinstance(item, (list, dict)) for item in value):
        return "a list of lists or sections"
    try:
        text = json.dumps(value, ensure_ascii=False, default=str)
    except (TypeError, ValueError):
        text = f"a {type(value).__name__}"
    return _short(text)


def _short(text: str) -> str:
    return text if len(text) <= 60 else text[:57] + "..."
