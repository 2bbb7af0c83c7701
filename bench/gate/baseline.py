"""The commit that the checkout is held against: which it is, its tree, and its compiled core.

`bench/BASELINE` names it: the hash of a commit on the first line, and after it why it is that one. It is built below
`build/gate/`, once for a commit, an interpreter and a Cython, without what the checkout has compiled of the same
sources (reuse.py); of the load generator nothing is built, the checkout's loads both.
"""
from __future__ import annotations

import hashlib
import io
import os
import re
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Callable
from importlib import metadata
from pathlib import Path

from fluxmq.bench.gate.reuse import reuse
from fluxmq.spark.gate.judging import GateError

__all__ = ["NoBaseline", "build", "find_commit", "named_commit"]

NAME = "bench/BASELINE"
HASH = re.compile(r"[0-9a-f]{40}")
FETCH_SECONDS = 60
BUILD_SECONDS = 1200
BUILT = ".built"
TAIL = 2000


class NoBaseline(Exception):
    """There is nothing here to compare with, which passes. The text says why."""


def git(root: Path, *arguments: str, seconds: float = FETCH_SECONDS) -> str:
    """What git says. Raises NoBaseline with its last line when it fails, or is not installed."""
    try:
        done = subprocess.run(["git", "-C", str(root), *arguments], capture_output=True, text=True, timeout=seconds,
                              check=False, stdin=subprocess.DEVNULL, env=os.environ | {"GIT_TERMINAL_PROMPT": "0"})
    except OSError:
        raise NoBaseline("git is not installed") from None
    except subprocess.TimeoutExpired:
        raise NoBaseline(f"git {arguments[0]} took longer than {seconds:g} s") from None
    if done.returncode:
        said = done.stderr.strip().splitlines()
        raise NoBaseline(f"git {arguments[0]}: {said[-1] if said else f'exit status {done.returncode}'}")
    return done.stdout.strip()


def named_commit(root: Path) -> str:
    """The hash in bench/BASELINE. Raises NoBaseline without the file, GateError when it has no hash or no reason."""
    path = root / NAME
    try:
        first, _, why = path.read_text(encoding="utf-8").partition("\n")
    except OSError:
        raise NoBaseline(f"there is no {NAME}") from None
    if not HASH.fullmatch(first.strip()):
        raise GateError(f"the first line of {NAME} is the hash of a commit, 40 digits, and nothing else")
    if not why.strip():
        raise GateError(f"{NAME} does not say why it is that commit: write it below the hash")
    return first.strip()


def find_commit(root: Path, name: str | None) -> str:
    """The full hash of a commit that this clone has, fetched if it is shallow. name: None for bench/BASELINE's.

    Raises NoBaseline: no clone, no such commit. GateError: see named_commit.
    """
    try:
        top = Path(git(root, "rev-parse", "--show-toplevel"))
    except NoBaseline as error:
        raise NoBaseline(f"{root} is not a git clone ({error})") from None
    if top.resolve() != root.resolve():
        raise NoBaseline(f"{root} is not a git clone, though {top} is one")
    wanted = named_commit(root) if name is None else name
    try:
        return git(root, "rev-parse", "--verify", "--quiet", f"{wanted}^{{commit}}")
    except NoBaseline:
        if git(root, "rev-parse", "--is-shallow-repository") != "true":
            raise NoBaseline(f"this clone has no commit {wanted}") from None
    try:
        git(root, "fetch", "--quiet", "--no-tags", "--depth", "1", "origin", wanted)
        return git(root, "rev-parse", "--verify", f"{wanted}^{{commit}}")
    except NoBaseline as error:
        raise NoBaseline(f"this clone is shallow, and {wanted} cannot be fetched ({error})") from None


def build(root: Path, commit: str, say: Callable[[str], None]) -> Path:
    """The directory with that commit's package `fluxmq`, compiled; kept below build/gate/ for the next time.

    Raises GateError when it does not compile.
    """
    home = root / "build" / "gate" / f"{commit[:12]}-{_kind()}"
    if (home / BUILT).exists():
        say(f"baseline {commit[:12]}: built before")
        return home
    making = home.with_name(f"{home.name}.{os.getpid()}")
    shutil.rmtree(making, ignore_errors=True)
    say(f"baseline {commit[:12]}: building, which takes a minute or two")
    try:
        _unpack(root, commit, making)
        # What loads is the checkout's.
        for source in (making / "bench" / "load").glob("*.pyx"):
            source.unlink()
        if known := reuse(root, making):
            say(f"baseline {commit[:12]}: {len(known)} modules are those of the checkout, which are not compiled again")
        _compile(making)
        (making / BUILT).touch()
        # One that another process built meanwhile is as good, one that was left half built is not.
        if home.exists() and not (home / BUILT).exists():
            shutil.rmtree(home)
        if not home.exists():
            making.rename(home)
    finally:
        shutil.rmtree(making, ignore_errors=True)
    return home


def _kind() -> str:
    """What besides the commit decides what is built."""
    words = [sys.version, *(os.environ.get(name, "") for name in ("CC", "CFLAGS", "LDFLAGS"))]
    for name in ("Cython", "setuptools"):
        try:
            words.append(metadata.version(name))
        except metadata.PackageNotFoundError:
            raise GateError(f"the baseline cannot be built, {name} is not installed: pip install 'Cython>=3.3' "
                            "'setuptools>=80'") from None
    return hashlib.sha256("\n".join(words).encode()).hexdigest()[:8]


def _unpack(root: Path, commit: str, target: Path) -> None:
    done = subprocess.run(["git", "-C", str(root), "archive", "--format=tar", commit], capture_output=True, check=False)
    if done.returncode:
        raise GateError(f"git archive {commit}: {done.stderr.decode(errors='replace').strip()}")
    target.mkdir(parents=True)
    with tarfile.open(fileobj=io.BytesIO(done.stdout)) as archive:
        # The first releases of Python 3.11 do not have the filter.
        archive.extraction_filter = getattr(tarfile, "data_filter", None)
        archive.extractall(target)


def _compile(tree: Path) -> None:
    # As it ships: without what this process was told about its own build, and without its fluxmq.
    environment = {key: value for key, value in os.environ.items()
                   if not key.startswith("FLUXMQ_") and key != "PYTHONPATH"}
    command = [sys.executable, "setup.py", "--quiet", "build_ext", "--inplace",
               f"-j{len(os.sched_getaffinity(0))}"]
    try:
        done = subprocess.run(command, cwd=tree, env=environment, capture_output=True, text=True, errors="replace",
                              timeout=BUILD_SECONDS, check=False, stdin=subprocess.DEVNULL)
    except subprocess.TimeoutExpired:
        raise GateError(f"the baseline was not built within {BUILD_SECONDS} s") from None
    if done.returncode:
        raise GateError(f"the baseline does not compile; move {NAME} to a commit that does:\n{done.stderr[-TAIL:]}")
