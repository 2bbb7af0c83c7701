"""PINGREQ and keep alive. Here the passing of time is what is tested, so these tests take a second or two."""
from __future__ import annotations

import time
from collections.abc import Callable

import pytest
from kit.client import Client, Closed
from oracle.mqtt import Pingreq, Pingresp, Publish

ClientFactory = Callable[..., Client]


@pytest.mark.normative("MQTT311-3.12.4-1")
def test_pingreq_gets_pingresp(client: ClientFactory) -> None:
    c = client()
    c.send(*[Pingreq()] * 5)
    for _ in range(5):
        c.expect(Pingresp)
    c.expect_nothing()


@pytest.mark.normative("MQTT311-3.1.2-24")
def test_silence_closes(client: ClientFactory) -> None:
    assert client(keep_alive=1).expect_closed() is None


@pytest.mark.normative("MQTT311-3.1.2-24")
def test_what_the_server_sends_does_not_count(client: ClientFactory, topic: str) -> None:
    s, p = client("sub", keep_alive=1), client("pub")
    s.subscribe(topic)
    with pytest.raises(Closed):
        for _ in range(60):                                 # far longer than the keep alive and a half
            p.publish(topic, b"x")
            s.expect(Publish)
            time.sleep(0.2)


@pytest.mark.normative("MQTT311-3.1.2-23", "MQTT311-3.1.2-24")
def test_packets_of_any_kind_keep_it_open_and_zero_turns_it_off(client: ClientFactory, topic: str) -> None:
    """One client pings, one publishes, one has keep alive 0, one is silent for longer than its keep alive, not half as
    long again. A test that is late by some seconds is not taken for silence."""
    witness, pings, publishes = client("witness"), client("pings", keep_alive=6), client("publishes", keep_alive=6)
    witness.subscribe(topic)
    off = client("off", keep_alive=0)
    patient = client("patient", keep_alive=8)
    for number in range(20):                                # 10 s: more than a keep alive of 6 and a half
        if number == 17:
            patient.expect_quiet()                          # after 8.5 s, and it has 12
        pings.expect_quiet()
        publishes.publish(topic, b"%d" % number)
        witness.expect(Publish, payload=b"%d" % number)
        time.sleep(0.5)
    off.expect_quiet()
    pings.expect_quiet()
    publishes.expect_quiet()
