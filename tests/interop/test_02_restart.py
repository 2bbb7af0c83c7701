"""Real clients while the broker ends and comes back on the same port and the same data."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from interop.conftest import Peer, peers
from interop.peers.base import Message, Session
from interop.peers.mosquitto import Mosquitto
from interop.peers.paho import Paho
from kit.broker import Broker
from kit.brokers import Brokers

MESSAGES = 600
KEPT_S = 300

Open = Callable[..., Session]


@pytest.fixture(scope="module")
def module_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    broker = Broker(tmp_path_factory.mktemp("restarted"), {"session.max_offline_queue_size": 5000})
    if not broker.ours:
        pytest.skip("needs a broker of ours")
    yield broker.start()
    broker.stop()


@pytest.fixture
def restarted(module_broker: Broker, brokers: Brokers) -> Broker:
    return brokers.use(module_broker)


# mosquitto_sub of version 5 is left out: it ends itself when a broker says goodbye, and after a reconnect it counts a
# repeated PUBLISH of QoS 2 twice against its own Receive Maximum of 20, calls that a protocol error, and leaves.
PEERS_OVER_RESTART = [peer for peer in peers(transports=("tcp",)) if peer.library is not Mosquitto or peer.version != 5]


def shown(value: object) -> str:
    return str(value) if isinstance(value, Peer) else value.__name__  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("peer", "end"),
    [
        *((peer, Broker.kill) for peer in PEERS_OVER_RESTART),
        *((peer, Broker.terminate) for peer in PEERS_OVER_RESTART if peer.version == 5),
    ],
    ids=shown,
)
def test_in_flight_over_a_restart(
    peer: Peer, end: Callable[[Broker], object], restarted: Broker, open_session: Open, topic: str
) -> None:
    """The broker dies while messages of QoS 2 are on their way in and out. Each arrives once; at QoS 1, where the
    library forgets what it had received, at least once."""
    qos = 2 if peer.library.exactly_once else 1
    publishing = peer if peer.library.resumes else Peer(Paho, peer.version, "tcp")
    kept = {"clean": False, "expiry_s": KEPT_S}
    subscriber = open_session(peer, "sub", of=restarted, filters=[(f"{topic}/#", qos)], **kept)
    publisher = open_session(publishing, "pub", of=restarted, **kept)
    payloads = [b"%d" % number for number in range(MESSAGES)]
    publisher.publish_all(f"{topic}/m", payloads, 2, wait=False)
    received = [subscriber.receive().payload for _ in range(20)]
    end(restarted)
    restarted.start()
    if not peer.library.returns:
        received += drain(subscriber)
        subscriber = open_session(peer, "sub", of=restarted, **kept)
    publisher.settle()
    publisher.publish(Message(f"{topic}/end", b"", qos))
    while (message := subscriber.receive()).topic != f"{topic}/end":
        received.append(message.payload)
    missing = set(payloads) - set(received)
    assert set(received) <= set(payloads)
    assert len(missing) <= subscriber.lost, sorted(missing, key=int)
    if peer.library.exactly_once:
        assert len(received) == len(set(received))


def drain(session: Session) -> list[bytes]:
    """What has been received already; the connection is gone."""
    found = []
    try:
        while True:
            found.append(session.receive(0).payload)
    except TimeoutError:
        return found


@pytest.mark.parametrize("version", [4, 5])
def test_retained_and_sessions_over_a_restart(version: int, restarted: Broker, open_session: Open, topic: str) -> None:
    """What is kept is kept: a retained message, a subscription whose client is away, what is published to it before it
    returns. What ended with its connection is gone."""
    peer = Peer(Paho, version, "tcp")
    kept = {"clean": False, "expiry_s": KEPT_S}
    open_session(peer, "away", of=restarted, filters=[(f"{topic}/+", 1)], **kept).close()
    first = open_session(peer, "first", of=restarted, filters=[(f"{topic}/clean", 1)])
    first.publish(Message(f"{topic}/retained", b"kept", 1, True))
    first.close()
    restarted.restart()
    second = open_session(peer, "second", of=restarted, filters=[(f"{topic}/retained", 0)])
    assert second.receive() == Message(f"{topic}/retained", b"kept", 0, True)
    second.publish(Message(f"{topic}/between", b"before the return", 1))
    away = open_session(peer, "away", of=restarted, **kept)
    assert away.receive() == Message(f"{topic}/retained", b"kept", 1)
    assert away.receive() == Message(f"{topic}/between", b"before the return", 1)
    again = open_session(peer, "first", of=restarted, **kept)
    again.publish(Message(f"{topic}/clean", b"for nobody but away", 1))
    assert away.receive().payload == b"for nobody but away"
    with pytest.raises(TimeoutError):
        again.receive(0)
