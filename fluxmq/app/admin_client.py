"""Client of the admin socket, for commands: one request at a time, blocking, over the standard library's HTTP.

Errors are raised as AdminError: one sentence for the user, with a remedy.
"""
import contextlib
import http.client
import json
import os
import select
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

from fluxmq._core.errors import FluxError
from fluxmq.app.broker_notes import owner
from fluxmq.app.queue_text import plain

__all__ = ["AdminClient", "AdminError"]

# Longer than the broker's own limit for an answer (ADMIN_HANDLE_SECONDS_MAX).
_ANSWER_SECONDS_MAX = 45.0
SLOW_S = 5.0  # after which who waits for an answer is told
# A tail sends something every 15 seconds, at least an empty line.
_TAIL_SECONDS_MAX = 60.0
# Maximum size of an answer: the largest browse is 4 MiB of payload, a third more in base64, and its properties.
_ANSWER_BYTES_MAX = 64 << 20
_OF_NAMESPACES = ("queues", "dlq")  # resources to which AdminClient.namespace applies


class AdminError(FluxError):
    """The broker does not answer, or its answer is an error. status: of HTTP, 0 without an answer. word: from the
    answer (not_found, conflict, …). answer: all of it. sent: without an answer, whether the broker may have done what
    was asked."""

    def __init__(self, text: str, hint: str = "", *, status: int = 0, word: str = "",
                 answer: dict[str, Any] | None = None, sent: bool = False) -> None:
        super().__init__(f"{text} ({hint})" if hint else text)
        self.status = status
        self.word = word
        self.answer = answer or {}
        self.sent = sent


class _Connection(http.client.HTTPConnection):
    """HTTP over a unix socket."""

    def __init__(self, path: Path, limit_s: float) -> None:
        super().__init__("localhost", timeout=limit_s)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        try:
            self.sock.connect(os.fspath(self._path))
        except BaseException:
            self.sock.close()
            self.sock = None
            raise


