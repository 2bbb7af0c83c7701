from typing import final

__all__ = ["Session"]

@final
class Session:
    @property
    def outstanding(self) -> int: ...
    @property
    def waiting_count(self) -> int: ...
    def abandon(self) -> list[object]: ...
