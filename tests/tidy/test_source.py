"""Sizes, openings, names that are exported, stubs, and what must not be left lying about in a source.

One test per rule: it fails with the list of everything that breaks the rule.
"""
from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path

import pytest
from kit.tree import ROOT, sources

LINES_MAX = {".py": 400, ".pyx": 700, ".c": 700, ".h": 400}
FUNCTION_LINES_MAX = 75       # "about 70"
COLUMNS_MAX = 120
# Longer ones that read better whole.
WHOLE = {"link_publish": "one packet in the order of its bytes, [MQTT 5.0 section 3.3]"}
# A larger file says why in its first lines, with this phrase.
EXCUSE = re.compile(r"\b(one|single) file\b", re.IGNORECASE)
OPENING_LINES = 30

CODE = {".py", ".pyi", ".pyx", ".pxd", ".c", ".h"}
LEFTOVER = re.compile(r"\b(TO" r"DO|FIX" r"ME|XX" r"X|HA" r"CK)\b")
# Places that exist on one machine only. A test may speak of /tmp or /usr, which every Linux has.
MACHINE_PATH = re.compile(r"(?<![\w.:/$}])/(?:home|root|Users|work|opt|mnt|data)/[\w.-]+")
INCLUDE = re.compile(r"^\s*include\s+[\"']", re.MULTILINE)


def _id(path: Path) -> str:
    return str(path.relative_to(ROOT))


OURS = [path for path in sources() if path.suffix in CODE]
PYTHON = [path for path in OURS if path.suffix == ".py"]
CYTHON = [path for path in OURS if path.suffix in (".pyx", ".pxd")]
MODULES = [path for path in OURS if path.suffix == ".pyx"]
PRODUCT = [path for path in PYTHON if path.relative_to(ROOT).parts[0] in ("fluxmq", "bench", "spark")]
TESTS = [path for path in PYTHON if path.relative_to(ROOT).parts[0] == "tests"]

@cache
def read(path: Path) -> str:
    return path.read_text(encoding="utf-8")


@cache
def parse(path: Path) -> ast.Module:
    return ast.parse(read(path))


def findings(paths: Iterable[Path], rule: Callable[[Path], object]) -> list[str]:
    """`path: what is wrong` of every file for which the rule answers something."""
    assert OURS, "no sources found: the rules would hold of nothing"
    return [f"{_id(path)}: {found}" for path in paths if (found := rule(path))]


def check(paths: Iterable[Path], rule: Callable[[Path], object]) -> None:
    wrong = findings(paths, rule)
    assert not wrong, "\n".join(["", *wrong])


# ── size ─────────────────────────────────────────────────────────────────────────────────────────────────────


def too_long(path: Path) -> str:
    lines = read(path).splitlines()
    limit = LINES_MAX.get(path.suffix)
    # Tests by theme are read a test at a time, and oracles beside their specification.
    if limit is None or len(lines) <= limit or path in TESTS or EXCUSE.search("\n".join(lines[:OPENING_LINES])):
        return ""
    return f"{len(lines)} lines, over {limit}, and no reason on top"


def test_files_are_not_too_long() -> None:
    check(OURS, too_long)


def too_wide(path: Path) -> list[int]:
    return [n for n, line in enumerate(read(path).splitlines(), 1) if len(line) > COLUMNS_MAX]


def test_lines_are_not_too_wide() -> None:
    check(OURS, too_wide)


