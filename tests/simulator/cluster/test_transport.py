"""SimTransport keeps what fluxmq.cluster.ports.Transport promises, under the faults of the simulated network."""
from __future__ import annotations

import random
from collections.abc import AsyncIterator
from functools import partial
from typing import Any

import pytest
from simulator.cluster.machines import Machines, Process
from simulator.cluster.network import WINDOW, Network
from simulator.cluster.transport import SimStreamOut, SimTransport

from fluxmq.cluster.ports import BindFailed, CallFailed, StreamIn, StreamOut, Transport

KEEPALIVE_S = 4.0       # the most of Network.keepalive_ms


class Handler:
    """Writes down what happens. refuse: the answer to the next streams. driver: of its process."""

    def __init__(self, process: Process) -> None:
        self.process = process
        self.refuse = ""
        self.calls = 0
        self.streams: list[StreamIn] = []
        self.events: list[tuple[Any, ...]] = []
        self.frames: list[bytes] = []

    def _log(self, *event: Any) -> None:
        assert self.process.runs
        self.events.append(event)

    def on_stream(self, stream: StreamIn, hello: bytes) -> bytes | None:
        self._log("stream", hello)
        assert stream.identity == "n1"
        if self.refuse:
            stream.close(self.refuse)
            return None
        self.streams.append(stream)
        return b"answer to " + hello

    def on_frame(self, stream: StreamIn, frame: bytes) -> None:
        assert self.process.runs
        self.frames.append(frame)

    def on_end(self, stream: StreamIn) -> None:
        self._log("end", self.streams.index(stream))

    def on_open(self, stream: StreamOut, answer: bytes) -> None:
        stream.on_idle = partial(self._on_idle, stream)
        self._log("open", answer)

    def _on_idle(self, stream: StreamOut) -> None:
        assert stream.idle
        self._log("idle")

    def on_closed(self, stream: StreamOut, why: str) -> None:
        self._log("closed", why)

    async def on_call(self, method: str, body: bytes, identity: str | None) -> AsyncIterator[bytes]:
        self.calls += 1
        assert identity == "n1"
        if method == "count":
            for number in range(int(body)):
                yield b"%d" % number
        elif method == "slow":
            await self.process.driver.sleep(int(body))
            yield b"done"
        else:
            yield b"part"
            raise CallFailed("no such method", reached=False)

    def kinds(self) -> list[str]:
        return [event[0] for event in self.events]


class Pair:
    """Two processes that listen at "n1:1" and "n2:1"."""

    def __init__(self, seed: int) -> None:
        self.world = Machines(seed)
        self.network = Network(self.world)
        self.transports: dict[str, SimTransport] = {}
        self.handlers: dict[str, Handler] = {}
        for name in ("n1", "n2"):
            self.world.process(name)
            self.begin(name)

    def begin(self, name: str) -> None:
        process = self.world.processes[name]
        transport = self.transports[name] = SimTransport(process, self.network, f"{name}:1")
        handler = self.handlers[name] = Handler(process)
        process.driver.start(transport.start(handler, handler))
        self.world.settle()

    def dial(self, hello: bytes = b"hello") -> SimStreamOut:
        return self.transports["n1"].dial("n2:1", hello)

    def opened(self) -> SimStreamOut:
        stream = self.dial()
        self.world.run_until(lambda: stream.accepted)
        return stream

    def call(self, method: str, body: bytes, limit_s: float = 5.0, address: str = "n2:1") -> list[Any]:
        """What comes of it, in a list that fills."""
        came: list[Any] = []

        async def run() -> None:
            try:
                async for part in self.transports["n1"].call(address, method, body, limit_s):
                    came.append(part)
                came.append(None)
            except CallFailed as failed:
                came.append(failed)

        self.world.processes["n1"].driver.start(run())
        return came


@pytest.fixture
def pair(seed: int) -> Pair:
    return Pair(seed)


def test_it_is_a_transport(pair: Pair) -> None:
    transport: Transport = pair.transports["n1"]
    assert transport


def test_frames_arrive_in_order_and_once(pair: Pair) -> None:
    stream = pair.dial()
    assert not stream.idle
    sent = [b"%d" % number for number in range(50)]
    for frame in sent:
        stream.send(frame)
    pair.world.run_for(1.0)
    assert pair.handlers["n1"].events[0] == ("open", b"answer to hello")
    assert pair.handlers["n1"].events[-1] == ("idle",) and stream.idle
    assert pair.handlers["n2"].frames == sent
    assert pair.handlers["n2"].kinds() == ["stream"]


def test_a_frame_under_way_makes_it_busy(pair: Pair) -> None:
    stream = pair.opened()
    assert stream.idle
    at_once = 0
    while stream.send(b"x"):
        assert stream.idle
        at_once += 1
    assert not stream.idle and at_once <= WINDOW
    pair.world.run_until(lambda: stream.idle)
    pair.world.run_for(0.1)
    assert pair.handlers["n1"].kinds() == ["open", "idle"]


