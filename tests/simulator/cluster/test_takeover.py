"""A session moves to the node where its client connects: nothing acknowledged is lost, nothing of QoS 2 comes twice,
each publisher's order holds, and never two nodes serve it at once."""
from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from kit.metadata import MetadataInMemory
from kit.sizes import some
from oracle.mqtt import Connack, Puback, Publish, Pubrec
from simulator.cluster.brokers import Brokers, Client

from fluxmq.cluster.keys import OWNER, node_key
from fluxmq.cluster.leaving import TAKE
from fluxmq.cluster.messages import Cut, ReturnCall, Switch, TailCall, TakeCall, TakeoverCall, encode
from fluxmq.cluster.ports import CallFailed
from fluxmq.cluster.returns import RETURN, STORED
from fluxmq.cluster.takeover import TAIL, TAKEOVER
from fluxmq.model.queues import QueueSpec

NAMES = ("one", "two", "three")
NO_LOCAL, AS_PUBLISHED = 4, 8       # MQTT 5.0 section 3.8.3.1


def serving(seed: int = 1, ttl_s: int = 10, names: tuple[str, ...] = NAMES) -> Brokers:
    brokers = Brokers(seed, list(names), lambda process: store.seen_by(process.driver), ttl_s=ttl_s)
    store = MetadataInMemory(brokers.world.events)

    def end_lease_of(name: str) -> None:
        store.end_lease(store.items[node_key(name)].lease)

    brokers.end_lease_of = end_lease_of  # type: ignore[method-assign]
    brokers.world.checks.append(lambda: one_serves(brokers))
    brokers.start()
    return brokers


def one_serves(brokers: Brokers) -> None:
    """No session has a connection at two nodes that may serve."""
    seen: dict[bytes, str] = {}
    for broker in brokers.processes.values():
        if not broker.process.runs or not broker.cluster.membership.may_serve():
            continue
        for (_, name), session in broker.node.broker.sessions.items():
            if session.data.connection is not None:
                assert name not in seen, f"{name!r} is served by {seen[name]} and {broker.name}"
                seen[name] = broker.name


def connected(brokers: Brokers, at: str, name: str, **how: Any) -> Client:
    client = brokers.client(at, name)
    client.connect(**how)
    brokers.run_until(lambda: client.connected)
    return client


def hop(brokers: Brokers, client: Client, at: str, **how: Any) -> Connack:
    """The client connects to another node; returns its CONNACK."""
    before = len(client.connacks)
    client.connect(at=at, clean_start=False, expiry_s=1000, **how)
    brokers.run_until(lambda: len(client.connacks) > before)
    return client.connacks[-1]


def answers(client: Client, count: int) -> bool:
    return len(client.connacks) >= count


def test_a_client_without_an_identifier_gets_one_that_nobody_else_has() -> None:
    """[MQTT-3.1.3-6]. Its node asks the others who has the session, and goes on when they have answered."""
    brokers = serving()
    clients = [connected(brokers, at, "", keep_alive=0) for at in NAMES]
    given = [value for client in clients for name, value in client.connacks[-1].properties
             if name == "assigned_client_identifier"]
    assert len(given) == 3 and len({*given}) == 3


def test_the_session_is_there_where_the_client_connects() -> None:
    brokers = serving()
    client = connected(brokers, "one", "c", clean_start=False, expiry_s=1000)
    packet_id = client.subscribe("t/#", 2)
    brokers.run_until(lambda: client.acknowledged(packet_id))
    publisher = connected(brokers, "three", "p")
    publisher.publish("t/1", b"before", 1)
    brokers.run_until(lambda: client.messages)
    connack = hop(brokers, client, "two")
    assert connack.session_present and connack.reason == 0
    publisher.publish("t/2", b"after", 2)
    brokers.run_until(lambda: len(client.messages) == 2)
    assert client.messages == [("t/1", b"before"), ("t/2", b"after")]
    brokers.run_for(0.1)
    sessions = [list(broker.node.broker.sessions) for broker in brokers.processes.values()]
    assert [(b"/", b"c") in found for found in sessions] == [False, True, False]
    peers = brokers.processes["three"].cluster.peers
    assert not peers.peers["one"].wanted and peers.peers["two"].wanted


def test_no_local_beside_another_subscription_is_the_same_at_each_node() -> None:
    """What the client publishes where it is, and what others publish there and elsewhere. [MQTT5-3.8.3-3]"""
    brokers = serving()
    client = connected(brokers, "one", "c", clean_start=False, expiry_s=1000)
    others = [connected(brokers, at, f"p-{at}") for at in ("two", "three")]
    for filter_, options in (("t/#", 2 | NO_LOCAL | AS_PUBLISHED), ("t/a", 1)):
        packet_id = client.subscribe(filter_, options)
        brokers.run_until(lambda packet_id=packet_id: client.acknowledged(packet_id))  # type: ignore[misc]
    for at in ("one", "two", "three"):
        hop(brokers, client, at)
        client.got.clear()
        for publisher, own in ((others[0], False), (client, True), (others[1], False)):
            before = len(client.of(Publish))
            publisher.publish("t/a", b"x", 2, retain=True)
            brokers.run_until(lambda before=before: len(client.of(Publish)) > before)  # type: ignore[misc]
            assert [(one.qos, one.retain) for one in client.of(Publish)[before:]] == [(1, False) if own else (2, True)]


