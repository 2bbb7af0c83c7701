"""How an AMQP 0-9-1 connection comes into being, and what ends it: the edge against a connection that only records."""
from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable, Iterator
from itertools import starmap
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kit.amqp091_values import method_of

from fluxmq._core.amqp091.fields import encode_table
from fluxmq._core.amqp091.methods import (
    BasicQos,
    ChannelOpen,
    ConnectionBlocked,
    ConnectionClose,
    ConnectionCloseOk,
    ConnectionOpen,
    ConnectionOpenOk,
    ConnectionStart,
    ConnectionStartOk,
    ConnectionTune,
    ConnectionTuneOk,
    ConnectionUnblocked,
    ConnectionUpdateSecret,
    ConnectionUpdateSecretOk,
    Method,
)
from fluxmq._core.errors import ProtocolError
from fluxmq._core.hub.hub import Hub
from fluxmq._core.net.amqp091_connection import Bodies
from fluxmq.access.authority import Authority
from fluxmq.access.users import add_user
from fluxmq.edge.amqp091.bodies import BodyTurns
from fluxmq.edge.amqp091.client import Client
from fluxmq.edge.amqp091.clients import Clients
from fluxmq.edge.amqp091.front import Front
from fluxmq.edge.amqp091.options import FrontOptions
from fluxmq.edge.amqp091.reply import close_frame, reply_text
from fluxmq.edge.amqp091.sasl import Claim, mechanisms, read_response
from fluxmq.edge.amqp091.tally import Tally
from fluxmq.edge.asking import Asking

ANNA = {"subject": ((("commonName", "anna"),),)}
CLOSES = {"authentication_failure_close": True}
GUEST = b"\0guest\0guest"


class Wire:
    """A connection as the edge sees it: what is written is kept, ends are reported as the compiled one does."""

    end_why = ""
    end_code = 0
    eof = False
    origin: Any = None
    verdicts: Any = None
    namespace: Any = None

    def __init__(self, front: Front, certificate: dict[str, Any] | None = None) -> None:
        self.handler, self.certificate = front, certificate
        self.peer, self.phase, self.state = "127.0.0.1:9", 2, None
        self.channels: dict[int, Any] = {}
        self.frame_max, self.heartbeat_s, self.deadline_ms, self.write_timeout_ms = 4096, 0, 1, 0
        self.ended = self.paused = self.published = False
        self.user: bytes | None = None
        self.method = 0
        self.out = b""
        self.tuned: tuple[int, int, int] | None = None
        self.accepted: tuple[Any, bool] | None = None
        front.connections += 1

    def send(self, method: Method, channel: int = 0) -> None:
        assert not self.paused and not self.ended
        try:
            self.handler.on_method(self, channel, method.encode())  # type: ignore[arg-type]
        except ProtocolError as error:
            self.fail(error)

    def received(self) -> list[Method]:
        """What was written since the last call, all of channel 0."""
        found = []
        while self.out:
            kind, channel, size = struct.unpack_from(">BHI", self.out)
            assert (kind, channel, self.out[7 + size]) == (1, 0, 0xCE)
            found.append(method_of(self.out[7:7 + size]))
            self.out = self.out[8 + size:]
        return found

    def write(self, data: bytes) -> None:
        self.out += data

    def close_after(self, data: bytes) -> None:
        self.write(data)
        self.end()

    def end(self) -> None:
        if not self.ended:
            self.ended = True
            self.handler.on_end(self)  # type: ignore[arg-type]

    abort = end

    def fail(self, error: ProtocolError) -> None:
        self.handler.on_error(self, error.reason, error.text)  # type: ignore[arg-type]
        self.end()

    def crash(self, error: BaseException) -> None:
        self.handler.on_crash(self, error)  # type: ignore[arg-type]
        self.end()

    def pause(self) -> None:
        assert not self.paused
        self.paused = True

    def resume(self) -> None:
        self.paused = False

    def tune(self, frame_max: int, channel_max: int, heartbeat_s: int) -> None:
        self.tuned = self.frame_max, _, self.heartbeat_s = frame_max, channel_max, heartbeat_s

    def accept(self, exchanges: Any, vhost: str, namespace: Any) -> None:
        assert vhost == self.state.vhost  # type: ignore[attr-defined]
        self.accepted = exchanges, namespace
        self.namespace = namespace


