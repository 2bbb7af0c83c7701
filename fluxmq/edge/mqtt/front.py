"""The cold packets of MQTT, both versions: a Front per listener is the `handler` of its connections.

    CONNECT, AUTH      edge/mqtt/connect.py
    SUBSCRIBE, UNSUBSCRIBE, DISCONNECT, protocol errors, ends, clocks    here
"""
from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, cast

from fluxmq._core.errors import ProtocolError
from fluxmq._core.memory.tickets import Tickets
from fluxmq._core.mqtt.decode import decode_packet
from fluxmq._core.mqtt.encode import encode_packet
from fluxmq._core.mqtt.packets import Auth, Disconnect, PubAck, PubRec, SubAck, Subscribe, UnsubAck, Unsubscribe
from fluxmq._core.net.connection import Connection
from fluxmq._core.pubsub.session import Session
from fluxmq.edge.asking import PUBLISH, Asking
from fluxmq.edge.mqtt.connack import refuse
from fluxmq.edge.mqtt.connect import Connecting
from fluxmq.edge.mqtt.connection import Client, user_properties
from fluxmq.edge.mqtt.options import FrontOptions
from fluxmq.edge.mqtt.parts import FrontParts
from fluxmq.edge.mqtt.queues import pairs_of_publish
from fluxmq.edge.mqtt.subscriptions import (
    Attaching,
    before_subscribe,
    check_form,
    identifier_of,
    options_of,
    subscribe_one,
)
from fluxmq.edge.mqtt.tally import ENDED_BY, Tally
from fluxmq.edge.mqtt.upgrade import answer_upgrade
from fluxmq.edge.recording import record_opened
from fluxmq.edge.shares import Shares
from fluxmq.engine.broker import Broker
from fluxmq.engine.ports.access import Authority
from fluxmq.engine.ports.definitions import Deferred
from fluxmq.engine.ports.guard import Guard
from fluxmq.model.mqtt import PacketType, Property, ReasonCode

__all__ = ["Front"]

REASON_LENGTH_MAX = 4000
STEPS_AT_ONCE = 100  # filters of one packet: a millisecond

# Reasons why the clock ends a connection -> reason code for an MQTT 5 client.
LATE = {
    "keep_alive": ReasonCode.KEEP_ALIVE_TIMEOUT,  # [MQTT-3.1.2-22]
    "full": ReasonCode.QUOTA_EXCEEDED,
    "write": ReasonCode.UNSPECIFIED_ERROR,
    "connect": ReasonCode.UNSPECIFIED_ERROR,
}


