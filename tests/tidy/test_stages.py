"""No file of the deterministic stage (kit/stages.py) takes something from the kit that starts a process or sleeps.

`Guard` sees what a test does when it runs. Who waits for another thread sleeps only when that one is late, so that is
looked for here: in the sources, from name to name.
"""
from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

from kit.stages import DETERMINISTIC, stage_of
from kit.tree import ROOT, sources

TESTS = ROOT / "tests"
WAITS = re.compile(r"time\.sleep|subprocess\.(?:run|Popen|call|check_\w+)|os\.(?:fork|posix_spawn)")
# A step to the next look at a thread; more is waiting for time to pass.
LOOK_S = 0.01


@cache
def parsed(text: str) -> ast.Module:
    return ast.parse(text)


def waits(tree: ast.AST) -> list[str]:
    return [called for node in ast.walk(tree) if isinstance(node, ast.Call)
            and WAITS.fullmatch(called := ast.unparse(node.func))]


def tops(text: str) -> dict[str, ast.AST]:
    """What stands at the top of a module, by name."""
    return {node.name: node for node in parsed(text).body
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)}


def imported(text: str) -> set[tuple[str, str]]:
    return {(node.module, alias.name) for node in ast.walk(parsed(text))
            if isinstance(node, ast.ImportFrom) and node.module for alias in node.names}


def waiting(texts: dict[str, str]) -> set[tuple[str, str]]:
    """(module, name): functions and classes that start a process or sleep, or use one that does."""
    names = {module: tops(text) for module, text in texts.items()}
    uses = {module: imported(text) for module, text in texts.items()}
    words = {(module, name): {part.id for part in ast.walk(node) if isinstance(part, ast.Name)}
             for module, own in names.items() for name, node in own.items()}
    found = {(module, name) for module, own in names.items() for name, node in own.items() if waits(node)}
    before = -1
    while len(found) != before:
        before = len(found)
        for module, name in words.keys() - found:
            seen = {other for home, other in found if home == module or (home, other) in uses[module]}
            if seen & words[module, name]:
                found.add((module, name))
    return found


def long_sleeps(text: str) -> list[int]:
    return [node.lineno for node in ast.walk(parsed(text)) if isinstance(node, ast.Call)
            and ast.unparse(node.func) == "asyncio.sleep" and isinstance(node.args[0], ast.Constant)
            and node.args[0].value > LOOK_S]


def kit() -> dict[str, str]:
    return {f"kit.{path.stem}": path.read_text() for path in sources(TESTS / "kit") if path.suffix == ".py"}


def wrong(text: str, of_kit: set[tuple[str, str]]) -> list[str]:
    return [*sorted(f"{module}.{name}" for module, name in imported(text) & of_kit),
            *(f"asyncio.sleep in line {line}" for line in long_sleeps(text)),
            *waits(parsed(text))]


def deterministic() -> list[Path]:
    return [path for path in sources(TESTS) if path.match("test_*.py")
            and stage_of(path.relative_to(TESTS).as_posix()) == DETERMINISTIC]


def test_nothing_that_waits_is_imported() -> None:
    of_kit = waiting(kit())
    assert ("kit.watch", "wait_until") in of_kit and ("kit.broker", "Broker") in of_kit
    found = {path.relative_to(TESTS).as_posix(): rule for path in deterministic()
             if (rule := wrong(path.read_text(), of_kit))}
    assert found == {}


def test_what_waits_is_found() -> None:
    texts = {"kit.a": "def one():\n    time.sleep(1)\n\ndef two():\n    return 1\n",
             "kit.b": "from kit.a import one\n\nclass Three:\n    def f(self):\n        one()\n",
             "kit.c": "def one():\n    return 2\n"}
    assert waiting(texts) == {("kit.a", "one"), ("kit.b", "Three")}
    assert wrong("from kit.b import Three\n", waiting(texts)) == ["kit.b.Three"]
    assert wrong("from kit.c import one\nfrom kit.a import two\n", waiting(texts)) == []
    assert wrong("import subprocess\nsubprocess.run([])\n", set()) == ["subprocess.run"]
    assert wrong("asyncio.sleep(0.001)\nasyncio.sleep(2)\n", set()) == ["asyncio.sleep in line 2"]
