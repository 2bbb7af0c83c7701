"""Real clients that go from node to node: paho, gmqtt, and Mosquitto's programs, in both versions. What a session has
been promised comes wherever its client goes on, and a publisher may be elsewhere for each of its messages.
"""
from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator

import pytest
from interop.conftest import Peer, peers
from interop.peers.base import Endpoint, Library, Message, Options, Session
from interop.peers.mosquitto import Mosquitto
from kit.cluster import Cluster
from kit.watch import metric

NODES = 3
KEPT_S = 1000
HOPS = 7                # each node twice, by DISCONNECT and without
HOPS_FEW = 4            # each node, and the first again
AT_ONCE = 10            # messages that a publisher publishes at one node
PATIENCE_S = 60.0       # only a failing test needs it

HOPPERS = [peer for peer in peers(transports=("tcp",)) if peer.library.hops]
each = pytest.mark.parametrize("peer", HOPPERS, ids=str)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("cluster"), NODES) as cluster:
        yield cluster
        for broker in cluster.brokers:
            broker.check()
            broker.kill()           # sooner over than a good end, which test_leaving.py shows


def node(cluster: Cluster, number: int) -> Endpoint:
    """Where a node is; nodes are counted in a circle."""
    return Endpoint(*cluster[number % NODES].address)


Open = Callable[..., Session]


@pytest.fixture
def open_at(cluster: Cluster, libraries: Callable[[type[Library]], Library],
            name: Callable[[str], str]) -> Iterator[Open]:
    """A session of a peer at a node: open_at(peer, 0, "sub", filters=[("a/#", 1)])."""
    opened: list[Session] = []
    names: dict[str, str] = {}

    def open_(peer: Peer, number: int, role: str, **options: object) -> Session:
        options["filters"] = tuple(options.get("filters", ()))          # type: ignore[arg-type]
        client_id = names.setdefault(role, name(role))
        session = libraries(peer.library).open(
            node(cluster, number), Options(client_id, version=peer.version, **options))     # type: ignore[arg-type]
        opened.append(session)
        return session

    yield open_
    for session in opened:
        session.drop()


def leave(session: Session, hop: int) -> None:
    """By DISCONNECT, or without, in turn."""
    session.close() if hop % 2 else session.drop()


class Publishing(threading.Thread):
    """Publishes numbered payloads below a topic, with QoS 1 and 2 in turn, AT_ONCE at each node, until `end`.
    under_way: it goes on without waiting for what it has published."""

    def __init__(self, cluster: Cluster, session: Session, topic: str, *, under_way: bool = False) -> None:
        super().__init__(daemon=True)
        self.payloads: dict[int, list[bytes]] = {1: [], 2: []}
        self.error: BaseException | None = None
        self._cluster, self._session, self._topic, self._under_way = cluster, session, topic, under_way
        self._over = threading.Event()
        self.hops = 0
        self.start()

    def run(self) -> None:
        try:
            while True:
                for qos, payloads in self.payloads.items():
                    more = [b"%d" % number for number in range(len(payloads), len(payloads) + AT_ONCE)]
                    payloads += more
                    self._session.publish_all(f"{self._topic}/{qos}", more, qos, wait=not self._under_way)
                if self._over.is_set():
                    break
                leave(self._session, self.hops)
                self.hops += 1
                self._session.go_on(node(self._cluster, self.hops))
            if self._under_way:
                self._session.settle()
        except BaseException as error:
            self.error = error

    def end(self) -> None:
        """It has published everything that it began, and all is acknowledged."""
        self._over.set()
        self.join(PATIENCE_S)
        assert not self.is_alive(), "a publisher does not come to its end"
        if self.error is not None:
            raise self.error


def up_to_the_end(subscriber: Session, topic: str) -> list[Message]:
    """What comes until the publisher's last message, behind which nothing can come."""
    found = []
    while (message := subscriber.receive()).topic != f"{topic}/end":
        found.append(message)
    return found


def judge(came: list[Message], sent: list[bytes], subscriber: Session, *, once: bool, publisher_repeats: bool) -> None:
    """Of messages of one QoS of one publisher. once: QoS 2 of a library that knows at the next node what it had at the
    last. publisher_repeats: it sends messages again itself: with QoS 1 each copy is a message of its own."""
    payloads = [message.payload for message in came]
    if once:
        assert payloads == sent
        return
    first = list(dict.fromkeys(payloads))
    assert first == [payload for payload in sent if payload in first], "the order is another"
    assert len(sent) - len(first) <= subscriber.lost
    if not publisher_repeats:
        seen = set[bytes]()
        for message in came:
            assert message.payload not in seen or message.dup is not False, f"{message} comes again without DUP"
            seen.add(message.payload)


