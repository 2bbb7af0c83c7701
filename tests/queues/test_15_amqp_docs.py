"""docs/amqp-0-9-1.md: its examples are run against a broker, its tables are complete, and what they claim is there."""
from __future__ import annotations

import re
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from kit.amqp091_values import TABLE
from kit.broker import ROOT, Broker, free_port
from kit.python import environment
from kit.tools import require_tool
from queues.test_10_docs import blocks

from fluxmq.app.config import load
from fluxmq.edge.amqp091.handshake import CAPABILITIES
from fluxmq.model.queue_arguments import ANY_KNOWN

pika = pytest.importorskip("pika")

PAGE = "docs/amqp-0-9-1.md"
PAGES = (PAGE, "docs/guide/from-rabbitmq.md", "README.md")
SECONDS = 60.0
Start = Callable[..., Broker]


@pytest.fixture
def broker(start_broker: Start, tmp_path: Path) -> Broker:
    return start_broker(**{"server.amqp091.plain.addr": f"127.0.0.1:{free_port()}",
                           "server.admin_socket": str(tmp_path / "s")})


@pytest.fixture
def channel(broker: Broker) -> Iterator[Any]:
    connection = pika.BlockingConnection(pika.ConnectionParameters(*broker.addresses["amqp091/plain"]))
    yield connection.channel()
    if connection.is_open:
        connection.close()


def run_python(program: str, broker: Broker) -> subprocess.CompletedProcess[str]:
    text = re.sub(r'ConnectionParameters\([^)]*\)',
                  f'ConnectionParameters("127.0.0.1", {broker.addresses["amqp091/plain"][1]})', program)
    return subprocess.run([sys.executable, "-P", "-c", text], env=environment(), text=True, capture_output=True,
                          timeout=SECONDS, check=False)


def run_tool(words: list[str], broker: Broker) -> subprocess.CompletedProcess[str]:
    require_tool(words[0], package="amqp-tools")
    told = environment()
    told.pop("LD_PRELOAD", None)    # a sanitizer's library is for our own programs
    return subprocess.run([*words, "--port", str(broker.addresses["amqp091/plain"][1])], env=told, text=True,
                          capture_output=True, timeout=SECONDS, check=False)


def tools() -> list[list[str]]:
    return [shlex.split(line) for block in blocks("sh", page=PAGE) for line in block.splitlines()]


# ---------------------------------------------------------------- the examples


def test_the_first_five_minutes(broker: Broker) -> None:
    said = [run_python(program, broker) for program in blocks("python", page=PAGE)]
    assert [(one.returncode, one.stderr) for one in said] == [(0, "")] * 2
    assert said[1].stdout == "orders two coffees\n"
    said = [run_tool(words, broker) for words in tools()]
    assert [one.returncode for one in said] == [0, 0], said
    assert said[1].stdout == "one tea"


def test_the_readme(broker: Broker) -> None:
    programs = [program for program in blocks("python", page="README.md") if "pika" in program]
    assert len(programs) == 1
    said = run_python(programs[0], broker)
    assert (said.returncode, said.stdout, said.stderr) == (0, "b'two coffees'\n", "")


@pytest.mark.parametrize("page", PAGES)
def test_configurations_can_be_used(page: str, tmp_path: Path) -> None:
    for block in blocks("yaml", page=page):
        if "amqp091" in (yaml.safe_load(block) or {}):
            path = tmp_path / "fluxmq.yaml"
            path.write_text(block)
            assert load(path)[0].amqp091.virtual_hosts


# ---------------------------------------------------------------- the tables


def rows() -> list[list[str]]:
    """Cells of every row of a table of the page."""
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in (ROOT / PAGE).read_text().splitlines()
            if line.startswith("|") and not line.startswith("|---")]


