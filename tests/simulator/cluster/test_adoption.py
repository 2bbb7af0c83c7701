"""The persistent sessions of a node that dies: nothing acknowledged is lost to them, each publisher's order holds, and
never two nodes serve one, whoever dies when, and when the node is back."""
from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from kit.sizes import some
from msgspec.structs import replace
from simulator.cluster.brokers import Brokers, Client
from simulator.cluster.test_brokers import cluster
from simulator.cluster.test_kept import data, subscriptions
from simulator.cluster.test_takeover import NAMES, answers, connected, hop, one_serves

from fluxmq.cluster.keys import node_key
from fluxmq.cluster.messages import Adopted
from fluxmq.cluster.overview import Overview
from fluxmq.engine.sessions.transfer import Arrival

SESSION = b"/", b"c"


def serving(seed: int = 1, names: tuple[str, ...] = NAMES) -> Brokers:
    brokers = cluster(*names, seed=seed)
    brokers.world.checks.append(lambda: one_serves(brokers))
    brokers.start()
    return brokers


def end_lease(brokers: Brokers, name: str) -> None:
    """If it has one."""
    if node_key(name) in brokers.store.items:
        brokers.end_lease_of(name)


def died(brokers: Brokers, name: str, after_s: float = 0.3) -> None:
    """Killed; its lease ends some time later."""
    brokers.kill(name)
    brokers.run_for(after_s)
    brokers.end_lease_of(name)


def persistent(brokers: Brokers, at: str, name: str = "c", filters: tuple[tuple[str, int], ...] = (("t/#", 2),),
               ) -> Client:
    client = connected(brokers, at, name, clean_start=False, expiry_s=1000)
    for filter_, qos in filters:
        packet_id = client.subscribe(filter_, qos)
        brokers.run_until(lambda packet_id=packet_id: client.acknowledged(packet_id))  # type: ignore[misc]
    return client


def holders(brokers: Brokers, session: tuple[bytes, bytes] = SESSION) -> list[str]:
    return [broker.name for broker in brokers.processes.values()
            if broker.process.alive and session in broker.node.broker.sessions]


def back(brokers: Brokers, client: Client, choose: Callable[[], str]) -> None:
    """Connects, at the first node that lets it."""
    for _ in range(40):
        at = choose()
        if not brokers.processes[at].serving:
            brokers.run_for(0.5)
            continue
        answered = len(client.connacks) + 1
        client.connect(at=at, clean_start=False, expiry_s=1000)
        if brokers.world.holds_within(partial(answers, client, answered), 20.0) and not client.connacks[-1].reason:
            return
        brokers.run_for(0.5)
    raise AssertionError("no node lets the client connect")


def test_a_session_is_adopted_with_all_that_the_store_has() -> None:
    brokers = serving()
    client = persistent(brokers, "one", filters=(("t/#", 2), ("u/+", 1)))
    died(brokers, "one")
    brokers.run_until(lambda: holders(brokers))
    brokers.run_for(2.0)
    [holder] = holders(brokers)
    session = brokers.processes[holder].node.broker.sessions[SESSION]
    assert session.subscriptions == {b"t/#": (2, 0), b"u/+": (1, 0)} and session.data.version == 0
    found = data(brokers)
    assert found is not None and (found.node, found.away, found.lives) == (holder, True, ())
    other = next(name for name in ("two", "three") if name != holder)
    connack = hop(brokers, client, other)
    brokers.run_for(0.2)
    assert connack.session_present and holders(brokers) == [other]
    found = data(brokers)
    assert found is not None and not found.away and subscriptions(brokers) == {"t/#": (2, 0), "u/+": (1, 0)}


