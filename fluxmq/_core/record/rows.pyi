from collections.abc import Iterable
from typing import Any, final

from typing_extensions import Buffer

__all__ = ["RecordRows", "whole_packets"]


@final
class RecordRows:
    def __init__(
        self,
        payload: str = "hash",
        *,
        topics: Iterable[str] = (),
        clients: Iterable[str] = (),
        protocols: Iterable[str] = (),
        sample: float = 1.0,
        batch_rows: int = 131072,
        batch_bytes: int = 67108864,
        go_on: bool = False,
    ) -> None: ...
    @property
    def rows(self) -> int: ...
    @property
    def seq(self) -> int: ...
    @property
    def full(self) -> bool: ...
    @property
    def filtered_rows(self) -> int: ...
    @property
    def lost_entries(self) -> int: ...
    @property
    def lost_bytes(self) -> int: ...
    @property
    def undecoded_bytes(self) -> int: ...
    @property
    def invalid(self) -> list[tuple[int, str, int, int, int, int]]: ...
    @property
    def connections(self) -> int: ...
    def feed(self, entries: Buffer, start: int = 0) -> int: ...
    def take(self) -> tuple[int, dict[str, Any]]: ...

def whole_packets(data: Buffer, amqp091: bool = False) -> int: ...
