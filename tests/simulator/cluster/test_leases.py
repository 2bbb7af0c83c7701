"""Leases in the model of etcd: what holds on a healthy cluster, what a change of leader does, and what etcd is known to
do wrong (issues 12528 and 15247), with what its versions do about it (LeaseChecks)."""
from __future__ import annotations

import pytest
from simulator.cluster.member import EtcdOptions, LeaseChecks, Member
from simulator.cluster.world import SimCluster

from fluxmq.cluster.ports import Change, StoreError

KEY = b"/k"
TTL_S = 5
SEED_STEP = 1_000_000
# Until a lease that has ended is revoked: the lessor looks every half a second, then the log.
REVOKED_WITHIN_S = 0.7


class Keeper:
    """A client at a node that renews its lease, all the time. until: when the lease ends by what was answered. counts:
    renewals that a node would count, those with a read behind them, in the same term."""

    def __init__(self, cluster: SimCluster, node: str, endpoints: list[str], ttl_s: int = TTL_S) -> None:
        self.cluster = cluster
        self.node = cluster.nodes[node]
        self.store = cluster.store(node)
        self.store.endpoints = endpoints
        self.ttl_s = ttl_s
        self.lease = 0
        self.renews = True
        self.gone = False
        self.until = self.counts_until = 0.0
        self.node.driver.start(self._run())
        cluster.run_until(lambda: self.until)

    async def _run(self) -> None:
        self.lease = await self.store.grant(self.ttl_s)
        assert (await self.store.transact([], [Change(KEY, b"v", self.lease)])).done
        self.until = self.cluster.now
        while self.renews and not self.gone:
            began = self.cluster.now
            try:
                renewal = await self.store.renew(self.lease)
                self.gone = renewal.ttl_s == 0
                if not self.gone:
                    self.until = began + renewal.ttl_s
                    self.node.driver.start(self._count(self.until, renewal.term))
            except StoreError:
                pass
            await self.node.driver.sleep(0.1)

    async def _count(self, until: float, term: int) -> None:
        try:
            read = await self.store.read(KEY)
        except StoreError:
            return
        if read.items and read.term == term:
            self.counts_until = max(self.counts_until, until)

    def ended(self) -> bool:
        """Whether a majority has revoked it."""
        members = self.cluster.etcd.members.values()
        return 2 * sum(self.lease not in member.kv.leases for member in members) > len(members)


def healthy(seed: int, options: EtcdOptions | None = None) -> tuple[SimCluster, Member]:
    cluster = SimCluster(seed, options=options)
    cluster.run_until(lambda: cluster.etcd.has_quorum)
    leader = cluster.etcd.leader
    assert leader is not None
    return cluster, leader


def others_than(cluster: SimCluster, member: Member) -> list[str]:
    return [name for name in cluster.etcd.members if name != member.name]


def node_of(member: Member) -> str:
    return member.name.removeprefix("etcd-")


@pytest.mark.parametrize("at_leader", [True, False])
def test_a_lease_ends_neither_early_nor_late(seed: int, at_leader: bool) -> None:
    for number in range(8):
        cluster, leader = healthy(seed * SEED_STEP + number)
        endpoints = [leader.name] if at_leader else others_than(cluster, leader)[:1]
        keeper = Keeper(cluster, node_of(cluster.etcd.members[endpoints[0]]), endpoints)
        cluster.run_for(3 * TTL_S)
        assert not keeper.ended()
        keeper.renews = False
        cluster.run_until(keeper.ended, 2 * TTL_S)
        assert keeper.until <= cluster.now <= keeper.until + REVOKED_WITHIN_S
        cluster.run_for(0.5)
        assert keeper.counts_until == keeper.until
        assert all(KEY not in member.kv.items for member in cluster.etcd.members.values())


def test_a_lease_has_a_least_time_to_live(seed: int) -> None:
    cluster, leader = healthy(seed)
    keeper = Keeper(cluster, "n1", [leader.name], ttl_s=1)
    assert leader.kv.leases == {keeper.lease: 2}


@pytest.mark.parametrize("number", range(10))
@pytest.mark.parametrize("pre_vote", [True, False])
def test_a_change_of_leader_extends_a_lease(seed: int, number: int, pre_vote: bool) -> None:
    """By its whole time to live, and an election timeout."""
    cluster, leader = healthy(seed * SEED_STEP + number, EtcdOptions().with_raft(pre_vote=pre_vote))
    other = cluster.etcd.members[others_than(cluster, leader)[0]]
    keeper = Keeper(cluster, node_of(other), [other.name])
    keeper.renews = False
    cluster.run_for(TTL_S - 1.5)
    cluster.etcd.kill(leader.name)
    cluster.run_until(lambda: cluster.etcd.has_quorum)
    promoted = cluster.now
    cluster.run_until(keeper.ended, 3 * TTL_S)
    assert promoted + TTL_S + 1.0 - 0.1 <= cluster.now <= promoted + TTL_S + 1.0 + REVOKED_WITHIN_S + 0.1
    assert cluster.now > keeper.until + TTL_S / 2