def test_what_a_dead_node_did_not_take_holds_up_no_session() -> None:
    """The new owner's publish to it was given up. The session comes, with all that it was sent meanwhile."""
    brokers = serving()
    client = connected(brokers, "one", "c", clean_start=False, expiry_s=1000)
    packet_id = client.subscribe("t/#", 1)
    elsewhere = connected(brokers, "three", "s")
    other_id = elsewhere.subscribe("three", 1)
    brokers.run_until(lambda: client.acknowledged(packet_id) and elsewhere.acknowledged(other_id))
    publisher = connected(brokers, "two", "p")
    brokers.network.isolate("three")
    refused_id = publisher.publish("three", b"", 1)
    brokers.run_until(lambda: publisher.acknowledged(refused_id), 20.0)
    brokers.kill("three")
    brokers.end_lease_of("three")
    brokers.run_for(5.0)
    near = connected(brokers, "one", "near")
    client.connect(at="two", clean_start=False, expiry_s=1000)
    sent = [near.publish("t/1", b"%d" % number, 1) for number in range(3)]
    brokers.run_until(lambda: len(client.connacks) == 2)
    assert client.connacks[-1].session_present
    brokers.run_until(lambda: all(near.acknowledged(one) for one in sent))
    brokers.run_until(lambda: len(client.messages) == 3)
    brokers.run_until(lambda: (b"/", b"c") not in brokers.processes["one"].node.broker.sessions)
    assert not [text for broker in brokers.processes.values() for _, text, _ in broker.log if "handed over" in text]


def test_the_former_connection_is_told() -> None:
    brokers = serving()
    first = connected(brokers, "one", "c", clean_start=False, expiry_s=1000)
    second = brokers.client("two", "c")
    second.connect(clean_start=False, expiry_s=1000)
    brokers.run_until(lambda: second.connected)
    assert first.ended == [0x8E] and not first.open


def test_what_waited_while_the_client_was_away_comes() -> None:
    brokers = serving()
    client = connected(brokers, "one", "c", clean_start=False, expiry_s=1000)
    packet_id = client.subscribe("t", 1)
    brokers.run_until(lambda: client.acknowledged(packet_id))
    client.leave()
    publisher = connected(brokers, "three", "p")
    sent = [b"%d" % number for number in range(1000)]
    for payload in sent:
        publisher.publish("t", payload, 1)
    brokers.run_until(lambda: publisher.acknowledged(publisher.packet_id))
    hop(brokers, client, "two")
    brokers.run_until(lambda: len(client.messages) == 1000)
    assert [payload for _, payload in client.messages] == sent


@pytest.mark.parametrize("clean", [True, False], ids=["clean start", "no expiry"])
def test_a_session_that_is_not_continued_ends_at_the_former_owner(clean: bool) -> None:
    brokers = serving()
    client = connected(brokers, "one", "c", clean_start=False, expiry_s=1000 if clean else 0)
    packet_id = client.subscribe("t", 1)
    brokers.run_until(lambda: client.acknowledged(packet_id))
    before = len(client.connacks)
    client.connect(at="two", clean_start=clean)
    brokers.run_until(lambda: len(client.connacks) > before)
    assert not client.connacks[-1].session_present
    assert not list(brokers.processes["one"].node.broker.sessions)
    brokers.run_for(15.0)
    assert brokers.processes["one"].cluster.holdings.owners.owner((b"/", b"c")).node == "two"


@pytest.mark.parametrize("seed", range(5))
def test_a_node_that_is_slow_is_waited_for_although_the_store_is_slower(seed: int,
                                                                        monkeypatch: pytest.MonkeyPatch) -> None:
    """The old owner hears of the new one by a stream, before the store tells it; the publisher's node is further
    away."""
    brokers = serving(seed)
    client = connected(brokers, "one", "c", clean_start=False, expiry_s=1000)
    packet_id = client.subscribe("t", 1)
    brokers.run_until(lambda: client.acknowledged(packet_id))
    publisher = connected(brokers, "three", "p")
    brokers.network.link("three", "one").delay_ms = (60, 60)
    monkeypatch.setitem(brokers.processes["one"].cluster.feed._listeners, OWNER, lambda name, event: None)
    client.connect(at="two", clean_start=False, expiry_s=1000)
    sent = [b"%d" % number for number in range(200)]
    for payload in sent:
        publisher.publish("t", payload, 1)
        brokers.run_for(0.001)
    brokers.run_until(lambda: client.connected and publisher.acknowledged(publisher.packet_id))
    brokers.run_for(1.0)
    assert list(dict.fromkeys(payload for _, payload in client.messages)) == sent