def test_a_paused_receiver_gets_everything_when_it_resumes(pair: Pair) -> None:
    pair.network.keepalive_ms = (10_000, 10_000)
    stream = pair.opened()
    receiver = pair.world.processes["n2"]
    receiver.pause()
    sent = [b"%d" % number for number in range(20)]
    for frame in sent:
        stream.send(frame)
    pair.world.run_for(5.0)
    assert pair.handlers["n2"].frames == [] and not stream.idle
    receiver.resume()
    pair.world.run_until(lambda: pair.handlers["n2"].frames == sent)
    assert stream.idle


def test_a_paused_receiver_is_given_up_and_still_gets_what_was_written(pair: Pair) -> None:
    stream = pair.opened()
    receiver = pair.world.processes["n2"]
    receiver.pause()
    stream.send(b"1")
    pair.world.run_for(KEEPALIVE_S)
    assert pair.handlers["n1"].kinds()[-1] == "closed"
    again = pair.dial(b"again")
    pair.world.run_for(0.5)
    receiver.resume()
    pair.world.run_for(KEEPALIVE_S)
    assert pair.handlers["n2"].frames == [b"1"]
    assert ("end", 0) in pair.handlers["n2"].events and ("stream", b"again") in pair.handlers["n2"].events
    assert again.accepted


def test_a_paused_sender_sends_nothing(pair: Pair) -> None:
    pair.network.keepalive_ms = (10_000, 10_000)
    stream = pair.opened()
    at_once = 0
    for number in range(9):
        at_once += stream.send(b"%d" % number)
    pair.world.processes["n1"].pause()
    pair.world.run_for(5.0)
    assert len(pair.handlers["n2"].frames) == at_once
    pair.world.processes["n1"].resume()
    pair.world.run_for(1.0)
    assert len(pair.handlers["n2"].frames) == 9


@pytest.mark.parametrize("back", [True, False])
def test_a_cut_breaks_it_at_both_sides(pair: Pair, back: bool) -> None:
    stream = pair.opened()
    pair.network.cut("n1", "n2", back=back)
    for number in range(9):
        stream.send(b"%d" % number)
    pair.world.run_for(KEEPALIVE_S)
    assert pair.handlers["n1"].kinds()[-1] == "closed" and pair.handlers["n2"].kinds() == ["stream", "end"]
    assert pair.handlers["n2"].frames == []
    pair.network.heal()
    pair.world.run_for(KEEPALIVE_S)
    assert pair.handlers["n2"].frames == []      # after its end nothing comes


def test_a_short_stall_loses_nothing(pair: Pair) -> None:
    stream = pair.opened()
    for number in range(9):
        stream.send(b"%d" % number)
        pair.network.stall("n1", "n2")
        pair.world.run_for(0.2)
        pair.network.heal()
        pair.world.run_for(0.002)
    pair.world.run_for(0.5)
    assert pair.handlers["n2"].frames == [b"%d" % number for number in range(9)]
    assert pair.handlers["n1"].kinds().count("closed") == 0


def test_a_refusal_tells_why(pair: Pair) -> None:
    pair.handlers["n2"].refuse = "another epoch"
    stream = pair.dial()
    stream.send(b"x")
    pair.world.run_for(1.0)
    assert pair.handlers["n1"].events == [("closed", "another epoch")]
    assert pair.handlers["n2"].kinds() == ["stream"] and pair.handlers["n2"].frames == []


def test_the_receiver_may_close_a_stream(pair: Pair) -> None:
    stream = pair.opened()
    pair.handlers["n2"].streams[0].close("a gap")
    stream.send(b"x")
    pair.world.run_for(1.0)
    assert ("closed", "a gap") in pair.handlers["n1"].events
    assert pair.handlers["n2"].kinds() == ["stream"] and pair.handlers["n2"].frames == []


def test_the_sender_may_close_a_stream(pair: Pair) -> None:
    stream = pair.opened()
    stream.close()
    stream.close()
    stream.send(b"x")
    pair.world.run_for(1.0)
    assert pair.handlers["n1"].kinds() == ["open"] and not stream.idle
    assert pair.handlers["n2"].kinds() == ["stream", "end"] and pair.handlers["n2"].frames == []


def test_nobody_listens(pair: Pair) -> None:
    pair.transports["n1"].dial("n9:1", b"hello")
    pair.world.processes["n2"].kill()
    pair.dial()
    pair.world.run_for(0.5)
    assert pair.handlers["n1"].events == [("closed", "connection refused")] * 2
    pair.world.processes["n2"].start()
    pair.begin("n2")
    pair.opened()


def test_an_address_is_taken(pair: Pair) -> None:
    process = pair.world.processes["n2"]
    second = SimTransport(process, pair.network, "n1:1")
    handler = Handler(process)
    work = process.driver.start(second.start(handler, handler))
    pair.world.settle()
    assert isinstance(work.exception(), BindFailed)


@pytest.mark.parametrize("silent", [False, True])
def test_a_killed_receiver(pair: Pair, silent: bool) -> None:
    stream = pair.opened()
    pair.world.processes["n2"].kill(silent=silent)
    stream.send(b"x")
    pair.world.run_for(0.5)
    assert (pair.handlers["n1"].kinds()[-1] == "closed") is not silent
    pair.world.run_for(KEEPALIVE_S)
    assert pair.handlers["n1"].kinds()[-1] == "closed"


