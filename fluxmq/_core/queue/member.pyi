from collections.abc import Callable
from typing import final

from fluxmq._core.queue.claim import Member

__all__ = ["PyMember"]

@final
class PyMember(Member):
    room: int
    on_deliver: Callable[[int, int, int], object]
    on_withdraw: Callable[[int, int, int], object] | None
    def __init__(self, on_deliver: Callable[[int, int, int], object],
                 on_withdraw: Callable[[int, int, int], object] | None = None, room: int = 1,
                 lease_ms: int = 0) -> None: ...
