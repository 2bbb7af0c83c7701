"""The AMQP load generator against a broker of our own that behaves, and that does not: everything is counted."""
from __future__ import annotations

import json
import random
import socket
import ssl
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from kit.amqp_server import Behaviour, FakeAmqp, Peer, frame, method, short

from fluxmq.bench.load import amqp_session
from fluxmq.bench.load.amqp_engine import AmqpEngine
from fluxmq.bench.load.amqp_options import AmqpOptions
from fluxmq.bench.load.amqp_runner import run_amqp
from fluxmq.bench.load.amqp_session import SessionError
from fluxmq.bench.load.certs import make_certificates
from fluxmq.bench.load.cli import bench
from fluxmq.bench.load.engine import LoadError
from fluxmq.bench.load.options import OptionsError
from fluxmq.bench.load.sockets import TransportError, open_socket

# stall: a machine that stands still for a while is no fault of the broker's.
SHORT: dict[str, Any] = {"duration": 0.2, "warmup": 0.05, "drain": 20.0, "window": 100, "stall": 600.0}
FAULTS = ("lost", "duplicates", "reordered", "foreign", "redelivered", "refused", "returned", "overruns", "pauses",
          "stalls")


def load(behaviour: Behaviour | None = None, enough: int = 0, **given: Any) -> tuple[dict[str, Any], FakeAmqp]:
    """A short run against a broker that behaves so; its figures, and the broker after it. enough: how many messages the
    test needs; a machine that is too busy for them gets a longer run."""
    options = SHORT | given
    for longer in (1, 10, 40):
        with FakeAmqp(behaviour) as broker:
            figures = run_amqp(AmqpOptions(**options | {"addr": broker.addr, "duration": options["duration"] * longer}))
        if figures["total"]["sent"] > enough:
            break
    return figures, broker


def assert_exact(figures: dict[str, Any], fanout: int, *but: str) -> None:
    total = figures["total"]
    assert figures["drained"]
    assert total["sent"] > 0
    assert total["delivered"] == total["received"] == total["expected"] == total["sent"] * fanout
    assert {fault: total[fault] for fault in FAULTS if total[fault] and fault not in but} == {}


def consumers(broker: FakeAmqp) -> list[Peer]:
    return [peer for peer in broker.peers if peer.consumes]


@pytest.mark.parametrize("work", [
    {}, {"queue": "quorum", "pubs": 4, "subs": 4}, {"queue": "stream", "pubs": 2, "subs": 3},
    {"queues": "pairs", "pubs": 3, "subs": 3}, {"queues": "fanout", "pubs": 2, "subs": 5},
    {"ack_every": 7, "prefetch": 20, "subs": 2}, {"ack_every": 0, "subs": 2}, {"window": 1}, {"window": 3, "pubs": 5},
    {"lag": 0}, {"lag": 1, "window": 50, "pubs": 3}, {"lag": 5, "subs": 3, "prefetch": 1}, {"batch": 3},
    {"confirms": False, "durable": False, "persistent": False}, {"size": 16}, {"prefetch": 0},
])
@pytest.mark.parametrize("confirm", ["each", "multiple", "reverse"])
def test_all_that_is_sent_is_confirmed_and_arrives_once(work: dict[str, Any], confirm: Any) -> None:
    figures, broker = load(Behaviour(confirm=confirm), **work)
    fanout = work["subs"] if work.get("queues") == "fanout" or work.get("queue") == "stream" else 1
    assert_exact(figures, fanout)
    confirms = work.get("confirms", True)
    assert figures["total"]["acked"] == (figures["total"]["sent"] if confirms else 0)
    # Of the fifth of a second that is measured; a busy machine may do all of it before or behind.
    assert (figures["ack_latency_us"] is None) == (figures["acked_per_second"] == 0)
    assert (figures["latency_us"] or {"count": 0})["count"] == figures["delivered"]
    assert figures["server"] == "Fake 1.2"
    assert broker.messages == figures["total"]["sent"]
    assert all(not peer.unacked and peer.said_goodbye for peer in broker.peers)
    assert broker.queues == {} and broker.bindings == {}
    assert broker.delivery_modes == {1 if work.get("persistent") is False else 2}


