"""`python -m fluxmq.bench.gate`: sees a planted slowdown, calls nothing slow that is the same, and passes without a
baseline. The statistics alone are tested in tests/spark/test_gate.py; this gate is the only thing here that times."""
from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from kit.html import page_of
from kit.python import HOME, environment
from kit.slowdown import slow_home
from kit.tools import require_tool

from fluxmq._core.errors import ConfigError
from fluxmq._core.testing.probes import DEBUG_BUILD
from fluxmq.bench.gate.baseline import NoBaseline, build, find_commit, named_commit
from fluxmq.bench.gate.history import committed, drift, move_baseline, read_history
from fluxmq.bench.gate.report import gate_report
from fluxmq.bench.gate.reuse import reuse
from fluxmq.bench.gate.rows import ROWS
from fluxmq.bench.gate.turns import Homes, what_misses
from fluxmq.bench.gate.workload import write_workload
from fluxmq.cluster.etcd.binary import find_binary
from fluxmq.record.reading import open_recording
from fluxmq.spark.gate.judging import GateError, Pair, Verdict, judge, load_thresholds
from fluxmq.spark.replay.plan import plain_plan

ROOT = Path(__file__).resolve().parents[2]
SECONDS = 150
# 25 % fewer messages in the same time are 33 % more time for each.
QUARTER_SLOWER = 34
FOUR_TIMES = 300


def run_gate(*words: str | Path, cwd: Path = ROOT, patience: float = SECONDS) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-P", "-m", "fluxmq.bench.gate", *map(str, words)], cwd=cwd, text=True,
                          capture_output=True, env=environment(), timeout=patience, check=False)


def quick(*words: str | Path, rounds: int, seconds: float = 0.1) -> tuple[int, dict[str, Any]]:
    """Rows briefly; exit status and verdict."""
    done = run_gate("--rounds", str(rounds), "--seconds", str(seconds), "--publishes", "2000", "--json", *words,
                    patience=SECONDS + 8 * rounds * (1 + 4 * seconds))
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)


def outcomes(verdict: dict[str, Any]) -> dict[str, str]:
    return {finding["measure"].partition("/")[2]: finding["outcome"] for finding in verdict["findings"]}


def rounds_of(key: str) -> int:
    """Pairs of a row when one round is asked for."""
    return next(row.times for row in ROWS if row.key == key)


def no_etcd() -> bool:
    """Then rows of clusters are left out."""
    try:
        find_binary()
    except ConfigError:
        return True
    return False


# ── what it measures ─────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.timeout(12 * SECONDS)
@pytest.mark.parametrize("row", ["qos1-pairs", pytest.param("two-nodes", marks=pytest.mark.soak)])
def test_a_slowdown_of_a_quarter_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, row: str) -> None:
    """Noise is the right answer on a machine that is too busy for so short a look, and a longer one is taken then, at
    last of a broker that is so slow that no noise hides it; that it passes would be wrong at any time."""
    slow = slow_home(tmp_path, monkeypatch, QUARTER_SLOWER)
    for rounds, seconds, percent in ((5, 0.1, QUARTER_SLOWER), (10, 0.4, QUARTER_SLOWER), (12, 1.0, QUARTER_SLOWER),
                                     (12, 1.0, FOUR_TIMES)):
        monkeypatch.setenv("SLOWDOWN_PERCENT", str(percent))
        status, verdict = quick("--only", row, "--baseline", HOME, "--candidate", slow, rounds=rounds, seconds=seconds)
        if outcomes(verdict)["cpu_per_message_us"] != "noise":
            break
    assert outcomes(verdict)["cpu_per_message_us"] == "regression", verdict
    assert status == verdict["status"] == 1


@pytest.mark.soak
def test_the_same_twice_is_no_regression() -> None:
    """In CI, `tox -e gate` looks longer, and a false alarm ends it."""
    # Eight pairs, which is enough for every measure to be judged.
    status, verdict = quick("--only", "qos1-pairs", "--baseline", HOME, "--candidate", HOME, rounds=4)
    assert "regression" not in outcomes(verdict).values(), verdict
    assert status == 0 and outcomes(verdict)["lost"] == "pass"


