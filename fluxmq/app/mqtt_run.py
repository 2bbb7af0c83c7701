"""What `fluxmq pub` and `fluxmq sub` do alike while they run: signals, limits of time, what is said of the connection,
and errors as one sentence with a status of exit_codes.py.

    work ── done ─► its status
      ├── SIGINT, SIGTERM ─► cancelled, so that the client says goodbye ─► Interrupted
      ├── --timeout is over ─► cancelled the same way ─► TimeOver
      └── an error of the client ─► RefusedError, UnreachableError, click.UsageError
"""
from __future__ import annotations

import asyncio
import contextlib
import re
import signal
import socket
import ssl
import sys
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import click

from fluxmq._core.errors import FluxError
from fluxmq.app.exit_codes import RefusedError, UnreachableError
from fluxmq.app.mqtt_options import Given
from fluxmq.app.queue_text import plain
from fluxmq.client import Client
from fluxmq.client.errors import (
    ConnectionLost,
    ConnectRefused,
    NotConnected,
    ProtocolError,
    PublishRefused,
    SessionLost,
    SubscribeRefused,
    UsageError,
)

__all__ = ["Interrupted", "Teller", "TimeOver", "finished", "note"]

T = TypeVar("T")

# What to do about a refusal of the login, by the code of MQTT 5, and by that of 3.1.1.
BAD_VERSION, BAD_ID, BAD_PASSWORD, NOT_AUTHORIZED = 0x84, 0x85, 0x86, 0x87
HINTS = {
    BAD_VERSION: "try another --mqtt",
    BAD_ID: "give another --client-id",
    BAD_PASSWORD: "give --user, and the password by --password-file or FLUXMQ_PASSWORD",
    NOT_AUTHORIZED: "give --user with a name that may connect, and its password by --password-file or FLUXMQ_PASSWORD",
    0x8A: "the broker lets this address or user in later, or when an operator lifts the ban (fluxmq ban list)",
    0x8E: "another client has connected with the same --client-id",
}
# Of a message or a filter.
REFUSED_HINTS = {NOT_AUTHORIZED: "an operator gives this user a permission for it",
                 0x97: "try again when there is room"}
NO_QUEUE = ("no such queue", "there is no queue")
NOT_THERE = re.compile(r"\[Errno \d+\] Connect call failed \(.*\)")     # asyncio's words
NOT_TEXT = "holds a surrogate, which UTF-8 cannot carry"        # for what the shell has passed on
CODES_3 = {1: BAD_VERSION, 2: BAD_ID, 4: BAD_PASSWORD, 5: NOT_AUTHORIZED}


class Interrupted(Exception):
    """A signal ended the work."""


class TimeOver(Exception):
    """--timeout ended the work."""


def note(text: str) -> None:
    """Says something on standard error."""
    click.echo(f"fluxmq: {text}", err=True)


class Teller:
    """Says when the connection goes and comes again. on_lost: called when it goes."""

    def __init__(self, given: Given) -> None:
        self.given = given
        self.talks = given.verbose or sys.stderr.isatty()      # somebody looks, and wonders
        self.client: Client
        self.on_lost: Callable[[], object] = lambda: None
        self._at = ""
        self.lost = False       # there was a connection, and there is none

    def make(self, **more: Any) -> Client:
        """The client. Raises click.UsageError."""
        self.client = self.given.client(on_connected=self._connected, on_lost=self._gone, **more)
        return self.client

    @property
    def where(self) -> str:
        """Where the client is connected."""
        return self._at or self.client.address

    def _connected(self) -> None:
        if not self.client.connected:
            return
        self._at = self.client.address
        if self.lost:
            note(f"connected again, to {plain(self._at)}")
        elif self.given.verbose:
            note(f"connected to {plain(self._at)}")
        self.lost = False

    def _gone(self, error: BaseException) -> None:
        if not self.lost:
            note(f"the connection to {plain(self._at)} is lost ({plain(error)}); connecting again")
        self.lost = True
        self.on_lost()


