"""Options of pytest and fixtures that tests of more than one folder use. What chance decides comes from an option:

    --seed N        of hypothesis, of tests/faults, and of the long tests: the same number, the same examples

What hypothesis once found, and what is not an explicit example beside its test, is kept in tests/examples.
"""
from __future__ import annotations

import gc
import itertools
import os
import re
import shutil
import signal
import socket
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from faults.table import TABLE
from hypothesis import HealthCheck, settings
from hypothesis.database import DirectoryBasedExampleDatabase, MultiplexedDatabase, ReadOnlyDatabase
from kit.broker import WHICH, Broker
from kit.brokers import Brokers
from kit.client import TIMEOUT, Client
from kit.on_three_nodes import mark_long, may_use_nodes, parameters
from kit.stages import STAGES, Guard, Stages
from kit.surroundings import Failures
from kit.three_nodes import ThreeNodes

# No test asserts how long something took, and examples of hypothesis do not either, nor how long it takes to draw them.
settings.register_profile("fluxmq", parent=settings(), deadline=None, suppress_health_check=[HealthCheck.too_slow],
                          print_blob=True, database=MultiplexedDatabase(
    DirectoryBasedExampleDatabase(".hypothesis/examples"),
    ReadOnlyDatabase(DirectoryBasedExampleDatabase(Path(__file__).with_name("examples")))))
settings.load_profile("fluxmq")


if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell lets its background jobs ignore it, and so would every program that a test starts and interrupts.
    signal.signal(signal.SIGINT, signal.default_int_handler)


# Files, the longest first, and how workers of pytest-xdist begin with these.
LONGEST_FIRST = Path(__file__).with_name("longest_first.txt")
FAULT_PAGE = """# Faults of the disk and their outcomes

Made by

    pytest tests/faults --fault-table docs/internals/faults.md

[testing.md](testing.md#a-disk-that-errs) says what a point is, and which outcomes are wrong.
"""
# Where files of tests are, as long as there is room: a sync of a disk takes milliseconds, of which nothing is shown.
MEMORY = Path("/dev/shm")
ROOM_BYTES = 4 << 30
BROKERS = pytest.StashKey[Brokers]()
NODES = pytest.StashKey[ThreeNodes]()
_numbers = itertools.count(1)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--amqp-broker", choices=("fluxmq", "rabbitmq"), default="fluxmq",
                     help="what tests/amqp091 speaks to: fluxmq, or Debian's RabbitMQ, to see whether a test is sound")
    parser.addoption("--point", help="of tests/faults: this one only, as a failing test names it")
    parser.addoption("--disk", action="store_true",
                     help="the files of tests on the disk, where temporary files are, not in memory")
    parser.addoption("--failures", type=Path, metavar="FILE", help="gets what failed, and whether it may run again "
                                                                   "(.ci/again)")
    parser.addoption("--fault-table", help="of tests/faults: a file that gets the tables shown at the end, too")
    parser.addoption("--seed", type=int, default=1,
                     help="of what chance decides: examples of hypothesis, points of tests/faults, long tests")
    parser.addoption("--stage", choices=STAGES, help="the tests of this one only (kit/stages.py)")
    parser.addoption("--until", type=float, metavar="SECONDS", default=os.environ.get("FLUXMQ_TEST_UNTIL"),
                     help="no test begins after this time (since the epoch); tests/soak.py gives it, in "
                          "FLUXMQ_TEST_UNTIL")


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--hypothesis-seed") is None:
        config.option.hypothesis_seed = str(config.getoption("--seed"))
    if config.getoption("--failures") and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Failures(config.getoption("--failures")))
    config.pluginmanager.register(Guard())
    if config.getoption("--stage"):
        config.pluginmanager.register(Stages(config.getoption("--stage"), config.args))
    if hasattr(config, "workerinput"):      # of pytest-xdist; it has the environment of who started it
        return
    elsewhere = config.getoption("--disk") or config.option.basetemp or "TMPDIR" in os.environ
    if not elsewhere and has_room(MEMORY):
        keep_in_memory(config)
    # Brokers of tests note there that they run, not where the user's own are found.
    place = tempfile.mkdtemp(prefix="fq-run-")
    config.add_cleanup(lambda: shutil.rmtree(place, ignore_errors=True))
    os.environ["XDG_RUNTIME_DIR"] = place


def keep_in_memory(config: pytest.Config) -> None:
    """All temporary files of this run, also of what tests start. The path is short: that of a socket has at most 107
    bytes."""
    place = tempfile.mkdtemp(prefix="fq-", dir=MEMORY)
    config.add_cleanup(lambda: shutil.rmtree(place, ignore_errors=True))
    config.option.basetemp = f"{place}/p"
    os.environ["TMPDIR"] = place
    tempfile.tempdir = None


