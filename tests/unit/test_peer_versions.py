"""What `Peers` takes a frame for, by the version of the stream that it came over: before version 6 a frame does not say
whether somebody waits for its acknowledgement, so all are taken as awaited."""
from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
from kit.peers import PeerNode
from simulator.driver import SimDriver

from fluxmq._core.testing.frames_probe import decode, encode
from fluxmq.cluster.membership import Membership, Node, Registration
from fluxmq.cluster.messages import VERSIONS, Answer, Hello, answer_of
from fluxmq.cluster.messages import encode as message
from fluxmq.cluster.peers import ACK_DELAY_S, VERSION_AWAITED, Peers

pytestmark = pytest.mark.usefixtures("nothing_is_left")
FORMER = VERSION_AWAITED - 1
BEGIN, AWAITED = 1, 4
TURNS = 4  # until all that is due has been done, and what that begins


class Streams:
    """A transport; and the streams in both directions between the two nodes, as it gives them to `Peers`."""

    def __init__(self) -> None:
        self.frames: list[bytes] = []
        self.on_idle = lambda: None
        self.closed = ""

    def dial(self, address: str, hello: bytes) -> Streams:
        return self

    def send(self, frame: bytes) -> None:
        self.frames.append(frame)

    def close(self, why: str = "") -> None:
        self.closed = why


class Receiver:
    """Node b, to which node a has opened a stream: it says that it speaks these versions."""

    def __init__(self, versions: tuple[int, int]) -> None:
        self.now_ms = 0
        self.driver = SimDriver(lambda: self.now_ms)
        self.node = PeerNode("b", 2)
        self.out, self.come = Streams(), Streams()
        interest = SimpleNamespace(add=lambda *_: None, remove=lambda *_: None)
        membership = SimpleNamespace(may_serve=lambda: True, in_doubt=False, ttl_s=10.0, nodes={})
        self.peers = Peers(
            name="b", membership=cast(Membership, membership), transport=cast(Any, self.out), driver=self.driver,
            interest=cast(Any, interest), configured={}, window_bytes=1 << 20, limit_s=15.0, on_known=lambda: None,
            others=cast(Any, None), log=lambda *_: None)
        self.peers.attach(cast(Any, SimpleNamespace(hub=self.node.hub)), on_appeared=lambda _: None,
                          on_gone=lambda _: None, handlers={})
        self.peers.begin("cluster", 2)
        self.peers.on_node(Node("a", 1, 0, Registration(address="127.0.0.1:1")), True)
        self.version = self.open(versions)
        self.peers.on_open(cast(Any, self.out), message(Answer(epoch=1, version=self.version, position=0)))
        self.out.on_idle()
        self.settle()

    def open(self, versions: tuple[int, int]) -> int:
        """Node a opens a stream. Returns the version of it."""
        hello = Hello(cluster="cluster", node="a", epoch=1, to_epoch=2, versions=versions)
        answer = self.peers.on_stream(cast(Any, self.come), message(hello))
        assert answer is not None, self.come.closed
        self.frame(0, BEGIN)
        self.settle()       # the answer to that repeats an acknowledgement
        return answer_of(answer).version

    def frame(self, sequence: int, flags: int = 0) -> None:
        """Node a sends one without records."""
        self.peers.on_frame(cast(Any, self.come), encode({
            "version": 1, "epoch": 1, "to_epoch": 2, "sequence": sequence, "records": 0, "flags": flags}, []))

    def turn(self) -> None:
        """Of the node; whatever it has sent has left."""
        self.node.turn()
        self.out.on_idle()

    def settle(self) -> None:
        """What is to be sent sooner or later has been, and is forgotten."""
        self.turn()
        self.later(ACK_DELAY_S)
        self.out.frames.clear()

    def later(self, seconds: float) -> None:
        """After this time."""
        for passed_ms in (0, round(seconds * 1000)):
            self.now_ms += passed_ms
            for _ in range(TURNS):
                self.driver.run_ready()
        self.turn()

    def acknowledged(self) -> list[int]:
        """What frames since the last call said."""
        found = [decode(frame)[0]["acknowledged"] for frame in self.out.frames]
        self.out.frames.clear()
        return found


@pytest.mark.parametrize(("versions", "agreed"), [
    ((FORMER, FORMER), FORMER), (VERSIONS, VERSION_AWAITED), ((VERSION_AWAITED, VERSION_AWAITED + 1), VERSION_AWAITED)])
def test_the_highest_version_that_both_know_is_agreed_on(versions: tuple[int, int], agreed: int) -> None:
    assert Receiver(versions).version == agreed


def test_a_frame_of_the_former_version_counts_as_awaited() -> None:
    """Its sender cannot say so: that somebody waits shows in no flag."""
    receiver = Receiver((FORMER, FORMER))
    for sequence in (1, 2):
        receiver.frame(sequence)
        receiver.turn()
        assert receiver.acknowledged() == [sequence]        # no time has passed
    receiver.later(ACK_DELAY_S)
    assert receiver.acknowledged() == []


def test_a_frame_of_this_version_is_awaited_if_it_says_so() -> None:
    receiver = Receiver(VERSIONS)
    receiver.frame(1)
    receiver.turn()
    assert receiver.acknowledged() == []
    receiver.later(ACK_DELAY_S)
    assert receiver.acknowledged() == [1]
    receiver.frame(2, AWAITED)
    receiver.turn()
    assert receiver.acknowledged() == [2]


def test_the_version_is_that_of_the_stream_which_was_opened_last() -> None:
    """The node was upgraded, or put back, and has dialled again."""
    receiver = Receiver(VERSIONS)
    receiver.open((FORMER, FORMER))
    receiver.frame(1)
    receiver.turn()
    assert receiver.acknowledged() == [1]
    receiver.open(VERSIONS)
    receiver.frame(2)
    receiver.turn()
    assert receiver.acknowledged() == []
    receiver.later(ACK_DELAY_S)
    assert receiver.acknowledged() == [2]
