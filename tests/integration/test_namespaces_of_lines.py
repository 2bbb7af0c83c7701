"""Namespaces whose numbers are not the same everywhere: in the journal of another node that is applied here as a line
of it, and in a directory of an earlier version that crashes before its first checkpoint."""
from __future__ import annotations

import shutil
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import pytest
from kit.journals import contents
from kit.left_by_crash import copy_data
from kit.node import Node
from kit.tenant_plans import interleave, setting
from kit.tenants import Tenant, specs_of
from oracle.stored import journal_record
from stored.make import HERE, SETTINGS, VHOSTS, unpack

from fluxmq.engine.queues.admin import QueueAdmin
from fluxmq.engine.queues.recovery.line import QueueLine
from fluxmq.engine.sessions.line import SessionLine

LIFE: list[tuple[Any, ...]] = [
    *setting(), ("leave", "c0", "disconnect"),
    *(("publish", f"t/{at % 2 + 1}", 1, at % 2 == 0, at) for at in range(1, 9)),
    ("put", "j1", 20, 1, False), ("send", "x0", "k", {}, True, 22)]


def numbers(node: Node) -> dict[str, int]:
    return node.call(lambda server: {one.text: one.number for one in server.hub.namespaces.values()})


def start(directory: Path, hosts: str) -> Node:
    return Node(directory, {"server.amqp091.plain.addr": "127.0.0.1:0", "amqp091.virtual_hosts": hosts,
                            "server.admin_socket": directory / "s"})


def test_what_another_node_says_is_in_the_namespaces_of_its_names(tmp_path: Path) -> None:
    theirs = start(tmp_path / "theirs", "[/, a, b]")
    try:
        for name in ("/", "a", "b"):
            for spec in specs_of(name):
                theirs.call(lambda server, spec=spec:       # type: ignore[misc]
                            QueueAdmin(server.queues.manager).declare(spec))
        tenants = [Tenant(name, theirs.listens("mqtt.tcp.plain"), theirs.listens("amqp091.plain"))
                   for name in ("/", "a", "b")]
        interleave(tenants, [LIFE] * 3, Random(1))
        for one in tenants:
            one.abandon()
        theirs.settle()
        shutil.copytree(tmp_path / "theirs" / "data" / "journal", tmp_path / "journal")
        wanted = theirs.call(lambda server: (
            {(one.namespace.text, one.name): one.number for one in server.broker.sessions.values()},
            {(state.queue.namespace.text, state.spec.namespace, state.queue.name): state.queue.depth
             for state in server.queues.manager.states.values()},
            {one.text: sorted((topic, kept.payload) for topic, kept in one.topics.retained)
             for one in server.hub.namespaces.values()}))
        their_numbers = numbers(theirs)
    finally:
        theirs.stop()
    ours = start(tmp_path / "ours", "[/, other, b]")
    try:
        batches = [b"".join(journal_record(*one) for one in records)
                   for _, records in contents(tmp_path / "journal")]

        def follow(server: Any) -> Any:
            line = server.hub.commits.open_line("their journal")
            queues = QueueLine(server.queues.manager, line)
            sessions = SessionLine(server.broker, line, lambda kind, number, body: None)
            for batch in batches:
                sessions.apply(batch)
                queues.apply(batch)
            return ({(one.namespace.text, one.name): one.number for one in sessions.sessions.values()},
                    {(state.queue.namespace.text, state.spec.namespace, state.queue.name): state.queue.depth
                     for state in queues.queues.values()},
                    {one.text: sorted((topic, kept.payload) for topic, kept in one.topics.retained)
                     for one in server.hub.namespaces.values() if one.text != "other"})

        found = ours.call(follow)
        assert numbers(ours)["b"] == their_numbers["b"] and numbers(ours)["a"] != their_numbers["a"]
        assert ours.call(lambda server: server.hub.namespaces[b"other"].number) == their_numbers["a"]
        assert found == wanted
        assert ours.call(lambda server: [(one.sessions, one.queues) for one in server.hub.namespaces.values()]) == [
            (0, 0)] * 4, "what only follows counts in no namespace"
        assert not ours.call(lambda server: list(server.hub.namespaces[b"other"].topics.retained))
    finally:
        ours.stop()


@pytest.mark.parametrize("archive", sorted(HERE.glob("*.tar.xz")), ids=lambda one: one.name.partition(".")[0])
def test_an_upgrade_that_crashes_before_its_first_checkpoint(tmp_path: Path, archive: Path) -> None:
    """Each start gives the namespaces that an earlier version had hidden in names the same numbers, whatever the order
    in which the configuration names them then."""
    unpack(archive, tmp_path / "0")
    settings = {**SETTINGS, "server.admin_socket": tmp_path / "s"}
    found: list[Any] = []
    for turn, hosts in enumerate(("[/, other]", "[/, late, other]", "[/, later, late, other]")):
        directory = tmp_path / str(turn)
        node = Node(directory, {**settings, "amqp091.virtual_hosts": hosts})
        try:
            for vhost in VHOSTS:        # something new of each, in the journal by its number
                one = Tenant(vhost, node.listens("mqtt.tcp.plain"), node.listens("amqp091.plain"))
                one.play(("connect", f"new{turn}", False, None))
                one.play(("publish", f"new/{turn}", 1, True, turn + 1))
                one.play(("exchange", f"new{turn}", "topic", True))
                one.play(("queue", f"new{turn}", True, {}))
                one.abandon()
            node.settle()
            found.append((numbers(node), node.call(lambda server: {
                one.text: ({name for where, name in server.broker.sessions if where == one.name},
                           {name: state.queue.depth for (where, name), state in server.queues.manager.queues.items()
                            if where == one.name},
                           {topic for topic, _ in one.topics.retained},
                           set(server.amqp091.exchanges.add_vhost(one.name).exchanges))
                for one in server.hub.namespaces.values() if one.text in VHOSTS})))
            copy_data(directory / "data", tmp_path / str(turn + 1) / "data")      # as a crash leaves it
        finally:
            node.stop()
    for former, later in pairwise(found):
        assert former[0].items() <= later[0].items()
        for vhost in VHOSTS:
            for was, now in zip(former[1][vhost], later[1][vhost], strict=True):
                assert (was.items() <= now.items()) if isinstance(was, dict) else was <= now
    for vhost in VHOSTS:
        sessions, queues, retained, exchanges = found[-1][1][vhost]
        new = {f"new{turn}".encode() for turn in range(3)}
        assert new <= sessions and new <= queues.keys() and new <= exchanges
        assert {topic for topic in retained if topic.startswith(b"new/")} == {b"new/%d" % turn for turn in range(3)}
        assert (b"away" in sessions) == (vhost == "/") and {b"jobs", b"dead"} <= queues.keys()
