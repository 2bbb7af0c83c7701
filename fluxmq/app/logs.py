"""Structured logs on the standard library: text for people, JSON for machines, and a limit per cause.

    2026-01-31T12:00:00.123Z WARN fluxmq.mqtt slow subscriber client=lamp dropped=17
    {"time":"2026-01-31T12:00:00.123Z","level":"warn","logger":"fluxmq.mqtt","message":"slow subscriber",...}

Fields are given as `extra`. Whatever a client chose (its id, a topic) reaches the log only as a field or quoted, so a
line break in it cannot forge a line. Loggers are named by what speaks: fluxmq.mqtt, fluxmq.storage, fluxmq.health, ...
"""
import json
import logging
import sys
from collections import OrderedDict
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, TextIO

from fluxmq.model.limits import LOG_CAUSES_MAX, LOG_INTERVAL_SECONDS

__all__ = ["LEVELS", "JsonFormatter", "Notes", "RateLimited", "TextFormatter", "configure"]

# Names for log.level in the configuration.
LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warn": logging.WARNING, "error": logging.ERROR}

# Attributes of every LogRecord; all others are from `extra`. `taskName` exists since Python 3.12.
_OWN = frozenset(vars(logging.LogRecord("", 0, "", 0, "", None, None))) | {"message", "asctime", "taskName"}
# Names that each line uses itself: a field of the same name is written as name_.
_TAKEN = frozenset({"time", "level", "logger", "message", "error"})


def configure(level: str, form: str, stream: TextIO | None = None) -> logging.Handler:
    """Sets up the logger "fluxmq" and everything below it; a second call replaces the first (reload).

    level: a name of LEVELS. form: "text" or "json". stream: standard error if None. Loggers of other libraries are set
    up as well, from WARNING on, so that their messages have the same format.
    """
    handler = logging.StreamHandler(stream if stream is not None else sys.stderr)
    handler.setFormatter(JsonFormatter() if form == "json" else TextFormatter())
    root = logging.getLogger()
    for old in [old for old in root.handlers if getattr(old, "_fluxmq", False)]:
        root.removeHandler(old)
    handler._fluxmq = True  # type: ignore[attr-defined]
    root.addHandler(handler)
    root.setLevel(logging.WARNING)
    logging.getLogger("fluxmq").setLevel(LEVELS[level])
    return handler


def _time(record: logging.LogRecord) -> str:
    """RFC 3339, UTC, milliseconds."""
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _level(record: logging.LogRecord) -> str:
    return "WARN" if record.levelno == logging.WARNING else record.levelname


def _fields(record: logging.LogRecord) -> dict[str, Any]:
    return {f"{name}_" if name in _TAKEN else name: value for name, value in vars(record).items() if name not in _OWN}


class JsonFormatter(logging.Formatter):
    """One object per line. Values that JSON cannot represent are written as text."""

    def format(self, record: logging.LogRecord) -> str:
        line = {"time": _time(record), "level": _level(record).lower(), "logger": record.name,
                "message": record.getMessage(), **_fields(record)}
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        try:
            return json.dumps(line, ensure_ascii=False, default=str, separators=(",", ":"), skipkeys=True)
        except ValueError:
            # a value that contains itself: only its type is written
            safe = {name: value if isinstance(value, (str, int, float)) else str(type(value))
                    for name, value in line.items()}
            return json.dumps(safe, ensure_ascii=False, separators=(",", ":"))


class TextFormatter(logging.Formatter):
    """One line, then the traceback if there is one."""

    def format(self, record: logging.LogRecord) -> str:
        message = record.getMessage()
        if not message.isprintable():
            message = json.dumps(message, ensure_ascii=True)
        parts = [_time(record), _level(record), record.name, message]
        parts.extend(f"{_plain(name)}={_plain(value)}" for name, value in _fields(record).items())
        line = " ".join(parts)
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


def _plain(value: object) -> str:
    """The value unchanged if that is unambiguous, otherwise in double quotes with JSON's escapes."""
    text = str(value)
    if text and text.isprintable() and not any(character in ' "=\\' for character in text):
        return text
    return json.dumps(text, ensure_ascii=not text.isprintable())


CONNECTION_LINES_MAX = 20  # a second, at info: keeps the log readable when ten thousand devices reconnect


