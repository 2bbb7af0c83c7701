"""A watch of etcd that goes on wherever there is an endpoint.

A task holds one stream. When it breaks, or says nothing for a while, the task opens another, at the endpoint that is
next, behind the last revision that was reported: so nothing is left out and nothing comes twice.

- A member that loses its leader ends the stream by itself ("hasleader"). A member that stands still, or a network that
  drops everything, shows in silence: after a second without a word we ask for the progress, and after three without an
  answer we leave.
- The revision in the answer to such a question is not used: before etcd 3.4.25 and 3.5.8 it is not in order with the
  events (etcd issue 15220). That of a progress report which etcd sends by itself is right.
- A response may be cut into fragments, a revision in its middle. They are joined, so a batch has whole revisions only.
- It begins at the last revision that was reported, and drops that: a watch from exactly the compacted revision on would
  leave out deletions of that revision (etcd issue 19179). From one before it on, etcd says that it is compacted.
- A member that is behind may report events again from before our revision (etcd issue 20221): they are dropped.
"""
from __future__ import annotations

import asyncio
from collections import deque
from typing import Any

import grpc.aio

from fluxmq.cluster.etcd.additions import WatchRequest
from fluxmq.cluster.etcd.endpoints import WITH_LEADER, Endpoint, Endpoints
from fluxmq.cluster.etcd.errors import Cause, EtcdCompacted, EtcdError, cause_of_text
from fluxmq.cluster.ports import Event, StoreError, WatchBatch

__all__ = ["EtcdWatch"]

ASK_S = 1.0             # of silence, before the progress is asked for
SILENCE_S = (3.0, 60.0)  # before the endpoint is left: at first, at most; doubled when nothing came of it
PAUSE_S = (0.02, 0.25)  # before another endpoint is tried, when none could be opened
BATCHES_MAX = 256       # that nobody has asked for: then etcd is not read
DELETED = 1             # Event.EventType


