"""Fixtures of the MQTT 3.1.1 tests: those of the folder above, speaking version 4 unless told otherwise."""
from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from kit.broker import WHICH, Broker
from kit.client import Client
from oracle.mqtt import V311, Packet, Puback, Pubcomp, Publish, Pubrec, Pubrel


@pytest.fixture
def open_client(open_client: Callable[..., Client]) -> Callable[..., Client]:
    def open_(where: Any = None, version: int = V311) -> Client:
        return open_client(where, version)

    return open_


@pytest.fixture
def client(client: Callable[..., Client]) -> Callable[..., Client]:
    def connected(role: str = "c", **options: Any) -> Client:
        return client(role, **{"version": V311} | options)

    return connected


@pytest.fixture
def offline(client: Callable[..., Client]) -> Callable[..., None]:
    """Make a stored session and leave it: offline("sub", "a/b", qos=1). `client` with clean_start=False resumes it."""
    def leave(role: str, *filters: str, qos: int = 0, **options: Any) -> None:
        session = client(role, clean_start=False, **options)
        assert session.connack is not None and not session.connack.session_present
        if filters:
            session.subscribe(*filters, qos=qos)
        session.disconnect()

    return leave


@pytest.fixture
def take() -> Callable[[Client, int], list[Publish]]:
    """take(c, 5): the next five PUBLISHes, each acknowledged to the end. `Client.receive` does one at a time; here the
    handshakes of several QoS 2 messages may be mixed, as they are when more than one is in flight."""
    def take_(c: Client, count: int) -> list[Publish]:
        got: list[Publish] = []
        open_ids: set[int] = set()
        while len(got) < count or open_ids:
            packet: Packet = c.recv()
            if isinstance(packet, Publish):
                got.append(packet)
                if packet.qos:
                    assert packet.packet_id is not None
                    answer = Puback if packet.qos == 1 else Pubrec
                    c.send(answer(packet_id=packet.packet_id))
                if packet.qos == 2:
                    open_ids.add(packet.packet_id or 0)
            else:
                assert isinstance(packet, Pubrel) and packet.packet_id in open_ids, packet
                c.send(Pubcomp(packet_id=packet.packet_id))
                open_ids.remove(packet.packet_id)
        assert len(got) == count, got[count:]
        return got

    return take_


class Interruption:
    """Something that breaks connections: a cut, a restart of the broker, its sudden death. Call it with the clients
    that it hits. `where` is the broker to connect to."""

    def __init__(self, how: str, where: Broker) -> None:
        self.how = how
        self.where = where

    def __call__(self, *clients: Client) -> None:
        if self.how == "restart":
            self.where.restart()
        elif self.how == "kill":
            self.where.kill()
            self.where.start()
        for c in clients:
            c.close()


@pytest.fixture(params=["cut", "restart", "kill"])
def interruption(request: pytest.FixtureRequest, broker: Broker, start_broker: Callable[..., Broker]) -> Interruption:
    """Each test that uses it runs three times; what the broker has acknowledged must outlast all three."""
    if request.param == "cut":
        return Interruption("cut", broker)
    if request.param == "kill" and WHICH:
        pytest.skip("only this tree's broker promises to survive kill -9")
    return Interruption(request.param, start_broker())


@pytest.fixture
def guarded_broker(tmp_path: Path, start_broker: Callable[..., Broker]) -> Broker:
    """A broker with the users anna and bert, where only anna may publish below `closed/`."""
    if WHICH:
        pytest.skip("needs this tree's users file and access list")
    from fluxmq.access.users import add_user

    users, acl = tmp_path / "users", tmp_path / "acl.yaml"
    add_user(users, "anna", "anna's secret")
    add_user(users, "bert", "bert's secret")
    acl.write_text(
        'version: 1\nrules:\n  - allow: publish\n    user: anna\n    topics: ["closed/#"]\n'
        '  - deny: all\n    user: bert\n    topics: ["closed/#"]\n  - allow: all\n    topics: ["#"]\n'
    )
    return start_broker({"auth.users_file": users, "auth.acl_file": acl})