@pytest.mark.parametrize("seed", some(20, range(60)))
def test_a_client_that_hops_under_load_misses_nothing(seed: int) -> None:
    brokers = serving(seed)
    chance = random.Random(seed)
    client = connected(brokers, "one", "c", clean_start=False, expiry_s=1000)
    for filter_, qos in (("t/1/#", 1), ("t/2/#", 2), ("t/+/x", 2)):
        packet_id = client.subscribe(filter_, qos)
        brokers.run_until(lambda packet_id=packet_id: client.acknowledged(packet_id))  # type: ignore[misc]
    publishers = {at: connected(brokers, at, f"p-{at}") for at in NAMES}
    sent: dict[tuple[str, str], list[bytes]] = {}
    at = "one"
    for _ in range(60):
        for _ in range(chance.randrange(6)):
            source = chance.choice(NAMES)
            qos = chance.choice((1, 2))
            topic = f"t/{qos}/{'x' if qos == 2 else 'y'}"
            series = sent.setdefault((source, topic), [])
            series.append(b"%s %d" % (source.encode(), len(series)))
            publishers[source].publish(topic, series[-1], qos)
        if chance.random() < 0.2:
            at = chance.choice([name for name in NAMES if name != at])
            hop(brokers, client, at)
        if chance.random() < 0.1:
            brokers.break_streams()
        brokers.run_for(chance.choice((0, 0.001, 0.01, 0.1)))
    brokers.run_for(5.0)
    got: dict[tuple[str, str], list[bytes]] = {}
    for topic, payload in client.messages:
        got.setdefault((payload.split()[0].decode(), topic), []).append(payload)
    for key, payloads in sent.items():
        found = got.get(key, [])
        if key[1].startswith("t/2"):
            assert found == payloads, f"{key}: twice, lost or out of order"
        else:
            assert list(dict.fromkeys(found)) == payloads, f"{key}: lost or out of order"


@pytest.mark.parametrize("seed", some(4, range(60)))
def test_a_client_that_hops_while_links_stand_still(seed: int) -> None:
    """Nodes keep their leases, and answer late or for a time not at all: each has what it acknowledged once."""
    brokers = serving(seed)
    kept: dict[str, Any] = {"clean_start": False, "expiry_s": 1000, "keep_alive": 0}
    chance = random.Random(seed)
    client = connected(brokers, "one", "c", **kept)
    for qos in (1, 2):
        packet_id = client.subscribe(f"t/{qos}", qos)
        brokers.run_until(lambda packet_id=packet_id: client.acknowledged(packet_id))  # type: ignore[misc]
    publishers = {at: connected(brokers, at, f"p-{at}", **kept) for at in NAMES}
    sent: dict[tuple[str, int, int], bytes] = {}        # by publisher, QoS, packet identifier

    def publish() -> None:
        at, qos = chance.choice(NAMES), chance.choice((1, 2))
        payload = b"%s %d" % (at.encode(), len(sent))
        sent[at, qos, publishers[at].publish(f"t/{qos}", payload, qos)] = payload

    for _ in range(40):
        for _ in range(chance.randrange(4)):
            publish()
        what = chance.random()
        if what < 0.2:
            client.connect(at=chance.choice([name for name in NAMES if name != client.at]), **kept)
        elif what < 0.3:
            brokers.network.isolate(chance.choice(NAMES))
        elif what < 0.4:
            brokers.network.stall(*chance.sample(NAMES, 2), back=chance.random() < 0.5)
        elif what < 0.55:
            brokers.network.heal()
        for _ in range(chance.randrange(10)):
            publish()
            brokers.run_for(chance.choice((0, 0.001, 0.003)))
        brokers.run_for(chance.choice((0, 0, 0.01, 0.1, 1, 6, 16)))
    brokers.network.heal()
    for _ in range(5):
        if not client.open:         # it was refused, or it has waited for too long
            client.connect(**kept)
        brokers.run_for(20.0)
    assert client.connected
    nothing_is_left(brokers)
    got = [payload for _, payload in client.messages]
    for (at, qos, packet_id), payload in sent.items():
        count, told = got.count(payload), publishers[at].got
        refused = any(isinstance(packet, Puback | Pubrec) and packet.packet_id == packet_id and packet.reason >= 0x80
                      for packet in told)
        assert count <= 1 or qos == 1, f"{payload!r} came {count} times"
        assert count or refused or not publishers[at].acknowledged(packet_id), f"{payload!r} was lost"


@pytest.mark.parametrize("seed", some(10, range(20)))
@pytest.mark.parametrize("who", ["old", "new"])
def test_a_node_that_is_killed_meanwhile_loses_nothing_acknowledged(seed: int, who: str) -> None:
    """The client comes back to that node: what only a node has that died, nobody else can give."""
    brokers = serving(seed)
    chance = random.Random(seed)
    client = connected(brokers, "one", "c", clean_start=False, expiry_s=1000)
    packet_id = client.subscribe("t", 1)
    brokers.run_until(lambda: client.acknowledged(packet_id))
    client.leave()
    publisher = connected(brokers, "three", "p")
    for number in range(50):
        publisher.publish("t", b"%d" % number, 1)
    brokers.run_until(lambda: publisher.acknowledged(publisher.packet_id))
    client.connect(at="two", clean_start=False, expiry_s=1000)
    brokers.run_for(chance.choice((0.0, 0.001, 0.002, 0.003, 0.005, 0.008, 0.012, 0.02)))
    victim = "one" if who == "old" else "two"
    brokers.kill(victim)
    client.leave()
    brokers.run_for(1.0)
    brokers.end_lease_of(victim)
    brokers.run_for(1.0)
    brokers.start(victim)
    for _ in range(20):
        answered = len(client.connacks) + 1
        client.connect(at=victim, clean_start=False, expiry_s=1000)
        if brokers.world.holds_within(partial(answers, client, answered), 5.0):
            if client.connacks[-1].reason == 0:
                break
            brokers.run_for(0.5)
    brokers.run_for(3.0)
    assert {payload for _, payload in client.messages} == {b"%d" % number for number in range(50)}


