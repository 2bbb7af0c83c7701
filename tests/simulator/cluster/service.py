"""What a member of the simulated etcd does for clients: requests and watches.

A request that needs the leader is refused by a member that knows none (clients ask for that: "hasleader"). The term in
an answer is that of the last entry that the member has applied: of a renewal, when the request came; else, when the
answer leaves.
"""
from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any

from simulator.cluster.api import (
    CompactRequest,
    Fault,
    GrantRequest,
    MemberRequest,
    RangeRequest,
    RenewRequest,
    Request,
    RevokeRequest,
    StatusRequest,
    TxnRequest,
    VotersRequest,
    Why,
    number_of,
)
from simulator.cluster.lessor import Renewed
from simulator.cluster.network import REFUSED, Side
from simulator.cluster.raft import CONF

from fluxmq.cluster.ports import Range, Renewal, TransactionResult

if TYPE_CHECKING:
    from simulator.cluster.member import Member

__all__ = ["Service"]

REQUEST_S = 7.0
READ_AGAIN_S = 0.5          # until a read that nobody has confirmed is asked for once more
APPLY_S = 1.0               # how long a renewal waits until everything is applied
FORWARD_AGAIN_S = 0.05
LEADERLESS_MAX = 3          # election timeouts without a leader, until watches are ended

Reply = Callable[[Any], object]


