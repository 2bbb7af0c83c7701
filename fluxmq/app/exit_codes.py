"""Exit codes of `fluxmq`. A supervisor may restart on 1; 2 and 4 need an operator; 3 needs another port. 5 to 7 are of
commands that are clients of a broker, `fluxmq pub` and `fluxmq sub`: after 6 and 7 the same may succeed later."""
import errno

from fluxmq._core.errors import ConfigError, FluxError, StorageError

__all__ = ["BIND", "CONFIG", "FAILURE", "INTERRUPTED", "LATER", "MEANINGS", "OK", "REFUSED", "STORAGE", "TIMEOUT",
           "UNREACHABLE", "BindError", "RefusedError", "TimeoutOver", "UnreachableError", "exit_code"]

OK = 0
FAILURE = 1
CONFIG = 2
BIND = 3
STORAGE = 4
REFUSED = 5
UNREACHABLE = 6
TIMEOUT = 7
LATER = 8
INTERRUPTED = 130

MEANINGS = {
    OK: "done; for `fluxmq run`, stopped by a signal and everything is on the disk",
    FAILURE: "something failed while running",
    CONFIG: "the command line or the configuration cannot be used",
    BIND: "an address cannot be listened on",
    STORAGE: "the storage cannot be opened",
    REFUSED: "`fluxmq pub`, `sub`: the broker refused the login, the subscription or a message",
    UNREACHABLE: "`fluxmq pub`, `sub`: no broker answers, or the connection is lost",
    TIMEOUT: "`fluxmq pub`, `sub`: the time of --timeout was over before all was done",
    LATER: "this version does not have it yet; a later one will",
    INTERRUPTED: "interrupted from the keyboard before it was done, or before the broker ran",
}


class BindError(FluxError):
    """Listening on an address failed. The text names the key, the address and the system's reason, and suggests a
    remedy if the address is in use."""

    def __init__(self, path: str, address: str, reason: OSError, hint: str = "") -> None:
        text = f"{path}: cannot listen on {address}: {reason.strerror or reason}"
        super().__init__(f"{text}. {hint}" if hint and reason.errno == errno.EADDRINUSE else text)
        self.path = path
        self.address = address
        self.reason = reason


class RefusedError(FluxError):
    """The broker refused what a client asked for."""


class UnreachableError(FluxError):
    """There is no connection to a broker."""


class TimeoutOver(FluxError):
    """The time that a command may take is over."""


_CODES: dict[type[FluxError], int] = {ConfigError: CONFIG, BindError: BIND, StorageError: STORAGE,
                                      RefusedError: REFUSED, UnreachableError: UNREACHABLE, TimeoutOver: TIMEOUT}


def exit_code(error: BaseException) -> int:
    """The status for an error that ends the command."""
    return next((code for kind, code in _CODES.items() if isinstance(error, kind)), FAILURE)
