"""Options of pytest that tests of more than one folder read."""
from __future__ import annotations

import signal

import pytest
from hypothesis import settings

# No test asserts how long something took, and examples of hypothesis do not either.
settings.register_profile("fluxmq", parent=settings(), deadline=None)
settings.load_profile("fluxmq")


if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell lets its background jobs ignore it, and so would every program that a test starts and interrupts.
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--amqp-broker", choices=("fluxmq", "rabbitmq"), default="fluxmq",
                     help="what tests/amqp091 speaks to: fluxmq, or Debian's RabbitMQ, to see whether a test is sound")
    parser.addoption("--point", help="of tests/faults: this one only, as a failing test names it")
    parser.addoption("--fault-seed", type=int, default=1, help="of tests/faults: which points are chosen")