def test_every_row_is_measured() -> None:
    """One round says nothing of speed, and that is what it says; of loss it says all."""
    for seconds in (0.05, 0.5, 3.0):    # a busy machine may measure nothing in the shorter ones
        status, verdict = quick("--baseline", HOME, "--candidate", HOME, rounds=1, seconds=seconds)
        if all(finding.get("candidate") is not None for finding in verdict["findings"]):
            break
    assert status == 0 and verdict["outcome"] == "noise"
    found = {finding["measure"]: finding for finding in verdict["findings"]}
    timed = {"idle": ("cpu_per_connection_us", "bytes_per_connection"), "start": ("cpu_s", "seconds", "resident_bytes")}
    loaded = [row for row in ROWS if row.key not in timed and not (row.kind == "nodes" and no_etcd())]
    timed |= {row.key: ("throughput", "cpu_per_message_us", "latency_p99_us") for row in loaded}
    for key, names in timed.items():
        for name in names:
            assert f"too few pairs: {rounds_of(key)}" in found[f"{key}/{name}"]["why"]
            assert found[f"{key}/{name}"]["candidate"] > 0
    for row in loaded:
        for name in ("lost", "duplicates", "order_violations"):
            assert found[f"{row.key}/{name}"]["outcome"] == "pass"
    assert len(found) == 6 * len(loaded) + 5


def test_a_row_of_clusters_is_left_out_where_there_can_be_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    row = next(row for row in ROWS if row.kind == "nodes")
    assert "forms no clusters" in what_misses(row, Homes(tmp_path, None))
    assert "forms no clusters" in what_misses(row, Homes(None, tmp_path))
    assert not any(what_misses(other, Homes(tmp_path, None)) for other in ROWS if other is not row)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigError, match="there is no etcd in PATH"):
        what_misses(row, Homes(None, None))
    monkeypatch.delenv("FLUXMQ_REQUIRE_TOOLS", raising=False)
    done = run_gate("--baseline", HOME, "--only", row.key)
    assert done.returncode == 2 and f"{row.key}: left out: " in done.stderr and "Traceback" not in done.stderr
    monkeypatch.setenv("FLUXMQ_REQUIRE_TOOLS", "1")
    done = run_gate("--baseline", HOME, "--only", row.key)
    assert done.returncode == 2 and done.stderr.endswith("(Debian: apt-get install etcd-server), or name one in "
                                                         "cluster.etcd.binary\n")


def test_the_text_and_what_is_kept(tmp_path: Path) -> None:
    kept, html = tmp_path / "pairs.json", tmp_path / "report.html"
    done = run_gate("--only", "qos0", "--rounds", "1", "--seconds", "0.05", "--baseline", HOME, "--output", kept,
                    "--html", html)
    if DEBUG_BUILD:
        assert done.returncode == 2 and "this is a debug build" in done.stderr
        return
    assert done.returncode == 0 and "no regression that can be told from noise" in done.stdout
    assert "Neither passed nor failed, for noise: qos0/throughput, qos0/cpu_per_message_us" in done.stdout
    assert "qos0: 1 → 1" in done.stderr
    ratio = r"\d+\.\d{3} noise"
    assert re.search(rf"^qos0: throughput {ratio}, cpu_per_message_us {ratio} \(\d+ s\)$", done.stderr, re.MULTILINE)
    written = json.loads(kept.read_text())
    assert written["pairs"][0]["candidate"]["qos0/throughput"] > 0 and written["outcome"] == "noise"
    assert f"The report with its plots: {html}" in done.stdout
    page = page_of(html.read_text())
    assert page.verdict == ("good", "no regression that can be told from noise; that passes")
    assert ["Baseline", str(HOME)] in page.tables["What was measured, and under what"]
    (figures,) = (rows for title, rows in page.tables.items() if title.startswith("qos0/cpu_per_message_us"))
    assert [row[0] for row in figures[1:]] == [str(number + 1) for number in range(rounds_of("qos0"))]


