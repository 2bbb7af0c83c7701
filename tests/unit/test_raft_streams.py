"""Streams of Raft's messages between nodes (cluster/raft/streams.py), over the simulated network; and over a
transport whose streams are as busy as a test says."""
from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from itertools import pairwise
from typing import Any

import msgspec
import pytest
from oracle import raft as oracle
from simulator.cluster.machines import Machines, Process
from simulator.cluster.network import Network
from simulator.cluster.transport import SimStreamOut, SimTransport

from fluxmq._core.errors import UsageError
from fluxmq._core.raft.messages import Entry, Message, MessageKind
from fluxmq._core.raft.wire import encode_frames, encode_replicas
from fluxmq.cluster.messages import Hello
from fluxmq.cluster.ports import StreamHandler, Transport
from fluxmq.cluster.raft.streams import BACKLOG_BYTES, FRAME_BYTES, HELLO_REPLICAS_BYTES, RaftStreams
from fluxmq.cluster.raft.words import (
    OwnReplica,
    RaftAnswer,
    RaftHello,
    encode,
    is_raft,
    raft_answer_of,
    raft_hello_of,
    replicas_of,
)

INCARNATION = 5
LATER_S = 30.0          # every stream that can be there is, and every broken one was noticed


class Node:
    """A node with a replica of group 1, whose number is the digit in its name, and what its streams have told."""

    def __init__(self, name: str, transport: Transport, process: Process, *, life: int = 1) -> None:
        self.name = name
        self.cluster = "c"
        self.number = int(name[1:])
        self.replicas = [OwnReplica(1, INCARNATION, self.number, life)]
        self.got: list[tuple[str, int, Message]] = []
        self.said: list[tuple[str, list[OwnReplica]]] = []
        self.lost: list[str] = []
        self.logged: list[tuple[str, str, str]] = []
        self.streams = RaftStreams(
            node=name, disk=f"disk of {name}", life=life, transport=transport, driver=process.driver,
            cluster=lambda: self.cluster, replicas=lambda: list(self.replicas), on_messages=self._on_messages,
            on_replicas=lambda node, replicas: self.said.append((node, replicas)), on_lost=self.lost.append,
            log=lambda level, cause, text, fields: self.logged.append((level, cause, fields["node"])))

    def _on_messages(self, node: str, messages: list[tuple[int, Message]]) -> None:
        assert messages
        self.got.extend((node, group, message) for group, message in messages)

    def vote(self, other: str, term: int = 1) -> Message:
        """From this node's replica to another node's."""
        return Message(MessageKind.VOTE, int(other[1:]), term, sender=self.number, index=1, log_term=1)

    def heartbeat(self, other: str, term: int = 1) -> Message:
        return Message(MessageKind.HEARTBEAT, int(other[1:]), term, sender=self.number)

    def append(self, other: str, size: int, index: int = 0) -> Message:
        return Message(MessageKind.APPEND, int(other[1:]), 1, sender=self.number, index=index,
                       entries=[Entry(1, 1, bytes(size))])

    def say(self, other: str, *messages: Message, group: int = 1) -> None:
        """In one turn."""
        self.streams.send(other, group, list(messages))
        self.streams.flush()

    def terms(self, other: str) -> list[int]:
        """Of the messages that came from there."""
        return [message.term for node, _, message in self.got if node == other]


class NoCalls:
    async def on_call(self, method: str, body: bytes, identity: str | None) -> AsyncIterator[bytes]:
        yield b""


