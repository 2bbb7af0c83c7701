from types import TracebackType
from typing import Self, final

from fluxmq._core.memory.commits import Commits, Waiter

__all__ = ["Tickets"]

@final
class Tickets(Waiter):
    def __new__(cls, commits: Commits) -> Self: ...
    @property
    def why(self) -> str | None: ...
    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None: ...
