"""Options of pytest that tests of more than one folder read."""
from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest
from faults.table import TABLE
from hypothesis import settings

# No test asserts how long something took, and examples of hypothesis do not either.
settings.register_profile("fluxmq", parent=settings(), deadline=None)
settings.load_profile("fluxmq")


if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell lets its background jobs ignore it, and so would every program that a test starts and interrupts.
    signal.signal(signal.SIGINT, signal.default_int_handler)


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
    parser.addoption("--fault-seed", type=int, default=1, help="of tests/faults: which points are chosen")


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