class Cluster:
    """Nodes n1, n2, … at "n1:1", "n2:1", … of a simulated network. ready: each dials all others. dials: node, and when
    it dialled."""

    def __init__(self, nodes: int = 2, *, ready: bool = True) -> None:
        self.world = Machines(7)
        self.network = Network(self.world)
        self.nodes: dict[str, Node] = {}
        self.transports: dict[str, SimTransport] = {}
        self.dials: list[tuple[str, int]] = []
        self.addresses = {f"n{number}": f"n{number}:1" for number in range(1, nodes + 1)}
        for name in self.addresses:
            self.world.process(name)
            self.start(name)
        if ready:
            for node in self.nodes.values():
                node.streams.set_nodes(self.addresses)
            self.world.run_for(1)

    def start(self, name: str, *, listens: bool = True, handler: Callable[[Node], StreamHandler] | None = None) -> Node:
        """Another life of a node."""
        process = self.world.processes[name]
        transport = self.transports[name] = SimTransport(process, self.network, f"{name}:1")
        dial = transport.dial

        def dialled(address: str, hello: bytes) -> SimStreamOut:
            self.dials.append((name, self.world.now_ms))
            return dial(address, hello)

        transport.dial = dialled        # type: ignore[method-assign]
        node = self.nodes[name] = Node(name, transport, process, life=process.life)
        if listens:
            self.listen(name, node.streams if handler is None else handler(node))
        return node

    def listen(self, name: str, handler: StreamHandler) -> None:
        self.world.processes[name].driver.start(self.transports[name].start(NoCalls(), handler))
        self.world.run_for(0.001)

    def again(self, name: str) -> Node:
        """Killed, and started again; it dials all others."""
        process = self.world.processes[name]
        process.kill()
        process.start()
        node = self.start(name)
        node.streams.set_nodes(self.addresses)
        return node


# ── nodes in a network ───────────────────────────────────────────────────────────────────────────────────────

@pytest.mark.parametrize("count", [2, 3])
def test_each_hears_what_the_others_have_and_say(count: int) -> None:
    cluster = Cluster(count)
    for node in cluster.nodes.values():
        for other in cluster.nodes.values():
            if other is not node:
                said = [replicas for name, replicas in node.said if name == other.name]
                assert said and said == [other.replicas] * len(said)    # in its hello, or in its answer before that
                node.say(other.name, node.vote(other.name, 3))
    cluster.world.run_for(1)
    for node in cluster.nodes.values():
        assert sorted(name for name, _, _ in node.got) == sorted(cluster.nodes.keys() - {node.name})
        assert {(group, message.kind, message.term) for _, group, message in node.got} == {(1, MessageKind.VOTE, 3)}
        assert (node.streams.strange, node.streams.dropped, node.lost, node.logged) == (0, 0, [], [])


def test_much_in_both_directions_keeps_its_order() -> None:
    cluster = Cluster()
    one, two = cluster.nodes.values()
    for turn in range(200):
        for node, other in ((one, two), (two, one)):
            node.say(other.name, node.append(other.name, 30_000, turn), node.append(other.name, 0, 1000 + turn))
        if turn % 7 == 0:
            cluster.world.run_for(0.003)
    cluster.world.run_for(LATER_S)
    expected = [index for turn in range(200) for index in (turn, 1000 + turn)]
    assert [message.index for _, _, message in one.got] == [message.index for _, _, message in two.got] == expected


def test_a_node_that_is_not_there_is_dialled_until_it_is() -> None:
    """With pauses that double up to two seconds. A warning comes once for each reason."""
    cluster = Cluster(ready=False)
    cluster.world.process("n3")
    one = cluster.nodes["n1"]
    one.streams.set_nodes({"n1": "n1:1", "n3": "n3:1"})
    cluster.world.run_for(9)
    at = [ms for name, ms in cluster.dials if name == "n1"]
    pauses = [after - before for before, after in pairwise(at)]
    assert [round(pause, -1) for pause in pauses[:8]] == [50, 100, 200, 400, 800, 1600, 2000, 2000]
    assert one.logged == [("warning", "connection refused", "n3")]
    one.say("n3", one.vote("n3"))
    three = cluster.start("n3")
    cluster.world.run_for(3)
    assert one.said == [("n3", three.replicas)] and len(one.logged) == 1
    assert not three.got                # what was said to nobody does not come
    one.say("n3", one.vote("n3", 2))
    cluster.world.run_for(1)
    assert three.terms("n1") == [2]


def test_the_pause_begins_anew_when_a_stream_was_open() -> None:
    cluster = Cluster()
    two = cluster.nodes["n2"]
    for _ in range(3):
        cluster.again("n1")
        cluster.world.run_for(LATER_S)
    del cluster.dials[:]
    cluster.world.processes["n1"].kill()
    cluster.world.run_for(1)
    at = [ms for name, ms in cluster.dials if name == "n2"]
    assert [round(after - before, -1) for before, after in pairwise(at)][:3] == [100, 200, 400]
    assert two.lost == ["n1"] * 4


