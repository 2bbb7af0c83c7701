"""What other nodes ask of this one's streams: streams.py has how they do, and the protocol."""
from __future__ import annotations

import msgspec

from fluxmq._core.errors import UsageError
from fluxmq._core.peer.feed import PeerFeed
from fluxmq._core.peer.outbox import PeerOutbox
from fluxmq._core.queue import by_offset
from fluxmq._core.queue.claim import Member
from fluxmq._core.queue.page import durable_end
from fluxmq._core.queue.queue import QUEUE_STREAM, Queue
from fluxmq._core.queue.stream import StreamReader
from fluxmq.engine.ports.queues import QueueRefused
from fluxmq.engine.queues.positions import start_of_new
from fluxmq.engine.queues.relays import LATER, UNKNOWN, Answer, Hosts, Refusal, moves
from fluxmq.engine.queues.table import QueueListener, QueueTable

__all__ = ["StreamHosts", "advance"]

BLOCK_BYTES_MAX = 8 << 20  # that a node may ask for


class StreamHosts(QueueListener):
    """Machine. What other nodes ask of this one's streams."""

    def __init__(self, manager: QueueTable, hosts: Hosts) -> None:
        self._manager = manager
        # By the way to a node, and number: the readers that stand for those of one subscription there.
        self._readers: dict[PeerOutbox, dict[int, tuple[Queue, list[StreamReader]]]] = {}
        self._hosts = hosts
        hosts.questions.update(open=self._open, close=self._close, read=self._read, commit=self._commit,
                               advance=self._advance)
        hosts.gone.append(self._gone)
        manager.listeners.append(self)

    def _open(self, queue: Queue, outbox: PeerOutbox, number: int, group: bytes, position: str, offsets: list[int],
              client: str) -> list[tuple[int, int, int]]:
        """A subscription of another node: (first offset, the next one, offset at which it begins) for each log.
        offsets: where its readers are already."""
        _check(queue)
        found = self._manager.group(queue, group, position=start_of_new(position)) if group else None
        starts = offsets or [self._manager.position(queue, log, position, found) for log in queue.logs]
        readers = []
        for log, start in zip(queue.logs, starts, strict=True):
            reader = StreamReader(log, start, group=found, manual=True)
            reader.client = client
            if found is not None and position:
                reader.commit(reader.next)  # as StreamReads.open
            queue.add_reader(reader)
            readers.append(reader)
        self._readers.setdefault(outbox, {})[number] = queue, readers
        return [(log.first, durable_end(log), start) for log, start in zip(queue.logs, starts, strict=True)]

    def _close(self, queue: Queue, outbox: PeerOutbox, number: int, of: int) -> None:
        """The subscription with this number has ended."""
        _, readers = self._readers.get(outbox, {}).pop(of, (queue, []))
        for reader in readers:
            queue.remove_reader(reader)
        if readers:
            self._manager.left(queue, readers[0].group)

    def _commit(self, queue: Queue, outbox: PeerOutbox, number: int, of: int, at: int, next_: int,
                forward: bool) -> None:
        """Moves the position of a subscription's group. forward: not back."""
        _, readers = self._readers.get(outbox, {}).get(of, (queue, []))
        if at >= len(readers):
            raise UsageError("the reader is not known at this node any more")
        reader = readers[at]
        group = reader.group
        if group is None:
            raise UsageError("this reader has no group, so nobody would find its position again")
        if not forward or any(cursor.log_number == reader.log.number and cursor.next < next_
                              for cursor in group.cursors):
            reader.commit(next_)

    def _advance(self, queue: Queue, outbox: PeerOutbox, number: int, group: bytes, at: int, next_: int) -> None:
        """The position of a group, of a reader that was known to the stream's former owner and may have left since."""
        advance(self._manager, queue, group, at, next_)

    def _read(self, queue: Queue, outbox: PeerOutbox, number: int, at: int, offset: int, bytes_max: int) -> object:
        """A question for messages: answered by a PeerFeed."""
        _check(queue)
        if at >= len(queue.logs):
            raise QueueRefused("not_found", f"the stream has {len(queue.logs)} logs")
        feed = outbox.feeds.get(queue)
        if feed is None:
            feed = outbox.feeds[queue] = PeerFeed(outbox, queue, _block)
            queue.add_feed(feed)
        feed.ask(number, at, offset, min(bytes_max, BLOCK_BYTES_MAX))
        return LATER

    # ------------------------------------------------------------------ the stream moves

    def _of(self, queue: Queue) -> list[StreamReader]:
        return [reader for readings in self._readers.values() for of, readers in readings.values() if of is queue
                for reader in readers]

    def pause(self, queue: Queue) -> None:
        """The stream is about to move: it is not known yet whether it does. What was asked waits until it is."""
        for reader in self._of(queue):
            queue.remove_reader(reader)

    def go_on(self, queue: Queue) -> None:
        """It stays, or has just come."""
        for reader in self._of(queue):
            queue.add_reader(reader)

    def end(self, queue: Queue) -> None:
        """It has moved. Other nodes open their subscriptions there when they hear of it."""
        self._forget(queue)
        for feed in list(queue.feeds):
            if isinstance(feed, PeerFeed):
                self._refuse(feed, moves(queue))

    def _forget(self, queue: Queue) -> None:
        for readings in self._readers.values():
            for number in [number for number, (of, _) in readings.items() if of is queue]:
                del readings[number]

    # ------------------------------------------------------------------ QueueListener, and nodes that are gone

    def _gone(self, outbox: PeerOutbox) -> None:
        """A node is gone, and its readers."""
        for queue, readers in self._readers.pop(outbox, {}).values():
            for reader in readers:
                queue.remove_reader(reader)
            self._manager.left(queue, None)
        for feed in list(outbox.feeds.values()):
            self._end(feed)

    def _refuse(self, feed: PeerFeed, why: Refusal) -> None:
        for number in self._end(feed):
            self._hosts.answer(feed.outbox, number, Answer(refused=why))

    def _end(self, feed: PeerFeed) -> list[int]:
        feed.outbox.feeds.pop(feed.queue, None)
        feed.queue.remove_feed(feed)
        return feed.end()

    def queue_stopped(self, queue: Queue, members: list[Member]) -> None:
        """See QueueListener: what was asked is refused."""
        for feed in list(queue.feeds):
            if isinstance(feed, PeerFeed):
                self._refuse(feed, Refusal(f"the stream is stopped: {queue.damage}"))

    def queue_removed(self, queue: Queue) -> None:
        """See QueueListener: the nodes that read it need not hear of its end before they are answered."""
        for feed in list(queue.feeds):
            if isinstance(feed, PeerFeed):
                self._refuse(feed, UNKNOWN)
        self._forget(queue)


def advance(manager: QueueTable, queue: Queue, group: bytes, at: int, next_: int) -> None:
    """Moves the position of a group in a log forward. Nothing happens if the group, or the log, is not there."""
    found = manager.states[queue].groups.get((group, b""))
    if found is not None and at < len(queue.logs):
        number = queue.logs[at].number
        if any(cursor.log_number == number and cursor.next < next_ for cursor in found.cursors):
            by_offset.seek(found, number, next_)


def _check(queue: Queue) -> None:
    if queue.kind != QUEUE_STREAM:
        raise QueueRefused("invalid", "the queue is no stream")
    if queue.damage is not None:
        raise QueueRefused("unavailable", f"the stream is stopped: {queue.damage}")


def _block(first: int, end: int, start: int, covers: int, block: bytes) -> bytes:
    return msgspec.msgpack.encode(Answer(value=(first, end, start, covers, block)))
