"""MQTT 5.0 sections 3.15 and 4.12: user name and password, enhanced authentication with SCRAM-SHA-256."""
import contextlib

import pytest
from kit.client import KEPT, Closed
from kit.scram import ScramClient
from oracle.mqtt import (
    Auth,
    Connack,
    Connect,
    Disconnect,
    Pingreq,
    Puback,
    Publish,
    Suback,
    Subscribe,
    Unsubscribe,
    Will,
)

METHOD = "SCRAM-SHA-256"
CONTINUE, AGAIN = 0x18, 0x19


def auth(reason, data=None, method=METHOD, **more):
    properties = {"authentication_method": method} | ({} if data is None else {"authentication_data": data}) | more
    return Auth(reason=reason, properties=properties)


def begin(c, client_id, scram, **options):
    """CONNECT with the first message; the server's challenge."""
    properties = options.pop("properties", {}) | {"authentication_method": METHOD, "authentication_data": scram.first()}
    c.send(Connect(client_id=client_id, properties=properties, **options))
    return c.expect(Auth, reason=CONTINUE, authentication_method=METHOD).prop("authentication_data")


def scram_connect(c, client_id, user="anna", password="annas secret", **options):
    scram = ScramClient(user, password)
    challenge = begin(c, client_id, scram, **options)
    c.send(auth(CONTINUE, scram.final(challenge)))
    connack = c.expect(Connack, reason=0, authentication_method=METHOD)
    scram.verify(connack.prop("authentication_data"))
    return connack


def scram_again(c, user="anna", password="annas secret"):
    scram = ScramClient(user, password)
    c.send(auth(AGAIN, scram.first()))
    challenge = c.answer(Auth, reason=CONTINUE, authentication_method=METHOD).prop("authentication_data")
    c.send(auth(CONTINUE, scram.final(challenge)))
    done = c.answer(Auth, reason=0, authentication_method=METHOD)
    scram.verify(done.prop("authentication_data"))


# ── user name and password ───────────────────────────────────────────────────────────────────────────────

@pytest.mark.parametrize(("user", "password"), [("anna", "annas secret"), ("bert=,", "pässwörd")])
def test_the_right_password(client, guarded, user, password):
    client("c", where=guarded, username=user, password=password.encode()).expect_quiet()


@pytest.mark.normative("MQTT5-3.1.4-2", "MQTT5-3.2.2-7", "MQTT5-4.13.2-1")
@pytest.mark.parametrize(("user", "password"), [
    ("anna", b"wrong"), ("anna", b""), ("anna", None), ("nobody", b"annas secret"), ("", b"annas secret"),
    ("anna", b"annas secret\x00"), ("anna", b"\xff\xfe"), ("Anna", b"annas secret"), ("anna ", b"annas secret"),
])
def test_wrong_credentials(open_client, guarded, name, user, password):
    c = open_client(guarded)
    c.send(Connect(client_id=name("c"), username=user, password=password))
    c.expect_refused(0x86, 0x87)


@pytest.mark.normative("MQTT5-3.1.4-2")
def test_anonymous_clients_where_they_are_not_admitted(open_client, start_broker, guarded, name):
    strict = start_broker({"auth.users_file": guarded.settings["auth.users_file"]})
    for fields in ({}, {"password": b"annas secret"}, {"username": "anna"}):
        c = open_client(strict)
        c.send(Connect(client_id=name("c"), **fields))
        c.expect_refused(0x86, 0x87)
    c = open_client(strict)
    c.connect(name("c"), username="anna", password=b"annas secret")


@pytest.mark.normative("MQTT5-3.1.4-6", "MQTT5-3.1.4-2")
def test_a_refused_client_neither_takes_over_nor_cleans(client, open_client, guarded, name, topic):
    held = client("c", where=guarded, username="anna", password=b"annas secret", **KEPT)
    held.subscribe(topic, qos=1)
    c = open_client(guarded)
    c.send(Connect(client_id=name("c"), username="anna", password=b"wrong", clean_start=True))
    c.expect_refused(0x86, 0x87)
    held.publish(topic, b"still here")
    held.receive(topic, b"still here")