class Channels:
    """What was asked of the channels."""

    def __init__(self) -> None:
        self.seen: list[tuple[Any, ...]] = []

    def on_method(self, client: Client, number: int, payload: bytes) -> None:
        method = method_of(payload)
        self.seen.append((number, method))
        if isinstance(method, BasicQos):
            raise ProtocolError(540, "not here")

    def on_channel_error(self, client: Client, number: int, code: int, text: str, method: int) -> None:
        self.seen.append((number, code, text, method))

    def close(self, client: Client, then: Callable[[], None]) -> None:
        then()

    def on_end(self, client: Client) -> None:
        self.seen.append(("end", client.client_id))

    def tick(self, client: Client) -> None:
        """Not asked here."""

    def may_publish(self, client: Client, exchange: bytes, routing_key: bytes) -> bool:
        self.seen.append((exchange, routing_key))
        return exchange == b"free"


class Node:
    """A listener without sockets."""

    def __init__(self, authority: Authority, username_from: str = "", **options: Any) -> None:
        self.lines: list[tuple[str, str, dict[str, Any]]] = []
        self.hub = Hub(None)
        self.hub.namespaces.add(b"other")
        self.tally, self.channels = Tally(), Channels()
        self.clients = Clients(BodyTurns(Bodies(), lambda *said: None))
        self.front = Front(
            self.hub, Asking(authority, self.note), FrontOptions(**options), self.tally, self.clients, self.channels,
            "amqp091/plain",
            find_virtual_host={"/": "root", "other": "others"}.get,  # type: ignore[arg-type]
            username_from=username_from, on_log=self.note)

    def note(self, level: str, _: str, text: str, fields: dict[str, Any]) -> None:
        self.lines.append((level, text, fields))

    def greeted(self, certificate: dict[str, Any] | None = None) -> Wire:
        wire = Wire(self.front, certificate)
        self.front.on_greeting(wire)  # type: ignore[arg-type]
        return wire

    def opened(self, capabilities: dict[str, Any] | None = None, response: bytes = GUEST, vhost: str = "/") -> Wire:
        wire = self.greeted()
        wire.send(start_ok(response, capabilities))
        wire.send(ConnectionTuneOk(channel_max=7, frame_max=8192, heartbeat=3))
        wire.send(ConnectionOpen(virtual_host=vhost))
        wire.received()
        return wire


def start_ok(response: bytes, capabilities: dict[str, Any] | None = None, mechanism: str = "PLAIN") -> Method:
    return ConnectionStartOk(client_properties={"capabilities": capabilities or {}, "connection_name": "till"},
                             mechanism=mechanism, response=response, locale="en_US")


@pytest.fixture
def authority(tmp_path: Path) -> Iterator[Authority]:
    file = tmp_path / "users"
    add_user(file, "anna", "secret", scram_iterations=4_096)
    made = Authority(str(file))
    yield made
    made.close()


@pytest.fixture
def node() -> Node:
    return Node(Authority())


def close_of(wire: Wire) -> ConnectionClose:
    """The only thing that was written, and the connection has ended."""
    [close] = wire.received()
    assert isinstance(close, ConnectionClose) and wire.ended
    return close


# ── SASL ─────────────────────────────────────────────────────────────────────────────────────────────────────

names = st.text(st.characters(blacklist_categories=["Cs"], blacklist_characters="\0"), min_size=1)
passwords = st.binary().filter(lambda octets: b"\0" not in octets)