def test_every_method_stands_in_the_table() -> None:
    wanted = {f"{one.name}.{method.name}" for one in TABLE.CLASSES for method in one.methods}
    found: list[str] = []
    for first, *_ in rows():
        names = first.split(", ")
        if re.fullmatch(r"[a-z]+\.[a-z-]+", names[0]):
            name = names[0].split(".")[0]
            found += [names[0], *(f"{name}.{other}" for other in names[1:])]
    assert sorted(found) == sorted(wanted)


def test_every_argument_and_capability_stands_in_a_table() -> None:
    firsts = [first for first, *_ in rows()]
    assert {first.strip("`") for first in firsts if re.fullmatch("`x-[a-z-]+`", first)} >= ANY_KNOWN
    assert {first.strip("`") for first in firsts} >= set(CAPABILITIES)


def test_every_test_that_is_named_is_there() -> None:
    named = re.findall(r"([\w/]+\.py)::(\w+)", (ROOT / PAGE).read_text())
    assert len(named) > 70
    for file, name in named:
        paths = [path for path in (ROOT / "tests").rglob(Path(file).name) if path.as_posix().endswith("/" + file)]
        assert len(paths) == 1, (file, paths)
        assert f"\ndef {name}(" in paths[0].read_text(), (file, name)


# ---------------------------------------------------------------- what the tables claim, and no other test shows


def test_arguments_without_effect(channel: Any) -> None:
    """Each is taken, and messages come and go as without it."""
    streams = {"x-initial-cluster-size": 3, "x-stream-max-segment-size-bytes": 1 << 20,
               "x-stream-filter-size-bytes": 16}
    quorums = {"x-quorum-initial-group-size": 3, "x-dead-letter-strategy": "at-least-once",
               "x-max-in-memory-length": 1, "x-max-in-memory-bytes": 1, "x-queue-leader-locator": "client-local"}
    classics = {"x-queue-mode": "lazy", "x-queue-version": 2, "x-queue-master-locator": "min-masters"}
    for kind, arguments in (("stream", streams), ("quorum", quorums), ("classic", classics)):
        channel.queue_declare(kind, durable=True, arguments={"x-queue-type": kind, **arguments})
        for body in (b"1", b"2"):
            channel.basic_publish("", kind, body)
        if kind != "stream":
            assert [channel.basic_get(kind, auto_ack=True)[2] for _ in range(2)] == [b"1", b"2"]


def test_arguments_nobody_knows(channel: Any) -> None:
    channel.queue_declare("q", arguments={"x-made-up": 1})
    channel.queue_declare("q", arguments={"x-made-up": 2})
    channel.basic_publish("", "q", b"x")
    for _, _, body in channel.consume("q", auto_ack=True, arguments={"x-cancel-on-ha-failover": True},
                                      inactivity_timeout=SECONDS):
        assert body == b"x"
        break


def read_all(channel: Any, queue: str, count: int, **arguments: Any) -> list[bytes]:
    """What a consumer with these arguments is given."""
    named = {f"x-{name.replace('_', '-')}": value for name, value in arguments.items()}
    found = []
    for _, _, body in channel.consume(queue, arguments=named, inactivity_timeout=SECONDS):
        found.append(body)
        if len(found) == count or body is None:
            break
    channel.cancel()
    return found


def test_a_stream_is_read_from_anywhere(channel: Any) -> None:
    channel.queue_declare("s", durable=True, arguments={"x-queue-type": "stream"})
    channel.confirm_delivery()
    for number in range(5):
        channel.basic_publish("", "s", b"%d" % number)
    assert read_all(channel, "s", 5, stream_offset="first") == [b"0", b"1", b"2", b"3", b"4"]
    assert read_all(channel, "s", 2, stream_offset=3) == [b"3", b"4"]
    assert read_all(channel, "s", 5, stream_offset="1h") == [b"0", b"1", b"2", b"3", b"4"]


@pytest.mark.parametrize("offset", ["\u00b2D", "9" * 5000 + "D", "D", "", "1 D", -1, True],
                         ids=lambda one: str(one)[:9])
