"""The tests of `tox -e sanitize` import no compiled module but those of PARSERS and CONNECTIONS (setup.py): their wheel
has no others. Without this check it shows only when the whole of CI runs."""
from __future__ import annotations

import ast
import configparser
import re
import subprocess
import sys

from kit.python import environment
from kit.tree import ROOT

IMPORT = """
import importlib, sys
from importlib.machinery import ExtensionFileLoader, PathFinder
parsers, tests = {parsers!r}, {tests!r}
class ParsersAlone:
    def find_spec(self, name, path=None, target=None):
        if not name.startswith("fluxmq._core."):
            return None
        spec = PathFinder.find_spec(name, path)
        if spec is not None and isinstance(spec.loader, ExtensionFileLoader) and name not in parsers:
            raise ImportError(f"{{name}} is not among PARSERS and CONNECTIONS")
        return spec
sys.meta_path.insert(0, ParsersAlone())
sys.path[:0] = {paths!r}
for test in tests:
    try:
        importlib.import_module(test)
    except ImportError as error:
        print(f"{{test}}: {{error}}")
"""


def built() -> list[str]:
    given = {ast.unparse(statement.targets[0]): statement.value
             for statement in ast.parse((ROOT / "setup.py").read_text()).body if isinstance(statement, ast.Assign)}
    found = [f"fluxmq._core.{package}.{name}" for table in ("PARSERS", "CONNECTIONS")
             for package, names in ast.literal_eval(given[table]).items() for name in names]
    found.append(ast.literal_eval(given["SHARED"]))
    assert len(found) == len(set(found)) > 100
    return found


def sanitized() -> list[str]:
    """The modules of the tests that `tox -e sanitize` names."""
    config = configparser.ConfigParser(interpolation=None)
    config.read(ROOT / "tox.ini")
    words = [word.rstrip("}") for word in config["testenv:sanitize"]["commands"].split() if word.startswith("tests/")]
    files = [file for word in words
             for file in (sorted((ROOT / word).glob("test_*.py")) if (ROOT / word).is_dir() else [ROOT / word])]
    return [".".join(file.relative_to(ROOT / "tests").with_suffix("").parts) for file in files]


def test_what_runs_with_sanitizers_imports_nothing_else() -> None:
    names = sanitized()
    assert len(names) > 15
    code = IMPORT.format(parsers=built(), tests=names, paths=[str(ROOT / "tests")])
    done = subprocess.run([sys.executable, "-P", "-c", code], env=environment(), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert not done.stdout


def test_what_a_parser_says_again_is_the_same() -> None:
    """peer/frames.pyx repeats constants of modules that it may not import."""
    core = ROOT / "fluxmq" / "_core"
    for name, path in (("RUN_MAX", "queue/group.pxd"), ("BACKOFF_DEFAULT", "queue/relay.pxd"),
                       ("VERB_LAST", "queue/relay.pxd")):
        said = [re.findall(rf"^    {name} = (-?\d+)", (core / file).read_text(), re.MULTILINE)
                for file in (path, "peer/frames.pyx")]
        assert len(said[0]) == 1 and said[0] == said[1], name
