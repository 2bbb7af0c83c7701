"""SimLocalMember: fluxmq.cluster.ports.LocalMember of a node over the simulated etcd."""
from __future__ import annotations

from simulator.cluster.api import number_of
from simulator.cluster.store import SimStore

from fluxmq.cluster.ports import MemberLook

__all__ = ["SimLocalMember"]

LOOK_LIMIT_S = 0.25


class SimLocalMember:
    """store: of the node. name: of its member."""

    def __init__(self, store: SimStore, name: str) -> None:
        self._store = store
        self._member = store.etcd.members[name]

    @property
    def life(self) -> int:
        return self._member.process.life

    @property
    def running(self) -> bool:
        return self._member.process.alive

    @property
    def ended_with(self) -> int | None:
        """The member's log says it. Its object stays as it was until the next start."""
        return self._member.leader_changes

    async def look(self) -> MemberLook:
        status = await self._store.status(self._member.name, LOOK_LIMIT_S)
        return MemberLook(number_of(status.member), bool(status.leader), status.leader_changes)
