"""Messages and entries of Raft's state machine (_core/raft) in the words of kit/etcd_raft.go, and back."""
from __future__ import annotations

from functools import lru_cache

from fluxmq._core.raft.messages import (
    ENTRY_MEMBERS,
    ENTRY_NOTHING,
    ENTRY_RECORDS,
    Entry,
    Message,
    MessageKind,
    encode_members,
    members_of,
)

__all__ = ["NAMES", "entries_text", "entry_of", "entry_text", "members_text", "message_of", "message_text"]

NO_TERM = 1 << 63           # hint of etcd/raft's refusals, which say an index only
KINDS = {ENTRY_NOTHING: "n", ENTRY_RECORDS: "r", ENTRY_MEMBERS: "m"}
NUMBERS = {text: kind for kind, text in KINDS.items()}
NAMES = {int(kind): kind.name for kind in MessageKind}


def members_text(voters: frozenset[int], learners: frozenset[int]) -> str:
    return "/".join("+".join(map(str, sorted(some))) for some in (voters, learners))


@lru_cache(1 << 14)
def entry_text(entry: Entry) -> str:
    term, kind, data = entry.astuple()
    text = members_text(*members_of(data)) if kind == ENTRY_MEMBERS else data.decode()
    return f"{term}:{KINDS[kind]}:{text}"


@lru_cache(1 << 14)
def entry_of(text: str) -> Entry:
    term, kind, data = text.split(":")
    raw = data.encode()
    if kind == "m":
        raw = encode_members(*(frozenset(map(int, filter(None, part.split("+")))) for part in data.split("/")))
    return Entry(int(term), NUMBERS[kind], raw)


def entries_text(entries: list[Entry]) -> str:
    return ",".join(map(entry_text, entries)) or "-"


def message_text(m: Message) -> str:
    return (f"{NAMES[m.kind]} {m.sender} {m.to} {m.term} {m.index} {m.log_term} {m.commit} {m.hint} {m.refused:d} "
            f"{m.forced:d} {entries_text(m.entries)}")


def message_of(text: str) -> Message:
    kind, sender, to, term, index, log_term, commit, hint, refused, forced, entries = text.split(" ")
    return Message(MessageKind[kind], int(to), int(term), sender=int(sender), index=int(index), log_term=int(log_term),
                   commit=int(commit), hint=int(hint), hint_term=NO_TERM if refused == "1" else 0,
                   refused=refused == "1", forced=forced == "1",
                   entries=[] if entries == "-" else [entry_of(word) for word in entries.split(",")])