@pytest.mark.normative("MQTT5-3.1.4-6", "MQTT5-3.1.2-8")
def test_a_refused_client_leaves_no_will(client, open_client, guarded, name, topic):
    watcher = client("watcher", where=guarded)
    watcher.subscribe(topic)
    c = open_client(guarded)
    c.send(Connect(client_id=name("c"), username="anna", password=b"wrong", will=Will(topic=topic, payload=b"no")))
    c.expect_refused(0x86, 0x87)
    watcher.expect_nothing()


# ── SCRAM in CONNECT ─────────────────────────────────────────────────────────────────────────────────────

@pytest.mark.normative("MQTT5-4.12.0-2", "MQTT5-4.12.0-5", "MQTT5-3.15.2-1", "MQTT5-3.2.0-1")
@pytest.mark.parametrize(("user", "password"), [("anna", "annas secret"), ("bert=,", "pässwörd")])
def test_scram(open_client, guarded, name, topic, user, password):
    c = open_client(guarded)
    scram_connect(c, name("c"), user, password)
    c.subscribe(topic)
    c.publish(topic, b"x")
    c.receive(topic, b"x")


@pytest.mark.normative("MQTT5-4.12.0-5")
def test_a_session_is_resumed_after_scram(open_client, guarded, name):
    c = open_client(guarded)
    assert scram_connect(c, name("c"), **KEPT).session_present is False
    c.disconnect()
    assert scram_connect(open_client(guarded), name("c"), **KEPT).session_present is True


@pytest.mark.normative("MQTT5-4.12.0-4", "MQTT5-3.1.4-2", "MQTT5-3.14.0-1")
@pytest.mark.parametrize(("user", "password"), [("anna", "wrong"), ("nobody", "annas secret"), ("anna", "")])
def test_scram_with_wrong_credentials(open_client, guarded, name, user, password):
    """An unknown user gets a challenge too: the answer does not tell who exists."""
    c = open_client(guarded)
    scram = ScramClient(user, password)
    challenge = begin(c, name("c"), scram)
    c.send(auth(CONTINUE, scram.final(challenge)))
    c.expect_refused(0x86, 0x87)


@pytest.mark.normative("MQTT5-4.12.0-4")
@pytest.mark.parametrize("first", [b"", b"n", b"n,,", b"n,,n=anna", b"y,,n=anna,r=", b"p=tls-unique,,n=anna,r=abc",
                                   b"\xff" * 30, b"n,,n=anna,r=\x00abc", b"n,,m=ext,n=anna,r=abcdef",
                                   b"n,,n=an=XXna,r=abcdef"])
def test_scram_with_a_wrong_first_message(open_client, guarded, name, first):
    c = open_client(guarded)
    c.send(Connect(client_id=name("c"), properties={"authentication_method": METHOD, "authentication_data": first}))
    c.expect_refused()


@pytest.mark.normative("MQTT5-4.12.0-4")
@pytest.mark.parametrize("final", [b"", b"c=biws", b"c=biws,r=,p=", b"c=biws,r=abc,p=AAAA", b"\xff\xff", b"p=AAAA"])
def test_scram_with_a_wrong_final_message(open_client, guarded, name, final):
    c = open_client(guarded)
    begin(c, name("c"), ScramClient("anna", "annas secret"))
    c.send(auth(CONTINUE, final))
    c.expect_refused()


@pytest.mark.normative("MQTT5-4.12.0-4")
def test_a_proof_cannot_be_replayed(open_client, guarded, name):
    scram = ScramClient("anna", "annas secret")
    c = open_client(guarded)
    proof = scram.final(begin(c, name("c"), scram))
    c.send(auth(CONTINUE, proof))
    c.expect(Connack, reason=0)
    thief = open_client(guarded)
    begin(thief, name("thief"), scram)              # the same nonce from the client, another from the server
    thief.send(auth(CONTINUE, proof))
    thief.expect_refused()


