"""From the protocol header to connection.open-ok, and connection.update-secret, which changes nothing.

    STARTING ──ConnectionStartOk──► PROVING ──proved──► TUNING ──ConnectionTuneOk──► OPENING ──ConnectionOpen──► OPEN

The protocol header is answered with Start, a successful authentication with Tune, Open with OpenOk. No SASL mechanism
here needs Secure: StartOk has the whole response. The connection is paused while a password is checked (PROVING).
"""
from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from fluxmq import __version__
from fluxmq._core.amqp091.fields import encode_table
from fluxmq._core.amqp091.methods import (
    ConnectionOpen,
    ConnectionOpenOk,
    ConnectionStart,
    ConnectionStartOk,
    ConnectionTune,
    ConnectionTuneOk,
    ConnectionUpdateSecretOk,
    Method,
)
from fluxmq._core.errors import AuthError, ProtocolError
from fluxmq.edge.amqp091.client import HOLD_LOGIN, Client
from fluxmq.edge.amqp091.reply import close_frame
from fluxmq.edge.amqp091.sasl import Claim, mechanisms, read_response
from fluxmq.model import limits
from fluxmq.model.amqp import ReplyCode

if TYPE_CHECKING:
    from fluxmq._core.net.amqp091_connection import AmqpConnection
    from fluxmq.edge.amqp091.parts import FrontParts

__all__ = ["Handshake", "server_properties"]

Proved = Callable[[Client, "str | None"], None]
Refused = Callable[[Client, Claim, AuthError], None]
TRANSITIONS: dict[tuple[str, type[Method] | str], str] = {  # of Client.step
    ("STARTING", ConnectionStartOk): "PROVING",
    ("PROVING", "proved"): "TUNING",
    ("TUNING", ConnectionTuneOk): "OPENING",
    ("OPENING", ConnectionOpen): "OPEN",
}
WRONG = 0x86  # reason of an AuthError: user name or password is wrong
BANNED = 0x8A  # too many failed logins came before
# Reasons unrelated to the client's identity: too many logins at once, the broker is stopping.
NOT_ITS_FAULT = {0x89: ReplyCode.RESOURCE_ERROR, 0x88: ReplyCode.INTERNAL_ERROR}
NAME_LENGTH_MAX = 255  # characters of connection_name that logs and lists show; the properties have all of it
# Extensions of the specification, with RabbitMQ's names for them: clients check for some of them.
CAPABILITIES = (
    "publisher_confirms", "exchange_exchange_bindings", "basic.nack", "consumer_cancel_notify", "connection.blocked",
    "consumer_priorities", "authentication_failure_close", "per_consumer_qos", "direct_reply_to")


def server_properties() -> dict[str, Any]:
    """The server properties in Start."""
    return {"product": "FluxMQ", "version": __version__, "platform": "Python {}.{}.{}".format(*sys.version_info[:3]),
            "capabilities": dict.fromkeys(CAPABILITIES, True)}