def test_the_report() -> None:
    """Hand-made: a regression, noise, what is only shown, a pair without a value, and the oldest baseline."""
    limits = load_thresholds(ROOT / "bench/gate/thresholds.yaml")
    cost, idle, late = "qos0/cpu_per_message_us", "idle/bytes_per_connection", "qos0/latency_p99_us"
    pairs = [Pair({cost: 2.0, late: 9.0, "qos0/lost": 0}, {cost: 3.0, late: 8.0, "qos0/lost": 0}) for _ in range(9)]
    pairs += [Pair({cost: None, idle: 1000.0}, {cost: 4.0, idle: 1010.0})]
    verdict = judge(pairs, limits)
    asked = {"Baseline": "a<b>c", "Candidate": "d"}
    page = page_of(gate_report(verdict, pairs, asked, {cost: 1.25}, "0123456789abcdef", None))
    assert page.verdict == ("bad", "regression: the checkout is worse than it may be")
    findings = next(rows for title, rows in page.tables.items() if title.startswith("Every measure"))
    assert [row[0] for row in findings[1:5]] == [cost, late, "qos0/lost", idle]
    assert findings[1][1:4] == ["2", "3", "1.500"] and findings[1][-1] == "REGRESSION"
    assert page.tables[f"{cost}, µs"][1:3] == [["1", "1", "2", "1", "3"], ["2", "2", "2", "2", "3"]]
    assert page.tables[f"{cost}, µs"][-1] == ["10", "-", "-", "10", "4"]
    assert f"{idle}, bytes" in page.tables and f"{late}, µs" not in page.tables     # it is not gated
    assert [cost, "1.250"] in page.tables["By the ratios of bench/history, and this one's"]
    assert ["Baseline", "a<b>c"] in page.tables["What was measured, and under what"]
    assert "Since 0123456789ab, the oldest baseline" in page.text

    fine = judge([Pair({cost: 2.0}, {cost: 2.0})] * 9, limits)
    page = page_of(gate_report(fine, pairs, asked, {}, "0123456789abcdef", verdict))
    assert page.verdict == ("bad", "pass: no regression outside noise. Against 0123456789ab: "
                                   "regression: the checkout is worse than it may be")
    page = page_of(gate_report(fine, pairs, asked, {}, "", None))
    assert page.verdict[0] == "good" and "oldest baseline" not in page.text


def test_a_report_that_has_no_place_is_said_before_minutes_of_work(tmp_path: Path) -> None:
    done = run_gate("--baseline", HOME, "--candidate", HOME, "--html", tmp_path / "no" / "report.html")
    assert done.returncode == 2 and "cannot be written: there is no directory" in done.stderr


# ── the workload ─────────────────────────────────────────────────────────────────────────────────────────────


def test_the_workload_is_the_same_every_time(tmp_path: Path) -> None:
    first, second = (open_recording(write_workload(tmp_path / name, 3000)) for name in "ab")
    assert first.table().equals(second.table())
    plan, _ = plain_plan(first)
    assert plan.not_replayed == {} and plan.clients == 68
    seen = first.table(["version", "qos", "kind", "topic", "detail"]).to_pylist()
    assert {row["version"] for row in seen} == {4, 5} and {row["qos"] for row in seen} == {0, 1, 2, None}
    assert {row["kind"] for row in seen} == {"CONNECT", "SUBSCRIBE", "PUBLISH", "UNSUBSCRIBE", "DISCONNECT"}
    assert any("$share/" in (row["detail"] or "") for row in seen)
    assert any("$queue/" in (row["topic"] or "") for row in seen)


# ── the baseline ─────────────────────────────────────────────────────────────────────────────────────────────


