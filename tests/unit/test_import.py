"""`import fluxmq` beside the sources: the installed package is found behind them, or one sentence says what to do."""
from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from kit.python import environment
from kit.tree import ROOT

import fluxmq

SCRIPT = "import fluxmq.client, fluxmq._core.hub as hub; print(fluxmq.client.__file__); print(hub.__file__)"


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A directory with the sources of the package, nothing of them compiled."""
    for path in (ROOT / "fluxmq").rglob("*.py"):
        target = tmp_path / path.relative_to(ROOT)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, target)
    return tmp_path


def test_a_script_in_the_checkout_uses_what_is_installed(checkout: Path) -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT], cwd=checkout, env=environment(), capture_output=True,
                          text=True)
    assert done.returncode == 0, done.stderr
    installed = Path(fluxmq.__path__[0])
    assert [Path(line).is_relative_to(installed) for line in done.stdout.split()] == [True, True]


def test_where_nothing_is_installed_one_sentence_says_what_to_do(checkout: Path) -> None:
    script = f"import sys; sys.path.insert(0, {str(checkout)!r}); {SCRIPT}"
    done = subprocess.run([sys.executable, "-I", "-S", "-c", script], cwd=checkout, capture_output=True, text=True)
    assert done.returncode == 1
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("ImportError: ") and f"`pip install .` in {checkout}" in last
