"""A replica gets a copy of its group's queues from the leader: it lacks entries that no log has any more, or what it
has on its disk is not whole.

    replica                                          leader
    COPY has come, or its copies are not whole
    call "replica-copy" ───────────────────────────► one instant: which entry, members, each queue and its groups
      begin_install(): a start knows what happens ◄─ the head
      its copies are dropped, what comes is applied ◄─ each queue, and its messages as they are read
    a checkpoint has the copies
      installed(): Raft goes on behind that entry

The leader serves meanwhile: a message that is settled while it reads is not among what it sends, and the entry that
settled it comes behind the copy. Entries behind the copy stay in its log until it has been sent.
"""
from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Annotated

import msgspec

from fluxmq._core.errors import FluxError
from fluxmq._core.queue.line import append_records
from fluxmq._core.queue.log import Log
from fluxmq.cluster.ports import CallFailed, Transport
from fluxmq.cluster.ports import Log as Notes
from fluxmq.cluster.raft.group import ReplicatedGroup
from fluxmq.cluster.raft.groups import RaftGroups
from fluxmq.engine.ports.driver import Driver
from fluxmq.engine.queues.encoding import messages_of, namespaces_of
from fluxmq.engine.queues.recovery.copies import Copies, source_of
from fluxmq.engine.stored import WRONG_SHAPE
from fluxmq.model.malformed import MALFORMED

__all__ = ["REPLICA_COPY", "Copying"]

REPLICA_COPY = "replica-copy"  # method of Transport.call
COPY_S = 3600.0  # of a whole group
AGAIN_S = 0.5  # between two attempts
PART_BYTES = 256 << 10
U32 = Annotated[int, msgspec.Meta(ge=0, lt=1 << 32)]
U64 = Annotated[int, msgspec.Meta(ge=0)]


class CopyCall(msgspec.Struct, frozen=True, kw_only=True):
    """number: of the replica that asks."""

    group: U64
    incarnation: U64
    number: U32


class Head(msgspec.Struct, frozen=True, kw_only=True):
    """The copy is as of this entry. line_ms: the line's clock then."""

    index: U64
    term: U64
    voters: list[U32]
    learners: list[U32]
    line_ms: int


_call_of = msgspec.msgpack.Decoder(CopyCall).decode
_head_of = msgspec.msgpack.Decoder(Head).decode


class Copying:
    """Machine. One per life of a node. address_of: of a node's transport. checkpoint: begins when it is called, and has
    everything that was there then when it is over. log: as Broker's on_log."""

    def __init__(self, groups: RaftGroups, copies: Copies, transport: Transport, driver: Driver, *,
                 address_of: Callable[[str], str], checkpoint: Callable[[], Awaitable[None]], log: Notes) -> None:
        self._groups = groups
        self._copies = copies
        self._transport = transport
        self._driver = driver
        self._address_of = address_of
        self._checkpoint = checkpoint
        self._log = log
        self._coming: set[int] = set()  # groups of which a copy is on its way
        groups.on_lacking = self.begin

    # ------------------------------------------------------------------ the leader

    async def give(self, body: bytes) -> AsyncIterator[bytes]:
        """Answers the call "replica-copy": a Head, then records in their order. Raises CallFailed."""
        try:
            call = _call_of(body)
        except MALFORMED as error:
            raise CallFailed(f"not a request for a copy of a group: {error}", reached=False) from None
        group = self._groups.groups.get(call.group)
        if group is None or not group.leads or group.replica.state.incarnation != call.incarnation:
            raise CallFailed(f"group {call.group} of incarnation {call.incarnation} is not led here", reached=False)
        head, queues = self._instant(group)
        group.pins.append(head.index)
        try:
            yield msgspec.msgpack.encode(head)
            yield namespaces_of(group.copies.line)
            for opening, logs, closing in queues:
                yield opening
                for log, end in logs:
                    async for part in self._messages(group, log, end):
                        yield part
                yield closing
        except FluxError as error:
            raise error if isinstance(error, CallFailed) else CallFailed(str(error)) from error
        finally:
            group.pins.remove(head.index)

    def _instant(self, group: ReplicatedGroup) -> tuple[Head, list[tuple[bytes, list[tuple[Log, int]], bytes]]]:
        index, log = group.replica.applied, group.raft.log
        voters, learners = log.members_at(index)
        queues = []
        for state in group.copies.queues.values():
            opening, closing = self._copies.records(state)
            queues.append((opening, [(each, each.next) for each in state.logs], closing))
        return Head(index=index, term=log.term_at(index), voters=sorted(voters), learners=sorted(learners),
                    line_ms=group.copies.time), queues

    async def _messages(self, group: ReplicatedGroup, log: Log, end: int) -> AsyncIterator[bytes]:
        """APPEND records of what is still there, as far as it was committed in the instant."""
        position, disk = log.first, self._copies.manager.disk
        while (position := max(position, log.first)) < end:
            if not group.leads:
                raise CallFailed("another node leads the group now")
            source = source_of(log)
            part, behind, missing = messages_of(source, position, PART_BYTES, end)
            if missing and not part:
                behind, data = await disk.read_part(source, position, PART_BYTES)
                part = append_records(log.number, data)
            position = max(behind, position + 1)
            if part:
                yield part

    # ------------------------------------------------------------------ who lacks it

    def begin(self, number: int) -> None:
        """A replica here needs a copy, and knows a leader."""
        if number not in self._coming:
            self._coming.add(number)
            self._driver.start(self._fetch(number))

    async def _fetch(self, number: int) -> None:
        group, told = self._groups.groups[number], ""
        try:
            while self._groups.runs(group) and group.wants_copy:
                node = self._groups.node_of(number, group.raft.leader)
                why = await self._try(node, number, group) if node else ""
                if why and why != told:
                    told = why
                    self._log("warning", why, "a replica could not get a copy of its group; trying again",
                              {"group": number, "why": why})
                await self._driver.sleep(AGAIN_S)
        finally:
            self._coming.discard(number)

    async def _try(self, node: str, number: int, group: ReplicatedGroup) -> str:
        """Returns why there is none; "": it has come, or is not needed any more."""
        try:
            await self._copy_from(node, number, group)
        except (FluxError, *WRONG_SHAPE) as error:
            if group.replica.coming is not None:
                group.cancel_install()
            return str(error)
        return ""

    async def _copy_from(self, node: str, number: int, group: ReplicatedGroup) -> None:
        call = CopyCall(group=number, incarnation=group.replica.state.incarnation, number=group.raft.own)
        parts = self._transport.call(self._address_of(node), REPLICA_COPY, msgspec.msgpack.encode(call), COPY_S)
        head: Head | None = None
        async for part in parts:
            if not self._groups.runs(group):
                return                      # it has stopped, or this life of the node has ended
            if head is None:
                head = _head_of(part)
                if head.index < max(group.raft.commit, group.replica.applied):
                    raise CallFailed(f"node {node} has led, and has less than this replica")
                if head.index == group.replica.applied and not group.replica.lacks_copy:
                    group.is_behind = False
                    return
                group.begin_install(head.index, head.term, head.voters, head.learners)
                group.copies.clear()
            else:
                group.copies.apply(part)
        if head is None:
            raise CallFailed(f"node {node} has sent nothing")
        group.copies.apply(b"", head.line_ms, head.index)
        await self._checkpoint()
        if self._groups.runs(group):
            group.installed()
            self._groups.note_due(number)
            self._log("info", "", "a replica has got a copy of its group", {"group": number, "node": node,
                                                                           "entry": head.index})
