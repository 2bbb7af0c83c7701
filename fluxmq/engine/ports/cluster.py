"""The ports through which the engine works with other nodes, as Protocols: `Directory`, `Peers`, `Replicator`.

    Directory     owners of sessions and queues, and the nodes that subscribe to a topic
    Peers         the other nodes, and the connection to each
    Replicator    the commit line to which a queue's records belong

A single node uses `fluxmq.cluster.solo`, which answers every call at once. The engine does not know whether there are
other nodes.

All methods are called on the loop's thread. A method that is not a coroutine returns at once, may be called in the
middle of a turn, and calls nothing of the engine before it returns. Names are bytes as clients gave them: of a
namespace (the name of a virtual host), a client identifier, a queue within its namespace.

An operation that takes time works in one of three ways:

    the answer is None     nothing was done. The operation raises Unclaimed, its packet waits (decision 0008), the
                           coroutine that belongs to the method is awaited, and the operation is repeated; so it is
                           with a change of a definition, which raises Deferred (ports/definitions.py)
    a ticket               the change takes effect on this node at once. The position of a commit line, given
                           (Line.give) before the method returns, stands for the other nodes' knowledge of it. The
                           answer to the client waits for that position (decision 0006), and is a refusal if it is given
                           up
    a hop                  a message for another node: PeerHop.forward (_core/hub/targets.pxd), with a ticket
"""
from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, NamedTuple, Protocol

from fluxmq._core.errors import ProtocolError
from fluxmq._core.hub.targets import PeerHop
from fluxmq._core.memory.commits import Line
from fluxmq.engine.ports.definitions import Definer, Placement
from fluxmq.engine.sessions.state import Will
from fluxmq.model.mqtt import ReasonCode

__all__ = ["Cluster", "Directory", "OwnedElsewhere", "Owner", "Peers", "Replicator", "Unclaimed"]


class Owner(NamedTuple):
    """The node that serves a session or a queue. epoch: increases with every change of owner and is never reused for a
    name. What belongs to one change (of a takeover Switch and Cut, docs/internals/cluster.md) names it, and means
    nothing to another; a publish on its way to the owner does not."""

    node: str
    epoch: int


class Unclaimed(Exception):
    """The owner of a session is not known yet. Nothing was changed: await take(), which is take_session, then retry."""

    def __init__(self, take: Callable[[], Coroutine[Any, Any, Owner]]) -> None:
        super().__init__()
        self.take = take


class OwnedElsewhere(ProtocolError):
    """Another node serves the session and keeps it. reference: where a client finds that node (Server Reference, MQTT
    5.0 section 4.13), or "" if unknown."""

    def __init__(self, owner: Owner, reference: str) -> None:
        super().__init__(ReasonCode.USE_ANOTHER_SERVER, f"the session is served by node {owner.node}")
        self.owner = owner
        self.reference = reference


