"""The MQTT codec by example: literal bytes in, packets out, and the same bytes again."""
import pytest

from fluxmq._core.errors import ProtocolError, UsageError
from fluxmq._core.mqtt.decode import Decoder, connect_level, decode_packet
from fluxmq._core.mqtt.encode import encode_packet
from fluxmq._core.mqtt.packets import (
    Auth,
    ConnAck,
    Connect,
    Disconnect,
    Packet,
    PingReq,
    PingResp,
    PubAck,
    PubComp,
    Publish,
    PubRec,
    PubRel,
    SubAck,
    Subscribe,
    Subscription,
    UnsubAck,
    Unsubscribe,
    Will,
)
from fluxmq._core.mqtt.props import decode_properties, encode_properties
from fluxmq._core.testing import codec as codec_testing
from fluxmq.model.mqtt import Property

h = bytes.fromhex

GOOD = [
    (5, h("10 25 0004 4D515454 05 CE 000A 05 11 0000000A 0001 63 00 0003 772F74 0002 6869 0001 75 0003 00FF01"),
     Connect(client_id="c", clean_start=True, keep_alive=10, will=Will("w/t", payload=b"hi", qos=1), username="u",
             password=b"\x00\xff\x01", properties=[(0x11, 10)])),
    (4, h("10 0D 0004 4D515454 04 02 003C 0001 61"),
     Connect(client_id="a", protocol_level=4, clean_start=True, keep_alive=60)),
    (4, h("10 0C 0004 4D515454 04 02 0000 0000"), Connect(protocol_level=4)),
    (3, h("10 0F 0006 4D5149736470 03 00 000A 0001 61"),
     Connect(client_id="a", protocol_level=3, clean_start=False, keep_alive=10)),
    (5, h("10 0D 0004 4D515454 05 00 0000 00 0000"), Connect(clean_start=False)),
    (5, h("10 11 0004 4D515454 05 42 0000 00 0000 0002 7077"), Connect(password=b"pw")),
    (4, h("20 02 01 00"), ConnAck(session_present=True)),
    (4, h("20 02 00 05"), ConnAck(reason_code=5)),
    (5, h("20 03 00 87 00"), ConnAck(reason_code=0x87)),
    (5, h("20 08 00 00 05 21 0014 24 01"), ConnAck(properties=[(0x21, 20), (0x24, 1)])),
    (4, h("3D 07 0003 612F62 000A"), Publish("a/b", qos=2, retain=True, dup=True, packet_id=10)),
    (4, h("30 06 0003 612F62 21"), Publish("a/b", payload=b"!")),
    (5, h("32 0D 0003 612F62 000A 05 26 0000 0000"), Publish("a/b", qos=1, packet_id=10,
                                                                     properties=[(0x26, ("", ""))])),
    (5, h("30 07 0000 03 23 0001 78"), Publish("", payload=b"x", properties=[(0x23, 1)])),
    (5, h("30 08 0001 74 04 0B 01 0B 7F"), Publish("t", properties=[(0x0B, 1), (0x0B, 127)])),
    (4, h("40 02 1234"), PubAck(0x1234)),
    (5, h("40 03 0001 10"), PubAck(1, reason_code=0x10)),
    (5, h("50 08 0001 97 04 1F 0001 78"), PubRec(1, reason_code=0x97, properties=[(0x1F, "x")])),
    (4, h("62 02 0001"), PubRel(1)),
    (5, h("62 03 0001 92"), PubRel(1, reason_code=0x92)),
    (5, h("70 02 FFFF"), PubComp(65535)),
    (4, h("82 0E 000A 0003 612F62 01 0003 632F64 02"), Subscribe(10, [Subscription("a/b", qos=1),
                                                                     Subscription("c/d", qos=2)])),
    (5, h("82 0B 000A 02 0B 05 0003 612F62 2E"),
     Subscribe(10, [Subscription("a/b", qos=2, no_local=True, retain_as_published=True, retain_handling=2)],
               properties=[(0x0B, 5)])),
    (5, h("82 0B 0001 00 0005 612F232F62 00"), Subscribe(1, [Subscription("a/#/b")])),    # for the broker to refuse
    (4, h("90 05 000A 00 02 80"), SubAck(10, [0, 2, 0x80])),
    (5, h("90 05 000A 00 01 8F"), SubAck(10, [1, 0x8F])),
    (4, h("A2 0C 000A 0003 612F62 0003 632F64"), Unsubscribe(10, ["a/b", "c/d"])),
    (5, h("A2 06 000A 00 0001 61"), Unsubscribe(10, ["a"])),
    (4, h("B0 02 000A"), UnsubAck(10)),
    (5, h("B0 05 000A 00 00 11"), UnsubAck(10, reason_codes=[0, 0x11])),
    (4, h("C0 00"), PingReq()),
    (5, h("D0 00"), PingResp()),
    (4, h("E0 00"), Disconnect()),
    (5, h("E0 00"), Disconnect()),
    (5, h("E0 01 04"), Disconnect(reason_code=4)),
    (5, h("E0 07 00 05 11 00000000"), Disconnect(properties=[(0x11, 0)])),
    (5, h("F0 00"), Auth()),
    (5, h("F0 0A 18 08 15 0001 6D 16 0001 64"), Auth(reason_code=0x18, properties=[(0x15, "m"), (0x16, b"d")])),
]


