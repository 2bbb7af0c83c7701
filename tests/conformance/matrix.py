"""The conformance table: which tests show which normative statement of the two MQTT specifications.

The statements are in `statements/*.toml`; the tests say what they show by `@pytest.mark.normative("MQTT5-3.3.1-2")`,
with as many ids as apply. This program joins the two into `docs/conformance.md`.

    python tests/conformance/matrix.py --write    write docs/conformance.md
    python tests/conformance/matrix.py --check    exit 1, with a line per problem, if the table has gaps or is stale
    python tests/conformance/matrix.py --gaps     list the statements that still want a test

Markers are read from the syntax tree, so nothing is imported and no broker is needed. They may stand on a function, on
a class, in a `pytestmark` of a class or a module, or in the `marks=` of a `pytest.param`. Their arguments are string
literals: anything else is reported, because a marker that this program cannot read would be a hole that nobody sees.
"""

from __future__ import annotations

import argparse
import ast
import re
import sys
import tomllib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

__all__ = ["BINDS", "Matrix", "Specification", "Statement", "collect", "load", "problems", "render", "split_id"]

ROOT = Path(__file__).resolve().parents[2]
TESTS = ROOT / "tests"
STATEMENTS = Path(__file__).resolve().parent / "statements"
PAGE = ROOT / "docs" / "conformance.md"

BINDS = ("server", "client", "both", "neither")
"""Who can break a statement. `server` and `both` want a test of the broker."""

_ID = re.compile(r"(MQTT311|MQTT5)-(\d+(?:\.\d+)*)-(\d+)")


@dataclass(frozen=True)
class Statement:
    """One normative statement: its id, who is bound by it, what it says in our words, and why nobody is bound."""

    id: str
    binds: str
    says: str
    why: str = ""

    @property
    def wants_test(self) -> bool:
        return self.binds in ("server", "both")


@dataclass(frozen=True)
class Specification:
    """One file of statements, in the order of the specification."""

    path: Path
    version: str
    prefix: str
    source: str
    total: int
    gaps: dict[str, str]
    misprints: dict[str, str]
    statements: tuple[Statement, ...]


@dataclass
class Matrix:
    """What the tests claim: id -> tests as `file::name`, and what could not be read."""

    tests: dict[str, list[str]] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    def add(self, ids: Iterable[str], test: str) -> None:
        for id_ in ids:
            named = self.tests.setdefault(id_, [])
            if test not in named:
                named.append(test)


def split_id(id_: str) -> tuple[str, tuple[int, ...], int]:
    """`MQTT5-3.3.1-2` -> ("MQTT5", (3, 3, 1), 2). Raises ValueError for anything that is not such an id."""
    found = _ID.fullmatch(id_)
    if found is None:
        raise ValueError(f"{id_!r} is not of the form MQTT311-<section>-<n> or MQTT5-<section>-<n>")
    return found[1], tuple(int(part) for part in found[2].split(".")), int(found[3])


def load(directory: Path = STATEMENTS) -> list[Specification]:
    """Read every `*.toml` of `directory`. Raises ValueError, with file and id, for an entry of the wrong form."""
    specifications = []
    for path in sorted(directory.glob("*.toml")):
        data = tomllib.loads(path.read_text(encoding="utf-8"))
        statements = []
        for id_, entry in data["statements"].items():
            if unknown := set(entry) - {"binds", "says", "why"}:
                raise ValueError(f"{path.name}: {id_}: unknown fields {sorted(unknown)}; allowed are binds, says, why")
            statements.append(Statement(id_, entry["binds"], entry["says"], entry.get("why", "")))
        specifications.append(
            Specification(
                path, data["version"], data["prefix"], data["source"], data["total"], data["gaps"], data["misprints"],
                tuple(statements),
            )
        )
    return specifications


def collect(tests: Path = TESTS) -> Matrix:
    """The markers of every `test_*.py` under `tests`, in the order of path and line."""
    matrix = Matrix()
    for path in sorted(tests.rglob("test_*.py")):
        name = path.relative_to(tests).as_posix()
        _Reader(name, matrix).module(ast.parse(path.read_text(encoding="utf-8"), filename=str(path)))
    return matrix


