"""What clients may not do to the broker and to each other: permissions and bounds, each with its reason code."""
import pytest
from kit.client import Client
from oracle.mqtt import Connect, Disconnect, Puback, Publish, Pubrec


def test_permission_to_publish(client, guarded, topic):
    watcher, c = client("watcher", where=guarded), client("c", where=guarded)
    watcher.subscribe(f"readonly/{topic}", topic)
    for qos, kind in ((1, Puback), (2, Pubrec)):
        c.send(Publish(topic=f"readonly/{topic}", payload=b"x", qos=qos, packet_id=1, retain=True))
        c.expect(kind, packet_id=1, reason=0x87)
    c.send(Publish(topic=f"readonly/{topic}", payload=b"x", qos=0))
    c.publish(topic, b"allowed")
    watcher.receive(topic, b"allowed")
    late = client("late", where=guarded)
    late.subscribe(f"readonly/{topic}")
    late.expect_quiet()


@pytest.mark.normative("MQTT5-3.8.4-7")
@pytest.mark.parametrize("pattern", ["denied/a", "denied/#", "denied/+", "denied", "$share/g/denied/a"])
def test_permission_to_subscribe(client, guarded, pattern):
    client("c", where=guarded).subscribe(pattern, expect=[0x87])


def test_a_wildcard_that_would_reach_denied_topics(client, guarded, topic):
    """Either refused, or without what is denied."""
    c, pub = client("c", where=guarded), client("pub", where=guarded)
    answer = None
    try:
        answer = c.subscribe("#", "+/a")
    except AssertionError:
        return
    assert answer is not None
    pub.send(Publish(topic="denied/a", payload=b"x"))
    pub.publish(topic, b"x", qos=1)
    assert c.expect(Publish).topic != "denied/a"


def test_subscriptions_of_one_client_are_bounded(client, start_broker, topic):
    broker = start_broker({"broker.max_subscriptions_per_client": 3})
    c = client("c", where=broker)
    c.subscribe(*(f"{topic}/{i}" for i in range(5)), expect=[0, 0, 0, 0x97, 0x97])
    c.subscribe(f"{topic}/0", qos=1)                # one that exists is no further one
    c.unsubscribe(f"{topic}/1")
    c.subscribe(f"{topic}/4")


def test_user_properties_of_one_packet_are_bounded(client, start_broker, topic):
    broker = start_broker({"broker.max_user_properties": 3})
    c = client("c", where=broker)
    c.publish(topic, b"x", qos=1, properties=[("user_property", ("k", "v"))] * 3)
    c.send(Publish(topic=topic, qos=1, packet_id=9, properties=[("user_property", ("k", "v"))] * 4))
    packet = c.recv()
    assert packet.reason >= 0x80


def test_connections_are_bounded(client, open_client, start_broker, name):
    broker = start_broker({"server.mqtt.tcp.plain.max_connections": 2})
    held = [client(str(i), where=broker) for i in range(2)]
    refused = open_client(broker)
    refused.send_to_the_end(Connect(client_id=name("3")))
    refused.expect_refused(0x97, 0x89, 0x88)
    held[0].disconnect()
    client("3", where=broker)


def test_a_slow_subscriber_delays_nobody(broker, client, topic):
    """One that never reads, and messages enough to fill every buffer on the way to it."""
    slow, fast, pub = client("slow"), client("fast"), client("pub")
    slow.subscribe(topic)
    fast.subscribe(topic)
    for i in range(300):
        pub.publish(topic, b"%d" % i + b"." * 100_000)
        assert fast.expect(Publish).payload.startswith(b"%d." % i)
    pub.expect_quiet()
    slow.close()


def test_a_subscriber_that_never_reads_with_qos1_is_bounded_too(client, topic):
    slow, pub = client("slow"), client("pub")
    slow.subscribe(topic, qos=1)
    for _ in range(300):
        pub.publish(topic, b"." * 100_000, qos=1)
    pub.expect_quiet()
    slow.close()


def test_a_publisher_that_does_not_read_its_acknowledgements(broker, client, topic):
    """It stops being read; the others go on."""
    c, other = client("c"), client("other")
    packet = Publish(topic=topic, payload=b"x", qos=1, packet_id=1).encode() * 1000
    c.transport.settimeout(1)
    try:
        for _ in range(100):
            c.transport.sendall(packet)
    except (TimeoutError, ConnectionError):
        pass
    other.publish(topic, b"x", qos=1)
    other.expect_quiet()
    c.close()


def test_pinned_listeners(open_client, start_broker, name):
    broker = start_broker({"server.mqtt.tcp.v3.addr": "127.0.0.1:0", "server.mqtt.tcp.v5.addr": "127.0.0.1:0"})
    for slot, right, wrong in (("v3", 4, 5), ("v5", 5, 4)):
        where = broker.addresses[f"mqtt/tcp/{slot}"]
        good = open_client(where, right)
        good.connect(name(slot))
        bad = open_client(where, wrong)
        bad.send(Connect(client_id=name("bad")))
        answer = bad.recv()
        assert answer.reason == (0x84 if wrong == 5 else 0x01)
        bad.expect_closed()


def test_sys_topics_are_retained(client, start_broker):
    broker = start_broker({"broker.sys_interval": "1s"})
    c = client("c", where=broker)
    c.subscribe("$SYS/#")
    assert c.expect(Publish).topic.startswith("$SYS/broker/")       # retained, or the first that there is
    late = client("late", where=broker)
    late.subscribe("$SYS/broker/#")
    assert late.expect(Publish).retain is True


def test_the_broker_survives_many_connections_at_once(broker, name):
    clients = [Client(broker.address) for _ in range(200)]
    for number, c in enumerate(clients):
        c.send(Connect(client_id=name(str(number))))
    for c in clients:
        assert c.recv().reason == 0
    for c in clients:
        c.close()


@pytest.mark.normative("MQTT5-4.13.2-1")
def test_a_disconnect_from_the_client_with_an_error_is_not_answered(client):
    c = client()
    c.send(Disconnect(reason=0x81))
    assert c.expect_closed() is None