class Service:
    """Of one life of a member."""

    def __init__(self, member: Member) -> None:
        self.member = member
        self._driver = member.process.driver
        self._numbers = count(1)
        self._asked: list[Callable[[Fault | None], object]] = []        # reads for the next round
        self._round: list[Callable[[Fault | None], object]] = []
        self._context: Any = None                                       # of the round; None: there is none
        self._waits: list[tuple[int, Callable[[], object]]] = []        # for an index to be applied
        self._watches: dict[_Watcher, None] = {}
        self._leaderless = 0
        self._election_s = member.options.election_ms / 1000
        self._driver.later(self._election_s, self._look_for_leader)

    # ── requests ─────────────────────────────────────────────────────────────────────────────────────────

    def handle(self, request: Request, reply: Reply, limit_s: float) -> None:
        """reply(answer), at most once. limit_s: of the client."""
        member = self.member
        local = (isinstance(request, StatusRequest | VotersRequest)
                 or (isinstance(request, RangeRequest) and request.local))
        if member.removed:
            reply(Fault(Why.UNREACHABLE))
        elif not local and member.is_learner:
            reply(Fault(Why.LEARNER))
        elif not local and not member.lead:
            reply(Fault(Why.NO_LEADER))
        elif isinstance(request, TxnRequest):
            if member.cluster.no_space and any(change.value is not None for change in request.changes):
                reply(Fault(Why.NOSPACE))
            else:
                member.propose(("txn", tuple(request.compares), tuple(request.changes)),
                               partial(self._reply_txn, reply), limit_s)
        elif isinstance(request, RangeRequest):
            if request.local:
                self._reply_range(request, reply, None)
            else:
                self.read_index(partial(self._reply_range, request, reply))
        elif isinstance(request, RenewRequest):
            self._renew(request.lease, reply, limit_s)
        elif isinstance(request, StatusRequest):
            reply(member.status())
        elif isinstance(request, VotersRequest):
            reply({number_of(name): name.removeprefix("etcd-") for name in sorted(member.raft.voters)})
        else:
            member.propose(self._command(request), reply, limit_s)

    def _command(self, request: Request) -> tuple[Any, ...]:
        if isinstance(request, GrantRequest):
            return ("grant", request.lease, request.ttl_s)
        if isinstance(request, RevokeRequest):
            return ("revoke", request.lease)
        if isinstance(request, CompactRequest):
            return ("compact", request.revision)
        assert isinstance(request, MemberRequest)
        return (CONF, request.change, request.name)

    def _reply_txn(self, reply: Reply, result: TransactionResult | Fault) -> None:
        if isinstance(result, TransactionResult):
            # The header is filled behind the transaction: it may have been the first entry of a term.
            self._driver.soon(lambda: reply(result._replace(term=self.member.term)))
        else:
            reply(result)

    def _reply_range(self, request: RangeRequest, reply: Reply, fault: Fault | None) -> None:
        kv = self.member.kv
        reply(fault or Range(kv.revision, self.member.term, kv.range(request.key, prefix=request.prefix)))

    # ── linearizable reads ───────────────────────────────────────────────────────────────────────────────

    def read_index(self, done: Callable[[Fault | None], object]) -> None:
        """done(None) when this member has applied everything that was committed anywhere before the call."""
        self._asked.append(done)
        if self._context is None:
            self._begin_round()

    def _begin_round(self) -> None:
        self._round, self._asked = self._asked, []
        self._context = self.member.name, self.member.process.life, next(self._numbers)
        self._ask(self._context)
        self._driver.later(REQUEST_S, partial(self._fail_round, self._context, Why.LATE))

    def _ask(self, context: Any) -> None:
        if context == self._context:
            self.member.input(partial(self.member.raft.read, context))
            self._driver.later(READ_AGAIN_S, partial(self._ask, context))

    def confirmed(self, context: Any, index: int) -> None:
        """A majority was with the leader, which had committed up to this index."""
        if context != self._context:
            return
        self._context, round_ = None, self._round
        for done in round_:
            self._when_applied(index, partial(done, None))
        if self._asked:
            self._begin_round()

    def _fail_round(self, context: Any, why: Why) -> None:
        if context is None or context != self._context:
            return
        self._context, round_ = None, self._round
        for done in round_:
            done(Fault(why))
        if self._asked:
            self._begin_round()

    def leader_changed(self) -> None:
        """The member has learnt of a leader."""
        self._fail_round(self._context, Why.LEADER_CHANGED)

    def _when_applied(self, index: int, call: Callable[[], object]) -> None:
        if self.member.raft.applied >= index:
            call()
        else:
            self._waits.append((index, call))

    def applied(self) -> None:
        """The member has applied more."""
        applied = self.member.raft.applied
        if self._waits:
            waits, self._waits = self._waits, []
            for index, call in waits:
                if index <= applied:
                    call()
                else:
                    self._waits.append((index, call))
        self.notify()

    def notify(self) -> None:
        """Watches get what is new."""
        for watcher in list(self._watches):
            watcher.notify()

    # ── renewals ─────────────────────────────────────────────────────────────────────────────────────────

    def _renew(self, lease: int, reply: Reply, limit_s: float) -> None:
        member, term = self.member, self.member.term
        until = member.process.now() + min(limit_s, REQUEST_S)

        def renewed(result: int | Renewed) -> None:
            if result is Renewed.NOT_PRIMARY:
                self._forward(lease, renewed, until)
            elif result is Renewed.NOT_FOUND:
                reply(Renewal(0.0, term))
            else:
                assert isinstance(result, int)
                reply(Renewal(float(result), term))

        def ensured(leads: bool) -> None:
            if leads:
                self._renew_here(lease, renewed, lambda: reply(Fault(Why.LATE)))
            else:
                reply(Fault(Why.LEADER_CHANGED))

        if member.leads:
            member.ensure_leadership(ensured)
        else:
            self._forward(lease, renewed, until)

    def _renew_here(self, lease: int, done: Callable[[int | Renewed], object], late: Callable[[], object]) -> None:
        """As the leader, from memory, when everything that is committed is applied."""
        state = ["waits"]

        def applied() -> None:
            if state[0] == "waits":
                state[0] = "done"
                self.member.lessor.renew(lease, done)

        def expire() -> None:
            if state[0] == "waits":
                state[0] = "late"
                late()

        self._when_applied(self.member.committed, applied)
        if state[0] == "waits":
            self._driver.later(APPLY_S, expire)

    def _forward(self, lease: int, done: Callable[[int | Renewed], object], until: float) -> None:
        """Asks whom this member believes to lead, by HTTP, until there is an answer or no time."""
        member = self.member
        if member.process.now() >= until or member.removed:
            return
        leader = member.cluster.members.get(member.lead)
        if leader is None:
            self._driver.later(self._election_s, partial(self._forward, lease, done, until))
            return
        network, again = member.cluster.network, partial(self._forward_later, lease, done, until)

        def answer(result: int | Renewed | None) -> None:
            if result is None or result is Renewed.NOT_PRIMARY:
                network.send(leader.process, member.process, again)
            else:
                network.send(leader.process, member.process, partial(done, result))

        network.send(member.process, leader.process,
                     lambda: leader.service.renew_for_other(lease, answer),
                     refused=lambda: network.send(leader.process, member.process, again))

    def _forward_later(self, lease: int, done: Callable[[int | Renewed], object], until: float) -> None:
        self._driver.later(FORWARD_AGAIN_S, partial(self._forward, lease, done, until))

    def renew_for_other(self, lease: int, answer: Callable[[int | Renewed | None], object]) -> None:
        """Another member believes that this one leads."""
        if not self.member.removed:
            self._renew_here(lease, answer, lambda: answer(None))

    # ── watches ──────────────────────────────────────────────────────────────────────────────────────────

    def accept_watch(self) -> Side:
        """The member's end of a connection for one watch."""
        return _Watcher(self).side

    def open_watch(self, watcher: _Watcher) -> bool:
        """Whether it may be served."""
        if self.member.removed or self.member.is_learner or not self.member.lead:
            return False
        self._watches[watcher] = None
        return True

    def close_watch(self, watcher: _Watcher) -> None:
        """It has ended."""
        self._watches.pop(watcher, None)

    def stop(self) -> None:
        """The member is removed."""
        for watcher in list(self._watches):
            watcher.end(REFUSED)

    def _look_for_leader(self) -> None:
        self._driver.later(self._election_s, self._look_for_leader)
        self._leaderless = 0 if self.member.lead else self._leaderless + 1
        if self._leaderless >= LEADERLESS_MAX:
            for watcher in list(self._watches):
                watcher.end("no leader")


