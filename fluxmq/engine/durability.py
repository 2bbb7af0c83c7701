"""State on disk and back: recovery at start, checkpoints while running.

The journal is authoritative. The view is a copy, which a checkpoint updates when the journal's file has reached its
size, or has not grown for a while:

    rotate ─► export what is dirty (a slice per tick) ─► wait until all of that is durable ─► segments ─► view ─► old
                          ▲                                                                  │         │    files go
                          └──────── no space: what changed meanwhile is exported, too ───────┴─────────┘

The exported state may be newer than the rotation; replay after a crash then applies some records a second time, without
effect (fluxmq/_core/hub/persist.pxd). When it is written it is never newer than the journal on disk: otherwise a crash
could leave a view with changes that were never committed.

An export clears the lists of changes (dirty, dead, ended) that it takes over, so a later checkpoint without them would
leave an inconsistent view. Therefore a failed checkpoint is the last one of this process: nothing more is written to
the view, the journal keeps its files, the node ends, and the next start replays them. Only lack of space is waited for;
what was taken over by then is added to the next attempt (_Taken).

It is one file because a start reads what a checkpoint writes, and both decide what the journal may drop.
"""
from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable
from itertools import islice
from typing import Any

import msgspec

from fluxmq._core.disk.journal import JOURNAL_FAILED, JOURNAL_FULL, JOURNAL_OK, Journal
from fluxmq._core.disk.record_kinds import RecordKind
from fluxmq._core.errors import CorruptError, ShortageError, StorageError
from fluxmq._core.hub.persist import (
    Loader,
    export_namespaces,
    export_retained,
    export_session,
    message_key,
    session_key,
)
from fluxmq._core.pubsub.session import Session
from fluxmq.engine import stored
from fluxmq.engine.broker import Broker
from fluxmq.engine.clock import CLOCK_KEY, SteadyClock
from fluxmq.engine.exchanges.store import ExchangeKeeper
from fluxmq.engine.ports.driver import Driver, Work
from fluxmq.engine.ports.store import StateStore
from fluxmq.engine.positions import PeerPositions
from fluxmq.engine.queues.recovery.store import QueueKeeper
from fluxmq.engine.replicas import OF_REPLICAS, ReplicaLogs
from fluxmq.engine.sessions.line import SessionLine
from fluxmq.engine.sessions.state import SessionState, Subscription
from fluxmq.engine.stalls import Stalls

__all__ = ["Keeper"]

# Number of changed queues up to which the checkpoint at stop is taken: it may write a file for each queue, which for
# more queues takes longer than replaying the journal.
LAST_QUEUES_MAX = 1000
# Exported in one turn: a few milliseconds.
SLICE_SESSIONS = 500
SLICE_RETAINED = 2000
DURABLE_POLL_S = 0.005
# What was purged or consumed leaves the disk by a checkpoint of an idle node: this often at most, others not counted.
QUIET_MS, QUIET_EVERY_MS = 30_000, 300_000
QUIET_BYTES = 1 << 20  # of the journal; or a queue has changed
SPACE_RETRIES_S = 5  # RocksDB itself checks for space this often, and accepts no writes before it has found some

_OF_QUEUES = {*range(RecordKind.APPEND, RecordKind.TRIM + 1), RecordKind.PRODUCED}


class _Taken:
    """What a checkpoint has exported so far, over all of its attempts."""

    def __init__(self) -> None:
        self.puts: dict[bytes, bytes] = {}
        self.deletes: set[bytes] = set()

    def add(self, puts: Iterable[tuple[bytes, bytes]], deletes: Iterable[bytes]) -> None:
        """Adds a part of an export, which replaces earlier values. A key that is in both is deleted."""
        put = dict(puts)
        self.deletes.difference_update(put)
        self.puts.update(put)
        for key in deletes:
            self.puts.pop(key, None)
            self.deletes.add(key)


