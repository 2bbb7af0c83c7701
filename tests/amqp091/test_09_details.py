"""Details of channels, consumers and queues that libraries hide, over bare sockets: orders, ranges, names, exact
headers."""
from __future__ import annotations

import socket
from collections.abc import Callable
from typing import Any

import pytest
from kit.amqp_wire import Refused, Wire
from kit.watch import wait_until
from oracle.amqp091 import Content, Field, parse_properties

Login = Callable[..., Wire]


def declare(wire: Wire, **arguments: Any) -> str:
    return wire.call(1, "queue.declare", **({"exclusive": True} | arguments))["queue"]


def refusal(wire: Wire, name: str, /, **arguments: Any) -> Refused:
    with pytest.raises(Refused) as refused:
        wire.call(1, name, **arguments)
    return refused.value


# ── confirms ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_confirms_count_from_one_on_each_channel(wire: Wire) -> None:
    """Every publish after confirm.select has the next number; acks may be for many, and all come."""
    wire.publish(1, "", "nobody", b"before: not counted")
    wire.call(1, "confirm.select")
    wire.call(1, "confirm.select")
    queue = declare(wire)
    for number in range(500):
        wire.publish(1, "", queue, b"%d" % number, {"delivery_mode": 2})
    confirmed: set[int] = set()
    while len(confirmed) < 500:
        ack = wire.expect(1, "basic.ack")
        found = set(range(1, ack["delivery_tag"] + 1)) if ack["multiple"] else {ack["delivery_tag"]}
        assert found - confirmed and max(found) <= 500
        confirmed |= found


def test_a_return_comes_before_its_confirm(wire: Wire) -> None:
    """A publisher that sees the ack knows by then whether the message came back."""
    wire.call(1, "confirm.select")
    for number in range(1, 20):
        wire.publish(1, "", "nobody", b"%d" % number, mandatory=True)
        name, returned = wire.next(1)
        assert name == "basic.return" and isinstance(returned, Content)
        assert (returned.reply_code, returned.reply_text, returned.exchange, returned.routing_key) == \
            (312, "NO_ROUTE", "", "nobody")
        assert wire.next(1) == ("basic.ack", {"delivery_tag": number, "multiple": False})


def test_a_nack_is_a_nack(wire: Wire) -> None:
    """A message that a queue refused is nacked by its own number."""
    wire.call(1, "confirm.select")
    queue = declare(wire, arguments={"x-max-length": 1, "x-overflow": "reject-publish"})
    wire.publish(1, "", queue, b"fits")
    assert wire.expect(1, "basic.ack")["delivery_tag"] == 1
    wire.publish(1, "", queue, b"does not")
    assert wire.expect(1, "basic.nack")["delivery_tag"] == 2
    assert wire.call(1, "queue.purge", queue=queue) == {"message_count": 1}


def test_confirmed_although_one_of_two_queues_is_missing(wire: Wire) -> None:
    """One refusal is a refusal: a message for two queues, of which one is full, is nacked and is in the other."""
    wire.call(1, "confirm.select")
    full = declare(wire, arguments={"x-max-length": 1, "x-overflow": "reject-publish"})
    free = declare(wire)
    for queue in (full, free):
        wire.call(1, "queue.bind", queue=queue, exchange="amq.direct", routing_key=full)
    wire.publish(1, "amq.direct", full, b"both")
    wire.expect(1, "basic.ack")
    wire.publish(1, "amq.direct", full, b"one")
    wire.expect(1, "basic.nack")
    assert [wire.get(1, free).body for _ in range(2)] == [b"both", b"one"]      # type: ignore[union-attr]


# ── channels ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_last_queue_declared_is_the_empty_name(wire: Wire) -> None:
    """An empty name is the channel's last queue, also as the routing key of a binding."""
    queue = declare(wire)
    wire.call(1, "queue.bind", exchange="amq.direct")
    wire.publish(1, "amq.direct", queue, b"x")
    message = wire.get(1, "")
    assert message is not None and message.body == b"x"
    assert wire.call(1, "queue.purge") == {"message_count": 0}
    wire.call(1, "basic.consume", no_ack=True)
    wire.publish(1, "", queue, b"y")
    assert wire.expect_content(1).body == b"y"
    assert wire.call(1, "queue.delete") == {"message_count": 0}