@given(names, passwords)
def test_every_mechanism_says_the_same(name: str, password: bytes) -> None:
    plain = b"\0%b\0%b" % (name.encode(), password)
    assert read_response("PLAIN", plain) == read_response("PLAIN", name.encode() + plain) == Claim(name, password)
    for form in (password, password.decode("utf-8", "surrogateescape")):
        assert read_response("AMQPLAIN", encode_table({"LOGIN": name, "PASSWORD": form})) == Claim(name, password)
    assert read_response("EXTERNAL", name.encode()) == Claim(name, None)


def test_who_says_nothing_is_anonymous() -> None:
    assert read_response("PLAIN", b"\0\0") == read_response("EXTERNAL", b"") == Claim(None, None)
    assert read_response("AMQPLAIN", encode_table({"LOGIN": "", "PASSWORD": ""})) == Claim(None, None)


@given(st.sampled_from(mechanisms(True)), st.binary())
def test_any_response_is_read_or_a_syntax_error(mechanism: str, response: bytes) -> None:
    try:
        assert isinstance(read_response(mechanism, response), Claim)
    except ProtocolError as error:
        assert error.reason == 502


@pytest.mark.parametrize(("mechanism", "response"), [
    ("PLAIN", b""), ("PLAIN", b"guest"), ("PLAIN", b"guest\0guest"), ("PLAIN", b"\0a\0b\0"), ("PLAIN", b"x\0a\0b"),
    ("PLAIN", b"\0\xff\0b"), ("AMQPLAIN", b""), ("AMQPLAIN", GUEST), ("EXTERNAL", b"\xff"),
    ("AMQPLAIN", encode_table({"LOGIN": "a"})), ("AMQPLAIN", encode_table({"LOGIN": "a", "PASSWORD": 1}))])
def test_what_is_no_response(mechanism: str, response: bytes) -> None:
    with pytest.raises(ProtocolError) as caught:
        read_response(mechanism, response)
    assert caught.value.reason == 502


# ── the way in ───────────────────────────────────────────────────────────────────────────────────────────────


def test_the_whole_way(node: Node) -> None:
    wire = node.greeted()
    [start] = wire.received()
    assert isinstance(start, ConnectionStart)
    assert (start.version_major, start.version_minor, start.locales) == (0, 9, "en_US")
    assert start.mechanisms == "PLAIN AMQPLAIN" and start.server_properties["product"] == "FluxMQ"
    assert all(start.server_properties["capabilities"][name] is True for name in (
        "publisher_confirms", "basic.nack", "connection.blocked", "exchange_exchange_bindings",
        "consumer_cancel_notify", "authentication_failure_close", "per_consumer_qos", "consumer_priorities"))
    wire.send(start_ok(GUEST))
    assert wire.received() == [ConnectionTune(channel_max=2047, frame_max=131_072, heartbeat=60)]
    wire.send(ConnectionTuneOk(channel_max=7, frame_max=8192, heartbeat=3))
    assert wire.received() == [] and wire.tuned == (8192, 7, 3)
    assert node.tally.accepted == 0 and not node.clients.ids() and wire.deadline_ms
    wire.send(ConnectionOpen(virtual_host="/"))
    assert wire.received() == [ConnectionOpenOk()]
    assert wire.accepted[0] == "root" and wire.accepted[1].name == b"/"
    assert not wire.deadline_ms and wire.write_timeout_ms == 60_000
    [info] = starmap(node.clients.info, node.clients.ids())
    assert info is not None
    assert info.client_id == "amqp091-127.0.0.1:9-1" and info.user is None and info.name == "till"
    assert info.properties == {"capabilities": {}, "connection_name": "till"} and info.virtual_host == "/"
    wire.send(ConnectionClose(reply_code=200))
    assert wire.received() == [ConnectionCloseOk()] and wire.ended
    assert node.tally.accepted == 1 and node.tally.disconnections["client"] == 1
    assert not node.clients.ids() and node.front.connections == 0
    assert node.channels.seen == [("end", "amqp091-127.0.0.1:9-1")]


def test_every_connection_has_a_number_of_its_own(node: Node) -> None:
    assert len({node.opened().state.client_id for _ in range(3)}) == 3


