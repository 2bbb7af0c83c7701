from typing import Self, final

from fluxmq._core.disk.journal import Journal
from fluxmq._core.net.connection import Connection

__all__ = ["DiskPressure"]

@final
class DiskPressure:
    backlog_max: int
    ahead_max: int
    checkpoint_mark: int
    def __new__(cls, journal: Journal | None) -> Self: ...
    @property
    def throttled(self) -> list[Connection]: ...
