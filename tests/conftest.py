"""Options of pytest that tests of more than one folder read; what chance decides comes from one of them.

    --seed N        of hypothesis, of tests/faults, and of the long tests: the same number, the same examples

What hypothesis once found, and what is not an explicit example beside its test, is kept in tests/examples.
"""
from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from faults.table import TABLE
from hypothesis import settings
from hypothesis.database import DirectoryBasedExampleDatabase, MultiplexedDatabase, ReadOnlyDatabase

# No test asserts how long something took, and examples of hypothesis do not either.
settings.register_profile("fluxmq", parent=settings(), deadline=None, print_blob=True, database=MultiplexedDatabase(
    DirectoryBasedExampleDatabase(".hypothesis/examples"),
    ReadOnlyDatabase(DirectoryBasedExampleDatabase(Path(__file__).with_name("examples")))))
settings.load_profile("fluxmq")


if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell lets its background jobs ignore it, and so would every program that a test starts and interrupts.
    signal.signal(signal.SIGINT, signal.default_int_handler)


# Files, the longest first, and how workers of pytest-xdist begin with these.
LONGEST_FIRST = Path(__file__).with_name("longest_first.txt")
FAULT_PAGE = """# Faults of the disk: what became of them

Made by

    pytest tests/faults --fault-table docs/internals/faults.md

[testing.md](testing.md#a-disk-that-errs) says what a point is, and what counts as wrong.
"""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--amqp-broker", choices=("fluxmq", "rabbitmq"), default="fluxmq",
                     help="what tests/amqp091 speaks to: fluxmq, or Debian's RabbitMQ, to see whether a test is sound")
    parser.addoption("--point", help="of tests/faults: this one only, as a failing test names it")
    parser.addoption("--fault-table", help="of tests/faults: a file that gets the tables shown at the end, too")
    parser.addoption("--seed", type=int, default=1,
                     help="of what chance decides: examples of hypothesis, points of tests/faults, long tests")
    parser.addoption("--until", type=float, metavar="SECONDS", default=os.environ.get("FLUXMQ_TEST_UNTIL"),
                     help="no test begins after this time (since the epoch); tests/soak.py gives it, in "
                          "FLUXMQ_TEST_UNTIL")


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--hypothesis-seed") is None:
        config.option.hypothesis_seed = str(config.getoption("--seed"))


def longest_first() -> list[str]:
    """The paths of longest_first.txt, relative to tests/."""
    return [line for line in LONGEST_FIRST.read_text().splitlines() if line and not line.startswith("#")]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The order of files is the order in which workers take them; that of tests within a file stays."""
    places = {LONGEST_FIRST.parent / name: place for place, name in enumerate(longest_first())}
    items.sort(key=lambda item: places.get(item.path, len(places)))


def pytest_report_header(config: pytest.Config) -> str:
    return f"seed: {config.getoption('--seed')}"


def pytest_runtest_setup(item: pytest.Item) -> None:
    until = item.config.getoption("--until")
    if until is not None and time.time() >= until:
        pytest.skip("the time is over")


@pytest.fixture
def seed(pytestconfig: pytest.Config) -> int:
    """Of a long test that chance decides."""
    return int(pytestconfig.getoption("--seed"))


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """The tables of tests/faults: what failed, when, and what became of it."""
    pages = [str(page) for reports in terminalreporter.stats.values() for report in reports
             if getattr(report, "when", "") == "call" for name, page in report.user_properties if name == TABLE]
    for page in pages:
        terminalreporter.section(TABLE)
        terminalreporter.write_line(page)
    if pages and config.getoption("--fault-table") and not hasattr(config, "workerinput"):      # one of pytest-xdist's
        shown = "\n\n".join(f"```text\n{page}\n```" for page in sorted(pages))
        Path(config.getoption("--fault-table")).write_text(f"{FAULT_PAGE}\n{shown}\n")
