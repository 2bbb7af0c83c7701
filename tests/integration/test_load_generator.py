"""The load generator against mosquitto and the floors: every message is counted, and faults are seen."""
from __future__ import annotations

import json
import os
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from kit.python import environment
from kit.tools import require_tool
from websockets.exceptions import ConnectionClosed
from websockets.sync.server import ServerConnection, serve
from websockets.typing import Subprotocol

from fluxmq.bench.load.brokers import Broker, Needs, start_broker
from fluxmq.bench.load.certs import make_certificates
from fluxmq.bench.load.cli import bench
from fluxmq.bench.load.engine import Engine, LoadError
from fluxmq.bench.load.floors import fsync_latency
from fluxmq.bench.load.options import LoadOptions, OptionsError
from fluxmq.bench.load.runner import run_load
from fluxmq.bench.load.sockets import TransportError
from fluxmq.bench.load.storms import StormOptions, run_storm

SHORT: dict[str, Any] = {"duration": 0.2, "warmup": 0.05, "drain": 20.0}


@pytest.fixture(scope="module")
def mosquitto(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Broker, str]]:
    """A running mosquitto with all transports, and the authority of its certificate."""
    require_tool("mosquitto", package="mosquitto")
    folder = tmp_path_factory.mktemp("mosquitto")
    certificates = make_certificates(folder)
    needs = Needs(folder=folder, transports=("tcp", "tls", "ws", "wss"), certificates=certificates)
    with start_broker("mosquitto", needs) as broker:
        yield broker, str(certificates.cafile)


Load = Callable[..., dict[str, Any]]


@pytest.fixture
def load(mosquitto: tuple[Broker, str]) -> Load:
    """A short run against it; keyword arguments are fields of LoadOptions."""
    broker, cafile = mosquitto

    def run(**given: Any) -> dict[str, Any]:
        transport = given.get("transport", "tcp")
        options = SHORT | {"addr": broker.addresses[transport], "cafile": cafile, "broker_pid": broker.pid} | given
        for longer in (1, 10, 50):      # the machine may stand still so long that nothing can be measured
            figures = run_load(LoadOptions(**options | {"duration": options["duration"] * longer}))
            if figures["delivered"] or not figures["total"]["expected"]:
                break
        return figures

    return run


def assert_exact(figures: dict[str, Any], fanout: int) -> None:
    total = figures["total"]
    assert figures["drained"]
    assert total["sent"] > 0
    assert total["delivered"] == total["received"] == total["expected"] == total["sent"] * fanout
    # Not stalls: on a busy machine nothing may move for two seconds, and all of it arrives.
    assert {fault: total[fault] for fault in ("lost", "duplicates", "reordered", "foreign", "refused")
            if total[fault]} == {}


@pytest.mark.parametrize("version", ["3.1.1", "5"])
@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("work", [
    {"pubs": 1, "subs": 1}, {"pubs": 4, "subs": 4, "topics": "pairs", "filter": "plus"}, {"pubs": 3, "subs": 5}])
def test_all_that_is_sent_arrives_once_and_in_order(load: Load, version: str, qos: int, work: dict[str, Any]) -> None:
    figures = load(version=version, qos=qos, **work)
    assert_exact(figures, 1 if work.get("topics") == "pairs" else work["subs"])
    assert figures["total"]["acked"] == (figures["total"]["sent"] if qos else 0)
    # Of the fifth of a second that is measured; a busy machine may do all of it before or behind.
    assert (figures["latency_us"] or {"count": 0})["count"] == figures["delivered"]
    assert (figures["ack_latency_us"] is None) == (figures["acked_per_second"] == 0)
    assert not figures["delivered"] or figures["broker_cpu_us_per_message"] > 0


@pytest.mark.parametrize("given", [
    {"topics": "fresh", "filter": "hash", "pubs": 2}, {"topics": "fresh", "filter": "plus"},
    {"filter": "hash", "subs": 2}, {"version": "5", "properties": True, "qos": 1},
    {"qos": 2, "sub_qos": 0}, {"persistent": True, "qos": 1}, {"persistent": True, "qos": 2, "version": "5"},
    {"size": 16}, {"size": 300_000, "subs": 3, "window": 5, "qos": 1}, {"version": "5", "receive_maximum": 3, "qos": 2},
    {"window": 1}, {"window": 3, "pubs": 5}, {"batch": 7, "pubs": 2},
])
def test_the_ways_to_load(load: Load, given: dict[str, Any]) -> None:
    assert_exact(load(**given), given.get("subs", 1))


# mosquitto 2.0 reads large WebSocket frames at some 40 kB/s: those go through a bridge below.
@pytest.mark.parametrize(("transport", "size"), [
    ("tls", 64), ("tls", 40_000), ("tls", 200_000), ("ws", 64), ("ws", 500), ("wss", 64), ("wss", 500)])