@pytest.mark.parametrize("behaviour", [
    {"drip": 1500}, {"body_max": 1}, {"body_max": 15}, {"frame_max": 4096}, {"drip": 700, "body_max": 100},
    {"after_handshake": frame(8, 0, b"")}])
@pytest.mark.parametrize("size", [20, 300, 10_000])
def test_frames_in_any_pieces(behaviour: dict[str, Any], size: int) -> None:
    figures, broker = load(Behaviour(**behaviour), size=size, window=20, subs=2, queue="stream", duration=0.1)
    assert_exact(figures, 2)
    agreed = behaviour.get("frame_max", 131072)
    assert {peer.tuned for peer in broker.peers} == {(1, agreed, 0)}


@pytest.mark.parametrize("given", [{}, {"size": 40_000, "window": 20}, {"subs": 3, "queue": "stream"}])
def test_over_tls(tmp_path: Path, given: dict[str, Any]) -> None:
    certificates = make_certificates(tmp_path)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificates.certfile, certificates.keyfile)
    with FakeAmqp(tls=context) as broker:
        figures = run_amqp(AmqpOptions(**SHORT | {"addr": broker.addr, "transport": "tls",
                                                  "cafile": str(certificates.cafile)} | given))
    assert_exact(figures, given.get("subs", 1))


def test_nodes_of_a_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    """Queues are declared on one node, published to on another, consumed on others in turn."""
    connected: list[str] = []
    with FakeAmqp() as broker:
        def connect(options: Any, context: Any, source: Any, addr: str) -> socket.socket:
            connected.append(addr)
            return open_socket(options, context, source, broker.addr)

        monkeypatch.setattr(amqp_session, "open_socket", connect)
        figures = run_amqp(AmqpOptions(**SHORT | {"addr": "a:1", "queue_addr": "b:1", "sub_addrs": ("c:1", "d:1"),
                                                  "pubs": 2, "subs": 3}))
    assert_exact(figures, 1)
    assert connected == ["b:1", "c:1", "d:1", "c:1", "a:1", "a:1"]


def test_large_messages() -> None:
    figures, _ = load(Behaviour(), size=400_000, window=5, duration=0.1)
    assert_exact(figures, 1)


def test_what_the_broker_is_told() -> None:
    figures, broker = load(queue="stream", subs=2, prefetch=30, ack_every=10, username="ann", prefix="mine")
    assert [(queue.durable, queue.arguments) for queue in broker.declared.values()] == [
        (True, {"x-queue-type": "stream"})]
    assert next(iter(broker.declared)).startswith("mine-")
    assert {peer.login for peer in broker.peers} == {("ann", "guest")}
    for peer in consumers(broker):
        assert (peer.prefetch, peer.automatic, peer.arguments) == (30, False, {"x-stream-offset": "next"})
        assert [tag for tag, _ in peer.acks[:-1]] == list(range(10, 10 * len(peer.acks), 10))
        assert all(multiple for _, multiple in peer.acks)
        assert peer.acks[-1][0] == peer.delivered == figures["total"]["sent"]


def test_acknowledgements_one_by_one() -> None:
    _, broker = load(subs=2, prefetch=5)
    for peer in consumers(broker):
        assert peer.acks == [(tag, False) for tag in range(1, peer.delivered + 1)]


def test_automatic_acknowledgement_asks_for_no_prefetch() -> None:
    _, broker = load(ack_every=0, durable=False)
    assert [(peer.automatic, peer.prefetch, peer.acks) for peer in consumers(broker)] == [(True, 0, [])]
    assert [queue.durable for queue in broker.declared.values()] == [False]


def test_publishing_without_consumers() -> None:
    figures, broker = load(subs=0, pubs=3, window=30)
    assert figures["total"]["acked"] == figures["total"]["sent"] == broker.messages > 0
    assert figures["total"]["expected"] == 0 and figures["latency_us"] is None


def test_payloads_without_room_for_numbers_are_counted() -> None:
    figures, _ = load(size=3, subs=2, queue="stream")
    assert not figures["checked"] and figures["latency_us"] is None
    assert figures["total"]["received"] == figures["total"]["sent"] * 2