def test_the_empty_name_without_a_queue(wire: Wire) -> None:
    """404 on a channel that declared none."""
    assert (found := refusal(wire, "queue.purge")).code == 404 and "no previously declared queue" in found.text


def test_flow(wire: Wire) -> None:
    """channel.flow with active=true is answered."""
    assert wire.call(1, "channel.flow", active=True) == {"active": True}


def test_qos_after_deliveries(wire: Wire) -> None:
    """A larger limit for the channel sets free what waited for it."""
    queue = declare(wire)
    for number in range(5):
        wire.publish(1, "", queue, b"%d" % number)
    wire.call(1, "basic.qos", prefetch_count=1, **{"global": True})
    wire.call(1, "basic.consume", queue=queue)
    assert wire.expect_content(1).body == b"0"
    assert wire.nothing_waits()
    wire.call(1, "basic.qos", prefetch_count=4, **{"global": True})
    assert [wire.expect_content(1).body for _ in range(3)] == [b"1", b"2", b"3"]
    assert wire.nothing_waits()
    wire.send(1, "basic.ack", delivery_tag=0, multiple=True)
    assert wire.expect_content(1).body == b"4"


def test_get_does_not_count_for_prefetch(wire: Wire) -> None:
    """What was taken by basic.get is held, and leaves the consumers' limits alone."""
    queue = declare(wire)
    for number in range(3):
        wire.publish(1, "", queue, b"%d" % number)
    wire.call(1, "basic.qos", prefetch_count=1)
    assert wire.get(1, queue, no_ack=False) is not None
    wire.call(1, "basic.consume", queue=queue)
    assert (found := wire.expect_content(1)).body == b"1" and found.delivery_tag == 2


def test_ack_zero_is_everything(wire: Wire) -> None:
    """Tag 0 with multiple is all that the channel holds, and no error when that is nothing; without multiple it is
    406."""
    queue = declare(wire)
    wire.send(1, "basic.ack", delivery_tag=0, multiple=True)
    for _ in range(3):
        wire.publish(1, "", queue, b"x")
        wire.get(1, queue, no_ack=False)
    wire.send(1, "basic.ack", delivery_tag=0, multiple=True)
    wire.send(1, "basic.recover", requeue=True)
    wire.expect(1, "basic.recover-ok")
    assert wire.get(1, queue) is None
    wire.send(1, "basic.ack", delivery_tag=0)
    assert "unknown delivery tag 0" in wire.expect_refusal(1).text


def test_recover_async_has_no_answer(wire: Wire) -> None:
    """The old form: the same without recover-ok."""
    queue = declare(wire)
    wire.publish(1, "", queue, b"x")
    wire.get(1, queue, no_ack=False)
    wire.send(1, "basic.recover-async", requeue=True)
    message = wire.get(1, queue)
    assert message is not None and message.redelivered


def test_nack_of_many_requeues_in_order(wire: Wire) -> None:
    """Several at once, and one by one backwards: each goes to its own place."""
    queue = declare(wire)
    for number in range(6):
        wire.publish(1, "", queue, b"%d" % number)
        wire.get(1, queue, no_ack=False)
    for tag in (6, 4, 5):
        wire.send(1, "basic.nack", delivery_tag=tag, requeue=True)
    wire.send(1, "basic.nack", delivery_tag=3, multiple=True, requeue=True)
    found = [wire.get(1, queue) for _ in range(6)]
    assert [message.body for message in found if message] == [b"%d" % number for number in range(6)]


# ── consumers ────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_brokers_consumer_tags(wire: Wire) -> None:
    """Without a tag of its own a consumer gets one that begins with amq.ctag-."""
    queue = declare(wire)
    tags = {wire.call(1, "basic.consume", queue=queue)["consumer_tag"] for _ in range(2)}
    assert len(tags) == 2 and all(tag.startswith("amq.ctag-") and len(tag) == 31 for tag in tags)


def test_a_tag_in_use(wire: Wire) -> None:
    """530 for the connection, as RabbitMQ has it."""
    queue = declare(wire)
    wire.call(1, "basic.consume", queue=queue, consumer_tag="t")
    found = refusal(wire, "basic.consume", queue=queue, consumer_tag="t")
    assert (found.scope, found.code) == ("connection", 530) and "'t'" in found.text


def test_cancelling_what_is_not_there(wire: Wire) -> None:
    """Is answered like any other."""
    assert wire.call(1, "basic.cancel", consumer_tag="nobody") == {"consumer_tag": "nobody"}


