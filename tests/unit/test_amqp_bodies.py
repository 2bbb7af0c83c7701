"""Whose turn it is while messages under way take more memory than they may."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from fluxmq._core.net.amqp091_connection import Bodies
from fluxmq.edge.amqp091.bodies import TURN_TICKS, BodyTurns
from fluxmq.edge.amqp091.client import Client


class Connecting:
    """A client as far as turns know it."""

    def __init__(self, name: str) -> None:
        self.client_id = name
        self.connection = SimpleNamespace(publishing=True, favoured=False, end=self.end)
        self.held = False
        self.ended_by = ""
        self.said: list[int] = []

    def hold(self, why: int) -> None:
        self.held = True

    def release(self, why: int) -> None:
        self.held = False

    def fields(self) -> dict[str, Any]:
        return {}

    def say_goodbye(self, code: int, text: str) -> None:
        self.said.append(code)

    def end(self) -> None:
        TURNS[0].forget(cast(Client, self))


TURNS: list[BodyTurns] = []


class Shortage:
    """Clients that all are in the middle of a body. held: of all bodies, as the core would count them."""

    def __init__(self, clients: int) -> None:
        self.bodies = SimpleNamespace(held=200, held_max=100)
        self.log: list[str] = []
        self.turns = BodyTurns(cast(Bodies, self.bodies), lambda level, cause, text, fields: self.log.append(text))
        TURNS[:] = [self.turns]
        self.clients = [Connecting(f"c{number}") for number in range(clients)]
        for client in self.clients:
            self.turns.wait(cast(Client, client))

    def held(self) -> list[bool]:
        return [client.held for client in self.clients]


def test_one_after_the_other() -> None:
    shortage = Shortage(3)
    assert shortage.held() == [True, True, True]
    assert len(shortage.log) == 1
    for number, client in enumerate(shortage.clients):
        shortage.turns.tick()
        assert shortage.held() == [False] * (number + 1) + [True] * (2 - number)
        assert client.connection.favoured
        client.connection.publishing = False
    assert not shortage.clients[1].connection.favoured
    assert not any(client.said for client in shortage.clients)


def test_all_go_on_when_there_is_room() -> None:
    shortage = Shortage(3)
    shortage.bodies.held = 91
    shortage.turns.tick()
    assert shortage.held() == [False, True, True]
    shortage.bodies.held = 90
    shortage.turns.tick()
    assert shortage.held() == [False, False, False]


def test_who_does_not_come_to_an_end_loses_its_connection() -> None:
    """But only for as long as others wait."""
    shortage = Shortage(2)
    first, second = shortage.clients
    for _ in range(TURN_TICKS):
        shortage.turns.tick()
    assert first.said == []
    shortage.turns.tick()
    assert first.said == [506]
    assert first.ended_by == "too_slow"
    assert not second.held
    for _ in range(2 * TURN_TICKS):
        shortage.turns.tick()
    assert second.said == []


def test_who_leaves_waits_no_longer() -> None:
    shortage = Shortage(3)
    shortage.turns.tick()
    shortage.turns.forget(cast(Client, shortage.clients[0]))
    shortage.turns.forget(cast(Client, shortage.clients[1]))
    shortage.turns.tick()
    assert not shortage.clients[2].held
