"""The journal of one node, applied on another as a line of it: the numbers of sessions, messages, queues, logs and
groups are the same on both, and neither takes the other's for its own."""
from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from kit.client import Client
from kit.journals import contents
from kit.node import Node
from kit.watch import wait_until
from oracle.mqtt import Publish, Pubrec
from oracle.stored import journal_record

from fluxmq._core.hub.persist import export_session
from fluxmq.engine.queues.admin import QueueAdmin
from fluxmq.engine.queues.recovery.line import QueueLine
from fluxmq.engine.queues.recovery.snapshot import digest
from fluxmq.engine.sessions.line import SessionLine

QUEUES = ("orders", "events")


def start(directory: Path, whose: str) -> Node:
    node = Node(directory, {"server.admin_socket": directory / "s"})
    for name, kind in zip(QUEUES, ("classic", "stream"), strict=True):
        node.call(lambda server, name=name, kind=kind:  # type: ignore[misc]
                  QueueAdmin(server.queues.manager).declare({"name": f"{name}-{whose}", "type": kind}))
    return node


def live_through(node: Node, whose: str) -> None:
    """Sessions that are away with messages queued and in flight, half a QoS 2 handshake, wills, what is retained, a
    queue of which one message is settled and another went back."""
    away, gone, sender = (Client(node.address, 5) for _ in range(3))
    lasting = {"session_expiry_interval": 3600}
    away.connect("away", clean_start=True, properties=lasting)
    away.subscribe("news/#", qos=2)
    gone.connect("gone", clean_start=True, properties=lasting)
    gone.subscribe("news/a", qos=1)
    gone.disconnect()
    sender.connect("sender", clean_start=True, properties=lasting)
    sender.publish("news/a", b"in flight, " + whose.encode(), 1)
    away.expect(Publish)
    away.drop()
    for number in range(5):
        sender.publish("news/a", b"queued %d, " % number + whose.encode(), 1 + number % 2)
    sender.publish(f"kept/{whose}", b"retained", 1, retain=True)
    sender.send(Publish(topic="news/b", payload=b"half", qos=2, packet_id=77))
    sender.expect(Pubrec, packet_id=77)
    for queue in QUEUES:
        for number in range(4):
            sender.publish(f"$queue/{queue}-{whose}", b"%d, " % number + whose.encode(), 1)
    consumer = Client(node.address, 5)
    consumer.connect("consumer", clean_start=True)
    consumer.subscribe(f"$queue/{QUEUES[0]}-{whose}", qos=1)
    consumer.receive(payload=b"0, " + whose.encode())
    consumer.expect(Publish)
    consumer.drop()
    sender.drop()
    # What they had in hand has gone back, and the journal has that.
    wait_until(lambda: node.call(lambda server: not server.poller.connections))
    wait_until(lambda: node.call(lambda server: server.store.journal.durable == server.store.journal.gathering - 1))


def sessions_in(server: Any) -> dict[bytes, Any]:
    return {name: (session.number, dict(session.subscriptions), session.queued, session.inflight)
            for (_, name), session in server.broker.sessions.items()}


def queues_in(server: Any) -> dict[str, str]:
    manager = server.queues.manager
    return {state.spec.name: digest(manager, state) for state in manager.states.values()}


def rows(sessions: Iterable[Any]) -> dict[bytes, bytes]:
    """Of each session what the view would have of it, but for its head and the messages themselves."""
    return {session.name: value for session in sessions for key, value in export_session(session, b"")
            if key.startswith(b"s")}


@pytest.fixture
def theirs(tmp_path: Path) -> Iterator[tuple[Node, dict[str, str]]]:
    """That node after a restart, and what its queues were before: segments have the stream now."""
    node = start(tmp_path / "theirs", "theirs")
    live_through(node, "theirs")
    shutil.copytree(tmp_path / "theirs" / "data" / "journal", tmp_path / "journal")  # a checkpoint ends at its stop
    queues = node.call(queues_in)
    node.stop()
    again = Node(tmp_path / "theirs", {"server.admin_socket": tmp_path / "theirs" / "s"})
    yield again, queues
    again.stop()


def test_it_is_applied_as_it_is(theirs: tuple[Node, dict[str, str]], tmp_path: Path) -> None:
    node, wanted_queues = theirs
    ours = start(tmp_path / "ours", "ours")
    try:
        live_through(ours, "ours")
        before = ours.call(lambda server: (sessions_in(server), queues_in(server)))
        wanted_sessions = node.call(sessions_in)
        assert {one[0] for one in before[0].values()} == {one[0] for one in wanted_sessions.values()}

        batches = [b"".join(journal_record(*one) for one in records) for _, records in contents(tmp_path / "journal")]

        def follow(server: Any) -> tuple[SessionLine, QueueLine]:
            line = server.hub.commits.open_line("their journal")
            queues = QueueLine(server.queues.manager, line)
            sessions = SessionLine(server.broker, line, lambda kind, number, body: None)
            for batch in batches:
                sessions.apply(batch)
                queues.apply(batch)
            return sessions, queues

        sessions, queues = ours.call(follow)
        assert ours.call(lambda server: {
            state.spec.name: digest(server.queues.manager, state) for state in queues.queues.values()}) == wanted_queues
        assert {session.name: (session.number, dict(session.subscriptions), session.queued, session.inflight)
                for session in sessions.sessions.values()} == wanted_sessions
        # Ours are as they were, and so is what clients find: nothing of theirs is reached by a name or a topic.
        assert ours.call(lambda server: (sessions_in(server), queues_in(server))) == before
        back = Client(ours.address, 5)
        assert back.connect("gone", clean_start=False, properties={"session_expiry_interval": 3600}).session_present
        assert [back.receive().payload for _ in range(6)] == [
            b"in flight, ours", *(b"queued %d, ours" % number for number in range(5))]
        back.expect_quiet()
        back.drop()
        # To the last bit of what is in flight: packet identifiers, sequences, numbers of messages.
        assert ours.call(lambda _: rows(sessions.sessions.values())) == node.call(
            lambda server: rows(server.broker.sessions.values()))
        left = ours.call(sessions_in)
    finally:
        ours.stop()
    again = Node(tmp_path / "ours", {"server.admin_socket": tmp_path / "ours" / "s"})
    try:
        assert again.call(sessions_in).keys() == left.keys()
        assert again.call(queues_in).keys() == before[1].keys()
    finally:
        again.stop()