class EtcdWatch:
    """A Watch over the keys from `key` to `range_end`, behind the revision `after`."""

    def __init__(self, endpoints: Endpoints, key: bytes, range_end: bytes, after: int) -> None:
        self._endpoints = endpoints
        self._key, self._range_end = key, range_end
        self._last = after
        self._batches: deque[WatchBatch] = deque()
        self._end: StoreError | None = None
        self._news = asyncio.Event()    # there is a batch, or the end
        self._room = asyncio.Event()    # there are fewer than BATCHES_MAX
        self._room.set()
        self._silence_s = SILENCE_S[0]
        self.endpoint = ""              # where the stream is; "": nowhere
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def next(self) -> WatchBatch:
        """As Watch.next. One caller at a time."""
        while not self._batches:
            if self._end is not None:
                raise self._end.with_traceback(None)
            self._news.clear()
            await self._news.wait()
        self._room.set()
        return self._batches.popleft()

    @property
    def task(self) -> asyncio.Task[None]:
        """What reads the stream; done a moment after close()."""
        return self._task

    def close(self) -> None:
        """As Watch.close."""
        self._task.cancel()
        self._batches.clear()
        self._finish(EtcdError(Cause.CLOSED, "", "the watch was closed"))

    def _finish(self, error: StoreError) -> None:
        self._end = error
        self._news.set()

    async def _run(self) -> None:
        pause = PAUSE_S[0]
        while self._end is None:
            try:
                endpoint = next(self._endpoints.in_order())
                before = self._last
                await endpoint.call(self._stream, self._endpoints.limit_s)
            except EtcdError as error:
                if isinstance(error, EtcdCompacted) or not (error.retry or error.leave):
                    self._finish(error)
                    return
                self._endpoints.fails(endpoint, error)
                if self._last > before:
                    pause = PAUSE_S[0]
            finally:
                self.endpoint = ""
            await asyncio.sleep(pause)
            pause = min(pause * 2, PAUSE_S[1])

    async def _stream(self, endpoint: Endpoint, limit_s: float) -> None:
        """Reads a stream until it ends, which it does with an error only."""
        call = endpoint.watch(metadata=WITH_LEADER)
        reading: asyncio.Future[Any] | None = None
        try:
            await self._write(endpoint, call, WatchRequest(create_request={
                "key": self._key, "range_end": self._range_end, "start_revision": max(self._last, 1),
                "progress_notify": True, "fragment": True}))
            fragments: list[Any] = []
            silent = 0.0
            while True:
                if reading is None:
                    reading = asyncio.ensure_future(call.read())
                await asyncio.wait({reading}, timeout=ASK_S)
                if not reading.done():
                    silent += ASK_S
                    if silent >= self._silence_s:
                        self._silence_s = min(self._silence_s * 2, SILENCE_S[1])
                        raise EtcdError(Cause.LATE, endpoint.address,
                                        f"etcd at {endpoint.address}: the watch has been silent for {silent:.3g} s")
                    await self._write(endpoint, call, WatchRequest(progress_request={}))
                    continue
                response, reading, silent = reading.result(), None, 0.0
                if response is grpc.aio.EOF:
                    raise EtcdError(Cause.BROKEN, endpoint.address,
                                    f"etcd at {endpoint.address}: the watch has ended")
                self._take(endpoint, response, fragments)
                await self._room.wait()
        finally:
            call.cancel()
            if reading is not None:
                await asyncio.wait({reading})
                _retrieve(reading)

    async def _write(self, endpoint: Endpoint, call: Any, request: Any) -> None:
        try:
            async with asyncio.timeout(SILENCE_S[0]):
                await call.write(request)
        except TimeoutError:
            raise EtcdError(Cause.LATE, endpoint.address,
                            f"etcd at {endpoint.address}: the watch takes no requests") from None
        except asyncio.InvalidStateError:
            # The stream has ended, and the reader is told why.
            return

    def _take(self, endpoint: Endpoint, response: Any, fragments: list[Any]) -> None:
        """One response; batches, Compacted and other ends come of it."""
        self._endpoints.check_cluster(endpoint, response)
        if response.canceled:
            raise self._cancelled(endpoint, response)
        if response.created:
            self.endpoint = endpoint.address
            return
        self._silence_s = SILENCE_S[0]
        if response.watch_id < 0:           # the answer to a question for the progress
            return
        fragments.extend(response.events)
        if response.fragment:
            return
        events = [_event(event) for event in fragments if event.kv.mod_revision > self._last]
        fragments.clear()
        if events:
            self._last = events[-1].revision
        elif not response.events and response.header.revision > self._last:
            self._last = response.header.revision
        else:
            return
        self._batches.append(WatchBatch(self._last, events))
        self._news.set()
        if len(self._batches) >= BATCHES_MAX:
            self._room.clear()

    def _cancelled(self, endpoint: Endpoint, response: Any) -> EtcdError:
        if response.compact_revision:
            return EtcdCompacted(Cause.COMPACTED, endpoint.address,
                                 f"etcd at {endpoint.address}: what follows revision {self._last} has been compacted, "
                                 f"the first that is left is {response.compact_revision}")
        reason = response.cancel_reason or "no reason was given"
        cause, said = cause_of_text(reason) or (Cause.BROKEN, reason)
        return EtcdError(cause, endpoint.address, f"etcd at {endpoint.address}: the watch was cancelled: {said}")


def _event(event: Any) -> Event:
    kv = event.kv
    if event.type == DELETED:
        return Event(kv.key, None, kv.mod_revision, 0, 0)
    return Event(kv.key, kv.value, kv.mod_revision, kv.create_revision, kv.lease)


def _retrieve(future: asyncio.Future[Any]) -> None:
    """Its exception is taken, so that asyncio does not report it as lost."""
    if not future.cancelled():
        future.exception()