@pytest.mark.parametrize(("version", "wire", "packet"), GOOD, ids=lambda value: value.hex()
                         if isinstance(value, bytes) else None)
def test_bytes_and_packet_are_the_same_thing(version: int, wire: bytes, packet: Packet) -> None:
    decoder = Decoder(version)
    decoder.feed(wire)
    assert decoder.next_packet() == packet
    assert decoder.next_packet() is None
    assert encode_packet(packet, version) == wire


# What may be longer than needed, and reads as the same packet.
@pytest.mark.parametrize(("wire", "packet"), [
    (h("40 03 0001 00"), PubAck(1)), (h("40 04 0001 00 00"), PubAck(1)),
    (h("40 04 0001 10 00"), PubAck(1, reason_code=16)),
    (h("E0 01 00"), Disconnect()), (h("E0 02 00 00"), Disconnect()), (h("F0 02 00 00"), Auth()),
])
def test_long_forms(wire: bytes, packet: Packet) -> None:
    assert decode_packet(wire[0], wire[2:], 5) == packet


def test_the_byte_order_mark_stays() -> None:
    wire = encode_packet(Publish("\ufeffa", payload=b""), 4)
    assert wire == h("30 06 0004 EFBBBF61")
    assert decode_packet(0x30, wire[2:], 4) == Publish("\ufeffa")    # [MQTT-1.5.4-3]


def test_dup_on_what_version_31_sends_again() -> None:
    assert decode_packet(0x6A, h("0001"), 3) == PubRel(1)
    assert decode_packet(0x8A, h("0001 0001 61 00"), 3) == Subscribe(1, [Subscription("a")])


@pytest.mark.parametrize(("size", "length"), [(0, "00"), (127, "7F"), (128, "8001"), (16383, "FF7F"), (16384, "808001"),
                                              (2097151, "FFFF7F"), (2097152, "80808001"), (268435455, "FFFFFF7F")])
def test_variable_byte_integers_of_table_2_1(size: int, length: str) -> None:
    assert codec_testing.put("varint", size) == h(length)
    assert codec_testing.take("varint", h(length)) == (1, size, len(h(length)))


@pytest.mark.parametrize(("data", "result"), [("", 0), ("80", 0), ("FFFFFF", 0), ("8000", -1), ("808000", -1),
                                              ("80808000", -1), ("80808080", -1), ("FFFFFFFF", -1), ("FFFFFFFF01", -1)])
def test_variable_byte_integers_that_are_short_or_wrong(data: str, result: int) -> None:
    assert codec_testing.take("varint", h(data))[0::2] == (result, 0)


@pytest.mark.parametrize(("kind", "value", "wire"), [("u8", 0xFE, "FE"), ("u16", 0xFE01, "FE01"),
                                                     ("u32", 0xFE010203, "FE010203"), ("bytes16", b"ab", "00026162"),
                                                     ("bytes16", b"", "0000")])
def test_wire_numbers(kind: str, value: object, wire: str) -> None:
    assert codec_testing.put(kind, value) == h(wire)
    assert codec_testing.take(kind, h(wire) + b"zz") == (1, value, len(h(wire)))
    assert codec_testing.take(kind, h(wire)[:-1])[0::2] == (0, 0)


