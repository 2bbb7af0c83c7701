"""What a user is told to install exists: the extra by its name, and no other project's distribution."""
import re
import tomllib

from kit.tree import ROOT, sources

from fluxmq.model.extras import how_to_install

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
TEXTS = [path for path in sources() if path.suffix in (".py", ".md") and path.name != "test_extras.py"]
NAMED = re.compile(r"pip install [^\n`]*?([\w.-]+)\[(\w+)\]")


def test_every_text_that_says_how_to_install_names_this_project_and_an_extra_it_has() -> None:
    named = [(path, *found) for path in TEXTS for found in NAMED.findall(path.read_text())]
    assert len(named) > 5
    assert [(str(path), name, extra) for path, name, extra in named
            if name not in (".", PROJECT["name"]) or extra not in PROJECT["optional-dependencies"]] == []


def test_the_message_is_a_command_that_works_in_a_checkout() -> None:
    (name, extra), = NAMED.findall(how_to_install("spark"))
    assert (name, extra) == (".", "spark")