def test_transports(load: Load, transport: str, size: int) -> None:
    assert_exact(load(transport=transport, size=size, subs=2, qos=1, window=40), 2)


@pytest.mark.parametrize("size", [64, 125, 40_000, 200_000])
def test_websocket_frames_of_all_sizes(load: Load, mosquitto: tuple[Broker, str], size: int) -> None:
    """Through the websockets library, as a bridge to mosquitto's TCP port: a second opinion on our framing."""
    host, _, port = mosquitto[0].addresses["tcp"].rpartition(":")

    def bridge(client: ServerConnection) -> None:
        with socket.create_connection((host, int(port))) as broker:
            def back() -> None:
                with suppress(OSError, ConnectionClosed):
                    while data := broker.recv(65536):
                        client.ping()
                        client.send(data)

            thread = threading.Thread(target=back, daemon=True)
            thread.start()
            with suppress(OSError, ConnectionClosed):
                for message in client:
                    assert isinstance(message, bytes)
                    broker.sendall(message)
            broker.shutdown(socket.SHUT_RDWR)
            thread.join(10)

    with serve(bridge, "127.0.0.1", 0, subprotocols=[Subprotocol("mqtt")], compression=None, max_size=None) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        addr = f"127.0.0.1:{server.socket.getsockname()[1]}"
        assert_exact(load(transport="ws", addr=addr, size=size, subs=2, qos=1, window=10), 2)
        server.shutdown()
        thread.join(10)


def test_shared_subscriptions_share(load: Load) -> None:
    figures = load(subs=6, groups=2, pubs=2, version="5")
    assert_exact(figures, 2)


def test_payloads_without_room_for_numbers_are_counted(load: Load) -> None:
    figures = load(size=3, subs=2)
    assert not figures["checked"]
    assert figures["latency_us"] is None
    assert figures["total"]["received"] == figures["total"]["sent"] * 2


def test_an_open_loop_sends_what_was_asked_for(load: Load) -> None:
    figures = load(rate=2000.0, pubs=2, subs=2, topics="pairs", duration=0.5, warmup=0.0)
    assert_exact(figures, 1)
    # The number of messages whose time came, not when they were sent: exact but for the ends.
    assert 900 <= figures["total"]["sent"] + figures["total"]["overruns"] <= 2000 * (figures["seconds"] + 0.5)


def test_churn_goes_on_meanwhile(load: Load) -> None:
    figures = load(churn=2000.0, duration=0.4)
    assert_exact(figures, 1)
    assert figures["total"]["churned"] > 0


def test_publishing_without_subscribers(load: Load) -> None:
    figures = load(subs=0, qos=1)
    assert figures["total"]["acked"] == figures["total"]["sent"] > 0


def test_a_storm_opens_and_holds(mosquitto: tuple[Broker, str]) -> None:
    broker, _ = mosquitto
    figures = run_storm(StormOptions(addr=broker.addresses["tcp"], connections=300, first=100, at_once=20,
                                     broker_pid=broker.pid))
    assert figures["latency_us"]["count"] == 300
    assert figures["closed_while_idle"] == 0
    assert figures["broker_memory"]["rss_all"] > 0


def test_nothing_listens() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        addr = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(TransportError, match="cannot connect"):
            run_load(LoadOptions(addr=addr))
        with pytest.raises(LoadError, match="refused"):
            run_storm(StormOptions(addr=addr, connections=2))


def test_contradictions_are_refused() -> None:
    for given, text in (({"topics": "pairs", "subs": 2}, "as many"), ({"topics": "fresh"}, "wildcard|--filter"),
                        ({"properties": True}, "version 5"), ({"groups": 2}, "groups"), ({"addr": "x"}, "HOST:PORT"),
                        ({"sub_addrs": ("x:1", "y")}, "HOST:PORT, not 'y'")):
        with pytest.raises(OptionsError, match=text):
            run_load(LoadOptions(**given))


def test_subscribers_elsewhere(tmp_path: Path) -> None:
    """Two brokers that know nothing of each other: publishers on one, subscribers on both in turn."""
    with start_broker("fluxmq", Needs(folder=tmp_path)) as one:
        other = tmp_path / "other"
        other.mkdir()
        with start_broker("fluxmq", Needs(folder=other)) as two:
            addrs = one.addresses["tcp"], two.addresses["tcp"]
            figures = run_load(LoadOptions(**SHORT | {"addr": addrs[0], "sub_addrs": addrs, "subs": 4, "window": 10,
                                                      "drain": 5.0}))
    total = figures["total"]
    assert total["delivered"] == total["lost"] == total["expected"] / 2 > 0