@pytest.mark.normative("MQTT5-4.12.0-1")
@pytest.mark.parametrize("method", ["", "PLAIN", "SCRAM-SHA-1", "scram-sha-256", "SCRAM-SHA-256-PLUS"])
def test_a_method_that_is_not_supported(open_client, guarded, name, method):
    c = open_client(guarded)
    c.send(Connect(client_id=name("c"), properties={"authentication_method": method, "authentication_data": b"x"}))
    c.expect_refused(0x8C, 0x87)


@pytest.mark.normative("MQTT5-4.12.0-1")
def test_no_method_is_supported_without_users(open_client, name):
    c = open_client()
    c.send(Connect(client_id=name("c"), properties={
        "authentication_method": METHOD, "authentication_data": ScramClient("anna", "x").first()}))
    c.expect_refused(0x8C, 0x87)


def test_authentication_data_without_a_method_is_a_protocol_error(open_client, guarded, name):
    c = open_client(guarded)
    c.send(Connect(client_id=name("c"), properties={"authentication_data": b"x"}))
    c.expect_refused(0x82, 0x81)


@pytest.mark.normative("MQTT5-3.1.2-30", "MQTT5-3.2.0-1", "MQTT5-3.1.4-6")
@pytest.mark.parametrize("packet", [
    Publish(topic="test/x"), Subscribe(packet_id=1, filters=[("test/x", 0)]), Pingreq(), Puback(packet_id=1),
    Unsubscribe(packet_id=1, filters=["a"]), Connect(client_id="again"),
], ids=lambda packet: type(packet).__name__)
def test_other_packets_during_the_exchange_are_an_error(open_client, guarded, name, packet):
    c = open_client(guarded)
    begin(c, name("c"), ScramClient("anna", "annas secret"))
    c.send(packet)
    c.expect_refused(0x82)


def test_disconnect_during_the_exchange(open_client, guarded, name):
    c = open_client(guarded)
    begin(c, name("c"), ScramClient("anna", "annas secret"))
    c.send(Disconnect())
    assert c.expect_closed() is None


@pytest.mark.normative("MQTT5-4.12.0-5", "MQTT5-4.12.0-4")
@pytest.mark.parametrize("change", [{"method": "OTHER"}, {"reason": AGAIN}, {"reason": 0x00}])
def test_the_method_and_reason_stay_the_same(open_client, guarded, name, change):
    c = open_client(guarded)
    scram = ScramClient("anna", "annas secret")
    challenge = begin(c, name("c"), scram)
    c.send(auth(change.get("reason", CONTINUE), scram.final(challenge), change.get("method", METHOD)))
    c.expect_refused()


# ── AUTH as a packet ─────────────────────────────────────────────────────────────────────────────────────

@pytest.mark.normative("MQTT5-3.15.1-1", "MQTT5-2.1.3-1")
@pytest.mark.parametrize("flags", [1, 2, 4, 8])
def test_auth_with_reserved_flags_is_malformed(open_client, guarded, name, flags):
    c = open_client(guarded)
    scram_connect(c, name("c"))
    packet = auth(AGAIN, ScramClient("anna", "annas secret").first())
    packet.flags = flags
    c.send(packet)
    c.expect_closed(0x81)


@pytest.mark.normative("MQTT5-3.15.2-1")
@pytest.mark.parametrize("reason", [0x01, 0x17, 0x1A, 0x80, 0x87])
def test_auth_with_a_reason_that_does_not_exist(open_client, guarded, name, reason):
    c = open_client(guarded)
    scram_connect(c, name("c"))
    c.send(auth(reason, b"x"))
    c.expect_closed(0x81, 0x82)


@pytest.mark.normative("MQTT5-4.12.0-7", "MQTT5-4.12.0-6")
@pytest.mark.parametrize("reason", [0x00, CONTINUE, AGAIN])
def test_auth_of_a_client_that_named_no_method_is_a_protocol_error(client, guarded, reason):
    c = client("c", where=guarded)
    c.send(auth(reason, ScramClient("anna", "annas secret").first()))
    c.expect_closed(0x82)


@pytest.mark.normative("MQTT5-4.12.0-6")
def test_no_auth_to_a_client_that_named_no_method(client, guarded):
    c = client("c", where=guarded, username="anna", password=b"annas secret")
    assert c.connack.prop("authentication_method") is None
    c.expect_quiet()