def test_a_node_that_is_started_again_is_another_life() -> None:
    cluster = Cluster()
    one = cluster.nodes["n1"]
    del one.said[:]
    two = cluster.again("n2")
    cluster.world.run_for(LATER_S)
    assert one.lost == ["n2"]
    assert one.said and one.said == [("n2", [OwnReplica(1, INCARNATION, 2, 2)])] * len(one.said)
    two.say("n1", two.vote("n1", 9))
    one.say("n2", one.vote("n2", 8))
    cluster.world.run_for(1)
    assert one.terms("n2") == [9] and two.terms("n1") == [8]


@pytest.mark.parametrize("mute", ["n1", "n2"])
def test_one_way_is_cut(mute: str) -> None:
    """What the others say arrives until they notice; afterwards all is as it was."""
    cluster = Cluster()
    one, two = cluster.nodes.values()
    cluster.network.cut(mute, ({"n1", "n2"} - {mute}).pop(), back=False)
    one.say("n2", one.vote("n2", 4))
    two.say("n1", two.vote("n1", 4))
    cluster.world.run_for(0.5)
    assert (one.terms("n2"), two.terms("n1")) == (([4], []) if mute == "n1" else ([], [4]))
    cluster.world.run_for(LATER_S)
    assert one.lost[:1] == ["n2"] and two.lost[:1] == ["n1"]
    cluster.network.heal()
    cluster.world.run_for(LATER_S)
    one.say("n2", one.vote("n2", 6))
    two.say("n1", two.vote("n1", 6))
    cluster.world.run_for(1)
    assert one.terms("n2")[-1] == two.terms("n1")[-1] == 6


def test_another_address_is_dialled_and_who_is_left_out_is_hung_up() -> None:
    cluster = Cluster(3)
    one, two, three = cluster.nodes.values()
    one.streams.set_nodes({"n2": "n2:2", "n1": "n1:1"})
    moved = SimTransport(cluster.world.processes["n2"], cluster.network, "n2:2")
    cluster.world.processes["n2"].driver.start(moved.start(NoCalls(), two.streams))
    cluster.world.run_for(3)
    assert two.lost == ["n1"] and three.lost == ["n1"]
    assert len(moved.accepted) == 1 and len(cluster.transports["n2"].accepted) == 1     # n1's; n3's
    one.say("n2", one.vote("n2"))
    one.say("n3", one.vote("n3"))
    three.say("n1", three.vote("n1"))       # what it has opened stays
    cluster.world.run_for(1)
    assert two.terms("n1") == [1] and not three.got and one.terms("n3") == [1]


def test_a_node_without_a_name_of_its_cluster_is_heard() -> None:
    cluster = Cluster(ready=False)
    one, two = cluster.nodes.values()
    one.cluster = ""
    for node in (one, two):
        node.streams.set_nodes(cluster.addresses)
    cluster.world.run_for(1)
    one.say("n2", one.vote("n2"))
    cluster.world.run_for(1)
    assert two.terms("n1") == [1] and not one.logged and not two.logged


def test_a_node_of_another_cluster_is_refused() -> None:
    cluster = Cluster(ready=False)
    one, two = cluster.nodes.values()
    one.cluster = "another"
    for node in (one, two):
        node.streams.set_nodes(cluster.addresses)
    cluster.world.run_for(LATER_S)
    assert one.logged == [("warning", "node n2 is in another cluster (c, not another)", "n2")]
    assert two.logged == [("warning", "node n1 is in another cluster (another, not c)", "n1")]
    one.say("n2", one.vote("n2"))
    one.cluster = "c"
    cluster.world.run_for(LATER_S)
    assert one.said and two.said and not two.got


def test_another_node_is_at_the_address() -> None:
    cluster = Cluster(3, ready=False)
    one = cluster.nodes["n1"]
    one.streams.set_nodes({"n2": "n3:1", "n4": "n1:1"})
    cluster.world.run_for(LATER_S)
    assert sorted(one.logged) == [("warning", "node n3 is at n3:1, not n2", "n2"),
                                  ("warning", "this is node n1, and so is who dials", "n4")]
    assert not one.said


