"""The smoke budget of the client's fuzzer, by iterations so that every run is the same run; and every input that once
failed."""
from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from fuzz.fuzz_client import REGRESSIONS, SEED, check, make_input, run


def test_smoke(tmp_path: Path) -> None:
    seen = run(SEED, 3_000, out=tmp_path)
    assert seen["iterations"] == 3_000
    # The mutations must still reach what they are for: messages come, answers come, every refusal happens.
    assert {"message", "done", "str", "Disconnect", "read", "refused 0x81", "refused 0x82", "refused 0x94"} <= set(seen)


def test_inputs_depend_on_seed_and_iteration_only() -> None:
    assert make_input(1, 2) == make_input(1, 2)
    assert make_input(1, 2) != make_input(1, 3)
    assert make_input(1, 2) != make_input(2, 2)


def test_a_failing_input_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(kind: int, data: bytes, seen: Counter[str]) -> None:
        raise ValueError("made up")

    monkeypatch.setattr("fuzz.fuzz_client.check", fail)
    with pytest.raises(ValueError, match="made up"):
        run(SEED, 1, out=tmp_path)
    kept, = tmp_path.glob("*.bin")
    kind, data = make_input(SEED, 0)
    assert kept.read_bytes() == bytes((kind,)) + data


def test_inputs_that_once_failed() -> None:
    for path in sorted(REGRESSIONS.glob("*.bin")):
        data = path.read_bytes()
        check(data[0], data[1:], Counter())
