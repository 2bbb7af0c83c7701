"""SimEtcd: a cluster of etcd for judging the rules of fencing, and of serving without quorum.

    etcd = SimEtcd(world, network, ["etcd-n1", "etcd-n2", "etcd-n3"], EtcdOptions())
    etcd.members["etcd-n1"].process.pause()
    etcd.kill("etcd-n2"); etcd.restart("etcd-n2")
    etcd.members["etcd-n3"].stall_disk()

Each member has a raft, a store and a lessor of its own (member.py); clients have SimStore (store.py). What every etcd
guarantees is asserted all the time: one leader per term, and the same entries at the same index everywhere.
"""
from __future__ import annotations

from collections.abc import Sequence

from simulator.cluster.machines import Machines
from simulator.cluster.member import EtcdOptions, Member
from simulator.cluster.network import Network
from simulator.cluster.raft import Entry, RaftDisk

__all__ = ["SimEtcd"]


class SimEtcd:
    """members: by the names of their processes; also those that were removed. no_space: the quota is used up, so
    nothing is put. leaders: of each term. log: what is committed."""

    def __init__(self, world: Machines, network: Network, voters: Sequence[str],
                 options: EtcdOptions | None = None) -> None:
        self.world = world
        self.network = network
        self.options = options or EtcdOptions()
        self.no_space = False
        self.leaders: dict[int, str] = {}
        self.log: list[Entry] = []
        self.members: dict[str, Member] = {}
        self._voters = frozenset(voters)
        for name in voters:
            self.add(name)

    def add(self, name: str, *, rate_ppm: int = 0) -> Member:
        """Starts a member, whose disk is empty. One that is not of the first voters takes no part before a
        MemberRequest for it is applied."""
        process = self.world.processes.get(name) or self.world.process(name, rate_ppm=rate_ppm)
        if not process.alive:
            process.start()
        member = self.members[name] = Member(self, process, RaftDisk(self._voters))
        return member

    def kill(self, name: str, *, silent: bool = False) -> None:
        """SIGKILL; silent: a loss of power. What was saved survives."""
        self.members[name].process.kill(silent=silent)

    def restart(self, name: str) -> None:
        """A member that was killed begins another life."""
        self.members[name].process.start()
        self.members[name].start()

    @property
    def leader(self) -> Member | None:
        """The member that leads in the highest term of those that run and believe to lead."""
        leading = [member for member in self.members.values() if member.process.alive and member.leads]
        return max(leading, key=lambda member: member.raft.term, default=None)

    @property
    def has_quorum(self) -> bool:
        """A leader is known to a majority of the voters, and it leads."""
        leader = self.leader
        if leader is None or not leader.process.runs:
            return False
        voters = leader.raft.voters
        return 2 * sum(self.members[name].process.runs and self.members[name].lead == leader.name
                       and self.members[name].raft.term == leader.raft.term for name in voters) > len(voters)

    # ── what etcd guarantees ─────────────────────────────────────────────────────────────────────────────

    def check_leader(self, term: int, name: str) -> None:
        """A member leads in a term."""
        assert self.leaders.setdefault(term, name) == name, f"{name} and {self.leaders[term]} lead in term {term}"

    def check_entry(self, index: int, entry: Entry) -> None:
        """A member applies an entry."""
        if index <= len(self.log):
            assert self.log[index - 1] == entry, f"different entries at index {index}"
        else:
            assert index == len(self.log) + 1
            self.log.append(entry)