class RateLimited:
    """A logger that writes lines of one cause at most once per interval, with the number of suppressed ones.

    The first line of a cause is written at once; the next one not before the interval has passed, with `suppressed` set
    to the number of lines suppressed in between. Only the most recent causes are remembered (LOG_CAUSES_MAX), so that
    an attacker who invents causes cannot use up memory.
    """

    def __init__(self, logger: logging.Logger, clock: Callable[[], float],
                 interval_seconds: float = LOG_INTERVAL_SECONDS, causes_max: int = LOG_CAUSES_MAX) -> None:
        """clock: seconds, monotonic."""
        self._logger = logger
        self._clock = clock
        self._interval = interval_seconds
        self._causes_max = causes_max
        # By last use. Not cachetools.LRUCache: an evicted cause's suppressed line must be written.
        self._causes: OrderedDict[str, _Cause] = OrderedDict()

    def log(self, level: int, cause: str, message: str, /, **fields: object) -> None:
        """level: of logging. cause: groups lines, such as "drop:client-id"; not written. fields: extra."""
        if not self._logger.isEnabledFor(level):
            return
        now = self._clock()
        known = self._causes.get(cause)
        if known is not None and now - known.at < self._interval:
            known.suppressed += 1
            known.level, known.message, known.fields = level, message, fields
            return
        if known is None:
            self._make_room()
            known = self._causes[cause] = _Cause()
        suppressed, known.suppressed = known.suppressed, 0
        known.at = now
        self._causes.move_to_end(cause)
        self._emit(level, message, fields, suppressed)

    def flush(self) -> None:
        """Writes suppressed lines whose interval has passed; to be called regularly, and at stop for all of them.

        Without it a burst's last count would wait for the next burst. A line written here begins a new interval."""
        now = self._clock()
        for cause, known in list(self._causes.items()):
            if now - known.at < self._interval:
                continue
            if known.suppressed:
                self._let_go(known)
                known.at, known.suppressed = now, 0
            else:
                del self._causes[cause]

    def close(self) -> None:
        """Writes all suppressed lines at once."""
        while self._causes:
            self._let_go(self._causes.popitem(last=False)[1])

    def _make_room(self) -> None:
        while len(self._causes) >= self._causes_max:
            self._let_go(self._causes.popitem(last=False)[1])

    def _let_go(self, known: "_Cause") -> None:
        if known.suppressed:
            self._emit(known.level, known.message, known.fields, known.suppressed)

    def _emit(self, level: int, message: str, fields: Mapping[str, object], suppressed: int) -> None:
        extra = _renamed(fields)
        if suppressed:
            extra["suppressed"] = suppressed
        self._logger.log(level, "%s", message, extra=extra)


def _renamed(fields: Mapping[str, object]) -> dict[str, object]:
    """logging raises KeyError for extra fields with the names of its own attributes."""
    return {f"{name}_" if name in _OWN else name: value for name, value in fields.items()}


class Notes:
    """Writes one component's messages to the operator. name: of its logger. clock: seconds, monotonic.
    interval_seconds: between two lines of one cause."""

    def __init__(self, name: str, clock: Callable[[], float], interval_seconds: float = LOG_INTERVAL_SECONDS) -> None:
        self.log = logging.getLogger(name)
        self._limited = RateLimited(self.log, clock, interval_seconds)
        self._clock = clock
        self._connections = 0  # lines about them since _since, the first second of which has not passed
        self._since = clock()

    def say(self, level: str, cause: str, text: str, fields: dict[str, Any]) -> None:
        """level: debug, info, warning or error. cause: limits lines to one an interval for each cause; "" = no limit.
        fields: "error" is an exception, whose traceback is written at the level debug."""
        number: int = getattr(logging, level.upper())
        if cause:
            self._limited.log(number, cause, text, **{k: v for k, v in fields.items() if k != "error"})
        elif self.log.isEnabledFor(number):
            self.log.log(number, text, extra=_renamed(fields))
        if isinstance(fields.get("error"), BaseException):
            self.log.debug("traceback", exc_info=fields["error"])

    def logs_connection(self) -> bool:
        """Whether a connection that begins or ends gets a line of the level info. At debug every one does; otherwise
        CONNECTION_LINES_MAX a second, followed by one with the number of further ones."""
        if not self.log.isEnabledFor(logging.INFO):
            return False
        if self._clock() - self._since >= 1:
            self._log_suppressed()
        self._connections += 1
        return self._connections <= CONNECTION_LINES_MAX or self.log.isEnabledFor(logging.DEBUG)

    def _log_suppressed(self) -> None:
        more = self._connections - CONNECTION_LINES_MAX
        if more > 0 and not self.log.isEnabledFor(logging.DEBUG):
            self.log.info("more clients connected or disconnected, without a line of their own", extra={"count": more})
        self._connections = 0
        self._since = self._clock()

    def flush(self) -> None:
        """See RateLimited."""
        self._limited.flush()
        if self._connections and self._clock() - self._since >= 1:
            self._log_suppressed()

    def close(self) -> None:
        """Writes all suppressed lines."""
        self._limited.close()
        self._log_suppressed()


class _Cause:
    """at: time of its last line. The other fields are those of the suppressed line."""

    __slots__ = ("at", "fields", "level", "message", "suppressed")

    def __init__(self) -> None:
        self.at = 0.0
        self.suppressed = 0
        self.level = logging.INFO
        self.message = ""
        self.fields: Mapping[str, object] = {}
