"""The brokers that a test uses. The fixture `brokers` of tests/conftest.py has one of these for each test."""
from __future__ import annotations

from pathlib import Path
from typing import Protocol, TypeVar

from kit.broker import Broker

__all__ = ["Brokers", "Process"]

STDERR_MAX = 20_000             # characters that are shown of each


class Process(Protocol):
    """A broker of any make that tests start, and that says when something went wrong with it."""

    def start(self) -> object: ...
    def stop(self) -> None: ...
    def check(self) -> None: ...
    def stderr(self, since: int = 0) -> str: ...
    def stderr_size(self) -> int: ...


P = TypeVar("P", bound=Process)
B = TypeVar("B", bound=Broker)


class Brokers:
    """directory: of the test; each broker that it starts gets a folder there."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._used: list[tuple[Process, int]] = []      # and where their stderr stood
        self._started: list[Process] = []

    def start(self, kind: type[B], settings: dict[str, object] | None = None) -> B:
        """A new broker of this kind."""
        return self.begin(kind(self.directory / f"broker{len(self._started)}", settings))

    def begin(self, broker: P) -> P:
        """Start a broker that ends with the test."""
        self._started.append(broker)
        self._used.append((broker, 0))
        broker.start()
        return broker

    def use(self, broker: P) -> P:
        """A broker that serves several tests; it is started again where one of them has ended it."""
        if isinstance(broker, Broker) and not broker.running:
            broker.start()
        self._used.append((broker, broker.stderr_size()))
        return broker

    def end(self) -> None:
        """Every broker that the test used must have had no accident, and those that run must be alive."""
        try:
            for broker, _ in self._used:
                broker.check()
        finally:
            for broker in self._started:
                broker.stop()

    def said(self) -> list[tuple[str, str]]:
        """(title, what it printed during the test) of each broker that printed anything."""
        return [(f"stderr of broker {number}", text[-STDERR_MAX:]) for number, (broker, since)
                in enumerate(self._used, 1) if (text := broker.stderr(since))]
