from typing import Self, final

from typing_extensions import disjoint_base

from fluxmq._core.journal import Journal
from fluxmq._core.queue import Queue
from fluxmq._core.session import Session

__all__ = ["Ledger", "Waiter"]

@disjoint_base
class Waiter: ...

@final
class Ledger:
    message_last: int
    records: int
    full: bool
    batch_bytes_max: int
    def __new__(cls, journal: Journal | None) -> Self: ...
    @property
    def journal(self) -> Journal | None: ...
    @property
    def held_count(self) -> int: ...
    @property
    def dead(self) -> list[int]: ...
    @property
    def losing(self) -> list[Session]: ...
    def write(self, kind: int, body: bytes) -> None: ...
    def take_dead(self) -> list[int]: ...
    def take_stirred(self) -> list[Queue]: ...