def test_closed_streams_stay_closed() -> None:
    cluster = Cluster()
    one, two = cluster.nodes.values()
    one.streams.close("it leaves")
    del cluster.dials[:]
    two.say("n1", two.vote("n1"))
    cluster.world.run_for(LATER_S)
    assert not one.got and not one.lost and two.lost == ["n1"]
    assert {name for name, _ in cluster.dials} == {"n2"}
    assert [cause for _, cause, _ in two.logged] == ["it leaves", "node n1 is stopping"]
    one.streams.set_nodes(cluster.addresses)
    one.streams.announce()
    one.say("n2", one.vote("n2"))
    cluster.world.run_for(1)
    assert {name for name, _ in cluster.dials} == {"n2"}
    one.streams.close("again")


# ── which replicas there are ─────────────────────────────────────────────────────────────────────────────────

@pytest.mark.parametrize("group", [1, 2])
@pytest.mark.parametrize(("to", "sender", "own", "its"), [
    (1, 7, INCARNATION, INCARNATION), (7, 2, INCARNATION, INCARNATION), (1, 2, 6, INCARNATION),
    (1, 2, INCARNATION, 6), (1, 2, None, INCARNATION), (1, 2, INCARNATION, None), (1, 2, None, None)])
def test_messages_of_other_replicas_do_not_count(group: int, to: int, sender: int, own: int | None,
                                                 its: int | None) -> None:
    """group 2: that is known, 1 is not."""
    cluster = Cluster(ready=False)
    one, two = cluster.nodes.values()
    for node, incarnation in ((one, own), (two, its)):
        node.replicas = [OwnReplica(group, incarnation, node.number, 1)] if incarnation is not None else []
        node.streams.set_nodes(cluster.addresses)
    cluster.world.run_for(1)
    two.say("n1", Message(MessageKind.VOTE, to, 1, sender=sender), group=1)
    two.say("n1", Message(MessageKind.HEARTBEAT, to, 1, sender=sender), group=1)
    cluster.world.run_for(1)
    assert not one.got and one.streams.strange == 2 and not one.lost


def test_replicas_that_come_later_are_announced_ahead_of_their_messages() -> None:
    cluster = Cluster(3)
    for node in cluster.nodes.values():
        node.replicas = [*node.replicas, OwnReplica(9, 77, node.number, 1)]
        del node.said[:]
        node.streams.announce()
        for other in cluster.addresses.keys() - {node.name}:
            node.say(other, node.vote(other), group=9)
    cluster.world.run_for(1)
    for node in cluster.nodes.values():
        assert sorted(node.said) == [(other.name, other.replicas) for other in cluster.nodes.values()
                                     if other is not node]
        assert [group for _, group, _ in node.got] == [9, 9] and node.streams.strange == 0


def test_a_replica_that_ends_is_announced_too() -> None:
    cluster = Cluster()
    one, two = cluster.nodes.values()
    two.replicas = []
    two.streams.announce()
    two.say("n1", two.vote("n1"))
    one.say("n2", one.vote("n2"))
    cluster.world.run_for(1)
    assert one.said[-1] == ("n2", []) and not one.got and not two.got
    assert one.streams.strange == two.streams.strange == 1


def test_what_is_announced_while_a_stream_opens_arrives() -> None:
    cluster = Cluster(ready=False)
    one, two = cluster.nodes.values()
    one.streams.set_nodes(cluster.addresses)
    one.replicas = [OwnReplica(2, INCARNATION, 1, 1)]
    one.streams.announce()
    cluster.world.run_for(1)
    assert [replicas for _, replicas in two.said] == [[OwnReplica(1, INCARNATION, 1, 1)], one.replicas]


