"""Walk: through which files of fluxmq something goes, as somebody does who steps through it with a debugger.

    with Walk(node_of) as walk:
        …
    print(walk.table({"one", "two"}))

An entry is a call of a Python function that lies in another file of fluxmq/ than the function that calls it, counted by
a `call` event of sys.setprofile. Who calls is the nearest Python frame below, since functions of Cython have none;
where it is not one of fluxmq/, it is the loop. A coroutine or generator has an event when it begins, and one each time
that it goes on, as has each one that awaits it: these count, too, and are shown beside. What is called within one file,
and functions of Cython, count nothing.
"""
from __future__ import annotations

import dis
import inspect
import sys
from collections import Counter
from collections.abc import Callable, Collection, Iterable
from functools import cache
from pathlib import Path
from types import CodeType, FrameType, TracebackType
from typing import Any, NamedTuple, Self

import fluxmq

__all__ = ["Entry", "Walk"]

ROOT = f"{Path(fluxmq.__file__).parent}/"
LOOP = "the loop"
RESUMES = inspect.CO_COROUTINE | inspect.CO_GENERATOR | inspect.CO_ASYNC_GENERATOR


class Entry(NamedTuple):
    """One call into another file. node: "" outside of all nodes. caller, called: `cluster/feed.py Feed.load`. goes_on:
    it has begun before."""

    node: str
    caller: str
    called: str
    goes_on: bool


class Walk:
    """node_of: the node to which a frame that is not of fluxmq/ belongs; "": the frames below it say."""

    def __init__(self, node_of: Callable[[FrameType], str]) -> None:
        self.entries: Counter[Entry] = Counter()
        self._node_of = node_of
        self._names: dict[CodeType, str] = {}

    def __enter__(self) -> Self:
        sys.setprofile(self._on_event)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 traceback: TracebackType | None) -> None:
        sys.setprofile(None)

    def _on_event(self, frame: FrameType, event: str, _: Any) -> None:
        if event != "call" or not (called := self._name(frame)):
            return
        caller = LOOP if frame.f_back is None else self._name(frame.f_back) or LOOP
        if _file(caller) != _file(called):
            goes_on = frame.f_code.co_flags & RESUMES != 0 and frame.f_lasti > _first(frame.f_code)
            self.entries[Entry(self._node(frame), caller, called, goes_on)] += 1

    def _name(self, frame: FrameType) -> str:
        """`file function` below fluxmq/; "": elsewhere."""
        code = frame.f_code
        if code not in self._names:
            path = code.co_filename
            self._names[code] = f"{path.removeprefix(ROOT)} {code.co_qualname}" if path.startswith(ROOT) else ""
        return self._names[code]

    def _node(self, frame: FrameType | None) -> str:
        while frame is not None:
            if not self._name(frame) and (node := self._node_of(frame)):
                return node
            frame = frame.f_back
        return ""

    def of(self, nodes: Collection[str] | None = None) -> Counter[Entry]:
        """The entries of these nodes; None: of all."""
        return Counter({entry: count for entry, count in self.entries.items() if nodes is None or entry.node in nodes})

    def files(self, nodes: Collection[str] | None = None) -> set[str]:
        """That were entered."""
        return {_file(entry.called) for entry in self.of(nodes)}

    def table(self, nodes: Collection[str] | None = None, rows: int = 40) -> Iterable[str]:
        """Lines: the number of files and entries, then the most frequent calls."""
        entries = self.of(nodes)
        again = sum(count for entry, count in entries.items() if entry.goes_on)
        yield f"{len(self.files(nodes))} files, {entries.total()} entries, of which {again} go on"
        calls = Counter[tuple[str, str]]()
        for entry, count in entries.items():
            calls[entry.caller, entry.called] += count
        for (caller, called), count in calls.most_common(rows):
            yield f"{count:5}  {caller} → {called}"


@cache
def _first(code: CodeType) -> int:
    """Where a coroutine or generator begins."""
    return next(step.offset for step in dis.get_instructions(code) if step.opname == "RESUME")


def _file(name: str) -> str:
    return name.split(" ", 1)[0] if name != LOOP else ""
