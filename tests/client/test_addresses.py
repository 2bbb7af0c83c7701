"""Several addresses of one client: which is tried next, where a Server Reference leads, what if none answers."""
from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from kit.scripted import Peer, Scripted, answer_all
from oracle.mqtt import Disconnect, Puback, Publish

from fluxmq.client import Backoff, Client, ConnectionLost, ConnectRefused, UsageError
from fluxmq.client.addresses import Addresses

Run = Callable[[Any], Any]
QUICK = Backoff(initial_s=0.001)
NOBODY = "127.0.0.1:1"      # nothing listens there


def test_the_order_of_addresses() -> None:
    addresses = Addresses(["a", "b", "c"])
    order = []
    for _ in range(4):
        order.append(addresses.current)
        addresses.lost()
    assert order == ["a", "b", "c", "a"]
    addresses.lost("x")
    assert addresses.current == "x"
    addresses.failed()
    assert addresses.current == "c"
    addresses.failed("y")
    addresses.lost()
    assert addresses.current == "a"


def test_one_address_goes_on_where_it_was_sent() -> None:
    addresses = Addresses("a")
    addresses.lost("x")
    addresses.lost()
    assert addresses.current == "x"
    addresses.failed()
    assert addresses.current == "a"


@pytest.mark.parametrize(("own", "told", "found"), [
    ("a:1", "b:2", "b:2"), ("mqtts://a", "b:2 c:3", "mqtts://b:2"), ("a:1", "b/c", ""), ("a:1", "", ""),
    ("unix:/s", "b:2", "")])
def test_a_reference_keeps_the_scheme(own: str, told: str, found: str) -> None:
    assert Addresses(own).reference(told) == found


@pytest.mark.parametrize("given", [[], ["a:1", "b/c"], ["a:1", 7], None])
def test_what_is_no_list_of_addresses(run: Run, given: Any) -> None:
    async def body() -> None:
        with pytest.raises(UsageError):
            await Client(given).start()

    run(body())


def test_the_first_that_accepts(run: Run) -> None:
    """One that does not answer and one that is busy are passed by."""
    async def busy(peer: Peer) -> None:
        await peer.accept(reason=0x89)

    async def body() -> None:
        async with Scripted(busy) as first, Scripted(answer_all) as second:
            async with Client([NOBODY, first.address, second.address]) as client:
                assert client.address == second.address
                await client.publish("a", b"1", 1)
            assert (first.peers, second.peers) == (1, 1)

    run(body())


def test_none_answers(run: Run) -> None:
    """Each is tried once, and the error says what each has said."""
    async def busy(peer: Peer) -> None:
        await peer.accept(reason=0x89)

    async def body() -> None:
        async with Scripted(busy) as first:
            with pytest.raises(OSError) as caught:
                await Client([first.address, NOBODY]).start()
            assert first.peers == 1
            assert [note.partition(": ")[0] for note in caught.value.__notes__] == [first.address]
            with pytest.raises(ConnectRefused, match="busy"):
                await Client([NOBODY, first.address]).start()

    run(body())


def test_a_refusal_for_good_ends_the_search(run: Run) -> None:
    """A wrong password is not tried at every node: that would be a ban at all of them."""
    async def refuse(peer: Peer) -> None:
        await peer.accept(reason=0x86)

    async def body() -> None:
        async with Scripted(refuse) as first, Scripted(answer_all) as second:
            with pytest.raises(ConnectRefused, match="password"):
                await Client([first.address, second.address]).start()
            assert second.peers == 0

    run(body())


@pytest.mark.parametrize("others", [0, 1])
def test_the_first_connection_goes_where_it_is_sent(run: Run, others: int) -> None:
    """Once: two that send a client to each other do not keep it."""
    async def away(peer: Peer) -> None:
        await peer.accept(reason=0x9C, properties={"server_reference": there.address})

    async def body() -> None:
        nonlocal there
        async with Scripted(answer_all) as there, Scripted(away) as first, \
                Client([first.address, *[NOBODY] * others]) as client:
            assert client.address == there.address
        async with Scripted(away) as there:
            with pytest.raises((ConnectRefused, OSError)):
                await Client([there.address, *[NOBODY] * others]).start()
            assert there.peers == 2

    there: Scripted
    run(body())


def test_a_lost_connection_goes_to_the_next(run: Run) -> None:
    """Round and round; what was not acknowledged comes there, and the program is told."""
    told: list[str] = []

    async def dies(peer: Peer) -> None:
        await peer.accept()
        await peer.expect(Publish)
        peer.drop()

    async def takes(peer: Peer) -> None:
        await peer.accept(session_present=True)
        packet = await peer.expect(Publish, dup=True)
        peer.send(Puback(packet_id=packet.packet_id))
        await peer.expect(Disconnect)

    async def body() -> None:
        async with Scripted(dies) as first, Scripted(takes) as third:
            client = Client([first.address, NOBODY, third.address], reconnect=QUICK,
                            on_connected=lambda: told.append(f"at {client.address}"),
                            on_lost=lambda error: told.append(type(error).__name__))
            async with client:
                await client.publish("a", b"1", 1)
            assert told == [f"at {first.address}", ConnectionLost.__name__, f"at {third.address}"]
            assert (first.peers, third.peers) == (1, 1)

    run(body())


def test_a_reference_wins_over_the_next(run: Run) -> None:
    """And when nobody is there the client goes on behind the one that has sent it."""
    order: list[str] = []

    async def first(peer: Peer) -> None:
        order.append("first")
        await peer.accept()
        peer.send(Disconnect(reason=0x9C, properties={"server_reference": there.address}))
        await peer.expect_end()

    async def elsewhere(peer: Peer) -> None:
        order.append("elsewhere")
        await peer.accept()
        peer.drop()

    async def second(peer: Peer) -> None:
        order.append("second")
        await answer_all(peer)

    async def body() -> None:
        nonlocal there
        async with Scripted(elsewhere) as there, Scripted(first) as one, Scripted(second) as two, \
                Client([one.address, two.address], reconnect=QUICK) as client:
            while client.connects < 3:
                await asyncio.sleep(0.001)
        assert order == ["first", "elsewhere", "second"]

    there: Scripted
    run(body())


def test_attempts_are_rounds(run: Run) -> None:
    """A client gives up when each address has been tried so often."""
    tried = 0

    async def once(peer: Peer) -> None:
        nonlocal tried
        tried += 1
        if peer.number:
            return
        await peer.accept()
        peer.drop()

    async def body() -> None:
        async with Scripted(once) as one, Client([one.address, NOBODY],
                                                 reconnect=Backoff(initial_s=0.001, attempts=3)) as client:
            with pytest.raises((ConnectionLost, OSError)):
                await client.messages.__anext__()
            assert client.ended and tried == 3      # the first, and two rounds

    run(body())
