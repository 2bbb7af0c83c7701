"""Who may vote in etcd: what a change of members needs, so that no step costs the quorum. Decisions only.

A member is healthy if it answers, and knows a leader. A majority of the voters must be healthy after each step:

    remove a learner                always
    remove a voter                  a majority of the voters that remain is healthy, and one remains
    stop a voter that keeps its     a majority of all voters, this one too, is healthy without it
    vote
    add                             always as a learner, which has no vote; etcd takes one learner at a time
    promote                         etcd does it when the learner has the log: it is healthy then, and counts
"""
from __future__ import annotations

from collections.abc import Collection, Sequence
from urllib.parse import urlsplit

from fluxmq.cluster.etcd.admin import Member
from fluxmq.model.address import parse_address

__all__ = ["address_of", "at_address", "called", "can_be_used", "former_self", "in_the_way", "majority", "only_here",
           "quorum_of", "why_not_pause", "why_not_remove"]


def majority(voters: int) -> int:
    """How many of so many voters decide."""
    return voters // 2 + 1


def called(member: Member) -> str:
    """Its name, or its address while it has none."""
    return member.name or next(iter(member.peer_urls), f"{member.id:x}")


def why_not_remove(members: Sequence[Member], healthy: Collection[int], target: Member) -> str:
    """Why a member must not be removed now: a sentence; "" if it may be. healthy: numbers of members."""
    if target.learner:
        return ""
    rest = [member for member in members if not member.learner and member.id != target.id]
    if not rest:
        return f"{called(target)} is the only member of etcd with a vote: without it there is none left"
    well = [member for member in rest if member.id in healthy]
    if len(well) >= majority(len(rest)):
        return ""
    ill = ", ".join(called(member) for member in rest if member.id not in healthy)
    return (f"without {called(target)} etcd has {_members(len(rest))} with a vote, of which {majority(len(rest))} must "
            f"be well, and only {len(well)} {'is' if len(well) == 1 else 'are'} ({ill} "
            f"{'does' if len(rest) - len(well) == 1 else 'do'} not answer, or "
            f"{'knows' if len(rest) - len(well) == 1 else 'know'} no leader): start these first")


def why_not_pause(members: Sequence[Member], healthy: Collection[int], target: Member) -> str:
    """Why a member that keeps its vote must not stop now: a sentence; "" if it may. healthy: numbers of members."""
    voters = [member for member in members if not member.learner]
    if target not in voters:
        return ""
    well = [member for member in voters if member.id in healthy and member.id != target.id]
    if len(well) >= majority(len(voters)):
        return ""
    return (f"with its vote {called(target)} is one of {_members(len(voters))} of etcd, of which "
            f"{majority(len(voters))} must be well, and without it {len(well)} {'is' if len(well) == 1 else 'are'}")


def quorum_of(members: Sequence[Member]) -> str:
    """What etcd needs: how many voters there are, and how many of them must be well."""
    voters = sum(not member.learner for member in members)
    return f"etcd has {_members(voters)} with a vote now, and needs {majority(voters)} of {_them(voters)}"


def _them(count: int) -> str:
    return "it" if count == 1 else "them"


def _members(count: int) -> str:
    return f"{count} member{'' if count == 1 else 's'}"


def former_self(members: Sequence[Member], name: str, peer_url: str) -> list[Member]:
    """The members that a node without data has been: those with its name, and one at its address that has never
    started, so that it has no name yet."""
    return [member for member in members
            if member.name == name or (not member.name and _same(member.peer_urls, peer_url))]


def in_the_way(members: Sequence[Member], name: str, peer_url: str) -> Member | None:
    """A member of another node at the address of this one: a mistake in a configuration, or a node that is gone."""
    return next((member for member in at_address(members, peer_url) if member.name not in ("", name)), None)


def at_address(members: Sequence[Member], peer_url: str) -> list[Member]:
    """Those that are registered there."""
    return [member for member in members if _same(member.peer_urls, peer_url)]


def _same(urls: Sequence[str], url: str) -> bool:
    return url.rstrip("/") in {one.rstrip("/") for one in urls}


def address_of(url: str) -> str:
    """host:port of a URL. Raises ValueError if it has no port."""
    return str(parse_address(urlsplit(url).netloc))


def only_here(urls: Sequence[str]) -> bool:
    """Whether all of these URLs are addresses of loopback, which lead to another place on every machine."""
    return all(parse_address(urlsplit(url).netloc).is_loopback for url in urls)


def can_be_used(member: Member) -> bool:
    """Whether another node may be a client of a member: it has a vote, and the address that it has bound for clients
    leads to it from there. One that is at loopback for clients and not for members is on another machine."""
    return not member.learner and bool(member.client_urls) and (
        not only_here(member.client_urls) or only_here(member.peer_urls))