def test_cancel_notification_needs_the_capability(login: Login) -> None:
    """A client that does not say consumer_cancel_notify sees nothing when its queue goes; one that does,
    basic.cancel."""
    told, untold, deleter = login(), login(capabilities={}), login()
    queue = declare(deleter, exclusive=False, queue="cancel-needs-the-capability")
    for wire in (told, untold):
        wire.call(1, "basic.consume", queue=queue, consumer_tag="c")
    deleter.call(1, "queue.delete", queue=queue)
    assert told.expect(1, "basic.cancel") == {"consumer_tag": "c", "no_wait": True}
    assert untold.nothing_waits()


def test_priority_of_a_consumer_that_is_no_number(wire: Wire) -> None:
    """406."""
    assert refusal(wire, "basic.consume", queue=declare(wire), arguments={"x-priority": "high"}).code == 406


def test_priorities_of_consumers_by_turns(login: Login) -> None:
    """Equal priority takes turns; lower gets only what higher cannot take."""
    wire = login()
    queue = declare(wire)
    for tag, priority in (("low", -1), ("a", 5), ("b", 5)):
        wire.call(1, "basic.qos", prefetch_count=2)
        wire.call(1, "basic.consume", queue=queue, consumer_tag=tag, arguments={"x-priority": priority})
    for number in range(6):
        wire.publish(1, "", queue, b"%d" % number)
    assert [wire.expect_content(1).consumer_tag for _ in range(6)] in (["a", "b", "a", "b", "low", "low"],
                                                                      ["b", "a", "b", "a", "low", "low"])


# ── queues ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_arguments_are_compared_by_value(wire: Wire) -> None:
    """A number is the same whatever its type on the wire; unknown arguments are not compared."""
    wire.call(1, "queue.declare", queue="compared-by-value", exclusive=True,
              arguments={"x-message-ttl": 60000, "x-foo": 1})
    for kind in "liu":
        wire.call(1, "queue.declare", queue="compared-by-value", exclusive=True,
                  arguments={"x-message-ttl": Field(kind, 60000), "x-foo": 2})
    wire.call(1, "queue.declare", queue="compared-by-value", exclusive=True,
              arguments={"x-message-ttl": 60000, "x-queue-type": "classic"})


def test_texts_of_inequivalence(wire: Wire, login: Login) -> None:
    """What a person reads who declared a queue with two programs that disagree."""
    wire.call(1, "queue.declare", queue="inequivalent", exclusive=True, arguments={"x-message-ttl": 1000})
    found = refusal(wire, "queue.declare", queue="inequivalent", exclusive=True, arguments={"x-message-ttl": 2000})
    assert found.text == ("PRECONDITION_FAILED - inequivalent arg 'x-message-ttl' for queue 'inequivalent' in vhost "
                          "'/': received '2000' but current is '1000'")
    assert found.method == (50, 10)


def test_an_exclusive_queue_is_never_durable(wire: Wire) -> None:
    """`durable` says nothing for an exclusive queue: with and without it is the same."""
    wire.call(1, "queue.declare", queue="exclusive-and-durable", exclusive=True, durable=True)
    wire.call(1, "queue.declare", queue="exclusive-and-durable", exclusive=True)


@pytest.mark.parametrize("name", ["a.b/c", "ümläut", "with space", "x" * 255, "#", "*", "$queue", "a\tb"])
def test_names_of_queues_are_any_text(wire: Wire, name: str) -> None:
    """Up to 255 bytes of UTF-8; none of them is special, none becomes a path."""
    wire.call(1, "queue.declare", queue=name, exclusive=True)
    wire.publish(1, "", name, b"x")
    message = wire.get(1, name)
    assert message is not None and message.routing_key == name


@pytest.mark.parametrize("key", ["", ".", "a..b", "a." * 127, "#", "*.#", "x" * 255, "mit leerzeichen", "a/b"])
def test_routing_keys_are_any_text(wire: Wire, key: str) -> None:
    """A direct exchange compares them and nothing else; they come as they were."""
    queue = declare(wire)
    wire.call(1, "exchange.declare", exchange="any-text", type="direct", auto_delete=True)
    wire.call(1, "queue.bind", queue=queue, exchange="any-text", routing_key=key or "not empty")
    if not key:
        wire.call(1, "queue.declare", queue="", exclusive=True)
        wire.call(1, "queue.bind", queue=queue, exchange="any-text", routing_key="")
    wire.publish(1, "any-text", key, b"x")
    message = wire.get(1, queue)
    assert message is not None and message.routing_key == key


