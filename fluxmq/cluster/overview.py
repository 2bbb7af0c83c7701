"""What operators see of a cluster: `engine.ports.overview.ClusterOverview` of a ClusterNode."""
from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from msgspec.structs import replace

from fluxmq.cluster.etcd.joining import NotNow
from fluxmq.cluster.etcd.own_member import OwnMember, Vote
from fluxmq.cluster.membership import DOUBT_S
from fluxmq.cluster.node import ClusterNode
from fluxmq.cluster.peers import Peer
from fluxmq.cluster.ports import CallFailed, StoreError
from fluxmq.cluster.queue_moves import NO_TIME
from fluxmq.cluster.settings import Phase
from fluxmq.engine.ports.overview import ClusterView, LeavingView, NodeView, PeerView
from fluxmq.engine.ports.queues import QueueRefused
from fluxmq.model.address import parse_address

__all__ = ["Overview"]

_State = Literal["joining", "serving", "without_quorum", "leaving", "fenced"]
_STATES: dict[Phase, _State] = {Phase.NEW: "joining", Phase.JOINING: "joining", Phase.SERVING: "serving",
                                Phase.LEAVING: "leaving", Phase.FENCED: "fenced", Phase.STOPPED: "leaving"}


class Overview:
    """A ClusterOverview. configured: addresses of nodes that the configuration names. own: this node's member of
    etcd; None: it has none."""

    def __init__(self, node: ClusterNode, configured: dict[str, str], own: OwnMember | None) -> None:
        self._node = node
        self._configured = configured
        self._own = own

    def snapshot(self) -> ClusterView:
        """See the port."""
        node, member = self._node, self._node.membership
        counts = node.holdings.owners.counts()
        state = _STATES[node.phase]
        if state == "serving" and member.why_late:
            state = "without_quorum"
        names = sorted({member.name, *member.nodes, *self._configured, *self._votes()})
        known = node.peers
        peers = tuple(_peer(peer) for _, peer in sorted(known.peers.items()))
        return ClusterView(
            env=node.cluster, nodes=tuple(self._of(name, counts.get(name, 0), state) for name in names),
            local=member.name, state=state, reason=self._reason(state), leader=member.leader,
            without_quorum_ms=int(member.silent_s * 1000) if state == "without_quorum" else 0,
            quorum_lost=node.quorum.lost, degraded=tuple(self._degraded()),
            revision=node.feed.revision, behind=max(0, member.newest - node.feed.revision),
            retained_pending=node.holdings.retained.waiting, retained_left_out=node.holdings.retained.payloads.left_out,
            share_in_doubt=known.doubts.waiting,
            share_repeated=known.doubts.expired,
            share_unwanted=known.broker.share_groups.unwanted, peers=peers)

    def _reason(self, state: str) -> str:
        node = self._node
        if state == "joining":
            if self._own is not None and self._own.joiner.waits:
                return f"joins etcd: {self._own.joiner.waits}"
            if node.waits or node.membership.waits:
                return node.waits or node.membership.waits
            waits = node.peers.unknown()
            if not waits and node.holdings.adoption.parked:
                return "waits until the sessions of nodes that have died are adopted"
            return f"waits for {', '.join(waits)}" if waits else "registers, and loads what the others have"
        return self._without_quorum() if state == "without_quorum" else node.why_fenced if state == "fenced" else ""

    def _degraded(self) -> Iterator[str]:
        if self._node.transport.problem:
            yield self._node.transport.problem
        if self._own is not None and self._own.lost:
            yield f"no vote in etcd: {self._own.lost}"

    def _votes(self) -> dict[str, Vote]:
        return {} if self._own is None else self._own.votes

    def _without_quorum(self) -> str:
        member, quorum = self._node.membership, self._node.quorum
        if member.in_doubt:
            return (f"for {member.silent_s:.1f} s, {member.why_late}. Too few members of etcd have confirmed in time "
                    f"that there is no leader ({quorum.reason}): this node serves nobody until they do, or its lease "
                    f"is renewed, and gives up after {DOUBT_S:g} s of that")
        if quorum.serves_on:
            return (f"for {member.silent_s:.1f} s, {quorum.reason}: this node serves on what it owns, and no "
                    f"session moves")
        return (f"for {member.silent_s:.1f} s, {member.why_late}. Too few members of etcd confirm that there is no "
                f"leader ({quorum.reason}): this node stops in {member.lease_left_s():.1f} s")

    def _of(self, name: str, sessions: int, state: _State) -> NodeView:
        view = self._node_of(name, sessions, state)
        vote = self._votes().get(name)
        return view if vote is None else replace(view, etcd=vote.kind, etcd_healthy=vote.healthy)

    def _node_of(self, name: str, sessions: int, state: _State) -> NodeView:
        member = self._node.membership
        known = member.nodes.get(name)
        address = known.registration.address if known is not None else self._configured.get(name, "")
        host, port = parse_address(address) if address else ("", 0)
        if name == member.name:
            registration = member.registration
            return NodeView(id=name, address=host, port=port, pid=registration.pid, epoch=member.epoch,
                            leader=member.is_leader, lease_left_ms=int(member.lease_left_s() * 1000),
                            state="serving" if state == "without_quorum" else state, version=registration.version,
                            sessions=sessions, adopted=self._node.holdings.kept.away(name, member.epoch))
        if known is None:
            return NodeView(id=name, address=host, port=port, state="down")
        return NodeView(id=name, address=host, port=port, pid=known.registration.pid, epoch=known.epoch,
                        leader=member.leader == name, state=self._node.holdings.adoption.state_of(name),
                        version=known.registration.version, sessions=sessions,
                        adopted=self._node.holdings.kept.away(name, known.epoch))

    async def add_voter(self, node: str) -> None:
        """See the port."""
        try:
            if node != self._node.settings.name:
                await self._node.votes.ask(node)
            elif self._own is None:
                raise NotNow(f"node {node} uses an etcd elsewhere (cluster.etcd.endpoints): it has no member")
            else:
                await self._own.add()
        except (NotNow, CallFailed) as error:
            raise QueueRefused("conflict", str(error)) from None

    async def remove_voter(self, node: str) -> None:
        """See the port."""
        if self._own is None:
            raise QueueRefused("conflict", "this node uses an etcd elsewhere (cluster.etcd.endpoints)",
                               "ask a node that has a member of etcd, or that etcd itself")
        try:
            await self._own.remove(node)
        except NotNow as error:
            raise QueueRefused("conflict", str(error)) from None
        except StoreError as error:
            raise QueueRefused("unavailable", str(error), "repeat it when etcd answers") from None

    async def leave(self, keep_vote: bool = False) -> None:
        """See the port."""
        node = self._node
        if node.phase is Phase.LEAVING:
            return
        if node.phase is not Phase.SERVING or node.holdings.leaver.on_leave is None:
            raise QueueRefused("conflict", f"this node is {node.phase.value}", "SIGTERM stops it")
        if not node.holdings.leaver.others:
            raise QueueRefused("unavailable", "there is no other node to which the sessions could go",
                               "start another node, or stop this one with SIGTERM: its sessions wait on its disk")
        if self._own is not None:
            try:
                why = await self._own.why_not_leave(keep_vote)
            except StoreError as error:
                raise QueueRefused("unavailable", str(error), "repeat it when etcd answers, or stop this node with "
                                   "SIGTERM: it keeps its vote then") from None
            if why:
                raise QueueRefused("conflict", why, "repeat it without --keep-vote, which gives the vote back" if (
                    keep_vote and not await self._own.why_not_leave(False)) else "SIGTERM stops this node even so; what"
                    " etcd has no quorum for waits then")
        if node.phase is Phase.SERVING:     # not another request meanwhile
            node.begin_leaving()
            node.holdings.leaver.on_leave(keep_vote)

    def leaving(self) -> LeavingView:
        """See the port."""
        leaver, moves = self._node.holdings.leaver, self._node.holdings.queue_moves
        view, stay = self.snapshot(), leaver.queues_left
        queue, to = moves.under_way or ("", "")
        leaver.told = leaver.ended
        return LeavingView(node=view.local, state=view.state, reason=view.reason, sessions=view.own.sessions,
                           queues=sum(why == NO_TIME for why in stay.values()), moved=moves.moved, queue=queue, to=to,
                           ended=leaver.ended, stay=stay if leaver.ended else {}, vote=leaver.vote)


def _peer(peer: Peer) -> PeerView:
    out, inbox = peer.outbox, peer.inbox
    return PeerView(
        node=peer.name, connected=out.attached and peer.incoming is not None, batches_sent=out.frames_sent,
        batches_received=inbox.frames, messages_sent=out.records,
        messages_received=inbox.records, bytes_sent=out.bytes_sent,
        bytes_received=inbox.bytes,
        credit_bytes=max(0, out.window_bytes - out.unacknowledged_bytes),
        unacknowledged_bytes=out.unacknowledged_bytes, errors=peer.errors, last_error=peer.last_error)