def functions(path: Path) -> list[tuple[str, int]]:
    """(name, lines) of each function; of Cython by indentation."""
    if path.suffix == ".py":
        return [(node.name, (node.end_lineno or 0) - node.lineno + 1) for node in ast.walk(parse(path))
                if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    found: list[tuple[str, int]] = []
    opened: list[tuple[int, str, int, int]] = []        # indentation, name, first line, last line that had text
    for number, line in enumerate([*read(path).splitlines(), "end"], 1):
        if not line.strip():
            continue
        indent = len(line) - len(line.lstrip())
        while opened and indent <= opened[-1][0] and not line.lstrip().startswith(")"):
            _, name, first, last = opened.pop()
            found.append((name, last - first + 1))
        opened = [(*entry[:3], number) for entry in opened]
        start = re.match(r"\s*(?:cpdef|cdef|def)\b[^=\n]*?\b(\w+)\(", line)
        if start and not line.lstrip().startswith(("cdef class", "cdef extern", "cdef struct", "cdef enum")):
            opened.append((indent, start[1], number, number))
    return found


def long_functions(path: Path) -> list[tuple[str, int]]:
    return [(name, lines) for name, lines in functions(path) if lines > FUNCTION_LINES_MAX and name not in WHOLE]


def test_functions_are_not_too_long() -> None:
    check([path for path in OURS if path.suffix in (".py", ".pyx")], long_functions)


# ── opening ──────────────────────────────────────────────────────────────────────────────────────────────────


def opening(path: Path) -> str:
    text = read(path)
    if not text.strip():
        return "" if path.name == "__init__.py" else "an empty file"
    if path.suffix == ".pyi":           # its .pyx does
        return ""
    if path.suffix == ".py":
        short = path.name == "__init__.py" and len(text.splitlines()) <= 3
        return "" if short or ast.get_docstring(parse(path)) else "no docstring"
    body = "\n".join(line for line in text.splitlines() if not line.startswith("# cython:")).lstrip()
    return "" if body.startswith(('"""', "# ", "/*", "//")) else "does not say what it is for"


def test_files_open_with_what_they_are_for() -> None:
    check(OURS, opening)


def without_language_level(path: Path) -> bool:
    directives = [line for line in read(path).splitlines()[:4] if line.startswith("# cython:")]
    return "language_level=3" not in " ".join(directives)


def test_directives_stand_in_the_file() -> None:
    check(MODULES, without_language_level)


# ── exports and stubs ────────────────────────────────────────────────────────────────────────────────────────


def exported(tree: ast.Module) -> list[str] | None:
    for node in tree.body:
        if isinstance(node, ast.Assign) and any(isinstance(t, ast.Name) and t.id == "__all__" for t in node.targets):
            return [str(name) for name in ast.literal_eval(node.value)]
    return None


def defined(tree: ast.Module) -> set[str]:
    """Names that statements at the top of a module bind, imports too."""
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            names |= {(alias.asname or alias.name).split(".")[0] for alias in node.names}
    return names


def wrong_all(path: Path) -> str:
    if path.name in ("__init__.py", "__main__.py", "job.py") or path.name.startswith("bench_"):
        return ""
    names = exported(parse(path))
    if names is None:
        return "no __all__"
    if names != sorted(set(names), key=_as_ruff):
        return "not sorted, or twice"
    return ", ".join(set(names) - defined(parse(path)))


def test_all_is_exact() -> None:
    """Names in __all__ exist, in order, once; every public class and function is in it or is nobody else's."""
    check(PRODUCT, wrong_all)


def _as_ruff(name: str) -> tuple[int, str]:
    """CONSTANTS, Classes, functions."""
    return (0 if name.isupper() else 1 if name[:1].isupper() else 2, name)


def test_nobody_imports_what_is_not_exported() -> None:
    """`from fluxmq.x import y`: y is in the __all__ of x, or a constant, where x has an __all__."""
    exports = {".".join(("fluxmq", *path.relative_to(ROOT / "fluxmq").with_suffix("").parts)): exported(
        parse(path)) for path in PRODUCT if path.relative_to(ROOT).parts[0] == "fluxmq"}
    wrong = []
    for path in PRODUCT:
        for node in ast.walk(parse(path)):
            if isinstance(node, ast.ImportFrom) and (names := exports.get(node.module or "")) is not None:
                wrong += [f"{_id(path)}: {node.module}.{alias.name}" for alias in node.names
                          if alias.name not in names and not alias.name.isupper()]
    assert wrong == []


def visible(path: Path) -> bool:
    """Whether Python sees a name in a compiled module. What its header declares is C's, wherever it gets its value."""
    text, header = read(path), path.with_suffix(".pxd")
    declared = set(re.findall(r"^cdef .*?\b([A-Z_]+)\b *(?:#.*)?$", read(header) if header.exists() else "",
                              re.MULTILINE))
    return (re.search(r"^(?:def|cpdef|class|cdef class)\b", text, re.MULTILINE) is not None
            or not declared.issuperset(re.findall(r"^([A-Z_]+) = ", text, re.MULTILINE)))


def without_stub_or_header(path: Path) -> str:
    stub, header = path.with_suffix(".pyi"), path.with_suffix(".pxd")
    if stub.exists() != visible(path):
        return "Python sees it, and it has no stub" if visible(path) else "a stub of what Python does not see"
    return "" if stub.exists() or header.exists() else "neither stub nor header"


def test_what_python_sees_has_a_stub_and_what_c_sees_a_header() -> None:
    check(MODULES, without_stub_or_header)


def test_stubs_belong_to_something() -> None:
    stubs = [path for path in OURS if path.suffix == ".pyi"]
    check(stubs, lambda path: not path.with_suffix(".pyx").exists())


# ── what must not be there ───────────────────────────────────────────────────────────────────────────────────


def test_include_is_banned() -> None:
    """Modules are joined by cimport."""
    check(CYTHON, lambda path: INCLUDE.search(read(path)))


TEXTS = [path for path in sources() if path.suffix in CODE | {".md", ".toml", ".ini", ".yaml", ".js", ".in", ""}
         and path.name not in ("LICENSE", ".gitkeep")]


def test_nothing_is_left_to_do() -> None:
    check(TEXTS, lambda path: [line for line in read(path).splitlines() if LEFTOVER.search(line)])


def test_no_path_of_one_machine() -> None:
    check(TEXTS, lambda path: MACHINE_PATH.findall(read(path)))


# A line that may be such a comment: few files have one, and only their tokens are looked at.
CODE_LINE = re.compile(r"^\s*#[# ]*(?:return\b|import \w|[\w.]+ = |[\w.]+\()", re.MULTILINE)


def commented_code(path: Path) -> list[str]:
    wrong: list[str] = []
    if not CODE_LINE.search(read(path)):
        return wrong
    for token in tokenize.generate_tokens(io.StringIO(read(path)).readline):
        if token.type == tokenize.COMMENT and token.line.lstrip().startswith("#"):
            text = token.string.lstrip("# ")
            if re.fullmatch(r"(?:return\b.*|import \w+|[\w.]+ = .*|[\w.]+\(.*\))", text):
                try:
                    ast.parse(text)
                except SyntaxError:
                    continue
                wrong.append(token.string)
    return wrong


def test_no_commented_code() -> None:
    """A comment that parses as an assignment or a call by itself is code that somebody was afraid to delete."""
    check(PYTHON, commented_code)


def skips_without_reason(tree: ast.Module) -> list[int]:
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            called = ast.unparse(node.func)
            words = {keyword.arg for keyword in node.keywords}
            if called in ("pytest.mark.skip", "pytest.mark.skipif", "pytest.mark.xfail"):
                found += [node.lineno] if "reason" not in words else []
            elif called in ("pytest.skip", "pytest.xfail"):
                found += [node.lineno] if not node.args else []
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found += [d.lineno for d in node.decorator_list if ast.unparse(d) in ("pytest.mark.skip",
                                                                                  "pytest.mark.xfail")]
    return found


CLOCK = re.compile(r"\b(?:time\.)?(?:monotonic|perf_counter|monotonic_ns|perf_counter_ns|process_time)\(\)")

GUARD = re.compile(r"time\.monotonic\(\) < deadline")
CLOCK_NAME = re.compile(r"monotonic|perf_counter|process_time")


def asserts_of_time(tree: ast.Module) -> list[int]:
    """Lines of assertions about a difference of clocks: directly, or through a name that was made from one. Asking
    whether a deadline has passed, in a loop that waits for something else, is how a test ends that would hang."""
    found = []
    for function in ast.walk(tree):
        if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        spans = {ast.unparse(target) for node in ast.walk(function) if isinstance(node, ast.Assign)
                 and any(isinstance(part, ast.BinOp) and isinstance(part.op, ast.Sub)
                         and CLOCK.search(ast.unparse(part)) for part in ast.walk(node.value))
                 for target in node.targets}
        for node in ast.walk(function):
            if isinstance(node, ast.Assert):
                names = {ast.unparse(part) for part in ast.walk(node.test)
                         if isinstance(part, ast.Name | ast.Attribute)}
                clock = CLOCK.search(ast.unparse(node.test)) and not GUARD.fullmatch(ast.unparse(node.test))
                if clock or names & spans:
                    found.append(node.lineno)
    return found


def test_skips_have_reasons() -> None:
    check(TESTS, lambda path: skips_without_reason(parse(path)))


def test_no_test_asserts_how_long_something_took() -> None:
    check(TESTS, lambda path: CLOCK_NAME.search(read(path)) and asserts_of_time(parse(path)))


# ── pages that are made ──────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("page", ["docs/conformance.md", "docs/guide/configuration.md"])
def test_generated_pages_are_there(page: str) -> None:
    """That they are current is shown beside their generators."""
    assert (ROOT / page).stat().st_size > 10_000


LINK = re.compile(r"\]\(([^)#\s]+)(?:#[\w-]*)?\)")


def dead_links(path: Path) -> list[str]:
    return [link for link in LINK.findall(read(path)) if "://" not in link and not (path.parent / link).exists()]


def test_links_lead_somewhere() -> None:
    check([path for path in TEXTS if path.suffix == ".md"], dead_links)


def test_docs_index_names_every_page() -> None:
    index = read(ROOT / "docs" / "README.md")
    pages = [path for path in sources(ROOT / "docs") if path.suffix == ".md" and path.name != "README.md"]
    assert [_id(path) for path in pages if f"({path.relative_to(ROOT / 'docs')})" not in index] == []


# ── the checks can fail ──────────────────────────────────────────────────────────────────────────────────────


def test_files_that_begin_first_are_there() -> None:
    text = (ROOT / "tests" / "longest_first.txt").read_text()
    names = [line for line in text.splitlines() if line and not line.startswith("#")]
    assert names and len(set(names)) == len(names)
    assert [name for name in names if not (ROOT / "tests" / name).is_file()] == []


def test_the_checks_see_what_they_look_for() -> None:
    assert findings(OURS[:1], lambda path: [1]) == [f"{_id(OURS[0])}: [1]"]
    assert skips_without_reason(ast.parse("@pytest.mark.skip\ndef test(): ...")) == [1]
    assert skips_without_reason(ast.parse("@pytest.mark.skipif(x)\ndef test(): ...")) == [1]
    assert skips_without_reason(ast.parse("@pytest.mark.skipif(x, reason='r')\ndef test(): ...")) == []
    for body, lines in [("a = time.monotonic()\n assert time.monotonic() - a < 1", [3]),
                        ("spent = time.monotonic() - a\n assert spent < 1", [3]), ("a = 1\n assert spent < 1", [])]:
        found = asserts_of_time(ast.parse(f"def f():\n {body}"))
        assert found == lines
    assert MACHINE_PATH.search("see /home/" + "me/x") and not MACHINE_PATH.search("a/home/b and https://x/home/y")
    assert LEFTOVER.search("# TO" + "DO later") and not LEFTOVER.search("method")
    assert INCLUDE.search('include "x.pxi"')


def test_functions_of_cython_are_measured(tmp_path: Path) -> None:
    path = tmp_path / "x.pyx"
    path.write_text("cdef int f(int a,\n           int b) except -1:\n    return 1\n\n\ncdef class C:\n"
                    "    def g(self):\n        return 2\n\n    cdef void h(self) noexcept:\n"
                    "        pass\n        pass\n")
    assert functions(path) == [("f", 3), ("g", 2), ("h", 3)]
