"""A node leaves: its sessions are at the others, whole, whatever its clients and the other nodes do meanwhile."""
from __future__ import annotations

from typing import Any

import pytest
from simulator.cluster.brokers import Brokers, Client
from simulator.cluster.test_takeover import NAMES, connected, hop, serving

from fluxmq.cluster.membership import Membership
from fluxmq.cluster.ports import CallFailed
from fluxmq.cluster.rendezvous import ranked
from fluxmq.cluster.settings import Phase


def leave(brokers: Brokers, *names: str) -> dict[str, Any]:
    """They begin to leave at once; their works, whose results are how many sessions are left."""
    def send_away(client: Any, node: str) -> None:
        client.send_away(0x9C, f"{node}:1883")

    processes = [brokers.processes[name] for name in names]
    return {each.name: each.process.driver.start(each.cluster.holdings.leaver.leave(send_away)) for each in processes}


def where(brokers: Brokers, name: bytes) -> list[str]:
    """The nodes that have a session."""
    return [broker.name for broker in brokers.processes.values()
            if broker.process.alive and (b"/", name) in broker.node.broker.sessions]


def kept(brokers: Brokers, at: str, count: int) -> list[Client]:
    """Clients with sessions that outlive them, each subscribed to a topic of its own and to one of all."""
    clients = []
    for number in range(count):
        client = connected(brokers, at, f"c{number}", clean_start=False, expiry_s=1000)
        packets = [client.subscribe(f"own/{number}", 1), client.subscribe("all", 1)]
        brokers.run_until(lambda client=client, packets=packets: all(map(client.acknowledged, packets)))
        clients.append(client)
    return clients


def test_the_sessions_go_to_the_others_and_their_clients_are_told() -> None:
    brokers = serving()
    clients = kept(brokers, "one", 20)
    publisher = connected(brokers, "two", "p")
    clients[0].leave()                      # its session is moved without it
    publisher.publish("own/0", b"while it is away", 1)
    work = leave(brokers, "one")["one"]
    brokers.run_until(work.done)
    assert work.result() == 0
    assert brokers.processes["one"].cluster.phase is Phase.LEAVING
    assert not brokers.processes["one"].node.broker.sessions
    places = [where(brokers, client.name.encode()) for client in clients]
    assert all(len(place) == 1 for place in places) and {place[0] for place in places} == {"two", "three"}
    for number, client in enumerate(clients):
        if number:
            assert client.ended == [0x9C]
        # Wherever a client goes, its session is.
        assert hop(brokers, client, NAMES[1 + number % 2]).session_present
        publisher.publish(f"own/{number}", b"after", 1)
    brokers.run_until(lambda: all((f"own/{number}", b"after") in client.messages
                                  for number, client in enumerate(clients)))
    assert clients[0].messages == [("own/0", b"while it is away"), ("own/0", b"after")]


def test_what_is_published_meanwhile_arrives_in_order() -> None:
    """The clients connect again at once, each at another node than the one that is to have its session. Only what was
    in flight when the connection ended may come twice."""
    brokers = serving()
    clients = kept(brokers, "one", 12)
    publishers = [connected(brokers, name, f"p-{name}") for name in ("two", "three")]
    payloads: dict[str, list[bytes]] = {publisher.name: [] for publisher in publishers}
    work = leave(brokers, "one")["one"]
    count = 0
    while not work.done() or count < 100:
        count += 1
        for publisher in publishers:
            payloads[publisher.name].append(b"%s %d" % (publisher.name.encode(), count))
            publisher.publish("all", payloads[publisher.name][-1], 1)
        for client in clients:
            if client.ended and client.at == "one":
                successor = brokers.processes["one"].cluster.holdings.leaver.successor((b"/", client.name.encode()))
                client.connect(at=next(name for name in ("two", "three") if name != successor), clean_start=False,
                               expiry_s=1000)
        brokers.run_for(0.01)
        assert count < 3000
    assert work.result() == 0
    brokers.run_until(lambda: all(client.connected for client in clients))
    assert all(client.connacks[-1].session_present for client in clients)
    for client in clients:
        for name, sent in payloads.items():
            def got(client: Client = client, name: str = name) -> list[bytes]:
                return [payload for _, payload in client.messages if payload.startswith(name.encode())]

            brokers.run_until(lambda got=got, sent=sent: set(got()) == set(sent))
            assert list(dict.fromkeys(got())) == sent and len(got()) <= len(sent) + 4, client.name


