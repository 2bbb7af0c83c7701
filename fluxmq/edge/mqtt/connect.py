"""CONNECT and AUTH: from the first packet to CONNACK.

    CONNECT ─► version, client identifier, will ─► password (may take time) ─► engine ─► disk ─► CONNACK
                                               └─► AUTH … AUTH (MQTT 5 enhanced authentication) ─┘

The connection is paused while anything takes time, so what a client sends ahead of CONNACK waits its turn
[MQTT-3.1.4-6].
"""
from __future__ import annotations

import asyncio
import secrets
from typing import TYPE_CHECKING, Any, cast

from fluxmq._core.errors import AuthError, ProtocolError
from fluxmq._core.mqtt.decode import connect_level, decode_packet
from fluxmq._core.mqtt.encode import encode_packet
from fluxmq._core.mqtt.packets import Auth, Connect
from fluxmq._core.mqtt.props import encode_properties
from fluxmq._core.wire.text import check_topic, is_reserved
from fluxmq.edge.asking import PUBLISH, Undecided
from fluxmq.edge.mqtt.connack import PACKET_SIZE_UNLIMITED, accepted_v5
from fluxmq.edge.mqtt.connection import Client, Login, user_properties, without_length
from fluxmq.edge.mqtt.namespaces import find_namespace, split_user_name
from fluxmq.engine.ports.cluster import OwnedElsewhere, Unclaimed
from fluxmq.engine.queues.consumers import is_order
from fluxmq.engine.sessions.state import EXPIRY_NEVER, Will
from fluxmq.model import limits
from fluxmq.model.mqtt import Property, ReasonCode

if TYPE_CHECKING:
    from fluxmq._core.net.connection import Connection
    from fluxmq.edge.mqtt.parts import FrontParts

__all__ = ["Connecting"]

CONNECT = 1
# Reserved prefixes for client identifiers of other protocols, so that logs and access lists do not confuse them.
OTHERS_CLIENT_IDS = ("amqp091-", "amqp:")
# Properties of a will that are for the broker; the others are forwarded with the message (MQTT 5.0 section 3.1.3.2).
WILL_OWN = (Property.WILL_DELAY_INTERVAL, Property.MESSAGE_EXPIRY_INTERVAL)


