"""The planted defects (tests/**/*defects) still fit the sources that they change."""
from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from kit.tree import ROOT

PATCHES = sorted((ROOT / "tests").glob("**/*defects/*.patch"))


def test_there_are_some() -> None:
    assert {patch.parent.parent.name for patch in PATCHES} == {"simulator", "cluster", "property"}


@pytest.mark.parametrize("patch", PATCHES, ids=lambda patch: patch.stem)
def test_a_planted_defect_fits(patch: Path) -> None:
    check = subprocess.run(["git", "apply", "--check", str(patch)], cwd=ROOT, capture_output=True, text=True)
    assert check.returncode == 0, check.stderr
