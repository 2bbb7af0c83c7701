"""Queues of the cluster: those of other nodes, to which this one relays, and this node's for consumers of others.

    this node's consumer ─► attach() ─► ATTACH ─► the owner: Hosts.attach ─► PeerMember in a group ─► RESULT ─► then()
    a question           ─► ask()    ─► CALL   ─► the owner: Hosts.call   ─► RESULT ─► then()

Both go behind what the owner was sent before, so a channel's publish and its basic.get come in their order. An answer
leaves when what this node has recorded is on its disk. Messages and settlements do not come here: _core/peer.

It is one file because what one side writes the other reads. What is asked, and answered, is MessagePack;
docs/internals/cluster-queues.md has the design.
"""
from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Literal, Protocol

import msgspec

from fluxmq._core.errors import StorageError, UsageError
from fluxmq._core.hub.hub import Hub
from fluxmq._core.peer.outbox import PeerOutbox
from fluxmq._core.peer.parts import PartMember, Parts
from fluxmq._core.peer.queue_member import PeerMember
from fluxmq._core.peer.queue_relay import QueueRelay, RelayMember
from fluxmq._core.queue.claim import Member
from fluxmq._core.queue.queue import Queue
from fluxmq.engine.ports.queues import CommandRefused, QueueRefused
from fluxmq.engine.queues.retry import UNSPECIFIED, RetryPolicy
from fluxmq.engine.queues.table import QueueListener
from fluxmq.model.amqp import AmqpRefused
from fluxmq.model.malformed import MALFORMED
from fluxmq.model.mqtt import ReasonCode

__all__ = ["LATER", "UNKNOWN", "Answer", "Attach", "Host", "Hosts", "Refusal", "Relays", "Then", "away", "moved",
           "moves", "refusal_of", "suback_reason"]

LATER = object()  # what a question returns that is answered by itself
NEVER_MS = 1 << 62


class Refusal(msgspec.Struct, frozen=True):
    """Why the owner refuses something. code: AMQP's reply code, or the reason code of MQTT 5; 0: neither is meant.
    away: it has not refused, it is not there. unknown: it does not have the queue, any more or yet. late: it has not
    answered in time."""

    text: str
    code: int = 0
    away: bool = False
    unknown: bool = False
    late: bool = False

    @property
    def passes(self) -> bool:
        """Whether it says nothing against the consumer: what is asked again may be done."""
        return self.away or self.unknown or self.late


ENDING = Refusal("the queue is being deleted, because nobody used it: try again", away=True, unknown=True)
UNKNOWN = Refusal("the queue is not at this node any more", unknown=True)


class Attach(msgspec.Struct, frozen=True, kw_only=True):
    """A consumer for the owner of its queue. protocol: whose rules its group has. held: what it holds already: [(index
    of the log in the queue, offset, deliveries)]. room: how many messages it can take beyond these. fresh: the client
    has just asked for it, so its retry policy changes that of the group. exclusive: None: as the group has it. mark:
    Member.mark."""

    protocol: Literal["mqtt", "amqp"]
    client: str
    group: bytes = b""
    pattern: bytes = b""
    position: str = ""
    exclusive: bool | None = None
    priority: int = 0
    lease_ms: int | None = None
    retry_policy: RetryPolicy = UNSPECIFIED
    pulls: bool = False
    held: list[tuple[int, int, int]] = []
    room: int = 0
    fresh: bool = False
    mark: int = 0


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """refused: None: it was done. value: of a call."""

    refused: Refusal | None = None
    value: Any = None


# Of what was done by a node that was about to lose the queue, and is undone.
GIVEN_UP = msgspec.msgpack.encode(Answer(refused=Refusal(
    "the queue goes to another node, which does not know of this: try again", away=True, unknown=True)))


def suback_reason(answer: Answer) -> tuple[int, str]:
    """The reason code of a refusal in SUBACK, and its text; (0, ""): it was done."""
    if answer.refused is None:
        return 0, ""
    known = answer.refused.code == ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR  # other codes are not SUBACK's, or AMQP's
    return answer.refused.code if known else ReasonCode.UNSPECIFIED_ERROR, answer.refused.text