@pytest.mark.parametrize("qos", [1, 2])
@pytest.mark.parametrize("reader", ["two", "three"])
def test_what_is_published_meanwhile_waits_and_comes_in_order(qos: int, reader: str) -> None:
    brokers = serving()
    client = persistent(brokers, "one")
    publishers = [connected(brokers, at, f"p-{at}") for at in ("two", "three")]
    brokers.kill("one")
    sent: dict[str, list[bytes]] = {"two": [], "three": []}

    def publish(count: int) -> None:
        for publisher in publishers:
            for _ in range(count):
                sent[publisher.at].append(b"%s %d" % (publisher.at.encode(), len(sent[publisher.at])))
                publisher.publish("t/x", sent[publisher.at][-1], qos)

    publish(5)
    brokers.run_for(1.0)
    brokers.end_lease_of("one")
    publish(5)
    brokers.run_for(0.3)
    publish(5)
    assert not any(publisher.acknowledged(1) for publisher in publishers)
    brokers.run_for(3.0)
    publish(5)
    brokers.run_for(1.0)
    assert all(publisher.acknowledged(packet_id) for publisher in publishers for packet_id in range(1, 21))
    hop(brokers, client, reader)
    brokers.run_until(lambda: len(client.messages) == 40)
    brokers.run_for(1.0)
    for at, payloads in sent.items():
        assert [payload for _, payload in client.messages if payload.split()[0].decode() == at] == payloads


def test_two_nodes_that_adopt_do_not_wait_for_each_other() -> None:
    """Each has kept messages for sessions that the other adopts, and both direct them at the same moment: neither frame
    may be acknowledged only when the other is."""
    brokers = serving()
    clients = [persistent(brokers, "one", f"c{number}", ((f"t/{number}", 1),)) for number in range(8)]
    publishers = [connected(brokers, at, f"p-{at}") for at in ("two", "three")]
    brokers.kill("one")
    for publisher in publishers:
        for number in range(8):
            publisher.publish(f"t/{number}", publisher.at.encode(), 1)
    brokers.run_for(0.3)
    brokers.end_lease_of("one")
    brokers.run_for(5.0)
    assert {holders(brokers, (b"/", b"c%d" % number))[0] for number in range(8)} == {"two", "three"}
    assert all(publisher.acknowledged(packet_id) for publisher in publishers for packet_id in range(1, 9))
    for client in clients:
        hop(brokers, client, "two")
        brokers.run_until(lambda client=client: {payload for _, payload in client.messages} == {  # type: ignore[misc]
            b"two", b"three"})


def test_what_nobody_keeps_does_not_wait() -> None:
    """A session that ends with its connection ends with its node: a publish that it would get is acknowledged."""
    brokers = serving()
    connected(brokers, "one", "c").subscribe("t", 1)
    publisher = connected(brokers, "two", "p")
    brokers.run_for(0.5)
    brokers.kill("one")
    packet_id = publisher.publish("t", b"x", 1)
    brokers.run_for(0.5)
    assert not publisher.acknowledged(packet_id)
    brokers.end_lease_of("one")
    brokers.run_for(0.1)
    assert publisher.acknowledged(packet_id)


def test_a_subscribe_does_not_wait_for_a_dead_node_whose_sessions_are_kept() -> None:
    brokers = serving()
    persistent(brokers, "one")
    client = connected(brokers, "two", "s")
    brokers.kill("one")
    packet_id = client.subscribe("u", 1)
    brokers.run_for(0.2)
    assert not client.acknowledged(packet_id)
    brokers.end_lease_of("one")
    brokers.run_for(0.1)
    assert client.acknowledged(packet_id)


def test_a_clean_start_ends_what_was_adopted() -> None:
    brokers = serving()
    client = persistent(brokers, "one")
    publisher = connected(brokers, "two", "p")
    died(brokers, "one")
    packet_id = publisher.publish("t/x", b"kept", 1)
    client.connect(at="three", clean_start=True, expiry_s=50)
    brokers.run_until(lambda: client.connected)
    brokers.run_until(lambda: publisher.acknowledged(packet_id))
    brokers.run_for(1.0)
    assert not client.connacks[-1].session_present and not client.messages
    assert not subscriptions(brokers) and holders(brokers) == ["three"]
    brokers.start("one")
    brokers.run_for(2.0)
    assert holders(brokers) == ["three"]
    assert not list(brokers.processes["one"].node.broker.stored)
    assert not brokers.processes["three"].node.broker.sessions[SESSION].subscriptions


