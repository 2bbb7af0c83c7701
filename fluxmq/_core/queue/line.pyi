from collections.abc import Callable
from typing import Any

from typing_extensions import disjoint_base

from fluxmq._core.queue.group import Group
from fluxmq._core.queue.log import Log

__all__ = ["LineObjects"]

@disjoint_base
class LineObjects:
    def __init__(self, on_produced: Callable[[Any, bytes], None]) -> None: ...
    @property
    def logs(self) -> dict[int, tuple[Any, Log]]: ...
    @property
    def groups(self) -> dict[int, Group]: ...
    def apply(self, records: bytes, cold: Callable[[int, int, bytes], None]) -> set[object]: ...
