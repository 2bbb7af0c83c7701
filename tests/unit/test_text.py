"""UTF-8 and topic examples at the edges that the specifications name."""
import pytest

from fluxmq._core.wire import text


@pytest.mark.parametrize(("data", "good"), [
    (b"", True), (b"A", True), (b"\x7f", True), (b"\x01", True),
    (b"A\xf0\xaa\x9b\x94", True),                           # the example of section 1.5.4: A and U+2A6D4
    (b"\xef\xbb\xbf", True),                                # U+FEFF
    (b"\xef\xbf\xbf", True), (b"\xef\xb7\x90", True),       # non-characters may be refused, and are not
    (b"\xf4\x8f\xbf\xbf", True), (b"\xf4\x90\x80\x80", False), (b"\xf5\x80\x80\x80", False),    # U+10FFFF and beyond
    (b"\xed\x9f\xbf", True), (b"\xed\xa0\x80", False), (b"\xed\xbf\xbf", False), (b"\xee\x80\x80", True),  # surrogates
    (b"\xed\xa0\xbd\xed\xb8\x80", False),                   # a pair of them (CESU-8)
    (b"\xc0\x80", False), (b"\xc1\xbf", False), (b"\xc2\x80", True),          # overlong, two bytes
    (b"\xe0\x80\x80", False), (b"\xe0\x9f\xbf", False), (b"\xe0\xa0\x80", True),
    (b"\xf0\x80\x80\x80", False), (b"\xf0\x8f\xbf\xbf", False), (b"\xf0\x90\x80\x80", True),
    (b"\x80", False), (b"\xbf", False), (b"\xfe", False), (b"\xff", False),
    (b"\xc3", False), (b"\xe2\x82", False), (b"\xf0\x9f\x98", False), (b"\xc3a", False), (b"\xe2\x82a", False),
    (b"\0", False), (b"abcdefg\0", False), (b"abcdefgh\0", False), (b"abc\0defgh", False),
])
@pytest.mark.parametrize("front", [b"", b"x", b"12345678", b"123456789"])
@pytest.mark.normative("MQTT5-1.5.4-1", "MQTT5-1.5.4-2", "MQTT311-1.5.3-1", "MQTT311-1.5.3-2")
def test_utf8(data: bytes, good: bool, front: bytes) -> None:
    assert text.is_text(front + data) == good
    assert text.check_topic(b"t" + front + data) == (1 if good else -1)


@pytest.mark.parametrize(("data", "verdict"), [
    (b"/", 1), (b"a", 1), (b"sport/tennis", 1), (b" ", 1), (b"$SYS/broker", 1), (b"//", 1), (b"", 0),
    (b"a/+", 0), (b"#", 0), (b"sport+", 0), (b"12345678#", 0), (b"1234567#", 0), ("é+".encode(), 0),
])
@pytest.mark.normative("MQTT5-4.7.0-1", "MQTT5-4.7.3-1", "MQTT311-4.7.1-1", "MQTT311-4.7.3-1")
def test_topic_names(data: bytes, verdict: int) -> None:
    assert text.check_topic(data) == verdict


@pytest.mark.parametrize(("data", "verdict"), [
    (b"#", 1), (b"sport/tennis/#", 1), (b"sport/tennis#", 0), (b"sport/tennis/#/ranking", 0), (b"/#", 1), (b"##", 0),
    (b"+", 1), (b"+/tennis/#", 1), (b"sport+", 0), (b"sport/+/player1", 1), (b"/+", 1), (b"+/+", 1), (b"++", 0),
    (b"a/+b", 0), (b"a/b+/c", 0), (b"+#", 0), (b"#/", 0), (b"", 0), (b"a\0", -1), (b"\xff", -1),
])
@pytest.mark.normative("MQTT5-4.7.1-1", "MQTT5-4.7.1-2", "MQTT311-4.7.1-2", "MQTT311-4.7.1-3")
def test_topic_filters(data: bytes, verdict: int) -> None:
    assert text.check_filter(data) == verdict


@pytest.mark.parametrize(("topic", "reserved"), [
    (b"$SYS", False), (b"$SYS/", True), (b"$SYS/a", True), (b"$SYS/broker/version", True), (b"$SYSTEM/a", False),
    (b"a/$SYS/b", False), (b"", False), (b"$", False),
    (b"$SYS/broker/connection/a/state", False), (b"$SYS/broker/connection/host.name/x/state", False),
    (b"$SYS/broker/connection//state", True), (b"$SYS/broker/connection/state", True),
    (b"$SYS/broker/connection/a/states", True), (b"$SYS/broker/connection/a/State", True),
    (b"$SYS/broker/connections/a/state", True)])
def test_only_the_broker_publishes_below_sys_but_for_states_of_bridges(topic: bytes, reserved: bool) -> None:
    assert text.is_reserved(topic) is reserved


@pytest.mark.parametrize("check", [text.check_topic, text.check_filter])
def test_levels_are_bounded(check) -> None:  # type: ignore[no-untyped-def]
    assert check(b"a/b/c", 3) == 1
    assert check(b"a/b/c", 2) == 0
    assert check(b"/./././.", 5) == 1    # "." is "/" with the last bit flipped: where an inexact count would borrow
    assert check(b"/./././.", 4) == 0
    assert check(b"/" * 31, 32) == 1
    assert check(b"/" * 32, 32) == 0
    assert check(b"/" * 32 + "é".encode() + b"/" * 9, 42) == 1
    assert check(b"/" * 32 + "é".encode() + b"/" * 9, 41) == 0


@pytest.mark.parametrize(("data", "parts"), [
    (b"sport", None), (b"$share", None), (b"$shared/a/b", None), (b"$SHARE/a/b", None),
    (b"$share/consumer1//finance", (b"consumer1", b"/finance")), (b"$share/g/#", (b"g", b"#")),
    (b"$share/g/a/b", (b"g", b"a/b")), (b"$share/$share/x", (b"$share", b"x")),
])
def test_share_filters(data: bytes, parts: tuple[bytes, bytes] | None) -> None:
    assert text.split_share(data) == parts


@pytest.mark.parametrize("data", [b"$share/", b"$share//", b"$share//a", b"$share/g", b"$share/g/", b"$share/+/a",
                                  b"$share/g#/a", b"$share/#"])
@pytest.mark.normative("MQTT5-4.8.2-1", "MQTT5-4.8.2-2")
def test_share_filters_that_are_none(data: bytes) -> None:
    with pytest.raises(ValueError, match="share filter"):
        text.split_share(data)
