from typing import Any

from typing_extensions import disjoint_base

__all__ = ["TRANSITIONS", "Filter", "GroupOwner", "Member"]

TRANSITIONS: dict[tuple[str, str], str]

@disjoint_base
class GroupOwner: ...
@disjoint_base
class Filter: ...

@disjoint_base
class Member:
    lease_ms: int
    priority: int
    held_max: int
    client: str | None
    mark: int
    life: int
    @property
    def group(self) -> Any: ...
    @property
    def held(self) -> int: ...
    @property
    def limited(self) -> bool: ...
    @property
    def absent(self) -> bool: ...