class _Reader:
    """Walks one module. Every `normative` attribute must be met at a place where pytest applies it to a test."""

    def __init__(self, name: str, matrix: Matrix) -> None:
        self.name = name
        self.matrix = matrix
        self.used: set[int] = set()

    def module(self, tree: ast.Module) -> None:
        self.body(tree.body, (), "")
        for node in ast.walk(tree):
            if _is_marker(node) and id(node) not in self.used:
                self.complain(node, "a normative marker that applies to no test, or is not called with string literals")

    def body(self, body: list[ast.stmt], inherited: tuple[str, ...], prefix: str) -> None:
        for node in _statements(body):
            if isinstance(node, ast.Assign) and [ast.unparse(target) for target in node.targets] == ["pytestmark"]:
                inherited += tuple(self.ids(node.value))
        for node in _statements(body):
            if isinstance(node, ast.ClassDef) and node.name.startswith("Test"):
                own = tuple(id_ for decorator in node.decorator_list for id_ in self.ids(decorator))
                self.body(node.body, inherited + own, f"{prefix}{node.name}::")
            elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test"):
                own = tuple(id_ for decorator in node.decorator_list for id_ in self.ids(decorator))
                self.matrix.add(inherited + own, f"{self.name}::{prefix}{node.name}")

    def ids(self, expression: ast.expr) -> Iterator[str]:
        """The ids of every marker inside one decorator or `pytestmark` value."""
        for node in ast.walk(expression):
            if not (isinstance(node, ast.Call) and _is_marker(node.func)):
                continue
            values = [a.value for a in node.args if isinstance(a, ast.Constant) and isinstance(a.value, str)]
            if values and len(values) == len(node.args) and not node.keywords:
                self.used.add(id(node.func))
                yield from values

    def complain(self, node: ast.AST, text: str) -> None:
        self.matrix.problems.append(f"tests/{self.name}:{getattr(node, 'lineno', 0)}: {text}")


def _is_marker(node: ast.AST) -> bool:
    return isinstance(node, ast.Attribute) and node.attr == "normative"


def _statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """The statements of a body and of the `if`, `try` and `with` blocks in it."""
    for node in body:
        yield node
        if isinstance(node, ast.If | ast.Try | ast.With):
            for block in ("body", "orelse", "finalbody"):
                yield from _statements(getattr(node, block, []))


def problems(specifications: list[Specification], matrix: Matrix, page: str | None) -> list[str]:
    """What keeps the table from being complete and current; `page` is docs/conformance.md, or None if absent."""
    known = {statement.id for specification in specifications for statement in specification.statements}
    found = list(matrix.problems)
    for id_, tests in sorted(matrix.tests.items()):
        if id_ not in known:
            found.append(f"{tests[0]}: marked with {id_}, which is in no file of tests/conformance/statements")
    for specification in specifications:
        for statement in specification.statements:
            if statement.wants_test and statement.id not in matrix.tests:
                found.append(f"{statement.id} ({statement.binds}) has no test: {statement.says}")
    if page != render(specifications, matrix):
        found.append("docs/conformance.md is stale: run python tests/conformance/matrix.py --write")
    return found


def render(specifications: list[Specification], matrix: Matrix) -> str:
    """The text of docs/conformance.md."""
    lines = [
        "# Conformance",
        "",
        "Every normative statement of the MQTT specifications, who is bound by it, what it says in our words, and",
        "the tests that show it. A statement that binds the server, or both sides, without a test fails the build;",
        "one that binds only the client is listed, with the tests that provoke its violation where there are such.",
        "",
        "This page is generated from `tests/conformance/statements/` and from the `normative` markers of the tests by",
        "`python tests/conformance/matrix.py --write`. Paths are below `tests/`.",
        "",
    ]
    for specification in specifications:
        lines += _chapter(specification, matrix)
    return "\n".join(lines)


def _chapter(specification: Specification, matrix: Matrix) -> Iterator[str]:
    statements = specification.statements
    wanting = [statement for statement in statements if statement.wants_test]
    shown = sum(1 for statement in wanting if statement.id in matrix.tests)
    yield f"## {specification.version}"
    yield ""
    yield f"{specification.source}: {len(statements)} statements."
    yield f"{len(wanting)} bind the broker; {shown} of them have tests."
    for id_, why in specification.gaps.items():
        yield f"There is no {id_}. {why}"
    yield ""
    yield "| statement | binds | in our words | tests |"
    yield "|---|---|---|---|"
    for statement in statements:
        tests = "<br>".join(f"`{test}`" for test in matrix.tests.get(statement.id, ()))
        if not tests:
            tests = "**none**" if statement.wants_test else (statement.why or "–")
        yield f"| {statement.id} | {statement.binds} | {statement.says.replace('|', chr(92) + '|')} | {tests} |"
    yield ""


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="The table of normative statements and their tests.")
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--write", action="store_true", help="write docs/conformance.md")
    what.add_argument("--check", action="store_true", help="exit 1 if the table has gaps or is stale")
    what.add_argument("--gaps", action="store_true", help="list the statements that want a test")
    options = parser.parse_args(arguments)
    specifications, matrix = load(), collect()
    if options.write:
        PAGE.parent.mkdir(exist_ok=True)
        PAGE.write_text(render(specifications, matrix), encoding="utf-8")
        return 0
    if options.gaps:
        for specification in specifications:
            for statement in specification.statements:
                if statement.wants_test and statement.id not in matrix.tests:
                    print(f"{statement.id} ({statement.binds}): {statement.says}")
        return 0
    found = problems(specifications, matrix, PAGE.read_text(encoding="utf-8") if PAGE.exists() else None)
    for problem in found:
        print(problem, file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    raise SystemExit(main())
