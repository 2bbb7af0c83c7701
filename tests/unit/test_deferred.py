"""Changes of queues, exchanges and bindings that all nodes of a cluster must know: the engine changes nothing and says
what is to be done; repeated, the operation answers as on a node that is alone."""
from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import msgspec
import pytest
from kit.definer import FakeDefiner, defined
from kit.nodes import Nodes
from unit.amqp_world import bytes_in_order, refused

from fluxmq._core.errors import UsageError
from fluxmq._core.hub.hub import Hub
from fluxmq._core.queue.member import PyMember
from fluxmq.engine.broker import Broker
from fluxmq.engine.exchanges.manager import ExchangeManager
from fluxmq.engine.exchanges.records import StoredExchange
from fluxmq.engine.exchanges.store import ExchangeKeeper
from fluxmq.engine.namespaces import NamespaceAdmin
from fluxmq.engine.ports.definitions import BindingDefinition, Deferred, ExchangeDefinition, Placement, QueueDefinition
from fluxmq.engine.ports.queues import QueueRefused
from fluxmq.engine.queues.admin import QueueAdmin
from fluxmq.engine.queues.amqp.queues import AmqpQueues
from fluxmq.engine.queues.clock import QueueClock
from fluxmq.engine.queues.manager import QueueManager
from fluxmq.engine.queues.records import LogRecord, QueueRecord
from fluxmq.model.mqtt import ReasonCode
from fluxmq.model.queues import QueueSpec

Found = TypeVar("Found")
Q = (b"/", b"q")


class World:
    def __init__(self) -> None:
        self.nodes, self.definer = Nodes(), FakeDefiner()
        self.nodes.directory.definer = self.definer
        self.hub = Hub(None)
        self.hub.set_clock(1_700_000_000_000, 1000)
        self.manager = QueueManager(self.hub, "classic", cluster=self.nodes.cluster)
        self.exchanges = ExchangeManager(self.hub, cluster=self.nodes.cluster)
        self.amqp = AmqpQueues(self.manager, bytes_in_order())
        self.keeper = ExchangeKeeper(self.exchanges, self.manager)
        self.admin = QueueAdmin(self.manager)
        self.clock = QueueClock(self.manager)
        self.definer.learn(self.manager, self.exchanges)

    def done(self, operation: Callable[[], Found]) -> tuple[Found, object]:
        """What it answers in the end, and what the change has done."""
        with pytest.raises(Deferred) as deferred:
            operation()
        work = deferred.value.change()
        with pytest.raises(StopIteration):
            work.send(None)
        return operation(), deferred.value.result

    def bound(self) -> set[tuple[bytes, bytes]]:
        return {(binding.source.name, binding.key) for exchange in self.exchanges.vhosts[b"/"].exchanges.values()
                for binding in exchange.outbound if binding.source.name}


@pytest.fixture
def world() -> World:
    return World()


def test_nothing_is_changed_before_all_know(world: World) -> None:
    for operation in (lambda: world.amqp.declare(b"/", b"q"), lambda: world.exchanges.declare(b"/", b"x")):
        with pytest.raises(Deferred):
            operation()
    assert not world.manager.queues and b"x" not in world.exchanges.vhosts[b"/"].exchanges and not world.definer.told


def test_a_declared_queue_is_as_on_one_node(world: World) -> None:
    declared, _ = world.done(lambda: world.amqp.declare(b"/", b"q", durable=True, arguments={"x-max-length": 3}))
    assert (declared.name, declared.messages, declared.consumers) == (b"q", 0, 0)
    state = world.manager.queues[Q]
    assert state.id == world.definer.queues[Q].id and (b"default", b"") in state.groups
    world.amqp.declare(b"/", b"q", durable=True, arguments={"x-max-length": 3})
    with refused(406, "x-max-length"):
        world.amqp.declare(b"/", b"q", durable=True)
    assert [what for what, *_ in world.definer.told] == ["define"]