@each
def test_a_session_and_its_publisher_hop(cluster: Cluster, peer: Peer, open_at: Open, topic: str) -> None:
    """Nothing acknowledged is lost; QoS 2 comes exactly once where the library knows at the next node what it had at
    the last; what comes a second time says so (DUP); and the order is the publisher's. Messages are under way when
    they go, from the publisher too if its library ends at the next node what it had begun at the last."""
    qos = 2 if peer.library.remembers else 1
    kept = {"clean": False, "expiry_s": KEPT_S}
    subscriber = open_at(peer, 0, "sub", filters=[(f"{topic}/#", qos)], **kept)
    publisher = open_at(peer, 0, "pub", **kept)
    publishing = Publishing(cluster, publisher, f"{topic}/m", under_way=peer.library.resumes)
    came: list[Message] = []
    for hop in range(HOPS):
        came += [subscriber.receive() for _ in range(AT_ONCE)]
        leave(subscriber, hop)
        subscriber.go_on(node(cluster, hop + 1))
    publishing.end()
    publisher.publish(Message(f"{topic}/end", b"", qos))
    came += up_to_the_end(subscriber, topic)
    for each_qos, payloads in publishing.payloads.items():
        judge([message for message in came if message.topic == f"{topic}/m/{each_qos}"], payloads, subscriber,
              once=each_qos == qos == 2, publisher_repeats=peer.library.resumes)


@pytest.mark.parametrize("peer", [peer for peer in HOPPERS if peer.library.resumes], ids=str)
def test_a_publisher_hops_with_messages_under_way(cluster: Cluster, peer: Peer, open_at: Open, topic: str) -> None:
    """It ends at the next node what it had begun at the last, and each node's subscriber gets QoS 2 once."""
    kept = {"clean": False, "expiry_s": KEPT_S}
    subscribers = [open_at(peer, number, f"sub{number}", filters=[(f"{topic}/#", 2)], **kept)
                   for number in range(NODES)]
    publisher = open_at(peer, 0, "pub", **kept)
    publishing = Publishing(cluster, publisher, f"{topic}/m", under_way=True)
    cluster.wait(lambda: publishing.hops >= HOPS or publishing.error)
    publishing.end()
    publisher.publish(Message(f"{topic}/end", b"", 2))
    for subscriber in subscribers:
        came = up_to_the_end(subscriber, topic)
        for qos, payloads in publishing.payloads.items():
            judge([message for message in came if message.topic == f"{topic}/m/{qos}"], payloads, subscriber,
                  once=qos == 2, publisher_repeats=True)


@each
def test_qos_2_comes_once_to_a_session_that_hops(cluster: Cluster, peer: Peer, open_at: Open, topic: str) -> None:
    """Also to a client that knows nothing of its past, if it has got what it had begun to get."""
    kept = {"clean": False, "expiry_s": KEPT_S}
    subscriber = open_at(peer, 0, "sub", filters=[(f"{topic}/#", 2)], **kept)
    publisher = open_at(peer, 1, "pub", **kept)
    payloads = [b"%d" % number for number in range(4 * HOPS_FEW)]
    for hop in range(HOPS_FEW):
        some = payloads[4 * hop:4 * hop + 4]
        publisher.publish_all(f"{topic}/m", some[:2], 2)
        assert [subscriber.receive().payload for _ in some[:2]] == some[:2]
        # PUBCOMP of the last one may be under way when a connection is dropped; its packet identifier then comes again.
        leave(subscriber, hop)
        publisher.publish_all(f"{topic}/m", some[2:], 2)
        leave(publisher, hop)
        publisher.go_on(node(cluster, hop + 2))
        subscriber.go_on(node(cluster, hop + 1))
        assert [subscriber.receive().payload for _ in some[2:]] == some[2:]
    subscriber.receive_nothing(publisher, f"{topic}/m", 2)


@each
def test_a_clean_session_ends_wherever_its_client_goes(peer: Peer, open_at: Open, topic: str) -> None:
    """Each connection gets what is published after its SUBACK, and nothing from before."""
    publisher = open_at(peer, 0, "pub")
    for hop in range(HOPS_FEW):
        subscriber = open_at(peer, hop, "sub", filters=[(f"{topic}/#", 1)])
        payloads = [b"%d to %d" % (number, hop) for number in range(3)]
        publisher.publish_all(f"{topic}/m", payloads, 1)
        assert [subscriber.receive().payload for _ in payloads] == payloads
        leave(subscriber, hop)
        publisher.publish(Message(f"{topic}/m", b"between", 1))