@pytest.mark.parametrize(("binding", "key", "wanted"), [
    ("a.*.b", "a..b", True), ("*", "", False), ("#", "", True), ("#.#", "", True), ("*.*", ".", True),
    ("a.#", "a", True),
    ("a.#", "a.", True), ("#.a.#", "a", True), ("#.a.#", "b.a.c.d", True), ("a.*.#", "a", False),
    ("a.b", "a.b.", False),
    ("a*", "ab", False), ("a#", "a#", True), ("a.#.b.#.c", "a.x.b.b.y.c", True), ("*.#.*", "a", False),
    ("*.#.*", "a.b", True), ("A.b", "a.b", False),
], ids=str)
def test_topics_at_their_edges(wire: Wire, binding: str, key: str, wanted: bool) -> None:
    """Words may be empty, `#` may be none or many, also more than once."""
    queue = declare(wire)
    wire.call(1, "exchange.declare", exchange="edges", type="topic", auto_delete=True)
    wire.call(1, "queue.bind", queue=queue, exchange="edges", routing_key=binding)
    wire.publish(1, "edges", key, b"x")
    assert (wire.get(1, queue) is not None) is wanted


def test_max_length_zero(wire: Wire) -> None:
    """A queue of length 0 keeps nothing, and still serves who waits."""
    queue = declare(wire, arguments={"x-max-length": 0})
    wire.publish(1, "", queue, b"nobody waits")
    assert wire.get(1, queue) is None
    wire.call(1, "basic.consume", queue=queue, no_ack=True)
    wire.publish(1, "", queue, b"x")
    assert wire.expect_content(1).body == b"x"


def test_priority_queue_drops_at_its_head(wire: Wire) -> None:
    """drop-head means the head: in a queue with priorities the next to be delivered is dropped, of the highest one."""
    queue = declare(wire, arguments={"x-max-priority": 9, "x-max-length": 2})
    for priority in (5, 1, 9):
        wire.publish(1, "", queue, b"%d" % priority, {"priority": priority})
    assert [wire.get(1, queue).body for _ in range(2)] == [b"5", b"1"]      # type: ignore[union-attr]


def test_requeued_messages_keep_their_priority(wire: Wire) -> None:
    """What is given back is before later ones of its priority and after higher ones."""
    queue = declare(wire, arguments={"x-max-priority": 9})
    wire.publish(1, "", queue, b"first 3", {"priority": 3})
    wire.publish(1, "", queue, b"second 3", {"priority": 3})
    assert wire.get(1, queue, no_ack=False).body == b"first 3"      # type: ignore[union-attr]
    wire.publish(1, "", queue, b"a 5", {"priority": 5})
    wire.send(1, "basic.reject", delivery_tag=1, requeue=True)
    found = [wire.get(1, queue).body for _ in range(3)]         # type: ignore[union-attr]
    assert found == [b"a 5", b"first 3", b"second 3"]


def test_ttl_shorter_of_queue_and_message(wire: Wire) -> None:
    """The smaller of `x-message-ttl` and `expiration` counts."""
    wire.call(1, "confirm.select")
    long_queue, short_queue = (declare(wire, arguments={"x-message-ttl": ttl}) for ttl in (60000, 30))
    wire.publish(1, "", long_queue, b"x", {"expiration": "30"})
    wire.publish(1, "", short_queue, b"x", {"expiration": "60000"})
    while wire.expect(1, "basic.ack")["delivery_tag"] != 2:
        pass
    for queue in (long_queue, short_queue):
        wait_until(lambda queue=queue: wire.call(1, "queue.declare", queue=queue, passive=True)["message_count"] == 0)