def git(root: Path, *words: str) -> str:
    identity = ["-c", "user.name=t", "-c", "user.email=t@localhost", "-c", "protocol.file.allow=always"]
    done = subprocess.run([require_tool("git", package="git"), "-C", root, *identity, *words], check=True, text=True,
                          capture_output=True)
    return done.stdout.strip()


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A repository with two commits of a package with one extension, quickly built; the first is the baseline."""
    root = tmp_path / "clone"
    (root / "fluxmq" / "_core").mkdir(parents=True)
    (root / "bench" / "load").mkdir(parents=True)
    for name in ("fluxmq/__init__.py", "fluxmq/_core/__init__.py"):
        (root / name).touch()
    (root / "fluxmq" / "_core" / "one.pyx").write_text("# cython: language_level=3\nANSWER = 42\n")
    (root / "bench" / "load" / "two.pyx").write_text("this does not compile")
    (root / "setup.py").write_text(
        "from pathlib import Path\nfrom Cython.Build import cythonize\nfrom setuptools import setup\n"
        "setup(name='x', packages=['fluxmq', 'fluxmq._core'], ext_modules=cythonize([str(p) for p in "
        "[*Path('fluxmq/_core').glob('*.pyx'), *Path('bench/load').glob('*.pyx')]]))\n")
    git(root, "init", "--quiet", "--initial-branch", "main")
    git(root, "add", ".")
    git(root, "commit", "--quiet", "-m", "one")
    (root / "bench" / "BASELINE").write_text(f"{git(root, 'rev-parse', 'HEAD')}\n\nIt is the first.\n")
    git(root, "add", ".")
    git(root, "commit", "--quiet", "-m", "two")
    return root


def baseline_of(root: Path) -> str:
    return (root / "bench" / "BASELINE").read_text().split()[0]


def test_a_baseline_is_built_once(clone: Path) -> None:
    said: list[str] = []
    commit = find_commit(clone, None)
    assert commit == baseline_of(clone)
    home = build(clone, commit, said.append)
    assert home.parent == clone / "build" / "gate" and list((home / "fluxmq" / "_core").glob("one*.so"))
    assert not (home / "bench" / "BASELINE").exists(), "the tree of another commit"
    assert build(clone, commit, said.append) == home and said[1].endswith("built before")
    assert [path.name for path in home.parent.iterdir()] == [home.name]


# ── what is not compiled twice ───────────────────────────────────────────────────────────────────────────────


MODULES = ["leaf", "near", "far", "alone"]
SETUP = """from pathlib import Path
from Cython.Build import cythonize
from setuptools import Extension, setup
setup(name="x", packages=["fluxmq", "fluxmq._core"], options={"build": {"build_base": "build/plain"}},
      ext_modules=cythonize([Extension(f"fluxmq._core.{p.stem}", [str(p)], depends=["fluxmq/_core/x.h"])
                             for p in sorted(Path("fluxmq/_core").glob("*.pyx"))], build_dir="build/plain/c"))
"""


@pytest.fixture(scope="module")
def built_tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four modules, compiled as a wheel is: far cimports near, and near leaf; leaf includes a header."""
    root = tmp_path_factory.mktemp("reuse") / "root"
    core = root / "fluxmq" / "_core"
    core.mkdir(parents=True)
    (root / "setup.py").write_text(SETUP)
    (root / "fluxmq" / "__init__.py").touch()
    (core / "__init__.py").touch()
    (core / "x.h").write_text("#define X 1\n")
    (core / "leaf.pxd").write_text("cdef extern from \"x.h\":\n    int X\ncdef class Leaf:\n    cdef int a\n")
    (core / "leaf.pyx").write_text("cdef class Leaf:\n    pass\ndef found():\n    return X\n")
    for name, other in (("near", "leaf"), ("far", "near")):
        kind = name.capitalize()
        (core / f"{name}.pxd").write_text(f"from fluxmq._core.{other} cimport {other.capitalize()}\n"
                                          f"cdef class {kind}:\n    cdef {other.capitalize()} of\n")
        (core / f"{name}.pyx").write_text(f"cdef class {kind}:\n    pass\n")
    (core / "alone.pyx").write_text("def found():\n    return 2\n")
    for path in root.rglob("*.p*"):
        os.utime(path, (1_700_000_000, 1_700_000_000))
    done = subprocess.run([sys.executable, "setup.py", "-q", "build_ext"], cwd=root, capture_output=True, text=True,
                          timeout=SECONDS, check=False)
    assert done.returncode == 0, done.stderr
    return root