class Handshake:
    """The login steps for the connections of one listener."""

    def __init__(self, front: FrontParts, username_from: str) -> None:
        self.front = front
        self.username_from = username_from
        self._starts = {offered: ConnectionStart(
            version_major=0, version_minor=9, server_properties=server_properties(), mechanisms=" ".join(offered),
            locales="en_US").frame(0) for offered in (mechanisms(False), mechanisms(True))}
        self._verbs: dict[type[Method], Callable[[Client, Any], None]] = {
            ConnectionStartOk: self._start_ok, ConnectionTuneOk: self._tune_ok, ConnectionOpen: self._open}
        self._tasks: set[asyncio.Task[None]] = set()

    # ------------------------------------------------------------------ Start, StartOk

    def greet(self, connection: AmqpConnection) -> None:
        """Answers a valid protocol header."""
        connection.bodies = self.front.clients.turns.bodies
        client = Client(connection, next(self.front.clients.serials), self.front.name)
        connection.state = client
        connection.write(self._starts[mechanisms(self._certificate(connection) is not None)])

    def on_method(self, client: Client, method: Method) -> None:
        """Handles the next method of the handshake; any other method is an error."""
        if not method.by_client:
            raise ProtocolError(ReplyCode.COMMAND_INVALID, f"{method.name} is for servers to send")
        if (client.step, type(method)) not in TRANSITIONS:
            # The specification has 503 for this; RabbitMQ sends 504, which clients expect.
            raise ProtocolError(ReplyCode.CHANNEL_ERROR, f"{method.name} is out of turn (step {client.step})")
        self._verbs[type(method)](client, method)

    @staticmethod
    def _step(client: Client, event: type[Method] | str) -> None:
        client.step = TRANSITIONS[client.step, event]

    def _start_ok(self, client: Client, method: ConnectionStartOk) -> None:
        properties = method.client_properties
        client.properties = encode_table(properties)
        if len(client.properties) > limits.AMQP_CLIENT_PROPERTIES_BYTES_MAX:
            raise ProtocolError(ReplyCode.RESOURCE_ERROR, f"client properties of {len(client.properties)} bytes are "
                                                          f"more than {limits.AMQP_CLIENT_PROPERTIES_BYTES_MAX}")
        name, capabilities = properties.get("connection_name"), properties.get("capabilities")
        client.name = name[:NAME_LENGTH_MAX] if isinstance(name, str) else ""
        if isinstance(capabilities, dict):
            client.capabilities = frozenset(name for name, has in capabilities.items() if has is True)
        certificate = self._certificate(client.connection)
        client.mechanism = method.mechanism
        if method.mechanism not in mechanisms(certificate is not None):
            raise ProtocolError(ReplyCode.COMMAND_INVALID, f"mechanism {method.mechanism!r} was not offered")
        try:
            claim = read_response(method.mechanism, method.response)
        except ProtocolError as error:
            # A client without a user name must learn no more than one with a wrong password.
            self._login_refused(client, Claim(None, None), AuthError(error.reason, error.text))
            return
        client.connection.user = claim.username.encode() if claim.username is not None else None
        self._step(client, ConnectionStartOk)
        self._prove(client, claim, certificate, self._tune, self._login_refused)

    def _login_refused(self, client: Client, claim: Claim, error: AuthError) -> None:
        """Ends a connection whose login failed. The client gets connection.close only if it has the capability, because
        the specification has no other answer than a closed socket; the reason is only logged."""
        code = NOT_ITS_FAULT.get(error.reason, ReplyCode.ACCESS_REFUSED)
        self.front.on_log("warning", f"login {self.front.name}", f"login refused: {error.text}",
                    client.fields() | {"user": claim.username, "mechanism": client.mechanism, "peer": client.peer})
        if error.reason == BANNED:
            self.front.tally.refusals["banned"] += 1
        else:
            self.front.tally.auth_failures += 1
            self.front.tally.refusals["credentials"] += 1
        connection = client.connection
        connection.end_code = code
        if "authentication_failure_close" in client.capabilities:
            text = (f"Login was refused using authentication mechanism {client.mechanism}. For details see the "
                    "broker logfile."
                    if code == ReplyCode.ACCESS_REFUSED else "no login can be checked now; try again later")
            connection.write(close_frame(code, text))
        connection.end()

    def _certificate(self, connection: AmqpConnection) -> dict[str, Any] | None:
        """The client's certificate, if the listener has verified it and takes the user name from it."""
        return (connection.certificate or None) if self.username_from else None

    def _prove(self, client: Client, claim: Claim, certificate: dict[str, Any] | None, then: Proved,
               refused: Refused) -> None:
        """Calls one of the two: at once if no password must be checked, otherwise later, while the connection waits."""
        authority = self.front.authority
        banned = self._banned(client, claim)
        if banned is not None:
            refused(client, claim, banned)
            return
        if authority.needs_wait(*claim, certificate, self.username_from):
            client.hold(HOLD_LOGIN)
            task = asyncio.get_running_loop().create_task(self._wait(client, claim, certificate, then, refused))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
            return
        try:
            identity = authority.authenticate_now(client.client_id, *claim, certificate, self.username_from)
        except AuthError as error:
            refused(client, claim, error)
        else:
            then(client, identity)

    async def _wait(self, client: Client, claim: Claim, certificate: dict[str, Any] | None, then: Proved,
                    refused: Refused) -> None:
        connection = client.connection
        later = False
        try:
            identity = await self.front.authority.authenticate(
                client.client_id, *claim, certificate, self.username_from,
                connection.origin.key if connection.origin is not None else b"")
            banned = self._banned(client, claim)
            if not connection.ended:
                if banned is not None:
                    refused(client, claim, banned)
                else:
                    then(client, identity)
        except AuthError as error:
            later = self._refuse(client, claim, error, refused)
        except Exception as error:
            connection.crash(error)
        finally:
            if not later:
                client.release(HOLD_LOGIN)

    def _banned(self, client: Client, claim: Claim) -> AuthError | None:
        """The reason why this user may not log in from this address at present; None: it may try."""
        guard, origin = self.front.guard, client.connection.origin
        if guard is None or origin is None or claim.password is None:
            return None
        return guard.refusal(origin.key, claim.username or "")

    def _refuse(self, client: Client, claim: Claim, error: AuthError, refused: Refused) -> bool:
        """Handles a failed login; the client may have disconnected by then. Returns whether the answer comes later."""
        guard, origin = self.front.guard, client.connection.origin
        banned = self._banned(client, claim)

        def answer() -> None:
            if not client.connection.ended:
                refused(client, claim, banned or error)
                client.release(HOLD_LOGIN)
            elif banned is None and error.reason == WRONG:
                self.front.tally.auth_failures += 1

        if guard is None or origin is None or banned is not None or error.reason != WRONG:
            answer()
            return False
        return guard.failed(origin.key, claim.username or "", answer)

    def _tune(self, client: Client, identity: str | None) -> None:
        client.identity = identity
        origin, guard = client.connection.origin, self.front.guard
        if identity is not None and origin is not None and guard is not None:
            guard.succeeded(origin.key, identity)
        if identity is not None:
            client.connection.user = identity.encode()
        self._step(client, "proved")
        options = self.front.options
        client.connection.write(ConnectionTune(
            channel_max=options.channel_max, frame_max=options.frame_max, heartbeat=options.heartbeat_s).frame(0))

    # ------------------------------------------------------------------ TuneOk, Open

    def _tune_ok(self, client: Client, method: ConnectionTuneOk) -> None:
        """The client chooses within the offered limits; 0 means that it has no limit of its own."""
        options = self.front.options
        frame_max, channel_max = method.frame_max or options.frame_max, method.channel_max or options.channel_max
        least = limits.AMQP_FRAME_BYTES_MIN
        if not least <= frame_max <= options.frame_max:
            raise ProtocolError(ReplyCode.NOT_ALLOWED, f"frame_max {frame_max} is not between {least} and "
                                                       f"{options.frame_max}, which was offered")
        if channel_max > options.channel_max:
            raise ProtocolError(ReplyCode.NOT_ALLOWED, f"channel_max {channel_max} is above {options.channel_max}, "
                                                       f"which was offered")
        self._step(client, ConnectionTuneOk)
        client.connection.tune(frame_max, channel_max, method.heartbeat)

    def _open(self, client: Client, method: ConnectionOpen) -> None:
        front, connection, name = self.front, client.connection, method.virtual_host
        exchanges = front.find_virtual_host(name)
        if exchanges is None:
            raise ProtocolError(ReplyCode.NOT_ALLOWED, f"vhost {name} not found")
        if not front.permissions.may_open(client, name):
            raise ProtocolError(ReplyCode.NOT_ALLOWED, f"access to vhost '{name}' refused for user "
                                                       f"'{client.identity or ''}'")
        namespace = front.hub.namespaces[name.encode()]
        if namespace.connections_max and namespace.connections >= namespace.connections_max:
            namespace.refused_connections += 1
            raise ProtocolError(ReplyCode.NOT_ALLOWED, f"access to vhost '{name}' refused for user "
                                                       f"'{client.identity or ''}': vhost connection limit "
                                                       f"({namespace.connections_max}) is reached")
        namespace.connections += 1
        self._step(client, ConnectionOpen)
        client.vhost = name
        client.open = True
        client.since_ms = front.hub.now_ms
        front.clients.open[client.client_id] = client
        front.tally.accepted += 1
        connection.write_timeout_ms = front.options.write_timeout_ms
        connection.write(ConnectionOpenOk().frame(0))
        connection.deadline_ms = 0
        connection.accept(exchanges, name, namespace)
        if front.hub.recording:
            client.record_accepted()
        if front.log_connections():
            front.on_log("info", "", "connected", client.fields() | {
                "user": client.identity, "virtual_host": name, "mechanism": client.mechanism})

    # ------------------------------------------------------------------ UpdateSecret

    @staticmethod
    def update_secret(client: Client) -> None:
        """The secret is not looked at: what a user has here, a password or a certificate, does not run out while the
        connection lasts, so there is nothing to renew. RabbitMQ does the same for the accounts that it has itself."""
        client.connection.write(ConnectionUpdateSecretOk().frame(0))