@pytest.mark.parametrize("seed", range(2))
def test_a_session_that_is_adopted_twice_uses_no_packet_identifier_that_its_client_has_not_released(seed: int) -> None:
    """A client takes a PUBLISH of QoS 2 for a repetition if it has not released its identifier, and passes it on to
    nobody."""
    brokers = serving(seed)
    client = persistent(brokers, "one")
    publisher = connected(brokers, "three", "p")
    died(brokers, "one")
    hop(brokers, client, "two")
    client.acks = False
    for number in range(20):
        publisher.publish("t/1", b"two %d" % number, 2)
    brokers.run_until(lambda: len(client.messages) == 20)
    assert len(client.unreleased) == 20
    brokers.run_for(0.5)
    died(brokers, "two")
    client.acks = True
    hop(brokers, client, "three")
    for number in range(20):
        publisher.publish("t/1", b"three %d" % number, 2)
    brokers.run_until(lambda: len(client.messages) >= 40)
    assert {payload for _, payload in client.messages[20:]} == {b"three %d" % number for number in range(20)}


def test_an_adopted_session_expires() -> None:
    brokers = serving()
    client = brokers.client("one", "c")
    client.connect(clean_start=False, expiry_s=5)
    brokers.run_until(lambda: client.connected)
    packet_id = client.subscribe("t", 1)
    brokers.run_until(lambda: client.acknowledged(packet_id))
    died(brokers, "one")
    brokers.run_for(3.0)
    assert len(holders(brokers)) == 1
    brokers.run_for(5.0)
    assert not holders(brokers) and data(brokers) is None and not subscriptions(brokers)
    brokers.start("one")
    brokers.run_for(1.0)
    assert not holders(brokers) and not list(brokers.processes["one"].node.broker.stored)


@pytest.mark.parametrize("while_away", [True, False])
def test_the_node_that_is_back_hands_over_what_it_held(while_away: bool) -> None:
    """Ahead of what the adopter has not sent; behind what it has."""
    brokers = serving()
    client = persistent(brokers, "one")
    client.leave()
    publisher = connected(brokers, "two", "p")
    for number in range(20):
        publisher.publish("t/x", b"%d" % number, 2)
    brokers.run_until(lambda: publisher.acknowledged(publisher.packet_id))
    died(brokers, "one")
    for number in range(20, 40):
        publisher.publish("t/x", b"%d" % number, 2)
    brokers.run_until(lambda: publisher.acknowledged(publisher.packet_id))
    if not while_away:
        hop(brokers, client, "three")
        brokers.run_until(lambda: len(client.messages) == 20)
    brokers.start("one")
    brokers.run_for(1.0)
    assert len(holders(brokers)) == 1 and not list(brokers.processes["one"].node.broker.stored)
    if while_away:
        hop(brokers, client, "three")
    brokers.run_until(lambda: len(client.messages) == 40)
    brokers.run_for(1.0)
    got = [int(payload) for _, payload in client.messages]
    assert got == [*range(40)] if while_away else got == [*range(20, 40), *range(20)]


