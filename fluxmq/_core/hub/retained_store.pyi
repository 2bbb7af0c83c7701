from collections.abc import Callable
from typing import Self, final

from fluxmq._core.memory.ledger import Ledger
from fluxmq._core.pubsub.retained import Retained
from fluxmq._core.pubsub.topics import Topics

__all__ = ["RetainedStore"]

_bytes = bytes

@final
class RetainedStore:
    count_max: int
    bytes_max: int
    changed: dict[tuple[_bytes, _bytes], None] | None
    on_changed: Callable[[], object] | None
    learned: dict[tuple[_bytes, _bytes], tuple[int, int] | None]
    lapsed: set[tuple[_bytes, _bytes]]
    cleared: dict[tuple[_bytes, _bytes], tuple[int, int]]
    clock: int
    life: int
    spread_bytes_max: int
    fetcher: Callable[[_bytes], Callable[..., bool]] | None
    def __new__(cls, ledger: Ledger) -> Self: ...
    @property
    def count(self) -> int: ...
    @property
    def bytes(self) -> int: ...
    @property
    def refused(self) -> int: ...
    def learn(
        self,
        topics: Topics,
        topic: _bytes,
        payload: _bytes,
        qos: int = 0,
        properties: _bytes = b"",
        expires_at: int = 0,
        absent: bool = False,
        version: int = 0,
        life: int = 0,
    ) -> None: ...
    def version_of(self, topics: Topics, topic: _bytes) -> tuple[int, int]: ...
    def set_version(
        self, topics: Topics, topic: _bytes, kept: Retained | None, version: int, life: int, absent: bool = False
    ) -> None: ...
    def fill(self, kept: Retained, topics: Topics, payload: _bytes, properties: _bytes) -> None: ...
    def empty(self, kept: Retained, topics: Topics) -> None: ...
    def put(self, topics: Topics, topic: _bytes, kept: Retained | None) -> None: ...
    def expire(self, topics: Topics) -> int: ...
