"""The lists of tests that do not run on three nodes, or differ there, name files and tests that exist."""
from __future__ import annotations

import ast

import pytest
from kit.on_three_nodes import EXCLUSIVE, LEFT_OUT, LONG, SUITES, TESTS


@pytest.mark.parametrize("lists", [LEFT_OUT, EXCLUSIVE, LONG], ids=["LEFT_OUT", "EXCLUSIVE", "LONG"])
def test_what_is_listed_exists(lists: dict[str, tuple[str, ...]]) -> None:
    named = [name for names in lists.values() for name in names]
    assert len(named) == len(set(named))
    for name in named:
        path, _, test = name.partition("::")
        assert path.split("/")[0] in SUITES
        tree = ast.parse((TESTS / path).read_text())
        assert not test or test in {one.name for one in tree.body if isinstance(one, ast.FunctionDef)}, name
