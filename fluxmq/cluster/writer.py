"""Groups changes of the metadata into shared transactions, so that a storm of connects does not wait for an fsync of
etcd each.

A request is a set of conditions and changes that belong together. Requests without a common key share a transaction;
requests with one keep their order. While transactions are under way further requests gather: batches grow with the
load.

    queued ──sent──► under way ──done──────────────────────────► result
      ▲                  │ ├── its conditions do not hold ─────► result, not done
      │                  │ └── those of another request do not ► queued again, in front
      └──────────────────┴── no answer: queued again, `unsure`

A store without space refuses a transaction as a whole if there is a value anywhere in it, and takes deletions, which
are what makes space. So while it is full requests that only delete have transactions of their own, and overtake those
with a value, also those with a common key: a deletion that was asked for while a value of its key waits compares what
the store had before that. Of the requests with a value one is tried from time to time.
"""
from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeVar

from fluxmq._core.errors import UsageError
from fluxmq.cluster.ports import Change, Compare, Item, MetadataStore, StoreError, StoreFull, TransactionResult
from fluxmq.engine.ports.driver import Driver, Promise, fulfil

__all__ = ["CHANGES_MAX", "FULL_RETRY_S", "Writer"]

T = TypeVar("T")

OPERATIONS_MAX = 128  # of a transaction: etcd's default for --max-txn-ops
CHANGES_MAX = OPERATIONS_MAX // 2  # of one request, so that two share a transaction
TRANSACTIONS_MAX = 4  # under way at once
BYTES_MAX = 512 << 10  # of a transaction's values, but for one that is larger: etcd's limit for a request is 1.5 MiB
RETRY_S = 0.1
FULL_S = 0.5  # from the refusal of a value for lack of space to the next try
FULL_RETRY_S = 2.0  # from there until one whose caller does not wait in the writer is asked for again


class _Request:
    __slots__ = ("bytes", "changes", "compares", "deletes", "keys", "patient", "promise", "unsure", "until")

    def __init__(self, compares: Sequence[Compare], changes: Sequence[Change], promise: Promise[TransactionResult],
                 until: float | None, patient: bool) -> None:
        self.compares = compares
        self.changes = changes
        self.keys = {compare.key for compare in compares} | {change.key for change in changes}
        self.bytes = sum(len(change.value) for change in changes if change.value)
        self.deletes = all(change.value is None for change in changes)  # and nothing else
        self.promise = promise
        self.until = until
        self.patient = patient
        self.unsure = False  # an attempt got no answer, so it may have been done