class TestDecoder:
    def test_the_version_is_that_of_the_connect(self) -> None:
        for level, wire in ((3, GOOD[3][1]), (4, GOOD[1][1]), (5, GOOD[0][1])):
            decoder = Decoder()
            assert decoder.version == 0
            decoder.feed(wire + h("C000"))
            assert decoder.next_packet() is not None
            assert decoder.version == level
            assert decoder.next_packet() == PingReq()

    def test_a_refused_connect_still_tells_the_version(self) -> None:
        decoder = Decoder()
        decoder.feed(h("10 0C 0004 4D515454 04 00 0000 0000"))
        with pytest.raises(ProtocolError) as caught:
            decoder.next_packet()
        assert (caught.value.reason, decoder.version) == (0x85, 4)
        assert connect_level(h("0004 4D515454 04 00 0000 0000")) == 4
        assert connect_level(h("0006 4D5149736470 03")) == 3
        assert connect_level(h("0004 4D515454 06")) == connect_level(b"") == connect_level(h("0004 4D515454")) == 0

    def test_an_error_is_final(self) -> None:
        decoder = Decoder(4)
        decoder.feed(h("C001 00 C000"))
        for _ in range(2):
            with pytest.raises(ProtocolError):
                decoder.next_packet()
            decoder.feed(h("C000"))

    def test_the_size_is_refused_before_the_bytes_come(self) -> None:
        decoder = Decoder(4, packet_size_max=100)
        decoder.feed(b"\x30\x62\x00\x01a" + bytes(95))
        assert decoder.next_packet() == Publish("a", payload=bytes(95))
        decoder.feed(b"\x30\x63")
        with pytest.raises(ProtocolError) as caught:
            decoder.next_packet()
        assert caught.value.reason == 0x95

    @pytest.mark.parametrize("wire", ["108000", "10FFFFFFFF", "1080808080"])
    def test_a_bad_remaining_length(self, wire: str) -> None:
        decoder = Decoder()
        decoder.feed(h(wire))
        with pytest.raises(ProtocolError) as caught:
            decoder.next_packet()
        assert caught.value.reason == 0x81

    def test_what_is_no_mqtt_is_not_waited_for(self) -> None:
        decoder = Decoder()
        decoder.feed(b"GET / HTTP/1.1\r\n")
        with pytest.raises(ProtocolError) as caught:
            decoder.next_packet()
        assert caught.value.reason == 0x82

    @pytest.mark.parametrize("arguments", [{"version": 2}, {"version": 6}, {"packet_size_max": 1}])
    def test_arguments(self, arguments: dict[str, int]) -> None:
        with pytest.raises(UsageError):
            Decoder(**arguments)


@pytest.mark.parametrize(("packet", "version"), [
    (Publish("a", qos=3, packet_id=1), 4),
    (Publish("a", qos=1), 4),
    (Publish("a", packet_id=1), 4),
    (Publish("a", dup=True), 4),
    (Publish("a/+"), 4),
    (Publish(""), 4),
    (Publish(""), 5),
    (Publish("a\0"), 4),
    (Publish("\ud800"), 4),
    (Publish("a" * 65536), 4),
    (Publish("a", properties=[(1, 0)]), 4),
    (Publish("a", properties=[(0x21, 1)]), 5),
    (Publish("a", properties=[(1, 2)]), 5),
    (Publish("a", properties=[(1, 0), (1, 0)]), 5),
    (Publish("a", properties=[(0x23, 0)]), 5),
    (Publish("a", properties=[(3, b"")]), 5),
    (Publish("a", properties=[(0x26, "x")]), 5),
    (Publish("a", properties=[(2, 1 << 32)]), 5),
    (Publish("a", properties=[(9, "x")]), 5),
    (Publish("a", properties=[(0x0B, 1 << 28)]), 5),
    (Publish("a", properties=[1]), 5),  # type: ignore[list-item]
    (Publish("a", properties=[(0x70, 1)]), 5),
    (Publish("a", properties=[(8, "x/#")]), 5),
    (Publish("a"), 2),
    (Publish("a"), 0),
    (Connect(protocol_level=6), 0),
    (Connect(), 4),
    (Connect(protocol_level=4, clean_start=False), 4),
    (Connect(protocol_level=3), 3),
    (Connect(protocol_level=4, client_id="a", password=b""), 4),
    (Connect(keep_alive=65536), 5),
    (Connect(keep_alive=-1), 5),
    (Connect(will=Will("a/#")), 5),
    (Connect(will=Will("a", qos=3)), 5),
    (Connect(will=Will("a", payload=bytes(65536))), 5),
    (Connect(properties=[(0x16, b"")]), 5),
    (ConnAck(session_present=True, reason_code=0x80), 5),
    (ConnAck(reason_code=6), 4),
    (PubAck(0), 4),
    (PubAck(65536), 4),
    (PubAck(1, reason_code=0x10), 4),
    (PubAck(1, reason_code=0x92), 5),
    (PubAck(1, properties=[(0x1F, "")]), 4),
    (Subscribe(1, []), 4),
    (Subscribe(1, [Subscription("")]), 4),
    (Subscribe(1, [Subscription("a", no_local=True)]), 4),
    (Subscribe(1, [Subscription("$share/g/a", no_local=True)]), 5),
    (Subscribe(1, [Subscription("a", qos=3)]), 5),
    (Subscribe(1, [Subscription("a", retain_handling=3)]), 5),
    (Subscribe(1, ["a"]), 4),  # type: ignore[list-item]
    (SubAck(1, []), 5),
    (SubAck(1, [0x8F]), 4),
    (Unsubscribe(1, []), 4),
    (Unsubscribe(1, [""]), 4),
    (UnsubAck(1), 5),
    (UnsubAck(1, reason_codes=[0]), 4),
    (Disconnect(reason_code=4), 4),
    (Auth(), 4),
    (Auth(reason_code=0x18), 5),
    (Will("a"), 5),
])
def test_what_the_wire_cannot_carry_is_our_own_error(packet: Packet, version: int) -> None:
    with pytest.raises(UsageError):
        encode_packet(packet, version)


