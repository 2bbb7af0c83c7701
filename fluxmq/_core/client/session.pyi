from typing import final

__all__ = ["TRANSITIONS", "Session"]

TRANSITIONS: dict[tuple[str, str], str]

@final
class Session:
    @property
    def outstanding(self) -> int: ...
    @property
    def waiting_count(self) -> int: ...
    def abandon(self) -> list[object]: ...