def test_a_place_in_a_stream_that_makes_no_sense(channel: Any, offset: Any) -> None:
    """406, and the connection goes on."""
    channel.queue_declare("s", durable=True, arguments={"x-queue-type": "stream"})
    with pytest.raises(pika.exceptions.ChannelClosedByBroker) as refused:
        channel.basic_consume("s", lambda *_: None, arguments={"x-stream-offset": offset})
    assert refused.value.reply_code == 406
    assert channel.connection.channel().queue_declare("s", passive=True).method.queue == "s"


def test_groups_each_get_everything(channel: Any) -> None:
    channel.queue_declare("q", durable=True)
    # a group has what came since it was there
    got: list[tuple[str, bytes]] = []
    tags = {name: channel.basic_consume("q", lambda c, m, p, body: got.append((m.consumer_tag, body)), auto_ack=True,
                                        arguments={"x-consumer-group": name}) for name in ("one", "two")}
    for body in (b"a", b"b"):
        channel.basic_publish("", "q", body)
    until = time.monotonic() + SECONDS
    while len(got) < 4 and time.monotonic() < until:
        channel.connection.process_data_events(time_limit=0.1)
    assert sorted(got) == sorted((tag, body) for tag in tags.values() for body in (b"a", b"b"))


def test_a_delay(channel: Any) -> None:
    channel.queue_declare("q")
    channel.confirm_delivery()
    channel.basic_publish("", "q", b"late", pika.BasicProperties(headers={"x-delay": 6000}))
    channel.basic_publish("", "q", b"soon")
    assert channel.basic_get("q", auto_ack=True)[2] == b"soon"
    assert read_all(channel, "q", 1) == [b"late"]


@pytest.mark.parametrize("mode", [1, 2])
def test_transient_messages_of_durable_queues_are_kept(broker: Broker, mode: int) -> None:
    channel = pika.BlockingConnection(pika.ConnectionParameters(*broker.addresses["amqp091/plain"])).channel()
    channel.queue_declare("q", durable=True)
    channel.confirm_delivery()
    channel.basic_publish("", "q", b"x", pika.BasicProperties(delivery_mode=mode))
    broker.kill()
    broker.start()
    connection = pika.BlockingConnection(pika.ConnectionParameters(*broker.addresses["amqp091/plain"]))
    assert connection.channel().basic_get("q", auto_ack=True)[2] == b"x"
    connection.close()


def test_flow_stops_and_starts_deliveries(channel: Any) -> None:
    channel.queue_declare("q")
    got: list[bytes] = []
    channel.flow(False)
    channel.basic_consume("q", lambda c, m, p, body: got.append(body), auto_ack=True)
    channel.basic_publish("", "q", b"x")
    for _ in range(10):     # each is answered in a turn of its own: a delivery would have come by then
        assert channel.queue_declare("q", passive=True).method.message_count == 1
    channel.connection.process_data_events(time_limit=0)
    assert got == []
    channel.flow(True)
    until = time.monotonic() + SECONDS
    while not got and time.monotonic() < until:
        channel.connection.process_data_events(time_limit=0.1)
    assert got == [b"x"]


def test_what_an_operator_sees(broker: Broker, channel: Any) -> None:
    """describe says what a client declared; tail says exchange and routing key."""
    channel.queue_declare("q", durable=True, arguments={"x-max-length": 7})
    channel.basic_publish("", "q", b"by default")
    told = environment(FLUXMQ__SERVER__ADMIN_SOCKET=str(broker.settings["server.admin_socket"]))
    described, tailed = (subprocess.run([sys.executable, "-P", "-m", "fluxmq", "queue", *words], env=told, text=True,
                                        capture_output=True, timeout=SECONDS, check=True).stdout
                         for words in (("describe", "q"), ("tail", "q", "--properties")))
    assert "as an AMQP client declared it" in described and "  arguments.x-max-length: 7\n" in described
    assert "retry." not in described
    assert tailed.splitlines()[0].endswith("  (default):q  by default")
