"""The kit's own tests: a codec that tests trust must be right both ways, and strict."""
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kit.broker import Broker
from kit.nursery import ENVIRONMENT, Process, can_fork
from kit.scram import ScramClient
from kit.watch import wait_until
from oracle import mqtt
from oracle.mqtt import (
    PROPERTIES,
    V5,
    V311,
    Auth,
    Connack,
    Connect,
    Disconnect,
    Malformed,
    Pingreq,
    Pingresp,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Suback,
    Subscribe,
    Unsuback,
    Unsubscribe,
    Will,
    parse,
    varint,
)

texts = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=20)
names = st.text(st.characters(codec="utf-8", exclude_characters="\0+#"), min_size=1, max_size=20)
values = {
    "byte": st.integers(0, 255), "u16": st.integers(0, 65535), "u32": st.integers(0, 2**32 - 1), "text": texts,
    "varint": st.integers(0, 268_435_455), "binary": st.binary(max_size=20), "pair": st.tuples(texts, texts),
}
packet_ids = st.integers(1, 65535)


def properties(where):
    """Properties that a packet may have: each at most once, user properties any number of times."""
    single = [n for n, (_, _, packets) in PROPERTIES.items() if where in packets and n != "user_property"]
    users = st.lists(st.tuples(st.just("user_property"), values["pair"]), max_size=3)
    chosen = st.lists(st.sampled_from(single), unique=True, max_size=4) if single else st.just([])
    return chosen.flatmap(lambda names_: st.tuples(*(
        st.tuples(st.just(n), values[PROPERTIES[n][1]]) for n in names_))).flatmap(
            lambda given_: users.map(lambda more: [*given_, *more]))


def reasons(kind):
    return st.sampled_from(sorted(mqtt.REASON_CODES[kind]))


wills = st.builds(Will, topic=names, payload=st.binary(max_size=20), qos=st.integers(0, 2), retain=st.booleans(),
                  properties=properties("will"))
publishes = st.integers(0, 2).flatmap(lambda qos: st.builds(
    Publish, topic=names, payload=st.binary(max_size=300), qos=st.just(qos),
    packet_id=packet_ids if qos else st.none(), retain=st.booleans(), dup=st.booleans() if qos else st.just(False),
    properties=properties(mqtt.PUBLISH)))
packets = st.one_of(
    st.builds(Connect, client_id=texts, clean_start=st.booleans(), keep_alive=values["u16"], will=st.none() | wills,
              username=st.none() | texts, password=st.none() | st.binary(max_size=20),
              properties=properties(mqtt.CONNECT)),
    st.builds(Connack, reason=reasons(mqtt.CONNACK), properties=properties(mqtt.CONNACK)),
    publishes,
    *(st.builds(cls, packet_id=packet_ids, reason=reasons(cls.kind), properties=properties(cls.kind))
      for cls in (Puback, Pubrec, Pubrel, Pubcomp)),
    st.builds(Subscribe, packet_id=packet_ids, properties=properties(mqtt.SUBSCRIBE), filters=st.lists(
        st.tuples(texts, st.builds(mqtt.options, st.integers(0, 2), no_local=st.booleans(),
                                   retain_as_published=st.booleans(), retain_handling=st.integers(0, 2))),
        min_size=1, max_size=4)),
    *(st.builds(cls, packet_id=packet_ids, properties=properties(cls.kind),
                reasons=st.lists(reasons(cls.kind), min_size=1, max_size=4)) for cls in (Suback, Unsuback)),
    st.builds(Unsubscribe, packet_id=packet_ids, filters=st.lists(texts, min_size=1, max_size=4),
              properties=properties(mqtt.UNSUBSCRIBE)),
    *(st.builds(cls, reason=reasons(cls.kind), properties=properties(cls.kind)) for cls in (Disconnect, Auth)),
    st.builds(Pingreq), st.builds(Pingresp),
)


@given(packets, st.binary(max_size=5))
def test_what_is_written_is_read(packet, rest):
    wire = packet.encode(V5)
    again, left = parse(wire + rest, V5)
    assert type(again) is type(packet)
    assert again.encode(V5) == wire
    assert left == rest
    assert list(again.properties) == mqtt.pairs(packet.properties)