class Writer:
    """store: where the transactions go. transactions_max: under way at once. Two writers never have a key in
    common."""

    def __init__(self, store: MetadataStore, driver: Driver, *, transactions_max: int = TRANSACTIONS_MAX) -> None:
        self._store = store
        self._driver = driver
        self._transactions_max = transactions_max
        self._queue: list[_Request] = []
        self._busy: set[bytes] = set()  # keys of the transactions under way
        self._under_way = 0
        self._full = False  # the store has refused a value for lack of space, and taken none since
        self._values = 0  # transactions with a value, under way or in the pause behind them
        self._closed: str | None = None

    async def change(self, compares: Sequence[Compare], changes: Sequence[Change], limit_s: float | None = None, *,
                     wait_for_space: bool = True) -> TransactionResult:
        """As MetadataStore.transact; compares and changes have at most CHANGES_MAX each, else it raises UsageError.
        Tries again while the store does not answer; raises StoreError after limit_s seconds, if given, or when the
        writer is closed. The request may have been done even so, or be done later. wait_for_space: False: raises
        StoreFull when the store has no space for its values; the request may have been done if that says `sent`, and
        is not done later."""
        if max(len(compares), len(changes)) > CHANGES_MAX:
            raise UsageError(f"a request of {len(compares)} compares and {len(changes)} changes: at most {CHANGES_MAX} "
                             f"of each are allowed")
        if self._closed is not None:
            raise StoreError(self._closed, retry=False)
        until = None if limit_s is None else self._driver.now() + limit_s
        request = _Request(compares, changes, self._driver.promise(), until, wait_for_space)
        self._queue.append(request)
        self._send()
        return await request.promise

    def close(self, why: str) -> None:
        """Fails everything that waits; nothing is sent any more."""
        self._closed = why
        queue, self._queue = self._queue, []
        for request in queue:
            _fail(request, StoreError(why, retry=False))

    def _send(self) -> None:
        while self._queue and self._under_way < self._transactions_max:
            batch = self._take()
            if not batch:
                return
            self._under_way += 1
            values = not all(request.deletes for request in batch)
            self._values += values
            self._driver.start(self._transact(batch, values))

    def _take(self) -> list[_Request]:
        """The next requests for one transaction."""
        if not self._full:
            return self._pick(OPERATIONS_MAX)
        if not self._values and (tried := self._pick(1, deletes=False)):
            return tried
        batch = self._pick(OPERATIONS_MAX, deletes=True)
        keys = {key for request in batch for key in request.keys}
        for request in self._queue:
            # What is overtaken, and would be asked for anew, must not be done between two deletions of a session.
            if not request.deletes and not request.patient and not request.keys.isdisjoint(keys):
                _refuse(request, "what it changes is being deleted")
        return batch

    def _pick(self, requests_max: int, *, deletes: bool | None = None) -> list[_Request]:
        """In order, except those with a key of an earlier one that waits. deletes: only those that only delete, which
        wait for none with a value; False: only the others."""
        batch: list[_Request] = []
        rest: list[_Request] = []
        blocked: set[bytes] = set()
        compares = changes = size = 0
        for at, request in enumerate(self._queue):
            if request.promise.done():
                continue                    # nobody waits for it any more
            if (compares >= OPERATIONS_MAX or changes >= OPERATIONS_MAX or size >= BYTES_MAX
                    or len(batch) == requests_max):
                rest += self._queue[at:]
                break
            if deletes is not None and request.deletes != deletes:
                rest.append(request)
                if request.deletes:
                    blocked |= request.keys
                continue
            if (compares + len(request.compares) > OPERATIONS_MAX or changes + len(request.changes) > OPERATIONS_MAX
                    or (batch and size + request.bytes > BYTES_MAX)
                    or not request.keys.isdisjoint(self._busy) or not request.keys.isdisjoint(blocked)):
                rest.append(request)
                blocked |= request.keys
                continue
            batch.append(request)
            blocked |= request.keys         # a second request with the same key needs a transaction of its own
            compares += len(request.compares)
            changes += len(request.changes)
            size += request.bytes
        self._queue = rest
        for request in batch:
            self._busy |= request.keys
        return batch

    async def _transact(self, batch: list[_Request], values: bool) -> None:
        pause = 0.0
        try:
            result = await self._store.transact(_flat(request.compares for request in batch),
                                                _flat(request.changes for request in batch))
        except StoreError as error:
            pause = RETRY_S
            if values and isinstance(error, StoreFull) and self._closed is None:
                pause = FULL_S
                self._refused(batch, error)
            else:
                self._unanswered(batch, error)
        except BaseException as error:
            for request in batch:
                _fail(request, error if isinstance(error, Exception) else StoreError(f"ended: {error}", retry=False))
            raise
        else:
            self._full = self._full and not values
            self._answered(batch, result)
        finally:
            for request in batch:
                self._busy -= request.keys
            self._under_way -= 1
        if pause and self._full:
            self._send()                    # deletions
        if pause:
            await self._driver.sleep(pause)
        self._values -= values
        self._send()

    def _unanswered(self, batch: list[_Request], error: StoreError) -> None:
        """Queues them again, but those that nobody may wait for any longer."""
        again = []
        for request in batch:
            request.unsure = True
            late = request.until is not None and self._driver.now() >= request.until
            if self._closed is not None or not error.retry or late:
                _fail(request, error)
            elif not request.promise.done():
                again.append(request)
        self._queue[:0] = again

    def _refused(self, batch: list[_Request], error: StoreFull) -> None:
        """The store has no space: fails what does not wait for that, or no longer; also what was not sent."""
        self._full = True
        waiting = []
        for request in batch:
            request.unsure = True
        for request in (*batch, *self._queue):
            late = request.until is not None and self._driver.now() >= request.until
            if not request.deletes and (late or not request.patient):
                _refuse(request, str(error))
            elif not request.promise.done():
                waiting.append(request)
        self._queue = waiting

    def _answered(self, batch: list[_Request], result: TransactionResult) -> None:
        if result.done:
            for request in batch:
                _end(request, TransactionResult(True, result.revision, result.term))
            return
        again, at = [], 0
        for request in batch:
            found = result.found[at:at + len(request.compares)]
            at += len(request.compares)
            if all(_holds(compare, item) for compare, item in zip(request.compares, found, strict=True)):
                again.append(request)       # another request of the transaction failed
            elif request.unsure and (revision := _done_at(request, found)):
                _end(request, TransactionResult(True, revision, result.term))
            else:
                _end(request, TransactionResult(False, result.revision, result.term, found))
        self._queue[:0] = again


def _flat(groups: Iterable[Sequence[T]]) -> list[T]:
    return [one for group in groups for one in group]


def _holds(compare: Compare, item: Item | None) -> bool:
    return compare.revision == (item.revision if item is not None else 0)


def _done_at(request: _Request, found: Sequence[Item | None]) -> int:
    """The revision at which an earlier attempt has made the changes; 0: none has. Decided by the keys that the request
    both compares and changes: they are what the change makes them, and were not before."""
    items = {compare.key: item for compare, item in zip(request.compares, found, strict=True)}
    revision = 0
    for change in request.changes:
        if change.key not in items:
            continue
        item = items[change.key]
        if change.value is None:
            if item is not None:
                return 0
            revision = max(revision, 1)
        elif item is None or item.value != change.value or item.lease != change.lease:
            return 0
        else:
            revision = max(revision, item.revision)
    return revision


def _refuse(request: _Request, why: str) -> None:
    full = StoreFull(why)
    full.sent = request.unsure
    _fail(request, full)


def _end(request: _Request, result: TransactionResult) -> None:
    fulfil(request.promise, result)


def _fail(request: _Request, error: Exception) -> None:
    if not request.promise.done():
        request.promise.set_exception(error)
