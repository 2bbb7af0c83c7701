"""The table of faults (docs/guide/cluster-faults.md): each row names tests that show it, and these exist."""
from __future__ import annotations

import ast
import re

import pytest
from kit.tree import ROOT

PAGE = ROOT / "docs" / "guide" / "cluster-faults.md"
TEST = re.compile(r"`([\w/]+\.py)::(\w+)`")
ROWS = [(number, line) for number, line in enumerate(PAGE.read_text("utf-8").splitlines(), 1)
        if line.startswith("| ") and not line.startswith("| fault |")]


def test_there_are_rows_of_six_columns() -> None:
    assert len(ROWS) > 20
    assert [number for number, line in ROWS if len(line.replace(r"\|", "").strip("|").split("|")) != 6] == []


@pytest.mark.parametrize("number, line", ROWS, ids=[str(number) for number, _ in ROWS])
def test_each_row_names_tests_that_exist(number: int, line: str) -> None:
    named = TEST.findall(line.strip("| ").split("|")[-1])
    assert named, f"line {number} of {PAGE.name} names no test"
    for file, name in named:
        path = ROOT / "tests" / file
        assert path.exists(), f"there is no tests/{file}"
        found = {node.name for node in ast.walk(ast.parse(path.read_text("utf-8")))
                 if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
        assert name in found, f"tests/{file} has no {name}"
