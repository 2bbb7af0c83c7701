"""The two stages of `tox -e py` (kit/stages.py): every file is in exactly one of them, and a test of the first that
starts a process or sleeps fails. .ci/again runs one after the other."""
from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from kit.stages import FOLDERS, STAGES, WITH_PROCESSES, stage_of
from kit.tree import ROOT, sources

TESTS = ROOT / "tests"
FILES = [path.relative_to(TESTS).as_posix() for path in sources(TESTS) if path.match("test_*.py")]
CONFTEST = """
import sys
from pathlib import Path
import pytest
sys.path.insert(0, {tests!r})
from kit.stages import STAGES, Guard, Stages
from kit.surroundings import Failures

def pytest_addoption(parser):
    parser.addoption("--failures", type=Path)
    parser.addoption("--stage", choices=STAGES)

def pytest_configure(config):
    here = Path(__file__).parent
    config.pluginmanager.register(Guard(here))
    if config.getoption("--stage"):
        config.pluginmanager.register(Stages(config.getoption("--stage"), config.args, here))
    if config.getoption("--failures") and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Failures(config.getoption("--failures")))

@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    report = yield
    Failures.mark(report, call)
    return report
"""
HEAD = "import os, subprocess, sys, threading, time\nimport pytest\n\n"
FINE = "def test_fine():\n    pass\n"
LOSES = "def test_loss():\n    assert False, '1 of 100 were lost'\n"
BOTH = ("--stage", "deterministic:1", "--stage", "processes:1")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path) -> Path:
    (tmp_path / "unit").mkdir()
    (tmp_path / "queues").mkdir()
    (tmp_path / "conftest.py").write_text(CONFTEST.format(tests=str(TESTS)))
    return tmp_path


def run(folder: Path, files: dict[str, str], *command: str, **environ: str) -> subprocess.CompletedProcess[str]:
    for name, text in files.items():
        (folder / name).write_text(HEAD + text)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")} | environ
    return subprocess.run([sys.executable, *command, "-p", "no:cacheprovider", "--import-mode=importlib"], cwd=folder,
                          env=environment, capture_output=True, text=True, timeout=100, check=False)


def again(folder: Path, files: dict[str, str], *words: str, **environ: str) -> subprocess.CompletedProcess[str]:
    return run(folder, files, str(ROOT / ".ci" / "again"), *BOTH, *(words or ("-n", "0")), **environ)


# ── the rule ─────────────────────────────────────────────────────────────────────────────────────────────────


def test_every_file_is_of_one_stage_and_what_is_named_is_there() -> None:
    assert {stage_of(name) for name in FILES} == set(STAGES)
    assert sorted(WITH_PROCESSES - set(FILES)) == []
    assert [name for name in sorted(WITH_PROCESSES) if name.partition("/")[0] not in FOLDERS] == []
    assert [name for name in FOLDERS if not (TESTS / name).is_dir()] == []


def test_each_test_runs_in_exactly_one_stage(folder: Path) -> None:
    """In the one that the rule says: a folder that nobody has named is of the second."""
    files = {"unit/test_a.py": FINE, "unit/test_store.py": FINE, "queues/test_b.py": FINE, "test_c.py": FINE}
    ran: dict[str, list[str]] = {}
    for stage in STAGES:
        done = run(folder, files, "-m", "pytest", "-q", "--collect-only", "--stage", stage)
        ran[stage] = sorted(line.partition("::")[0] for line in done.stdout.splitlines() if "::" in line)
    assert ran == {"deterministic": ["unit/test_a.py"],
                   "processes": ["queues/test_b.py", "test_c.py", "unit/test_store.py"]}