def test_another_virtual_host_is_a_namespace(node: Node) -> None:
    exchanges, namespace = node.opened(vhost="other").accepted
    assert exchanges == "others" and namespace.name == b"other"


@pytest.mark.parametrize("vhost", ["", "nowhere", "/other"])
def test_an_unknown_virtual_host(node: Node, vhost: str) -> None:
    wire = node.greeted()
    wire.send(start_ok(GUEST))
    wire.send(ConnectionTuneOk())
    wire.received()
    wire.send(ConnectionOpen(virtual_host=vhost))
    close = close_of(wire)
    assert close.reply_code == 530 and close.reply_text == f"NOT_ALLOWED - vhost {vhost} not found"
    assert (close.class_id, close.method_id) == (10, 40)
    assert node.tally.refusals["malformed"] == 1 and not node.tally.accepted


def test_a_virtual_host_may_be_closed_to_a_client(tmp_path: Path) -> None:
    acl = tmp_path / "acl"
    for rules, opens in (("[]", False), ("[{allow: publish, topics: ['#', '$vhost/others']}]", False),
                         ("[{allow: subscribe, topics: [$vhost/other]}]", True),
                         ("[{allow: publish, topics: ['$vhost/other/#']}]", True)):
        acl.write_text(f"version: 1\nrules: {rules}\n")
        node = Node(Authority(acl_file=str(acl)))
        assert node.opened().accepted, "everybody may open /"
        wire = node.greeted()
        for step in (*STEPS[:2], ConnectionOpen(virtual_host="other")):
            wire.received()
            wire.send(step)
        assert bool(wire.accepted) == opens
        if not opens:
            close = close_of(wire)
            assert (close.reply_code, close.class_id, close.method_id) == (530, 10, 40)
            assert close.reply_text == "NOT_ALLOWED - access to vhost 'other' refused for user ''"


@pytest.mark.parametrize(("asked", "wanted"), [
    ((0, 0, 0), (131_072, 2047, 0)), ((65, 4096, 65535), (4096, 65, 65535)),
    ((2047, 131_072, 60), (131_072, 2047, 60))])
def test_what_the_client_chooses_counts(node: Node, asked: tuple[int, int, int], wanted: tuple[int, int, int]) -> None:
    wire = node.greeted()
    wire.send(start_ok(GUEST))
    wire.send(ConnectionTuneOk(channel_max=asked[0], frame_max=asked[1], heartbeat=asked[2]))
    assert wire.tuned == wanted


@pytest.mark.parametrize("asked", [(2048, 0), (0, 131_073), (0, 4095), (0, 1)])
def test_what_was_not_offered_is_not_allowed(node: Node, asked: tuple[int, int]) -> None:
    wire = node.greeted()
    wire.send(start_ok(GUEST))
    wire.received()
    wire.send(ConnectionTuneOk(channel_max=asked[0], frame_max=asked[1]))
    close = close_of(wire)
    assert close.reply_code == 530 and (close.class_id, close.method_id) == (10, 31) and wire.tuned is None


STEPS = (start_ok(GUEST), ConnectionTuneOk(), ConnectionOpen(virtual_host="/"))


@pytest.mark.parametrize("done", range(4))
@pytest.mark.parametrize("method", [*STEPS, ConnectionCloseOk(), ConnectionStart(), ConnectionUpdateSecret(),
                                    ConnectionBlocked(), ConnectionOpenOk()], ids=lambda method: method.name)
def test_out_of_turn(node: Node, done: int, method: Method) -> None:
    if method in STEPS[done:done + 1] or (done == 3 and isinstance(method, ConnectionUpdateSecret)):
        return
    wire = node.greeted()
    for step in STEPS[:done]:
        wire.send(step)
    wire.received()
    wire.send(method)
    close = close_of(wire)
    assert close.reply_code == (504 if method.by_client else 503)
    assert close.class_id << 16 | close.method_id == method.number
    assert node.tally.disconnections["protocol_error"] == (done == 3)


