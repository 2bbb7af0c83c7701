"""What is done for a SUBSCRIBE before it has any effect here, and then for each of its filters.

    form of its filters ─► queues that all nodes must know are made ─► owners of other nodes' queues are asked
                           ─► each filter: stored, or refused ─► SUBACK

A subscription to a queue of another node is stored when all owners have answered, so SUBACK says what only they know.
Nothing more of the client is handled until then.
"""
from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import cast

from fluxmq._core.errors import ProtocolError
from fluxmq._core.mqtt.packets import Subscribe, Subscription
from fluxmq._core.pubsub.session import Session
from fluxmq._core.wire.text import check_filter, split_share
from fluxmq.edge.asking import Asking
from fluxmq.edge.mqtt.connection import Client
from fluxmq.edge.mqtt.queues import read_consume, user_pairs
from fluxmq.engine.broker import Broker
from fluxmq.engine.ports.definitions import Deferred
from fluxmq.engine.queues.consumers import QueueConsumers, is_queue_filter
from fluxmq.model.mqtt import Property, ReasonCode

__all__ = ["Attaching", "before_subscribe", "check_form", "identifier_of", "options_of", "subscribe_one"]


class Attaching:
    """What is known of the queues of one SUBSCRIBE before it is handled. unavailable: why those that do not exist
    cannot be made now. answers: by filter and options, of those whose owner was asked: reason code and text; (0, ""):
    they are attached. missing: number of answers that have not come."""

    __slots__ = ("answers", "missing", "on_done", "unavailable")

    def __init__(self, unavailable: str = "") -> None:
        self.unavailable = unavailable
        self.answers: dict[tuple[bytes, int], tuple[int, str]] = {}
        self.missing = 0
        self.on_done: Callable[[], None] | None = None

    def ask(self, broker: Broker, client: Client, packet: Subscribe, subscriptions: Iterable[Subscription]) -> None:
        """Asks the owners. Of subscriptions with the same filter each replaces the one before."""
        assert client.session is not None
        try:
            consume = read_consume(user_pairs(packet.properties))
        except ValueError:
            return  # subscribe_one says why
        for one in subscriptions:
            filter_, options = one.filter.encode(), options_of(one)
            if is_queue_filter(filter_):
                self.missing += 1   # an answer may come within the call
                if not broker.attach_elsewhere(client.session, filter_, options, identifier_of(packet), consume,
                                               partial(self._answered, (filter_, options))):
                    self.missing -= 1

    def _answered(self, which: tuple[bytes, int], code: int, why: str) -> None:
        self.answers[which] = code, why
        self.missing -= 1
        if self.missing == 0 and self.on_done is not None:
            self.on_done()

    def give_up(self, broker: Broker, session: Session, subscription: Subscription) -> None:
        """This subscription is not permitted any more."""
        filter_ = subscription.filter.encode()
        if (filter_, options_of(subscription)) in self.answers:
            broker.attach_stored(session, filter_)


def options_of(subscription: Subscription) -> int:
    """The Subscription Options byte, MQTT 5.0 section 3.8.3.1."""
    return (subscription.qos | subscription.no_local << 2 | subscription.retain_as_published << 3
            | subscription.retain_handling << 4)


def identifier_of(packet: Subscribe) -> int:
    """The Subscription Identifier; 0: there is none."""
    return cast(int, packet.get(Property.SUBSCRIPTION_IDENTIFIER, 0))


def before_subscribe(broker: Broker, asking: Asking, client: Client, packet: Subscribe,
                     permitted: Callable[[str], bool], then: Callable[[Attaching], None]) -> bool:
    """Has the queues of a SUBSCRIBE made that all nodes of a cluster must know, and asks the owners of those that other
    nodes have; then calls then(). True: the packet waits for a queue, and comes again."""
    assert broker.consumers is not None
    subscriptions = [one for one in packet.subscriptions if permitted(one.filter)]
    unavailable = _look_for_queues(broker.consumers, asking, client, (one.filter for one in subscriptions))
    if unavailable is None:
        return True
    attaching = Attaching(unavailable)
    attaching.ask(broker, client, packet, subscriptions)
    if attaching.missing == 0:
        then(attaching)
    else:
        attaching.on_done = asking.wait(client, partial(then, attaching))
    return False


def _look_for_queues(consumers: QueueConsumers, asking: Asking, client: Client, filters: Iterable[str]) -> str | None:
    """None: the packet waits for a queue that is made. Otherwise why one cannot be made now, or ""."""
    for filter_ in filters:
        if client.session is None or not is_queue_filter(filter_.encode()):
            continue
        try:
            consumers.look_for(client.session.namespace, filter_.encode())
        except Deferred as deferred:
            refused = asking.change(client, deferred)
            return None if refused is None else refused.text
    return ""


def subscribe_one(broker: Broker, session: Session, packet: Subscribe, subscription: Subscription, qos_max: int,
                  attaching: Attaching) -> tuple[int, bool, str]:
    """Handles a filter that is permitted. Returns the reason code, whether retained messages are to be sent, and the
    text of a queue's refusal."""
    filter_, options = subscription.filter.encode(), options_of(subscription)
    answer = attaching.answers.get((filter_, options))
    code, why = answer or (0, "")
    if code:
        return code, False, why
    consume = None
    if is_queue_filter(filter_):
        try:
            consume = read_consume(user_pairs(packet.properties))
        except ValueError as error:
            return ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR, False, str(error)
    code, retained = broker.subscribe(session, filter_, options, identifier_of(packet), consume,
                                      attached=answer is not None)
    if code >= 0x80 and consume is not None and broker.consumers is not None:
        why = broker.consumers.refusal(session.namespace, filter_, min(options & 3, qos_max), consume)[1]
        if why and attaching.unavailable and code == ReasonCode.TOPIC_FILTER_INVALID:
            return ReasonCode.UNSPECIFIED_ERROR, False, attaching.unavailable
    return code, retained, why


def check_form(filter_: str, v5: bool) -> None:
    """Raises ProtocolError for an invalid topic filter: section 4.7 and, for MQTT 5.0, 4.8.2. A valid filter that is
    refused is answered instead (0x8F, 0x80)."""
    raw = filter_.encode()
    try:
        share = split_share(raw) if v5 else None
    except ValueError as error:
        raise ProtocolError(ReasonCode.PROTOCOL_ERROR, f"{filter_!r}: {error} [MQTT-4.8.2-1, 4.8.2-2]") from None
    if check_filter(share[1] if share else raw) != 1:
        raise ProtocolError(ReasonCode.MALFORMED_PACKET,
                            f"{filter_!r} is no topic filter: that is not empty, + is alone in its level, # alone in "
                            f"the last [MQTT-4.7.1-1, 4.7.1-2, 4.7.3-1]")