def test_an_open_loop_sends_what_was_asked_for() -> None:
    figures, _ = load(rate=2000.0, pubs=2, duration=0.5, warmup=0.0)
    assert_exact(figures, 1, "overruns")
    # The number of messages whose time came, not when they were sent: exact but for the ends.
    assert 900 <= figures["total"]["sent"] + figures["total"]["overruns"] <= 2000 * (figures["seconds"] + 0.5)


# ── brokers that do not keep their promises ──────────────────────────────────────────────────────────────────


def every_tenth(change: Callable[[bytes], list[bytes]]) -> Callable[[int, bytes], list[bytes]]:
    return lambda number, payload: change(payload) if number % 10 == 5 else [payload]


def planted(total: dict[str, int]) -> int:
    """Messages 5, 15, 25, … of those sent."""
    return (total["sent"] + 4) // 10


def test_planted_duplicates_are_seen() -> None:
    figures, _ = load(Behaviour(change=every_tenth(lambda payload: [payload, payload])))
    total = figures["total"]
    assert 0 < planted(total) - 1 <= total["duplicates"] <= planted(total)  # the last may come after the end
    assert (total["lost"], total["reordered"], total["foreign"]) == (0, 0, 0)


def test_planted_loss_is_seen_and_does_not_stop_the_loop() -> None:
    figures, _ = load(Behaviour(change=every_tenth(lambda payload: [])), 100 + 10, window=10, stall=0.1, drain=1.0,
                      duration=1.0)
    total = figures["total"]
    assert not figures["drained"]
    assert total["stalls"] > 0
    assert total["sent"] > 100 + 10         # more than the lag that ten losses had closed
    assert total["lost"] == planted(total)
    assert (total["duplicates"], total["reordered"]) == (0, 0)


@pytest.mark.parametrize("layout", [{"queue": "quorum"}, {"queue": "stream"}, {"queues": "pairs"}])
def test_planted_disorder_is_seen(layout: dict[str, Any]) -> None:
    held: list[bytes] = []

    def swap(number: int, payload: bytes) -> list[bytes]:
        if number % 10 == 4:
            held.append(payload)
            return []
        return [payload, held.pop()] if number % 10 == 5 else [payload]

    figures, _ = load(Behaviour(change=swap), drain=2.0, **layout)
    total = figures["total"]
    assert total["reordered"] == planted(total) > 0
    assert total["duplicates"] == 0 and total["lost"] == len(held)


def test_messages_of_another_run_are_not_ours() -> None:
    def alien(payload: bytes) -> list[bytes]:
        other = bytearray(payload)
        other[7] ^= 0xFF        # the run's tag, in the highest byte of the head
        return [bytes(other), payload]

    figures, _ = load(Behaviour(change=every_tenth(alien)))
    assert_exact_but_foreign(figures["total"])


def assert_exact_but_foreign(total: dict[str, int]) -> None:
    assert total["foreign"] == planted(total) > 0
    assert total["delivered"] == total["sent"] and not total["duplicates"] and not total["lost"]


def test_refusals_and_returns_and_second_deliveries_are_counted() -> None:
    total = load(Behaviour(confirm="nack"))[0]["total"]
    assert total["refused"] == total["acked"] == total["sent"]

    returned = method((60, 50), struct.pack(">H", 312) + short("NO_ROUTE") + short("") + short("q")) \
        + frame(2, 1, struct.pack(">HHQH", 60, 0, 0, 0))
    figures, _ = load(Behaviour(say=lambda number: returned if number < 7 else b""))
    assert figures["total"]["returned"] == 7
    assert_exact(figures, 1, "returned")

    figures, _ = load(Behaviour(redeliver=True))
    assert figures["total"]["redelivered"] == figures["total"]["received"]
    assert_exact(figures, 1, "redelivered")


def test_confirms_of_nothing_are_foreign() -> None:
    wrong = method((60, 80), struct.pack(">QB", 1 << 40, 0)) + method((60, 80), struct.pack(">QB", 0, 0))
    figures, _ = load(Behaviour(say=lambda number: wrong if number == 3 else b""))
    assert figures["total"]["foreign"] == 2
    assert_exact(figures, 1, "foreign")