@pytest.mark.parametrize("qos", [1, 2])
@pytest.mark.parametrize("late", [False, True])
def test_what_the_old_owner_was_sent_before_it_was_lost_comes_although_nothing_is_adopted(late: bool, qos: int) -> None:
    """It has handed the session over, and stands still before it has sent the rest. What other nodes had sent to it
    goes to the session. late: its lease ends before the new owner has made the session its own."""
    brokers = serving()
    client = connected(brokers, "one", "c", clean_start=False, expiry_s=1000)
    packet_id = client.subscribe("t", qos)
    brokers.run_until(lambda: client.acknowledged(packet_id))
    publishers = [connected(brokers, at, f"p-{at}", clean_start=False, expiry_s=1000) for at in ("two", "three")]
    brokers.run_for(0.5)
    takeovers, sent = brokers.processes["two"].cluster.holdings.takeovers, []
    complete = takeovers.complete

    async def stands_still_before(*args: Any) -> None:
        """The owner's key has changed."""
        brokers.processes["one"].process.pause()
        sent.extend(publisher.publish("t", publisher.name.encode(), qos) for publisher in publishers)
        for at in ("two", "three"):
            brokers.processes[at].node.turn()
        if late:
            brokers.end_lease_of("one")
            await brokers.processes["two"].process.driver.sleep(1.0)
        await complete(*args)

    takeovers.complete = stands_still_before    # type: ignore[method-assign]
    client.connect(at="two", clean_start=False, expiry_s=1000)
    brokers.run_until(lambda: sent)
    brokers.run_for(1.5)
    if not late:
        brokers.end_lease_of("one")
    brokers.run_until(lambda: len(client.messages) == 2, 10.0)
    assert {payload for _, payload in client.messages} == {b"p-two", b"p-three"}


def test_what_others_had_sent_keeps_its_order_although_one_link_is_silent() -> None:
    """Nothing comes from node "three" to the old owner, so the new one does not get everything in time. What the other
    nodes had sent is there before the client."""
    brokers = serving()
    client = connected(brokers, "one", "c", clean_start=False, expiry_s=1000)
    packet_id = client.subscribe("t", 1)
    brokers.run_until(lambda: client.acknowledged(packet_id))
    near, far = connected(brokers, "one", "near"), connected(brokers, "two", "far")
    going = brokers.processes["one"].cluster.holdings.takeovers
    brokers.network.stall("three", "one", back=False)
    client.connect(at="two", clean_start=False, expiry_s=1000)
    brokers.run_until(lambda: going.under_way)
    sent = 0
    for _ in range(25):
        for publisher in (near, far):
            publisher.publish("t", b"%s %d" % (publisher.name.encode(), sent), 1)
        sent += 1
        brokers.run_for(0.001 if sent < 10 else 1.0)
    assert client.connected and client.messages
    brokers.network.heal()
    brokers.run_for(3.0)
    for publisher in (near, far):
        came = [payload for _, payload in client.messages if payload.startswith(publisher.name.encode())]
        assert came == [b"%s %d" % (publisher.name.encode(), number) for number in range(sent)]


def test_the_old_owner_forgets_nothing_before_the_rest_is_on_the_new_ones_disk() -> None:
    brokers = serving()
    client = connected(brokers, "one", "c", clean_start=False, expiry_s=1000)
    packet_id = client.subscribe("t", 1)
    brokers.run_until(lambda: client.acknowledged(packet_id))
    publisher = connected(brokers, "one", "p")
    held, two = brokers.processes["one"].cluster.holdings, brokers.processes["two"]
    client.connect(at="two", clean_start=False, expiry_s=1000)
    brokers.run_until(lambda: held.owners.owned_epoch((b"/", b"c")) and held.takeovers.under_way)
    publisher.publish("t", b"in the tail", 1)
    brokers.run_until(lambda: publisher.acknowledged(publisher.packet_id))
    brokers.run_until(lambda: (owner := held.owners.owner((b"/", b"c"))) is not None and owner.node == "two")
    two.node.write_journal = lambda: False      # type: ignore[method-assign]
    brokers.run_for(3.0)
    assert (b"/", b"c") in brokers.processes["one"].node.broker.sessions and not client.connected
    brokers.kill("two")
    brokers.end_lease_of("two")
    brokers.run_for(2.0)
    client.connect(at="one", clean_start=False, expiry_s=1000)
    brokers.run_until(lambda: client.messages == [("t", b"in the tail")])


