"""A capture with invalid packets is replayed: rows `malformed` are passed over, what follows them is done again."""
from __future__ import annotations

from collections import Counter
from pathlib import Path

from kit.broker import Broker, free_port
from kit.captures import imported, open_talk
from kit.pcap import IN, OUT
from kit.story import events_of

from fluxmq._core.amqp091.methods import BasicPublish, ConnectionOpen, ConnectionOpenOk, QueueDeclare, QueueDeclareOk
from fluxmq._core.mqtt.encode import encode_packet
from fluxmq._core.mqtt.packets import ConnAck, Connect, PubAck, Publish, SubAck, Subscribe, Subscription
from fluxmq.spark.replay.replaying import ReplayRequest, replay_here

QOS_3 = b"\x36\x05\0\1tab"


def amqp_frame(kind: int, payload: bytes) -> bytes:
    return bytes([kind, 0, 1]) + len(payload).to_bytes(4, "big") + payload + b"\xce"


def test_rows_after_invalid_packets_are_replayed(tmp_path: Path) -> None:
    """One client of MQTT subscribes, one publishes, and the CONNECT of a third is invalid. The channel.open of one of
    AMQP is invalid."""
    first, second = (open_talk(client=("10.0.0.1", port)) for port in (4001, 4002))
    first.sent(IN, encode_packet(Connect(client_id="first"), 5))
    first.sent(OUT, encode_packet(ConnAck(), 5))
    first.sent(IN, QOS_3 + encode_packet(Subscribe(1, [Subscription("a/#", qos=1)]), 5))
    first.sent(OUT, encode_packet(SubAck(1, [1]), 5))
    second.packets[:] = [(time + 1_000_000, packet) for time, packet in second.packets]
    second.clock = first.clock + 1_000_000
    second.sent(IN, encode_packet(Connect(client_id="second", protocol_level=4), 4))
    second.sent(OUT, encode_packet(ConnAck(), 4))
    for number in (1, 2, 3):
        publish = Publish(f"a/{number}", payload=b"x", qos=1, packet_id=number)
        second.sent(IN, encode_packet(publish, 4) + QOS_3)
        second.sent(OUT, encode_packet(PubAck(number), 4))
        first.clock = second.clock
        first.sent(OUT, encode_packet(publish, 5) + QOS_3)
        first.sent(IN, b"\x40\x02\0\0" + encode_packet(PubAck(number), 5))
        second.clock = first.clock
    third = open_talk(client=("10.0.0.1", 4003), server=("10.0.0.2", 5672), start=second.clock)
    third.sent(IN, b"AMQP\0\0\x09\x01" + ConnectionOpen(virtual_host="/").frame(0))
    third.sent(OUT, ConnectionOpenOk().frame(0))
    third.sent(IN, amqp_frame(1, b"\0\x14\0\x0a") + QueueDeclare(queue="q").frame(1))
    third.sent(OUT, QueueDeclareOk(queue="q").frame(1))
    for end in (b"\0\0", b"\x20\0\0\0\0\x05\x01hZxx", b"\0\0"):
        third.sent(IN, BasicPublish(routing_key="q").frame(1) + amqp_frame(2, b"\0\x3c\0\0" + bytes(7) + b"\1" + end)
                   + amqp_frame(3, b"x"))
    fourth = open_talk(client=("10.0.0.1", 4004), start=third.clock)
    fourth.sent(IN, encode_packet(Connect(client_id="nobody", protocol_level=4), 4).replace(b"body", b"b\0dy")
                + encode_packet(Publish("a/4"), 4))
    done, rows = imported(tmp_path, [first, second, third, fourth])
    assert Counter(row["kind"] for row in rows)["malformed"] == sum(one.packets for one in done.invalid) == 13

    with Broker(tmp_path / "target", {"server.amqp091.plain.addr": f"127.0.0.1:{free_port()}"}) as target:
        mqtt, amqp = (f"{host}:{port}" for host, port in (target.address, target.addresses["amqp091/plain"]))
        summary = replay_here(ReplayRequest(recording=str(tmp_path / "r"), broker=mqtt, amqp_broker=amqp,
                                            out=str(tmp_path / "result"), speed=None, quiet_s=0.2))
        target.check()
    assert summary.complete, summary.why
    assert (summary.not_sent, summary.not_replayed) == (0, {})
    events = events_of(tmp_path / "result")
    assert Counter((row["client"], row["topic"]) for row in events if row["event"] == "publish") == {
        ("second", "a/1"): 1, ("second", "a/2"): 1, ("second", "a/3"): 1, ("amqp091-3", "/q"): 2,
        ("connection-4", "a/4"): 1}
    assert sorted(row["topic"] for row in events if row["event"] == "delivery") == ["a/1", "a/2", "a/3", "a/4"]
