"""Who may log in to a cluster of processes: what is changed through one node holds on all."""
from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from kit.cluster import Cluster, fluxmq
from oracle.mqtt import Connack, Connect, Disconnect

from fluxmq.access.users import add_user

TTL_S = 6
BANNED, WRONG, NOT_AUTHORIZED = 0x8A, 0x86, 0x87


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    directory = tmp_path_factory.mktemp("cluster")
    for name in ("anna", "bert"):
        add_user(directory / "users", name, f"{name}'s")
    with Cluster(directory, 3, ttl_s=TTL_S, settings={
            "auth.cluster_users": True, "auth.cluster_permissions": True, "auth.ban_after": 3,
            "server.exempt_networks": "[]"}) as cluster:
        assert {login(cluster, number, "anna") for number in range(3)} == {WRONG}      # there is no user yet
        assert "2 users are added" in command(cluster, 1, "user", "import", str(directory / "users"))
        yield cluster


def command(cluster: Cluster, number: int, *words: str, given: str = "") -> str:
    """At a node; what it says. given: on standard input."""
    return fluxmq(*words, "--socket", str(cluster[number].directory / "data" / "admin.sock"), given=given)


def login(cluster: Cluster, number: int, user: str, password: str = "") -> int:
    """The reason code."""
    client = cluster.client(number)
    client.send(Connect(client_id=f"of {user} at {number}", username=user,
                        password=(password or f"{user}'s").encode()))
    reason: int = client.expect(Connack).reason
    client.close()
    return reason


def test_a_ban_holds_on_all_nodes_outlives_its_node_and_is_lifted_through_another(cluster: Cluster) -> None:
    assert login(cluster, 0, "anna") == 0       # forgets the login of the fixture
    for _ in range(3):
        assert login(cluster, 0, "anna", "wrong") == WRONG
    for number in range(3):
        cluster.wait(lambda number=number: login(cluster, number, "anna") == BANNED)  # type: ignore[misc]
        assert login(cluster, number, "bert") == 0
    cluster[0].kill()
    cluster[0].start()
    cluster.wait(cluster.everybody_serves)
    assert login(cluster, 0, "anna") == BANNED
    assert "anna" in command(cluster, 2, "ban", "lift", "127.0.0.1", "--user", "anna")
    for number in range(3):
        cluster.wait(lambda number=number: login(cluster, number, "anna") == 0)  # type: ignore[misc]
        assert "nobody is banned" in command(cluster, number, "ban", "list")


def test_users_are_added_changed_and_removed_through_any_node(cluster: Cluster) -> None:
    assert "carl may log in" in command(cluster, 0, "user", "add", "carl", "--password-stdin", given="carl's")
    clients = [cluster.client(number) for number in range(3)]
    for number, client in enumerate(clients):       # every node knows, now that the command has ended
        client.connect(f"stays at {number}", username="carl", password=b"carl's")
    assert "carl is changed" in command(cluster, 1, "user", "add", "carl", "--password-stdin", given="other")
    assert [login(cluster, number, "carl", "other") for number in range(3)] == [0, 0, 0]
    assert "carl" in command(cluster, 2, "user", "list")
    assert "carl is removed" in command(cluster, 2, "user", "remove", "--yes", "carl")
    for client in clients:
        client.expect(Disconnect, reason=NOT_AUTHORIZED)
    assert [login(cluster, number, "carl", "other") for number in range(3)] == [WRONG] * 3
    assert "no user carl" in command(cluster, 0, "user", "remove", "--yes", "carl")


def test_permissions_are_changed_through_any_node_and_reviewed_on_all(cluster: Cluster, tmp_path: Path) -> None:
    rules = tmp_path / "rules"
    rules.write_text("version: 1\nrules:\n- {allow: subscribe, topics: [kept, lost]}\n"
                     "- {allow: publish, topics: ['#']}\n")
    assert "bert has 2 rules" in command(cluster, 0, "permission", "set", "bert", "--rules", str(rules))
    clients = [cluster.client(number) for number in range(3)]
    for number, client in enumerate(clients):
        client.connect(f"reads at {number}", username="bert", password=b"bert's")
        client.subscribe("kept", "lost", "other", expect=[0, 0, NOT_AUTHORIZED])
    assert "bert has 3 rules" in command(
        cluster, 1, "permission", "set", "bert", "--allow", "all", "kept", "--allow", "publish", "lost",
        "--deny", "all", "vault/#")
    publisher = cluster.client(2)
    publisher.connect("writes", username="bert", password=b"bert's")
    for topic in ("lost", "kept"):
        publisher.publish(topic, b"x", 1)
    for client in clients:
        client.receive("kept", b"x")            # and not the one before it
    assert "vault/#" in command(cluster, 2, "permission", "list")
    assert "no rules in / any more" in command(cluster, 2, "permission", "remove", "--yes", "bert")
    publisher.publish("kept", b"x", 1, expect=NOT_AUTHORIZED)
    assert "nobody has permissions" in command(cluster, 0, "permission", "list")


def test_users_are_known_after_a_restart_of_all(cluster: Cluster) -> None:
    for number in range(3):
        cluster[number].kill()
    cluster.start()
    cluster.wait(cluster.everybody_serves)
    assert [login(cluster, number, "bert") for number in range(3)] == [0, 0, 0]
