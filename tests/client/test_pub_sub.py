"""`fluxmq pub` and `fluxmq sub` as processes: what goes in and comes out, settling, lost connections, how they end."""
from __future__ import annotations

import asyncio
import json
import os
import pty
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from client.test_mosquitto import Mosquitto
from kit.broker import Broker
from kit.certs import issue, make_ca
from kit.command import run as fluxmq
from kit.process import Ended, Started, fluxmq_said
from kit.python import environment
from kit.scripted import Peer, Scripted
from kit.tools import require_tool
from oracle.mqtt import Puback, Publish, Suback, Subscribe

from fluxmq.app import exit_codes, pub_cli

Name = Callable[[str], str]
NOBODY = "127.0.0.1:1"
SECONDS = 60.0


@pytest.fixture
def pub(address: str) -> Callable[..., Ended]:
    """`fluxmq pub …` at the broker that tests share, to its end."""
    return lambda *words, given=b"": fluxmq_said("pub", "--broker", address, *words, given=given)


@pytest.fixture
def sub(address: str) -> Callable[..., Ended]:
    return lambda *words: fluxmq_said("sub", "--broker", address, *words)


def listening(address: str, *words: str) -> Started:
    """`fluxmq sub …`, when it is subscribed."""
    started = Started("sub", "--broker", address, "--verbose", *words)
    started.says("subscribed to")
    return started


def made(address: str, *words: str) -> None:
    """The queue, group or session of a subscription, which is over."""
    with listening(address, *words) as one:
        assert one.interrupt().status == 0


# ── in and out ───────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("version", ["5", "3.1.1"])
def test_a_message(pub: Callable[..., Ended], address: str, topic: str, version: str) -> None:
    """With one topic the payload, with several the topic too."""
    with listening(address, topic, "--mqtt", version) as one, \
            listening(address, f"{topic}/#", "--mqtt", version) as many:
        for qos in "012":
            said = pub(topic, f"hello {qos}", "--qos", qos, "--mqtt", version)
            assert (said.status, said.out, said.err) == (0, b"", "")
            assert (one.line(), many.line()) == (f"hello {qos}", f"{topic} hello {qos}")
        assert one.interrupt().status == 0 and many.interrupt(signal.SIGTERM).status == 0
        assert one.err == f"fluxmq: connected to {address}\nfluxmq: subscribed to {topic} at {address}; Ctrl-C ends\n"


def test_what_a_message_carries(pub: Callable[..., Ended], address: str, topic: str) -> None:
    with listening(address, topic, "--format", "json", "--count", "1", "--qos", "2") as one:
        pub(topic, "{}", "--qos", "2", "--property", "shop=7", "--property", "a=b=c", "--content-type",
            "application/json", "--expiry", "60", "--response-topic", "answers", "--correlation-data", "17")
        ended = one.end()
    found = json.loads(ended.out)
    assert ended.status == 0 and found.pop("time").endswith("Z")
    assert found == {
        "topic": topic, "payload": "{}", "qos": 2, "retain": False, "dup": False,
        "properties": {"message_expiry_interval": 60, "content_type": "application/json", "response_topic": "answers",
                       "correlation_data": "17"}, "user_properties": [["shop", "7"], ["a", "b=c"]]}


def test_retained(pub: Callable[..., Ended], sub: Callable[..., Ended], topic: str) -> None:
    pub(topic, "on", "--retain")
    assert sub(topic, "--count", "1", "--format", "%r%p").lines == ["1on"]
    assert sub(topic, "--no-retained", "--timeout", "0.5").status == exit_codes.TIMEOUT
    pub(topic, "", "--retain")
    nothing = sub(topic, "--timeout", "0.5")
    assert (nothing.status, nothing.err) == (exit_codes.TIMEOUT, "fluxmq: 0.5 s are over, and no message came\n")


