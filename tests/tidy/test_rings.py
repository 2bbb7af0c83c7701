"""Inner rings never import outer ones, and ring 0 touches nothing that tells time, waits, or talks to the world.

Imports of Python files and stubs are found by ast, imports and cimports of Cython files by a regular expression.
"""
from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from kit.tree import ROOT, sources

RINGS = {
    "_core": 0,
    "model": 1,
    "engine": 2,
    "storage": 3, "cluster": 3, "access": 3,
    "edge": 4, "admin": 4, "record": 4,
    "app": 5,
    "client": 1, "bench": 5, "spark": 5,
}
# Packages that may import more than inner rings, and those that may import less.
ALSO = {"app": {"bench", "spark"}, "bench": {"spark"}}
ONLY = {"client": {"_core"}, "spark": {"_core", "model", "record", "client"}}
# spark-submit starts a file: this one calls the command line.
ENTRIES = {"spark": {"job.py": {"app"}}}
EDGES = {"edge.mqtt", "edge.amqp091"}
# The way in: the version, and `python -m fluxmq`.
TOP = {"__init__.py": set[str](), "__main__.py": {"app"}}

FORBIDDEN_IN_CORE = {"asyncio", "threading", "logging", "time", "random", "secrets", "os", "socket", "select", "uvloop",
                     "subprocess", "multiprocessing", "concurrent", "datetime"}
# The handles: they make system calls and decide nothing. Each with what it needs of the above.
HANDLES = {"journal.pyx": {"os"}, "journal.pyi": {"os"}}
FORBIDDEN_IN_ENGINE = {"socket", "threading", "time", "random", "os", "uvloop", "rocksdict"}

CYTHON_IMPORT = re.compile(r"^\s*(?:from\s+([\w.]+)\s+c?import\b|c?import\s+([\w.]+(?:\s*,\s*[\w.]+)*))", re.MULTILINE)


def imported(path: Path) -> Iterator[str]:
    """Names of modules, absolute."""
    text = path.read_text(encoding="utf-8")
    if path.suffix in (".pyx", ".pxd"):
        # No string of the core begins a line with an import; a docstring that did would be found out here.
        for match in CYTHON_IMPORT.finditer(text):
            yield from re.split(r"\s*,\s*", match[1] or match[2])
        return
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are absolute"
            yield node.module or ""
            if node.module and node.module.count(".") < 2 and node.module.startswith("fluxmq"):
                yield from (f"{node.module}.{alias.name}" for alias in node.names)


def package_of(module: str) -> str:
    """"fluxmq.edge.mqtt.front" → "edge", "" for anything that is in no ring."""
    parts = module.split(".")
    return parts[1] if parts[0] == "fluxmq" and len(parts) > 1 and parts[1] in RINGS else ""


def broken(path: Path, package: str) -> list[str]:
    """What one file of a package imports although it must not."""
    wrong = []
    for module in imported(path):
        other = package_of(module)
        if not other or other == package:
            continue
        if package in ONLY:
            allowed = other in ONLY[package] | ENTRIES.get(package, {}).get(path.name, set())
        else:
            allowed = RINGS[other] < RINGS[package] or other in ALSO.get(package, set())
        if not allowed:
            wrong.append(f"{path.relative_to(ROOT)} imports {module}")
    return wrong


PYTHONS = {".py", ".pyi", ".pyx", ".pxd"}


@pytest.mark.parametrize("package", sorted({p.relative_to(ROOT / "fluxmq").parts[0] for p in sources(ROOT / "fluxmq")
                                            if p.parent != ROOT / "fluxmq"}))
def test_rings(package: str) -> None:
    assert package in RINGS, f"fluxmq/{package} is in no ring"
    assert [line for path in sources(ROOT / "fluxmq" / package) if path.suffix in PYTHONS
            for line in broken(path, package)] == []


def test_spark_knows_the_format_and_the_client_alone() -> None:
    assert [line for path in sources(ROOT / "spark") if path.suffix in PYTHONS for line in broken(path, "spark")] == []


def test_the_way_in() -> None:
    for path in (ROOT / "fluxmq").glob("*.py"):
        assert {package_of(module) for module in imported(path)} - {""} <= TOP[path.name], path


def test_edges_do_not_know_each_other() -> None:
    for path in sources(ROOT / "fluxmq" / "edge"):
        if path.suffix in PYTHONS:
            own = ".".join(path.relative_to(ROOT / "fluxmq").parts[:2])
            others = {edge for edge in EDGES if edge != own}
            assert not [module for module in imported(path) for edge in others
                        if module.startswith(f"fluxmq.{edge}")], path


def test_core_is_pure() -> None:
    wrong = [f"{path.name} imports {module}" for path in sources(ROOT / "fluxmq" / "_core") if path.suffix in PYTHONS
             for module in imported(path)
             if module.split(".")[0] in FORBIDDEN_IN_CORE - HANDLES.get(path.name, set())]
    assert wrong == []


def test_engine_is_without_io() -> None:
    wrong = [f"{path.name} imports {module}" for path in sources(ROOT / "fluxmq" / "engine") if path.suffix in PYTHONS
             for module in imported(path) if module.split(".")[0] in FORBIDDEN_IN_ENGINE]
    assert wrong == []


def test_nobody_imports_the_tests() -> None:
    kits = {path.name for path in (ROOT / "tests").iterdir() if path.is_dir()} | {"tests", "pytest"}
    for top in ("fluxmq", "bench/load", "spark"):
        for path in sources(ROOT / top):
            if path.suffix in PYTHONS:
                assert not [m for m in imported(path) if m.split(".")[0] in kits], path


def test_a_broken_ring_is_seen(tmp_path: Path) -> None:
    """The check can fail: each of these is complained about."""
    for number, (name, text) in enumerate([
            ("one.py", "def f():\n    from fluxmq.edge.mqtt import front\n"),
            ("two.pyx", "from fluxmq.app.server cimport Server\n"),
            ("three.py", "import fluxmq.engine.broker as b\n"),
            ("four.py", "from fluxmq import app\n"),
            ("five.pxd", "cimport fluxmq.engine.x, fluxmq.model.y\n")]):
        path = ROOT / "fluxmq" / "model" / name
        found = list(imported(_written(tmp_path / f"{number}{path.suffix}", text)))
        assert any(RINGS[package_of(module)] > RINGS["model"] for module in found if package_of(module)), name


def _written(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def test_one_place_says_which_fluxmq_a_test_starts() -> None:
    """This tree, put in front of the installed package, would hide it, and has no compiled core."""
    naming = [path.relative_to(ROOT).as_posix() for path in sources(ROOT / "tests")
              if path.suffix == ".py" and "PYTHON" + "PATH" in path.read_text()]
    assert naming == ["tests/kit/python.py"]
