from collections.abc import Iterable
from typing import Self, final

@final
class TopicChoice:
    def __new__(cls, filters: Iterable[str]) -> Self: ...

@final
class Recording: ...

@final
class Peer: ...