def test_where_messages_come_from(pub: Callable[..., Ended], address: str, topic: str, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"one\n\xfftwo\n\nthree")
    with listening(address, topic, "--format", "hex") as one:
        def came(count: int) -> list[bytes]:
            return [bytes.fromhex(one.line()) for _ in range(count)]

        whole, lines = file.read_bytes(), [b"one", b"\xfftwo", b"", b"three"]
        for words, given, expected in [
                (["--file", str(file)], b"", [whole]), ([], whole, [whole]), (["--file", "-"], whole, [whole]),
                (["--lines"], whole, lines), (["--lines", "--file", str(file)], b"", lines),
                (["--lines", "--count", "2"], whole, lines[:2]), (["x", "--count", "3"], b"", [b"x"] * 3),
                (["", "--count", "1"], b"", [b""]), (["--", "-5"], b"", [b"-5"]),
                (["--lines", "--qos", "0"], b"a\nb\n", [b"a", b"b"]), (["--lines"], b"", [])]:
            assert pub(topic, *words, given=given).status == 0
            assert came(len(expected)) == expected, words


def test_many_lines_in_order(address: str, topic: str) -> None:
    """More than may be under way at once. A queue: a session drops what a slow subscriber is behind."""
    made(address, "--queue", topic)
    with listening(address, "--queue", topic, "--count", "5000") as one:
        numbers = "".join(f"{n}\n" for n in range(5000)).encode()
        said = fluxmq_said("pub", "--broker", address, "--queue", topic, "--lines", "--verbose", given=numbers)
        assert (said.status, said.err.splitlines()[-1]) == (0, "fluxmq: 5000 messages acknowledged")
        assert one.end().lines == [str(n) for n in range(5000)]


def test_a_line_goes_out_when_it_is_there(address: str, topic: str) -> None:
    with listening(address, topic) as one, Started("pub", "--broker", address, topic, "--lines") as source:
        for word in ("a", "b"):
            source.write(f"{word}\n".encode())
            assert one.line() == word
        assert source.end().status == 0


def test_bytes_of_a_terminal(address: str, topic: str, pub: Callable[..., Ended]) -> None:
    """What would move the cursor is escaped; the same to a pipe is as it was."""
    pub(topic, "--retain", given=b"\x1b[2J\xff")
    outer, inner = pty.openpty()
    with os.fdopen(outer, "rb", buffering=0) as shown, os.fdopen(inner, "wb") as terminal:
        with Started("sub", "--broker", address, topic, "--count", "1", stdout=terminal) as one:
            assert one.end().status == 0
        assert shown.read(1000) == b"\\x1b[2J\\xff\r\n"
    assert fluxmq_said("sub", "--broker", address, topic, "--count", "1").out == b"\x1b[2J\xff\n"
    pub(topic, "", "--retain")


def test_the_pace(monkeypatch: pytest.MonkeyPatch) -> None:
    """--rate: evenly, and what was too late is not made up for at once."""
    now, slept = 100.0, []

    async def sleep(seconds: float) -> None:
        nonlocal now
        slept.append(round(seconds, 3))
        now += seconds

    async def body() -> None:
        nonlocal now
        monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: now)
        monkeypatch.setattr(pub_cli.asyncio, "sleep", sleep)
        pace = pub_cli._Pace(4)
        for _ in range(3):
            await pace.turn()
        now += 0.25 + 0.1
        await pace.turn()       # a little late: the next one comes sooner
        await pace.turn()
        now += 60
        await pace.turn()
        await pace.turn()
        monkeypatch.undo()

    asyncio.run(body())
    assert slept == [0.25, 0.25, 0.15, 0.25]


def test_the_rate_is_used(pub: Callable[..., Ended], topic: str) -> None:
    assert pub(topic, "x", "--count", "3", "--rate", "100").status == 0