@pytest.mark.parametrize(("changed", "found"), [
    ("", MODULES),
    ("fluxmq/_core/alone.pyx", ["leaf", "near", "far"]),
    ("fluxmq/_core/far.pyx", ["leaf", "near", "alone"]),
    ("fluxmq/_core/near.pxd", ["leaf", "alone"]),
    ("fluxmq/_core/leaf.pxd", ["alone"]),
    ("fluxmq/_core/x.h", []),
    ("setup.py", []),
])
@pytest.mark.parametrize("whose", ["baseline", "checkout"])
def test_only_what_is_the_same_is_not_compiled_twice(built_tree: Path, tmp_path: Path, changed: str, found: list[str],
                                                     whose: str) -> None:
    """whose: the change is the baseline's; or that of the checkout, which was not compiled since, and then it does not
    help that the baseline has the same."""
    root, tree = tmp_path / "root", tmp_path / "tree"
    shutil.copytree(built_tree, root)
    shutil.copytree(built_tree, tree, ignore=shutil.ignore_patterns("build"))
    for place in [tree] if whose == "baseline" else [root, tree]:
        if changed:
            (place / changed).write_text((place / changed).read_text() + "\n")
    reused = reuse(root, tree)
    assert sorted(reused) == sorted(found)
    for name in reused:
        assert next(tree.glob(f"build/plain/lib.*/fluxmq/_core/{name}.*.so"))
    assert len(list(tree.rglob("*.so"))) == len(found)