class AdminClient:
    """path: the socket. Segments that are names are quoted here. limit_s: how long an answer, and each line of a live
    view, may take. on_slow: called once per request that is not answered within SLOW_S."""

    def __init__(self, path: Path, option: str = "--socket", limit_s: float = _ANSWER_SECONDS_MAX,
                 on_slow: Callable[[], None] | None = None) -> None:
        self.path, self.option = path, option       # option: the command's option for the socket
        self.namespace: str | None = None  # of queues in requests; None: in their names
        self._limit_s, self._on_slow = limit_s, on_slow
        self._connection = _Connection(path, limit_s)

    def ask(self, method: str, *segments: str, query: dict[str, Any] | None = None, body: Any = None) -> Any:
        """Sends a request for /api/v1/<segments> and returns the answer. Raises AdminError."""
        try:
            response = self._send(method, segments, query, body)
            content = response.read(_ANSWER_BYTES_MAX + 1)
        except (OSError, http.client.HTTPException) as error:
            raise self._unreachable(error) from error
        if len(content) > _ANSWER_BYTES_MAX:
            raise AdminError("the answer is too large")
        return _read(response.status, content)

    def lines(self, *segments: str, query: dict[str, Any] | None = None) -> Iterator[dict[str, Any]]:
        """Yields the objects of a stream for as long as it is read. Raises AdminError, also at its end."""
        try:
            response = self._send("GET", segments, query, None)
            if response.status != http.client.OK:
                _read(response.status, response.read(_ANSWER_BYTES_MAX))
            if self._connection.sock is not None:
                self._connection.sock.settimeout(_TAIL_SECONDS_MAX)
            for line in response:
                if line.strip():
                    found = json.loads(line)
                    if "error" in found:
                        _read(http.client.INTERNAL_SERVER_ERROR, line)
                    yield found
        except (OSError, http.client.HTTPException) as error:
            raise self._unreachable(error) from error
        raise AdminError("the broker ended the stream: it is stopping, or was stopped")

    def record(self, ring_size: int, *, view: bool = False, who: str = "") -> tuple[dict[str, Any], Iterator[bytes]]:
        """Begins a recording: returns what the broker says about it, and lines that follow for as long as it runs.
        ring_size: bytes; 0 = as the broker is configured. view: a live view, whose lines are counters; who: who looks.
        Raises AdminError."""
        body: dict[str, Any] = {"ring_size": ring_size}
        try:
            response = self._send("POST", ("record",), None, body | ({"view": True, "who": who} if view else {}))
            if response.status != http.client.OK:
                _read(response.status, response.read(_ANSWER_BYTES_MAX))
            if self._connection.sock is not None:
                self._connection.sock.settimeout(self._limit_s if view else _TAIL_SECONDS_MAX)
            return json.loads(response.readline()), self._rest(response)
        except (OSError, ValueError, http.client.HTTPException) as error:
            raise self._unreachable(error) from error

    @staticmethod
    def _rest(response: http.client.HTTPResponse) -> Iterator[bytes]:
        try:
            yield from response
        except (OSError, ValueError, AttributeError, http.client.HTTPException):
            return  # closed, by either side

    def close(self) -> None:
        """Closes the connection, which ends the request, also while another thread reads a stream."""
        if self._connection.sock is not None:
            with contextlib.suppress(OSError):
                self._connection.sock.shutdown(socket.SHUT_RDWR)
        self._connection.close()

    def _send(self, method: str, segments: tuple[str, ...], query: dict[str, Any] | None,
              body: Any) -> http.client.HTTPResponse:
        if "" in segments:
            raise AdminError("a name is empty", "a shell's variable that is not set may be the reason")
        try:
            target = "/api/v1/" + "/".join(quote(segment, safe="") for segment in segments)
        except UnicodeEncodeError:  # bytes of the command line that are not valid text are decoded as surrogates
            raise AdminError("names are UTF-8", "the shell's locale may say otherwise") from None
        if self.namespace is not None and segments[0] in _OF_NAMESPACES:
            query = {**(query or {}), "namespace": self.namespace}
        given = {word: _text(value) for word, value in (query or {}).items() if value is not None}
        if given:
            target += "?" + urlencode(given)
        content = None if body is None else json.dumps(body).encode()
        self._connection.request(method, target, content, {"Content-Type": "application/json"} if content else {})
        if self._on_slow is not None and not self._is_answered(SLOW_S):
            self._on_slow()
        return self._connection.getresponse()

    def _is_answered(self, within_s: float) -> bool:
        poll = select.poll()
        poll.register(self._connection.sock, select.POLLIN)
        return bool(poll.poll(within_s * 1000))

    def _unreachable(self, error: Exception) -> AdminError:
        """Also for an answer that is not valid HTTP."""
        self._connection.close()
        if isinstance(error, FileNotFoundError | ConnectionRefusedError):
            if (one := owner(self.path)) is not None:
                return AdminError(f"the broker at {self.path} (process {one.pid}) is {one.now}",
                                  "its log may say more" if one.stops else "try again; its log may say more")
            return AdminError(f"no broker answers at {self.path}",
                              f"start one with `fluxmq run`, or say where it is by --config FILE or {self.option} PATH")
        if isinstance(error, PermissionError):
            return AdminError(f"{self.path} may not be opened", "run this as the user of the broker, or as root")
        if isinstance(error, TimeoutError):
            return AdminError(f"the broker at {self.path} does not answer in time", "its log may say why", sent=True)
        if isinstance(error, http.client.RemoteDisconnected | ConnectionResetError | BrokenPipeError):
            return AdminError(f"the broker at {self.path} ended the connection",
                              "it stopped, or has as many connections as it allows", sent=True)
        if isinstance(error, http.client.HTTPException):
            return AdminError(f"what answers at {self.path} is not the admin socket of a broker")
        return AdminError(f"{self.path}: {getattr(error, 'strerror', None) or error}")


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _read(status: int, content: bytes) -> Any:
    try:
        found = json.loads(content)
    except ValueError:
        raise AdminError(f"what answers there is not the admin socket of a broker (status {status})") from None
    if status < http.client.BAD_REQUEST:
        return found
    if not isinstance(found, dict):
        found = {}
    hint = plain(found["hint"]) if found.get("hint") else ""
    raise AdminError(plain(found.get("detail", f"status {status}")), hint, status=status,
                     word=str(found.get("error", "")), answer=found)
