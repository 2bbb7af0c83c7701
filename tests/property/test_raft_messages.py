"""Messages of Raft as bytes (_core/raft/messages): what is written is read again, and what is spoilt is refused, or is
another message, never another entry."""
from __future__ import annotations

from random import Random

import pytest
from fuzz.fuzzing import mutate
from hypothesis import given
from hypothesis import strategies as st
from kit.exact import exact
from oracle.stored import crc32c

from fluxmq._core.errors import CorruptError
from fluxmq._core.raft.log import EntryLog
from fluxmq._core.raft.messages import (
    Entry,
    Message,
    MessageKind,
    decode_message,
    encode_members,
    encode_message,
    members_of,
)
from fluxmq._core.raft.records import ReplicaState, encode_entry, encode_replica, entry_of, replica_of

u32, u64 = st.integers(0, 2**32 - 1), st.integers(0, 2**64 - 1)
entries = st.lists(st.builds(Entry, u64, st.integers(0, 255), st.binary(max_size=300)), max_size=5)
messages = st.builds(
    Message, st.sampled_from(list(MessageKind)), u32, u64, sender=u32, index=u64, log_term=u64, commit=u64, hint=u64,
    hint_term=u64, refused=st.booleans(), forced=st.booleans()) | st.builds(
    Message, st.just(MessageKind.APPEND), u32, u64, sender=u32, index=u64, log_term=u64, commit=u64, entries=entries)


@given(message=messages)
def test_what_is_written_is_read_again(message: Message) -> None:
    raw = encode_message(message)
    again = decode_message(exact(raw))
    assert again == message and again.astuple() == message.astuple() and encode_message(again) == raw


@given(message=messages, seed=st.integers(0, 1 << 32))
def test_what_is_spoilt_is_refused_or_has_the_entries_that_were_sent(message: Message, seed: int) -> None:
    raw = bytearray(encode_message(message))
    mutate(Random(seed), raw, bytes(range(12)))
    try:
        found = decode_message(exact(bytes(raw)))
    except CorruptError:
        return
    assert found == message     # the place was spoilt by what stood there, or entries of the same bytes were exchanged


def head(start: bytes, count: int = 0) -> bytes:
    raw = start + bytes(58 - len(start)) + count.to_bytes(4, "big")
    return raw + crc32c(raw).to_bytes(4, "big")


@pytest.mark.parametrize(("spoilt", "why"), [
    (b"", "no message"),
    (head(b"\x01")[:65], "no message"),
    (head(b"\x00"), "no message"),
    (head(b"\x0b"), "no message"),
    (head(b"\x01\x04"), "no message"),
    (head(b"\x01")[:65] + b"x", "is not what was sent"),
    (head(b"\x02", 1), "has entries"),
    (head(b"\x01", 1), "cut off"),
    (head(b"\x01", 1) + bytes(9) + b"\x00\x00\x00\x01" + bytes(4), "cut off"),
    (head(b"\x01", 1) + bytes(9) + b"\x00\x00\x00\x01" + bytes(5), "not what was written"),
    (head(b"\x01") + b"x", "longer than it says")])
def test_what_is_no_message(spoilt: bytes, why: str) -> None:
    with pytest.raises(CorruptError, match=why):
        decode_message(exact(spoilt))


@given(voters=st.frozensets(u32, min_size=1, max_size=9), learners=st.frozensets(u32, max_size=9))
def test_members(voters: frozenset[int], learners: frozenset[int]) -> None:
    assert members_of(exact(encode_members(voters, learners - voters))) == (voters, learners - voters)


@pytest.mark.parametrize("spoilt", [
    b"", b"\x00", b"\x00\x00", b"\x00\x02" + bytes(4), b"\x00\x01" + bytes(5), b"\x00\x02" + bytes(8),
    b"\x00\x01" + bytes(8), b"\x00\x00" + bytes(4)])
def test_what_are_no_members(spoilt: bytes) -> None:
    with pytest.raises(CorruptError):
        members_of(exact(spoilt))


# ── what the journal has of a replica (_core/raft/records) ───────────────────────────────────────────────────

@given(index=st.integers(1, 2**64 - 1), term=st.integers(1, 2**64 - 1), kind=st.integers(0, 255),
       data=st.binary(max_size=300), seed=st.integers(0, 1 << 32))
def test_an_entry_of_the_journal(index: int, term: int, kind: int, data: bytes, seed: int) -> None:
    raw = encode_entry(index, Entry(term, kind, data))
    assert entry_of(exact(raw)) == (index, Entry(term, kind, data))
    spoilt = bytearray(raw)
    mutate(Random(seed), spoilt, bytes(range(12)))
    try:
        _, found = entry_of(exact(bytes(spoilt)))
    except CorruptError:
        return
    assert found == Entry(term, kind, data)         # the number in front of it was hit, which its batch protects


@given(numbers=st.tuples(u64, st.integers(1, 2**32 - 1), u32, u64, u32, u64, st.booleans()), base=u64, term=u64,
       voters=st.frozensets(u32, min_size=1, max_size=9), coming=st.booleans(), seed=st.integers(0, 1 << 32))
def test_a_state_of_the_journal(numbers: tuple[int, int, int, int, int, int, bool], base: int, term: int,
                                voters: frozenset[int], coming: bool, seed: int) -> None:
    incarnation, number, starts, now, vote, commit, damaged = numbers
    state = ReplicaState(incarnation, number, starts=starts, term=now, vote=vote, commit=commit, damaged=damaged)
    raw = encode_replica(state, EntryLog(voters, (), base, term), base, coming=coming, whole=not coming)
    again, log, comes, whole = replica_of(exact(raw))
    assert again.astuple() == numbers and (log.base, log.base_term, comes) == (base, term, coming) and whole != comes
    assert log.members_at(base) == (voters, frozenset())
    spoilt = bytearray(raw)
    mutate(Random(seed), spoilt, bytes(range(12)))
    try:
        again, log, comes, whole = replica_of(exact(bytes(spoilt)))
    except CorruptError:
        return
    assert again.number and encode_replica(again, log, log.base, coming=comes, whole=whole)
