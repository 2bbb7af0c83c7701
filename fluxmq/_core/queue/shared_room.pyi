from typing import final

from typing_extensions import disjoint_base

__all__ = ["SharedRoom", "Taker"]

@disjoint_base
class Taker:
    def wake(self) -> None: ...

@final
class SharedRoom:
    def changed(self) -> None: ...
