"""Objects that a test leaves behind in this process, apart from those of other tests.

What an earlier test of the worker has made may live on for a while: its log records hold what they speak of until the
next test logs, a traceback its frames. It is no leak of the test that counts, and may go at any moment.
"""
from __future__ import annotations

import gc
from collections import Counter
from types import UnionType
from typing import Any

__all__ = ["Census"]


class Census:
    """Of the objects of some classes. Those that live when it is made are not counted: it holds them, so that none of
    them goes meanwhile and none that comes gets its address."""

    def __init__(self, kinds: type[Any] | UnionType) -> None:
        self._kinds = kinds
        self._before = self._living()
        self._known = {id(one) for one in self._before}

    def made(self) -> dict[str, int]:
        """How many have been made since and live: name of the class → number. Not the objects: a failing assertion
        would keep them for the next test."""
        return dict(Counter(type(one).__name__ for one in self._living() if id(one) not in self._known))

    def _living(self) -> list[Any]:
        gc.collect()
        return [one for one in gc.get_objects() if isinstance(one, self._kinds)]
