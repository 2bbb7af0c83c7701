from fluxmq._core.queue.claim import Member
from fluxmq._core.queue.group import Group

__all__ = ["PULL_EMPTY", "PULL_GIVEN", "PULL_LIMITED", "PULL_STALLED", "pull", "purge_ready", "ready_of"]

PULL_EMPTY: int
PULL_GIVEN: int
PULL_LIMITED: int
PULL_STALLED: int

def pull(group: Group, member: Member) -> int: ...
def ready_of(group: Group) -> int: ...
def purge_ready(group: Group) -> int: ...