@pytest.mark.parametrize("done", range(4))
def test_a_client_may_close_at_any_time(node: Node, done: int) -> None:
    wire = node.greeted()
    for step in STEPS[:done]:
        wire.send(step)
    wire.received()
    wire.send(ConnectionClose(reply_code=541, reply_text="tired"))
    assert wire.received() == [ConnectionCloseOk()] and wire.ended
    assert any(fields.get("text") == "tired" for _, _, fields in node.lines)


def test_a_mechanism_that_was_not_offered(node: Node) -> None:
    for mechanism in ("EXTERNAL", "ANONYMOUS", "plain", ""):
        wire = node.greeted()
        wire.received()
        wire.send(start_ok(b"", mechanism=mechanism))
        assert close_of(wire).reply_code == 503


@given(st.dictionaries(st.text(max_size=20), st.one_of(st.integers(-9, 9), st.text(), st.none()), max_size=3))
def test_whatever_a_client_says_about_itself(properties: dict[str, Any]) -> None:
    node = Node(Authority())
    wire = node.greeted()
    wire.send(ConnectionStartOk(client_properties=properties, mechanism="PLAIN", response=GUEST))
    wire.send(ConnectionTuneOk())
    wire.send(ConnectionOpen(virtual_host="/"))
    [info] = starmap(node.clients.info, node.clients.ids())
    assert info is not None
    assert info.properties == properties


def test_a_client_may_not_tell_stories(node: Node) -> None:
    for length, answer in ((16_000, ConnectionTune), (17_000, ConnectionClose)):
        wire = node.greeted()
        wire.received()
        wire.send(ConnectionStartOk(client_properties={"connection_name": "x" * length}, mechanism="PLAIN",
                                    response=GUEST))
        assert [type(method) for method in wire.received()] == [answer]
        assert wire.state.name == "x" * 255 * (answer is ConnectionTune)


# ── who it is ────────────────────────────────────────────────────────────────────────────────────────────────


def login(node: Node, response: bytes, mechanism: str = "PLAIN", capabilities: dict[str, Any] | None = None,
          certificate: dict[str, Any] | None = None) -> Wire:
    """StartOk and, in a loop, whatever it takes to check a password."""
    async def run() -> Wire:
        wire = node.greeted(certificate)
        wire.received()
        wire.send(start_ok(response, capabilities, mechanism))
        while wire.paused:
            await asyncio.sleep(0)
        return wire
    return asyncio.run(run())


@pytest.mark.parametrize("mechanism", ["PLAIN", "AMQPLAIN"])
def test_a_response_that_nobody_can_read(node: Node, mechanism: str) -> None:
    close = close_of(login(node, b"\x05LOGIN?", mechanism, CLOSES))
    assert (close.reply_code, close.class_id) == (403, 0)
    wire = login(node, b"\x05LOGIN?", mechanism)
    assert wire.ended and wire.received() == [] and node.tally.refusals["credentials"] == 2


@pytest.mark.parametrize("mechanism", ["PLAIN", "AMQPLAIN"])
def test_the_password_counts(authority: Authority, mechanism: str) -> None:
    node = Node(authority)

    def written(password: str) -> bytes:
        return (f"\0anna\0{password}".encode() if mechanism == "PLAIN" else
                encode_table({"LOGIN": "anna", "PASSWORD": password}))

    wire = login(node, written("secret"), mechanism)
    assert isinstance(wire.received()[0], ConnectionTune) and wire.state.identity == "anna"
    again = login(node, written("secret"), mechanism)       # remembered: nothing is waited for
    assert isinstance(again.received()[0], ConnectionTune)
    for step in STEPS[1:]:
        again.send(step)
    assert again.user == b"anna"
    wire = login(node, written("not hers"), mechanism, CLOSES)
    close = close_of(wire)
    assert close.reply_code == 403 and close.reply_text.startswith("ACCESS_REFUSED - ") and not close.class_id
    assert "not hers" not in str(node.lines) and node.lines[-1][2]["user"] == "anna"
    wire = login(node, written("not hers"), mechanism)
    assert wire.ended and wire.received() == [], "who has not asked for it sees a closed socket only"
    assert node.tally.auth_failures == node.tally.refusals["credentials"] == 2


