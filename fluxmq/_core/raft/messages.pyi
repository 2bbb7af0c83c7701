from collections.abc import Collection
from enum import IntEnum
from typing import Self, final

__all__ = ["ENTRY_MEMBERS", "ENTRY_NOTHING", "ENTRY_RECORDS", "KINDS", "Entry", "Message", "MessageKind",
           "decode_message", "encode_members", "encode_message", "members_of"]

ENTRY_NOTHING: int
ENTRY_RECORDS: int
ENTRY_MEMBERS: int
KINDS: tuple[str, ...]

class MessageKind(IntEnum):
    APPEND = 1
    APPENDED = 2
    HEARTBEAT = 3
    ALIVE = 4
    VOTE = 5
    VOTED = 6
    PRE_VOTE = 7
    PRE_VOTED = 8
    CAMPAIGN = 9
    COPY = 10

@final
class Entry:
    def __new__(cls, term: int, kind: int, data: bytes) -> Self: ...
    @property
    def term(self) -> int: ...
    @property
    def kind(self) -> int: ...
    @property
    def data(self) -> bytes: ...
    def astuple(self) -> tuple[int, int, bytes]: ...
    def __hash__(self) -> int: ...

@final
class Message:
    kind: int
    sender: int
    to: int
    term: int
    index: int
    log_term: int
    commit: int
    hint: int
    hint_term: int
    refused: bool
    forced: bool
    entries: list[Entry]
    def __init__(self, kind: int, to: int, term: int = 0, *, sender: int = 0, index: int = 0, log_term: int = 0,
                 commit: int = 0, hint: int = 0, hint_term: int = 0, refused: bool = False, forced: bool = False,
                 entries: list[Entry] | None = None) -> None: ...
    def astuple(self) -> tuple[object, ...]: ...

def encode_message(message: Message) -> bytes: ...
def decode_message(data: bytes) -> Message: ...
def encode_members(voters: Collection[int], learners: Collection[int]) -> bytes: ...
def members_of(data: bytes) -> tuple[frozenset[int], frozenset[int]]: ...
