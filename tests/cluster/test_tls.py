"""Three nodes with TLS between them everywhere: etcd's members, etcd's clients, the transport. Who has a certificate of
another authority is told so, and gets in nowhere."""
from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from kit.broker import START_SECONDS, BrokerDied
from kit.certs import CertificateAuthority, issue, make_ca
from kit.cluster import Cluster

VOTER = ("voter", True)
LONG_ENOUGH_S = 20.0    # for a node that does not become ready to say why; etcd lets it join after 5 s


def files(section: str, ca: CertificateAuthority, own: tuple[str, str]) -> dict[str, object]:
    certificate, key = own
    return {f"cluster.{section}.tls.cert_file": certificate, f"cluster.{section}.tls.key_file": key,
            f"cluster.{section}.tls.ca_file": str(ca.cert_file)}


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> CertificateAuthority:
    return make_ca(tmp_path_factory.mktemp("ours"))


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory, ours: CertificateAuthority) -> Iterator[Cluster]:
    nodes = Cluster(tmp_path_factory.mktemp("tls"), 3, scheme="https")
    for number in range(3):
        certify(nodes, number, ours)
    with nodes:
        yield nodes


def certify(cluster: Cluster, number: int, ca: CertificateAuthority, *, trusts: CertificateAuthority | None = None,
            sections: tuple[str, ...] = ("etcd", "transport")) -> None:
    """The node gets a certificate of its own."""
    own = issue(ca, f"n{number}", ip=["127.0.0.1"])
    for section in sections:
        cluster[number].settings.update(files(section, trusts or ca, own))


def test_three_nodes_are_one_broker(cluster: Cluster) -> None:
    subscribers = [cluster.client(number) for number in range(3)]
    for number, subscriber in enumerate(subscribers):
        subscriber.connect(f"s{number}")
        subscriber.subscribe("tls/#", qos=1)
    publisher = cluster.client(0)
    publisher.connect("p")
    publisher.publish("tls/x", b"encrypted", 1, retain=True)
    for subscriber in subscribers:
        subscriber.receive("tls/x", b"encrypted")
    hopper = cluster.client(1)
    kept = {"session_expiry_interval": 1000}
    hopper.connect("hopper", clean_start=False, properties=kept)
    hopper.subscribe("hop", qos=1)
    again = cluster.client(2)
    assert again.connect("hopper", clean_start=False, properties=kept).session_present
    assert not any("without TLS" in broker.stderr() for broker in cluster.brokers)


def test_a_node_joins_with_a_certificate_and_not_with_another_authority_s(
        cluster: Cluster, ours: CertificateAuthority, tmp_path: Path) -> None:
    theirs = make_ca(tmp_path / "theirs")
    newcomer = cluster.add()

    # Its own certificate does not fit the authority that it is told to trust: it finds that by itself.
    certify(cluster, 3, theirs, trusts=ours)
    with pytest.raises(BrokerDied, match="would be refused by the other nodes"):
        newcomer.start()

    newcomer.start_seconds = LONG_ENOUGH_S
    # It trusts its own authority only, so it refuses the others and they refuse it: it waits, and says why.
    certify(cluster, 3, theirs)
    with pytest.raises(BrokerDied) as refused:
        newcomer.start()
    assert "cannot join etcd yet" in str(refused.value) and "its certificate is refused here" in str(refused.value)
    assert cluster.votes(0).keys() == {"n0", "n1", "n2"}

    # etcd lets it in, and the transport does not: it serves nobody, and both sides say why.
    certify(cluster, 3, ours)
    certify(cluster, 3, theirs, sections=("transport",))
    with pytest.raises(BrokerDied) as alone:
        newcomer.start()
    assert "not of the authority in cluster.transport.tls.ca_file" in str(alone.value)
    assert "perhaps it refuses this node's certificate" in cluster[0].stderr() or (
        "not of the authority" in cluster[0].stderr())
    cluster.wait(lambda: "n3" not in cluster.nodes(0))

    newcomer.start_seconds = START_SECONDS
    certify(cluster, 3, ours)
    newcomer.start()
    cluster.wait(lambda: cluster.votes(3) == dict.fromkeys(cluster.names, VOTER))
    subscriber, publisher = cluster.client(3), cluster.client(1)
    subscriber.connect("late")
    subscriber.subscribe("tls/#", qos=1)
    subscriber.receive("tls/x", b"encrypted")
    publisher.connect("p2")
    publisher.publish("tls/late", b"1", 1)
    subscriber.receive("tls/late", b"1")