def test_with_a_users_file_nobody_is_anonymous(authority: Authority) -> None:
    node = Node(authority)
    for response in (b"\0\0", GUEST):
        assert close_of(login(node, response, capabilities=CLOSES)).reply_code == 403


def test_a_certificate_names_the_user(authority: Authority) -> None:
    node = Node(authority, "cn")
    wire = node.greeted(ANNA)
    [start] = wire.received()
    assert isinstance(start, ConnectionStart) and start.mechanisms == "EXTERNAL PLAIN AMQPLAIN"
    wire = login(node, b"", "EXTERNAL", certificate=ANNA)
    assert isinstance(wire.received()[0], ConnectionTune) and wire.state.identity == "anna"
    for mechanism, response in (("EXTERNAL", b"bert"), ("PLAIN", b"\0bert\0secret")):
        assert close_of(login(node, response, mechanism, CLOSES, ANNA)).reply_code == 403
    assert close_of(login(node, b"", "EXTERNAL", CLOSES)).reply_code == 503, "no certificate, no EXTERNAL"
    assert close_of(login(Node(authority), b"", "EXTERNAL", CLOSES, ANNA)).reply_code == 503, "the listener takes none"


def test_a_connection_that_ends_while_its_password_is_checked(authority: Authority) -> None:
    node = Node(authority)

    async def run() -> Wire:
        wire = node.greeted()
        wire.received()
        wire.send(start_ok(b"\0anna\0wrong", CLOSES))
        assert wire.paused
        wire.end()
        while node.front.handshake._tasks:
            await asyncio.sleep(0)
        return wire
    assert asyncio.run(run()).received() == []
    assert node.tally.auth_failures == 1        # who does not wait for the answer has guessed all the same


async def opened_by_anna(node: Node) -> Wire:
    wire = node.greeted()
    for step in (start_ok(b"\0anna\0secret"), *STEPS[1:]):
        wire.send(step)
        while wire.paused:
            await asyncio.sleep(0)
    wire.received()
    return wire


@pytest.mark.parametrize("secret", [b"secret", b"another", b""])
def test_a_new_secret_is_taken_and_changes_nothing(authority: Authority, secret: bytes) -> None:
    node = Node(authority)
    wire = asyncio.run(opened_by_anna(node))
    wire.send(ConnectionUpdateSecret(new_secret=secret, reason="hourly"))
    assert wire.received() == [ConnectionUpdateSecretOk()] and not wire.ended and not wire.paused
    assert wire.state.identity == "anna" and node.tally.auth_failures == 0


# ── errors, ends ─────────────────────────────────────────────────────────────────────────────────────────────


def test_methods_of_channels_go_to_the_channels(node: Node) -> None:
    wire = node.opened()
    wire.send(ChannelOpen(), 5)
    node.front.on_channel_error(wire, 5, 404, "no queue", 60 << 16 | 20)  # type: ignore[arg-type]
    assert node.channels.seen == [(5, ChannelOpen()), (5, 404, "no queue", 60 << 16 | 20)] and not wire.ended
    assert [node.front.may_publish(wire, name, b"k") for name in (b"free", b"other")] == [  # type: ignore[arg-type]
        True, False]
    wire.send(BasicQos(), 5)
    close = close_of(wire)
    assert (close.reply_code, close.class_id, close.method_id) == (540, 60, 10)
    assert close.reply_text == "NOT_IMPLEMENTED - not here"


@pytest.mark.parametrize(("method", "channel", "code"), [(ChannelOpen(), 0, 504), (ConnectionClose(), 1, 503)])
def test_methods_on_the_wrong_channel(node: Node, method: Method, channel: int, code: int) -> None:
    wire = node.opened()
    wire.send(method, channel)
    assert close_of(wire).reply_code == code