@given(packets)
def test_a_part_of_a_packet_is_not_all_there(packet):
    wire = packet.encode(V5)
    for cut in range(0, len(wire), max(1, len(wire) // 20)):
        assert parse(wire[:cut], V5) is None


@given(st.binary(max_size=60), st.sampled_from([V311, V5]))
def test_noise_raises_malformed_and_nothing_else(noise, version):
    try:
        found = parse(noise, version)
    except Malformed:
        return
    if found:
        packet, rest = found
        assert parse(noise, version)[1] == rest
        assert packet.kind == noise[0] >> 4


@pytest.mark.parametrize(("number", "wire"), [
    (0, "00"), (127, "7f"), (128, "8001"), (16383, "ff7f"), (16384, "808001"), (2097151, "ffff7f"),
    (2097152, "80808001"), (268435455, "ffffff7f")])
def test_the_table_of_variable_byte_integers(number, wire):
    """Table 1-1 of the specification."""
    assert varint(number) == bytes.fromhex(wire)
    assert mqtt.Reader(varint(number)).varint() == number


def test_examples_written_by_hand():
    assert Connect(client_id="a").encode(V311) == bytes.fromhex("100d 0004 4d515454 04 02 003c 0001 61")
    assert Connect(client_id="a").encode(V5) == bytes.fromhex("100e 0004 4d515454 05 02 003c 00 0001 61")
    publish = Publish(topic="a/b", payload=b"!", qos=1, packet_id=10)
    assert publish.encode(V5) == bytes.fromhex("3209 0003 612f62 000a 00 21")
    assert Subscribe(packet_id=1, filters=[("a", 2)]).encode(V311) == bytes.fromhex("8206 0001 0001 61 02")
    assert Puback(packet_id=1).encode(V5) == bytes.fromhex("4002 0001")
    assert Puback(packet_id=1, reason=0x10).encode(V5) == bytes.fromhex("4003 0001 10")
    assert Disconnect(reason=4).encode(V5) == bytes.fromhex("e001 04")
    assert Disconnect().encode(V311) == bytes.fromhex("e000")


@pytest.mark.parametrize("wire", [
    "2003 02 00 00",            # reserved acknowledge flag
    "2003 01 86 00",            # Session Present with a refusal
    "2003 00 01 00",            # no such reason code
    "3805 0001 61 00 21",       # DUP at QoS 0
    "3607 0001 61 0001 00 21",  # QoS 3
    "3206 0001 61 0000 00",     # Packet Identifier 0
    "3004 0001 2b 00",          # wildcard in the topic
    "3003 0000 00",             # no topic and no alias
    "3005 0001 61 01 01",       # a property cut short
    "3005 0001 61 01 7f",       # unknown property
    "3008 0001 61 04 0100 0100",                # a property twice
    "4102 0001",                # reserved flag
    "4003 0001 02",             # no such reason code
    "4006 0001 00 00 0000",     # bytes after the last field
    "9004 0001 00 03",          # no such reason code
    "9003 0001 00",             # no reason code at all
    "c001 00",                  # PINGREQ with a body
    "e08000",                   # Remaining Length longer than it need be
    "f500",                     # reserved flags in AUTH
])
def test_what_no_broker_may_send(wire):
    with pytest.raises(Malformed):
        parse(bytes.fromhex(wire), V5)


def test_scram_against_the_example_of_rfc_7677():
    scram = ScramClient("user", "pencil")
    scram.nonce = "rOprNGfwEbeRWgbNEkqO"
    assert scram.first() == b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO"
    final = scram.final(b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096")
    assert final == (b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,"
                     b"p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=")
    scram.verify(b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=")


# ── brokers that are forked (kit/nursery.py) ─────────────────────────────────────────────────────────────────


def open_files(broker: Broker) -> int:
    assert broker.process is not None
    return len(list(Path(f"/proc/{broker.process.pid}/fd").iterdir()))


def test_a_forked_broker_is_a_process_of_its_own(tmp_path: Path) -> None:
    if not Broker(tmp_path).ours:
        pytest.skip("needs this tree's broker")
    with (Broker(tmp_path / "one") as one, Broker(tmp_path / "two", environ={"FLUXMQ__LOG__FORMAT": "json"}) as two,
          Broker(tmp_path / "started", environ={"LD_BIND_NOW": "1"}) as started):
        process = one.process
        assert isinstance(process, Process) and isinstance(two.process, Process) and process.pid != two.process.pid
        assert isinstance(started.process, subprocess.Popen)
        assert Path(f"/proc/{process.pid}/cwd").samefile(one.directory)
        wait_until(lambda: open_files(one) == open_files(two) == open_files(started))
        one.kill()
        assert process.returncode == -signal.SIGKILL and two.process.poll() is None
        one.start()
        assert one.terminate() == two.terminate() == 0
        assert two.stderr().startswith("{") and not one.stderr().startswith("{")


def test_what_is_read_before_the_program_is_no_matter_of_a_fork() -> None:
    command = [sys.executable, "-m", "fluxmq", "run"]
    assert can_fork(command, ENVIRONMENT)
    assert not can_fork(command, ENVIRONMENT | {"LD_PRELOAD": "libfaulty.so"})
    assert not can_fork(["sh", "-c", "ulimit -n 700 && exec"], ENVIRONMENT)
