"""Dead letters that cannot be in the batch in which the message dies: for queues of other nodes, for queues of this
node whose line is another one, and for queues that the cluster does not have yet.

    a message dies ─► the queue under way of its line, in the batch that ends it ─► committed ─► the target
                                                              settled ◄─ committed in the target's line ◄─┘

A line, of the journal or of a group of nodes, has one queue under way, which whoever leads the line declares when it
needs one. No other node knows it, but as a copy of the line: so in its own line a message is there, as a letter, until
its target has it, whoever dies or leads meanwhile, and the order is kept. Each letter has an origin (the number in the
queue's name, and its offset there), which is the same at the next leader, and by which the target knows it if it comes
again: it is there once. The target forgets the origin when the letter's end is committed, unless another copy may be on
its way; then it is forgotten with the time.

A dead-letter queue that the broker makes is defined in the cluster first: two nodes may need the same one.
"""
from __future__ import annotations

from collections import Counter
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from fluxmq._core.memory.commits import Line
from fluxmq._core.peer.parts import Parts
from fluxmq._core.peer.queue_relay import QueueRelay
from fluxmq._core.queue import by_offset
from fluxmq._core.queue.member import PyMember
from fluxmq._core.queue.queue import Queue
from fluxmq.model.queues import DeadLetters, QueueSpec, new_dead_letter_queue

if TYPE_CHECKING:
    from fluxmq._core.queue.group import Group
    from fluxmq.engine.queues.state import QueueState
    from fluxmq.engine.queues.table import QueueTable

__all__ = ["UNDER_WAY", "Forwarder", "Forwarders", "is_under_way"]

UNDER_WAY = "$under-way-"  # and the name of its origins, in hex
_PREFIX = UNDER_WAY.encode()
GROUP = b"default"
AT_ONCE = 1000  # how many are with their targets' owners
AGAIN_MS = 1000  # before one that was refused is sent again
LEARNS_MS = 60_000  # a node that leads hears of a queue later, perhaps, than the leader who had the letter: not deleted
FIRST_USE = 2  # of the origin of the letter with offset 0; packet identifier 0 with use 1 alone would be a will


def is_under_way(name: bytes) -> bool:
    """Whether a queue of this name is for messages that are under way."""
    return name.startswith(_PREFIX)


class _Letter(msgspec.Struct, array_like=True, frozen=True):
    """target, identity: of the queue that it is for; identity 0: a dead-letter queue that is made if there is none."""

    target: tuple[bytes, bytes]
    identity: int
    topic: bytes
    properties: bytes
    payload: bytes
    qos: int
    format: int


class Forwarders:
    """Machine. One per node: a Forwarder for each line that this node leads and in which messages die."""

    def __init__(self, table: QueueTable) -> None:
        self._table = table
        self._by_line: dict[int, Forwarder] = {}

    def of(self, line: Line) -> Forwarder:
        """Takes letters of queues of this line, which this node leads."""
        found = self._by_line.get(line.number)
        if found is None:
            found = self._by_line[line.number] = Forwarder(self._table, line)
        return found

    def found(self, queue: Queue) -> None:
        """This node leads such a queue, from its disk or after another node: what is in it goes on."""
        self.of(queue.line).found(queue)

    def leave(self, line: Line) -> None:
        """Another node leads the line from now on: it goes on with what is under way."""
        forwarder = self._by_line.pop(line.number, None)
        if forwarder is not None:
            forwarder.end()