# ── queues ───────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_queue(pub: Callable[..., Ended], sub: Callable[..., Ended], address: str, topic: str) -> None:
    """It is made by the first subscription (queue_manager.auto_create)."""
    queue = ["--queue", topic]
    made(address, *queue)
    for number in range(4):
        pub(*queue, f"m{number}", "--partition-key", "k")
    # looked at: they stay, and count a delivery
    assert sub(*queue, "--ack", "none", "--format", "%p %n %k", "--count", "4").lines == [
        f"m{number} 1 k" for number in range(4)]
    assert sub(*queue, "--format", "%p %n", "--count", "1").lines == ["m0 2"]
    # settled with what was printed, and no more
    assert sub(*queue, "--format", "%p", "--count", "1", "--ack", "reject").lines == ["m1"]
    assert sub(*queue, "--format", "%p", "--count", "1", "--ack", "nack").lines == ["m2"]
    assert sub("$queue/" + topic, "--count", "1", "--mqtt", "3.1.1").lines == ["m3"]
    assert sub("--queue", f"{topic}.dlq", "--format", "%p %{x-death-reason}", "--count", "1").lines == ["m1 rejected"]


def test_groups_routing_keys_and_delays(pub: Callable[..., Ended], sub: Callable[..., Ended], address: str,
                                        topic: str) -> None:
    made(address, "--queue", topic, "--group", "one")
    made(address, "--queue", topic, "--mqtt", "3.1.1", "--group", "two")
    made(address, "--queue", f"{topic}/eu/#", "--group", "three")
    pub("--queue", topic, "late", "--delay", "3600")
    pub("--queue", f"{topic}/eu/west", "soon")
    for seconds in ("2", "30"):     # a busy machine may need the longer one
        one = sub("--queue", topic, "--group", "one", "--format", "%p %g", "--count", "2", "--timeout", seconds)
        if one.lines:
            break
    assert (one.status, one.lines) == (exit_codes.TIMEOUT, ["soon one"])
    assert sub("--queue", topic, "--mqtt", "3.1.1", "--group", "two", "--count", "1").lines == ["soon"]
    assert sub("--queue", f"{topic}/eu/#", "--group", "three", "--count", "1", "--format", "%t").lines == [
        f"$queue/{topic}/eu/west"]


