"""MQTT 5.0 section 3.12 and 3.13: PINGREQ, PINGRESP."""
import pytest
from oracle.mqtt import Pingreq, Pingresp


@pytest.mark.normative("MQTT5-3.12.4-1")
def test_pingreq_is_answered(client):
    c = client()
    c.send(Pingreq())
    c.expect(Pingresp)


@pytest.mark.normative("MQTT5-3.12.4-1")
def test_each_of_many_pingreq_is_answered(client):
    c = client()
    c.send(b"\xc0\x00" * 20)
    for _ in range(20):
        c.expect(Pingresp)
    c.expect_nothing()


@pytest.mark.normative("MQTT5-2.1.3-1")
@pytest.mark.parametrize("first", [0xC1, 0xC2, 0xC4, 0xC8])
def test_pingreq_with_reserved_flags_is_malformed(client, first):
    c = client()
    c.send(bytes([first, 0]))
    c.expect_closed(0x81)


def test_pingreq_with_a_body_is_malformed(client):
    c = client()
    c.send(b"\xc0\x01\x00")
    c.expect_closed(0x81)


def test_a_client_may_not_send_pingresp(client):
    c = client()
    c.send(Pingresp())
    c.expect_closed(0x82, 0x81)