@pytest.mark.parametrize("many", [1500, 10_000])
def test_more_replicas_than_a_hello_has_room_for(many: int) -> None:
    """Which is 64 KiB of a real transport, whatever the numbers are."""
    cluster = Cluster(ready=False)
    one, two = cluster.nodes.values()
    for node in (one, two):
        node.replicas = [OwnReplica(2**64 - 1 - group, 2**64 - 1, node.number, 2**32 - 1) for group in range(many)]
        node.streams.set_nodes(cluster.addresses)
    cluster.world.run_for(1)
    assert (len(encode(one.replicas)) > HELLO_REPLICAS_BYTES) == (many == 10_000)
    for node, other in ((one, two), (two, one)):
        assert node.said and all(said == (other.name, other.replicas) for said in node.said)
    one.say("n2", one.vote("n2"), group=2**64 - many)
    cluster.world.run_for(1)
    assert two.terms("n1") == [1]


# ── a transport that is as busy as a test says ───────────────────────────────────────────────────────────────

def said(frame: bytes) -> list[tuple[int, oracle.Read]]:
    """Which CRCs it has is looked at elsewhere."""
    return oracle.read(frame, sums=False)[0]


class Out:
    """A StreamOut. left: what went to the network; at_once: within send()."""

    def __init__(self, address: str, hello: bytes) -> None:
        self.address, self.hello = address, hello
        self.on_idle: Callable[[], object] = lambda: None
        self.idle = True
        self.at_once = True
        self.closed = False
        self.left: list[bytes] = []
        self.frame_bytes_max = 1 << 30

    def send(self, frame: bytes) -> bool:
        if len(frame) > self.frame_bytes_max:
            raise UsageError(f"a frame of {len(frame)} bytes")
        self.left.append(frame)
        self.idle = self.idle and self.at_once
        return self.idle

    def close(self) -> None:
        self.closed, self.idle = True, False

    def written(self) -> None:
        """The network has taken everything."""
        self.idle = True
        self.on_idle()

    def kinds(self) -> list[tuple[int, ...]]:
        """Of the messages in each frame."""
        return [tuple(fields[0] for _, fields in said(frame)) for frame in self.left]       # type: ignore[misc]


class In:
    """A StreamIn."""

    identity = None

    def __init__(self) -> None:
        self.closed: str | None = None

    def close(self, why: str) -> None:
        assert self.closed is None
        self.closed = why


class OwnTransport:
    problem = ""

    def __init__(self) -> None:
        self.dialled: list[Out] = []

    def dial(self, address: str, hello: bytes) -> Out:
        self.dialled.append(Out(address, hello))
        return self.dialled[-1]


class Alone:
    """Node n1, and what it says to n2, which is open."""

    def __init__(self) -> None:
        self.transport = OwnTransport()
        self.world = Machines(1)
        self.node = Node("n1", self.transport, self.world.process("n1"))        # type: ignore[arg-type]
        self.streams = self.node.streams
        self.streams.set_nodes({"n2": "n2:1"})
        self.out = self.transport.dialled[0]
        self.streams.on_open(self.out, self.answer())

    def answer(self, node: str = "n2", version: int = 1, replicas: list[OwnReplica] | None = None) -> bytes:
        return encode(RaftAnswer(version=version, node=node, disk="", life=1, replicas=replicas))

    def comes(self, hello: bytes) -> tuple[In, bytes | None]:
        stream = In()
        return stream, self.streams.on_stream(stream, hello)


def hello_of(**changes: Any) -> bytes:
    """Of n2."""
    hello = RaftHello(cluster="c", node="n2", disk="d", life=1, replicas=[OwnReplica(1, INCARNATION, 2, 1)])
    return encode(msgspec.structs.replace(hello, **changes))


def test_what_a_turn_has_leaves_at_its_end() -> None:
    alone = Alone()
    node, out = alone.node, alone.out
    for _ in range(2):
        node.streams.send("n2", 1, [node.append("n2", 10), node.heartbeat("n2"), node.vote("n2")])
    assert not out.left
    node.streams.flush()
    assert out.kinds() == [(MessageKind.VOTE,) * 2 + (MessageKind.HEARTBEAT,) * 2 + (MessageKind.APPEND,) * 2]
    node.streams.flush()
    assert len(out.left) == 1 and raft_hello_of(out.hello).replicas == node.replicas


