from typing import final

from fluxmq._core.raft.log import EntryLog
from fluxmq._core.raft.messages import Entry

__all__ = ["ReplicaState", "encode_entry", "encode_replica", "entry_of", "replica_of"]

@final
class ReplicaState:
    starts: int
    term: int
    vote: int
    commit: int
    damaged: bool
    @property
    def incarnation(self) -> int: ...
    @property
    def number(self) -> int: ...
    def __init__(self, incarnation: int, number: int, *, starts: int = 0, term: int = 0, vote: int = 0, commit: int = 0,
                 damaged: bool = False) -> None: ...
    def astuple(self) -> tuple[int, int, int, int, int, int, bool]: ...

def encode_replica(state: ReplicaState, log: EntryLog, applied: int, *, coming: bool = False,
                   whole: bool = False) -> bytes: ...
def replica_of(body: bytes) -> tuple[ReplicaState, EntryLog, bool, bool]: ...
def encode_entry(index: int, entry: Entry) -> bytes: ...
def entry_of(body: bytes) -> tuple[int, Entry]: ...