def test_confirms_that_stop_close_the_window_until_it_is_written_off() -> None:
    # A machine that stands still for most of a run leaves no time for a window to be written off: a longer one has it.
    for duration in (0.6, 3.0, 15.0):
        figures, broker = load(Behaviour(confirm="stop"), subs=0, window=10, stall=0.1, drain=0.1, duration=duration)
        total = figures["total"]
        assert total["sent"] <= total["acked"] + 10 * (total["stalls"] + 1)
        assert not figures["drained"]
        if broker.messages > 50 + 10:
            break
    # On a slow day the window is written off before the 50 confirms are there: then some of these find nothing.
    assert total["acked"] + total["foreign"] == 50
    assert total["stalls"] > 0
    assert total["sent"] == broker.messages > 50 + 10


def test_a_broker_that_asks_for_a_pause_gets_it() -> None:
    blocked, unblocked = method((10, 60), short("memory"), channel=0), method((10, 61), channel=0)
    figures, _ = load(Behaviour(say=lambda number: blocked if number == 30 else b""), stall=1.0, window=10,
                      duration=2.5)
    assert figures["total"]["pauses"] == 1
    assert figures["total"]["sent"] <= 40 and figures["total"]["stalls"] == 0
    assert_exact(figures, 1, "pauses")
    # Together: whoever stops at once sends no later message by which the broker could know when to let it go on.
    figures, _ = load(Behaviour(say=lambda number: blocked + unblocked if number == 30 else b""), 50, window=10)
    assert figures["total"]["sent"] > 50
    assert_exact(figures, 1, "pauses")


def test_a_channel_that_is_stopped_answers() -> None:
    stop, go = method((20, 20), b"\x00"), method((20, 20), b"\x01")
    figures, _ = load(Behaviour(say=lambda number: {30: stop + go, 31: stop + go}.get(number, b"")), 50, window=10)
    assert figures["total"]["pauses"] == 2
    assert_exact(figures, 1, "pauses")


# ── ends ─────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(("octets", "text"), [
    (method((20, 40), struct.pack(">H", 404) + short("NOT_FOUND - gone") + bytes(4)), "closed with 404 NOT_FOUND - go"),
    (method((10, 50), struct.pack(">H", 320) + short("CONNECTION_FORCED") + bytes(4), channel=0), "with 320 CONN"),
    (method((20, 40), b""), "closed with 0 "), (method((60, 30), short("c") + b"\x00"), "cancelled"),
    (b"\x05" + frame(1, 0, b"")[1:], "a frame of type 5"), (frame(1, 1, b"abc"), "a frame of type 1"),
    (frame(8, 0, b"")[:-1] + b"\x00", "a frame of type 8"), (frame(3, 1, b"x"), "a frame of type 3"),
    (b"\x02\x00\x01\xff\xff\xff\xff", "a frame of type 2"), (method((60, 60), b"\xff"), "a frame of type 1"),
    (method((60, 60), b""), "a frame of type 1"),
    (method((60, 60), b"\x00" + bytes(11)) + frame(3, 1, b"x"), "a frame of type 3"),
    (method((60, 60), b"\x00" + bytes(11)) + frame(2, 1, bytes(13)), "a frame of type 2"),
])
def test_a_broker_that_misbehaves_is_reported(octets: bytes, text: str) -> None:
    with FakeAmqp(Behaviour(say=lambda number: octets if number == 20 else b"")) as broker, \
            pytest.raises(LoadError, match=text):
        run_amqp(AmqpOptions(**SHORT | {"addr": broker.addr}))
    assert broker.queues == {}


def test_garbage_ends_a_run_and_nothing_else() -> None:
    """Whatever comes instead of a frame: the run goes on, or says what was wrong."""
    for seed in range(40):
        noise = random.Random(seed).randbytes(200)
        framed = frame(seed % 4, 1, noise[:seed])
        with FakeAmqp(Behaviour(say=lambda number, noise=framed + noise: noise if number == 5 else b"")) as broker:
            try:
                assert run_amqp(AmqpOptions(**SHORT | {"addr": broker.addr, "duration": 0.02, "drain": 0.1}))["total"]
            except LoadError as error:
                assert "publisher 0" in str(error)


