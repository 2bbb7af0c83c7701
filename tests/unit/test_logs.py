"""Log lines: their form, what a client's text can do to them (nothing), and the limit per cause."""
import asyncio
import io
import json
import logging
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fluxmq.app import server
from fluxmq.app.broker_notes import Note
from fluxmq.app.logs import CONNECTION_LINES_MAX, JsonFormatter, Notes, RateLimited, TextFormatter, configure

Say = Callable[[str, str, str, dict[str, object]], None]


@pytest.fixture(autouse=True)
def _leave_logging_as_it_was() -> Iterator[None]:
    root, ours = logging.getLogger(), logging.getLogger("fluxmq")
    before = list(root.handlers), root.level, ours.level
    yield
    root.handlers[:], root.level = before[0], before[1]
    ours.setLevel(before[2])


def record(message: str = "client connected", **extra: object) -> logging.LogRecord:
    made = logging.getLogger("fluxmq.mqtt").makeRecord(
        "fluxmq.mqtt", logging.WARNING, "f.py", 1, message, (), None, extra=extra)
    made.created = 1769860800.123456
    return made


def test_text() -> None:
    line = TextFormatter().format(record(client="lamp", peer="127.0.0.1:4", note="a b", empty="", n=3))
    assert line == ("2026-01-31T12:00:00.123Z WARN fluxmq.mqtt client connected "
                    'client=lamp peer=127.0.0.1:4 note="a b" empty="" n=3')


def test_json() -> None:
    line = JsonFormatter().format(record(client="lämp", n=3, data=b"x", level="mine"))
    assert json.loads(line) == {"time": "2026-01-31T12:00:00.123Z", "level": "warn", "logger": "fluxmq.mqtt",
                                "message": "client connected", "client": "lämp", "n": 3, "data": "b'x'",
                                "level_": "mine"}


def test_a_value_that_contains_itself_is_still_a_line() -> None:
    endless: list[object] = []
    endless.append(endless)
    assert json.loads(JsonFormatter().format(record(endless=endless)))["endless"] == "<class 'list'>"


@given(st.text(), st.text(), st.sampled_from(["client", "topic", "reason"]))
def test_no_text_of_a_client_makes_a_second_line_or_field(message: str, value: str, name: str) -> None:
    text = TextFormatter().format(record(message.replace("%", ""), **{name: value}))
    assert text.isprintable()
    _, mark, tail = text.rpartition(f" {name}=")
    assert mark and (" " not in tail or (tail[0] == tail[-1] == '"'))
    if tail.startswith('"'):
        assert json.loads(tail) == value
    else:
        assert tail == value
    line = JsonFormatter().format(record(message.replace("%", ""), **{name: value}))
    assert "\n" not in line and json.loads(line)[name] == value


def test_an_exception_is_with_its_line() -> None:
    try:
        raise ZeroDivisionError("by zero")
    except ZeroDivisionError as error:
        made = record()
        made.exc_info = (type(error), error, error.__traceback__)
    assert "ZeroDivisionError: by zero" in TextFormatter().format(made)
    assert "ZeroDivisionError: by zero" in json.loads(JsonFormatter().format(made))["error"]


def test_configure_sets_level_and_form_and_replaces_itself() -> None:
    first, second = io.StringIO(), io.StringIO()
    configure("debug", "text", first)
    logging.getLogger("fluxmq.storage").debug("opened", extra={"dir": "/x"})
    logging.getLogger("somebody.else").info("not shown")
    logging.getLogger("somebody.else").warning("shown")
    configure("warn", "json", second)
    logging.getLogger("fluxmq.storage").info("not shown")
    logging.getLogger("fluxmq.storage").warning("synced", extra={"batches": 2})
    lines = first.getvalue().splitlines()
    assert len(lines) == 2
    assert lines[0].endswith("DEBUG fluxmq.storage opened dir=/x") and "somebody.else shown" in lines[1]
    (line,) = second.getvalue().splitlines()
    assert json.loads(line)["batches"] == 2


