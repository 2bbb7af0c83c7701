from typing_extensions import disjoint_base

from fluxmq._core.hub.hub import Hub
from fluxmq._core.memory.commits import Waiter

__all__ = ["Recorded"]

@disjoint_base
class Recorded(Waiter):
    end_why: str
    end_code: int
    @property
    def hub(self) -> Hub: ...
    @property
    def number(self) -> int: ...
    @property
    def protocol(self) -> int: ...
    def record_event(self, kind: int, data: bytes, flags: int = 0, reader: int = -1) -> None: ...