@pytest.mark.parametrize("step", ["finish", "merge"])
def test_the_node_that_is_back_forgets_nothing_before_it_is_on_the_adopters_disk(
        monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    """step: after which the adopter's disk stands still."""
    brokers = serving()
    client = persistent(brokers, "one")
    client.leave()
    publisher = connected(brokers, "one", "p")
    publisher.publish("t/x", b"held", 1)
    brokers.run_until(lambda: publisher.acknowledged(publisher.packet_id))
    died(brokers, "one")
    brokers.run_for(2.0)
    [holder] = holders(brokers)
    done = getattr(Arrival, step)

    def stand_still(self: Arrival, *arguments: Any) -> None:
        brokers.processes[holder].node.write_journal = lambda: False        # type: ignore[method-assign]
        done(self, *arguments)

    monkeypatch.setattr(Arrival, step, stand_still)
    brokers.start("one")
    brokers.run_for(3.0)
    assert SESSION in brokers.processes["one"].node.broker.stored
    monkeypatch.undo()
    died(brokers, holder)
    brokers.run_for(2.0)
    hop(brokers, client, "one")
    brokers.run_until(lambda: client.messages == [("t/x", b"held")])


def adopted(brokers: Brokers, seen_by: str) -> dict[str, tuple[int, int]]:
    """(sessions, how many of them are adopted) of each node with a lease."""
    view = Overview(brokers.processes[seen_by].cluster, {}, None).snapshot()
    return {node.id: (node.sessions, node.adopted) for node in view.nodes}


def test_adopted_sessions_count_for_new_ones_and_are_never_refused() -> None:
    """Nor is what their former node hands over when it is back."""
    brokers = serving(names=("one", "two"))
    clients = [persistent(brokers, "one", f"c-{number}") for number in range(4)]
    for client in clients:
        client.leave()
    publisher = connected(brokers, "two", "p")
    publisher.publish("t/x", b"on one", 2)
    brokers.run_until(lambda: publisher.acknowledged(publisher.packet_id))
    assert adopted(brokers, "two") == {"one": (4, 0), "two": (1, 0)}
    broker = brokers.processes["two"].node.broker
    broker.limits = replace(broker.limits, sessions_max=3)
    died(brokers, "one")
    brokers.run_until(lambda: len(broker.sessions) == 5)
    brokers.run_for(1.0)
    assert adopted(brokers, "two") == {"two": (5, 4)}
    told = [fields for _, text, fields in brokers.processes["two"].log if text == (
        "the sessions of a node whose lease has ended are adopted")]
    assert [(one["node"], one["here"], one["elsewhere"]) for one in told] == [("one", 4, 0)]
    newcomer = brokers.client("two", "new")
    newcomer.connect()
    brokers.run_until(lambda: newcomer.connacks)
    assert newcomer.connacks[0].reason == 0x97
    assert hop(brokers, clients[0], "two").session_present
    brokers.run_for(0.5)
    assert adopted(brokers, "two") == {"two": (5, 3)}
    brokers.start("one")
    brokers.run_for(3.0)
    assert not list(brokers.processes["one"].node.broker.stored)
    assert adopted(brokers, "one") == {"one": (0, 0), "two": (5, 3)}
    for client in clients:
        if not client.open:
            assert hop(brokers, client, "two").session_present
        brokers.run_until(lambda client=client: client.messages == [("t/x", b"on one")])  # type: ignore[misc]
    brokers.run_for(0.5)
    assert adopted(brokers, "one") == {"one": (0, 0), "two": (5, 0)}


def test_a_node_that_is_back_at_once_takes_its_sessions_itself() -> None:
    brokers = serving()
    client = persistent(brokers, "one")
    publisher = connected(brokers, "two", "p")
    client.leave()
    for number in range(10):
        publisher.publish("t/x", b"%d" % number, 1)
    brokers.run_until(lambda: publisher.acknowledged(publisher.packet_id))
    brokers.kill("one")
    publisher.publish("t/x", b"10", 1)
    brokers.start("one")
    brokers.run_until(lambda: publisher.acknowledged(publisher.packet_id))
    assert holders(brokers) == ["one"]
    hop(brokers, client, "one")
    brokers.run_until(lambda: len(client.messages) == 11)
    assert [payload for _, payload in client.messages] == [b"%d" % number for number in range(11)]


def test_all_nodes_that_restart_take_what_each_has() -> None:
    brokers = serving()
    clients = {at: persistent(brokers, at, f"c-{at}", ((f"t/{at}", 1),)) for at in NAMES}
    publisher = connected(brokers, "one", "p")
    for client in clients.values():
        client.leave()
    for at in NAMES:
        publisher.publish(f"t/{at}", at.encode(), 1)
    brokers.run_until(lambda: publisher.acknowledged(publisher.packet_id))
    brokers.run_for(0.5)
    for name in NAMES:
        brokers.kill(name)
    brokers.start()
    for at in NAMES:
        assert holders(brokers, (b"/", f"c-{at}".encode())) == [at]
    for at, client in clients.items():
        hop(brokers, client, NAMES[NAMES.index(at) - 1])
        brokers.run_until(lambda client=client: client.messages)  # type: ignore[misc]


def test_a_node_that_never_comes_back_is_not_waited_for_when_all_have_restarted() -> None:
    brokers = serving()
    client = persistent(brokers, "one")
    for name in NAMES:
        brokers.kill(name)
    brokers.run_for(0.5)
    brokers.end_lease_of("one")
    brokers.start("two", "three")
    assert holders(brokers) in (["two"], ["three"])
    assert hop(brokers, client, "two").session_present


def test_sessions_from_before_a_node_was_in_a_cluster_are_kept() -> None:
    brokers = serving()
    client = persistent(brokers, "one")
    brokers.kill("one")
    # As a node without others has them: nothing in the store, no identity.
    for key in [key for key in brokers.store.items if b"/c/" in key]:
        del brokers.store.items[key]
    started = brokers.processes["one"].start
    broker = brokers.processes["one"]
    started()
    for held in broker.node.broker.stored.values():
        held.data.identity = ""
    brokers.run_until(lambda: broker.serving)
    brokers.run_for(1.0)
    assert holders(brokers) == ["one"] and subscriptions(brokers) == {"t/#": (2, 0)}
    identity = broker.node.broker.sessions[SESSION].data.identity
    found = data(brokers)
    assert identity and found is not None and found.identity == identity
    assert hop(brokers, client, "two").session_present


class History:
    """Publishers on every node, one persistent reader, and what each publisher was told. They go on where they were
    when their node is back."""

    def __init__(self, seed: int, at: str = "one") -> None:
        self.brokers = serving(seed)
        self.chance = random.Random(seed)
        self.reader = persistent(self.brokers, at, filters=(("t/1/#", 1), ("t/2/#", 2), ("t/+/x", 2)))
        self.publishers = {name: connected(self.brokers, name, f"p-{name}") for name in NAMES}
        self.sent: dict[tuple[str, int], list[bytes]] = {}
        self.waits: dict[tuple[str, int], tuple[bytes, Client]] = {}  # (node, packet identifier)
        self.acknowledged: set[bytes] = set()
        self.brokers.world.checks.append(self._look)

    def _look(self) -> None:
        for (name, packet_id), (payload, publisher) in list(self.waits.items()):
            if publisher.acknowledged(packet_id):
                self.acknowledged.add(payload)
                del self.waits[name, packet_id]

    def publish(self, at: str, count: int = 1) -> None:
        publisher = self.publishers[at]
        if not publisher.open:
            return
        for _ in range(count):
            qos = self.chance.choice((1, 2))
            series = self.sent.setdefault((at, qos), [])
            series.append(b"%s %d %d" % (at.encode(), qos, len(series)))
            packet_id = publisher.publish(f"t/{qos}/{'x' if qos == 2 else 'y'}", series[-1], qos)
            self.waits[at, packet_id] = series[-1], publisher

    def publish_somewhere(self) -> None:
        for _ in range(self.chance.randrange(4)):
            self.publish(self.chance.choice(NAMES))

    def pass_time(self, steps: int, longest_s: float = 0.1) -> None:
        for _ in range(steps):
            self.publish_somewhere()
            self.brokers.run_for(self.chance.choice((0.0, 0.001, 0.003, 0.01, longest_s)))

    def revive(self, *names: str) -> None:
        """They are started, and their publishers connect again."""
        for name in names:
            self.brokers.start(name)
            client = self.brokers.client(name, f"p-{name}")
            client.packet_id = self.publishers[name].packet_id
            client.connect()
            self.brokers.run_until(lambda client=client: client.connected)  # type: ignore[misc]
            self.publishers[name] = client

    def got(self) -> list[bytes]:
        return [payload for _, payload in self.reader.messages]

    def check(self, *, ordered: bool = True) -> None:
        """Every message that was acknowledged has come; those of each publisher in their order, if so wanted."""
        got = self.got()
        lost = self.acknowledged - set(got)
        assert not lost, f"lost: {sorted(lost)}"
        first = list(dict.fromkeys(got))
        assert set(first) <= {payload for series in self.sent.values() for payload in series}
        if ordered:
            for (at, qos), series in self.sent.items():
                found = [payload for payload in first if payload.startswith(b"%s %d " % (at.encode(), qos))]
                assert found == [payload for payload in series if payload in set(found)], f"order: {found}"
        for broker in self.brokers.processes.values():
            assert not list(broker.node.broker.stored) and not broker.cluster.holdings.adoption.parked
            assert not (broker.cluster.peers and broker.cluster.peers.parked)
        assert self.acknowledged, "nothing was acknowledged"


@pytest.mark.parametrize("seed", some(12, range(30)))
def test_a_node_dies_and_comes_back(seed: int) -> None:
    """The client is away all the time: so everything is in order in the end."""
    history = History(seed)
    brokers, chance = history.brokers, history.chance
    history.pass_time(8)
    history.reader.leave()
    history.pass_time(chance.randrange(8))
    brokers.kill("one")
    history.pass_time(chance.randrange(8))
    if chance.random() < 0.8:
        brokers.end_lease_of("one")
        history.pass_time(chance.randrange(12), chance.choice((0.1, 0.5)))
    history.revive("one")
    history.pass_time(chance.randrange(8))
    brokers.run_for(2.0)
    back(brokers, history.reader, lambda: chance.choice(NAMES))
    history.pass_time(4)
    brokers.run_for(3.0)
    assert not history.waits or all(at == "one" for at, _ in history.waits)
    history.check()
    repeated = [payload for payload in history.got() if history.got().count(payload) > 1]
    assert len(set(repeated)) <= 20             # only what was on its way when the node died


@pytest.mark.parametrize("seed", some(8, range(20)))
def test_the_client_hops_while_a_node_is_dead(seed: int) -> None:
    history = History(seed)
    brokers, chance = history.brokers, history.chance
    history.pass_time(5)
    died(brokers, "one", chance.choice((0.0, 0.2, 1.0)))
    revived = False
    for _ in range(4):
        history.pass_time(chance.randrange(6), chance.choice((0.01, 0.3)))
        if chance.random() < 0.6:
            back(brokers, history.reader, lambda: chance.choice(NAMES))
        if not revived and chance.random() < 0.4:
            revived = True
            history.revive("one")
    if not revived:
        history.revive("one")
    back(brokers, history.reader, lambda: chance.choice(NAMES))
    history.pass_time(5)
    brokers.run_for(4.0)
    history.check(ordered=False)


@pytest.mark.parametrize("seed", some(8, range(20)))
def test_an_adopter_dies_in_the_middle(seed: int) -> None:
    """At whatever step; both come back later, the adopter first or last."""
    history = History(seed)
    brokers, chance = history.brokers, history.chance
    history.pass_time(4)
    history.reader.leave()
    died(brokers, "one", chance.choice((0.0, 0.3)))
    second = chance.choice(("two", "three"))
    third = "three" if second == "two" else "two"
    history.pass_time(3, 0.1)
    brokers.run_for(0.55)
    for _ in range(chance.randrange(40)):
        history.publish_somewhere()
        brokers.run_for(chance.choice((0.0, 0.0005, 0.001, 0.003)))
    brokers.kill(second)
    for _ in range(5):
        history.publish(third)
        brokers.run_for(chance.choice((0.0, 0.1)))
    brokers.end_lease_of(second)
    for _ in range(chance.randrange(10)):
        history.publish(third)
        brokers.run_for(chance.choice((0.0, 0.1, 0.5)))
    order = ["one", second]
    chance.shuffle(order)
    for name in order:
        history.revive(name)
        history.pass_time(3)
    back(brokers, history.reader, lambda: chance.choice(NAMES))
    history.pass_time(3)
    brokers.run_for(4.0)
    history.check(ordered=False)


@pytest.mark.parametrize("seed", range(1, 4))
def test_an_adopter_dies_before_others_hear_of_its_session(seed: int) -> None:
    """The next adopter knows of two lives, and so do the nodes that publish: no message falls between their LifeCuts.
    With three nodes there would be nobody to ask, and so no time between them."""
    names = (*NAMES, "four")
    brokers = serving(seed, names)
    session = b"/", b"c%d" % seed
    reader = persistent(brokers, "one", f"c{seed}", (("t", 2),))
    reader.leave()
    publishers = {name: connected(brokers, name, f"p-{name}") for name in names[1:]}
    brokers.run_for(0.5)
    took: list[str] = []

    def is_cut_off_when_it_takes(name: str) -> None:
        adoption = brokers.processes[name].cluster.holdings.adoption
        subscriptions = adoption._subscriptions

        async def of(which: tuple[bytes, bytes]) -> dict[bytes, bytes]:
            if which == session and not took:
                took.append(name)
                for other in names:
                    if other != name:
                        brokers.network.cut(name, other)
            return await subscriptions(which)

        adoption._subscriptions = of    # type: ignore[method-assign]

    for name in names[1:]:
        is_cut_off_when_it_takes(name)
    died(brokers, "one")
    brokers.run_until(lambda: took)
    brokers.run_for(0.02)
    newer = brokers.processes[took[0]].cluster.membership.epoch
    died(brokers, took[0])
    brokers.run_for(0.55)
    rest = [name for name in names[1:] if name not in took]

    def hears_late_of_the_newer_life(name: str) -> None:
        handlers, driver = brokers.processes[name].cluster.peers.handlers, brokers.processes[name].process.driver
        on_adopted = handlers[Adopted]

        async def later(peer: Any, message: Any) -> None:
            await driver.sleep(0.02)
            on_adopted(peer, message)

        def heard(peer: Any, message: Any) -> None:
            if message.life == newer:
                driver.start(later(peer, message))
            else:
                on_adopted(peer, message)

        handlers[Adopted] = heard

    for name in rest:
        hears_late_of_the_newer_life(name)
    sent: dict[str, list[bytes]] = {name: [] for name in rest}
    for number in range(150):           # from before the session is adopted again until both lives are settled
        for name in rest:
            sent[name].append(b"%s %d" % (name.encode(), number))
            publishers[name].publish("t", sent[name][-1], 1 + number % 2)
        brokers.run_for(0.001)
    brokers.run_for(2.0)
    back(brokers, reader, lambda: rest[0])
    brokers.run_for(2.0)
    for name in rest:
        assert [payload for _, payload in reader.messages if payload.startswith(name.encode())] == sent[name]


@pytest.mark.parametrize("seed", range(10))
def test_the_node_dies_while_it_comes_back(seed: int) -> None:
    history = History(seed)
    brokers, chance = history.brokers, history.chance
    history.pass_time(4)
    history.reader.leave()
    history.pass_time(4)
    died(brokers, "one")
    history.pass_time(chance.randrange(10), 0.3)
    for _ in range(3):
        brokers.processes["one"].start()
        for _ in range(chance.randrange(60)):
            brokers.run_for(chance.choice((0.0005, 0.001, 0.005, 0.02)))
        victim = chance.choice(("one", "one", "two"))
        brokers.kill(victim)
        history.publish("three")
        brokers.run_for(chance.choice((0.0, 0.3, 1.0)))
        end_lease(brokers, victim)
        if victim == "two":
            history.revive("two")
            brokers.run_until(lambda: brokers.processes["one"].serving)
            brokers.kill("one")
            end_lease(brokers, "one")
    history.revive("one")
    history.pass_time(4)
    back(brokers, history.reader, lambda: chance.choice(NAMES))
    brokers.run_for(4.0)
    history.check(ordered=False)


@pytest.mark.parametrize("number", range(20))
def test_a_session_is_adopted_while_its_rest_is_sent_to_the_node_that_is_gone(number: int) -> None:
    """The new owner stands still when it has the session, and not all that was queued meanwhile. An attempt to send
    that fails while the adopter takes the session over."""
    brokers = serving(number)
    brokers.writer_s = 0.2
    client = persistent(brokers, "three", f"c{number}")
    publisher = connected(brokers, "one", "p")
    client.connect(at="two", clean_start=False, expiry_s=1000)
    brokers.run_for(0.45)
    brokers.processes["two"].process.pause()
    brokers.run_for(4.0)
    for source, target in (("one", "three"), ("three", "one")):
        brokers.network.link(source, target).delay_ms = (400, 400)
    publisher.publish("t/1", b"x", 1)
    end_lease(brokers, "two")
    brokers.run_for(15.0)
    client.connect(at="one", clean_start=False, expiry_s=1000)
    brokers.run_until(lambda: client.messages, 60.0)
    assert client.messages == [("t/1", b"x")]
