"""The two stages of `tox -e py`: which file of tests belongs to which, and what a deterministic one must not do.

    pytest --stage deterministic | processes

A deterministic test decides its own time and order: it starts no process and sleeps for nothing, so a worker for each
processor keeps them all busy, and none of these tests ever stands beside a broker that waits for its lease to end. All
others are of the second stage. They wait for most of their time, so they have more workers than processors.

`FOLDERS` and `WITH_PROCESSES` are the whole rule: a file in one of these folders is of the first stage, unless it is
named, and every other file is of the second. Whoever puts a test into the wrong one gets to know: `Guard` fails a test
of a deterministic file, whichever way it is run, that starts a process or sleeps, and tidy/test_stages.py finds what
sleeps only when another thread is late.
"""
from __future__ import annotations

import sys
import time
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

__all__ = ["FOLDERS", "STAGES", "WITH_PROCESSES", "Guard", "Stages", "stage_of"]

DETERMINISTIC, PROCESSES = STAGES = ("deterministic", "processes")
FOLDERS = ("unit", "property", "fuzz", "simulator", "tidy")
# Files of these folders that start processes, or wait for a broker in a thread.
WITH_PROCESSES = frozenset({
    "fuzz/test_sanitized.py",
    "property/test_asking.py",
    "property/test_raft_oracle.py",
    "property/test_tenants.py",
    "simulator/cluster/test_model.py",
    "simulator/cluster/test_real_etcd.py",
    "simulator/cluster/test_told.py",
    "simulator/test_simulator.py",
    "tidy/test_patches.py",
    "tidy/test_sanitized.py",
    "unit/test_again.py",
    "unit/test_amqp091_generated.py",
    "unit/test_cli.py",
    "unit/test_cli_streams.py",
    "unit/test_cluster_views.py",
    "unit/test_collection.py",
    "unit/test_connection.py",
    "unit/test_defined_queues.py",
    "unit/test_due.py",
    "unit/test_import.py",
    "unit/test_journal_faults.py",
    "unit/test_namespaces_admin.py",
    "unit/test_queue_cli.py",
    "unit/test_queue_engine.py",
    "unit/test_running.py",
    "unit/test_segments.py",
    "unit/test_shares.py",
    "unit/test_silence.py",
    "unit/test_stages.py",
    "unit/test_store.py",
    "unit/test_view.py",
})
# Events of the interpreter: whatever a test takes to start a process, it ends in one of these.
STARTS = frozenset({"subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn", "os.exec", "os.system"})
HERE = Path(__file__).resolve().parents[1]


def stage_of(name: str) -> str:
    """name: of a file, relative to tests/."""
    return DETERMINISTIC if name.partition("/")[0] in FOLDERS and name not in WITH_PROCESSES else PROCESSES


class Guard:
    """Plugin of pytest. What is forbidden is written down when it happens and fails the test at its end: an exception
    at the place could be caught there, or end a thread that nobody looks at."""

    def __init__(self, tests: Path = HERE) -> None:
        self._tests = tests
        self._seen: list[str] | None = None     # by the deterministic test that runs
        self._sleep = time.sleep

    def pytest_sessionstart(self) -> None:
        # A hook cannot be removed again; outside of deterministic tests it does nothing.
        sys.addaudithook(self._hear)
        time.sleep = self._slept

    def pytest_sessionfinish(self) -> None:
        time.sleep = self._sleep

    def _hear(self, event: str, words: tuple[Any, ...]) -> None:
        if self._seen is not None and event in STARTS:
            self._note(f"{event} {words[0] if words else ''}")

    def _slept(self, seconds: float) -> None:
        if self._seen is not None and seconds > 0:      # with 0, another thread may run
            self._note(f"time.sleep {seconds}")
        self._sleep(seconds)

    def _note(self, what: str) -> None:
        """With the line of tests/ that did it."""
        frame: FrameType | None = sys._getframe(2)
        while frame is not None and not frame.f_code.co_filename.startswith(str(self._tests)):
            frame = frame.f_back
        place = f" ({Path(frame.f_code.co_filename).name}:{frame.f_lineno})" if frame is not None else ""
        assert self._seen is not None
        self._seen.append(what + place)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Any:
        if item.path.is_relative_to(self._tests) and (
                stage_of(item.path.relative_to(self._tests).as_posix()) == DETERMINISTIC):
            self._seen = []
        try:
            return (yield)
        finally:
            self._seen = None

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_teardown(self) -> Any:
        done = yield
        if self._seen:
            pytest.fail(f"a test of the deterministic stage does what waits: {', '.join(dict.fromkeys(self._seen))} "
                        "(tests/kit/stages.py)", pytrace=False)
        return done


class Stages:
    """Plugin of pytest: leaves out what is not of the stage; before it is imported, where that is possible."""

    def __init__(self, stage: str, given: list[str], tests: Path = HERE) -> None:
        self._stage, self._tests = stage, tests
        # pytest calls an argument of which nothing is left an error: what is named itself is collected, and left out.
        self._given = {Path(word.partition("::")[0]).resolve() for word in given}

    def _other(self, path: Path) -> bool:
        return path.is_relative_to(self._tests) and (
            stage_of(path.relative_to(self._tests).as_posix()) != self._stage)

    def pytest_ignore_collect(self, collection_path: Path) -> bool | None:
        left_out = (collection_path.name.startswith("test_") and collection_path.suffix == ".py"
                    and self._other(collection_path) and collection_path not in self._given)
        return True if left_out else None

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        others = [item for item in items if self._other(item.path)]
        if others:
            config.hook.pytest_deselected(items=others)
            items[:] = [item for item in items if not self._other(item.path)]