class Connecting:
    """The steps of CONNECT and AUTH for the connections of one listener."""

    def __init__(self, front: FrontParts, version: int, username_from: str) -> None:
        self.front = front
        self.version = version
        self.username_from = username_from
        self._tasks: set[asyncio.Task[None]] = set()

    # ------------------------------------------------------------------ first packet

    def begin(self, connection: Connection, first: int, body: bytes) -> None:
        """Handles the first packet, which is a CONNECT."""
        level = connect_level(body)
        if level:
            connection.set_version(level)
        else:
            # An unknown protocol level is refused in the format of 3.1.1, which every client can read [MQTT-3.1.2-2 of
            # 3.1.1]; another protocol name is not answered [MQTT-3.1.2-1].
            connection.set_version(4 if body[:6] == b"\x00\x04MQTT" or body[:8] == b"\x00\x06MQIsdp" else 0)
        packet = cast(Connect, decode_packet(first, body, 0))
        if self.version and self.version != (5 if level == 5 else 3):
            raise ProtocolError(ReasonCode.UNSUPPORTED_PROTOCOL_VERSION,
                                f"this listener takes only MQTT {'5' if self.version == 5 else '3.x'}")
        client = Client(connection, packet)
        login = cast(Login, client.login)
        connection.state = client
        client.packet_size_max = cast(int, packet.get(Property.MAXIMUM_PACKET_SIZE, PACKET_SIZE_UNLIMITED))
        if len(packet.client_id.encode()) > limits.CLIENT_ID_BYTES_MAX:
            raise ProtocolError(ReasonCode.CLIENT_IDENTIFIER_NOT_VALID,
                                f"the client identifier is longer than {limits.CLIENT_ID_BYTES_MAX} bytes")
        if packet.client_id.startswith(OTHERS_CLIENT_IDS):
            raise ProtocolError(ReasonCode.CLIENT_IDENTIFIER_NOT_VALID,
                                f"what begins with {' or '.join(OTHERS_CLIENT_IDS)} is a client identifier of AMQP")
        most = self.front.options.user_properties_max
        of_will = user_properties(packet.will.properties if packet.will else ())
        if max(user_properties(packet.properties), of_will) > most:
            raise ProtocolError(ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR,
                                f"more than {most} user properties (broker.max_user_properties)")
        if not packet.client_id and (level == 3 or (level == 4 and not packet.clean_start)):
            raise ProtocolError(ReasonCode.CLIENT_IDENTIFIER_NOT_VALID,
                                "a session that is kept needs a client identifier [MQTT-3.1.3-8]")
        client.problem_information = bool(packet.get(Property.REQUEST_PROBLEM_INFORMATION, 1))
        login.namespace, login.username = split_user_name(self.front, packet.username)
        client.method = cast("str | None", packet.get(Property.AUTHENTICATION_METHOD))
        if client.method is not None:
            self._begin_exchange(client)
            return
        authority = self.front.authority
        certificate = connection.certificate if self.username_from else None
        if packet.password is not None:
            self._refuse_banned(client, login.username)
        if authority.needs_wait(login.username, packet.password, certificate, self.username_from):
            connection.pause()
            task = asyncio.get_running_loop().create_task(self._authenticate(client, login, certificate))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
            return
        client.identity = authority.authenticate_now(packet.client_id, login.username, packet.password, certificate,
                                                     self.username_from)
        self.finish(client)

    async def _authenticate(self, client: Client, login: Login, certificate: dict[str, Any] | None) -> None:
        connection, packet = client.connection, login.packet
        later = False
        try:
            client.identity = await self.front.authority.authenticate(
                packet.client_id, login.username, packet.password, certificate, self.username_from,
                connection.origin.key if connection.origin is not None else b"")
            self._refuse_banned(client, login.username)
            if client.login is not None and not connection.ended:
                self.finish(client)
        except ProtocolError as error:
            if error.reason == ReasonCode.BAD_USER_NAME_OR_PASSWORD:
                later = self._refuse_login(client, login.username, error)
            else:
                connection.fail(error)
        except Exception as error:
            connection.crash(error)
        finally:
            if not later and (client.session is None or client.connection.open):
                connection.resume()

    # ------------------------------------------------------------------ failed logins

    def _refuse_banned(self, client: Client, username: str | None) -> None:
        """Raises AuthError if this user may not log in from this address at present."""
        guard, origin = self.front.guard, client.connection.origin
        if guard is not None and origin is not None and (banned := guard.refusal(origin.key, username or "")):
            # DISCONNECT, which ends a re-authentication, has no 0x8A (MQTT 5.0 section 3.14.2.1).
            raise banned if client.login is not None else AuthError(ReasonCode.NOT_AUTHORIZED, banned.text)

    def _refuse_login(self, client: Client, username: str | None, error: ProtocolError) -> bool:
        """Ends the connection, now or later, because a password or proof was wrong. Returns whether later; the
        connection is paused meanwhile, if necessary by the caller."""
        guard, connection = self.front.guard, client.connection
        if guard is None or connection.origin is None:
            connection.fail(error)
            return False
        try:
            self._refuse_banned(client, username)
        except AuthError as banned:
            connection.fail(banned)
            return False

        def answer() -> None:
            if connection.ended:
                self.front.tally.auth_failures += 1
            else:
                connection.fail(error)

        return guard.failed(connection.origin.key, username or "", answer)

    # ------------------------------------------------------------------ enhanced authentication

    def _begin_exchange(self, client: Client) -> None:
        """Begins enhanced authentication: CONNECT named a method (MQTT 5.0 section 4.12)."""
        assert client.login is not None and client.method is not None
        client.exchange = self.front.authority.begin_exchange(client.method)
        if client.exchange is None:
            raise AuthError(ReasonCode.BAD_AUTHENTICATION_METHOD,
                            f"authentication method {client.method!r} is not supported [MQTT-4.12.0-1]")
        data = client.login.packet.get(Property.AUTHENTICATION_DATA)
        if data is None:
            self._send_auth(client, b"", ReasonCode.CONTINUE_AUTHENTICATION)
        else:
            self._step(client, cast(bytes, data))

    def _step(self, client: Client, data: bytes) -> None:
        assert client.exchange is not None
        try:
            reply, done = client.exchange.step(data)
        except AuthError as error:
            if not client.exchange.claimed:
                raise
            client.connection.pause()
            self._refuse_login(client, client.exchange.claimed, error)
            return
        self._refuse_banned(client, client.exchange.claimed)
        if not done:
            self._send_auth(client, reply, ReasonCode.CONTINUE_AUTHENTICATION)
            return
        exchange, client.exchange = client.exchange, None
        claimed = client.login.username if client.login is not None else client.identity
        certificate = client.connection.certificate if self.username_from else None
        client.identity = self.front.authority.finish_exchange(exchange, claimed, certificate, self.username_from)
        if client.login is not None:
            self.finish(client, reply)
        else:
            self._send_auth(client, reply, ReasonCode.SUCCESS)

    def _send_auth(self, client: Client, data: bytes, reason: int) -> None:
        properties: list[Any] = [(Property.AUTHENTICATION_METHOD, client.method)]
        if data:
            properties.append((Property.AUTHENTICATION_DATA, data))
        answer = encode_packet(Auth(reason_code=reason, properties=properties), 5)
        if len(answer) > client.packet_size_max:
            raise ProtocolError(ReasonCode.PACKET_TOO_LARGE, "AUTH does not fit into the client's Maximum Packet Size")
        client.connection.write(answer)

    def on_auth(self, client: Client, packet: Auth) -> None:
        """Handles AUTH: the next step, or the first one of a re-authentication [MQTT-4.12.1-1]."""
        if client.method is None:
            raise ProtocolError(ReasonCode.PROTOCOL_ERROR, "AUTH although CONNECT named no method [MQTT-4.12.0-6]")
        if packet.get(Property.AUTHENTICATION_METHOD) != client.method:
            raise ProtocolError(ReasonCode.PROTOCOL_ERROR, "AUTH with another method than CONNECT [MQTT-4.12.0-5]")
        data = cast(bytes, packet.get(Property.AUTHENTICATION_DATA, b""))
        if packet.reason_code == ReasonCode.RE_AUTHENTICATE and client.login is None:
            client.exchange = self.front.authority.begin_exchange(client.method)
        elif packet.reason_code != ReasonCode.CONTINUE_AUTHENTICATION:
            raise ProtocolError(ReasonCode.PROTOCOL_ERROR, f"AUTH with reason 0x{packet.reason_code:02x} here")
        if client.exchange is None:
            raise ProtocolError(ReasonCode.PROTOCOL_ERROR, "AUTH although no authentication is under way")
        self._step(client, data)

    # ------------------------------------------------------------------ CONNACK

    def finish(self, client: Client, auth_data: bytes = b"") -> None:
        """Called when the client is authenticated: session, disk, CONNACK. Waits if the will's permission, or the owner
        of the session, must be asked first."""
        try:
            self._finish(client, auth_data)
        except OwnedElsewhere as elsewhere:
            cast(Login, client.login).reference = elsewhere.reference
            raise
        except (Undecided, Unclaimed) as question:
            if isinstance(question, Unclaimed):
                self.front.asking.claim(client.connection, client.client_id, question.take())
            self.front.asking.then(client.connection, lambda: self._finish_later(client, auth_data))

    def _finish_later(self, client: Client, auth_data: bytes) -> None:
        try:
            if client.login is not None and not client.connection.ended:
                self.finish(client, auth_data)
        except ProtocolError as error:
            client.connection.fail(error)
        except Exception as error:
            client.connection.crash(error)

    def _finish(self, client: Client, auth_data: bytes) -> None:
        assert client.login is not None
        connection, packet, options = client.connection, client.login.packet, self.front.options
        if client.identity is not None and connection.origin is not None and self.front.guard is not None:
            self.front.guard.succeeded(connection.origin.key, client.identity)
        v5 = client.version == 5
        assigned = not packet.client_id
        if not client.name:     # this is called again when another node has answered
            client.name = f"fluxmq-{secrets.token_hex(12)}".encode()
        namespace = client.namespace = find_namespace(self.front, client)
        will = self._will(client)
        requested_s = cast(int, packet.get(Property.SESSION_EXPIRY_INTERVAL, 0)) if v5 else (
            0 if packet.clean_start else EXPIRY_NEVER)
        expiry_s = self.front.broker.cap_expiry(requested_s)
        keep_alive = packet.keep_alive
        if v5 and options.keep_alive_max_s and not 0 < keep_alive <= options.keep_alive_max_s:
            keep_alive = options.keep_alive_max_s
        since = self.front.hub.commits.mark
        session, present = self.front.broker.connect(
            client.name, version=client.version, clean_start=packet.clean_start, expiry_s=expiry_s,
            keep_alive_s=keep_alive, will=will, username=client.identity, connection=client, namespace=namespace,
            asked_ms=client.login.asked_ms)
        client.session = session
        client.name = session.name  # one object for both
        client.present = present
        client.login = None
        if v5:
            answer = accepted_v5(
                options, client, packet, present, assigned, expiry_s if expiry_s != requested_s else None,
                keep_alive if keep_alive != packet.keep_alive else None, auth_data)
        else:
            answer = bytes((0x20, 2, present and client.version == 4, 0))  # MQTT 3.1 has no session present flag
        window = min(cast(int, packet.get(Property.RECEIVE_MAXIMUM, 65535)), options.inflight_max)
        alias_max = cast(int, packet.get(Property.TOPIC_ALIAS_MAXIMUM, 0))
        connection.keep_alive_ms = keep_alive * 1500
        connection.write_timeout_ms = options.write_timeout_ms
        connection.packet_bytes_max = options.packet_bytes_max

        def accept() -> None:
            # The session must be on disk before the client learns that it has one.
            if connection.ended or session.data is None or session.data.connection is not client:
                return
            client.taken = True
            self.front.tally.accepted += 1
            connection.write(answer)
            connection.deadline_ms = 0
            connection.incarnation, connection.counted = session.data.incarnation, session.data.counted
            connection.accept(session, window, client.packet_size_max, alias_max)
            if self.front.hub.recording:
                client.record_accepted()
            self.front.broker.attached(session)
            connection.resume()

        def given_up(why: str) -> None:
            connection.handler.on_given_up(connection, why)
            connection.end()

        if not self.front.hub.when_durable(accept, since, given_up):
            connection.pause()
        if self.front.log_connections():
            self.front.on_log("info", "", "connected", {
                "client_id": client.client_id, "peer": connection.peer, "listener": self.front.name,
                "version": {3: "3.1", 4: "3.1.1", 5: "5.0"}[client.version], "user": client.identity,
                "present": present} | client.place())

    def _will(self, client: Client) -> Will | None:
        assert client.login is not None
        will = client.login.packet.will
        if will is None:
            return None
        options = self.front.options
        topic = will.topic.encode()
        if check_topic(topic, options.topic_levels_max) != 1:
            raise ProtocolError(ReasonCode.TOPIC_NAME_INVALID, "the will's topic is not a topic name [MQTT-3.1.3-11]")
        if is_order(will.topic.encode()):
            raise ProtocolError(ReasonCode.TOPIC_NAME_INVALID, "a will is not about a message of a queue: its "
                                                               "publisher is gone")
        if will.qos > options.qos_max:
            raise ProtocolError(ReasonCode.QOS_NOT_SUPPORTED, f"the QoS of the will is over {options.qos_max}")
        if len(will.payload) > options.payload_bytes_max:
            raise ProtocolError(ReasonCode.PACKET_TOO_LARGE, "the will is over broker.max_message_size")
        if will.retain and not options.retain_available:
            raise ProtocolError(ReasonCode.RETAIN_NOT_SUPPORTED, "the will asks for RETAIN, but retained messages are "
                                                                 "off (broker.max_retained_messages: 0) "
                                                                 "[MQTT-3.2.2-13]")
        allowed: int | None = 0 if is_reserved(topic) else 1
        if allowed and not self.front.authority.open_publish:
            allowed = self.front.asking.decide(client, PUBLISH, will.topic)
        if allowed is None:
            raise Undecided
        if allowed <= 0:
            raise AuthError(ReasonCode.NOT_AUTHORIZED, f"not authorized to publish the will to {will.topic!r}")
        forwarded = [item for item in will.properties if item[0] not in WILL_OWN]
        return Will(topic, will.payload, will.qos, will.retain,
                    without_length(encode_properties(forwarded)),
                    cast(int, will.get(Property.WILL_DELAY_INTERVAL, 0)),
                    cast("int | None", will.get(Property.MESSAGE_EXPIRY_INTERVAL)))
