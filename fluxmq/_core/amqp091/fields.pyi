from typing import Any, Literal, Self

from typing_extensions import disjoint_base

@disjoint_base
class Integer(int):
    kind: Literal["b", "B", "s", "u", "U", "I", "i", "l", "L", "t"]
    def __new__(cls, value: int, kind: str) -> Self: ...
    def __getnewargs__(self) -> tuple[int, str]: ...  # type: ignore[override]

class Timestamp(int):
    __slots__ = ()
    def __new__(cls, value: int) -> Self: ...

class Float32(float):
    __slots__ = ()

def decode_table(table: bytes) -> dict[str, Any]: ...
def encode_table(table: dict[str, Any]) -> bytes: ...
def plain(value: Any) -> Any: ...