class FaultyBroker:
    """A broker of one publisher and one subscriber that hands on what `faults` makes of the PUBLISH packets.

    It reads until it has `wait_for` messages, changes their list, sends them, and goes on so.
    """

    def __init__(self, faults: Callable[[list[bytes]], list[bytes]], wait_for: int) -> None:
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.addr = f"127.0.0.1:{self.listener.getsockname()[1]}"
        self.faults = faults
        self.wait_for = wait_for
        self.thread = threading.Thread(target=self.serve, daemon=True)
        self.thread.start()

    def packet(self, sock: socket.socket) -> bytes:
        head = self.exactly(sock, 2)
        assert head[1] < 128, "the tests send small packets"
        return head + self.exactly(sock, head[1])

    @staticmethod
    def exactly(sock: socket.socket, size: int) -> bytes:
        data = b""
        while len(data) < size:
            got = sock.recv(size - len(data))
            if not got:
                raise EOFError
            data += got
        return data

    def serve(self) -> None:
        subscriber, _ = self.listener.accept()
        publisher = None
        try:
            self.packet(subscriber)
            subscriber.sendall(b"\x20\x02\x00\x00")
            subscribe = self.packet(subscriber)
            subscriber.sendall(b"\x90\x03" + subscribe[2:4] + b"\x00")
            publisher, _ = self.listener.accept()
            self.packet(publisher)
            publisher.sendall(b"\x20\x02\x00\x00")
            while True:
                messages = [self.packet(publisher) for _ in range(self.wait_for)]
                # One byte at a time at first: packets are put together again.
                data = b"".join(self.faults(messages))
                for i in range(min(200, len(data))):
                    subscriber.sendall(data[i:i + 1])
                subscriber.sendall(data[200:])
        except (EOFError, OSError):
            pass
        finally:
            subscriber.close()
            if publisher is not None:
                publisher.close()
            self.listener.close()


def run_faulty(faults: Callable[[list[bytes]], list[bytes]], wait_for: int = 10,
               duration: float = 0.2) -> dict[str, Any]:
    """A run with ten messages in flight through a FaultyBroker. What is left when the run ends may be too little for
    it to go on: those `sent % wait_for` messages are lost too."""
    broker = FaultyBroker(faults, wait_for)
    figures = run_load(LoadOptions(addr=broker.addr, window=10, duration=duration, warmup=0.0, drain=5.0))
    broker.thread.join(10)
    assert figures["total"]["sent"] >= wait_for
    return figures


def test_a_faultless_broker_is_found_so() -> None:
    assert_exact(run_faulty(lambda messages: messages, wait_for=1), 1)


def test_planted_duplicates_are_seen() -> None:
    total = run_faulty(lambda messages: [*messages, messages[3], messages[9]])["total"]
    assert total["duplicates"] == total["sent"] // 10 * 2
    assert (total["lost"], total["reordered"]) == (total["sent"] % 10, 0)


def test_planted_disorder_is_seen() -> None:
    total = run_faulty(lambda messages: [messages[1], messages[0], *messages[2:]])["total"]
    assert total["reordered"] == total["sent"] // 10
    assert (total["lost"], total["duplicates"]) == (total["sent"] % 10, 0)


def test_planted_loss_is_seen_and_does_not_stop_the_loop() -> None:
    for duration in (3.0, 10.0, 30.0):      # on a busy machine the loop may not have gone on before the end
        figures = run_faulty(lambda messages: messages[:4] + messages[5:], duration=duration)
        total = figures["total"]
        if total["sent"] > 20:
            break
    assert not figures["drained"]
    assert total["stalls"] > 0
    assert total["sent"] > 20  # more than the window that the loss had closed
    assert total["lost"] == total["sent"] // 10 + total["sent"] % 10
    assert (total["duplicates"], total["reordered"]) == (0, 0)


def test_messages_of_another_run_are_not_ours() -> None:
    def alien(messages: list[bytes]) -> list[bytes]:
        other = bytearray(messages[0])
        other[2 + 2 + 8 + 7] ^= 0xFF  # the run's tag, in the highest byte of the head
        return [bytes(other), *messages]

    total = run_faulty(alien)["total"]
    assert total["foreign"] == total["sent"] // 10
    assert (total["lost"], total["duplicates"], total["reordered"]) == (total["sent"] % 10, 0, 0)


@pytest.mark.parametrize(("answer", "text"), [
    (b"\x20\x02\x00\x05", "refused CONNECT with code 0x05"), (b"\xf0\x00", "cannot be MQTT"),
    (b"\x20\xff\xff\xff\xff\x01", "cannot be MQTT"), (b"", "closed the connection"),
])
def test_a_broker_that_misbehaves_is_reported(answer: bytes, text: str) -> None:
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        sock, _ = listener.accept()
        sock.recv(1024)
        sock.sendall(answer)
        sock.close()

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    with listener, pytest.raises(LoadError, match=text):
        run_load(LoadOptions(addr=f"127.0.0.1:{listener.getsockname()[1]}", subs=1))
    thread.join(10)