class Directory(Protocol):
    """The owners of sessions and queues, and the interests of nodes in topics. One per node.

    Interest is counted here: the engine announces each subscription, and withdraws it when it ends; the Directory
    counts those with the same filter and decides what to announce to the other nodes. It reports changes of other nodes
    to the engine (Broker.learn, Broker.forget_node).
    """

    @property
    def node(self) -> str:
        """The name of this node in the cluster; "" if it has none. Never changes."""

    @property
    def definer(self) -> Definer | None:
        """Changes the queues, exchanges and bindings that all nodes have. None: they are this node's own. Never
        changes."""

    def claim_session(self, namespace: bytes, client_id: bytes, clean_start: bool) -> Owner | None:
        """A client has connected here. Called for each CONNECT before anything is done for it, also for a session of
        this node; clean_start: a former owner's session is discarded, not handed over.

        An Owner of this node: the session belongs to this node until release_session, or until it moves to another node
        (engine/sessions/transfer.py), or until its loss is reported (Broker.surrender); the state from a former owner
        is in the engine already. An Owner of another node: that node keeps the session, and the client is redirected.
        None: other nodes must be asked.

        A repeated call for a session of this node returns the same Owner and is no further claim.
        """

    async def take_session(self, namespace: bytes, client_id: bytes, clean_start: bool, asked_ms: int) -> Owner:
        """As claim_session, after asking: freeze, transfer, transaction. If it returns this node, claim_session does so
        too until the end of the turn. If the former owner does not answer, it returns when that one's lease has ended;
        the caller cancels it at its time limit, and when the client has gone. After a cancellation the owner is the
        former one or this node: the next claim finds out.

        asked_ms: when the CONNECT came (Hub.mono_ms). Raises ProtocolError with the reason code for CONNACK (0x88,
        0x89, 0x97); 0x89 also if the client has connected to another node later than that. Any other exception counts
        as 0x88.
        """

    def release_session(self, namespace: bytes, client_id: bytes) -> None:
        """The session has ended here and has no owner now. Called once for each session that ends, whether or not it
        was claimed since this process started; does nothing if this node is not the owner."""

    def kept_changed(self, namespace: bytes, client_id: bytes, filter_: bytes | None = b"") -> None:
        """What must outlive this node of a session (SessionState.durable) has changed: the subscription with this
        filter; b"": its expiry interval, also whether there is such a session at all; None: all of it. It may give a
        ticket: the client gets its answer when the change would be known even if this node died. The session is looked
        up later (Broker.sessions). Raises nothing."""

    def will_changed(self, namespace: bytes, client_id: bytes, will: Will | None, expiry_s: int,
                     since: int) -> None:
        """The will of a session of this node has been set by its CONNECT, or has come with the session from another
        node; or it is gone (None): discarded, published in this turn, or its CONNECT has none. The will of a session
        that goes to another node is not reported. expiry_s: of the session. since: Commits.mark before the publish. It
        may give a ticket: CONNACK is sent when the will would be published even if this node died, and nothing of the
        client's former connection any more. Raises nothing."""

    def place_queue(self, namespace: bytes, name: bytes) -> Placement:
        """The data of a queue of this name is about to begin here, empty. Called before it has numbers or records.
        Returns which data of the queue that is, which is recorded with it: a later start finds out by it whether it is
        the queue's still.

        Raises QueueRefused (unavailable) if others have the queue's data: another node, another directory of this one,
        a group of nodes. The text names them.
        """

    def announce(self, namespace: bytes, filter_: bytes, group: bytes = b"", durable: bool = False) -> None:
        """A session, a queue that captures or is bound to topics, or an exchange of this node has subscribed to a topic
        filter. filter_: valid, without `$share/…/`. group: the share group that a member joined; b"": none. durable:
        the session outlives this node (SessionState.durable).

        Called once for each new subscription, after it is in the index, so that forwarded messages find it. A repeated
        SUBSCRIBE is not announced. It may give a ticket: SUBACK, bind-ok and consume-ok are sent when every relevant
        peer knows. Raises nothing: the ticket of an announcement that fails is given up.
        """

    def withdraw(self, namespace: bytes, filter_: bytes, group: bytes = b"", durable: bool = False) -> None:
        """The end of one announce, with the same arguments, after the subscription was removed from the index. No
        answer waits for it."""

    def members_connected(self, namespace: bytes, filter_: bytes, group: bytes, change: int) -> None:
        """One member more (change 1) of a share group is connected to this node, or one less (-1): its client came or
        went, or it joined or left the group while it was connected; before announce, and before withdraw."""


class Peers(Protocol):
    """The other nodes, by name."""

    def hop(self, node: str) -> PeerHop:
        """The way to another node: always the same object until the node is forgotten (Broker.forget_node). Messages
        given to it in a turn are sent as one batch at the end of the turn, in order; the ticket of a message that it
        cannot take is given up. Raises UsageError for an unknown node and for this one."""

    def reference(self, node: str) -> str:
        """The address under which clients reach a node, for a Server Reference; "": unknown."""


class Replicator(Protocol):
    """Decides which nodes must have a record before it is committed."""

    def line_of_queue(self, namespace: bytes, name: bytes, durable: bool) -> Line | None:
        """The commit line to which everything about a new queue is given: the journal (None), or one that this node has
        opened (Commits.open_line) and leads. Called once, when the queue is made, after place_queue; the queue keeps
        the line. Numbers of the queue, its logs and groups are unique within it.

        Raises QueueRefused(unavailable) when a queue that must be replicated cannot be now.
        """

    def group_of_queue(self, namespace: bytes, name: bytes) -> int:
        """The group of nodes that replicates a queue whose messages another node has, as a number that is the same as
        long as the queue is there; 0: none does. Called each time when its owner is heard of. Raises nothing."""


class Cluster(NamedTuple):
    """The three services together, as the engine gets them."""

    directory: Directory
    peers: Peers
    replicator: Replicator
