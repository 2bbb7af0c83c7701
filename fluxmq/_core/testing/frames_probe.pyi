from typing import Any

__all__ = ["decode", "encode"]

HEADER: tuple[str, ...]

def encode(header: dict[str, int], records: list[tuple[Any, ...]]) -> bytes: ...
def decode(data: bytes) -> tuple[dict[str, int], list[tuple[Any, ...]]]: ...