def finished(teller: Teller, work: Coroutine[Any, Any, T], limit_s: float | None) -> T:
    """Runs it on an event loop. Raises Interrupted, TimeOver, and errors that say what to do."""
    try:
        return asyncio.run(_guarded(work, limit_s))
    except UsageError as error:
        raise click.UsageError(str(error).replace(NOT_TEXT, "is not UTF-8")) from None
    except (OSError, FluxError) as error:
        raise explained(error, teller) from error


async def _guarded(work: Coroutine[Any, Any, T], limit_s: float | None) -> T:
    loop, task = asyncio.get_running_loop(), asyncio.ensure_future(work)
    stopped = False

    def stop() -> None:
        nonlocal stopped
        stopped = True
        task.cancel()

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop)
    try:
        async with asyncio.timeout(limit_s) as limit:
            return await task
    except asyncio.CancelledError:
        if stopped:
            raise Interrupted from None
        raise
    except TimeoutError:
        if limit.expired():
            raise TimeOver from None
        raise
    finally:
        if not task.done():
            task.cancel()
        with contextlib.suppress(BaseException):
            await task


def explained(error: BaseException, teller: Teller) -> Exception:
    """An error of the client as the sentence for the user."""
    where = plain(teller.where)
    if isinstance(error, ConnectRefused):
        code = CODES_3.get(error.reason, error.reason) if teller.given.version < 5 else error.reason
        return RefusedError(_sentence(f"{where}: {plain(error)}", HINTS.get(code, "")))
    if isinstance(error, (PublishRefused, SubscribeRefused)):
        is_queue = any(words in error.text for words in NO_QUEUE)
        return RefusedError(_sentence(plain(error), "`fluxmq queue create NAME` makes one" if is_queue else
                                      REFUSED_HINTS.get(error.reason, "")))
    if isinstance(error, ConnectionLost):
        return UnreachableError(_sentence(f"the connection to {where} is lost: {plain(error)}",
                                          HINTS.get(error.reason, "")))
    if isinstance(error, SessionLost):
        return UnreachableError(plain(error))
    if isinstance(error, ProtocolError):
        return UnreachableError(f"what answers at {where} does not speak MQTT {teller.given.mqtt}: {plain(error)}")
    if isinstance(error, NotConnected):
        return UnreachableError(f"there is no connection to {where}")
    if isinstance(error, OSError):
        return _unreachable(error, teller)
    return error if isinstance(error, Exception) else RuntimeError(str(error))


def _sentence(text: str, hint: str) -> str:
    return f"{text}; {hint}" if hint else text


def _unreachable(error: OSError, teller: Teller) -> UnreachableError:
    """No broker answers: which were asked, and what each of them said."""
    others = [plain(NOT_THERE.sub("no broker answers", text)) for text in getattr(error, "__notes__", ())]
    where = plain(teller.client.address)
    if isinstance(error, ssl.SSLCertVerificationError):
        return UnreachableError(_all(f"the certificate of {where} is not accepted: {plain(error.verify_message)}; give "
                                     "the authority that signed it by --ca-file, or --insecure to accept any", others))
    if isinstance(error, ssl.SSLError):
        return UnreachableError(_all(f"TLS with {where} fails: {plain(error.reason or error)}; does it speak TLS "
                                     "there, and does it want a certificate (--cert)?", others))
    if isinstance(error, socket.gaierror):
        return UnreachableError(_all(f"{where}: there is no host of this name; check --broker", others))
    if isinstance(error, FileNotFoundError):
        return UnreachableError(_all(f"there is no socket {where}; check --broker", others))
    if isinstance(error, TimeoutError) and error.args:
        return UnreachableError(_all(plain(error), others))
    if isinstance(error, ConnectionRefusedError) or "Connect call failed" in str(error):
        return UnreachableError(_all(f"no broker answers at {where}; start one with `fluxmq run`, or say where it is "
                                     "by --broker", others))
    return UnreachableError(_all(f"{where}: {plain(error.strerror or error)}", others))


def _all(text: str, others: list[str]) -> str:
    return f"{text}. Before it: {'; '.join(others)}" if others else text
