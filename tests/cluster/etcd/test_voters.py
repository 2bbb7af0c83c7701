"""Which changes of etcd's members are allowed, and what a data directory says of its member."""
from __future__ import annotations

from pathlib import Path

import pytest

from fluxmq.cluster.etcd.admin import Member
from fluxmq.cluster.etcd.joining import has_data, set_aside
from fluxmq.cluster.etcd.voters import (
    can_be_used,
    former_self,
    in_the_way,
    majority,
    only_here,
    quorum_of,
    why_not_pause,
    why_not_remove,
)


def members(voters: int, learners: int = 0) -> list[Member]:
    return [Member(number, f"n{number}", [f"http://10.0.0.{number}:2380"], [f"http://10.0.0.{number}:2379"],
                   number > voters) for number in range(1, voters + learners + 1)]


@pytest.mark.parametrize("voters, expected", [(1, 1), (2, 2), (3, 2), (4, 3), (5, 3)])
def test_a_majority(voters: int, expected: int) -> None:
    assert majority(voters) == expected


@pytest.mark.parametrize("voters, healthy, target, allowed", [
    (3, {1, 2, 3}, 3, True),
    (3, {1, 2}, 3, True),           # the one that is ill goes
    (3, {1, 2}, 1, False),          # two remain, and one of them is ill
    (2, {1, 2}, 2, True),
    (2, {1}, 2, True),
    (2, {1}, 1, False),
    (1, {1}, 1, False),
    (5, {1, 2, 3}, 5, True),
    (5, {1, 2, 3}, 1, False),
    (4, {1, 2, 3}, 4, True),
    (4, {1, 2, 3}, 1, True),        # two of three
])
def test_a_voter_goes_only_if_the_others_have_a_majority(voters: int, healthy: set[int], target: int,
                                                         allowed: bool) -> None:
    every = members(voters)
    why = why_not_remove(every, healthy, every[target - 1])
    assert (why == "") == allowed, why
    # The rule in other words: a majority of those that remain is well.
    rest = set(range(1, voters + 1)) - {target}
    assert allowed == (bool(rest) and len(rest & healthy) >= majority(len(rest)))


def test_the_refusal_says_who_is_ill() -> None:
    every = members(3)
    assert why_not_remove(every, {1, 2}, every[0]) == (
        "without n1 etcd has 2 members with a vote, of which 2 must be well, and only 1 is (n3 does not answer, or "
        "knows no leader): start these first")
    assert "only member" in why_not_remove(members(1), {1}, members(1)[0])


def test_a_learner_may_always_go() -> None:
    every = members(1, 1)
    assert why_not_remove(every, {1}, every[1]) == ""
    # It counts neither as one that remains nor as one that is well.
    assert why_not_remove(every, {1, 2}, every[0])


def test_a_node_without_data_has_been_who_has_its_name_or_its_address() -> None:
    every = [*members(3), Member(9, "", ["http://10.0.0.9:2380"], [], True)]
    assert [one.id for one in former_self(every, "n2", "http://10.0.0.9:2380")] == [2, 9]
    assert former_self(every, "n7", "http://10.0.0.7:2380") == []
    # Another node's member at this address is a mistake in a configuration: that node keeps its vote.
    assert former_self(every, "n7", "http://10.0.0.1:2380/") == []
    assert in_the_way(every, "n7", "http://10.0.0.1:2380/") == every[0]
    assert in_the_way(every, "n1", "http://10.0.0.1:2380") is None
    assert in_the_way(every, "n7", "http://10.0.0.9:2380") is None


@pytest.mark.parametrize("voters, healthy, allowed", [
    (3, {1, 2, 3}, True), (3, {1, 2}, False), (2, {1, 2}, False), (4, {1, 2, 3, 4}, True), (4, {1, 2, 3}, False),
    (5, {1, 2, 3, 4}, True), (5, {1, 2, 3}, False), (1, {1}, False)])
def test_a_voter_that_pauses_still_counts(voters: int, healthy: set[int], allowed: bool) -> None:
    every = members(voters, 1)
    why = why_not_pause(every, healthy, every[0])
    assert (why == "") == allowed, why
    assert allowed == (len(healthy - {1}) >= majority(voters))
    assert why_not_pause(every, healthy, every[-1]) == ""       # a learner


def test_what_etcd_needs() -> None:
    assert quorum_of(members(3, 1)) == "etcd has 3 members with a vote now, and needs 2 of them"
    assert quorum_of(members(1)) == "etcd has 1 member with a vote now, and needs 1 of it"


def test_addresses_that_lead_elsewhere_on_every_machine() -> None:
    assert only_here(["http://127.0.0.1:2380", "https://localhost:2380"]) and only_here(["http://[::1]:2380"])
    assert not only_here(["http://127.0.0.1:2380", "http://10.0.0.1:2380"]) and not only_here(["http://n1:2380"])


@pytest.mark.parametrize(("peers", "clients", "learner", "expected"), [
    ("10.0.0.2:2380", "10.0.0.2:2379", False, True),
    ("10.0.0.2:2380", "10.0.0.2:2379", True, False),
    ("10.0.0.2:2380", "127.0.0.1:2379", False, False),      # of its own machine
    ("127.0.0.1:2380", "127.0.0.1:2379", False, True),      # all are on one
    ("10.0.0.2:2380", "", False, False),                    # it has not started yet
])
def test_whose_members_a_node_may_use(peers: str, clients: str, learner: bool, expected: bool) -> None:
    urls = [f"http://{clients}"] if clients else []
    assert can_be_used(Member(2, "n2", [f"http://{peers}"], urls, learner)) is expected


def test_what_a_member_has_left_is_set_aside(tmp_path: Path) -> None:
    assert not has_data(tmp_path) and set_aside(tmp_path) == ""
    for number in (1, 2):
        wal = tmp_path / "member" / "wal"
        wal.mkdir(parents=True)
        assert not has_data(tmp_path)       # etcd would begin anew
        (wal / "0000000000000000-0000000000000000.wal").write_bytes(b"x")
        assert has_data(tmp_path)
        assert set_aside(tmp_path) == str(tmp_path / f"member.former-{number}")
        assert not has_data(tmp_path)