@pytest.mark.parametrize("way", ["connected", "away", "back"])
def test_a_line_that_stands_still_holds_up_only_who_waits_for_it(way: str) -> None:
    """A session moves although another client waits for a group's queue; if its own client does, so does the move: by
    the identifiers that the session has received, it concludes that it need not send that again."""
    brokers = serving()
    one = brokers.processes["one"].node
    line = one.hub.commits.open_line("group 7")
    one.manager.make(QueueSpec(name="far"), line=line)
    mover, other, waiter = (connected(brokers, "one", name, clean_start=False, expiry_s=1000) for name in "mow")
    for client in (other, waiter):
        client.publish("$queue/far", b"x", 2)
    brokers.run_for(1.0)
    assert line.undecided and not other.of(Pubrec)
    if way != "connected":
        for client in (mover, waiter):
            client.leave()
        brokers.run_for(1.0)
    if way == "back":                           # what answers to the first connection wait for still counts
        waiter.connect(clean_start=False, expiry_s=1000)
        brokers.run_until(lambda: waiter.connected)
    assert hop(brokers, mover, "two").session_present
    waiter.connect(at="two", clean_start=False, expiry_s=1000)
    before = len(waiter.connacks)
    brokers.run_for(3.0)
    assert len(waiter.connacks) == before
    line.commit(line.submit()[0])
    brokers.run_until(lambda: len(waiter.connacks) > before)
    assert waiter.connacks[-1].session_present


def test_a_session_stays_where_it_was_taken_although_its_client_has_gone_meanwhile() -> None:
    brokers = serving()
    client = connected(brokers, "one", "c", clean_start=False, expiry_s=1000)
    packet_id = client.subscribe("t", 1)
    brokers.run_until(lambda: client.acknowledged(packet_id))
    owners, process = brokers.processes["two"].cluster.holdings.owners, brokers.processes["two"].process
    process.driver.start(owners.take((b"/", b"c"), False, process.now_ms()))
    brokers.run_for(2.0)
    publisher = connected(brokers, "two", "p")
    packet_id = publisher.publish("t", b"while it was away", 1)
    brokers.run_until(lambda: publisher.acknowledged(packet_id))
    brokers.run_for(20.0)
    assert owners.owner((b"/", b"c")) is not None
    assert hop(brokers, client, "three").session_present
    brokers.run_until(lambda: client.messages == [("t", b"while it was away")])


@pytest.mark.parametrize("seed", some(8, range(20)))
def test_a_new_owner_that_stood_still_does_not_get_what_the_old_one_has_taken_back(seed: int) -> None:
    """The old owner waits for ten seconds. What is published to the session after that must not be lost when the new
    owner goes on, within its lease."""
    brokers = serving(seed, ttl_s=30)
    chance = random.Random(seed)
    client = connected(brokers, "one", "c", clean_start=False, expiry_s=1000)
    packet_id = client.subscribe("t", 1)
    brokers.run_until(lambda: client.acknowledged(packet_id))
    client.leave()
    publisher = connected(brokers, "three", "p")
    client.connect(at="two", clean_start=False, expiry_s=1000)
    brokers.run_for(chance.choice((0.001, 0.002, 0.003, 0.004, 0.005)))
    brokers.processes["two"].process.pause()
    brokers.run_for(12.0)
    for number in range(10):
        publisher.publish("t", b"%d" % number, 1)
    brokers.run_for(1.0)
    brokers.processes["two"].process.resume()
    brokers.run_until(lambda: publisher.acknowledged(publisher.packet_id))
    for _ in range(20):
        answered = len(client.connacks) + 1
        client.connect(at=chance.choice(NAMES), clean_start=False, expiry_s=1000)
        if brokers.world.holds_within(partial(answers, client, answered), 20.0) and not client.connacks[-1].reason:
            break
        brokers.run_for(0.5)
    brokers.run_for(3.0)
    assert {payload for _, payload in client.messages} == {b"%d" % number for number in range(10)}


@pytest.mark.parametrize("to", ["one", "three"])
def test_a_new_owner_that_stands_still_before_it_has_the_rest_is_succeeded_at_once(to: str) -> None:
    """The old owner still waits for an answer to what it has sent. It is one of those that may adopt the session."""
    brokers = serving(1)
    client = connected(brokers, "one", "c", clean_start=False, expiry_s=1000)
    packet_id = client.subscribe("t", 1)
    brokers.run_until(lambda: client.acknowledged(packet_id))
    client.leave()
    publisher = connected(brokers, "three", "p")
    publisher.publish("t", b"before", 1)
    brokers.run_until(lambda: publisher.acknowledged(publisher.packet_id))
    owners = brokers.processes["one"].cluster.holdings.owners
    client.connect(at="two", clean_start=False, expiry_s=1000)
    brokers.run_until(lambda: (owner := owners.owner((b"/", b"c"))) is not None and owner.node == "two")
    brokers.processes["two"].process.pause()
    publisher.publish("t", b"meanwhile", 1)
    brokers.run_for(1.0)
    brokers.end_lease_of("two")
    brokers.run_for(2.0)
    client.connect(at=to, clean_start=False, expiry_s=1000)
    brokers.run_for(2.0)
    assert client.connected and publisher.acknowledged(publisher.packet_id)
    assert sorted(payload for _, payload in client.messages) == [b"before", b"meanwhile"]
    assert not any(brokers.processes[name].process.driver.crashed for name in NAMES)


