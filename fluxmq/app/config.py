"""Loads the configuration: defaults, then file, then environment, then flags. Reports all problems, not only the first.

    load("fluxmq.yaml", os.environ, ["log.level=debug"])  ->  (Config, {"log.level": "--set log.level", ...})

An invalid value is reported even if a stronger source overrides it, because the file is wrong nevertheless.
"""
import difflib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fluxmq._core.errors import ConfigError
from fluxmq.app.config_checks import check
from fluxmq.app.config_given import Given, Problem
from fluxmq.app.config_sources import from_environment, from_sets
from fluxmq.model.config import Config
from fluxmq.model.config_keys import KEYS, build
from fluxmq.model.config_refused import refusal
from fluxmq.model.entries import SpecError

__all__ = ["DEFAULT", "InvalidConfig", "Provenance", "load"]

# Dotted path of every key -> the source of its value, in readable form.
Provenance = dict[str, str]
DEFAULT = "default"


class InvalidConfig(ConfigError):
    """All problems of a configuration. problems: one ConfigError each, at least one."""

    def __init__(self, problems: Sequence[ConfigError]) -> None:
        lines = [str(problem) for problem in problems]
        super().__init__("", lines[0] if len(lines) == 1 else "\n".join([f"{len(lines)} problems:", *lines]))
        self.problems = tuple(problems)

    def __reduce__(self) -> tuple[type, tuple[tuple[ConfigError, ...]]]:
        return type(self), (self.problems,)


def load(file: str | Path | None = None, environment: Mapping[str, str] | None = None,
         sets: Sequence[str] = ()) -> tuple[Config, Provenance]:
    """Returns the configuration and the source of each value.

    file: YAML, None for none. environment: os.environ, or None to ignore it. sets: texts `key.path=value`. Raises
    InvalidConfig.
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
    for given, wrong in sources:
        problems.extend(wrong)
        for entry in given:
            converted = _convert(entry)
            if isinstance(converted, Problem):
                problems.append(converted)
            else:
                values[entry.path] = converted[0]
                provenance[entry.path] = entry.origin
    config = build(values)
    # An invalid key has its default in `config`, so checks that involve it would be meaningless.
    wrong_paths = {problem.path for problem in problems}
    for paths, text in check(config):
        if not wrong_paths.intersection(paths):
            origin = next((provenance[path] for path in paths if provenance.get(path, DEFAULT) != DEFAULT), None)
            problems.append(Problem(paths[0], f"{text} ({origin})" if origin else text))
    if problems:
        raise InvalidConfig([ConfigError(problem.path, problem.text) for problem in problems])
    return config, provenance


def _convert(given: Given) -> tuple[Any] | Problem:
    key = KEYS[given.path]
    reason = refusal(given.path, given.value) if isinstance(given.value, (str, bool)) else None
    if reason is None:
        try:
            return (key.convert(given.value),)
        except SpecError as error:  # about a key inside the value, whose location is more precise
            return Problem(f"{given.path}{error.path}", f"{error.text} ({given.origin})")
        except ValueError as error:
            reason = str(error)
    near: list[str] = []
    if key.choices and isinstance(given.value, str):
        near = difflib.get_close_matches(given.value.lower(), [choice for choice in key.choices if choice], 1)
    text = f"{_shown(given.value)} cannot be used{': ' if reason else ''}{reason}; allowed: {key.allowed}"
    return Problem(given.path, f"{text}{f'; the nearest is {near[0]}' if near else ''} ({given.origin})")


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
    return text if len(text) <= 60 else text[:57] + "..."