def test_what_is_refused_is_refused_before(world: World) -> None:
    with refused(403):
        world.amqp.declare(b"/", b"amq.q")
    with refused(404):
        world.exchanges.bind(b"/", b"nothing", b"q")
    with refused(406):
        world.amqp.declare(b"/", b"q", arguments={"x-max-length": "three"})
    assert not world.definer.told


def test_the_broker_names_a_queue_once(world: World) -> None:
    owner = object()
    declared, _ = world.done(lambda: world.amqp.declare(b"/", b"", owner=owner))
    assert declared.name.startswith(b"amq.gen-")
    assert world.definer.told == [("define", declared.name, True, None)]
    other, _ = world.done(lambda: world.amqp.declare(b"/", b"", owner=owner))
    assert other.name != declared.name


def test_an_exclusive_queue_is_its_connections(world: World) -> None:
    owner, other = object(), object()
    world.done(lambda: world.amqp.declare(b"/", b"q", exclusive_owner=owner, owner=owner))
    world.amqp.declare(b"/", b"q", exclusive_owner=owner, owner=owner)
    with refused(405):
        world.amqp.declare(b"/", b"q", exclusive_owner=other, owner=other)
    assert world.definer.told == [("define", b"q", True, None)]
    list(world.amqp.connection_closed(owner))
    assert world.definer.told[-1] == ("end", b"q", world.definer.queues[Q].id)
    world.definer.ended()
    assert not world.manager.queues


def test_an_exclusive_queue_whose_connection_has_ended_meanwhile_ends(world: World) -> None:
    owner = object()
    with pytest.raises(Deferred) as deferred:
        world.amqp.declare(b"/", b"q", exclusive_owner=owner, owner=owner)
    list(world.amqp.connection_closed(owner))
    with pytest.raises(StopIteration):
        deferred.value.change().send(None)
    assert world.definer.told[-1][0] == "end"


def test_a_queue_is_deleted(world: World) -> None:
    world.done(lambda: world.amqp.declare(b"/", b"q"))
    world.done(lambda: world.exchanges.bind(b"/", b"amq.direct", b"q", b"k"))
    world.manager.queues[Q].queue.publish(b"$queue/q", b"body")
    member = PyMember(lambda *message: None)
    world.amqp.consume(world.manager.queues[Q].queue, member)
    with refused(406, "in use"):
        world.amqp.delete(b"/", b"q", if_unused=True)
    world.amqp.left(world.manager.queues[Q].queue, member)
    answer, had = world.done(lambda: world.amqp.delete(b"/", b"q"))
    assert (answer, had) == (0, 1)
    assert not world.manager.queues and not world.bound()


def test_an_auto_delete_queue_ends_when_all_know(world: World) -> None:
    world.done(lambda: world.amqp.declare(b"/", b"q", auto_delete=True))
    queue, member = world.manager.queues[Q].queue, PyMember(lambda *message: None)
    world.amqp.consume(queue, member)
    world.amqp.left(queue, member)
    assert Q in world.manager.queues and world.definer.told[-1][0] == "end"
    world.definer.ended()
    assert not world.manager.queues


def test_a_queue_that_is_unused_ends_when_all_know(world: World) -> None:
    world.done(lambda: world.amqp.declare(b"/", b"q", arguments={"x-expires": 1000}))
    world.clock.tick()
    world.hub.set_clock(1_700_000_000_000 + 5000, 6000)
    world.clock.tick()
    assert Q in world.manager.queues and world.definer.told[-1][0] == "end"


