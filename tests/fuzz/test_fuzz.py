"""The smoke budget of each fuzzer, by iterations so that every run is the same; and every input that once failed."""
from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from fuzz import fuzz_amqp091, fuzz_client, fuzz_decoder, fuzz_peer, fuzz_raft, fuzz_transport
from fuzz.fuzzing import Fuzzer

from fluxmq._core.raft.messages import KINDS

AMQP091, CLIENT, DECODER, PEER = fuzz_amqp091.FUZZER, fuzz_client.FUZZER, fuzz_decoder.FUZZER, fuzz_peer.FUZZER
RAFT, TRANSPORT = fuzz_raft.FUZZER, fuzz_transport.FUZZER
every_fuzzer = pytest.mark.parametrize("fuzzer", [AMQP091, CLIENT, DECODER, PEER, RAFT, TRANSPORT],
                                       ids=lambda fuzzer: fuzzer.name)
# The mutations must still reach what they are for: what is right gets through, and every common refusal happens.
REACHED = {
    AMQP091: {cls.__name__ for cls, _ in fuzz_amqp091.ROWS.values()} | {
        "table", "properties", "refused table", "refused properties", "refused 501", "refused 502", "refused 503",
        "refused 540"},
    CLIENT: {"message", "done", "str", "Disconnect", "read", "refused 0x81", "refused 0x82", "refused 0x94"},
    DECODER: {"Connect", "ConnAck", "Publish", "PubAck", "PubRec", "PubRel", "PubComp", "Subscribe", "SubAck",
              "Unsubscribe", "UnsubAck", "PingReq", "PingResp", "Disconnect", "Auth", "refused 0x81", "refused 0x82",
              "refused 0x84"},
    PEER: {"frame", *(f"record {kind}" for kind in range(1, 21)), "refused 0x81", "refused 0x82", "refused properties"},
    RAFT: {*KINDS, "frame", "replicas", "refused: no frame of Raft's s", "refused: a record of a frame ",
           "refused: an entry is not what", "refused: a message of Raft is", "refused: heartbeats are cut o",
           "refused: a frame is longer th"},
    TRANSPORT: {"mqtt", "websocket", "amqp", "a frame of bytes is over frame_max",
                "a frame of bytes is over frame_max in the handshake",
                "message size is larger than configured max size",
                "a packet of bytes is over the limit of (broker.max_message_s",
                "a packet of bytes is over the limit of (the most that a CONN"},
}


@pytest.mark.parametrize(("fuzzer", "iterations"), [(AMQP091, 8_000), (CLIENT, 3_000), (DECODER, 4_000), (PEER, 6_000),
                                                    (RAFT, 3_000), (TRANSPORT, 150)],
                         ids=lambda value: getattr(value, "name", str(value)))
def test_smoke(fuzzer: Fuzzer, iterations: int, tmp_path: Path) -> None:
    seen = fuzzer.run(fuzzer.seed, iterations, out=tmp_path)
    assert seen["iterations"] == iterations
    assert REACHED[fuzzer] <= set(seen)


@every_fuzzer
def test_inputs_depend_on_seed_and_iteration_only(fuzzer: Fuzzer) -> None:
    assert fuzzer.inputs(1, 2) == fuzzer.inputs(1, 2)
    assert fuzzer.inputs(1, 2)[0] != fuzzer.inputs(1, 3)[0]
    assert fuzzer.inputs(1, 2)[0] != fuzzer.inputs(2, 2)[0]


@every_fuzzer
def test_a_failing_input_is_kept(fuzzer: Fuzzer, tmp_path: Path) -> None:
    def fail(kind: int, data: bytes, seen: Counter[str]) -> None:
        raise ValueError("made up")

    with pytest.raises(ValueError, match="made up"):
        replace(fuzzer, check=fail).run(fuzzer.seed, 1, out=tmp_path)
    kept, = tmp_path.glob("*.bin")
    kind, data = fuzzer.inputs(fuzzer.seed, 0)[0]
    assert kept.read_bytes() == bytes((kind,)) + data


@every_fuzzer
def test_inputs_that_once_failed(fuzzer: Fuzzer) -> None:
    for path in sorted(fuzzer.regressions.glob("*.bin")):
        kind, *data = path.read_bytes()
        for each in (kind, *fuzzer.kinds):
            fuzzer.check(each, bytes(data), Counter())