@pytest.mark.parametrize("name", ["c", "d", "e", "f"])
@pytest.mark.parametrize("heard", [(), ("one",), ("three",)], ids=lambda heard: "".join(heard) or "nobody")
def test_a_new_owner_that_is_cut_off_before_others_have_heard(heard: tuple[str, ...], name: str) -> None:
    """It has the owner's key, and dies. Nobody adopts the session before its lease has ended, and what is published
    until then is for the session. heard: nodes that its Switch has reached. name: who adopts it follows from that."""
    brokers = serving()
    client = connected(brokers, "one", name, clean_start=False, expiry_s=1000)
    packet_id = client.subscribe("t", 2)
    brokers.run_until(lambda: client.acknowledged(packet_id))
    publishers = [connected(brokers, at, f"p-{at}") for at in ("one", "three")]
    brokers.run_for(0.5)
    takeovers, begun = brokers.processes["two"].cluster.holdings.takeovers, []
    complete = takeovers.complete

    async def is_cut_off_before(*args: Any) -> None:
        """The owner's key has changed."""
        for at in ("one", "three"):
            if at not in heard:
                brokers.network.cut("two", at)
        begun.append(True)
        await complete(*args)

    takeovers.complete = is_cut_off_before    # type: ignore[method-assign]
    client.connect(at="two", clean_start=False, expiry_s=1000)
    brokers.run_until(lambda: begun)
    brokers.run_for(0.1)
    brokers.kill("two")
    client.leave()
    sent: dict[str, list[bytes]] = {publisher.name: [] for publisher in publishers}
    for number in range(250):
        if number == 50:
            brokers.end_lease_of("two")
        for publisher in publishers:
            sent[publisher.name].append(b"%s %d" % (publisher.name.encode(), number))
            publisher.publish("t", sent[publisher.name][-1], 1 + number % 2)
        brokers.run_for(0.001 if 75 <= number < 225 else 0.02)      # every ms while it is adopted
    brokers.run_for(3.0)
    assert hop(brokers, client, "three").session_present
    brokers.run_for(2.0)
    for publisher in publishers:
        got = [payload for _, payload in client.messages if payload.startswith(publisher.name.encode())]
        assert got == sent[publisher.name]


@pytest.mark.parametrize("qos", [1, 2])
@pytest.mark.parametrize("to", ["one", "two", "one and back to three", "ended at one", "ended at three"])
def test_the_rest_comes_when_the_session_has_gone_on(to: str, qos: int) -> None:
    """A node was cut off, and the client was let in without what that one still held. What the old owner gets of that
    later is for the session, wherever it is. to: where it has gone on to."""
    brokers = serving()
    client = connected(brokers, "two", "c", clean_start=False, expiry_s=1000)
    packet_id = client.subscribe("t", qos)
    brokers.run_until(lambda: client.acknowledged(packet_id))
    publisher = connected(brokers, "one", "p", clean_start=False, expiry_s=1000)
    brokers.run_for(0.5)
    brokers.network.isolate("one")
    hop(brokers, client, "three")
    takeovers = brokers.processes["two"].cluster.holdings.takeovers
    send_tail = takeovers._send_tail

    async def sends_late(*args: Any, **how: Any) -> None:
        await brokers.processes["two"].process.driver.sleep(2.0)
        await send_tail(*args, **how)

    takeovers._send_tail = sends_late   # type: ignore[method-assign]
    publisher.publish("t", b"meanwhile", qos)       # to the old owner: it has heard of no other one
    brokers.run_for(0.1)
    brokers.network.heal()
    at, ends = to.split()[-1], "ended" in to
    if "back" in to:
        hop(brokers, client, "one")
    client.connect(at=at, clean_start=ends, expiry_s=1000)
    brokers.run_for(20.0)
    assert client.connected and client.at == at
    assert [payload for _, payload in client.messages] == [b"meanwhile"] * (not ends)
    nothing_is_left(brokers)


@pytest.mark.parametrize("qos", [1, 2])
def test_a_cut_of_an_earlier_takeover_says_nothing_of_this_one(qos: int) -> None:
    """A node is cut off when it has just cut for one takeover, and is back while the next one waits for it. What it
    sends between its two Cuts is for the owner in between, which hands it over."""
    brokers = serving()
    client = connected(brokers, "one", "c", clean_start=False, expiry_s=1000)
    packet_id = client.subscribe("t", qos)
    brokers.run_until(lambda: client.acknowledged(packet_id))
    publisher = connected(brokers, "one", "p", clean_start=False, expiry_s=1000)
    brokers.run_for(0.5)
    takeovers = {name: broker.cluster.holdings.takeovers for name, broker in brokers.processes.items()}
    client.connect(at="two", clean_start=False, expiry_s=1000)
    brokers.run_until(lambda: any(going.switched for going in takeovers["one"]._going.values()))
    brokers.network.isolate("one")
    brokers.run_until(lambda: client.connected)         # two waits for one no longer
    client.connect(at="three", clean_start=False, expiry_s=1000)
    brokers.run_until(lambda: any(going.switched for going in takeovers["two"]._going.values()))
    publisher.publish("t", b"between", qos)
    brokers.run_for(0.1)
    brokers.network.heal()
    brokers.run_for(30.0)
    assert client.connected and client.at == "three"
    assert [payload for _, payload in client.messages] == [b"between"]
    nothing_is_left(brokers)