def test_the_error_says_what_fits() -> None:
    with pytest.raises(UsageError, match="message_expiry_interval must be an int from 0 to 4294967295, not 4294967296"):
        encode_packet(Publish("a", properties=[(2, 1 << 32)]), 5)


def test_packets_are_values() -> None:
    packet = Connect(client_id="c", properties=[(0x26, ("a", "1")), (0x26, ("a", "2")), (0x11, 5)])
    assert packet == Connect(client_id="c", properties=list(packet.properties))
    assert packet != Connect(client_id="c")
    assert PubAck(1) != PubRec(1)
    assert packet.get(Property.SESSION_EXPIRY_INTERVAL) == 5
    assert packet.get(Property.RECEIVE_MAXIMUM, 65535) == 65535
    assert packet.get_all(Property.USER_PROPERTY) == [("a", "1"), ("a", "2")]
    assert eval(repr(packet)) == packet
    assert PubAck(1).packet_type == 4
    with pytest.raises(TypeError):
        hash(packet)
    with pytest.raises(AttributeError):
        packet.client_id = "d"  # type: ignore[misc]
    with pytest.raises(TypeError):
        Packet()


def test_properties_by_themselves() -> None:
    assert encode_properties([]) == b"\0"
    assert encode_properties([(0x26, ("k", "v"))], 16) == h("07 26 0001 6B 0001 76")
    assert decode_properties(h("07 26 0001 6B 0001 76"), 3) == [(0x26, ("k", "v"))]
    with pytest.raises(ProtocolError):
        decode_properties(h("00 00"), 3)
    with pytest.raises(UsageError):
        encode_properties([(0x18, 1)], 3)


class TestScan:
    def test_nothing(self) -> None:
        assert codec_testing.scan(b"") == {"topic_alias": 0, "expiry_s": None, "subscription_ids": 0, "forward": b"",
                                           "in_place": True, "user_properties": 0, "payload_format": 0}

    def test_one_run_is_not_copied(self) -> None:
        found = codec_testing.scan(h("23 0001 03 0001 74 26 0000 0000 02 00000009"))
        assert isinstance(found, dict)
        assert (found["topic_alias"], found["expiry_s"], found["in_place"]) == (1, 9, True)
        assert found["forward"] == h("03 0001 74 26 0000 0000")

    def test_several_runs_are_gathered_in_order(self) -> None:
        found = codec_testing.scan(h("26 0001 62 0000 0B 07 01 01 23 0005 26 0001 61 0000 02 00000000 09 0001 FF"))
        assert isinstance(found, dict)
        assert (found["in_place"], found["user_properties"], found["subscription_ids"]) == (False, 2, 1)
        assert (found["payload_format"], found["expiry_s"]) == (1, 0)
        assert found["forward"] == h("26 0001 62 0000 01 01 26 0001 61 0000 09 0001 FF")

    @pytest.mark.parametrize(("data", "reason"), [
        ("23 0000", 0x94), ("23 00", 0x81), ("23 0001 23 0001", 0x82), ("01 02", 0x82), ("01", 0x81),
        ("02 000000", 0x81),
        ("02 00000001 02 00000001", 0x82), ("0B 00", 0x82), ("0B", 0x81), ("0B 80", 0x81), ("08 0001 2B", 0x82),
        ("08 0000", 0x82), ("08 0001 FF", 0x81), ("08 0002 61", 0x81), ("03 0001 00", 0x81), ("03 0000 03 0000", 0x82),
        ("09 0001", 0x81), ("26 0000", 0x81), ("26 0001 FF 0000", 0x81), ("21 0001", 0x81), ("00", 0x81), ("7F", 0x81),
        ("FF", 0x81), ("1F 0000", 0x81), ("18 00000000", 0x81), ("2B 00", 0x81),
    ])
    def test_refusals(self, data: str, reason: int) -> None:
        assert codec_testing.scan(h(data)) == reason