class Keeper:
    """Keeps a Broker's state in a StateStore. file_bytes: growth of the journal after which a checkpoint begins.
    driver: runs work that takes longer than one turn. failed: the error of the last checkpoint; no other follows it.
    quiet_ms: without a record, after which one begins, too; 0: never."""

    def __init__(self, broker: Broker, store: StateStore, file_bytes: int, driver: Driver) -> None:
        self.broker = broker
        self.store = store
        self.driver = driver
        self.file_bytes = file_bytes
        self.quiet_ms = QUIET_MS
        self.checkpoints = 0
        self.failed: BaseException | None = None
        self._task: Work[None] | None = None
        self._log = logging.getLogger("fluxmq.storage")
        self._orphans: list[int] = []
        self._stale: list[bytes] = []  # keys of rows in the format of an earlier version
        self._replayed_bytes = 0  # of journal files that are not in the view yet
        self._relief_due_ms = self._quiet_due_ms = 0
        self._grown, self._grown_ms = 0, 0  # the journal, when it was looked at, and when it had become that large
        self._patience_ends: float | None = None
        self.queues: QueueKeeper | None = None
        self.exchanges: ExchangeKeeper | None = None
        self.clock = SteadyClock(broker.hub, broker.log)
        self.positions = PeerPositions(broker.hub)
        self.replicas = ReplicaLogs(broker.hub.ledger, broker.log)
        self._rows = {b"p": self.positions.load, b"o": broker.hub.origins.load, b"h": broker.revisions.load}
        self._records: dict[int, Callable[[int, bytes], None]] = {
            RecordKind.CLOCK: self.clock.replay, RecordKind.PEER_POSITION: self.positions.replay,
            RecordKind.RETAINED_REVISION: broker.revisions.replay}
        self.stalls = Stalls(store.journal, driver.now, broker.log)

    # ------------------------------------------------------------------ recovery

    def recover(self) -> dict[str, Any]:
        """Loads everything into the broker, before any connection. Returns counts for the log."""
        if self.store.journal is None:
            return {}
        line = SessionLine(self.broker, self.broker.hub.commits.local, self._on_other)
        loader = line.loader
        loader.queues = None if self.queues is None else self.queues.records.objects
        values: list[tuple[int, bytes]] = []
        rows = self.store.load()
        for key, value in rows if self.queues is None else self.queues.load(rows, self.store.path):
            try:
                self._load(loader, values, key, value)
            except (CorruptError, *stored.WRONG_SHAPE) as error:
                raise stored.refused(self.store.path, key, error) from error
        for number, value in values:  # 's' sorts after 'm': every message is loaded already
            try:
                line.load_session(number, value)
            except (CorruptError, *stored.WRONG_SHAPE) as error:
                raise stored.refused(self.store.path, session_key(number), error) from error
        if self.queues is not None:
            self.queues.loaded()
        batches = 0
        for number, batch in self.store.replay():
            try:
                line.apply(batch)
            except (CorruptError, *stored.WRONG_SHAPE) as error:
                raise stored.refused_batch(self.store.path, number, batch, error) from error
            batches += 1
            self._replayed_bytes += len(batch)
        self.clock.resume()
        line.one_per_client()
        # Messages of the view that no session refers to after the replay: they were settled before the checkpoint that
        # would have deleted them. A damaged session cannot cause this, because every read of the view is verified:
        # load() would have raised.
        self._orphans = loader.orphans()
        self._stale = loader.stale_keys
        found = {"sessions": len(loader.sessions), "retained": self.broker.hub.retained.count,
                 "queued": sum(session.queued for session in loader.sessions.values()),
                 "journal_batches": batches, "journal_records": loader.records}
        self.broker.ended += line.take_ended()
        self.broker.restore(loader.sessions.values())
        self.broker.dirty.update(loader.sessions.values())
        loader.finish()
        if self.queues is not None:
            found |= self.queues.finish() | self.replicas.finish(self.queues.copies)
        if self.exchanges is not None:
            found |= self.exchanges.finish()
        return found if any(found.values()) else {}

    def _load(self, loader: Loader, sessions: list[tuple[int, bytes]], key: bytes, value: bytes) -> None:
        """Loads one row of the view that is not about queues; sessions, which need all other rows, are put into
        `sessions`."""
        kind, rest = key[:1], key[1:]
        if kind == b"m":
            loader.add_message(int.from_bytes(rest, "big"), value)
        elif kind in (b"t", b"r"):
            loader.add_retained(key, value)
        elif kind == b"n":
            loader.add_namespace(rest, value)
        elif kind in (b"e", b"b") and self.exchanges is not None:
            self.exchanges.load(kind, int.from_bytes(rest, "big"), value)
        elif key == CLOCK_KEY:
            self.clock.load(value)
        elif kind in self._rows:
            self._rows[kind](rest, value)
        elif kind == b"s":
            sessions.append((int.from_bytes(rest, "big"), value))
        else:
            raise CorruptError("the store has a key of an unknown kind: it was written by a newer version")

    def _on_other(self, kind: int, number: int, body: bytes) -> None:
        """Applies a record that is not about sessions."""
        if kind in _OF_QUEUES:
            if self.queues is not None:
                self.queues.replay(kind, number, body)
        elif kind in OF_REPLICAS:
            self.replicas.replay(kind, number, body)
        elif kind in self._records:
            self._records[kind](number, body)
        elif kind in (RecordKind.ORIGIN, RecordKind.ORIGIN_END):
            self.broker.hub.origins.replay(kind, number, body)
        elif kind >= RecordKind.EXCHANGE:
            if self.exchanges is not None:
                self.exchanges.replay(kind, number, body)
        elif self.queues is not None:
            self.queues.replay(kind, number, body)  # of an unknown kind: refuses it

    # ------------------------------------------------------------------ checkpoints

    def tick(self) -> None:
        """Begins a checkpoint when the journal has grown by `file_bytes`, when something is short, or when nothing has
        happened for a while since something did. Raises StorageError."""
        self.stalls.look()
        journal = self.store.journal
        if journal is None or self._patience_ends is not None:      # close() takes the last one
            return
        if self._task is not None and not self._task.done():
            return
        if self.failed is not None:
            raise self._refusal() from self.failed
        hub = self.broker.hub
        grown = journal.bytes_total - hub.disk.checkpoint_mark + self._replayed_bytes
        # Deleting journal files may end the shortage, even if they are small.
        relief = (journal.status == JOURNAL_FULL or hub.ledger.full) and hub.mono_ms >= self._relief_due_ms
        if (quiet := self._is_quiet(grown)) or grown >= self.file_bytes or (grown and relief):
            self._relief_due_ms = hub.mono_ms + 1000 * SPACE_RETRIES_S
            self._quiet_due_ms = hub.mono_ms + QUIET_EVERY_MS if quiet else self._quiet_due_ms
            self._task = self.driver.start(self.checkpoint())
            # Under full load the next checkpoint is due already. Waiting for the next tick would let the journal grow
            # by another file, which would have to be allocated.
            self._task.add_done_callback(lambda task: None if task.cancelled() or task.exception() else self.tick())

    def _is_quiet(self, grown: int) -> bool:
        hub = self.broker.hub
        if grown != self._grown:
            self._grown, self._grown_ms = grown, hub.mono_ms
        return (grown > 0 and (grown >= QUIET_BYTES or hub.ledger.dirty_count > 0)
                and self.quiet_ms > 0 and hub.mono_ms >= max(self._grown_ms + self.quiet_ms, self._quiet_due_ms))

    def _refusal(self) -> StorageError:
        return StorageError(f"a checkpoint failed: {self.failed!s}. Nothing is lost: the journal keeps everything, and "
                            f"the next start replays it. Check the disk, then restart")

    async def checkpoint(self) -> None:
        """Updates the view to the present and deletes older journal files. Any exception, also a cancellation, is
        final: see the top of the file. Raises StorageError if an earlier one failed."""
        if self.failed is not None:
            raise self._refusal() from self.failed
        try:
            await self._checkpoint()
        except BaseException as error:
            self.failed = error if str(error) else StorageError(repr(error))
            raise

    async def checkpoint_now(self) -> None:
        """One that has everything that is there when it is called. Raises StorageError."""
        while self._task is not None and not self._task.done():
            await self.driver.end_of(self._task)
        self._task = self.driver.start(self.checkpoint())
        await self.driver.result_of(self._task)

    async def _checkpoint(self) -> None:
        journal = self.store.journal
        assert journal is not None
        upto = journal.rotate()
        self.broker.hub.disk.checkpoint_mark = journal.bytes_total + self.replicas.record_again()
        self.broker.hub.wake_up()  # resumes connections that were paused because they were too far ahead
        self._replayed_bytes = 0
        taken = _Taken()
        # Every attempt uses the same batch number: a new file would need space, and would be only partly exported.
        await self._patiently(lambda: self._attempt(journal, upto, taken))
        self.checkpoints += 1
        self._log.debug("checkpoint", extra={"upto": upto, "puts": len(taken.puts), "deletes": len(taken.deletes)})

    async def _attempt(self, journal: Journal, upto: int, taken: _Taken) -> None:
        """Raises ShortageError: nothing of it counts yet, and what was taken over is in `taken`."""
        await self._take_over(taken)
        exported = self.queues.begin_export(upto) if self.queues is not None else None
        if self.queues is not None and exported is not None:
            while self.queues.export(exported):
                taken.add(*exported.take())
                await self.driver.sleep(0)
            taken.add(*exported.take())
        await self._exported_is_durable(journal)
        if self.queues is not None and exported is not None:
            try:
                async for _ in self.queues.write(exported):
                    taken.add(*exported.take())
                    await self.driver.sleep(0)
            except ShortageError:
                self.queues.give_back(exported)
                raise
        await self.store.checkpoint(taken.puts.items(), taken.deletes, upto)
        if self.queues is not None:
            await self.queues.written()

    async def _take_over(self, taken: _Taken) -> None:
        """Exports sessions, retained messages and exchanges that changed since the last attempt or checkpoint."""
        broker, hub = self.broker, self.broker.hub
        # In one turn: a message is dead when no session refers to it, and every session that released one since the
        # last view is dirty now. A message that dies during the export below is still referred to by a copy made here.
        deletes = [message_key(number) for number in hub.ledger.take_dead() + self._orphans]
        self._orphans = []
        # Of an arrival that joins another session during the export, the view needs both: the record that says so names
        # it, and those that it was made of are older than this checkpoint. So it is exported here, and its row is
        # deleted by the next checkpoint, which has the other session as it is after that.
        arrivals = [session for session in broker.arrivals.values() if self._changed(session)]
        joined, broker.joined = broker.joined, []
        deletes += [session_key(number) for number in joined]
        kept = [*broker.stored.values(), *(parked.session for parked in broker.share_groups.parked.values())]
        work = [session for session in [*broker.sessions.values(), *kept] if self._changed(session)]
        broker.dirty.clear()
        puts: list[tuple[bytes, bytes]] = [self.clock.export(), *export_namespaces(hub)]
        for session in arrivals:
            puts.extend(self._export(session))
        retained = hub.namespaces.take_retained()
        stale, self._stale = self._stale, []
        for at in range(0, len(work), SLICE_SESSIONS):
            for session in work[at:at + SLICE_SESSIONS]:
                if session.data is not None:
                    puts.extend(self._export(session))
            await self.driver.sleep(0)
        deletes += stale
        for space, topics in retained:
            left = iter(topics)
            while some := list(islice(left, SLICE_RETAINED)):
                taken.add(*export_retained(space, some))
                await self.driver.sleep(0)
        for moved, forgotten in (self.positions.export(), broker.revisions.export(), hub.origins.export()):
            puts += moved
            deletes += forgotten
        if self.exchanges is not None:
            bound, unbound = self.exchanges.export()
            puts += bound.items()
            deletes += unbound
        ended, broker.ended = broker.ended, []
        deletes += [session_key(number) for number in ended]
        taken.add(puts, deletes)

    def _changed(self, session: Session) -> bool:
        return session.number != 0 and (session.dirty or session in self.broker.dirty)

    async def _exported_is_durable(self, journal: Journal) -> None:
        """Waits until everything recorded so far is durable. Otherwise a crash could lose a batch of which the view has
        some effects, so that some sessions would have them and others not."""
        self.broker.hub.ledger.submit()
        # The newest batch that may have any of these records. If it is empty, it is never submitted, so there is
        # nothing to wait for; otherwise poll() submits it as soon as the one before is durable.
        newest = journal.gathering
        while min(journal.durable, journal.firm) < min(newest, journal.gathering - 1):
            if journal.status == JOURNAL_FAILED:
                raise StorageError(journal.status_text)
            journal.hurry_sync()
            if self._patience_ends is not None:  # the node is stopping: the poller does not poll the journal any more
                self.broker.hub.ledger.poll()
                if self.driver.now() > self._patience_ends:
                    raise ShortageError("the disk did not write everything in time")
            await self.driver.sleep(DURABLE_POLL_S)
        if journal.broken:  # the gathering batch was never submitted, although the numbers look as if it were durable
            raise StorageError("the journal's writer has failed")

    async def _patiently(self, step: Callable[[], Awaitable[None]]) -> None:
        """Retries as long as there is a shortage: acknowledgements wait meanwhile, but the node keeps running."""
        while True:
            try:
                await step()
                return
            except ShortageError as error:
                if self._patience_ends is not None:
                    raise
                self._log.warning(f"checkpoint waits for space: {error}")
            for _ in range(SPACE_RETRIES_S):
                if self._patience_ends is None:
                    await self.driver.sleep(1)

    def _export(self, session: Session) -> list[tuple[bytes, bytes]]:
        state: SessionState = session.data
        session.dirty = False
        consumes = state.consumes or {}
        subscriptions = [Subscription(filter_, options, identifier, consumes.get(filter_))
                         for filter_, (options, identifier) in session.subscriptions.items()]
        return export_session(session, msgspec.msgpack.encode(stored.SessionCopy(state.head(), subscriptions)))

    async def close(self, patience_s: float = 0.0) -> None:
        """Called before the store closes, when nothing changes any more: waits for a running checkpoint and takes a
        last one, so that the next start has nothing to replay. This is only an optimization: it is skipped if it takes
        longer than `patience_s` or concerns many queues, because the journal has everything. `failed` has the error
        that prevented it."""
        journal = self.store.journal
        if journal is None or self._patience_ends is not None:
            return
        if journal.status != JOURNAL_OK:
            patience_s = 0.0
        self._patience_ends = self.driver.now() + patience_s
        if self._task is not None:
            await self.driver.end_of(self._task)
        try:
            if (self.failed is None and patience_s and self.store.applied < journal.gathering - 1
                    and self.broker.hub.ledger.dirty_count <= LAST_QUEUES_MAX):
                await self.checkpoint()
        except Exception:
            assert self.failed is not None
        if self.queues is not None:
            await self.queues.idle()
        if self.failed is not None:
            level = logging.WARNING if isinstance(self.failed, ShortageError) else logging.ERROR
            self._log.log(level, f"no last checkpoint, the next start replays the journal: {self.failed!s}")
