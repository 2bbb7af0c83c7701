from typing import Self, final

from fluxmq._core.hub.targets import PeerHop
from fluxmq._core.memory.commits import Line

__all__ = ["Channel"]

@final
class Channel(PeerHop):
    def __new__(cls, number: int, group: int, line: Line, limit: int) -> Self: ...
    @property
    def number(self) -> int: ...
    @property
    def group(self) -> int: ...
    @property
    def line(self) -> Line: ...
    @property
    def waiting_bytes(self) -> int: ...