def test_without_a_quorum_no_lease_ends(seed: int) -> None:
    cluster, leader = healthy(seed)
    keeper = Keeper(cluster, node_of(leader), [leader.name])
    for name in others_than(cluster, leader):
        cluster.etcd.kill(name)
    cluster.run_for(10 * TTL_S)
    assert not keeper.gone and all(keeper.lease in member.kv.leases for member in cluster.etcd.members.values())


@pytest.mark.parametrize("number", range(10))
def test_a_paused_leader_that_comes_back_ends_leases_at_once(seed: int, number: int) -> None:
    """In the same term, so without a new time to live: nobody else could be elected meanwhile."""
    cluster, leader = healthy(seed * SEED_STEP + number, EtcdOptions().with_raft(pre_vote=True))
    other, dead = others_than(cluster, leader)
    keeper = Keeper(cluster, node_of(cluster.etcd.members[other]), [other])
    cluster.etcd.kill(dead)
    leader.process.pause()
    cluster.run_for(2 * TTL_S)
    assert not keeper.ended() and keeper.until < cluster.now - TTL_S / 2
    resumed, term = cluster.now, leader.raft.term
    leader.process.resume()
    member = cluster.etcd.members[other]
    cluster.run_until(lambda: keeper.lease not in member.kv.leases)
    assert cluster.now <= resumed + REVOKED_WITHIN_S and leader.raft.term == term


# ── what etcd does wrong ─────────────────────────────────────────────────────────────────────────────────────


def confirmed_in_vain(seed: int, checks: LeaseChecks) -> tuple[float, float]:
    """The leader is paused and cut off with its node; there a client renews when it goes on. Returns by how much the
    lease outlived the last renewal, and the last one that counts."""
    cluster, leader = healthy(seed, EtcdOptions(lease_checks=checks))
    keeper = Keeper(cluster, node_of(leader), [leader.name])
    cluster.run_for(1.0)
    cluster.network.isolate(leader.name, node_of(leader))
    leader.process.pause()
    cluster.run_for(4.0)
    leader.process.resume()
    cluster.run_until(keeper.ended)
    return cluster.now - keeper.until, cluster.now - keeper.counts_until


@pytest.mark.parametrize("checks", LeaseChecks)
def test_a_replaced_leader_confirms_renewals_that_do_not_count(seed: int, checks: LeaseChecks) -> None:
    """Issue 12528. A check of the last tick does not help: the leader ticks again before it answers. A read in the same
    term, behind the renewal, does, and so does a leader that makes sure."""
    left = [confirmed_in_vain(seed * SEED_STEP + number, checks) for number in range(10)]
    assert all(counts >= 0.0 for _, counts in left)
    wrong = sum(renewed < 0.0 for renewed, _ in left)
    assert wrong == (0 if checks is LeaseChecks.ALWAYS else 10)


def revoked_by_former_leader(seed: int, checks: LeaseChecks, fault: str) -> bool:
    """The leader is paused, or its disk stands still, until leases have ended by its memory; another one is elected, at
    which a client renews. Whether the lease ends when the first one comes back."""
    cluster, leader = healthy(seed, EtcdOptions(lease_checks=checks))
    others = others_than(cluster, leader)
    keeper = Keeper(cluster, node_of(cluster.etcd.members[others[0]]), others)
    cluster.run_for(1.0)
    # Something is to be saved, so the disk is missed.
    keeper.node.driver.start(keeper.store.transact([], [Change(b"/other", b"v")]))
    if fault == "pause":
        leader.process.pause()
    else:
        leader.stall_disk()
    cluster.run_for(TTL_S + 4.0)
    assert not keeper.gone and keeper.counts_until > cluster.now + TTL_S / 2
    if fault == "pause":
        leader.process.resume()
    else:
        leader.unstall_disk()
    cluster.run_for(2.0)
    return keeper.gone


@pytest.mark.parametrize("fault", ["pause", "disk"])
@pytest.mark.parametrize("checks", LeaseChecks)
def test_a_replaced_leader_revokes_leases(seed: int, checks: LeaseChecks, fault: str) -> None:
    """Issue 15247: its revocations are passed on to the new leader. A check of the last tick helps when its disk stood
    still, and not always when it was paused."""
    wrong = sum(revoked_by_former_leader(seed * SEED_STEP + number, checks, fault) for number in range(10))
    if checks is LeaseChecks.ALWAYS or (checks, fault) == (LeaseChecks.INACTIVE, "disk"):
        assert wrong == 0
    else:
        assert wrong > 0