class _Kept(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.lines: list[tuple[str, int]] = []
        self.records: list[logging.LogRecord] = []

    def emit(self, made: logging.LogRecord) -> None:
        self.records.append(made)
        self.lines.append((made.getMessage(), getattr(made, "suppressed", 0)))


@pytest.fixture()
def kept() -> Iterator[_Kept]:
    logger = logging.getLogger("fluxmq.test")
    handler = _Kept()
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    logger.propagate = False
    yield handler
    logger.removeHandler(handler)
    logger.propagate = True
    logger.setLevel(logging.NOTSET)


class _Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_once_per_second_and_cause(kept: _Kept) -> None:
    clock = _Clock()
    limiter = RateLimited(logging.getLogger("fluxmq.test"), clock)
    for _ in range(5):
        limiter.log(logging.WARNING, "drop:a", "dropped", client="a", name="kept", level=1, cause="c", message="m")
    limiter.log(logging.WARNING, "drop:b", "dropped b")
    assert kept.lines == [("dropped", 0), ("dropped b", 0)]
    assert vars(kept.records[0])["name_"] == "kept" and vars(kept.records[0])["message_"] == "m"
    clock.now += 0.999
    limiter.log(logging.WARNING, "drop:a", "dropped")
    assert len(kept.lines) == 2
    clock.now += 0.001
    limiter.log(logging.WARNING, "drop:a", "dropped")
    limiter.log(logging.WARNING, "drop:a", "dropped")
    assert kept.lines[2:] == [("dropped", 5)]


def test_flush_says_what_was_kept_back_and_forgets(kept: _Kept) -> None:
    clock = _Clock()
    limiter = RateLimited(logging.getLogger("fluxmq.test"), clock)
    for n in range(3):
        limiter.log(logging.WARNING, "a", f"message {n}")
    limiter.log(logging.WARNING, "b", "once")
    limiter.flush()
    assert kept.lines == [("message 0", 0), ("once", 0)]
    clock.now += 1
    limiter.flush()
    limiter.flush()
    assert kept.lines[2:] == [("message 2", 2)]
    limiter.log(logging.WARNING, "a", "not twice in a second")
    assert len(kept.lines) == 3
    for _ in range(2):
        clock.now += 1
        limiter.flush()
    assert kept.lines[3:] == [("not twice in a second", 1)]
    limiter.log(logging.WARNING, "a", "forgotten, so at once")
    limiter.log(logging.WARNING, "a", "at the end")
    limiter.close()
    assert kept.lines[4:] == [("forgotten, so at once", 0), ("at the end", 1)]


def test_a_level_that_is_off_costs_and_counts_nothing(kept: _Kept) -> None:
    limiter = RateLimited(logging.getLogger("fluxmq.test"), _Clock())
    limiter.log(logging.DEBUG, "a", "quiet")
    limiter.log(logging.INFO, "a", "loud")
    limiter.close()
    assert kept.lines == [("loud", 0)]


@settings(deadline=None)
@given(st.lists(st.tuples(st.sampled_from("abcd"), st.floats(0, 1.5)), max_size=60))
def test_nothing_is_lost_whatever_the_order(events: list[tuple[str, float]]) -> None:
    """Each event is a line of its own or counted on one, also when causes are forgotten for want of room."""
    logger = logging.Logger("alone")
    handler = _Kept()
    logger.addHandler(handler)
    clock = _Clock()
    limiter = RateLimited(logger, clock, causes_max=3)
    for cause, wait in events:
        clock.now += wait
        limiter.log(logging.INFO, cause, cause)
    limiter.close()
    said = sum(count for _, count in handler.lines)
    own_lines = len(events) - said
    # a line is an event's own, or it only says what was kept back
    assert own_lines <= len(handler.lines) <= own_lines + sum(1 for _, count in handler.lines if count)


def test_many_causes_are_bounded(kept: _Kept) -> None:
    limiter = RateLimited(logging.getLogger("fluxmq.test"), _Clock(), causes_max=10)
    for n in range(100):
        limiter.log(logging.INFO, f"cause {n}", f"{n}")
        limiter.log(logging.INFO, f"cause {n}", f"{n}")
        assert len(limiter._causes) <= 10
    limiter.close()
    assert len(kept.lines) == 200 and sum(count for _, count in kept.lines) == 100


def test_fields_may_have_any_name(kept: _Kept) -> None:
    """Those of another program's log do."""
    notes = Notes("fluxmq.test", _Clock())
    logging.getLogger("fluxmq.test").setLevel(logging.DEBUG)
    for cause in ("", "cause"):
        notes.say("info", cause, "said", {"name": "n0", "msg": "m", "error": "what etcd calls an error"})
    assert [vars(record)["name_"] for record in kept.records] == ["n0", "n0"]
    assert all(record.exc_info is None for record in kept.records)


def test_connections_have_so_many_lines_a_second(kept: _Kept) -> None:
    clock = _Clock()
    notes = Notes("fluxmq.test", clock)

    def come(count: int) -> int:
        return sum(notes.logs_connection() for _ in range(count))

    assert come(CONNECTION_LINES_MAX + 30) == CONNECTION_LINES_MAX
    notes.flush()
    assert not kept.lines, "the second is not over"
    clock.now += 1
    notes.flush()
    assert [text.split(",")[0] for text, _ in kept.lines] == ["more clients connected or disconnected"]
    assert vars(kept.records[0])["count"] == 30
    assert come(2) == 2
    clock.now += 1
    assert come(CONNECTION_LINES_MAX + 1) == CONNECTION_LINES_MAX and len(kept.lines) == 1
    notes.close()
    assert vars(kept.records[-1])["count"] == 1
    kept_before = len(kept.lines)
    logging.getLogger("fluxmq.test").setLevel(logging.DEBUG)
    assert come(1000) == 1000
    logging.getLogger("fluxmq.test").setLevel(logging.WARNING)
    assert come(1000) == 0
    notes.close()
    assert len(kept.lines) == kept_before


def test_what_a_cluster_says_is_flushed(monkeypatch: pytest.MonkeyPatch) -> None:
    """While nothing else is said: a warning that was held back must not wait for the next one. The log of the etcd
    member, which repeats itself for as long as another member is away, has a logger and a longer time of its own."""
    written: list[str] = []
    of_etcd: list[tuple[str, str, int]] = []
    come = asyncio.Event()

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if record.name == "fluxmq.etcd":
                of_etcd.append((record.levelname, record.getMessage(), getattr(record, "suppressed", 0)))
                return
            written.append(record.getMessage())
            if len(written) == 2:
                come.set()

    class Runtime:
        addresses, own = SimpleNamespace(member=None), None     # its members of etcd are elsewhere

        def __init__(self, config: object, log: Say, etcd_log: Say) -> None:
            self.log, self.etcd_log = log, etcd_log

        def start(self) -> None:
            for number in range(3):
                self.log("warning", "etcd", f"warning {number}", {})
                self.etcd_log("info", "slow", f"slow {number}", {})

        async def stop(self) -> None:
            pass

    async def serve(config: object, signals: object, note: Note, runtime: Runtime) -> SimpleNamespace:
        async with asyncio.timeout(30):
            await come.wait()
        return SimpleNamespace(again=False, status=0)

    monkeypatch.setattr("fluxmq.app.cluster.ClusterRuntime", Runtime)
    monkeypatch.setattr(server, "_serve", serve)
    logger, handler = logging.getLogger("fluxmq"), Handler()
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        config: Any = SimpleNamespace(cluster=SimpleNamespace(enabled=True))
        assert asyncio.run(server._main(config, lambda: pytest.fail("nobody has asked for it"), Note())) == 0
    finally:
        logger.removeHandler(handler)
    assert written == ["warning 0", "warning 2"]
    assert of_etcd == [("INFO", "slow 0", 0), ("INFO", "slow 2", 2)]
