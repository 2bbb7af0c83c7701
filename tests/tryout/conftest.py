"""Where the try-outs of a test are."""
from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def base() -> Iterator[Path]:
    """A directory with a short name, as sockets want it, in which try-outs make theirs."""
    path = Path(tempfile.mkdtemp(prefix="fq-"))
    yield path
    shutil.rmtree(path, ignore_errors=True)