@pytest.fixture(scope="module")
def stream(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a broker with a stream `audit`, that has 0 to 4."""
    with Broker(tmp_path_factory.mktemp("stream"), {"queues": '[{"name": "audit", "type": "stream"}]'}) as broker:
        address = "{}:{}".format(*broker.address)
        fluxmq_said("pub", "--broker", address, "--queue", "audit", "--lines", given=b"0\n1\n2\n3\n4\n")
        yield address


@pytest.mark.parametrize(("start", "first"), [("first", 0), ("last", 4), ("2", 2), ("-2", 3), ("timestamp:0", 0),
                                              ("timestamp=2026-01-01T00:00:00Z", 0)])
def test_positions_of_a_stream(stream: str, start: str, first: int) -> None:
    said = fluxmq_said("sub", "--broker", stream, "--queue", "audit", "--from", start, "--count", str(5 - first),
                       "--format", "%o %p")
    assert said.lines == [f"{number} {number}" for number in range(first, 5)]


def test_a_group_of_a_stream_goes_on(stream: str) -> None:
    words = ["sub", "--broker", stream, "--queue", "audit", "--group", "g", "--count", "2"]
    assert fluxmq_said(*words, "--from", "first").lines == ["0", "1"]
    assert fluxmq_said(*words).lines == ["2", "3"]
    with Started(*words[:-2], "--verbose") as one:
        one.says("subscribed")
        assert one.line() == "4"


def test_somebody_says_what_becomes_of_each(pub: Callable[..., Ended], address: str, topic: str) -> None:
    queue = ["--queue", topic]
    made(address, *queue)
    pub(*queue, "--lines", given=b"a\nb\nc\nd\n")
    said = fluxmq_said("sub", "--broker", address, *queue, "--ack", "ask", given=b"ack\nwhat?\nr\nleave\nq\n")
    assert (said.status, said.lines) == (0, ["a", "b", "c", "d"]) and said.err.count("[a]ck") == 5
    left = fluxmq_said("sub", "--broker", address, *queue, "--count", "2", "--format", "%p %n")
    assert left.lines == ["c 2", "d 2"]


# ── as whom, and with whom ───────────────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """A broker with a user, on plain TCP and on TLS with a certificate for 127.0.0.1. Its files are in `tls`."""
    folder = tmp_path_factory.mktemp("guarded")
    users = folder / "users"
    assert fluxmq_said("user", "add", "anna", "--password-stdin", "--file", str(users), given=b"secret\n").status == 0
    ca = make_ca(folder / "tls", "ca")
    cert, key = issue(ca, "broker", ip=["127.0.0.1"], name="broker")
    with Broker(folder, {"auth.users_file": users, "server.mqtt.tcp.tls.addr": "127.0.0.1:0",
                         "server.mqtt.tcp.tls.cert_file": cert, "server.mqtt.tcp.tls.key_file": key}) as broker:
        yield broker


def test_passwords(guarded: Broker, tmp_path: Path) -> None:
    """From the environment, a file or the option; each is refused when it is wrong, with what to do."""
    host, port = guarded.address
    words = ["pub", "--broker", f"{host}:{port}", "a", "x"]
    right, wrong = tmp_path / "right", tmp_path / "wrong"
    right.write_text("secret\nand more\n")
    wrong.write_text("secret2\n")
    assert fluxmq_said(*words, "-u", "anna", FLUXMQ_PASSWORD="secret").status == 0
    assert fluxmq_said(*words, FLUXMQ_USER="anna", FLUXMQ_PASSWORD="secret").status == 0
    assert fluxmq_said(*words, "-u", "anna", "--password-file", str(right), FLUXMQ_PASSWORD="no").status == 0
    assert fluxmq_said(*words, "-u", "anna", "-P", "secret").status == 0
    for more in ([], ["-u", "anna"], ["-u", "anna", "--password-file", str(wrong)], ["-u", "anna", "--mqtt", "3.1.1"]):
        said = fluxmq_said(*words, *more)
        assert said.status == exit_codes.REFUSED
        assert "password" in said.err and "--password-file or FLUXMQ_PASSWORD" in said.err and said.err.count("\n") == 1


def test_a_password_is_asked_for_on_a_terminal(guarded: Broker) -> None:
    outer, inner = pty.openpty()
    host, port = guarded.address
    process = subprocess.Popen(
        [sys.executable, "-m", "fluxmq", "pub", "--broker", f"{host}:{port}", "-u", "anna", "a", "x"], stdin=inner,
        stdout=inner, stderr=inner, env=environment())
    os.close(inner)
    with os.fdopen(outer, "r+b", buffering=0) as terminal:
        shown = b""
        while b"Password of anna" not in shown:
            shown += terminal.read(100)
        terminal.write(b"secret\n")
        assert process.wait(SECONDS) == 0
        assert b"secret" not in shown


def test_tls(guarded: Broker, tmp_path: Path) -> None:
    host, port = guarded.addresses["mqtt/tcp/tls"]
    words = ["pub", "-u", "anna", "-P", "secret", "a", "x", "--broker"]
    ca = str(guarded.directory / "tls" / "ca.pem")
    other = make_ca(tmp_path, "other")
    assert fluxmq_said(*words, f"{host}:{port}", "--ca-file", ca).status == 0
    assert fluxmq_said(*words, f"mqtts://{host}:{port}", "--insecure").status == 0
    for address, more, says in [
            (f"mqtts://{host}:{port}", [], "give the authority that signed it by --ca-file"),
            (f"mqtts://{host}:{port}", ["--ca-file", str(other.cert_file)], "is not accepted"),
            ("mqtts://{}:{}".format(*guarded.address), ["--insecure"], "does it speak TLS there?"),
            (f"{host}:{port}", [], "hung up")]:
        said = fluxmq_said(*words, address, *more)
        assert (said.status, said.err.count("\n")) == (exit_codes.UNREACHABLE, 1) and says in said.err


def test_a_will(address: str, topic: str) -> None:
    with listening(address, topic) as one, Started(
            "pub", "--broker", address, f"{topic}/x", "--lines", "--verbose", "--will-topic", topic, "--will-message",
            "it broke off") as source:
        source.says("connected")
        source.process.kill()
        assert one.line() == "it broke off"


def test_a_session_that_stays(pub: Callable[..., Ended], sub: Callable[..., Ended], address: str, topic: str,
                              name: Name) -> None:
    words = [topic, "--client-id", name("c"), "--session-expiry", "600"]
    made(address, *words)
    pub(topic, "while it was away")
    assert sub(*words, "--count", "1").lines == ["while it was away"]


@pytest.mark.parametrize("version", ["5", "3.1.1"])
def test_with_mosquitto_clients(address: str, topic: str, pub: Callable[..., Ended], version: str) -> None:
    host, port = address.split(":")
    at = ["-h", host, "-p", port, "-V", "mqttv5" if version == "5" else "mqttv311", "-q", "1", "-t", topic]
    theirs = [require_tool(tool, package="mosquitto-clients") for tool in ("mosquitto_pub", "mosquitto_sub")]
    with listening(address, topic, "--mqtt", version) as one:
        subprocess.run([theirs[0], *at, "-m", "from mosquitto"], check=True, timeout=SECONDS)
        assert one.line() == "from mosquitto"
    pub(topic, "to mosquitto", "--retain", "--mqtt", version)
    done = subprocess.run([theirs[1], *at, "-C", "1"], check=True, timeout=SECONDS, capture_output=True)
    assert done.stdout == b"to mosquitto\n"


@pytest.mark.parametrize("version", ["5", "3.1.1"])
def test_with_mosquitto(tmp_path: Path, version: str) -> None:
    """Another broker, which says what it says."""
    broker = Mosquitto(tmp_path)
    broker.start()
    try:
        while fluxmq_said("pub", "--broker", broker.address, "a", "x").status == exit_codes.UNREACHABLE:
            assert broker.process is not None and broker.process.poll() is None
        with listening(broker.address, "a/#", "--mqtt", version) as one:
            for qos in "012":
                assert fluxmq_said("pub", "--broker", broker.address, "a/b", qos, "--qos", qos, "--mqtt",
                                   version).status == 0
                assert one.line() == f"a/b {qos}"
            assert one.interrupt().status == 0
    finally:
        broker.kill()


# ── lost connections ─────────────────────────────────────────────────────────────────────────────────────────


def message(number: int, payload: bytes, **more: bool) -> Publish:
    return Publish(topic="a", payload=payload, qos=1, packet_id=number, **more)


@pytest.mark.parametrize("kept", [True, False])
def test_nothing_is_printed_twice(kept: bool) -> None:
    """The acknowledgement of the second message is lost with the connection. With the session it comes again with DUP;
    without, what is retained comes again. Then it is acknowledged there."""
    async def first(peer: Peer) -> None:
        await peer.accept()
        asked = await peer.expect(Subscribe)
        peer.send(Suback(packet_id=asked.packet_id, reasons=[1]), message(1, b"one"), message(2, b"two"))
        await peer.expect(Puback, packet_id=1)
        await peer.expect(Puback, packet_id=2)
        peer.drop()

    async def second(peer: Peer) -> None:
        await peer.accept(session_present=kept)
        if kept:
            peer.send(message(2, b"two", dup=True))
        else:
            asked = await peer.expect(Subscribe)
            peer.send(message(2, b"two", retain=True), Suback(packet_id=asked.packet_id, reasons=[1]))
        peer.send(message(3, b"three"))
        await peer.expect(Puback, packet_id=2)
        await peer.expect(Puback, packet_id=3)
        peer.send(message(4, b"two"), message(5, b"four"))      # the same words, and another message
        while await peer.recv() is not None:
            pass

    async def body() -> None:
        async with Scripted(first) as one, Scripted(second) as two:
            brokers = f"{one.address},{NOBODY},{two.address}"
            ended = await asyncio.to_thread(fluxmq_said, "sub", "--broker", brokers, "a", "--count", "5")
            assert ended.lines == ["one", "two", "three", "two", "four"]
            lost, again = ended.err.splitlines()
            assert lost.startswith(f"fluxmq: the connection to {one.address} is lost (")
            assert again == f"fluxmq: connected again, to {two.address}"

    asyncio.run(body())


def test_a_broker_that_is_killed(tmp_path: Path) -> None:
    """Both go on, and each message of QoS 2 arrives once."""
    with Broker(tmp_path, {"server.mqtt.tcp.plain.addr": "127.0.0.1:0"}) as broker:
        address = "{}:{}".format(*broker.address)
        with listening(address, "a", "--qos", "2") as one, \
                Started("pub", "--broker", address, "a", "--lines", "--qos", "2", "--verbose") as source:
            source.says("connected to")
            for number in range(200):
                if number in (50, 150):
                    broker.kill()
                    broker.start()
                    for each in (one, source):
                        each.says("connected again", 1 + number // 150)
                source.write(f"{number}\n".encode())
            assert [one.line() for _ in range(200)] == [str(number) for number in range(200)]
            assert source.end().status == 0
            assert one.interrupt().status == 0
            for each in (one, source):
                assert each.err.count("is lost") == each.err.count("connected again") == 2


def test_no_reconnect() -> None:
    async def dies(peer: Peer) -> None:
        await peer.accept()
        asked = await peer.expect(Subscribe)
        peer.send(Suback(packet_id=asked.packet_id, reasons=[1]))
        peer.drop()

    async def body() -> None:
        async with Scripted(dies) as one:
            ended = await asyncio.to_thread(fluxmq_said, "sub", "--broker", one.address, "a", "--no-reconnect")
            assert ended.status == exit_codes.UNREACHABLE
            assert ended.err.startswith(f"fluxmq: the connection to {one.address} is lost") and one.peers == 1

    asyncio.run(body())


# ── ends ─────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("command", ["pub", "sub"])
def test_nobody_answers(command: str) -> None:
    status, said = fluxmq(command, "--broker", NOBODY, "a", *(["x"] if command == "pub" else []))
    assert status == exit_codes.UNREACHABLE
    assert said == (f"fluxmq: no broker answers at {NOBODY}; start one with `fluxmq run`, or say where it is by "
                    "--broker\n")
    status, said = fluxmq(command, "--broker", f"{NOBODY},no-such-host.invalid:1", "a",
                          *(["x"] if command == "pub" else []))
    assert status == exit_codes.UNREACHABLE and NOBODY in said and "there is no host of this name" in said


def test_who_answers_speaks_no_mqtt(client_broker: Broker) -> None:
    status, said = fluxmq("pub", "--broker", "{}:{}".format(*client_broker.addresses["health"]), "a", "x")
    assert status == exit_codes.UNREACHABLE and "does not speak MQTT 5" in said and said.count("\n") == 1


def test_who_answers_says_nothing(tmp_path: Path) -> None:
    async def body() -> None:
        async def silent(peer: Peer) -> None:
            while await peer.reader.read(1000):
                pass

        async with Scripted(silent, path=str(tmp_path / "s")) as one:
            ended = await asyncio.to_thread(fluxmq_said, "pub", "--broker", one.address, "a", "x", "--connect-timeout",
                                            "0.2")
            assert (ended.status, ended.err) == (
                exit_codes.UNREACHABLE, f"fluxmq: {one.address} did not answer within 0.2 s\n")
            ended = await asyncio.to_thread(fluxmq_said, "pub", "--broker", one.address, "a", "x", "--timeout", "0.2")
            assert ended.status == exit_codes.TIMEOUT and "0.2 s are over" in ended.err

    asyncio.run(body())


def test_time_is_over_before_it_is_acknowledged() -> None:
    async def mute(peer: Peer) -> None:
        await peer.accept()
        while await peer.recv() is not None:
            pass

    async def body() -> None:
        async with Scripted(mute) as one:
            for seconds in (1, 30):     # it says something else if it was not even connected in this time
                ended = await asyncio.to_thread(fluxmq_said, "pub", "--broker", one.address, "a", "x", "--timeout",
                                                str(seconds))
                if "0 of 1" in ended.err:
                    break
            assert (ended.status, ended.err) == (
                exit_codes.TIMEOUT, f"fluxmq: {seconds} s are over; 0 of 1 message acknowledged\n")

    asyncio.run(body())


def test_time_is_over_before_all_came(pub: Callable[..., Ended], sub: Callable[..., Ended], topic: str) -> None:
    pub(topic, "x", "--retain")
    for seconds in (1, 30):     # a busy machine may need the longer one
        said = sub(topic, "--count", "2", "--timeout", str(seconds))
        if said.lines:
            break
    assert (said.status, said.lines, said.err) == (
        exit_codes.TIMEOUT, ["x"], f"fluxmq: {seconds} s are over, and 1 of 2 messages came\n")
    assert sub(topic, "--timeout", str(seconds)).status == 0
    pub(topic, "", "--retain")


def test_refused(pub: Callable[..., Ended], sub: Callable[..., Ended], tmp_path: Path) -> None:
    """A message in the middle of many: how many were taken is said."""
    queue = '[{"name": "q", "limits": {"max_depth": 3}, "overflow": "reject-publish"}]'
    with Broker(tmp_path, {"queues": queue}) as small:
        at = ["--broker", "{}:{}".format(*small.address)]
        said = fluxmq_said("pub", *at, "--queue", "q", "--lines", given=b"1\n2\n3\n4\n5\n")
        assert said.status == exit_codes.REFUSED and "(0x97)" in said.err and "3 of " in said.err
        assert said.err.count("\n") == 1
        said = fluxmq_said("sub", *at, "--queue", "none")
        assert said.status == exit_codes.REFUSED and "`fluxmq queue create NAME` makes one" in said.err
        said = fluxmq_said("pub", *at, "--queue", "none", "x")
        assert said.status == exit_codes.REFUSED and "no such queue" in said.err


def test_nobody_is_subscribed(pub: Callable[..., Ended], topic: str) -> None:
    assert pub(topic, "x", "--verbose").err.endswith(f"nobody is subscribed to {topic}: it went to nobody\n")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted(address: str, topic: str, number: signal.Signals) -> None:
    """sub without --count is ended that way; what was to be done and is not has a status that says so."""
    with listening(address, topic) as one, listening(address, topic, "--count", "3") as two, \
            Started("pub", "--broker", address, topic, "--lines") as source:
        for line in "xy":                   # it may have been interrupted before it saw the answers to them
            source.write(f"{line}\n".encode())
            assert one.line() == two.line() == line
        ended = source.interrupt(number)
        assert ended.status == exit_codes.INTERRUPTED
        assert ended.err in {f"fluxmq: interrupted; {count} messages acknowledged\n"
                             for count in ("0 of 2", "1 of 2", "2")}
        assert one.interrupt(number).status == 0
        assert two.interrupt(number).status == exit_codes.INTERRUPTED


def test_who_read_the_output_has_gone(address: str, topic: str, pub: Callable[..., Ended]) -> None:
    reading, writing = os.pipe()
    with os.fdopen(writing, "wb") as pipe:
        one = Started("sub", "--broker", address, topic, "--verbose", stdout=pipe)
    with one:
        one.says("subscribed")
        os.close(reading)
        pub(topic, "x")
        assert one.process.wait(SECONDS) == 0 and "Traceback" not in one.err


def test_who_reads_slowly_keeps_the_connection(address: str, topic: str, pub: Callable[..., Ended]) -> None:
    """A pipe that is full stops the printing, not the answers to the broker: the signal ends it at once."""
    with listening(address, topic) as one:
        pub(topic, "--lines", given=b"x" * 200_000 + b"\ny\n")
        assert len(one.line()) == 200_000
        assert one.line() == "y"
    with listening(address, topic) as one:
        pub(topic, "x" * 100_000, "--count", "5")
        one.process.send_signal(signal.SIGINT)
        assert one.process.wait(SECONDS) == 0


@pytest.mark.parametrize(("words", "says"), [
    (["pub"], "say a TOPIC"), (["pub", "a/#", "x"], "no topic to publish to"), (["pub", "a", "b", "c"], "in quotes"),
    (["pub", "a", "b", "--lines"], "not both"), (["pub", "a", "x", "--property", "b"], "NAME=VALUE"),
    (["pub", "a", "x", "--mqtt", "3.1.1", "--expiry", "0", "--content-type", "t"], "has no --content-type"),
    (["pub", "a", "x", "--password", "b"], "needs --user"), (["pub", "a", "x", "--will-message", "b"], "--will-topic"),
    (["pub", "a", "x", "--key", __file__], "needs --cert"), (["pub", "a", "x", "--broker", "a/b"], "is no address"),
    (["pub", "a", "x", "--ca-file", __file__], "--ca-file"), (["pub", "a", "--file", "no/such/file"], "does not exist"),
    (["pub", "a", "x", "--insecure", "--broker", "mqtt://h"], "write mqtts://HOST:PORT"),
    (["pub", "a", "x", "--session-expiry", "9"], "needs --client-id"), (["sub"], "say a FILTER"),
    (["sub", "a", "--format", "%z"], "%z means nothing"), (["sub", "a", "--ack", "none"], "--ack is for queues"),
    (["sub", "--queue", "a", "--from", "begin"], "first, last, next"), (["sub", "a/#/b", "--broker", "BROKER"], "#"),
    (["sub", "--queue", "a", "--from", "timestamp:soon"], "2026-01-31T08"),
    (["sub", "--queue", "a", "--mqtt", "3.1.1", "--prefetch", "1"], "has no --prefetch")])
def test_mistakes(address: str, words: list[str], says: str) -> None:
    status, said = fluxmq(*(address if word == "BROKER" else word for word in words))
    assert status == exit_codes.CONFIG and says in said and "Traceback" not in said


def test_refusals_of_the_login() -> None:
    """Each refusal of the login has its hint, in both versions."""
    async def body() -> None:
        for version, code, hint in (("5", 0x85, "--client-id"), ("3.1.1", 2, "--client-id"), ("5", 0x84, "--mqtt"),
                                    ("3.1.1", 5, "--user"), ("5", 0x8A, "fluxmq ban list")):
            async def refuse(peer: Peer, code: int = code) -> None:
                await peer.accept(reason=code)

            async with Scripted(refuse) as one:
                ended = await asyncio.to_thread(fluxmq_said, "pub", "--broker", one.address, "a", "x", "--mqtt",
                                                version)
                assert ended.status == exit_codes.REFUSED and hint in ended.err and ended.err.count("\n") == 1

    asyncio.run(body())


@pytest.mark.parametrize(("words", "complaint"), [
    (("sub", "t", "--group", "a/b"), "the name of a group"), (("sub", "t", "--group", ""), "the name of a group"),
    (("sub", "$share/g"), "is no shared subscription"), (("sub", "$share//t"), "is no shared subscription"),
    (("sub", "$share/+/t"), "is no shared subscription"), (("pub", "", "x"), "a topic is not empty"),
    (("pub", "t", "x", "--mqtt", "3.1.1", "--expiry", "0"), "MQTT 3.1.1 has no --expiry")])
def test_what_a_broker_would_end_the_connection_for_is_said_before(words: tuple[str, ...], complaint: str) -> None:
    status, said = fluxmq(*words, "--broker", NOBODY)
    assert status == exit_codes.CONFIG and complaint in said


def test_what_is_not_there_or_not_text_is_said_in_words(address: str, tmp_path: Path) -> None:
    status, said = fluxmq("pub", "t", "x", "--broker", "127.0.0.1:1,127.0.0.1:2")
    assert status == exit_codes.UNREACHABLE and "Before it: 127.0.0.1:1: no broker answers\n" in said
    status, said = fluxmq("pub", "t\udcff", "x", "--broker", address)
    assert status == exit_codes.CONFIG and "topic is not UTF-8" in said
    status, said = fluxmq("pub", "t", "x", "--broker", NOBODY, "--user", "anna", "--password", "\udcff")
    assert status == exit_codes.UNREACHABLE and "no broker answers" in said     # any bytes are a password
    (tmp_path / "cert").write_text("no certificate")
    status, said = fluxmq("pub", "t", "x", "--broker", NOBODY, "--cert", str(tmp_path / "cert"))
    assert status == exit_codes.CONFIG and "it does not hold a certificate and its key in PEM" in said