@pytest.mark.parametrize("silent", [False, True])
def test_a_killed_sender(pair: Pair, silent: bool) -> None:
    pair.opened()
    pair.world.processes["n1"].kill(silent=silent)
    pair.world.run_for(0.5)
    assert (pair.handlers["n2"].kinds()[-1] == "end") is not silent
    pair.world.run_for(KEEPALIVE_S)
    assert pair.handlers["n2"].kinds()[-1] == "end"
    pair.world.processes["n1"].start()
    pair.begin("n1")
    pair.opened()
    assert pair.handlers["n2"].kinds()[-1] == "stream"


def test_stop_closes_everything(pair: Pair) -> None:
    pair.opened()
    came = pair.call("slow", b"5")
    pair.world.run_for(0.5)
    pair.world.processes["n2"].driver.start(pair.transports["n2"].stop())
    pair.world.run_for(0.5)
    assert ("closed", "the transport was stopped") in pair.handlers["n1"].events
    assert isinstance(came[0], CallFailed) and came[0].reached
    pair.dial()
    pair.world.run_for(0.5)
    assert pair.handlers["n1"].events[-1] == ("closed", "connection refused")
    assert pair.handlers["n2"].kinds() == ["stream"]


def test_a_call_has_parts(pair: Pair) -> None:
    came = pair.call("count", b"30")
    pair.world.run_for(2.0)
    assert came == [*(b"%d" % number for number in range(30)), None]


def test_a_call_fails(pair: Pair) -> None:
    refused, unknown, late = pair.call("what", b""), pair.call("count", b"1", address="n9:1"), pair.call("slow", b"9")
    pair.world.run_for(6.0)
    assert refused[0] == b"part" and str(refused[1]) == "no such method" and not refused[1].reached
    assert not unknown[0].reached
    assert len(late) == 1 and late[0].reached and "within 5 s" in str(late[0])


def test_a_call_to_a_process_that_is_gone(pair: Pair) -> None:
    pair.world.processes["n2"].kill()
    came = pair.call("count", b"1")
    pair.world.run_for(1.0)
    assert not came[0].reached and pair.handlers["n2"].calls == 0


def test_a_call_that_is_cut_may_have_had_an_effect(pair: Pair) -> None:
    pair.network.cut("n2", "n1", back=False)
    came = pair.call("count", b"1")
    pair.world.run_for(6.0)
    assert came[0].reached and pair.handlers["n2"].calls == 1


def test_a_call_that_is_given_up(pair: Pair) -> None:
    async def run() -> None:
        async for _ in (call := pair.transports["n1"].call("n2:1", "count", b"1000", 60.0)):
            break
        await call.aclose()

    pair.world.processes["n1"].driver.start(run())
    pair.world.run_for(5.0)
    assert pair.transports["n1"].calls == {} and pair.transports["n2"].answers == {}


@pytest.mark.parametrize("part", range(4))
def test_what_arrives_is_a_beginning_of_what_was_sent(part: int, seed: int) -> None:
    """Of each stream, whatever happens; and everything arrives of one that did not break."""
    for number in range(25):
        pair = Pair(seed * 1_000_000 + part * 1000 + number)
        chance = random.Random(number)
        serials: dict[bytes, int] = {}
        stream, broken = pair.dial(b"0"), 0
        for step in range(60):
            if pair.handlers["n1"].kinds().count("closed") > broken:
                broken += 1
                stream = pair.dial(b"%d" % broken)
            for _ in range(chance.choice((0, 1, 5))):
                serial = serials[b"%d" % broken] = serials.get(b"%d" % broken, 0) + 1
                stream.send(b"%d %d" % (broken, serial))
            _fault(pair, chance, step)
            pair.world.run_for(chance.choice((0.001, 0.01, 0.5)))
        pair.network.heal()
        for process in pair.world.processes.values():
            if process.paused:
                process.resume()
        pair.world.run_for(10.0)
        arrived: dict[bytes, list[int]] = {}
        for frame in pair.handlers["n2"].frames:
            which, serial_text = frame.split()
            arrived.setdefault(which, []).append(int(serial_text))
        for which, found in arrived.items():
            assert found == list(range(1, len(found) + 1))
            assert len(found) <= serials[which]
        if pair.handlers["n1"].kinds().count("closed") == broken:
            last = b"%d" % broken
            assert len(arrived.get(last, [])) == serials.get(last, 0)


def _fault(pair: Pair, chance: random.Random, step: int) -> None:
    what = chance.random()
    receiver = pair.world.processes[chance.choice(("n1", "n2"))]
    if what < 0.05:
        pair.network.cut(*chance.sample(("n1", "n2"), 2), back=chance.random() < 0.5)
    elif what < 0.1:
        pair.network.stall(*chance.sample(("n1", "n2"), 2), back=chance.random() < 0.5)
    elif what < 0.15:
        if receiver.paused:
            receiver.resume()
        else:
            receiver.pause()
    elif what < 0.3:
        pair.network.heal()