@pytest.mark.parametrize("folder_name", ["unit", "queues"])
def test_what_a_deterministic_test_may_not_do_is_found(folder: Path, folder_name: str) -> None:
    """Planted; a test of the other stage may."""
    bodies = ["subprocess.run(['true'])", "os.system('true')", "os.posix_spawn('/bin/true', ['true'], {})",
              "os.fork() or os._exit(0)", "time.sleep(0.001)",
              "try:\n        subprocess.run(['true'])\n    finally:\n        return",
              "one = threading.Thread(target=time.sleep, args=(0.001,))\n    one.start()\n    one.join()"]
    text = "".join(f"def test_{number}():\n    {body}\n\n" for number, body in enumerate(bodies))
    # A fixture is part of its test; whoever sleeps for no time only lets another thread run.
    text += ("@pytest.fixture\ndef before():\n    subprocess.run(['true'])\n\n"
             "@pytest.fixture\ndef after():\n    yield\n    subprocess.run(['true'])\n\n"
             "def test_before(before):\n    pass\n\ndef test_after(after):\n    pass\n\n"
             "def test_fine():\n    time.sleep(0)\n")
    done = run(folder, {f"{folder_name}/test_it.py": text}, "-m", "pytest", "-q", "-rE")
    wrong = [line.partition(" - ")[0].rpartition("::")[2] for line in done.stdout.splitlines()
             if line.startswith("ERROR ") and "deterministic" in line]
    expected = [f"test_{number}" for number in range(len(bodies))] + ["test_before", "test_after"]
    assert wrong == (expected if folder_name == "unit" else []), done.stdout
    assert "10 passed" in done.stdout


# ── one after the other ──────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("bad", [[], ["unit/test_a.py"], ["queues/test_b.py"], ["unit/test_a.py", "queues/test_b.py"]],
                         ids=["none", "the first", "the second", "both"])
def test_a_failure_lets_the_other_stage_run_and_both_are_told(folder: Path, bad: list[str]) -> None:
    done = again(folder, {name: LOSES if name in bad else FINE for name in ("unit/test_a.py", "queues/test_b.py")})
    assert done.returncode == (1 if bad else 0), done.stdout
    assert done.stdout.count("stage: ") == 2 and done.stdout.count("1 passed") == 2 - len(bad)
    told = [line for line in done.stdout.splitlines() if line.startswith("WHY ") and "::" in line]
    assert told == [f"WHY {name}::test_loss" for name in bad]


def test_a_file_that_cannot_be_imported_lets_the_other_stage_run(folder: Path) -> None:
    done = again(folder, {"unit/test_a.py": "import nothing_of_this_name\n", "queues/test_b.py": LOSES})
    assert done.returncode not in (0, 5) and "1 failed" in done.stdout, done.stdout


def test_more_than_three_files_of_both_stages_do_not_run_again(folder: Path) -> None:
    late = "from kit.surroundings import NotReady\ndef test_start():\n    raise NotReady('late')\n"
    done = again(folder, {f"{place}/test_{name}.py": late for place, name in
                          [("unit", "a"), ("unit", "b"), ("queues", "c"), ("queues", "d")]})
    assert done.returncode == 1 and "4 files failed by their surroundings, more than 3" in done.stdout, done.stdout


def test_what_is_chosen_runs_in_its_stage(folder: Path) -> None:
    files = {"unit/test_a.py": FINE + "def test_trie():\n    pass\n", "queues/test_b.py": FINE}
    for words, passed in [(("unit/test_a.py",), "2 passed"), (("queues",), "1 passed"), (("-k", "trie"), "1 passed"),
                          (("unit/test_a.py::test_trie",), "1 passed")]:
        done = again(folder, files, *words)
        assert done.returncode == 0 and done.stdout.count(" passed in ") == 1 and passed in done.stdout, done.stdout
    assert again(folder, files, "-k", "nothing").returncode == 5
    assert again(folder, files, "-n", "0").stdout.count("workers: 0 ") == 2


def test_each_stage_and_each_second_run_has_its_report(folder: Path) -> None:
    late = ("from pathlib import Path\nfrom kit.surroundings import NotReady\nAT = Path(__file__).with_suffix('.ran')\n"
            "def test_start():\n    if not AT.exists():\n        AT.touch()\n        raise NotReady('late')\n")
    done = again(folder, {"unit/test_a.py": FINE, "queues/test_b.py": late}, PYTEST_ADDOPTS="--junitxml=all.xml")
    assert done.returncode == 0, done.stdout
    assert sorted(path.name for path in folder.glob("*.xml")) == [
        "all-again-test_b.xml", "all-deterministic.xml", "all-processes.xml"]
    assert 'failures="1"' in (folder / "all-processes.xml").read_text()
