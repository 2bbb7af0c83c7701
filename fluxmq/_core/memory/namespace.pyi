import builtins
from typing import Any, Final, Self, final

__all__ = ["ENDED", "ROOT", "Namespace", "read_namespace"]

ENDED: bytes
ROOT: Final = b"/"

def read_namespace(record: bytes) -> tuple[bytes | None, bool]: ...

@final
class Namespace:
    topics: Any
    open: bool
    kept: bool
    connections: int
    sessions: int
    queues: int
    connections_max: int
    sessions_max: int
    queues_max: int
    bytes_max: int
    refused_connections: int
    refused_sessions: int
    refused_queues: int
    @property
    def name(self) -> builtins.bytes: ...
    @property
    def number(self) -> int: ...
    @property
    def bytes(self) -> int: ...
    @property
    def rate_max(self) -> int: ...
    @property
    def budget(self) -> int: ...
    @property
    def waiting(self) -> list[Any]: ...
    @property
    def refused_bytes(self) -> int: ...
    @property
    def held_back(self) -> int: ...
    def limit_rate(self, rate_max: int) -> None: ...
    def __new__(cls, name: builtins.bytes) -> Self: ...
    @property
    def text(self) -> str: ...
    @property
    def record(self) -> builtins.bytes: ...
