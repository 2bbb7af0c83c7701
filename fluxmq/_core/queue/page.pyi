from typing_extensions import Buffer

from fluxmq._core.queue.log import Log, Needed

__all__ = ["PAGE_TYPE", "decode_page", "durable_end", "encode_page"]

PAGE_TYPE: str

def durable_end(log: Log) -> int: ...
def encode_page(log: Log, needs: Needed | None, start: int, stop: int, bytes_max: int) -> tuple[bytes, int, bool]: ...
def decode_page(page: Buffer) -> tuple[int, int, int, int, memoryview]: ...
