"""The sanitizers are in every module that `tox -e sanitize` runs its tests on, and see one byte too many."""
from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from kit.exact import SANITIZED, exact
from kit.python import TESTS, environment

import fluxmq._core

READ_ONE_MORE = """
import ctypes
from kit.exact import HEADER_BYTES, exact
data = exact(bytes(range(40)))
assert ctypes.string_at(id(data) + HEADER_BYTES, len(data)) == data
ctypes.string_at(id(data) + HEADER_BYTES, len(data) + 1)
print("not seen")
"""


def test_exact_is_the_same_bytes_and_its_end_is_its_end() -> None:
    for size in (0, 1, 2, 7, 8, 100):
        assert exact(bytes(size)) == bytes(size)
    done = subprocess.run([sys.executable, "-c", READ_ONE_MORE], env=environment(TESTS), capture_output=True, text=True)
    assert ("AddressSanitizer: use-after-poison" in done.stderr) == SANITIZED, done.stderr
    assert (done.stdout == "not seen\n") == (not SANITIZED)


def test_all_modules_have_the_sanitizers_or_none() -> None:
    modules = sorted(Path(fluxmq._core.__path__[0]).rglob("*.so"))
    built = [path.name for path in modules if b"__asan_report_load" in path.read_bytes()]
    assert built == ([path.name for path in modules] if SANITIZED else [])
    # Of each kind that could be switched off by a flag (-fwrapv does so to the first) somebody has one.
    for kind in (b"add_overflow", b"shift_out_of_bounds", b"pointer_overflow"):
        assert any(b"__ubsan_handle_" + kind in path.read_bytes() for path in modules) == SANITIZED, kind