@pytest.mark.parametrize(("behaviour", "text"), [
    (Behaviour(password="other"), "refused: 403 ACCESS_REFUSED"),
    (Behaviour(mechanisms="EXTERNAL"), "takes no PLAIN login, but EXTERNAL"),
    (Behaviour(refuse_queue="quorum"), "refused: 406 PRECONDITION_FAILED"),
    (Behaviour(greeting=b"HTTP/1.1 400"), "this is no AMQP 0-9-1"),
    (Behaviour(greeting=b"AMQP\x00\x01\x00\x00"), "another version"), (Behaviour(greeting=b"\x01"), "closed"),
    (Behaviour(after_handshake=method((50, 21))), "queue.bind-ok answers nothing that was asked"),
])
def test_refusals_before_the_run(behaviour: Behaviour, text: str) -> None:
    with FakeAmqp(behaviour) as broker, pytest.raises(SessionError, match=text):
        run_amqp(AmqpOptions(**SHORT | {"addr": broker.addr, "queue": "quorum"}))
    assert broker.messages == 0


def test_nothing_listens_or_answers() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        addr = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(TransportError, match="cannot connect"):
            run_amqp(AmqpOptions(addr=addr))
        taken.listen()
        with pytest.raises(SessionError, match="did not answer"):
            run_amqp(AmqpOptions(addr=addr, connect_timeout=0.1))


def test_contradictions_are_refused() -> None:
    for given, text in (({"queues": "pairs", "subs": 2}, "as many"), ({"queues": "fanout", "subs": 0}, "none"),
                        ({"queue": "stream", "ack_every": 0}, "stream"),
                        ({"queue": "quorum", "durable": False}, "durable"),
                        ({"ack_every": 20, "prefetch": 10}, "never wait"), ({"addr": "x"}, "HOST:PORT"),
                        ({"sub_addrs": ("x",)}, "HOST:PORT"), ({"queue_addr": "x"}, "HOST:PORT"),
                        ({"prefetch": 65536}, "65535"), ({"lag": -1}, "lag is at least 0"),
                        ({"stall": 0.0}, "more than")):
        with pytest.raises(OptionsError, match=text):
            run_amqp(AmqpOptions(**given))


def test_an_engine_refuses_what_does_not_fit() -> None:
    for given in ({"publishers": 0}, {"layout": "ring"}, {"window": 0}, {"rate": -1.0}, {"frame_max": 1 << 30},
                  {"publishers": 1 << 16}, {"layout": "pairs", "consumers": 2}):
        with pytest.raises(ValueError, match=r"."):
            AmqpEngine(**{"publishers": 1, "consumers": 1} | given)
    engine = AmqpEngine(publishers=1, consumers=0)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        with pytest.raises(LoadError, match="not all"):
            engine.start()
        with pytest.raises(LoadError, match="0 consumers were announced"):
            engine.attach_consumer(ours, b"")
        with pytest.raises(ValueError, match="outside"):
            engine.attach_publisher(ours, b"", b"short", 3)
        engine.attach_publisher(ours, b"", b"template", 0)
        with pytest.raises(LoadError, match="one more"):
            engine.attach_publisher(ours, b"", b"template", 0)


def test_the_command() -> None:
    with FakeAmqp() as broker:
        call = ["amqp", "--addr", broker.addr, "--smoke"]
        said = CliRunner().invoke(bench, [*call, "--json", "--row", "queue-work"])
        assert said.exit_code == 0, said.output
        figures = json.loads(said.output)
        assert (figures["total"]["lost"], figures["server"]) == (0, "Fake 1.2")
        assert "0 lost" in CliRunner().invoke(bench, [*call, "--transient", "--ack-every", "5"]).output
        failed = CliRunner().invoke(bench, [*call, "--password", "wrong"])
        assert (failed.exit_code, "403" in failed.output) == (1, True)
        failed = CliRunner().invoke(bench, [*call, "--queues", "pairs", "--subs", "2"])
        assert (failed.exit_code, "as many" in failed.output) == (2, True)
    assert len([peer for peer in broker.peers if peer.published]) == 4 + 1
    assert broker.delivery_modes == {1, 2}
