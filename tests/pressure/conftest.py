"""Fixtures of the pressure tests. Each test that squeezes a bound starts a broker with a small one."""
from __future__ import annotations

import pytest
from kit.broker import WHICH


@pytest.fixture
def broker_settings() -> dict[str, object]:
    """Memory only, unless the test says more."""
    if WHICH:
        pytest.skip("needs this tree's broker")
    return {"storage.type": "memory"}