@pytest.mark.parametrize("names", [("one", "two"), ("three", "one")])
def test_two_leave_at_once_and_the_third_has_everything(names: tuple[str, str]) -> None:
    brokers = serving()
    clients = kept(brokers, names[0], 8)
    works = leave(brokers, *names)
    brokers.run_until(lambda: all(work.done() for work in works.values()))
    [third] = set(NAMES) - set(names)
    assert [where(brokers, client.name.encode()) for client in clients] == [[third]] * len(clients)


def test_when_all_leave_every_session_stays_somewhere() -> None:
    brokers = serving()
    clients = kept(brokers, "one", 8)
    works = leave(brokers, *NAMES)
    brokers.run_until(lambda: all(work.done() for work in works.values()), 60.0)
    assert sum(work.result() for work in works.values()) == len(clients)
    assert all(len(where(brokers, client.name.encode())) == 1 for client in clients)


def test_a_node_that_fails_to_take_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    brokers = serving()
    clients = kept(brokers, "one", 8)

    async def refuses(*_: object) -> Any:
        raise CallFailed("not now", reached=False)

    monkeypatch.setattr(brokers.processes["two"].cluster.holdings.owners, "take", refuses)
    work = leave(brokers, "one")["one"]
    brokers.run_until(work.done, 60.0)
    assert work.result() == 0
    assert [where(brokers, client.name.encode()) for client in clients] == [["three"]] * len(clients)


@pytest.mark.parametrize("after", [0.0, 0.005, 0.02, 0.05, 0.1])
def test_a_node_that_dies_while_it_takes_loses_no_session(after: float) -> None:
    """What it had taken it has when it is back; what it had not goes to the other, or stays."""
    brokers = serving()
    clients = kept(brokers, "one", 10)
    work = leave(brokers, "one")["one"]
    brokers.run_for(after)
    brokers.kill("two")
    brokers.end_lease_of("two")
    brokers.run_until(work.done, 120.0)
    brokers.start("two")
    found = [where(brokers, client.name.encode()) for client in clients]
    assert all(found), found


def test_the_order_of_successors() -> None:
    """It is the same wherever it is asked for, spreads sessions evenly, and changes only for those of a node that is
    gone."""
    sessions = [(b"/", b"client %d" % number) for number in range(3000)]
    firsts = [ranked(("a", "b", "c"), session)[0] for session in sessions]
    assert firsts == [ranked(("c", "a", "b"), session)[0] for session in sessions]
    assert all(900 < firsts.count(name) < 1100 for name in "abc")
    assert all(ranked(("a", "b"), session)[0] == first
               for session, first in zip(sessions, firsts, strict=True) if first != "c")
    assert ranked((), sessions[0]) == []


@pytest.mark.parametrize("seconds, moved", [(3.0, True), (30.0, False)])
def test_without_etcd_nothing_is_handed_over(seconds: float, moved: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A short silence is waited for, a long one is not: the sessions stay, with their clients."""
    brokers = serving()
    clients = kept(brokers, "one", 4)
    silent = {"one": "etcd has no leader"}
    monkeypatch.setattr(Membership, "why_late", property(lambda member: silent.get(member.name, "")))
    work = leave(brokers, "one")["one"]
    brokers.run_for(min(seconds, 9.0))
    assert not work.done() and all(client.open for client in clients)
    brokers.run_for(seconds - min(seconds, 9.0))
    silent.clear()
    brokers.run_until(work.done)
    assert work.result() == (0 if moved else len(clients))
    assert all((where(brokers, client.name.encode()) != ["one"]) == moved for client in clients)