def test_a_queue_that_is_about_to_be_deleted_takes_nothing_and_serves_on_if_it_stays(world: World) -> None:
    world.done(lambda: world.amqp.declare(b"/", b"q", arguments={"x-expires": 1000}))
    queue, state = world.manager.queues[Q].queue, world.manager.queues[Q]
    assert queue.publish(b"$queue/q", b"first") == 0
    world.clock.tick()
    world.hub.set_clock(1_700_000_000_000 + 5000, 6000)
    world.clock.tick()
    assert queue.ending
    assert queue.publish(b"$queue/q", b"second") == ReasonCode.SERVER_UNAVAILABLE
    for use in (lambda: world.amqp.find(*Q), lambda: world.manager.find(b"q"),
                lambda: world.amqp.declare(b"/", b"q", arguments={"x-expires": 1000})):
        with pytest.raises(Deferred):
            use()
    assert world.manager.find_now(b"q", b"/") is queue
    ending = world.definer.ending[state.id]
    assert not ending(False) and not queue.ending
    assert queue.publish(b"$queue/q", b"third") == 0 and queue.depth == 2
    member = PyMember(lambda *message: None)
    world.amqp.consume(world.amqp.find(*Q), member)
    assert not ending(True) and not queue.ending        # it is used again
    world.amqp.left(queue, member)
    assert not ending(True)                             # only a moment ago
    world.hub.set_clock(1_700_000_000_000 + 9000, 10_000)
    assert ending(True) and queue.ending
    world.definer.ended()
    assert Q not in world.manager.queues and not ending(True)


def test_only_the_node_that_has_it_ends_it(world: World) -> None:
    world.done(lambda: world.amqp.declare(b"/", b"q", auto_delete=True))
    world.manager.queues[Q].here = False
    world.manager.end(Q)
    assert world.definer.told[-1][0] == "define"


def test_exchanges_and_bindings_are_as_on_one_node(world: World) -> None:
    world.done(lambda: world.amqp.declare(b"/", b"q"))
    world.done(lambda: world.exchanges.declare(b"/", b"x", b"topic", durable=True))
    with refused(406, "type"):
        world.exchanges.declare(b"/", b"x", b"fanout", durable=True)
    world.done(lambda: world.exchanges.bind(b"/", b"x", b"q", b"a.#"))
    assert not world.exchanges.bind(b"/", b"x", b"q", b"a.#")
    world.done(lambda: world.exchanges.bind(b"/", b"amq.direct", b"x", b"k", to_exchange=True))
    assert world.bound() == {(b"x", b"a.#"), (b"amq.direct", b"k")}
    with refused(406, "in use"):
        world.exchanges.delete(b"/", b"x", if_unused=True)
    world.done(lambda: world.exchanges.unbind(b"/", b"x", b"q", b"a.#"))
    assert not world.exchanges.unbind(b"/", b"x", b"q", b"a.#")
    world.done(lambda: world.exchanges.delete(b"/", b"x"))
    assert not world.bound()
    world.exchanges.delete(b"/", b"x")          # there is none


def test_an_exchange_does_not_end_with_its_last_binding_here(world: World) -> None:
    """The cluster says when."""
    world.done(lambda: world.amqp.declare(b"/", b"q"))
    world.done(lambda: world.exchanges.declare(b"/", b"x", auto_delete=True))
    world.done(lambda: world.exchanges.bind(b"/", b"x", b"q"))
    world.done(lambda: world.exchanges.unbind(b"/", b"x", b"q"))
    assert b"x" in world.exchanges.vhosts[b"/"].exchanges


def test_no_interest_is_announced(world: World) -> None:
    """Each node routes to the queues of all."""
    world.done(lambda: world.amqp.declare(b"/", b"q"))
    world.done(lambda: world.exchanges.bind(b"/", b"amq.topic", b"q", b"a.#"))
    world.done(lambda: world.admin.declare({"name": "r", "topics": ["b/#"]}))
    world.done(lambda: world.amqp.delete(b"/", b"r"))
    assert not [told for told in world.nodes.directory.told if told[0] in ("announce", "withdraw")]


