"""Members and maintenance of etcd, beyond what MetadataStore asks for.

A change of members may not be done twice; after an error with `sent` (errors.py) members() tells what came of it. What
concerns one member (status, defragment) goes to that endpoint alone, which need not be one of the store's.
"""
from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from fluxmq.cluster.etcd.additions import (
    MEMBER_ADD,
    MEMBER_LIST,
    MEMBER_PROMOTE,
    MEMBER_REMOVE,
    MEMBER_UPDATE,
    STATUS,
    MemberAddRequest,
    MemberListRequest,
    MemberPromoteRequest,
    MemberRemoveRequest,
    MemberUpdateRequest,
    Method,
    StatusRequest,
)
from fluxmq.cluster.etcd.endpoints import WITH_LEADER, Endpoint, Endpoints
from fluxmq.cluster.etcd.stubs import rpc

__all__ = ["Alarm", "EtcdAdmin", "Member", "Status"]

DEFRAGMENT_S = 60.0
ALARMS = {1: "NOSPACE", 2: "CORRUPT"}


class Member(NamedTuple):
    """A member of etcd's cluster. name: "" while it has not started for the first time. client_urls: none until then.
    learner: it gets the log but has no vote."""

    id: int
    name: str
    peer_urls: Sequence[str]
    client_urls: Sequence[str]
    learner: bool


class Status(NamedTuple):
    """What a member says of itself. leader: a member's number, 0 if it knows none. db_size, db_size_in_use: bytes of
    its file, of which the second is not free (0 before 3.4). errors: what it complains about, alarms too."""

    member: int
    leader: int
    revision: int
    db_size: int
    db_size_in_use: int
    learner: bool
    errors: Sequence[str]


class Alarm(NamedTuple):
    """An alarm that a member has raised. kind: "NOSPACE", "CORRUPT", or its number."""

    member: int
    kind: str


class EtcdAdmin:
    """Each request raises StoreError."""

    def __init__(self, endpoints: Endpoints) -> None:
        self._endpoints = endpoints

    async def members(self, *, local: bool = False) -> list[Member]:
        """The members, in the order of their numbers. local: as the member that is asked knows them, also without a
        leader; etcd 3.4 always answers so."""
        answer = await self._ask(MEMBER_LIST, MemberListRequest(linearizable=not local), repeat=True, local=local)
        return sorted(_member(member) for member in answer.members)

    async def member_add(self, peer_urls: Sequence[str], *, learner: bool) -> Member:
        """Adds a member, which is to be started then. Without learner the quorum may grow at once: a second member that
        is not started takes the quorum from the first."""
        answer = await self._ask(MEMBER_ADD, MemberAddRequest(peerURLs=peer_urls, isLearner=learner))
        return _member(answer.member)

    async def member_promote(self, member: int) -> None:
        """Gives a learner a vote. Refused (retry False) while it lags behind the leader's log."""
        await self._ask(MEMBER_PROMOTE, MemberPromoteRequest(ID=member))

    async def member_remove(self, member: int) -> None:
        """Removes a member for good: it never comes back under this number."""
        await self._ask(MEMBER_REMOVE, MemberRemoveRequest(ID=member))

    async def member_update(self, member: int, peer_urls: Sequence[str]) -> None:
        """Replaces the addresses at which the other members dial one."""
        await self._ask(MEMBER_UPDATE, MemberUpdateRequest(ID=member, peerURLs=peer_urls))

    async def status(self, endpoint: str, *, limit_s: float | None = None) -> Status:
        """What the member at host:port says of itself; also without a leader."""
        limit = self._endpoints.limit_s if limit_s is None else limit_s
        one = self._endpoints.get(endpoint)

        async def send(endpoint: Endpoint, limit_s: float) -> Any:
            return await STATUS.unary(endpoint.channel)(StatusRequest(), timeout=limit_s)

        said = await one.call(send, limit)
        return Status(said.header.member_id, said.leader, said.header.revision, said.dbSize, said.dbSizeInUse,
                      said.isLearner, tuple(said.errors))

    async def compact(self, revision: int, *, physical: bool = False) -> None:
        """Forgets the history before a revision. Raises Compacted when that was done already. physical: returns when
        every key is removed from the file of the member that was asked."""
        async def send(endpoint: Endpoint, limit_s: float) -> Any:
            return await endpoint.kv.Compact(rpc.CompactionRequest(revision=revision, physical=physical),
                                             timeout=limit_s, metadata=WITH_LEADER)

        await self._endpoints.ask(send, repeat=False)

    async def defragment(self, endpoint: str, *, limit_s: float = DEFRAGMENT_S) -> None:
        """Gives what is free in the file of the member at host:port back to its disk. It answers nobody meanwhile."""
        async def send(endpoint: Endpoint, limit_s: float) -> Any:
            return await endpoint.maintenance.Defragment(rpc.DefragmentRequest(), timeout=limit_s)

        await self._endpoints.get(endpoint).call(send, limit_s)

    async def alarms(self) -> list[Alarm]:
        """The alarms that stand, of all members."""
        answer = await self._alarm(rpc.AlarmRequest(action=rpc.AlarmRequest.GET))
        return [Alarm(alarm.memberID, ALARMS.get(alarm.alarm, str(alarm.alarm))) for alarm in answer.alarms]

    async def disarm(self, alarm: Alarm) -> None:
        """Takes an alarm back, after its cause was removed."""
        kinds = {kind: number for number, kind in ALARMS.items()}
        await self._alarm(rpc.AlarmRequest(action=rpc.AlarmRequest.DEACTIVATE, memberID=alarm.member,
                                           alarm=kinds.get(alarm.kind, alarm.kind)))

    async def _alarm(self, request: Any) -> Any:
        async def send(endpoint: Endpoint, limit_s: float) -> Any:
            return await endpoint.maintenance.Alarm(request, timeout=limit_s, metadata=WITH_LEADER)

        return (await self._endpoints.ask(send, repeat=True))[1]

    async def _ask(self, method: Method, request: Any, *, repeat: bool = False, local: bool = False) -> Any:
        async def send(endpoint: Endpoint, limit_s: float) -> Any:
            return await method.unary(endpoint.channel)(request, timeout=limit_s, metadata=() if local else WITH_LEADER)

        return (await self._endpoints.ask(send, repeat=repeat))[1]


def _member(member: Any) -> Member:
    return Member(member.ID, member.name, tuple(member.peerURLs), tuple(member.clientURLs), member.isLearner)
