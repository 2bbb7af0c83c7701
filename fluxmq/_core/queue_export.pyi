from collections.abc import Iterator
from typing import final

from fluxmq._core.queue_log import Log, Needed

__all__ = ["Export", "unflushed"]

@final
class Export:
    def __init__(self, log: Log, upto_batch: int, needed: Needed | None = None) -> None: ...
    @property
    def messages(self) -> int: ...
    @property
    def left(self) -> bool: ...
    def __iter__(self) -> Iterator[tuple[int, int, int, int, int, int, int, bytes]]: ...

def unflushed(log: Log, needed: Needed | None = None) -> bytes: ...