def test_x_death_as_rabbitmq_writes_it(wire: Wire) -> None:
    """Field by field with its types: programs of every language read this."""
    dead = declare(wire)
    queue = declare(wire, arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": dead})
    wire.publish(1, "", queue, b"x", {"headers": {"CC": [], "mine": 1}, "expiration": "20", "timestamp": 7})
    wire.call(1, "basic.consume", queue=dead, no_ack=True)
    message = wire.expect_content(1)
    headers = dict(parse_properties(message.raw_header[12:])["headers"])
    letter, [(of_death, death)] = headers[b"x-death"]
    assert (letter, of_death) == ("A", "F")
    assert {name: letter for name, (letter, _) in death} == {
        b"count": "l", b"exchange": "S", b"queue": "S", b"reason": "S", b"routing-keys": "A", b"time": "T",
        b"original-expiration": "S"}
    assert {name: letter for name, (letter, _) in headers.items() if name.startswith(b"x-first")} == {
        b"x-first-death-exchange": "S", b"x-first-death-queue": "S", b"x-first-death-reason": "S"}
    assert message.properties["headers"]["mine"] == 1
    assert (message.properties["timestamp"], "expiration" in message.properties) == (7, False)


def test_direct_reply_to_needs_its_consumer(wire: Wire) -> None:
    """Publishing with that reply_to without having consumed from it first: 406, for answers would go nowhere."""
    wire.publish(1, "", "nobody", b"x", {"reply_to": "amq.rabbitmq.reply-to"})
    assert wire.expect_refusal(1).code == 406
    wire.open_channel(1)
    assert refusal(wire, "basic.consume", queue="amq.rabbitmq.reply-to", no_ack=False).code == 406


def test_direct_reply_to_is_there_to_ask_for(wire: Wire, login: Login) -> None:
    """A server may ask whether its client still waits: passive declare of the address it was given."""
    wire.call(1, "basic.consume", queue="amq.rabbitmq.reply-to", no_ack=True)
    queue = declare(wire)
    wire.publish(1, "", queue, b"x", {"reply_to": "amq.rabbitmq.reply-to"})
    asked = wire.get(1, queue)
    assert asked is not None
    address = asked.properties["reply_to"]
    server = login()
    for passive in (True, False):
        assert server.call(1, "queue.declare", queue=address, passive=passive)["queue"] == address
    wire.call(1, "channel.close", reply_code=200)
    for passive in (True, False):
        server.send(1, "queue.declare", queue=address, passive=passive)
        assert server.expect_refusal(1).code == 404
        server.open_channel(1)


@pytest.mark.parametrize("passive", [True, False])
def test_what_direct_reply_to_answers_to_each_method_on_queues(wire: Wire, passive: bool) -> None:
    """Clients that declare whatever they consume from declare it plainly, too. To other methods it is no queue."""
    declared = wire.call(1, "queue.declare", queue="amq.rabbitmq.reply-to", passive=passive)
    assert (declared["queue"], declared["message_count"], declared["consumer_count"]) == ("amq.rabbitmq.reply-to", 0, 1)
    for method, asked in (("queue.purge", {}), ("queue.bind", {"exchange": "amq.topic", "routing_key": "x"}),
                          ("basic.get", {})):
        assert refusal(wire, method, queue="amq.rabbitmq.reply-to", **asked).code == 404, method
        wire.open_channel(1)
    assert wire.call(1, "queue.delete", queue="amq.rabbitmq.reply-to")["message_count"] == 0


# ── connections ──────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_connection_that_breaks_in_mid_publish(login: Login, amqp_broker: Any) -> None:
    """Half a message is no message."""
    broken, other = login(), login()
    queue = declare(other, exclusive=False, queue="half-a-message", auto_delete=True)
    raw = broken.encode_publish(1, "", queue, b"x" * 1000)
    broken.send_raw(raw[:-500])
    broken.socket.shutdown(socket.SHUT_WR)
    broken.expect_end()
    other.publish(1, "", queue, b"whole")
    assert other.get(1, queue).body == b"whole"     # type: ignore[union-attr]
    other.call(1, "queue.delete", queue=queue)


def test_update_secret(wire: Wire) -> None:
    """Clients with tokens renew them on a living connection."""
    wire.send(0, "connection.update-secret", new_secret=b"guest", reason="renewal")
    wire.expect(0, "connection.update-secret-ok")


def test_many_channels(login: Login) -> None:
    """Every channel that was offered can be used at once."""
    wire = login()
    for channel in range(2, 301):
        wire.send(channel, "channel.open")
    for channel in range(2, 301):
        wire.expect(channel, "channel.open-ok")
    queue = declare(wire)
    for channel in range(1, 301):
        wire.publish(channel, "", queue, b"%d" % channel)
    wire.call(1, "basic.consume", queue=queue, no_ack=True)
    assert sorted(int(wire.expect_content(1).body) for _ in range(300)) == list(range(1, 301))