class Host(Protocol):
    """What a protocol does for the consumers of other nodes, and for those of this one of a queue whose partitions are
    queues of their own."""

    def attach_member(self, queue: Queue, member: PeerMember | PartMember, asked: Attach) -> Any:
        """Adds it to its group. Returns what the consumer's node is told of that. Raises QueueRefused, AmqpRefused,
        CommandRefused."""

    def adopt_member(self, queue: Queue, member: Member, asked: Attach) -> None:
        """A consumer of this node was attached so to the queue's former owner; its group is about to be this node's."""

    def leads(self, queue: Queue, member: Member) -> bool:
        """Whether a consumer of this node is the queue's only one because it has asked for that (Attach.exclusive)."""

    def leave(self, queue: Queue, member: PeerMember | PartMember) -> None:
        """It has left: what it held is ready again."""

    def rest(self, queue: Queue, member: PeerMember | PartMember) -> None:
        """It gets nothing more, and may settle what it holds."""


Then = Callable[[Answer], None]


class Divided(Protocol):
    """The same of a queue whose partitions are queues of their own (wholes.Wholes)."""

    def attach(self, queue: Queue, member: Member, asked: Attach, then: Then) -> None:
        """As Relays.attach."""

    def ask(self, queue: Queue, verb: str, arguments: Any, then: Then, member: Member | None = None) -> None:
        """As Relays.ask."""

    def order(self, queue: Queue, verb: str, arguments: Any) -> None:
        """As Relays.order."""


# Questions of clients, which come behind what they have published, and are asked again if the queue moves.
OF_CLIENTS = frozenset({"counts", "deletable", "get", "purge"})
# Questions that are answered also while the queue moves.
ALWAYS = frozenset({"close"})
_answers = msgspec.msgpack.Decoder(Answer)
_attaches = msgspec.msgpack.Decoder(Attach)


def away(relay: QueueRelay) -> Refusal:
    """The refusal while the owner is not there."""
    return Refusal(f"the queue is at node {relay.owner}, which is away" if relay.owner else
                   f"replication group {relay.replication_group} has the queue, and no node serves it"
                   if relay.replication_group else "no node has the queue at present", away=True)


class _Question:
    """Of a client. It waits because its queue moves. early: because the owner does not know the queue yet."""

    def __init__(self, queue: Queue, verb: str, arguments: Any, then: Then, member: Member | None,
                 since_ms: int) -> None:
        self.queue, self.verb, self.arguments, self.then = queue, verb, arguments, then
        self.member, self.since_ms = member, since_ms
        self.early = False