def test_the_build_compiles_nothing_of_what_is_there(built_tree: Path, tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    shutil.copytree(built_tree, tree, ignore=shutil.ignore_patterns("build"))
    (tree / "fluxmq" / "_core" / "alone.pyx").write_text("def found():\n    return 3\n")
    reused = reuse(built_tree, tree)
    assert sorted(reused) == ["far", "leaf", "near"]
    before = {path: path.stat().st_mtime_ns for path in tree.rglob("*.so")}
    done = subprocess.run([sys.executable, "setup.py", "build_ext", "--inplace"], cwd=tree, capture_output=True,
                          text=True, timeout=SECONDS, check=False)
    assert done.returncode == 0, done.stderr
    assert {path: path.stat().st_mtime_ns for path in before} == before
    assert {path.name.partition(".")[0] for path in (tree / "fluxmq" / "_core").glob("*.so")} == set(MODULES)


def test_another_cython_is_another_module(built_tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tree = tmp_path / "tree"
    shutil.copytree(built_tree, tree, ignore=shutil.ignore_patterns("build"))
    monkeypatch.setattr("fluxmq.bench.gate.reuse.metadata.version", lambda name: "9.9")
    assert reuse(built_tree, tree) == []


def test_a_baseline_that_does_not_compile(clone: Path) -> None:
    (clone / "fluxmq" / "_core" / "one.pyx").write_text("def :")
    git(clone, "commit", "--quiet", "-am", "broken")
    with pytest.raises(GateError, match="does not compile; move bench/BASELINE"):
        build(clone, find_commit(clone, "HEAD"), str)
    assert list((clone / "build" / "gate").iterdir()) == []


def test_a_shallow_clone_fetches_the_baseline(clone: Path, tmp_path: Path) -> None:
    shallow = tmp_path / "shallow"
    git(tmp_path, "clone", "--quiet", "--depth", "1", f"file://{clone}", str(shallow))
    git(clone, "config", "uploadpack.allowAnySHA1InWant", "true")
    assert find_commit(shallow, None) == baseline_of(clone)


def without_remote(clone: Path, tmp_path: Path) -> Path:
    shallow = tmp_path / "shallow"
    git(tmp_path, "clone", "--quiet", "--depth", "1", f"file://{clone}", str(shallow))
    git(shallow, "remote", "set-url", "origin", str(tmp_path / "gone"))
    return shallow


def test_no_baseline_passes(clone: Path, tmp_path: Path) -> None:
    """Each with a sentence, and exit status 0."""
    bare = tmp_path / "sdist"
    bare.mkdir()
    (bare / "bench").mkdir()
    (bare / "bench" / "BASELINE").write_text((clone / "bench" / "BASELINE").read_text())
    missing = tmp_path / "missing"
    git(tmp_path, "clone", "--quiet", str(clone), str(missing))
    (missing / "bench" / "BASELINE").unlink()
    unknown = tmp_path / "unknown"
    git(tmp_path, "clone", "--quiet", str(clone), str(unknown))
    (unknown / "bench" / "BASELINE").write_text("0" * 40 + "\n\nNobody has it.\n")
    inside = clone / "bench"
    for place, said in [(bare, "is not a git clone"), (missing, "there is no bench/BASELINE"),
                        (unknown, "this clone has no commit 000"), (inside, "is not a git clone, though"),
                        (without_remote(clone, tmp_path), "this clone is shallow, and")]:
        done = run_gate("--candidate", HOME, cwd=place)
        assert done.returncode == 0 and done.stdout.startswith("no baseline: ") and said in done.stdout, done


@pytest.mark.parametrize(("text", "said"), [
    ("main\n\nBecause.\n", "the first line of bench/BASELINE is the hash of a commit"),
    ("a" * 40 + "\n", "does not say why it is that commit"), ("", "the first line")])
def test_a_baseline_file_that_says_too_little(clone: Path, text: str, said: str) -> None:
    (clone / "bench" / "BASELINE").write_text(text)
    with pytest.raises(GateError, match=said):
        named_commit(clone)
    done = run_gate("--candidate", HOME, cwd=clone)
    assert done.returncode == 2 and said in done.stderr and "Traceback" not in done.stderr


def test_our_own_baseline_is_well_formed() -> None:
    try:
        assert len(named_commit(ROOT)) == 40
    except NoBaseline as error:
        pytest.fail(str(error))


def measured(ratio: float) -> Verdict:
    """Of two measures: one that adds up over the moves, one that chance decides."""
    pairs = [Pair({"a/cpu_per_message_us": 10.0, "a/throughput": 5.0},
                  {"a/cpu_per_message_us": 10.0 * ratio, "a/throughput": 5.0})] * 8
    return judge(pairs, load_thresholds(ROOT / "bench" / "gate" / "thresholds.yaml"))


def test_small_losses_of_many_moves_are_seen(clone: Path) -> None:
    """Each is within what is allowed, and together they are not."""
    assert read_history(clone) == []
    first, paths = baseline_of(clone), []
    for number in range(12):
        (clone / "README").write_text(str(number))
        git(clone, "add", ".")
        git(clone, "commit", "--quiet", "-m", f"move {number}")
        former, commit = named_commit(clone), committed(clone)
        assert measured(1.04).outcome != "regression"
        path = move_baseline(clone, commit, former, f"reason {number}", "a machine", measured(1.04))
        # named by the second in which it was made
        paths.append(path.rename(path.with_name(f"{number:02}-{path.name}")))
        assert named_commit(clone) == commit != former
    history = read_history(clone)
    assert [move.why for move in history] == [f"reason {number}" for number in range(2, 12)]
    assert history[0].former != first and history[-1].commit == named_commit(clone)
    assert history[0].figures["a/cpu_per_message_us"].candidate == pytest.approx(10.4)
    assert drift(history, measured(1.04)) == {"a/cpu_per_message_us": pytest.approx(1.04 ** 11)}
    paths[-1].write_text("{}")
    with pytest.raises(GateError, match=f"{paths[-1]} cannot be used: Object missing required field"):
        read_history(clone)


def test_only_a_commit_becomes_the_baseline(clone: Path) -> None:
    (clone / "setup.py").write_text("changed")
    with pytest.raises(GateError, match="commit them first"):
        committed(clone)
    done = run_gate("--move", "It is better.", cwd=clone)
    assert done.returncode == 2 and "commit them first" in done.stderr and "Traceback" not in done.stderr
    with pytest.raises(GateError, match="nothing was measured"):
        move_baseline(clone, "a" * 40, "b" * 40, "why", "where", Verdict(()))
    assert not (clone / "bench" / "history").exists()


@pytest.mark.parametrize(("words", "said"), [
    (("--move", "why", "--only", "qos0"), "in all rows: without --baseline"),
    (("--baseline", str(ROOT / "docs"), "--candidate", HOME), "is no built tree"),
    (("--baseline", HOME, "--thresholds", "none.yaml"), "the thresholds none.yaml cannot be read")])
def test_what_cannot_be_judged_is_two(words: tuple[str, ...], said: str) -> None:
    done = run_gate(*words)
    assert done.returncode == 2 and said in done.stderr and "Traceback" not in done.stderr