def test_an_engine_without_connections_ends_clean() -> None:
    with pytest.raises(ValueError, match=r"3\.1\.1"):
        Engine(version=3, publishers=1, subscribers=1)
    os.fstat(0)  # refusing an argument must not close descriptors that are not the engine's


@pytest.mark.parametrize("floor", ["relay", "fanout"])
@pytest.mark.parametrize("given", [{}, {"subs": 3}, {"version": "5", "size": 200_000, "window": 6, "subs": 2}])
def test_the_floors_lose_nothing(tmp_path: Path, floor: str, given: dict[str, Any]) -> None:
    require_tool("cc", package="gcc")
    with start_broker(floor, Needs(folder=tmp_path)) as broker:
        assert_exact(run_load(LoadOptions(**SHORT | {"addr": broker.addresses["tcp"]} | given)), given.get("subs", 1))


def test_the_relay_pairs(tmp_path: Path) -> None:
    require_tool("cc", package="gcc")
    with start_broker("relay", Needs(folder=tmp_path, pairs=True)) as broker:
        figures = run_load(LoadOptions(**SHORT | {"addr": broker.addresses["tcp"], "pubs": 20, "subs": 20,
                                                  "topics": "pairs"}))
    assert_exact(figures, 1)


def test_the_fsync_loop_counts_its_turns(tmp_path: Path) -> None:
    require_tool("cc", package="gcc")
    assert fsync_latency(tmp_path, 0.1).count > 0
    assert list(tmp_path.iterdir()) == []


def test_the_commands(mosquitto: tuple[Broker, str], tmp_path: Path) -> None:
    broker, _ = mosquitto
    addr = ["--addr", broker.addresses["tcp"], "--smoke"]
    said = CliRunner().invoke(bench, ["run", *addr, "--json", "--broker-pid", str(broker.pid)])
    assert said.exit_code == 0, said.output
    assert json.loads(said.output)["total"]["lost"] == 0
    assert "0 lost" in CliRunner().invoke(bench, ["run", *addr, "--qos", "2"]).output
    assert "opened" in CliRunner().invoke(bench, ["storm", *addr]).output
    wrong = CliRunner().invoke(bench, ["run", *addr, "--topics", "pairs", "--subs", "2"])
    assert wrong.exit_code == 2


@pytest.mark.parametrize("kind", ["plain", "priorities", "delayed"])
@pytest.mark.parametrize("how", ["stop", "kill"])
def test_a_backlog_is_filled_and_found_again(kind: str, how: str, tmp_path: Path,
                                             monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in environment().items():
        monkeypatch.setenv(name, value)
    said = CliRunner().invoke(bench, ["backlog", "--smoke", "--json", "--kind", kind, "--restart", how, "--messages",
                                      "5000", "--dir", str(tmp_path)])
    assert said.exit_code == 0, said.output
    figures = json.loads(said.output)
    assert (figures["kind"], figures["messages"], figures["restart"]) == (kind, 5000, how)
    assert all(figures[key] > 0 for key in ("rss_empty", "rss_light", "rss_full", "rss_restarted", "restart_seconds"))
    # Counted by the broker, once before and once after the restart
    assert figures["found"] == {"messages": 0 if kind == "delayed" else 5000,
                                "delayed": 5000 if kind == "delayed" else 0}
    assert list(tmp_path.iterdir()) == []


def test_a_comparison_of_mosquitto_with_itself(tmp_path: Path) -> None:
    require_tool("mosquitto", package="mosquitto")
    require_tool("cc", package="gcc")
    output = tmp_path / "results.json"
    for _ in range(4):      # loads of a third of a second, of which a busy machine may measure nothing
        said = CliRunner().invoke(bench, [
            "compare", "--smoke", "--ours", "mosquitto", "--only", "one-to-one", "--only", "idle-18000", "--only",
            "ws-pairs", "--only", "tls-one-to-one", "--dir", str(tmp_path), "--output", str(output)])
        assert said.exit_code == 0, said.output
        results = json.loads(output.read_text())
        if all(goal["met"] is not None for row in results["rows"] for goal in row["goals"]):
            break
    assert [row["key"] for row in results["rows"]] == ["one-to-one", "idle-18000", "ws-pairs", "tls-one-to-one"]
    assert all(goal["met"] is not None for row in results["rows"] for goal in row["goals"])
    assert [path.name for path in tmp_path.iterdir()] == ["results.json"]
