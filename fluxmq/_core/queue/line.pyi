from collections.abc import Callable
from typing import Any

from typing_extensions import disjoint_base

from fluxmq._core.queue.group import Group
from fluxmq._core.queue.log import Log

__all__ = ["Incoming", "LineObjects", "append_records"]

@disjoint_base
class LineObjects:
    def __init__(self, on_produced: Callable[[Any, bytes], None]) -> None: ...
    @property
    def logs(self) -> dict[int, tuple[Any, Log]]: ...
    @property
    def groups(self) -> dict[int, Group]: ...
    def apply(self, records: bytes, cold: Callable[[int, int, bytes], None]) -> set[object]: ...

@disjoint_base
class Incoming(LineObjects):
    shift_ms: int
    @property
    def held(self) -> dict[Group, list[tuple[int, int, int, int]]]: ...

def append_records(log: int, messages: bytes) -> bytes: ...