def test_nothing_leaves_while_a_frame_is_written() -> None:
    """When it was, everything that came meanwhile leaves together."""
    alone = Alone()
    node, out = alone.node, alone.out
    out.at_once = False
    node.say("n2", node.append("n2", 10))
    for term in (1, 2, 3):
        node.say("n2", node.append("n2", 10), node.heartbeat("n2", term))
    assert out.kinds() == [(MessageKind.APPEND,)]
    out.written()
    assert out.kinds()[1:] == [(MessageKind.HEARTBEAT,) * 3 + (MessageKind.APPEND,) * 3]
    out.written()
    assert len(out.left) == 2


def test_frames_that_leave_at_once_are_followed_by_others() -> None:
    """on_idle is not called for them."""
    alone = Alone()
    node, out = alone.node, alone.out
    for _ in range(5):
        node.streams.send("n2", 1, [node.append("n2", 700_000)])
    node.streams.flush()
    assert out.kinds() == [(MessageKind.APPEND,)] * 5


def test_a_vote_overtakes_a_megabyte_of_appends() -> None:
    alone = Alone()
    node, out = alone.node, alone.out
    out.at_once = False
    for index in range(30):
        node.say("n2", node.append("n2", 100_000, index))
    node.say("n2", node.heartbeat("n2"), node.vote("n2"))
    assert out.kinds() == [(MessageKind.APPEND,)]
    out.written()
    assert out.kinds()[1][:3] == (MessageKind.VOTE, MessageKind.HEARTBEAT, MessageKind.APPEND)
    node.say("n2", node.vote("n2"))
    while not out.idle:
        out.written()
    assert out.kinds()[2][:2] == (MessageKind.VOTE, MessageKind.APPEND)
    assert max(map(len, out.left)) <= FRAME_BYTES
    indexes = [fields[6] for frame in out.left for _, fields in said(frame) if fields[0] == 1]
    assert indexes == list(range(30))


def test_appends_do_not_wait_for_an_end_of_heartbeats() -> None:
    alone = Alone()
    node, out = alone.node, alone.out
    out.at_once = False
    node.say("n2", node.vote("n2"))
    for _ in range(3):
        node.say("n2", node.append("n2", FRAME_BYTES), node.heartbeat("n2"))
    for _ in range(3):
        out.written()
        node.say("n2", node.heartbeat("n2"))
    assert out.kinds().count((MessageKind.APPEND,)) == 3