class Forwarder:
    """Machine. Letters of one line, as long as this node leads it."""

    def __init__(self, table: QueueTable, line: Line) -> None:
        self._table = table
        self._line = line
        self._queue: Queue | None = None
        self._group: Group | None = None
        self._member: PyMember | None = None
        self._name = 0
        self._inherited = 0  # a former leader may have sent the letters below this offset
        self._since_ms = 0  # steady clock: leads since then
        # By offset: how often it was given to another node, and after that to whoever leads the target.
        self._sent: Counter[int] = Counter()
        self._awaited: Counter[tuple[bytes, bytes]] = Counter()  # letters with identity 0, by target
        self._making: dict[tuple[bytes, bytes], list[tuple[int, int]]] = {}  # those that wait for the definition

    def awaits(self, target: tuple[bytes, bytes]) -> bool:
        """Whether letters that were forwarded when there was no such queue are under way: others come behind them."""
        return target in self._awaited

    def forward_when_made(self, target: tuple[bytes, bytes], topic: bytes, payload: bytes, properties: bytes, qos: int,
                          format_: int) -> bool:
        """Takes a letter for a dead-letter queue that the cluster does not have. Returns whether it has it."""
        taken = self._append(_Letter(target, 0, topic, properties, payload, qos, format_))
        self._awaited[target] += taken
        return taken

    def forward(self, target: Queue, topic: bytes, payload: bytes, properties: bytes, qos: int, format_: int) -> bool:
        """Takes a dead letter for a queue of another node, or of another line. Returns whether it has it."""
        if isinstance(target.relay, Parts):  # decided once, so that the letter is there once
            target = target.relay.part_of(topic, properties, format_) or target
        return self._append(_Letter(target.address, target.identity, topic, properties, payload, qos, format_))

    def _append(self, letter: _Letter) -> bool:
        queue = self._queue
        if queue is None or queue not in self._table.states:
            self._forget()
            queue = self._make()
        return queue.append_message(b"", msgspec.msgpack.encode(letter), forced=True) == 0

    def _forget(self) -> None:
        """An operator may have deleted the queue, with its letters; or another node leads it."""
        self._queue = self._group = None
        self._sent.clear()
        self._awaited.clear()
        for waiting in self._making.values():
            waiting.clear()

    def end(self) -> None:
        """Another node leads the line. What this one holds is ready for it; what comes back has no effect here."""
        if self._group is not None and self._member is not None:
            self._group.leave(self._member)
        self._forget()

    def found(self, queue: Queue) -> None:
        """See Forwarders.found."""
        if self._queue is not None:
            return
        self._name = int(queue.name[len(UNDER_WAY):], 16)
        self._queue = queue
        self._inherited = queue.logs[0].next if self._line.number else 0  # what a former life has sent is void
        self._since_ms = self._table.hub.steady_ms
        group = self._group = self._table.states[queue].groups.get((GROUP, b"")) or self._table.group(queue, GROUP)
        group.deliveries_max = 0  # each change of the leader is a delivery, and no reason to drop a letter
        self._member = PyMember(self._deliver, None, AT_ONCE)
        group.join(self._member)

    def _make(self) -> Queue:
        known = next((state.queue for state in self._table.queues.values() if is_under_way(state.queue.name)
                      and state.queue.line is self._line and state.queue.relay is None), None)
        if known is not None:
            self.found(known)
            return known
        name = self._table.hub.next_identity() or 1 + self._line.number
        spec = QueueSpec(name=f"{UNDER_WAY}{name:x}", dlq=DeadLetters(enabled=False))
        queue = self._table.make(spec, line=self._line)
        self.found(queue)
        return queue

    def _deliver(self, log: int, offset: int, deliveries: int) -> bool:
        # Not in the middle of a pump: it may end there.
        self._table.hub.publish_later(partial(self._send_when_committed, log, offset))
        return True

    def _send_when_committed(self, log: int, offset: int) -> None:
        # A node that dies with the letter in memory makes it anew, perhaps with the origin of another one; and a leader
        # whose line has not committed that the message died may not lead any more: then it has not died.
        hub = self._table.hub
        hub.when_gathered(partial(self._send, log, offset), self._line)

    def _send(self, log_number: int, offset: int) -> None:
        if self._queue is None or self._queue.logs[0].number != log_number:
            return  # another node leads, or the queue was deleted
        log = self._queue.logs[0]
        message = log.get(offset)
        if message is None:  # it must be read from the disk again
            self._again(log_number, offset)
            return
        letter = msgspec.msgpack.decode(message.payload, type=_Letter)
        state = self._table.queues.get(letter.target)
        if letter.identity == 0 and letter.target in self._making:  # the queue may be there, and not everywhere yet
            self._making[letter.target].append((log_number, offset))
            return
        if state is None and letter.identity == 0 and self._table.hub.namespaces.get(letter.target[0]):
            self._make_target(letter.target, log_number, offset)
            return
        if state is None and offset < self._inherited and self._table.hub.steady_ms < self._since_ms + LEARNS_MS:
            self._again(log_number, offset)
            return
        if state is None or letter.identity not in (0, state.queue.identity):
            self._table.log("warning", "dead letter", "a dead letter is dropped: its queue was deleted",
                            {"queue": letter.target[1].decode("utf-8", "replace")})
            self._settle(log_number, offset, letter)
            return
        if isinstance(state.queue.relay, Parts):  # it was not known which partition gets it: the letter begins anew
            if state.queue.relay.part_of(letter.topic, letter.properties, letter.format) is None or not self.forward(
                    state.queue, letter.topic, letter.payload, letter.properties, letter.qos, letter.format):
                self._again(log_number, offset)
            else:
                self._settle(log_number, offset, letter)
            return
        self._send_to(state, letter, log_number, offset)

    def _send_to(self, state: QueueState, letter: _Letter, log_number: int, offset: int) -> None:
        queue, hub = state.queue, self._table.hub
        relay, since = queue.relay, hub.commits.mark
        if isinstance(relay, QueueRelay):
            reason = relay.publish_once(letter.topic, letter.payload, letter.properties, name=self._name,
                                        use=FIRST_USE + offset, qos=letter.qos, format=letter.format)
            self._sent[offset] += reason == 0
        else:
            reason = hub.put_letter(queue, letter.topic, letter.payload, letter.properties, name=self._name,
                                    use=FIRST_USE + offset, noted=queue.line is not self._line, qos=letter.qos,
                                    format=letter.format)
            self._sent[offset] += self._sent[offset] > 0
        if reason:
            self._again(log_number, offset)
        elif relay is None and queue.line is self._line:  # both records are in one batch
            self._settle(log_number, offset, letter)
        else:
            hub.when_durable(partial(self._arrived, log_number, offset, letter), since,
                             lambda why: self._again(log_number, offset))

    def _make_target(self, target: tuple[bytes, bytes], log_number: int, offset: int) -> None:
        spec = new_dead_letter_queue(*(part.decode("utf-8", "surrogateescape") for part in target))
        if self._table.definer is None:  # the node has left its cluster
            self._table.make(spec)
            self._send(log_number, offset)
            return
        self._making[target] = [(log_number, offset)]
        self._table.definer.make_known(spec, partial(self._made, target))

    def _made(self, target: tuple[bytes, bytes]) -> None:
        """The dead-letter queue is defined."""
        for log_number, offset in self._making.pop(target):
            self._send(log_number, offset)

    def _arrived(self, log_number: int, offset: int, letter: _Letter) -> None:
        """The target's line has committed it."""
        if self._queue is None or self._queue.logs[0].number != log_number:
            return
        since, once = self._table.hub.commits.mark, self._sent[offset] <= 1 and offset >= self._inherited
        self._settle(log_number, offset, letter)
        if once:  # else a copy that this node, or a former leader, has sent may be behind the release
            self._table.hub.when_durable(partial(self._release, letter, self._name, offset), since, lambda why: None)

    def _release(self, letter: _Letter, name: int, offset: int) -> None:
        """The letter's line has committed its end."""
        state = self._table.queues.get(letter.target)
        if state is None:
            return
        if isinstance(state.queue.relay, QueueRelay):
            state.queue.relay.release(name, FIRST_USE + offset)
        else:
            self._table.hub.origins.release(name, FIRST_USE + offset)

    def _settle(self, log_number: int, offset: int, letter: _Letter) -> None:
        del self._sent[offset]
        if self._group is not None and self._queue is not None:
            by_offset.settle_at(self._group, log_number, offset)
            self._group.flush_records()
            self._queue.notify()
        if letter.identity == 0 and letter.target in self._awaited:
            self._awaited[letter.target] -= 1
            if self._awaited[letter.target] == 0:
                del self._awaited[letter.target]

    def _again(self, log_number: int, offset: int) -> None:
        if self._group is not None and self._queue is not None:
            by_offset.give_back_at(self._group, log_number, offset, AGAIN_MS, False)
            self._queue.notify()