@pytest.mark.parametrize("then", ["stays", "goes to one", "goes to two"])
def test_what_the_old_owner_published_while_it_was_cut_off_comes_once(then: str) -> None:
    """The client was let in without it. Its own copy and the one in the rest of the session are the same message."""
    brokers = serving()
    client = connected(brokers, "two", "c", clean_start=False, expiry_s=1000)
    packet_id = client.subscribe("t", 2)
    brokers.run_until(lambda: client.acknowledged(packet_id))
    publisher = connected(brokers, "two", "p", clean_start=False, expiry_s=1000)
    brokers.run_for(0.5)
    client.connect(at="three", clean_start=False, expiry_s=1000)
    brokers.run_until(lambda: brokers.processes["three"].cluster.holdings.takeovers.under_way)
    brokers.network.isolate("two")
    publisher.publish("t", b"late", 2)
    brokers.run_until(lambda: client.connected)
    if then == "goes to one":
        hop(brokers, client, "one")
    brokers.network.heal()
    if then == "goes to two":
        hop(brokers, client, "two")
    brokers.run_for(30.0)
    assert client.connected
    assert [payload for _, payload in client.messages] == [b"late"]
    nothing_is_left(brokers)


def test_what_a_former_owner_publishes_that_has_not_heard_of_the_next_one_comes_once() -> None:
    """It hears first that the session has gone on from there."""
    brokers = serving()
    client = connected(brokers, "one", "c", clean_start=False, expiry_s=1000)
    packet_id = client.subscribe("t", 2)
    brokers.run_until(lambda: client.acknowledged(packet_id))
    publisher = connected(brokers, "one", "p", clean_start=False, expiry_s=1000)
    brokers.run_for(0.5)
    client.connect(at="two", clean_start=False, expiry_s=1000)
    brokers.run_until(lambda: brokers.processes["two"].cluster.holdings.takeovers.under_way)
    brokers.network.stall("two", "one", back=False)
    brokers.run_until(lambda: client.connected)
    publisher.publish("t", b"before", 2)
    brokers.run_for(0.1)
    client.connect(at="three", clean_start=False, expiry_s=1000)
    brokers.run_until(lambda: brokers.processes["three"].cluster.holdings.takeovers.under_way)
    brokers.run_for(0.5)
    publisher.publish("t", b"behind", 2)
    brokers.run_for(0.5)
    brokers.network.heal()
    brokers.run_for(30.0)
    assert client.connected and client.at == "three"
    assert sorted(payload for _, payload in client.messages) == [b"before", b"behind"]
    nothing_is_left(brokers)


@pytest.mark.parametrize(("what", "publishes"), [(Switch, "one"), (Cut, "two")])
def test_what_is_late_of_an_earlier_takeover_between_others_says_nothing_of_this_one(
        what: type[Switch | Cut], publishes: str) -> None:
    """It comes to the owner when that one is handing the session over: what its own clients publish, and what a node
    sends that has not cut, counts there still."""
    brokers = serving()
    client = connected(brokers, "two", "c", clean_start=False, expiry_s=1000, keep_alive=0)
    packet_id = client.subscribe("t", 1)
    brokers.run_until(lambda: client.acknowledged(packet_id))
    publisher = connected(brokers, publishes, "p", clean_start=False, expiry_s=1000, keep_alive=0)
    brokers.run_for(0.5)
    takeovers = brokers.processes["one"].cluster.holdings.takeovers
    late: list[tuple[Any, Any]] = []
    handlers = brokers.processes["one"].cluster.peers.handlers
    hears = handlers[what]
    handlers[what] = lambda *heard: late.append(heard)
    hop(brokers, client, "three")
    handlers[what] = hears
    hop(brokers, client, "one")
    client.connect(at="three", clean_start=False, expiry_s=1000, keep_alive=0)
    brokers.run_until(lambda: takeovers._going)
    for heard in late:
        hears(*heard)
    publisher.publish("t", b"here", 1)
    brokers.run_for(40.0)
    assert client.connected and client.at == "three" and len(late) == 1
    assert b"here" in [payload for _, payload in client.messages]
    nothing_is_left(brokers)


