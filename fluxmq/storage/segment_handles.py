"""A bounded number of open segment files: ten thousand queues are normal, ten thousand descriptors are not.

No cache of functools or cachetools fits: a file in use must stay open, and its owner is called before it closes.
"""
from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from fluxmq.storage.reading import close_quietly
from fluxmq.storage.segment_files import FileOps, SegmentFile

__all__ = ["Handles"]


class _Handle:
    __slots__ = ("fd", "file", "uses")

    def __init__(self, fd: int, file: SegmentFile) -> None:
        self.fd = fd
        self.file = file
        self.uses = 0


class Handles:
    """Descriptors by path, the least recently used closed first. Any thread may use it.

    before_close: called with a descriptor and its file when room is made, for what must happen before its errors can no
    longer be asked for.
    """

    def __init__(self, ops: FileOps, open_max: int, before_close: Callable[[int, SegmentFile], None]) -> None:
        self._ops = ops
        self._open_max = open_max
        self._before_close = before_close
        self._mutex = threading.Lock()
        self._open: OrderedDict[Path, _Handle] = OrderedDict()

    def __len__(self) -> int:
        return len(self._open)

    @contextmanager
    def use(self, file: SegmentFile, create: bool = False) -> Iterator[int]:
        """The file's descriptor, which stays open inside the block. Raises OSError."""
        with self._mutex:
            handle = self._open.get(file.path)
            if handle is None or handle.file is not file:
                handle = _Handle(self._ops.open(file.path, create), file)
                self._open[file.path] = handle
            handle.uses += 1
            self._open.move_to_end(file.path)
            idle = self._idle()
        try:
            for each in idle:
                self._close(each)
            yield handle.fd
        finally:
            with self._mutex:
                handle.uses -= 1
                gone = handle.uses == 0 and self._open.get(file.path) is not handle
            if gone:
                close_quietly(handle.fd, self._ops)

    def forget(self, file: SegmentFile) -> None:
        """The file is about to be removed: closes its descriptor after the last read."""
        with self._mutex:
            handle = self._open.get(file.path)
            if handle is None or handle.file is not file:
                return
            del self._open[file.path]
            idle = handle.uses == 0
        if idle:
            close_quietly(handle.fd, self._ops)

    def close(self) -> None:
        """Closes all of them; none may be in use."""
        with self._mutex:
            handles = list(self._open.values())
            self._open.clear()
        for handle in handles:
            close_quietly(handle.fd, self._ops)

    def _idle(self) -> list[_Handle]:
        """Takes out unused descriptors until the number is within its limit."""
        surplus = len(self._open) - self._open_max
        if surplus <= 0:
            return []
        idle = [handle for handle in self._open.values() if handle.uses == 0][:surplus]
        for handle in idle:
            del self._open[handle.file.path]
        return idle

    def _close(self, handle: _Handle) -> None:
        try:
            self._before_close(handle.fd, handle.file)
        finally:
            if handle.file.sealed:
                handle.file.index = None      # read again with its next reader
            close_quietly(handle.fd, self._ops)
