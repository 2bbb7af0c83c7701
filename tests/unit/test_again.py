"""What may run a second time, and what may not: by the kind of the exception (kit/surroundings.py), and .ci/again."""
from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from kit.broker import ROOT, BrokerDied, BrokerNotReady, BrokerPortTaken
from kit.client import Closed, Nothing
from kit.cluster import Cluster
from kit.surroundings import NotReady, OutOfTime, PortTaken, Surroundings, ToolFailed, kind_of
from simulator.history import Failed
from simulator.records import Wrong

CONFTEST = """
import sys
from pathlib import Path
import pytest
sys.path.insert(0, {tests!r})
from kit.surroundings import Failures

def pytest_addoption(parser):
    parser.addoption("--failures", type=Path)
    parser.addoption("--seed", type=int, default=1)

def pytest_configure(config):
    if config.getoption("--failures") and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Failures(config.getoption("--failures")))

@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    report = yield
    Failures.mark(report, call)
    return report
"""
HEAD = """
import pathlib, time, pytest
from kit.surroundings import NotReady, PortTaken, ToolFailed

def times(name="ran"):
    at = pathlib.Path(__file__).with_suffix("." + name)
    at.write_text(at.read_text() + "." if at.exists() else ".")
    return len(at.read_text())
"""
FINE = "def test_fine():\n    times('fine')\n"
STARTS_LATE = "def test_start():\n    if times() == 1:\n        raise NotReady('the broker is not ready')\n"
LOSES = "def test_loss():\n    assert times() > 1, '1 of 100 were lost'\n"


def chained(first: BaseException, then: BaseException) -> BaseException:
    """`then`, raised while `first` was handled."""
    try:
        try:
            raise first
        finally:
            raise then
    except BaseException as error:
        return error


def failed(text: str) -> BaseException:
    with pytest.raises(pytest.fail.Exception) as caught:
        pytest.fail(text)
    return caught.value


@pytest.mark.parametrize(("error", "kind"), [
    (NotReady("x"), "start-up"), (PortTaken("x"), "a port"), (OutOfTime("x"), "a time limit of the harness"),
    (ToolFailed("x"), "a tool beside"), (BrokerNotReady("x"), "start-up"), (BrokerPortTaken("x"), "a port"),
    (failed("Timeout (>120.0s) from pytest-timeout."), "a time limit of the harness"),
    (chained(OSError("x"), NotReady("x")), "start-up"), (chained(NotReady("x"), OutOfTime("x")),
                                                         "a time limit of the harness"),
    (AssertionError("3 of 100 were lost"), ""), (BrokerDied("it ended by itself"), ""), (Nothing("x"), ""),
    (Closed("x"), ""), (Wrong("order", "x"), ""), (Failed(1, "order", "x", []), ""), (failed("lost: Timeout (>"), ""),
    (TimeoutError("x"), ""), (ZeroDivisionError("x"), ""), (None, ""),
    (chained(AssertionError("3 of 100 were lost"), NotReady("x")), ""),
    (chained(AssertionError("3 of 100 were lost"), failed("Timeout (>120.0s)")), ""),
    (chained(Nothing("x"), chained(OSError("x"), ToolFailed("x"))), "")])
def test_the_kind_of_the_exception_tells_them_apart(error: BaseException | None, kind: str) -> None:
    assert kind_of(error) == kind


def test_nodes_that_do_not_serve_and_messages_that_do_not_come_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kit.cluster.PATIENCE_S", 0.0)
    monkeypatch.setattr(Cluster, "everybody_serves", lambda self: False)
    cluster = object.__new__(Cluster)
    with pytest.raises(Surroundings):
        cluster.wait(cluster.everybody_serves)
    with pytest.raises(AssertionError) as caught:
        cluster.wait(lambda: False)
    assert kind_of(caught.value) == ""


def again(folder: Path, files: dict[str, str], *words: str) -> subprocess.CompletedProcess[str]:
    """Runs tests of these files; HEAD comes before each."""
    (folder / "conftest.py").write_text(CONFTEST.format(tests=str(ROOT / "tests")))
    for name, text in files.items():
        (folder / name).write_text(HEAD + text)
    environ = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
    return subprocess.run([sys.executable, str(ROOT / ".ci" / "again"), "-p", "no:cacheprovider", *words], cwd=folder,
                          env=environ, capture_output=True, text=True, timeout=100, check=False)


def ran(folder: Path, name: str) -> int:
    path = folder / name
    return len(path.read_text()) if path.exists() else 0


def test_a_file_whose_surroundings_failed_runs_once_more_alone(tmp_path: Path) -> None:
    done = again(tmp_path, {"test_a.py": FINE + STARTS_LATE, "test_b.py": FINE}, "-n", "1", "--dist", "loadfile",
                 "--seed", "7", "test_a.py", "test_b.py")
    assert done.returncode == 0, done.stdout
    shown = done.stdout.partition("FLAKY test_a.py (seed 7): start-up")[2]
    assert "the broker is not ready" in shown and "2 passed" in shown
    # The whole file, and no other.
    assert (ran(tmp_path, "test_a.ran"), ran(tmp_path, "test_a.fine"), ran(tmp_path, "test_b.fine")) == (2, 2, 1)


@pytest.mark.parametrize(("files", "why"), [
    ({"test_a.py": LOSES}, "test_a.py failed by more than its surroundings"),
    ({"test_a.py": LOSES + STARTS_LATE.replace("times()", "times('start')")}, "test_a.py failed by more"),
    ({"test_a.py": "def test_loss():\n    try:\n        assert times() > 1, 'lost'\n    finally:\n"
                   "        if times() == 2:\n            raise ToolFailed('etcd has ended')\n"}, "test_a.py failed"),
    ({"test_a.py": STARTS_LATE, "test_b.py": LOSES}, "no second run: test_b.py failed"),
    ({f"test_{name}.py": STARTS_LATE for name in "abcd"}, "4 files failed by their surroundings, more than 3"),
    ({"test_a.py": "times()\nraise NotReady('while it is imported')\n"}, "")], ids=[
        "loss", "both", "loss, then etcd", "another file", "too many", "no test at all"])
def test_no_second_run(tmp_path: Path, files: dict[str, str], why: str) -> None:
    done = again(tmp_path, files)
    assert done.returncode != 0 and why in done.stdout, done.stdout
    assert {ran(tmp_path, name.replace(".py", ".ran")) for name in files} <= {1, 2 if "finally" in str(files) else 1}
    assert "FLAKY" not in done.stdout
    # What has failed is said once more, and last; files that cannot be imported end pytest in another way.
    said = [line for line in done.stdout.splitlines() if line.startswith("WHY ")]
    if why:
        assert said[0].startswith("WHY test_"), done.stdout
        assert any("lost" in line or "NotReady" in line for line in said), done.stdout


def test_what_fails_twice_has_failed(tmp_path: Path) -> None:
    done = again(tmp_path, {"test_a.py": STARTS_LATE.replace("== 1", "< 3"), "test_b.py":
                            "FIRST = times() == 1\n@pytest.mark.timeout(0.3 if FIRST else 60)\n"
                            "def test_late():\n    FIRST and time.sleep(60)\n"})
    assert done.returncode == 1, done.stdout
    assert "FAILED TWICE test_a.py (seed 1): start-up" in done.stdout
    assert "FLAKY test_b.py (seed 1): a time limit of the harness" in done.stdout