@each
def test_retained_messages_are_seen_at_other_nodes(cluster: Cluster, peer: Peer, open_at: Open, topic: str) -> None:
    """Sooner or later: a node hears of them from etcd."""
    for number, payload in enumerate((b"first", b"second", b"third")):
        open_at(peer, number, f"pub{number}").publish(Message(f"{topic}/kept", payload, 1, True))
        for other in range(NODES):
            assert retained(open_at, peer, other, topic, payload) == Message(f"{topic}/kept", payload, 1, True)
    counts = [metric(broker, "fluxmq_retained_messages") for broker in cluster.brokers]
    open_at(peer, 0, "gone").publish(Message(f"{topic}/kept", b"", 1, True))
    cluster.wait(lambda: [metric(broker, "fluxmq_retained_messages") for broker in cluster.brokers]
                 == [count - 1 for count in counts])


def retained(open_at: Open, peer: Peer, number: int, topic: str, payload: bytes) -> Message:
    """What a new subscription at a node gets, as soon as it is this."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        session = open_at(peer, number, "newcomer", filters=[(f"{topic}/#", 1)])
        try:
            message = session.receive(0.1)
        except TimeoutError:
            message = Message("", b"", 0)
        session.close()
        if message.payload == payload:
            return message
        assert time.monotonic() < deadline, "the retained message is not seen"


@each
def test_wills_are_heard_at_other_nodes(cluster: Cluster, peer: Peer, open_at: Open, topic: str) -> None:
    """Of a client that was lost, also when its session had moved before; not of one that said goodbye, unless that
    asked for it: 0x04, which is what mosquitto_sub says in 5.0."""
    watchers = [open_at(peer, number, f"watch{number}", filters=[(f"{topic}/will/#", 1)]) for number in range(NODES)]
    kept = {"clean": False, "expiry_s": KEPT_S}
    for role in ("polite", "lost", "moved"):
        mortal = open_at(peer, 0, role, filters=[(f"{topic}/none", 0)], **(kept if role == "moved" else {}),
                         will=Message(f"{topic}/will/{role}", b"dead", 1, False))
        if role == "moved":
            mortal.close()
            if peer.library is Mosquitto and peer.version == 5:
                hear(watchers, f"{topic}/will/{role}")
            mortal.go_on(node(cluster, 1))
        mortal.close() if role == "polite" else mortal.drop()
        if role != "polite" or (peer.library is Mosquitto and peer.version == 5):
            hear(watchers, f"{topic}/will/{role}")
    for watcher in watchers:
        watcher.receive_nothing(watcher, f"{topic}/will/fence")
        for other in watchers:
            if other is not watcher:
                assert other.receive().payload == b"fence"


def hear(watchers: list[Session], topic: str) -> None:
    """All of them, and once."""
    for watcher in watchers:
        assert watcher.receive() == Message(topic, b"dead", 1)


@each
def test_a_share_group_has_members_on_three_nodes(cluster: Cluster, peer: Peer, open_at: Open, topic: str) -> None:
    """Each message once, and each member its part; also when the members have gone a node further."""
    filters = [(f"$share/group/{topic}", 1)]
    kept = {"clean": False, "expiry_s": KEPT_S}
    members = [open_at(peer, number, f"member{number}", filters=filters, **kept) for number in range(NODES)]
    publisher = open_at(peer, 0, "pub")
    for turn in range(2):
        payloads = [b"%d of %d" % (number, turn) for number in range(60)]
        publisher.publish_all(topic, payloads, 1)
        parts: list[list[bytes]] = [[] for _ in members]
        deadline = time.monotonic() + PATIENCE_S
        while sum(map(len, parts)) < len(payloads):
            assert time.monotonic() < deadline, parts
            for member, part in zip(members, parts, strict=True):
                try:
                    while True:
                        part.append(member.receive(0.05).payload)
                except TimeoutError:
                    continue
        assert sorted(payload for part in parts for payload in part) == sorted(payloads)
        for part in parts:
            assert part == [payload for payload in payloads if payload in part]
            assert len(part) >= 10, parts
        for number, member in enumerate(members):
            leave(member, turn)
            member.go_on(node(cluster, number + 1))
