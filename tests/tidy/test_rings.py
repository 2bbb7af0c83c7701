"""Each package imports what docs/internals/architecture.md says and nothing else, and ring 0 touches nothing that tells
time, waits, or talks to the world.

Imports of Python files and stubs are found by ast, imports and cimports of Cython files by a regular expression.
"""
from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest
from kit.tree import ROOT, sources

# What each package of fluxmq may import of the others.
INNER = {"_core", "model"}
MAY: dict[str, set[str]] = {
    "_core": set(), "model": {"_core"}, "client": {"_core"},
    "engine": INNER,
    "storage": {*INNER, "engine"}, "cluster": {*INNER, "engine"}, "access": {*INNER, "engine"},
    "edge": {*INNER, "engine"}, "admin": {*INNER, "engine"}, "record": {*INNER, "engine"},
    "tryout": {*INNER, "client"}, "view": {*INNER, "record"},
    "spark": {*INNER, "record", "client"},
    "bench": {*INNER, "engine", "storage", "cluster", "record", "view", "client", "spark"},
    "app": {*INNER, "engine", "storage", "cluster", "access", "edge", "admin", "record", "view", "bench", "spark",
            "client", "tryout"},
}
# Packages of the core: each imports those in front of it. Beside them stand those that import what is named.
CORE = ("wire", "mqtt", "amqp091", "disk", "memory", "pubsub", "envelope", "queue", "exchange", "bridge", "hub", "net")
BESIDE = {"client": {"wire", "mqtt", "amqp091"}, "record": {"wire", "mqtt", "amqp091", "memory"},
          "peer": {"wire", "mqtt", "amqp091", "disk", "envelope", "memory", "pubsub", "queue", "hub"},
          "raft": {"wire"},
          "testing": {*CORE, "client", "peer"}}
# Do not know each other. Of AMQP's messages queues know what the envelope says.
APART = [{"exchange", "queue"}, *({"amqp091", other} for other in ("mqtt", "disk", "memory", "pubsub", "queue"))]
MAY_IN_CORE = {name: {other for other in CORE[:at] if {name, other} not in APART}
               for at, name in enumerate(CORE)} | BESIDE
# Who imports what of the core that is not for everybody.
OF_CORE = {"net": {"edge", "record", "app"}, "client": {"client", "spark", "bench", "tryout"},
           "record": {"record", "view", "spark", "bench"}, "testing": {"bench"}}
# spark-submit starts a file, which calls the command line; a benchmark asks a broker by its admin socket, another has
# one inside. Nodes of a try-out end with it as members of etcd end with their nodes.
ENTRIES = {"tryout": {"processes.py": {"cluster"}},
           "spark": {"job.py": {"app"}}, "bench": {"bench_source.py": {"app"}, "bench_asking.py": {"app", "access"},
                     "bench_linger.py": {"app"}}}
EDGES = {"edge.mqtt", "edge.amqp091"}
# Rooms of spark/: each imports those in front of it, and what stands beside them in spark/ itself.
SPARK = ("player", "source", "measures", "report", "replay", "profile", "verify", "gate", "examples")
# Packages whose modules import each other in no circle.
WITHOUT_CIRCLES = ["access", "admin", "app", "client", "cluster", "edge", "engine", "record", "storage",
                   "tryout", "view"]
# The way in: the version, and `python -m fluxmq`.
TOP = {"__init__.py": set[str](), "__main__.py": {"app"}}

FORBIDDEN_IN_CORE = {"asyncio", "threading", "logging", "time", "random", "secrets", "os", "socket", "select", "uvloop",
                     "subprocess", "multiprocessing", "concurrent", "datetime"}
# The handles: they make system calls and decide nothing. Each with what it needs of the above.
HANDLES = {"disk/journal.pyx": {"os"}, "disk/journal.pyi": {"os"}}
# An event loop and threads come to it as ports.driver.Driver.
FORBIDDEN_IN_ENGINE = {"asyncio", "concurrent", "select", "socket", "threading", "time", "random", "secrets", "os",
                       "uvloop", "rocksdict"}

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
            if node.module and node.module.startswith("fluxmq"):
                yield from (f"{node.module}.{alias.name}" for alias in node.names)


def package_of(module: str) -> str:
    """"fluxmq.edge.mqtt.front" → "edge", "" for anything that is in no ring."""
    parts = module.split(".")
    return parts[1] if parts[0] == "fluxmq" and len(parts) > 1 and parts[1] in MAY else ""


def broken(path: Path, package: str) -> list[str]:
    """What one file of a package imports although it must not."""
    wrong = []
    for module in imported(path):
        other = package_of(module)
        if not other or other == package:
            continue
        allowed = other in MAY[package] | ENTRIES.get(package, {}).get(path.name, set())
        if other == "_core" and (room := room_of(module)) in OF_CORE:
            allowed = package in OF_CORE[room]
        if not allowed:
            wrong.append(f"{path.name} of {package} imports {module}")
    return wrong


def room_of(module: str) -> str:
    """"fluxmq._core.mqtt.decode" → "mqtt", "" for what belongs to no package of the core."""
    parts = module.split(".")
    return parts[2] if parts[:2] == ["fluxmq", "_core"] and len(parts) > 3 and parts[2] in MAY_IN_CORE else ""


def crooked(path: Path, room: str) -> list[str]:
    """What one file of a package of the core imports although it must not. Stubs name types of whoever uses them."""
    return [f"{path.name} of {room} imports {module}" for module in imported(path)
            if (other := room_of(module)) and other != room and other not in MAY_IN_CORE[room]]


PYTHONS = {".py", ".pyi", ".pyx", ".pxd"}