class Relays(QueueListener):
    """Machine. What this node asks of the owners of queues. now_ms: monotonic clock. log: as Broker's
    on_log."""

    def __init__(self, now_ms: Callable[[], int] = lambda: 0,
                 log: Callable[[str, str, str, dict[str, Any]], None] = lambda *told: None) -> None:
        self._now_ms = now_ms
        self.log = log
        # By the way to a node, and number: what gets the answer, and when it was asked.
        self._asked: dict[PeerOutbox, dict[int, tuple[Then, int]]] = {}
        # Consumers to attach again. For instance, an owner is known by its key, perhaps before it has made the queue.
        self._too_early: list[tuple[Queue, RelayMember, int]] = []  # the number is that of the refused ATTACH
        self._refused: set[RelayMember] = set()  # those of them that an owner has refused, which is in the log
        # (queue, its consumer, why): its owner was changed, or is back, and refuses it. If it stays, it is asked again.
        self.on_refused: list[Callable[[Queue, Member, str], None]] = []
        # (queue, its consumer, what the owner tells its node of that): the same, and it takes it.
        self.on_attached: list[Callable[[Queue, Member, Any], None]] = []
        self._waiting: list[_Question] = []  # their queues move, or are not known to their owners yet
        # New consumers whose queues move, and since when.
        self._coming: dict[RelayMember, tuple[Queue, Then, int]] = {}
        self.ticks: list[Callable[[int], None]] = []  # called with expire(), and its limit
        self.wholes: Divided  # for queues whose partitions are queues of their own
        self.is_known: Callable[[Queue], bool] = lambda queue: True  # whether it was not deleted

    def attach(self, queue: Queue, member: Member, asked: Attach, then: Then) -> None:
        """Attaches a consumer that has joined its group here. then: called with the answer; if it is refused, the
        consumer is to leave, unless the owner is away: then it is attached when that one is back. The consumer gets
        messages behind that call."""
        relay = queue.relay
        if isinstance(relay, Parts):
            self.wholes.attach(queue, member, asked, then)
            return
        assert isinstance(relay, QueueRelay)
        one = relay.of(member)
        one.asked = asked
        if not relay.reachable:
            then(Answer(refused=away(relay)))
            return
        self._attach(relay, one, partial(self._attached, queue, one, then, self._now_ms()))

    def _attached(self, queue: Queue, one: RelayMember, then: Then, since_ms: int, answer: Answer,
                  number: int) -> None:
        if (moved(answer) or answer.refused == UNKNOWN) and queue.relay is one.relay and one in one.relay.consumers:
            self._coming[one] = queue, then, since_ms  # asked again when the owner changes, and in expire()
            return
        if answer.refused is not None and answer.refused.passes:
            self._too_early.append((queue, one, number))  # if it stays
        then(answer)

    def _attach(self, relay: QueueRelay, one: RelayMember, then: Callable[[Answer, int], None]) -> None:
        """then: called with the answer, and the number of the question."""
        room = relay.room_of(one.member)
        asked = msgspec.structs.replace(one.asked, held=one.held(), pulls=one.pulls or one.rests, room=room,
                                      mark=one.member.mark)
        number = relay.attach(one.member, msgspec.msgpack.encode(asked), room)

        def answered(answer: Answer) -> None:
            then(answer, number)
            if answer.refused is None and one.number == number:
                one.asked = msgspec.structs.replace(one.asked, fresh=False)
                one.open()

        self._note(relay, number, answered)

    def owner_changed(self, queue: Queue) -> None:
        """See QueueTable.on_owner: attaches the consumers to the owner, with what they hold."""
        relay = queue.relay
        assert isinstance(relay, QueueRelay)
        if not relay.reachable:
            return
        for one in list(relay.consumers):
            coming = self._coming.pop(one, None)
            if coming is not None:
                self._attach(relay, one, partial(self._attached, *(queue, one, *coming[1:])))
            elif one.asked is not None:
                self._attach_again(queue, relay, one)
        self._ask_again(queue)

    def _attach_again(self, queue: Queue, relay: QueueRelay, one: RelayMember) -> None:
        self._attach(relay, one, partial(self._attached_again, queue, one))

    def _attached_again(self, queue: Queue, one: RelayMember, answer: Answer, number: int) -> None:
        refused = answer.refused
        about = {"queue": queue.name.decode("utf-8", "replace"), "client_id": one.member.client or ""}
        if one.number != number:  # another owner was asked meanwhile, or it has left
            return
        if refused is None:
            for tell_value in self.on_attached:
                tell_value(queue, one.member, answer.value)
            if one in self._refused:
                self._refused.discard(one)
                self.log("info", "", "a consumer that the node with its queue had refused is a consumer again", about)
            return
        self._too_early.append((queue, one, number))  # what it is refused for may be over
        if refused.passes or one in self._refused:
            return
        self._refused.add(one)
        self.log("warning", "attach", f"the node that has a queue refuses a consumer which it had before: "
                                      f"{refused.text}. It gets nothing until that is over", about)
        for tell in self.on_refused:
            tell(queue, one.member, refused.text)

    def queue_removed(self, queue: Queue) -> None:
        """See QueueListener: nobody has an answer for those who wait."""
        waiting, self._waiting = self._waiting, []
        for question in waiting:
            if question.queue is queue:
                question.then(Answer(refused=UNKNOWN))
            else:
                self._waiting.append(question)
        for one, (of, then, _) in list(self._coming.items()):
            if of is queue and self._coming.pop(one, None) is not None:
                then(Answer(refused=UNKNOWN))

    def ask(self, queue: Queue, verb: str, arguments: Any, then: Then, member: Member | None = None, *,
            patient: bool = False) -> int:
        """Asks the owner: Hosts.calls, Hosts.questions. then: called with the answer. member: a consumer that was
        attached, about which it is. patient: it may be answered at any time. Returns the number of the question; 0: the
        owner is away."""
        relay = queue.relay
        if isinstance(relay, Parts):
            self.wholes.ask(queue, verb, arguments, then, member)
            return 0
        assert isinstance(relay, QueueRelay)
        if not relay.reachable:
            then(Answer(refused=away(relay)))
            return 0
        if verb in OF_CLIENTS:
            question = _Question(queue, verb, arguments, then, member, self._now_ms())
            if relay.keeping:
                self._wait(question)
                return 0
            then = partial(self._answered, question)
        return self._ask(queue, relay, verb, arguments, then, member, patient)

    def _ask(self, queue: Queue, relay: QueueRelay, verb: str, arguments: Any, then: Then, member: Member | None,
             patient: bool = False) -> int:
        of = relay.of(member).number if member is not None else 0
        number = relay.call(msgspec.msgpack.encode((verb, of, False, arguments)))
        self._note(relay, number, then, patient)
        return number

    def ask_node(self, outbox: PeerOutbox, identity: int, verb: str, arguments: Any, then: Then) -> None:
        """As ask(), about a queue of another node that this one knows by its identity only."""
        number = outbox.ask(identity, msgspec.msgpack.encode((verb, 0, False, arguments)))
        if number:
            self._asked.setdefault(outbox, {})[number] = then, self._now_ms()
        else:
            then(Answer(refused=Refusal(f"node {outbox.node} is away", away=True)))

    def _answered(self, question: _Question, answer: Answer) -> None:
        # The owner of a new queue may hear of it later than this node.
        question.early = answer.refused == UNKNOWN and self.is_known(question.queue)
        if moved(answer) or question.early:
            self._wait(question)
        else:
            question.then(answer)

    def _wait(self, question: _Question) -> None:
        self._waiting.append(question)
        if isinstance(question.queue.relay, QueueRelay):
            question.queue.relay.on_flushed = self._ask_again

    def _ask_again(self, queue: Queue) -> None:
        """What waits for the queue's owner is sent there, behind the publishes that were kept."""
        relay = queue.relay
        if isinstance(relay, QueueRelay) and relay.keeping:
            return
        waiting, self._waiting = self._waiting, []
        for question in waiting:
            if question.queue is not queue:
                self._waiting.append(question)
            elif not isinstance(relay, QueueRelay) or not relay.reachable or (
                    question.member is not None and question.member.group is None):
                question.then(Answer(refused=Refusal("the queue has moved: try again", away=True)))
            else:
                self._ask(queue, relay, question.verb, question.arguments, partial(self._answered, question),
                          question.member)

    def order(self, queue: Queue, verb: str, arguments: Any, member: Member | None = None) -> None:
        """As ask(), with a ticket instead of an answer: a client waits for that, which the owner may refuse. Raises
        QueueRefused if the owner is away."""
        relay = queue.relay
        if isinstance(relay, Parts):
            self.wholes.order(queue, verb, arguments)
            return
        assert isinstance(relay, QueueRelay)
        if not relay.reachable:
            raise QueueRefused("unavailable", away(relay).text)
        of = relay.of(member).number if member is not None else 0
        self._note(relay, relay.call(msgspec.msgpack.encode((verb, of, True, arguments)), True), lambda answer: None)

    def _note(self, relay: QueueRelay, number: int, then: Then, patient: bool = False) -> None:
        assert relay.outbox is not None
        self._asked.setdefault(relay.outbox, {})[number] = then, NEVER_MS if patient else self._now_ms()

    def on_result(self, outbox: PeerOutbox, number: int, data: bytes) -> None:
        """An owner answers."""
        found = self._asked.get(outbox, {}).pop(number, None)
        if found is None:
            outbox.end_member(number)  # nobody waits any more, so nobody is attached
            return
        try:
            answer = _answers.decode(data)
        except MALFORMED as error:
            answer = Answer(refused=Refusal(f"node {outbox.node} has answered what this version does not know: "
                                            f"{error}"))
        found[0](answer)

    def on_gone(self, outbox: PeerOutbox) -> None:
        """A node is gone: what it was asked is refused."""
        for then, _ in self._asked.pop(outbox, {}).values():
            then(Answer(refused=Refusal(f"node {outbox.node} has not answered: it is gone",
                                         away=True)))

    def expire(self, limit_ms: int) -> None:
        """Refuses what was not answered within this time, and asks again what owners were asked too early."""
        for tick in self.ticks:
            tick(limit_ms)
        now_ms = self._now_ms()
        too_early, self._too_early = self._too_early, []
        for queue, one, number in too_early:
            relay = queue.relay
            if isinstance(relay, QueueRelay) and relay.reachable and one in relay.consumers and one.number == number:
                self._attach_again(queue, relay, one)
            else:
                self._refused.discard(one)
        for question in [one for one in self._waiting if one.since_ms + limit_ms <= now_ms]:
            self._waiting.remove(question)
            question.then(Answer(refused=UNKNOWN if question.early else _late(limit_ms)))
        for one, (queue, then, since_ms) in list(self._coming.items()):
            relay = one.relay
            if since_ms + limit_ms <= now_ms:
                if self._coming.pop(one, None) is not None:
                    then(Answer(refused=_late(limit_ms)))
            elif queue.relay is relay and relay.reachable and one in relay.consumers:
                del self._coming[one]  # the owner may have learned of a new queue by now
                self._attach(relay, one, partial(self._attached, queue, one, then, since_ms))
        for queue in dict.fromkeys(question.queue for question in self._waiting if question.early):
            self._ask_again(queue)  # behind its consumers, about which it may be
        for outbox, asked in list(self._asked.items()):
            for number, (then, since_ms) in list(asked.items()):
                if since_ms + limit_ms <= now_ms and asked.pop(number, None) is not None:
                    then(Answer(refused=Refusal(f"node {outbox.node} has not answered within {limit_ms / 1000:g} s",
                                                late=True)))