@pytest.mark.parametrize("seed", some(3, range(1, 9)))
@pytest.mark.parametrize("qos", [1, 2])
def test_what_was_sent_to_an_owner_that_has_died_comes_although_the_session_has_gone_on(qos: int, seed: int) -> None:
    """Who sent it was cut off from all; then the session moved twice, and the first of its owners died."""
    brokers = serving(seed, names=(*NAMES, "four"))
    client = connected(brokers, "two", "c", clean_start=False, expiry_s=1000)
    packet_id = client.subscribe("t", qos)
    brokers.run_until(lambda: client.acknowledged(packet_id))
    publisher = connected(brokers, "one", "p", clean_start=False, expiry_s=1000, keep_alive=0)
    brokers.run_for(0.5)
    brokers.network.isolate("one")
    hop(brokers, client, "three")
    publisher.publish("t", b"kept", qos)
    brokers.run_for(0.1)
    client.connect(at="four", clean_start=False, expiry_s=1000)
    brokers.run_for(0.5)
    brokers.kill("two")
    brokers.run_for(random.Random(seed).choice((0.1, 3.0, 12.0)))
    if seed % 2:
        brokers.network.heal()
        brokers.run_for(random.Random(seed).choice((0.001, 0.002, 0.005, 1.0)))
    brokers.end_lease_of("two")
    brokers.run_for(random.Random(seed).choice((0.0, 1.0)))
    brokers.network.heal()
    brokers.run_for(60.0)
    if not client.open:
        client.connect(at="four", clean_start=False, expiry_s=1000)
        brokers.run_for(30.0)
    assert client.connected
    assert [packet.reason for packet in publisher.of(Puback if qos == 1 else Pubrec)] == [0]
    assert [payload for _, payload in client.messages] == [b"kept"]
    nothing_is_left(brokers)


def nothing_is_left(brokers: Brokers) -> None:
    """No session is on its way, or lacks anything, and all take messages from every node."""
    for broker in (each for each in brokers.processes.values() if each.process.alive):
        takeovers = broker.cluster.holdings.takeovers
        assert takeovers.under_way == 0 and not takeovers._late and not broker.node.broker.stored
        assert all(session.moving is None for session in broker.node.broker.sessions.values())
        assert broker.node.hub.origins.watching == 0


@pytest.mark.parametrize("seed", range(1, 6))
def test_a_client_that_moves_on_before_its_session_has_come_whole(seed: int) -> None:
    """The second takeover begins while the first waits for what others have sent."""
    brokers = serving(seed)
    client = connected(brokers, "one", "c", clean_start=False, expiry_s=1000)
    packet_id = client.subscribe("t", 2)
    brokers.run_until(lambda: client.acknowledged(packet_id))
    publishers = [connected(brokers, name, f"p-{name}") for name in NAMES]
    sent: dict[str, list[bytes]] = {publisher.name: [] for publisher in publishers}

    def publish() -> None:
        for publisher in publishers:
            sent[publisher.name].append(b"%s %d" % (publisher.name.encode(), len(sent[publisher.name])))
            publisher.publish("t", sent[publisher.name][-1], 2)

    publish()
    client.connect(at="two", clean_start=False, expiry_s=1000)
    brokers.run_until(lambda: brokers.processes["two"].cluster.holdings.takeovers.under_way)
    publish()
    client.connect(at="three", clean_start=False, expiry_s=1000)
    for _ in range(20):
        publish()
        brokers.run_for(0.002)
    brokers.run_until(lambda: client.at == "three" and client.connected)
    brokers.run_until(lambda: len(client.messages) >= sum(map(len, sent.values())))
    brokers.run_for(1.0)
    for name, payloads in sent.items():
        assert [payload for _, payload in client.messages if payload.startswith(name.encode())] == payloads
    assert [(b"/", b"c") in broker.node.broker.sessions for broker in brokers.processes.values()] == [
        False, False, True]


@pytest.mark.parametrize("wrong", [{"cluster": "another"}, {"node": "four"}, {"epoch": 1}, {"to_epoch": 1}],
                         ids=lambda wrong: str(*wrong))
@pytest.mark.parametrize(("method", "make"), [
    (TAKEOVER, lambda call: TakeoverCall(**call, owner_epoch=1, clean=True)),
    (TAIL, lambda call: TailCall(**call, last=True, part=b"", source=b"")),
    (TAKE, lambda call: TakeCall(**call)),
    (RETURN, lambda call: ReturnCall(**call, identity="")),
    (STORED, lambda call: ReturnCall(**call, identity=""))], ids=["takeover", "tail", "take", "return", "stored"])
def test_a_call_of_another_life_has_no_effect(method: str, make: Callable[[dict[str, Any]], Any],
                                              wrong: dict[str, Any]) -> None:
    """What a fenced node has still sent, or what is meant for the life before."""
    brokers = serving()
    one, two = (brokers.processes[name].cluster for name in ("one", "two"))
    client = connected(brokers, "two", "c", clean_start=False, expiry_s=1000)
    fields = one.peers.call_to(one.peers.peers["two"], (b"/", b"c"))
    said: list[CallFailed] = []

    async def send() -> None:
        try:
            async for _ in two.on_call(method, encode(make(fields | wrong)), None):
                pass
        except CallFailed as error:
            said.append(error)

    brokers.processes["two"].process.driver.start(send())
    brokers.run_until(lambda: said)
    assert "one of the two has restarted" in str(said[0]) and not said[0].reached
    assert client.connected
