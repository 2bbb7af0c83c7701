"""Failures of what surrounds a test, and those of what it is about.

A test whose failure says nothing about the broker (a process that is not ready in time, a port that somebody took, a
time limit of the harness, a tool beside) may run once more (.ci/again). One that has seen something lost, repeated, in
another order or miscounted never may: a second run that goes well would hide it. So the kind of the exception decides.
Raise one of these only where nothing of what the broker promises can be the reason: whoever waits for messages that do
not come raises AssertionError.

`Failures` is the plugin of pytest that writes down what failed, for .ci/again.
"""
from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

__all__ = ["Failures", "NotReady", "OutOfTime", "PortTaken", "Surroundings", "ToolFailed", "kind_of"]

PROPERTY = "surroundings"
TIMEOUT = "Timeout (>"          # how pytest-timeout begins what it says


class Surroundings(AssertionError):
    """kind: in words."""

    kind = ""


class NotReady(Surroundings):
    """A process that runs does not say in time that it is ready."""

    kind = "start-up"


class PortTaken(Surroundings):
    """Somebody listens there already."""

    kind = "a port"


class OutOfTime(Surroundings):
    """Something that the harness does to processes took too long."""

    kind = "a time limit of the harness"


class ToolFailed(Surroundings):
    """A program beside the broker: etcd, RabbitMQ, npm."""

    kind = "a tool beside"


def kind_of(error: BaseException | None) -> str:
    """Of a failure of the surroundings; "": it is none. An assertion that was on its way when another error came
    counts: what it has seen stays seen."""
    found = ""
    if isinstance(error, Surroundings):
        found = error.kind
    elif isinstance(error, pytest.fail.Exception) and str(error).startswith(TIMEOUT):
        found = OutOfTime.kind
    seen: set[int] = set()
    before = error
    while before is not None and id(before) not in seen:
        seen.add(id(before))
        if isinstance(before, AssertionError) and not isinstance(before, Surroundings):
            return ""
        before = before.__cause__ or before.__context__
    return found


class Failures:
    """Writes a JSON list of what failed to a file: {"test", "file", "kind", "text"}. kind: "": it may not run again."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._found: list[dict[str, str]] = []

    @staticmethod
    def mark(report: pytest.TestReport, call: pytest.CallInfo[None]) -> None:
        """Where the exception is at hand: in a worker of pytest-xdist, if there are any."""
        if report.failed and call.excinfo is not None:
            report.user_properties.append((PROPERTY, kind_of(call.excinfo.value)))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            kinds = [str(value) for name, value in report.user_properties if name == PROPERTY]
            self._add(report, kinds[-1] if kinds else "")

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self._add(report, "")

    def _add(self, report: pytest.TestReport | pytest.CollectReport, kind: str) -> None:
        text = [report.longreprtext, *(f"── {title} ──\n{said}" for title, said in report.sections)]
        self._found.append({"test": report.nodeid, "file": report.nodeid.partition("::")[0], "kind": kind,
                            "text": "\n".join(text)})

    def pytest_sessionfinish(self, session: Any) -> None:
        self._path.write_text(json.dumps(self._found))
