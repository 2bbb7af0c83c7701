import os
from collections.abc import Iterable
from typing import final

JOURNAL_OK: int
JOURNAL_FULL: int
JOURNAL_FAILED: int
SHORTAGES: dict[int, str]

@final
class Journal:
    gathering: int
    durable: int
    event_fd: int
    file_bytes: int
    status: int
    buffered: bool
    recycling: bool
    def __init__(
        self,
        directory: str | bytes | os.PathLike[str],
        *,
        identity: int,
        first_batch: int = 1,
        first_file: int = 1,
        files: Iterable[tuple[int, int, int, int]] = (),
        mode: str = "fsync",
        interval: float = 1.0,
        file_bytes_max: int = ...,
        recycle_bytes_max: int = ...,
        file_ops: int = 0,
    ) -> None: ...
    def append(self, kind: int, body: bytes) -> int: ...
    def submit(self) -> int: ...
    def poll(self) -> int: ...
    def backlog(self) -> int: ...
    @property
    def status_text(self) -> str: ...
    @property
    def shortage(self) -> str: ...
    @property
    def batches_total(self) -> int: ...
    @property
    def bytes_total(self) -> int: ...
    @property
    def syncs(self) -> int: ...
    @property
    def sync_ns(self) -> int: ...
    def run(self) -> None: ...
    def rotate(self) -> int: ...
    def retire(self, upto_batch: int) -> int: ...
    def close(self) -> None: ...