@pytest.mark.parametrize("package", sorted({p.relative_to(ROOT / "fluxmq").parts[0] for p in sources(ROOT / "fluxmq")
                                            if p.parent != ROOT / "fluxmq"}))
def test_rings(package: str) -> None:
    assert package in MAY, f"fluxmq/{package} is in no ring"
    assert [line for path in sources(ROOT / "fluxmq" / package) if path.suffix in PYTHONS
            for line in broken(path, package)] == []


@pytest.mark.parametrize("package", ["bench", "spark"])
def test_what_stands_at_top_level(package: str) -> None:
    assert [line for path in sources(ROOT / package) if path.suffix in PYTHONS
            for line in broken(path, package)] == []


@pytest.mark.parametrize("room", sorted(MAY_IN_CORE))
def test_the_order_of_the_core(room: str) -> None:
    found = [path for path in sources(ROOT / "fluxmq" / "_core" / room) if path.suffix in {".py", ".pyx", ".pxd"}]
    assert len(found) > 1
    assert [line for path in found for line in crooked(path, room)] == []


def test_every_module_of_the_core_has_a_room() -> None:
    stray = [path.name for path in (ROOT / "fluxmq" / "_core").iterdir() if path.suffix in PYTHONS | {".h"}]
    assert sorted(stray) == ["__init__.py", "debug.h", "debug.pxd", "errors.py"]
    rooms = {path.parent.name for path in (ROOT / "fluxmq" / "_core").glob("*/*.pyx")}
    assert rooms == MAY_IN_CORE.keys()


def test_the_page_says_the_same() -> None:
    """The columns "imports" of the two tables of architecture.md."""
    page = (ROOT / "docs" / "internals" / "architecture.md").read_text(encoding="utf-8")
    for table, begins in ((MAY, r"^\| [\d–] \| `(?:fluxmq/)?(\w+)/`[^|]* \|"), (MAY_IN_CORE, r"^\| `_core/(\w+)/` \|")):
        said = re.findall(begins + r"([^|]*)\|", page, re.MULTILINE)
        assert {name: set(re.findall(r"`(\w+)`", cell)) for name, cell in said} == table


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


def test_rooms_of_spark() -> None:
    assert {path.parent.name for path in (ROOT / "spark").glob("*/*.py")} == set(SPARK)
    for path in (ROOT / "spark").rglob("*.py"):
        allowed = SPARK[:SPARK.index(path.parent.name) + 1] if path.parent.name in SPARK else ()
        found = {module.split(".")[2] for module in imported(path) if module.startswith("fluxmq.spark.")}
        assert not found & set(SPARK) - set(allowed), path


def circle(top: Path, package: str) -> list[str]:
    """Modules that import each other in a circle, one of them twice; none: []. Imports for types alone count too."""
    modules = {".".join(path.relative_to(top).with_suffix("").parts): path for path in (top / package).rglob("*.py")}
    try:
        TopologicalSorter({name: {other for other in imported(path) if other in modules and other != name}
                           for name, path in modules.items()}).prepare()
    except CycleError as error:
        found: list[str] = error.args[1]
        return found
    return []


@pytest.mark.parametrize("package", WITHOUT_CIRCLES)
def test_modules_import_each_other_in_no_circle(package: str) -> None:
    assert circle(ROOT, f"fluxmq/{package}") == []


def test_a_circle_is_seen(tmp_path: Path) -> None:
    (tmp_path / "fluxmq").mkdir()
    _written(tmp_path / "fluxmq" / "one.py", "from fluxmq.two import Two\n")
    _written(tmp_path / "fluxmq" / "two.py", "if TYPE_CHECKING:\n    from fluxmq import one\n")
    assert set(circle(tmp_path, "fluxmq")) == {"fluxmq.one", "fluxmq.two"}


def test_core_is_pure() -> None:
    wrong = [f"{path.name} imports {module}" for path in sources(ROOT / "fluxmq" / "_core") if path.suffix in PYTHONS
             for module in imported(path)
             if module.split(".")[0] in FORBIDDEN_IN_CORE - HANDLES.get(path.parent.name + "/" + path.name, set())]
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
        assert broken(_written(tmp_path / f"{number}{name}", text), "model"), name
    assert broken(_written(tmp_path / "six.py", "from fluxmq.storage.store import RocksStore\n"), "edge")
    assert broken(_written(tmp_path / "seven.py", "from fluxmq._core.net.poller import Poller\n"), "engine")
    assert broken(_written(tmp_path / "eight.py", "from fluxmq._core.testing.probes import claims_of\n"), "app")
    assert not broken(_written(tmp_path / "nine.py", "from fluxmq.engine.broker import Broker\n"), "edge")


@pytest.mark.parametrize(("room", "text"), [
    ("memory", "from fluxmq._core.queue.cache cimport cache_t\n"), ("mqtt", "cimport fluxmq._core.amqp091.fields\n"),
    ("queue", "from fluxmq._core.amqp091.names cimport props_read\n"),
    ("disk", "from fluxmq._core.hub.hub import Hub\n"), ("client", "from fluxmq._core.hub.hub cimport Hub\n")])
def test_a_crooked_room_is_seen(tmp_path: Path, room: str, text: str) -> None:
    assert crooked(_written(tmp_path / "one.pyx", text), room)


def _written(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def test_one_place_says_which_fluxmq_a_test_starts() -> None:
    """This tree, put in front of the installed package, would hide it, and has no compiled core."""
    naming = [path.relative_to(ROOT).as_posix() for path in sources(ROOT / "tests")
              if path.suffix == ".py" and "PYTHON" + "PATH" in path.read_text()]
    assert naming == ["tests/kit/python.py"]