# ── re-authentication ────────────────────────────────────────────────────────────────────────────────────

@pytest.mark.normative("MQTT5-4.12.1-1", "MQTT5-4.12.0-5", "MQTT5-3.15.2-1")
def test_authenticating_again(open_client, guarded, name, topic):
    c = open_client(guarded)
    scram_connect(c, name("c"))
    c.subscribe(topic, qos=1)
    for _ in range(3):
        scram_again(c)
    c.publish(topic, b"x", qos=1)
    c.receive(topic, b"x")


@pytest.mark.normative("MQTT5-4.12.1-1")
def test_messages_flow_during_re_authentication(open_client, client, guarded, name, topic):
    c = open_client(guarded)
    scram_connect(c, name("c"))
    c.subscribe(topic, qos=1)
    scram = ScramClient("anna", "annas secret")
    c.send(auth(AGAIN, scram.first()))
    challenge = c.expect(Auth, reason=CONTINUE).prop("authentication_data")
    client("pub", where=guarded).publish(topic, b"meanwhile", qos=1)
    c.receive(topic, b"meanwhile")
    c.send(Subscribe(packet_id=77, filters=[(topic + "/2", 0)]))
    c.expect(Suback, packet_id=77)
    c.send(auth(CONTINUE, scram.final(challenge)))
    c.expect(Auth, reason=0)


@pytest.mark.normative("MQTT5-4.12.1-2", "MQTT5-4.13.2-1")
@pytest.mark.parametrize(("user", "password"), [("anna", "wrong"), ("nobody", "x"), ("bert=,", "pässwörd")])
def test_a_re_authentication_that_fails_closes(open_client, client, guarded, name, topic, user, password):
    """Another user's right password does not do either: the connection is anna's."""
    watcher = client("watcher", where=guarded)
    watcher.subscribe(topic)
    c = open_client(guarded)
    scram_connect(c, name("c"), will=Will(topic=topic, payload=b"will"))
    scram = ScramClient(user, password)
    c.send(auth(AGAIN, scram.first()))
    packet = c.recv()
    if isinstance(packet, Auth):
        c.send(auth(CONTINUE, scram.final(packet.prop("authentication_data"))))
        packet = c.recv()
    assert isinstance(packet, Disconnect)
    assert packet.reason in (0x86, 0x87, 0x82)
    c.expect_closed()
    watcher.receive(topic, b"will")


@pytest.mark.normative("MQTT5-4.12.1-1", "MQTT5-4.12.1-2", "MQTT5-4.12.0-5")
def test_another_method_in_re_authentication_is_a_protocol_error(open_client, guarded, name):
    c = open_client(guarded)
    scram_connect(c, name("c"))
    c.send(auth(AGAIN, b"x", method="PLAIN"))
    c.expect_closed(0x82, 0x8C, 0x87)


def test_continue_without_a_beginning_is_a_protocol_error(open_client, guarded, name):
    c = open_client(guarded)
    scram_connect(c, name("c"))
    c.send(auth(CONTINUE, b"x"))
    c.expect_closed(0x82, 0x87)


# ── size ─────────────────────────────────────────────────────────────────────────────────────────────────

@pytest.mark.normative("MQTT5-3.15.2-2", "MQTT5-3.15.2-3", "MQTT5-3.1.2-24")
@pytest.mark.parametrize("size", [30, 60, 120, 160, 200, 300])
def test_auth_does_not_exceed_the_maximum_packet_size(open_client, guarded, name, size):
    c = open_client(guarded)
    scram = ScramClient("anna", "annas secret")
    c.send(Connect(client_id=name("c"), properties={
        "authentication_method": METHOD, "authentication_data": scram.first(), "maximum_packet_size": size}))
    packet = None
    with contextlib.suppress(Closed):               # a server that cannot say what it must gives up
        packet = c.recv()
        assert c.last_size <= size
        if isinstance(packet, Auth):
            c.send(auth(CONTINUE, scram.final(packet.prop("authentication_data"))))
            c.recv()
            assert c.last_size <= size
    assert size < 200 or isinstance(packet, Auth), "there was room enough"
