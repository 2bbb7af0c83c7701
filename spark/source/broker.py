"""Messages of a running broker, through its admin socket: pages of them as bytes (`_core/queue/page`). Nothing is
claimed or settled. Blocking, one request at a time; the socket is of this machine. In a cluster it is that of any node:
the queue's messages come through it from the node that has them."""
from __future__ import annotations

import http.client
import json
import socket
import time
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import quote, urlencode

from fluxmq._core.errors import CorruptError
from fluxmq._core.queue.page import PAGE_TYPE, decode_page
from fluxmq._core.queue.rows import Rows
from fluxmq.spark.source.columns import SourceError
from fluxmq.spark.source.place import LogRange, LogRemoved, NoQueue, QueueLog, QueueLogs, feed
from fluxmq.spark.source.plan import Filters

__all__ = ["BrokerPlace"]

ANSWER_SECONDS = 45.0           # longer than the broker's own limit for an answer
RETRY_SECONDS = 0.25
UNDER_WAY = "$under-way-"


class _Connection(http.client.HTTPConnection):
    """HTTP over a unix socket."""

    def __init__(self, path: str) -> None:
        super().__init__("localhost", timeout=ANSWER_SECONDS)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self.sock.settimeout(self.timeout)
            self.sock.connect(self._path)
        except BaseException:
            self.close()
            raise


class BrokerPlace:
    """`Place` of a running broker. path: of its admin socket. timeout: seconds for which a broker may be away after its
    first answer, or the node of its cluster that has the queue. `answered`: it has answered once."""

    def __init__(self, path: str, timeout: float = 30.0, answered: bool = False) -> None:
        self.path, self.timeout, self.answered = path, timeout, answered
        self.pages = 0
        self._connection: _Connection | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {"path": self.path, "timeout": self.timeout, "answered": self.answered, "pages": 0, "_connection": None}

    def names(self) -> list[str]:
        """Without those that hold what is on its way between two nodes."""
        return [queue["name"] for queue in self._json("queues")["queues"] if not queue["name"].startswith(UNDER_WAY)]

    def logs(self, queue: str, time_ms: int | None = None) -> QueueLogs:
        found = self._json("queues", queue, "logs",
                           query={} if time_ms is None else {"position": f"timestamp={time_ms}"})
        return QueueLogs(queue, found["type"], [
            QueueLog(log["partition"], log["lane"], int(log["log"], 16), log["first"], log["next"], log["bytes"],
                     log.get("offset"), found.get("identity", "")) for log in found["logs"]])

    def extra(self, queue: QueueLogs, log: QueueLog, start: int, end: int) -> None:
        """Nothing: the broker has all information."""

    def read(self, work: LogRange, rows: Rows, filters: Filters) -> Iterator[None]:
        self.answered = True        # a range exists, so the broker has answered: wait if it is away
        at, known = work.start, {"identity": work.log.identity} if work.log.identity else {}
        while at < work.end:
            content = self._ask(("queues", work.queue, "messages"), {
                "partition": work.log.partition, "lane": work.log.lane, "from": at, "to": work.end, **known}, PAGE_TYPE)
            try:
                log, first, end, following, messages = decode_page(content)
            except CorruptError as error:
                raise SourceError(f"what {self.path} answers cannot be read: {error}. Broker and data source are of "
                                  f"different versions") from None
            if not known and log != work.log.number:
                raise SourceError(f"queue {work.queue} was deleted and made again while it was read")
            self.pages += 1
            if at < first and work.kind == "stream":
                raise LogRemoved(work.queue, work.log.partition, at, min(first, work.end))
            if following <= at:
                raise SourceError(f"queue {work.queue} ends at offset {end} of partition {work.log.partition}, but "
                                  f"messages up to {work.end} were there before: its storage is an older copy")
            yield from feed(rows, messages)
            at = following

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    # ------------------------------------------------------------------ the socket

    def _json(self, *segments: str, query: dict[str, Any] | None = None) -> Any:
        return json.loads(self._ask(segments, query or {}, "application/json"))

    def _ask(self, segments: tuple[str, ...], query: dict[str, Any], accept: str) -> bytes:
        """The body of an answer. Once the broker has answered, waits for it, and for the node that has the queue."""
        target = "/api/v1/" + "/".join(quote(segment, safe="") for segment in segments)
        target += "?" + urlencode(query) if query else ""
        until = time.monotonic() + (self.timeout if self.answered else 0.0)
        while True:
            status, content = self._patiently(lambda: self._once(target, accept))
            self.answered = True
            if status < http.client.BAD_REQUEST:
                return content
            if not _is_away(status, content) or time.monotonic() >= until:
                break
            time.sleep(RETRY_SECONDS)
        try:
            found = json.loads(content)
            text = f"{found['detail']} ({found['hint']})" if found.get("hint") else str(found["detail"])
        except (ValueError, KeyError, TypeError):
            raise SourceError(f"what answers at {self.path} is not the admin socket of a broker (status {status})") \
                from None
        if status == http.client.NOT_FOUND and segments[-1] == "logs":
            if "no such path" not in text:
                raise NoQueue(f"the broker at {self.path} says: {text}")
            text = "this broker is older than the data source: it cannot say where its logs are"
        if status == http.client.CONFLICT and segments[-1] == "messages":
            text = f"queue {segments[1]} was deleted and made again while it was read"
        raise SourceError(f"the broker at {self.path} says: {text}")

    def _once(self, target: str, accept: str) -> tuple[int, bytes]:
        if self._connection is None:
            self._connection = _Connection(self.path)
        self._connection.request("GET", target, headers={"Accept": accept})
        response = self._connection.getresponse()
        return response.status, response.read()

    def _patiently(self, call: Callable[[], tuple[int, bytes]]) -> tuple[int, bytes]:
        until = time.monotonic() + (self.timeout if self.answered else 0.0)
        fresh = self._connection is None
        while True:
            try:
                return call()
            except (OSError, http.client.HTTPException) as error:
                self.close()
                if "too long" in str(error):
                    raise SourceError(f"{self.path} is too long for the path of a socket (107 bytes): give it relative "
                                      f"to the working directory, or set server.admin_socket") from None
                if isinstance(error, PermissionError):
                    raise SourceError(f"{self.path} may not be opened: run this as the user of the broker, or as "
                                      f"root") from None
                # an idle connection may have been closed by the broker, so the first failure is ignored
                if time.monotonic() >= until and fresh:
                    raise self._unreachable(error) from None
                if fresh:
                    time.sleep(RETRY_SECONDS)
                fresh = True

    def _unreachable(self, error: Exception) -> SourceError:
        if isinstance(error, FileNotFoundError | ConnectionRefusedError):
            away = f" for {self.timeout:.0f} s" if self.answered else ""
            return SourceError(f"no broker answers at {self.path}{away}: start it, or say by option admin where its "
                               f"admin socket is (server.admin_socket, else admin.sock in storage.dir)")
        return SourceError(f"the broker at {self.path} ended the connection in the middle of an answer: {error}")


def _is_away(status: int, content: bytes) -> bool:
    """Whether the broker says that another node of its cluster, which has the queue, is away."""
    return status == http.client.SERVICE_UNAVAILABLE and b'"node"' in content