def test_more_than_the_backlog_is_dropped_but_not_what_is_urgent() -> None:
    alone = Alone()
    node, out = alone.node, alone.out
    out.at_once = False
    node.say("n2", node.vote("n2"))
    for index in range(40):
        node.say("n2", node.append("n2", 1_000_000, index), node.heartbeat("n2"), node.vote("n2"))
    node.say("n2", Message(MessageKind.APPENDED, 2, 1, sender=1, index=3))
    kept = 40 - node.streams.dropped
    assert kept == -(-BACKLOG_BYTES // 1_000_000)
    while not out.idle:
        out.written()
    kinds = [kind for frame in out.kinds() for kind in frame]
    assert kinds.count(MessageKind.VOTE) == 41 and kinds.count(MessageKind.HEARTBEAT) == 40
    assert kinds.count(MessageKind.APPEND) == kept and kinds.count(MessageKind.APPENDED) == 1
    node.say("n2", node.append("n2", 10))
    out.written()
    assert node.streams.dropped == 40 - kept and out.kinds()[-1] == (MessageKind.APPEND,)


def test_even_the_largest_message_leaves() -> None:
    alone = Alone()
    alone.node.say("n2", alone.node.append("n2", BACKLOG_BYTES + 1), alone.node.append("n2", 0))
    assert alone.streams.dropped == 1 and alone.out.kinds() == [(MessageKind.APPEND,)]


def test_a_frame_that_the_transport_does_not_take_is_told_once() -> None:
    alone = Alone()
    node, out = alone.node, alone.out
    out.frame_bytes_max = 1000
    for _ in range(3):
        node.say("n2", node.append("n2", 1000), node.vote("n2"))
    assert not out.left
    assert len(node.logged) == 1 and node.logged[0][0] == "warning"
    node.say("n2", node.vote("n2"))
    assert out.kinds()[-1] == (MessageKind.VOTE,)


def test_heartbeats_of_a_thousand_groups_are_one_frame() -> None:
    alone = Alone()
    node, out = alone.node, alone.out
    node.replicas = [OwnReplica(group, INCARNATION, 1, 1) for group in range(1000)]
    for group in range(1000):
        node.streams.send("n2", group, [node.heartbeat("n2")])
    node.streams.flush()
    [frame] = out.left
    assert len(said(frame)) == 1000 and len(frame) < 40_000


def test_what_waits_for_a_stream_that_breaks_is_dropped() -> None:
    alone = Alone()
    node, out = alone.node, alone.out
    out.at_once = False
    node.say("n2", node.vote("n2"))
    node.say("n2", node.vote("n2"), node.append("n2", 10))
    out.close()
    alone.streams.on_closed(out, "broke")
    assert not alone.streams.has(out)
    node.say("n2", node.vote("n2"))
    alone.world.run_for(1)
    _, again = alone.transport.dialled
    node.say("n2", node.vote("n2"))         # it is not open yet
    alone.streams.on_open(again, alone.answer())
    node.say("n2", node.heartbeat("n2"))
    assert again.kinds() == [(MessageKind.HEARTBEAT,)] and len(out.left) == 1


def test_what_is_announced_waits_for_the_frame_and_is_said_once() -> None:
    alone = Alone()
    node, out = alone.node, alone.out
    out.at_once = False
    node.say("n2", node.vote("n2"))
    for number in (5, 6):
        node.replicas = [OwnReplica(1, INCARNATION, number, 1)]
        node.streams.announce()
    node.say("n2", node.vote("n2"))
    out.written()
    out.written()
    assert [oracle.read(frame)[1] is not None for frame in out.left] == [False, True, False]
    assert replicas_of(oracle.read(out.left[1])[1] or b"") == node.replicas


@pytest.mark.parametrize(("answer", "why"), [
    (b"", "truncated"), (b"\xc1", "malformed"), (hello_of(), "missing required field"),
    (encode(RaftAnswer(version=2, node="n2", disk="", life=1, replicas=[])), "chosen version 2"),
    (encode(RaftAnswer(version=1, node="n3", disk="", life=1, replicas=[])), "node n3 is at n2:1")])
def test_an_answer_that_is_none(answer: bytes, why: str) -> None:
    alone = Alone()
    alone.out.close()
    alone.streams.on_closed(alone.out, "broke")
    alone.world.run_for(0.06)
    again = alone.transport.dialled[-1]
    alone.streams.on_open(again, answer)
    assert again.closed and why in alone.node.logged[-1][1] and not alone.node.said
    alone.world.run_for(0.2)
    assert len(alone.transport.dialled) == 3


@pytest.mark.parametrize(("hello", "why"), [
    (b"", "truncated"),
    (hello_of(node="n1"), "this is node n1"),
    (hello_of(cluster="d"), "in another cluster"),
    (hello_of(versions=(2, 3)), "upgrade the older one"),
    (hello_of(versions=(0, 0)), "upgrade the older one"),
    (hello_of(replicas=[OwnReplica(1, 1, 1 << 32, 1)]), "Expected `int`")])
def test_a_hello_that_is_refused(hello: bytes, why: str) -> None:
    alone = Alone()
    stream, answer = alone.comes(hello)
    assert answer is None and why in (stream.closed or "") and not alone.streams.has(stream)
    assert not alone.node.said and not alone.node.logged


@pytest.mark.parametrize(("hello", "version"), [(hello_of(versions=(0, 9)), 1), (hello_of(cluster=""), 1)])
def test_a_hello_that_is_accepted(hello: bytes, version: int) -> None:
    alone = Alone()
    _, answer = alone.comes(hello)
    its = raft_answer_of(answer or b"")
    assert (its.version, its.node, its.disk, its.life) == (version, "n1", "disk of n1", 1)
    assert its.replicas == alone.node.replicas


def test_a_second_stream_replaces_the_first() -> None:
    alone = Alone()
    first, _ = alone.comes(hello_of())
    other, _ = alone.comes(hello_of(node="n3", replicas=[OwnReplica(1, INCARNATION, 3, 1)]))
    second, _ = alone.comes(hello_of(life=2, replicas=[OwnReplica(1, INCARNATION, 4, 1)]))
    assert first.closed == "replaced by a newer stream" and not alone.streams.has(first)
    assert alone.node.lost == ["n2"] and second.closed is None and other.closed is None
    frames = [encode_frames([(1, Message(MessageKind.VOTE, 1, term, sender=sender))], 1 << 20)[0]
              for term, sender in ((7, 2), (8, 4), (9, 2))]
    for stream, frame in zip((first, second, second), frames, strict=True):
        alone.streams.on_frame(stream, frame)
    assert alone.node.terms("n2") == [8] and alone.streams.strange == 1
    alone.streams.on_end(first)
    assert alone.node.lost == ["n2"] and alone.streams.has(second)
    alone.streams.on_end(second)
    assert alone.node.lost == ["n2", "n2"] and not alone.streams.has(second)


@pytest.mark.parametrize("frame", [b"", b"nothing", encode_replicas(b"\xc1"), encode_replicas(encode([1])),
                                   encode_replicas(encode({}))])
def test_what_is_no_frame_closes_its_stream(frame: bytes) -> None:
    alone = Alone()
    stream, _ = alone.comes(hello_of())
    other, _ = alone.comes(hello_of(node="n3"))
    alone.streams.on_frame(stream, frame)
    assert stream.closed and alone.node.lost == ["n2"] and other.closed is None and alone.out.idle
    assert alone.node.logged == [("error", stream.closed, "n2")]
    alone.streams.on_frame(stream, encode_frames([(1, Message(MessageKind.VOTE, 1, 1, sender=2))], 1 << 20)[0])
    assert not alone.node.got


def test_a_node_says_later_what_it_has() -> None:
    alone = Alone()
    stream, _ = alone.comes(hello_of(replicas=None))
    assert not alone.node.said
    frame, = encode_frames([(1, Message(MessageKind.VOTE, 1, 1, sender=2))], 1 << 20)
    alone.streams.on_frame(stream, frame)
    assert alone.streams.strange == 1
    has = [OwnReplica(1, INCARNATION, 2, 1)]
    alone.streams.on_frame(stream, encode_replicas(encode(has)))
    alone.streams.on_frame(stream, frame)
    assert alone.node.said == [("n2", has)] and alone.node.terms("n2") == [1]


def test_an_answer_that_is_late_says_nothing_new() -> None:
    """The node has been elected since, and has said so in its own stream."""
    alone = Alone()
    led = [OwnReplica(1, INCARNATION, 2, 1, 7)]
    stream, _ = alone.comes(hello_of(replicas=led))
    alone.streams.set_nodes({})
    alone.streams.set_nodes({"n2": "n2:1"})
    alone.streams.on_open(alone.transport.dialled[-1], alone.answer(replicas=[OwnReplica(1, INCARNATION, 2, 1)]))
    assert alone.node.said == [("n2", led)]
    alone.streams.on_end(stream)
    alone.streams.set_nodes({})
    alone.streams.set_nodes({"n2": "n2:1"})
    alone.streams.on_open(alone.transport.dialled[-1], alone.answer(replicas=[]))
    assert alone.node.said == [("n2", led), ("n2", [])]


def test_streams_of_nobody_are_ignored() -> None:
    alone = Alone()
    out, stream = Out("n9:1", b""), In()
    alone.streams.on_open(out, alone.answer())
    alone.streams.on_closed(out, "broke")
    alone.streams.on_frame(stream, b"")
    alone.streams.on_end(stream)
    assert not alone.node.logged and not alone.node.lost and stream.closed is None and not out.closed
    assert not alone.streams.has(out) and not alone.streams.has(stream) and alone.streams.has(alone.out)


@pytest.mark.parametrize(("hello", "raft"), [
    (hello_of(), True), (encode(Hello(cluster="c", node="raft", epoch=1, to_epoch=2)), False), (b"", False),
    (b"\xc1", False), (encode({"type": 5}), False), (encode({"type": "raft"}), True), (encode(["raft"]), False)])
def test_which_hello_is_one_of_raft(hello: bytes, raft: bool) -> None:
    assert is_raft(hello) == raft
