"""Readers of streams whose partitions are streams of their own, at nodes of a cluster (parts.py).

    open() ─► a Reading of each partition (streams.py), here or by its relay ─► its readers ─┐
                                             all have answered, or are away ─► then() ◄──────┘ ─► they get messages

The whole stream has no readers: each belongs to its partition, which moves, goes away and comes back by itself. All
that is known here is which readings are one subscription, so that its first answer is one, and that it is opened at
partitions which come later.
"""
from __future__ import annotations

from functools import partial

from fluxmq._core.peer.parts import Parts
from fluxmq._core.queue.group import Group
from fluxmq._core.queue.queue import QUEUE_STREAM, Queue
from fluxmq._core.queue.stream import StreamReader
from fluxmq.engine.ports.queues import QueueRefused
from fluxmq.engine.queues.attaching import Attaching
from fluxmq.engine.queues.manager import QueueManager
from fluxmq.engine.queues.parts import whole_of
from fluxmq.engine.queues.positions import position_since, start_of_new
from fluxmq.engine.queues.relays import Answer, Refusal, Then, refusal_of
from fluxmq.engine.queues.streams import Make, Reading
from fluxmq.engine.queues.table import QueueListener

__all__ = ["WholeReading", "WholeStreams"]


class WholeReading:
    """One subscription to all partitions. group, position, client, make: as Reading. since_ms: the wall clock when it
    came. readings: by partition; those that are away have one, too, unless this node does not know them yet. paused:
    readers that get nothing before its client knows that it is a consumer."""

    __slots__ = ("client", "ended", "group", "make", "opened", "paused", "position", "queue", "readings", "since_ms")

    def __init__(self, queue: Queue, group: Group | None, position: str, client: str, make: Make,
                 since_ms: int) -> None:
        self.queue = queue
        self.group = group
        self.position = position
        self.client = client
        self.make = make
        self.since_ms = since_ms
        self.readings: dict[int, Reading] = {}
        self.paused: list[StreamReader] = []
        self.opened = False
        self.ended = False

    def make_readers(self, queue: Queue, group: Group | None, offsets: list[int]) -> list[StreamReader]:
        """Of a partition, which `queue` is."""
        readers = list(self.make(queue, group, offsets))
        if not self.opened:
            for reader in readers:
                reader.paused = True
            self.paused += readers
        return readers

    def begin(self) -> None:
        """Its client has been answered."""
        self.opened = True
        paused, self.paused = self.paused, []
        for reader in paused:
            reader.paused = False
            if isinstance(reader.owner, Queue):
                reader.owner.notify()


class WholeStreams(QueueListener):
    """Machine. A listener of the manager's queues, behind Wholes, which binds partitions."""

    def __init__(self, manager: QueueManager) -> None:
        self._manager = manager
        self._reads = manager.reads
        self._reads.wholes = self
        self._wholes: dict[Queue, list[WholeReading]] = {}

    def open(self, queue: Queue, group: Group | None, position: str, client: str, make: Make, then: Then, *,
             waits: bool) -> WholeReading:
        """As StreamReads.open."""
        relay = queue.relay
        assert isinstance(relay, Parts)
        whole = WholeReading(queue, group, position, client, make, self._manager.hub.now_ms)
        self._wholes.setdefault(queue, []).append(whole)

        def answered(answer: Answer) -> None:
            if answer.refused is not None and not waits:
                self.cancel(whole)
                then(answer)
            else:
                then(answer)
                whole.begin()

        Attaching(relay, partial(self._join, whole), lambda: whole.ended, answered).begin()
        return whole

    def _join(self, whole: WholeReading, partition: int, then: Then) -> None:
        """Opens a subscription at a partition; at one that is away when that is back."""
        relay = whole.queue.relay
        assert isinstance(relay, Parts)
        queue = relay.queues[partition]
        if queue is None:
            then(Answer(refused=Refusal(f"no node has partition {partition} of the queue at present", away=True)))
            return
        if queue.relay is None and queue.damage is not None:
            then(Answer(refused=Refusal(f"the stream is stopped: {queue.damage}")))
            return
        position = position_since(whole.position, whole.group, whole.since_ms) if whole.opened else whole.position
        group = None if whole.group is None else self._manager.group(queue, whole.group.name,
                                                                     position=start_of_new(position))
        try:
            reading = self._reads.open(queue, group, position, whole.client, whole.make_readers, then)
        except QueueRefused as refused:
            then(Answer(refused=refusal_of(refused)))
        else:
            assert isinstance(reading, Reading)
            whole.readings[partition] = reading
            if whole.ended:  # by then()
                self._reads.cancel(reading)

    def cancel(self, whole: WholeReading) -> None:
        """As StreamReads.cancel."""
        whole.ended = True
        for reading in whole.readings.values():
            self._reads.cancel(reading)
        wholes = self._wholes.get(whole.queue, [])
        if whole in wholes:
            wholes.remove(whole)
        if not wholes:
            self._wholes.pop(whole.queue, None)

    def _of(self, queue: Queue) -> tuple[int, list[WholeReading]]:
        """Which partition a stream is, and the subscriptions to the whole."""
        found = whole_of(queue.name) if queue.kind == QUEUE_STREAM else None
        if found is None:
            return 0, []
        state = self._manager.queues.get((queue.address[0], found.whole))
        return found.partition, list(self._wholes.get(state.queue, ())) if state is not None else []

    def queue_added(self, queue: Queue) -> None:
        """See QueueListener: a partition that this node did not know."""
        partition, wholes = self._of(queue)
        for whole in wholes:
            if partition not in whole.readings:
                self._join(whole, partition, lambda answer: None)

    def queue_removed(self, queue: Queue) -> None:
        """See QueueListener."""
        partition, wholes = self._of(queue)
        for whole in wholes:
            whole.readings.pop(partition, None)
        for whole in self._wholes.pop(queue, ()):
            whole.ended = True