def moved(answer: Answer) -> bool:
    """Whether the queue moves, and this node has not heard where to."""
    refused = answer.refused
    return refused is not None and refused.away and refused.unknown and refused != ENDING


def _late(limit_ms: int) -> Refusal:
    return Refusal(f"the queue moves, which was not over within {limit_ms / 1000:g} s", away=True)


class Hosts(QueueListener):
    """Machine. What other nodes ask of this one's queues. protocols: by Attach.protocol. calls: by verb: (queue, the
    consumer that it is about or None, *arguments) -> value, MessagePack; they raise QueueRefused, AmqpRefused,
    CommandRefused. questions: the same, (queue, the way to the node that asks, number of the question, *arguments) ->
    value, or LATER. gone: called with the way to a node that is gone."""

    def __init__(self, hub: Hub) -> None:
        self.hub = hub
        self.protocols: dict[str, Host] = {}
        self.calls: dict[str, Callable[..., Any]] = {}
        self.questions: dict[str, Callable[..., Any]] = {}
        self.gone: list[Callable[[PeerOutbox], None]] = []
        self._hosts: dict[PeerMember, Host] = {}

    def on_attach(self, outbox: PeerOutbox, number: int, identity: int, data: bytes) -> None:
        """A consumer of another node comes."""
        try:
            asked = _attaches.decode(data)
        except MALFORMED as error:
            self.answer(outbox, number, Answer(refused=Refusal(f"node {outbox.node} asks what this version does not "
                                                                f"know: {error}")))
            return
        queue = self.hub.owned.get(identity)
        host = self.protocols.get(asked.protocol)
        if queue is None or host is None:
            self.answer(outbox, number, Answer(refused=UNKNOWN))
            return
        if queue.relay is not None or queue.ending:
            self.answer(outbox, number, Answer(refused=ENDING if queue.relay is None else moves(queue)))
            return
        member = PeerMember(outbox, queue, number)
        member.client, member.mark = asked.client, asked.mark
        try:
            told = host.attach_member(queue, member, asked)
        except (QueueRefused, AmqpRefused, CommandRefused, StorageError, UsageError) as refused:
            member.end()
            self.answer(outbox, number, Answer(refused=refusal_of(refused)))
            return
        except BaseException:
            member.end()
            raise
        self._hosts[member] = host
        for held in asked.held:
            member.hold_again(*held)
        member.limit = member.held + asked.room
        self.answer(outbox, number, Answer(value=told), queue)

    def on_detach(self, outbox: PeerOutbox, number: int, rests: bool) -> None:
        """A consumer of another node leaves, or only gets nothing more."""
        member = outbox.hosted.get(number)
        if member is None:
            return
        host = self._hosts.get(member)
        if not rests or host is None:
            self._end(member)
        else:
            host.rest(member.queue, member)

    def on_gone(self, outbox: PeerOutbox) -> None:
        """A node is gone: what its consumers held is ready again."""
        for member in list(outbox.hosted.values()):
            self._end(member)
        for gone in self.gone:
            gone(outbox)

    def on_broken(self, outbox: PeerOutbox) -> None:
        """There has been no stream to or from a node for so long that what its consumers hold is ready again. They stay
        consumers, and get nothing until on_whole()."""
        for member in list(outbox.hosted.values()):
            member.part()

    def on_whole(self, outbox: PeerOutbox) -> None:
        """The streams are there again."""
        for member in outbox.hosted.values():
            member.rejoin()

    def queue_deleted(self, queue: Queue, members: list[Member]) -> None:
        """See QueueListener: their nodes hear of it by the definition."""
        for member in members:
            if isinstance(member, PeerMember):
                self._hosts.pop(member, None)
                member.end()

    def _end(self, member: PeerMember) -> None:
        queue, host = member.queue, self._hosts.pop(member, None)
        member.end()
        if host is not None:
            host.leave(queue, member)
        queue.notify()

    def on_call(self, outbox: PeerOutbox, number: int, identity: int, data: bytes, position: int) -> None:
        """Another node asks. position: at which its client waits for the owner (Relays.order)."""
        awaited = False
        try:
            verb, of, awaited, arguments = msgspec.msgpack.decode(data)
            queue, call, question = self.hub.owned.get(identity), self.calls.get(verb), self.questions.get(verb)
            if queue is None:
                raise _NotHere(UNKNOWN)
            if queue.relay is not None and verb not in ALWAYS:
                raise _NotHere(moves(queue))
            if queue.ending:
                raise _NotHere(ENDING)
            if question is not None:
                value = question(queue, outbox, number, *arguments)
            elif call is not None:
                value = call(queue, outbox.hosted.get(of), *arguments)
            else:
                raise QueueRefused("invalid", f"this node knows no question {verb!r}: its version may be another one")
        except (QueueRefused, AmqpRefused, CommandRefused, StorageError, UsageError, *MALFORMED, ValueError,
                TypeError) as refused:  # the last three: of another version
            refusal = refusal_of(refused)
            if awaited:
                outbox.refuse(position, refusal.code if 0x80 <= refusal.code <= 0xFF else ReasonCode.UNSPECIFIED_ERROR,
                              refusal.text)
            self.answer(outbox, number, Answer(refused=refusal))
        else:
            if value is not LATER:
                self.answer(outbox, number, Answer(value=value), queue if queue.relay is None else None)

    def answer(self, outbox: PeerOutbox, number: int, answer: Answer, queue: Queue | None = None) -> None:
        """Answers a question, when what was recorded in this turn is committed. queue: one of this node, that it is
        about."""
        data = msgspec.msgpack.encode(answer)
        outbox.given_up_answer = GIVEN_UP
        # Groups record what they did when they are pumped, at the end of the turn: the answer waits for that, too.
        self.hub.publish_later(lambda: outbox.result(number, data, queue.line if queue is not None else None))


def moves(queue: Queue) -> Refusal:
    """The node that asks does not know yet. Its consumers are attached when it does."""
    relay = queue.relay
    owner = relay.owner if isinstance(relay, QueueRelay) else "?"
    return Refusal(f"the queue moves to node {owner}: try again", away=True, unknown=True)


class _NotHere(QueueRefused):
    """The queue is not at this node, or is about to move."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__("unavailable", refusal.text)
        self.refusal = refusal


def refusal_of(refused: Exception) -> Refusal:
    """The refusal that an error of the owner is."""
    if isinstance(refused, _NotHere):
        return refused.refusal
    if isinstance(refused, AmqpRefused):
        return Refusal(refused.reply_text, int(refused.reason))
    if isinstance(refused, CommandRefused):
        return Refusal(refused.text, int(refused.reason))
    return Refusal(refused.text if isinstance(refused, QueueRefused) else str(refused))