def has_room(memory: Path) -> bool:
    """For all files that tests have at a time, programs among them; a container has 64 MiB there, or none."""
    if not os.access(memory, os.W_OK) or os.statvfs(memory).f_flag & os.ST_NOEXEC:
        return False
    with open("/proc/meminfo") as lines:
        available = next(int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable:"))
    return shutil.disk_usage(memory).free > ROOM_BYTES and available > 3 * ROOM_BYTES


def longest_first() -> list[str]:
    """The paths of longest_first.txt, relative to tests/."""
    return [line for line in LONGEST_FIRST.read_text().splitlines() if line and not line.startswith("#")]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The order of files is the order in which workers take them; that of tests within a file stays."""
    mark_long(items)
    places = {LONGEST_FIRST.parent / name: place for place, name in enumerate(longest_first())}
    items.sort(key=lambda item: places.get(item.path, len(places)))


def pytest_report_header(config: pytest.Config) -> str:
    return f"seed: {config.getoption('--seed')}"


def pytest_runtest_setup(item: pytest.Item) -> None:
    until = item.config.getoption("--until")
    if until is not None and time.time() >= until:
        pytest.skip("the time is over")


@pytest.fixture(scope="module")
def few_to_collect() -> Iterator[None]:
    """For a file of tests that collect often. Collections look at what it makes, not at what others have left: a worker
    has millions of objects in the end, so each would take seconds."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture
def seed(pytestconfig: pytest.Config) -> int:
    """Of a long test that chance decides."""
    return int(pytestconfig.getoption("--seed"))


# ── brokers and their clients ────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def brokers(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Brokers]:
    """The brokers of a test: checked at its end, and then those that it started are stopped. When the test fails, what
    they printed meanwhile is shown."""
    request.node.stash[BROKERS] = made = Brokers(tmp_path)
    yield made
    made.end()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Any:
    report = yield
    Failures.mark(report, call)
    if report.failed and BROKERS in item.stash:
        report.sections += item.stash[BROKERS].said()
    return report


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A test whose broker may be three nodes runs on one, and again on three."""
    if "nodes" in metafunc.fixturenames and may_use_nodes(metafunc.definition.path):
        metafunc.parametrize("nodes", parameters(metafunc.definition), indirect=True)


@pytest.fixture(scope="session")
def session_nodes(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ThreeNodes]:
    """Three nodes for all tests that run on them; they begin with the first."""
    request.config.stash[NODES] = nodes = ThreeNodes(tmp_path_factory.mktemp("three-nodes"))
    try:
        yield nodes
    finally:
        nodes.stop()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> Any:
    """Three nodes end before tests that have no use for them."""
    done = yield
    nodes = item.config.stash.get(NODES, None)
    if nodes is not None and nodes.running and (nextitem is None or not may_use_nodes(nextitem.path)):
        nodes.stop()
    return done


@pytest.fixture
def nodes(request: pytest.FixtureRequest) -> Iterator[ThreeNodes | None]:
    """The three nodes that take the place of a test's broker; None: it has one."""
    if getattr(request, "param", 1) == 1:    # of a file that is left out, or none of the suites, there is no choice
        yield None
        return
    nodes = request.getfixturevalue("session_nodes")
    nodes.begin()
    yield nodes
    nodes.end()


@pytest.fixture
def broker_settings() -> dict[str, object]:
    """What `start_broker` gives every broker of a folder's tests."""
    return {}


@pytest.fixture
def start_broker(brokers: Brokers, broker_settings: dict[str, object]) -> Callable[..., Broker]:
    """Start a broker of the test's own: start_broker({"broker.max_qos": 1})."""
    def start(settings: dict[str, object] | None = None) -> Broker:
        if ":" in WHICH:
            pytest.skip("needs a broker of its own")
        return brokers.start(Broker, broker_settings | (settings or {}))

    return start


@pytest.fixture
def connect() -> Iterator[Callable[..., Client]]:
    """A connected client: connect(broker, "name", version=4, receive_buffer=4096, **options of CONNECT)."""
    opened: list[Client] = []

    def open_(broker: Broker, name: str = "", *, version: int = 5, receive_buffer: int = 0, **options: Any) -> Client:
        nodes = broker if isinstance(broker, ThreeNodes) else None
        if nodes:
            nodes.settle()
        raw = socket.socket()
        if receive_buffer:
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        raw.settimeout(TIMEOUT)
        raw.connect(broker.address)
        raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        opened.append(Client(raw, version))
        if nodes:
            opened[-1].settle = nodes.settle
        opened[-1].connect(nodes.client_id(name) if nodes and name else name or f"c{next(_numbers)}", **options)
        return opened[-1]

    yield open_
    for client in opened:
        client.close()


@pytest.fixture(scope="session")
def libraries(request: pytest.FixtureRequest) -> Iterator[Callable[[type[Any]], Any]]:
    """One of each client library, made when first asked for; the test is skipped when its programs are missing."""
    made: dict[type[Any], Any] = {}

    def library(kind: type[Any]) -> Any:
        if kind not in made:
            if kind.npm:        # its package is installed once
                made[kind] = kind(Path(os.environ.get("FLUXMQ_NPM_CACHE") or request.config.cache.mkdir("npm")))
            else:
                made[kind] = kind()
        made[kind].need()
        return made[kind]

    yield library
    for one in made.values():
        one.stop()


@pytest.fixture
def name(request: pytest.FixtureRequest) -> Callable[[str], str]:
    """Names that no other test uses: name("sub") → "retain-12-sub"."""
    stem = re.sub(r"[^A-Za-z0-9]+", "-", request.node.name.removeprefix("test_"))[:40].strip("-")
    base = f"{stem}-{os.getpid()}-{next(_numbers)}"
    return lambda role: f"{base}-{role}"


@pytest.fixture
def topic(name: Callable[[str], str]) -> str:
    """A Topic Name of two levels that no other test uses; tests add levels to it."""
    return f"test/{name('t')}"


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """The tables of tests/faults: what failed, when, and what became of it."""
    pages = [str(page) for reports in terminalreporter.stats.values() for report in reports
             if getattr(report, "when", "") == "call" for name, page in report.user_properties if name == TABLE]
    for page in pages:
        terminalreporter.section(TABLE)
        terminalreporter.write_line(page)
    if pages and config.getoption("--fault-table") and not hasattr(config, "workerinput"):      # one of pytest-xdist's
        shown = "\n\n".join(f"```text\n{page}\n```" for page in sorted(pages))
        Path(config.getoption("--fault-table")).write_text(f"{FAULT_PAGE}\n{shown}\n")
