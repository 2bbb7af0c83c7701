from collections.abc import Iterable

from fluxmq._core.queue import Queue
from fluxmq._core.queue_group import Group

__all__ = ["group_numbers", "queue_counts", "queue_numbers"]

def group_numbers(group: Group) -> tuple[int, int]: ...
def queue_numbers(queue: Queue, groups: Iterable[Group]) -> tuple[int, int, int, int, int]: ...
def queue_counts(queue: Queue) -> dict[str, int]: ...
