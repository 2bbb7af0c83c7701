"""Exit codes of `fluxmq`. A supervisor may restart on 1; 2 and 4 need an operator; 3 needs another port."""
import errno

from fluxmq._core.errors import ConfigError, FluxError, StorageError

__all__ = ["BIND", "CONFIG", "FAILURE", "INTERRUPTED", "LATER", "MEANINGS", "OK", "STORAGE", "BindError", "exit_code"]

OK = 0
FAILURE = 1
CONFIG = 2
BIND = 3
STORAGE = 4
LATER = 5
INTERRUPTED = 130

MEANINGS = {
    OK: "done; for `fluxmq run`, stopped by a signal and everything is on the disk",
    FAILURE: "something failed while running",
    CONFIG: "the command line or the configuration cannot be used",
    BIND: "an address cannot be listened on",
    STORAGE: "the storage cannot be opened",
    LATER: "this version does not have it yet; a later one will",
    INTERRUPTED: "interrupted from the keyboard before the broker ran",
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


def exit_code(error: BaseException) -> int:
    """The status for an error that ends the command."""
    if isinstance(error, ConfigError):
        return CONFIG
    if isinstance(error, BindError):
        return BIND
    return STORAGE if isinstance(error, StorageError) else FAILURE