def test_a_namespace_is_deleted_when_nothing_of_the_cluster_is_in_it(world: World) -> None:
    broker = Broker(world.hub, cluster=world.nodes.cluster)
    admin = NamespaceAdmin(broker, world.manager, world.exchanges, (), lambda: set())
    admin.create("v")
    world.exchanges.add_vhost(b"v")
    world.done(lambda: world.amqp.declare(b"v", b"q"))
    world.done(lambda: world.exchanges.declare(b"v", b"x"))
    with pytest.raises(QueueRefused, match="2 queues and exchanges"):
        admin.delete("v")
    world.done(lambda: world.amqp.delete(b"v", b"q"))
    world.done(lambda: world.exchanges.delete(b"v", b"x"))
    admin.delete("v")


def test_what_comes_of_itself_waits_too(world: World) -> None:
    world.done(lambda: world.manager.find(b"q"))
    assert world.manager.find_now(b"r", b"/") is None
    queue, _ = world.done(lambda: world.manager.find(b"q.dlq"))
    assert queue is not None and world.definer.told[-1] == ("define", b"q.dlq", False, Q)


def test_the_administrator_is_told_what_was_done(world: World) -> None:
    assert world.done(lambda: world.admin.declare({"name": "q"})) == ("unchanged", "created")
    assert world.done(lambda: world.admin.declare({"name": "q", "topics": ["a/#"]})) == ("unchanged", "changed")
    assert world.manager.queues[Q].spec.topics == ("a/#",)
    with pytest.raises(Deferred) as deferred:
        world.admin.delete("q", if_unused=False, if_empty=False)
    assert deferred.value.result == 0


def test_what_this_node_has_from_its_disk_becomes_what_is_defined(world: World) -> None:
    world.done(lambda: world.amqp.declare(b"/", b"q"))
    queue = world.manager.queues[Q].queue
    other = QueueDefinition(5, QueueSpec(name="q"))
    with pytest.raises(UsageError, match="another queue q"):
        defined(world.manager).learn(other, "here")
    assert world.manager.queues[Q].queue is queue
    for identity, type_ in ((7, b"fanout"), (7, b"fanout"), (8, b"fanout"), (9, b"direct")):
        world.exchanges.learn_exchange(ExchangeDefinition(identity, b"/", b"x", type_))
        data = world.exchanges.vhosts[b"/"].exchanges[b"x"].data
        assert (data.id, data.type) == (identity, type_)
    binding = BindingDefinition(b"/", b"x", 9, False, b"q", 5, b"k")
    for _ in range(2):
        world.exchanges.learn_binding(binding)
    assert world.bound() == {(b"x", b"k")}
    for _ in range(2):
        world.exchanges.forget_binding(binding)
    world.exchanges.forget_exchange(ExchangeDefinition(8, b"/", b"x", b"fanout"))
    assert b"x" in world.exchanges.vhosts[b"/"].exchanges
    defined(world.manager).forget(other)
    assert Q in world.manager.queues


def test_records_have_an_identity_only_in_a_cluster() -> None:
    queue = QueueRecord(QueueSpec(name="q"), [LogRecord(1, 0)])
    assert len(msgspec.msgpack.decode(queue.encoded())) == 6
    with_id = msgspec.structs.replace(queue, identity=7)
    assert msgspec.msgpack.decode(with_id.encoded(), type=QueueRecord) == with_id
    assert len(msgspec.msgpack.decode(with_id.encoded())) == 7      # as the former version, which read no more
    for later in (Placement(2), Placement(1, 3)):
        placed = msgspec.structs.replace(with_id, incarnation=later.incarnation, moved=later.moved)
        assert msgspec.msgpack.decode(placed.encoded(), type=QueueRecord) == placed and placed.placement == later
    with pytest.raises(msgspec.ValidationError):
        msgspec.msgpack.decode(msgspec.structs.replace(placed, incarnation=0).encoded(), type=QueueRecord)
    exchange = StoredExchange(1, b"x", b"topic")
    assert len(msgspec.msgpack.decode(exchange.encoded())) == 6
    assert msgspec.msgpack.decode(msgspec.structs.replace(exchange, id=7).encoded(), type=StoredExchange).id == 7