class _Watcher:
    """The member's end of one watch.

    Items to it: ("watch", prefix, first revision), ("progress",). From it: ("open",), ("events", events),
    ("revision", everything up to it was reported), ("progress",), ("compacted", first revision that is left).
    """

    def __init__(self, service: Service) -> None:
        self._service = service
        self._prefix = b""
        self._next = 0
        self._driver = service.member.process.driver
        self._sent_s = 0.0          # when the last events or revision were sent
        self.side = Side(service.member.process, self._on_item, self._on_break)

    def _on_item(self, item: object) -> None:
        assert isinstance(item, tuple)
        kv = self._service.member.kv
        if item[0] == "progress":
            self.side.put(("progress",))
            return
        _, self._prefix, self._next = item
        if not self._service.open_watch(self):
            self.side.close("no leader")
        elif self._next < kv.compacted:
            self.side.put(("compacted", kv.compacted))
            self._service.close_watch(self)
        else:
            self.side.put(("open",))
            self.notify()
            self._tell_revision()

    def notify(self) -> None:
        """Sends what is new."""
        kv = self._service.member.kv
        events = kv.events(self._prefix, self._next) if kv.revision >= self._next else []
        if events:
            self.side.put(("events", events))
            self._sent_s = self._driver.now()
        self._next = max(self._next, kv.revision + 1)

    def _tell_revision(self) -> None:
        period_s = self._service.member.options.progress_s
        if self.side.closed:
            return
        quiet_s = self._driver.now() - self._sent_s
        if self._sent_s and quiet_s >= period_s:
            self.side.put(("revision", self._service.member.kv.revision))
            self._sent_s = self._driver.now()
            quiet_s = 0.0
        self._sent_s = self._sent_s or self._driver.now()
        self._driver.later(max(period_s - quiet_s, 0.001), self._tell_revision)

    def _on_break(self, _why: str) -> None:
        self._service.close_watch(self)

    def end(self, why: str) -> None:
        """The member ends it."""
        self._service.close_watch(self)
        self.side.close(why)
