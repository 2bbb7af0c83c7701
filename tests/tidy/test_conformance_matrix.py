"""The table of normative statements: its numbers are whole, its tests exist, and docs/conformance.md is what they say.

The last tests show that the check can fail: each breaks one thing in a small copy and looks for the complaint.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from conformance import matrix

SPECIFICATIONS = matrix.load()
MARK = 'pytest.mark.normative("MQTT5-1.1.1-1")'


@pytest.fixture(params=SPECIFICATIONS, ids=lambda specification: specification.prefix)
def specification(request: pytest.FixtureRequest) -> matrix.Specification:
    return request.param


def test_both_versions_are_there() -> None:
    assert [specification.prefix for specification in SPECIFICATIONS] == ["MQTT311", "MQTT5"]


def test_numbers_have_no_holes_but_the_named(specification: matrix.Specification) -> None:
    numbers: dict[tuple[int, ...], list[int]] = {}
    for statement in specification.statements:
        prefix, section, number = matrix.split_id(statement.id)
        assert prefix == specification.prefix
        numbers.setdefault(section, []).append(number)
    missing = {
        f"{specification.prefix}-{'.'.join(map(str, section))}-{number}"
        for section, present in numbers.items()
        for number in set(range(1, max(present) + 1)) - set(present)
    }
    assert missing == set(specification.gaps)
    assert all(why.strip() for why in specification.gaps.values())


def test_statements_are_in_order_and_all_there(specification: matrix.Specification) -> None:
    keys = [matrix.split_id(statement.id)[1:] for statement in specification.statements]
    assert keys == sorted(keys)
    assert len(keys) == specification.total


def test_each_statement_says_whom_it_binds(specification: matrix.Specification) -> None:
    for statement in specification.statements:
        assert statement.binds in matrix.BINDS, statement.id
        assert statement.says.endswith("."), statement.id
        assert "\n" not in statement.says and len(statement.says) <= 130, statement.id
        assert (statement.binds == "neither") == bool(statement.why), statement.id


def test_misprints_lead_to_statements(specification: matrix.Specification) -> None:
    known = {statement.id for statement in specification.statements}
    assert set(specification.misprints.values()) <= known


def test_table_is_complete_and_current() -> None:
    page = matrix.PAGE.read_text(encoding="utf-8") if matrix.PAGE.exists() else None
    assert matrix.problems(SPECIFICATIONS, matrix.collect(), page) == []


def _small(tmp_path: Path, source: str, *, binds: str = "server") -> tuple[list[matrix.Specification], matrix.Matrix]:
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_one.py").write_text(source, encoding="utf-8")
    (tmp_path / "small.toml").write_text(
        'version = "v"\nprefix = "MQTT5"\nsource = "s"\ntotal = 1\n[gaps]\n[misprints]\n[statements]\n'
        f'"MQTT5-1.1.1-1" = {{ binds = "{binds}", says = "Something." }}\n',
        encoding="utf-8",
    )
    return matrix.load(tmp_path), matrix.collect(tmp_path / "tests")


@pytest.mark.parametrize(
    "source",
    [
        f"@{MARK}\ndef test_it(): ...\n",
        f"@{MARK}\nasync def test_it(): ...\n",
        f"pytestmark = {MARK}\ndef test_it(): ...\n",
        f"pytestmark = [{MARK}]\ndef test_it(): ...\n",
        f"@{MARK}\nclass TestAll:\n    def test_it(self): ...\n",
        f"class TestAll:\n    pytestmark = {MARK}\n    def test_it(self): ...\n",
        f"@pytest.mark.parametrize('n', [pytest.param(1, marks={MARK})])\ndef test_it(n): ...\n",
    ],
    ids=["function", "coroutine", "module", "module-list", "class", "class-body", "param"],
)
def test_markers_are_found_wherever_pytest_takes_them(tmp_path: Path, source: str) -> None:
    specifications, found = _small(tmp_path, source)
    page = matrix.render(specifications, found)
    assert matrix.problems(specifications, found, page) == []
    assert "test_one.py::" in page and "test_it`" in page
    assert matrix.problems(specifications, found, page + " ") != []
    assert matrix.problems(specifications, found, None) != []


@pytest.mark.parametrize(
    ("source", "complaint"),
    [
        ("def test_it(): ...\n", "MQTT5-1.1.1-1 (server) has no test"),
        ("@pytest.mark.normative('MQTT5-1.1.1-2')\ndef test_it(): ...\n", "MQTT5-1.1.1-2, which is in no"),
        ("@pytest.mark.normative(X)\ndef test_it(): ...\n", "string literals"),
        (f"@{MARK}\ndef helper(): ...\n", "applies to no test"),
        ("N = pytest.mark.normative\n@N('MQTT5-1.1.1-1')\ndef test_it(): ...\n", "applies to no test"),
    ],
    ids=["no-test", "unknown-id", "not-literal", "not-a-test", "alias"],
)
def test_what_is_wrong_is_said(tmp_path: Path, source: str, complaint: str) -> None:
    specifications, found = _small(tmp_path, source)
    page = matrix.render(specifications, found)
    assert any(complaint in problem for problem in matrix.problems(specifications, found, page))


@pytest.mark.parametrize("binds", ["client", "neither"])
def test_what_does_not_bind_the_broker_wants_no_test(tmp_path: Path, binds: str) -> None:
    specifications, found = _small(tmp_path, "def test_it(): ...\n", binds=binds)
    assert matrix.problems(specifications, found, matrix.render(specifications, found)) == []