def test_what_is_wrong_with_a_frame_names_no_method(node: Node) -> None:
    wire = node.opened()
    wire.fail(ProtocolError(501, "no end"))
    close = close_of(wire)
    assert (close.reply_code, close.class_id, close.method_id) == (501, 0, 0)
    wire = node.opened()
    wire.method = 60 << 16 | 40                 # a hot one, which only the connection has seen
    wire.fail(ProtocolError(502, "no key"))
    assert close_of(wire).method_id == 40


def test_errors_before_the_protocol_header(node: Node) -> None:
    for phase, reason in ((0, "tls"), (2, "protocol")):
        wire = Wire(node.front)
        wire.phase = phase
        wire.fail(ProtocolError(0, "what is this"))
        assert wire.received() == [] and node.tally.refusals[reason] == 1


def test_a_bug_of_ours(node: Node) -> None:
    wire = node.opened()
    wire.crash(ValueError("oh"))
    assert close_of(wire).reply_code == 541 and node.tally.disconnections["error"] == 1


@pytest.mark.parametrize("why", ["connect", "heartbeat", "write"])
def test_the_clock(node: Node, why: str) -> None:
    wire = node.greeted() if why == "connect" else node.opened()
    node.front.on_late(wire, why)  # type: ignore[arg-type]
    assert wire.ended
    label = {"heartbeat": "heartbeat", "write": "write_timeout"}.get(why)
    assert node.tally.disconnections[label] == 1 if label else node.tally.refusals["timeout"] == 1


def test_the_broker_stops(node: Node) -> None:
    wire = node.opened()
    wire.state.shut_down()
    wire.end()
    close = close_of(wire)
    assert close.reply_code == 320 and close.reply_text.startswith("CONNECTION_FORCED - ")
    assert node.tally.disconnections["shutdown"] == 1


def test_users_that_are_gone(authority: Authority) -> None:
    node = Node(authority)

    wire = asyncio.run(opened_by_anna(node))
    node.clients.review(["bert"])
    assert not wire.ended
    node.clients.review(["anna", "bert"])
    assert close_of(wire).reply_code == 320 and node.tally.disconnections["not_authorized"] == 1


@given(st.text(max_size=400))
def test_a_text_of_any_length_fits(text: str) -> None:
    cut = reply_text(404, text)
    assert len(cut.encode()) <= 255
    assert f"NOT_FOUND - {text.encode('utf-8', 'replace').decode()}".startswith(cut)
    close = method_of(close_frame(404, text, 50 << 16 | 10)[7:-1])
    assert isinstance(close, ConnectionClose) and (close.class_id, close.method_id) == (50, 10)


# ── blocking ─────────────────────────────────────────────────────────────────────────────────────────────────


SHORT = {"": "", "the disk is full: No space left on device": "low on disk",
         "the process has no file descriptors left (ulimit -n): Too many open files":
         "the process has no file descriptors left (ulimit -n): Too many open files"}


@given(st.lists(st.tuples(st.booleans(), st.sampled_from(list(SHORT)), st.booleans()), max_size=12), st.booleans())
def test_who_publishes_is_blocked_while_something_is_short(steps: list[tuple[bool, str, bool]], knows: bool) -> None:
    """Against the rule itself: told once when it begins and once when it ends, paused only for want of memory."""
    node = Node(Authority())
    wire = node.opened({"connection.blocked": True} if knows else {})
    told = False
    for memory, disk, publishes in steps:
        wire.published = wire.published or publishes
        node.clients.tick(memory=memory, disk=disk)
        now = (memory or disk != "") and wire.published
        sent = wire.received()
        if knows and now and not told:
            assert sent == [ConnectionBlocked(reason="low on memory" if memory else SHORT[disk])]
        elif knows and told and not now:
            assert sent == [ConnectionUnblocked()]
        else:
            assert sent == []
        told = now
        assert wire.paused == (memory and wire.published)
    node.clients.tick(memory=False, disk="")
    assert not wire.paused and not wire.state.blocked
