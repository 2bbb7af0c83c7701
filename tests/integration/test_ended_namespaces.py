"""A namespace that ended, and one of the same name made after it: nothing of the old one is in the new one, at once and
after a restart, whether a checkpoint was taken between its life and its end, after its end, or never."""
from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest
from kit.left_by_crash import crashed
from kit.node import Node
from kit.tenant_plans import interleave, setting, state_of
from kit.tenants import Tenant, specs_of

from fluxmq.engine.queues.admin import QueueAdmin

LIFE: list[tuple[Any, ...]] = [
    *setting(), ("leave", "c0", "disconnect"), *(("publish", f"t/{at % 2 + 1}", at % 3, at % 2 == 0, at)
                                                 for at in range(1, 9)),
    ("put", "j1", 20, 1, False), ("put", "j0", 21, 0, True), ("send", "x0", "k", {}, True, 22),
    ("publish", "deep/a/b", 1, True, 23), ("leave", "c1", "disconnect"), ("leave", "w0", "drop")]


def start(directory: Path) -> Node:
    return Node(directory, {"server.amqp091.plain.addr": "127.0.0.1:0", "amqp091.virtual_hosts": "[/, a, b]",
                            "server.admin_socket": directory / "s"})


def tenant(node: Node, name: str) -> Tenant:
    return Tenant(name, node.listens("mqtt.tcp.plain"), node.listens("amqp091.plain"))


def declare(node: Node, name: str) -> None:
    for spec in specs_of(name):
        node.call(lambda server, spec=spec: QueueAdmin(server.queues.manager).declare(spec))     # type: ignore[misc]


def live(node: Node, *names: str) -> None:
    """Tenants that fill their namespaces and go."""
    tenants = [tenant(node, name) for name in names]
    interleave(tenants, [LIFE] * len(tenants), Random(1))
    for one in tenants:
        for client in (*one.clients.values(), one.publisher):
            client.drop()
        one.wire.close()
    node.settle()


def end(server: Any, name: bytes) -> None:
    """As an operator does it: its content first."""
    for address, session in list(server.broker.sessions.items()):
        if address[0] == name:
            server.broker.end_session(session)
    for address in [address for address in server.queues.manager.queues if address[0] == name]:
        server.queues.manager.delete(address)
    server.amqp091.exchanges.end_vhost(name)
    server.hub.namespaces.end(server.hub.namespaces[name])


def counts(node: Node) -> Any:
    return node.call(lambda server: (server.hub.retained.count, server.hub.retained.bytes))


def states(node: Node) -> dict[str, Any]:
    return node.call(lambda server: {name: state_of(server, name) for name in ("/", "a", "b")})


def checkpoint(node: Node) -> None:
    node.wait(lambda server: server.keeper.checkpoint())


def nothing(_: Node) -> None:
    """No checkpoint."""


@pytest.mark.parametrize("before", [nothing, checkpoint], ids=["in the journal", "in the view"])
@pytest.mark.parametrize("after", [nothing, checkpoint], ids=["ended in the journal", "ended in the view"])
@pytest.mark.parametrize("anew", [False, True], ids=["gone", "made anew"])
def test_nothing_comes_back(tmp_path: Path, before: Callable[[Node], None], after: Callable[[Node], None],
                            anew: bool) -> None:
    node = start(tmp_path / "first")
    try:
        for name in ("/", "a", "b"):
            declare(node, name)
        live(node, "/", "a", "b")
        before(node)
        counted = counts(node)
        number = node.call(lambda server: server.hub.namespaces[b"a"].number)
        node.call(lambda server: end(server, b"a"))
        if anew:
            node.call(lambda server: server.hub.namespaces.add(b"a"))
            declare(node, "a")
            assert node.call(lambda server: server.hub.namespaces[b"a"].number) != number
            live(node, "a")
            assert counts(node)[0] == counted[0]
        after(node)
        wanted, counted = (states(node) if anew else None), counts(node)
        directory = crashed(node, tmp_path / "second")
    finally:
        node.stop()
    for target in ("third", "fourth"):          # a second start finds what the first one has written
        node = start(directory)
        try:
            assert counts(node) == counted
            if wanted is not None:
                assert states(node) == wanted
            else:
                assert "a" in node.call(lambda server: [one.text for one in server.hub.namespaces.values()])
                found = node.call(lambda server: state_of(server, "a"))
                assert not any(found[key] for key in ("sessions", "groups", "retained", "queues")), found
                assert found["counted"] == (0, 0)
            relays(node)
            if target == "third":
                checkpoint(node)
                rows(node)
            directory = crashed(node, tmp_path / target)
        finally:
            node.stop()


def relays(node: Node) -> None:
    """What MQTT clients of "a" publish goes to exchanges bound to its amq.topic."""
    one = tenant(node, "a")
    one.play(("queue", "probe", True, {}))
    one.play(("exchange", "probed", "fanout", True))
    one.play(("bind", "probe", "probed", "", {}, True))
    one.play(("bind_exchange", "probed", "amq.topic", "probe.#", True))
    one.play(("publish", "probe/1", 1, False, 77))
    one.play(("get", "probe", "no_ack"))
    assert one.said[-1] == ("get", 77)
    one.play(("queue_delete", "probe"))
    one.play(("exchange_delete", "probed", False))
    one.publisher.drop()
    one.wire.close()


def rows(node: Node) -> None:
    """The view has rows only of namespaces that are."""
    node.settle()
    found = node.call(lambda server: [key for key, _ in server.store.load()])
    there = node.call(lambda server: {one.number for one in server.hub.namespaces.values()})
    assert {int.from_bytes(key[1:9], "big") for key in found if key[:1] == b"t"} <= there