class Front(FrontParts):
    """Handler of every connection of one listener. version: 0, or the only accepted version (3: 3.1 and 3.1.1, 5).
    later: schedules a call after some seconds. The others: as FrontParts."""

    def __init__(self, broker: Broker, authority: Authority, options: FrontOptions, tally: Tally, name: str, *,
                 version: int = 0, username_from: str = "", path: str = "/mqtt", origins: tuple[str, ...] = (),
                 guard: Guard | None = None, asking: Asking | None = None,
                 on_log: Callable[[str, str, str, dict[str, Any]], None],
                 log_connections: Callable[[], bool] = lambda: True,
                 later: Callable[[float, Callable[[], None]], Any]) -> None:
        super().__init__(broker, authority, options, tally, name, guard=guard, asking=asking, on_log=on_log,
                         log_connections=log_connections)
        self.path = path
        self.origins = origins
        self.shares = Shares(later)
        self.connections = 0
        self.connecting = Connecting(self, version, username_from)

    # ------------------------------------------------------------------ the handler's verbs

    def on_packet(self, connection: Connection, first: int, body: bytes) -> bool:
        """Handles a cold packet. True: nothing was done yet, and the packet is passed again when pending questions are
        answered."""
        kind = first >> 4
        client: Client | None = connection.state
        if client is None:
            self.connecting.begin(connection, first, body)
            return False
        if kind == PacketType.CONNECT:
            raise ProtocolError(ReasonCode.PROTOCOL_ERROR, "a second CONNECT [MQTT-3.1.0-2]")
        if kind not in (PacketType.SUBSCRIBE, PacketType.UNSUBSCRIBE, PacketType.DISCONNECT, PacketType.AUTH) or (
                kind == PacketType.AUTH and client.version != 5):
            raise ProtocolError(ReasonCode.PROTOCOL_ERROR, f"packet type {kind} may not be sent by a client")
        packet = decode_packet(first, body, client.version)
        # The hot path counts those of PUBLISH; those of CONNECT are counted at login.
        if user_properties(cast(Any, packet).properties) > self.options.user_properties_max:
            raise ProtocolError(ReasonCode.QUOTA_EXCEEDED, f"more than {self.options.user_properties_max} user "
                                                           f"properties (broker.max_user_properties)")
        if kind == PacketType.AUTH:
            self.connecting.on_auth(client, cast(Auth, packet))
        elif kind == PacketType.DISCONNECT:
            self.on_disconnect(client, cast(Disconnect, packet))
        elif not connection.open:
            raise ProtocolError(ReasonCode.PROTOCOL_ERROR, "only AUTH or DISCONNECT before authentication has ended "
                                                           "[MQTT-3.1.2-30]")
        elif kind == PacketType.SUBSCRIBE:
            return self.on_subscribe(client, cast(Subscribe, packet))
        else:
            self.on_unsubscribe(client, cast(Unsubscribe, packet))
        return False

    def on_http(self, connection: Connection, head: bytes) -> tuple[bool, bytes]:
        """Handles the HTTP request of a WebSocket upgrade."""
        accepted, response, why = answer_upgrade(head, self.path, self.origins)
        if not accepted:
            self.tally.refusals["websocket"] += 1
            self.on_log("warning", "websocket", f"WebSocket upgrade refused: {why}",
                        {"listener": self.name, "peer": connection.peer})
        return accepted, response

    def on_error(self, connection: Connection, reason: int, text: str) -> None:
        """The client violated the protocol: sends an error if the protocol has one, and logs it."""
        client: Client | None = connection.state
        connection.end_code = reason
        fields = {"listener": self.name, "peer": connection.peer, "reason": f"0x{reason:02x}"} | (
            {"client_id": client.client_id} | client.place() if client is not None else {})
        self.on_log("warning", f"protocol {reason}", text, fields)
        if client is not None and connection.open:
            client.ended_by = ENDED_BY.get(ReasonCode(reason), "protocol_error")
            client.say_goodbye(reason, text)
            return
        self.tally.refused(reason)
        if reason:
            refuse(connection, client, reason, text)

    def on_crash(self, connection: Connection, error: BaseException) -> None:
        client = connection.state
        self.on_log("error", f"crash {type(error).__name__}", f"internal error, connection closed: {error!r}",
                    {"listener": self.name, "client_id": client.client_id if client else "", "error": error})
        if client is not None:
            client.ended_by = "error"
            client.say_goodbye(ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR)

    def on_end(self, connection: Connection) -> None:
        """Called when the connection has ended for any reason."""
        self.connections -= 1
        self.asking.forget(connection)
        if connection.origin is not None:
            connection.origin.leave()
        client: Client | None = connection.state
        if client is not None and client.taken:
            connection.end_why = client.ended_by
        elif not connection.end_why:
            connection.end_why = "lost" if connection.eof else "refused"
        if client is None:
            return
        session = client.session
        if session is not None:
            if client.taken:
                self.tally.disconnections[client.ended_by] += 1
            self.broker.disconnect(session, client, publish_will=client.publish_will, expiry_s=client.expiry_override)
            if self.log_connections():
                self.on_log("info", "", "disconnected", {"client_id": client.client_id, "why": client.ended_by,
                                                          "dropped": connection.dropped} | client.place())
        client.session = None
        client.login = None

    def on_given_up(self, connection: Connection, why: str) -> None:
        """The commit that an answer waited for was given up, so the answer cannot be sent. The client must connect
        again and repeat its request [MQTT-4.13.2-1]. The caller ends the connection."""
        client: Client | None = connection.state
        self.on_log("warning", f"given up {self.name}", f"connection closed: {why}",
                    {"listener": self.name, "client_id": client.client_id if client else "", "peer": connection.peer})
        if client is not None:
            client.ended_by = "error"
            client.say_goodbye(ReasonCode.UNSPECIFIED_ERROR, why)

    def on_refused(self, connection: Connection, kind: int, packet_id: int, reason: int, text: str) -> None:
        """Sends PUBACK or PUBREC with an error, and with the text if the client wants it and it fits [MQTT-3.4.2-2]."""
        client: Client = connection.state
        packet = PubAck if kind == PacketType.PUBACK else PubRec
        data = encode_packet(packet(packet_id, reason_code=reason), 5)
        if client.problem_information:
            with_text = encode_packet(
                packet(packet_id, reason_code=reason, properties=[(Property.REASON_STRING, text)]), 5)
            if len(with_text) <= client.packet_size_max:
                data = with_text
        connection.write_when_durable(data, self.hub.commits.mark)

    def may_publish(self, connection: Connection, topic: bytes) -> int | None:
        """Called by the hot path once per topic and generation of the permissions. None: the question is under way."""
        client: Client = connection.state
        allowed = self.asking.decide(client, PUBLISH, topic.decode())
        if allowed == 0:
            self.on_log("warning", f"acl {client.client_id}", "publish denied",
                        client.who() | {"topic": topic.decode()})
        return allowed

    def record_present(self, connection: Connection, reader: int) -> None:
        """Records that this connection was open when a recording, or a view, began."""
        record_opened(connection, self.name, reader)
        client: Client | None = connection.state
        if client is not None:
            client.record_accepted(reader)

    def on_late(self, connection: Connection, why: str) -> None:
        """Called when a time limit ended a connection; `why` as in Connection.tick."""
        client: Client | None = connection.state
        self.on_log("warning", f"late {why}", {"keep_alive": "nothing heard for 1.5 x keep alive",
                                               "write": "sent bytes were not taken for server…write_timeout",
                                               "connect": "no CONNECT within server…read_timeout",
                                               "full": "send buffer full (session.disconnect_on_full)"}[why],
                    {"listener": self.name, "client_id": client.client_id if client else "", "peer": connection.peer})
        if client is not None and connection.open:
            client.ended_by = {"keep_alive": "keep_alive", "write": "write_timeout", "full": "send_buffer_full"}[why]
            client.say_goodbye(LATE[why])
        else:
            connection.end_why = "timeout"
            self.tally.refusals["timeout"] += 1
        if why == "keep_alive":
            connection.end()
        else:
            connection.abort()

    # ------------------------------------------------------------------ packets

    def on_subscribe(self, client: Client, packet: Subscribe) -> bool:
        """Handles SUBSCRIBE, MQTT 5.0 section 3.8: a reason code per filter, in order [MQTT-3.8.4-6]. True: it must
        wait."""
        for subscription in packet.subscriptions:
            check_form(subscription.filter, client.version == 5)
        decided: dict[str, int] = {}
        if self.authority.asks and not self.authority.open_subscribe:
            answers = self.asking.decide_filters(client, (each.filter for each in packet.subscriptions))
            if answers is None:
                return True
            decided = answers
        generation = self.authority.generation

        def permitted(filter_: str) -> bool:
            return self._may_subscribe(client, filter_, decided, generation)

        def go_on(attaching: Attaching) -> None:
            if client.session is not None:
                steps = self._subscriptions(client, packet, permitted, attaching)
                self._in_shares(client, steps, len(packet.subscriptions))

        def go_on_later(attaching: Attaching) -> None:
            try:
                go_on(attaching)
            except Exception as error:  # it is called for a frame of another node
                self.on_crash(client.connection, error)

        if self.broker.consumers is not None and self.broker.directory.definer is not None:
            return before_subscribe(self.broker, self.asking, client, packet, permitted, go_on_later)
        go_on(Attaching())
        return False

    def _may_subscribe(self, client: Client, filter_: str, decided: dict[str, int], generation: int) -> bool:
        """decided: answers under that generation; a filter that became undecided by a reload since then is refused."""
        if self.authority.open_subscribe:
            return True
        if decided and generation == self.authority.generation:
            return decided[filter_] > 0
        return bool(self.authority.may_subscribe(client.identity, client.client_id, filter_, client.place_name))

    def _in_shares(self, client: Client, steps: Iterator[None], count: int) -> None:
        """Runs the steps of one packet: at once if there are few. Otherwise nothing more is read from the client until
        they are done, so that its packets are answered in order."""
        if count <= STEPS_AT_ONCE:
            for _ in steps:
                pass
            return
        connection, waits = client.connection, False

        def all_steps() -> Iterator[None]:
            try:
                yield from steps
            except Exception as error:  # the call that continues the steps may belong to another client
                self.on_crash(connection, error)
            if waits and not connection.ended:
                connection.resume()

        if not self.shares.begin(all_steps()):
            waits = True
            connection.pause()

    def _subscriptions(self, client: Client, packet: Subscribe, permitted: Callable[[str], bool],
                       attaching: Attaching) -> Iterator[None]:
        """Handles one filter in each step, and answers at the end; does nothing more when the connection has ended
        meanwhile."""
        session = client.session
        assert session is not None
        v5 = client.version == 5
        tickets = Tickets(self.hub.commits)
        codes = []
        refused: list[str] = []
        wants_retained: list[tuple[bytes, int, int]] = []
        for subscription in packet.subscriptions:
            if client.session is not session:
                return
            if not permitted(subscription.filter):
                code: int = ReasonCode.NOT_AUTHORIZED
                with tickets:
                    attaching.give_up(self.broker, session, subscription)
                self.tally.subscribe_denied += 1
                self.on_log("warning", f"acl {client.client_id}", "subscribe denied",
                            client.who() | {"filter": subscription.filter})
            else:
                with tickets:
                    code, retained, why = subscribe_one(self.broker, session, packet, subscription,
                                                        self.options.qos_max, attaching)
                if why:
                    refused.append(f"{subscription.filter}: {why}")
                    self.on_log("warning", f"queue {client.client_id}", f"subscription refused: {why}",
                                {"client_id": client.client_id, "filter": subscription.filter})
                if retained:
                    # What is set from now on is published to this subscription.
                    wants_retained.append((subscription.filter.encode(), options_of(subscription),
                                           session.namespace.topics.retained.stamp))
            codes.append(code if v5 or code < 0x80 else 0x80)
            yield
        if client.session is not session:
            return
        data = encode_packet(SubAck(packet.packet_id, codes), client.version)
        if refused and v5 and client.problem_information:
            with_text = encode_packet(SubAck(packet.packet_id, codes, properties=[
                (Property.REASON_STRING, "; ".join(refused)[:REASON_LENGTH_MAX])]), 5)
            data = with_text if len(with_text) <= client.packet_size_max else data
        client.connection.write_when_decided(data, tickets)
        if wants_retained:
            # Sent after SUBACK, as users expect, although the specification allows them earlier.
            self.hub.when_decided(
                lambda: self._deliver_retained(session, wants_retained, identifier_of(packet)), tickets)

    def _deliver_retained(self, session: Session, filters: list[tuple[bytes, int, int]], identifier: int) -> None:
        def steps() -> Iterator[None]:
            for one in filters:
                self.broker.deliver_retained(session, [one], identifier)
                yield

        if len(filters) <= STEPS_AT_ONCE:
            self.broker.deliver_retained(session, filters, identifier)
        else:
            self.shares.begin(steps())

    def on_queue_order(self, connection: Connection, topic: bytes, properties: bytes) -> tuple[int, str]:
        """Handles a PUBLISH to `$queue/<name>/$ack|$nack|$reject|$extend|$commit`: 0, or the reason code and a text."""
        client: Client = connection.state
        if client.session is None or self.broker.consumers is None:
            return ReasonCode.TOPIC_NAME_INVALID, "there are no queues"
        return self.broker.consumers.settle(client.session, topic, pairs_of_publish(properties))

    def on_queue_unknown(self, connection: Connection, topic: bytes) -> bool | None:
        """Called when nothing takes this topic below `$queue/`: makes it if configured; returns whether it did. None:
        the queue is being made, and the connection is paused until all nodes know it."""
        client: Client = connection.state
        if self.broker.consumers is None or client.session is None:
            return False
        try:
            made = self.broker.consumers.make_for(topic, client.session.namespace)
        except Deferred as deferred:
            if self.asking.change(client, deferred) is None:
                return None
            made = False
        if not made:
            self.on_log("warning", f"queue {client.client_id}", "publish refused: there is no such queue",
                        {"client_id": client.client_id, "topic": topic.decode()})
        return made

    def on_unsubscribe(self, client: Client, packet: Unsubscribe) -> None:
        """UNSUBSCRIBE, MQTT 5.0 section 3.10."""
        for filter_ in packet.filters:
            check_form(filter_, client.version == 5)
        self._in_shares(client, self._unsubscriptions(client, packet), len(packet.filters))

    def _unsubscriptions(self, client: Client, packet: Unsubscribe) -> Iterator[None]:
        session = client.session
        assert session is not None
        tickets, codes = Tickets(self.hub.commits), []
        for filter_ in packet.filters:
            if client.session is not session:
                return
            with tickets:
                codes.append(self.broker.unsubscribe(session, filter_.encode()))
            yield
        data = encode_packet(UnsubAck(packet.packet_id, reason_codes=codes if client.version == 5 else []),
                             client.version)
        if client.session is session:
            client.connection.write_when_decided(data, tickets)

    def on_disconnect(self, client: Client, packet: Disconnect) -> None:
        """DISCONNECT, MQTT 5.0 section 3.14: only reason 0x00 discards the will [MQTT-3.14.4-3]."""
        expiry = packet.get(Property.SESSION_EXPIRY_INTERVAL)
        if expiry and client.session is not None and client.session.data.expiry_s == 0:
            raise ProtocolError(ReasonCode.PROTOCOL_ERROR, "Session Expiry Interval in DISCONNECT although it was 0 in "
                                                           "CONNECT (MQTT 5.0 section 3.14.2.2.2)")
        client.publish_will = packet.reason_code != ReasonCode.SUCCESS
        client.ended_by = "client"
        client.connection.end_code = packet.reason_code
        client.expiry_override = cast("int | None", expiry)
        client.connection.end(finish_acknowledging=True)
