"""What comes from another node or from etcd is read inside of a `try` that catches MALFORMED: errors of msgspec alone
let text through that is not UTF-8, and what is nested too deeply."""
from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2] / "fluxmq"
FILES = sorted([*(ROOT / "cluster").rglob("*.py"), ROOT / "engine/queues/moves.py", ROOT / "engine/queues/relays.py"])


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(ROOT)))
def test_nobody_catches_errors_of_msgspec_alone(file: Path) -> None:
    for node in ast.walk(ast.parse(file.read_text("utf-8"))):
        if isinstance(node, ast.ExceptHandler) and node.type is not None:
            caught = ast.unparse(node.type)
            assert "msgspec." not in caught or "MALFORMED" in caught or "UnicodeError" in caught, (
                f"{file.name}:{node.lineno} catches {caught}: catch MALFORMED (fluxmq/model/malformed.py)")
