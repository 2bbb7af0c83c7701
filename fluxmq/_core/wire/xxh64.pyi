from typing_extensions import Buffer

__all__ = ["xxh64"]

def xxh64(data: Buffer, seed: int = 0, *, pieces: tuple[int, ...] = ()) -> int: ...
