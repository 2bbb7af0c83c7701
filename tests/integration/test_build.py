"""setup.py, on a tree of its own: what a second `pip install` compiles. pip builds in an environment of its own, in
which Cython was installed a moment ago; here a copy of Cython stands for that."""
from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import Cython
import pytest
from kit.tree import ROOT

SECONDS = 100
LONG_AGO = 1_700_000_000
SETUP = """
import runpy, sys
sys.path.insert(0, sys.argv[1])
sys.argv = ["setup.py", "-q", "build_ext"]
runpy.run_path("setup.py", run_name="__main__")
"""


def made(tree: Path) -> dict[str, tuple[int, bytes]]:
    """C files, objects and modules, with their times."""
    return {str(path.relative_to(tree)): (path.stat().st_mtime_ns, path.read_bytes())
            for path in (tree / "build").rglob("*.*") if path.suffix in (".c", ".o", ".so")}


def build(tree: Path, cython: Path) -> dict[str, tuple[int, bytes]]:
    """Returns what is made then. cython: the directory that has the package."""
    done = subprocess.run([sys.executable, "-c", SETUP, str(cython)], cwd=tree, check=False, timeout=SECONDS,
                          capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return made(tree)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two modules, compiled, and the one that they share; one has a header of C, and cimports what Cython brings."""
    root = tmp_path_factory.mktemp("built") / "tree"
    room = root / "fluxmq" / "_core" / "wire"
    room.mkdir(parents=True)
    shutil.copy(ROOT / "setup.py", root)
    for package in (root / "fluxmq", room.parent, room):
        (package / "__init__.py").touch()
    (room / "x.h").write_text("#define X 1\n")
    (room / "one.pyx").write_text("from libc.stdint cimport uint64_t\ncdef extern from \"x.h\":\n    int X\n"
                                  "def found():\n    cdef uint64_t x = X\n    return x\n")
    (room / "two.pyx").write_text("def found():\n    return 2\n")
    for path in root.rglob("*.*"):
        os.utime(path, (LONG_AGO, LONG_AGO))
    assert len(build(root, Path(Cython.__file__).parents[1])) == 9
    return root


@pytest.fixture(scope="module")
def installed(built: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Cython that is newer than what was built."""
    place = tmp_path_factory.mktemp("installed")
    shutil.copytree(Path(Cython.__file__).parent, place / "Cython", copy_function=shutil.copyfile,
                    ignore=shutil.ignore_patterns("Tests", "__pycache__"))
    return place


@pytest.fixture
def tree(built: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(built, tmp_path / "tree"))


def test_nothing_is_compiled_twice(tree: Path, installed: Path) -> None:
    first = made(tree)
    assert build(tree, installed) == first


@pytest.mark.parametrize(("changed", "module"), [("x.h", "one"), ("two.pyx", "two")])
def test_what_changed_is_compiled(tree: Path, installed: Path, changed: str, module: str) -> None:
    first = made(tree)
    os.utime(tree / "fluxmq" / "_core" / "wire" / changed)
    second = build(tree, installed)
    assert [name for name in second if f"{module}.cpython" in name and second[name][0] == first[name][0]] == []


def test_a_c_file_of_another_cython_is_made_again(tree: Path, installed: Path) -> None:
    first = made(tree)
    name = "build/plain/c/fluxmq/_core/wire/two.c"
    file, time = tree / name, first[name][0]
    file.write_bytes(first[name][1].replace(Cython.__version__.encode(), b"0.29.1", 1))
    os.utime(file, ns=(time, time))
    second = build(tree, installed)
    assert second[name][1] == first[name][1]
    assert [now[0] > first[path][0] for path, now in second.items() if "two" in path] == [True] * 3
