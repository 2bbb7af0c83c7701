"""Who owns a session: one node at a time, by a key that changes with a compare."""
from __future__ import annotations

import pytest
from cluster.world import World

from fluxmq._core.errors import ProtocolError
from fluxmq.cluster.keys import OWNER, client_key
from fluxmq.cluster.owners import NotHandedOver
from fluxmq.cluster.ports import Change
from fluxmq.engine.ports.cluster import Owner

KEY = client_key(OWNER, b"/", b"c")
SESSION = b"/", b"c"


@pytest.fixture
def world() -> World:
    return World()


def test_the_first_to_ask_owns_and_the_others_see_it(world: World) -> None:
    one, two = world.member("one"), world.member("two")
    owner = one.take(b"c")
    assert owner == Owner("one", world.store.items[KEY].revision)
    assert one.owners.claim(SESSION) == owner
    assert world.store.items[KEY].value == b"one" and world.store.items[KEY].lease == one.membership.lease
    world.run(20)
    assert two.owners.owner(SESSION) == owner and two.owners.counts() == {"one": 1}


def test_a_session_that_was_released_is_free(world: World) -> None:
    one, two = world.member("one"), world.member("two")
    first = one.take(b"c")
    one.owners.release(SESSION)
    assert one.owners.claim(SESSION) is None
    world.run(50)
    assert KEY not in world.store.items
    second = two.take(b"c")
    assert second.node == "two" and second.epoch > first.epoch
    assert not one.log[2:] and not two.log[2:]          # nobody lost anything


def test_a_client_that_returns_waits_for_the_release(world: World) -> None:
    one = world.member("one")
    first = one.take(b"c")
    one.owners.release(SESSION)
    second = one.take(b"c")
    assert second.node == "one" and second.epoch > first.epoch
    assert one.owners.claim(SESSION) == second
    world.run(100)
    assert one.owners.claim(SESSION) == second and ("lost", b"c") not in one.log


def test_the_owner_hands_over_before_the_key_changes(world: World) -> None:
    one, two = world.member("one"), world.member("two")
    first = one.take(b"c")
    world.run(20)
    seen = []
    two.takeover = lambda session, owner, clean: seen.append((session, owner, clean, world.store.items[KEY].value))
    second = two.take(b"c", clean=True)
    assert seen == [(SESSION, first, True, b"one")]
    assert world.store.items[KEY].value == b"two" and second.epoch > first.epoch
    world.run(20)
    assert one.log[-1] == ("lost", b"c") and one.owners.claim(SESSION) is None


def test_an_owner_that_refuses_keeps_it(world: World) -> None:
    one, two = world.member("one"), world.member("two")
    first = one.take(b"c")
    world.run(20)

    def refuse(session: tuple[bytes, bytes], owner: Owner, clean: bool) -> None:
        raise ProtocolError(0x88, "it does not answer")

    two.takeover = refuse
    with pytest.raises(ProtocolError):
        two.take(b"c")
    assert one.owners.claim(SESSION) == first
    world.driver.crashed.clear()


def test_a_session_that_ends_while_its_owner_is_asked_is_taken_at_once(world: World) -> None:
    """The feed tells it before the answer comes, so there is no change to wait for."""
    one, two = world.member("one"), world.member("two")
    one.take(b"c")
    world.run(20)

    async def ended(session: tuple[bytes, bytes], owner: Owner, clean: bool) -> None:
        one.owners.release(SESSION)
        await world.driver.sleep(0.2)
        raise NotHandedOver("it is not here")

    two.takeover = ended
    begun = world.ms
    assert two.take(b"c").node == "two"
    assert world.ms - begun < 500               # of the simulated clock


def test_a_client_waits_until_the_lease_of_a_node_that_cannot_be_reached_has_ended(world: World) -> None:
    one, two = world.member("one"), world.member("two")
    one.take(b"c")
    world.run(20)
    asked = []

    def unreachable(session: tuple[bytes, bytes], owner: Owner, clean: bool) -> None:
        asked.append(world.ms)
        raise NotHandedOver("it cannot be reached")

    two.takeover = unreachable
    work = world.start(two.owners.take(SESSION, False, 0))
    one.kill()
    world.run(3500)
    assert not work.done() and len(asked) == 4              # once a second
    world.store.end_lease(one.membership.lease)
    world.run(1000)
    assert work.result().node == "two" and len(asked) == 4


def test_a_client_is_refused_when_a_node_does_not_hand_over_and_lives(world: World) -> None:
    one, two = world.member("one"), world.member("two")
    first = one.take(b"c")
    assert one.owners.claim(SESSION) == first
    world.run(20)

    def unreachable(session: tuple[bytes, bytes], owner: Owner, clean: bool) -> None:
        raise NotHandedOver("it cannot be reached")

    two.takeover = unreachable
    work = world.start(two.owners.take(SESSION, False, 0))
    world.run(1000 * (two.membership.ttl_s + 12))
    error = work.exception()
    assert isinstance(error, ProtocolError) and error.reason == 0x88 and "cannot be reached" in str(error)
    assert one.owners.claim(SESSION) == first


def test_what_a_dead_node_owned_is_free_when_its_lease_has_ended_and_a_little_later(world: World) -> None:
    one, two = world.member("one"), world.member("two")
    one.take(b"c")
    world.run(20)
    one.kill()
    world.store.end_lease(one.membership.lease)
    world.run(20)
    begun = world.ms
    assert two.take(b"c").node == "two"
    assert world.ms - begun >= 500
    assert ("takeover", b"c", "one") not in two.log


def test_two_that_ask_at_once_do_not_both_own(world: World) -> None:
    one, two = world.member("one"), world.member("two")
    works = [world.start(member.owners.take(SESSION, False, 0)) for member in (one, two)]
    world.run(1000)
    owners = [work.result() for work in works]
    assert {owner.node for owner in owners} == {"one", "two"}       # the second took it over
    assert owners[0].epoch != owners[1].epoch
    last = max(owners, key=lambda owner: owner.epoch)
    assert world.store.items[KEY].value.decode() == last.node
    assert [member.owners.claim(SESSION) is not None for member in (one, two)] == [last.node == "one",
                                                                                  last.node == "two"]


def test_two_connects_at_one_node_share_an_attempt(world: World) -> None:
    one = world.member("one")
    works = [world.start(one.owners.take(SESSION, False, 0)) for _ in range(2)]
    world.run(1000)
    assert works[0].result() == works[1].result()
    assert len([1 for _, changes in world.store.transactions for change in changes if change.key == KEY]) == 1


def test_what_nobody_claims_is_released(world: World) -> None:
    one = world.member("one")
    world.end(one.owners.take(SESSION, False, 0))
    world.run(6000)
    assert KEY not in world.store.items and not one.owners.owned_epoch(SESSION)
    one.take(b"c")
    one.owners.claim(SESSION)
    world.run(6000)
    assert KEY in world.store.items


def test_an_owner_whose_key_is_deleted_by_somebody_loses_the_session(world: World) -> None:
    one = world.member("one")
    one.take(b"c")
    world.run(20)
    world.store.apply([Change(KEY, None)])
    world.run(20)
    assert one.log[-1] == ("lost", b"c") and one.owners.claim(SESSION) is None


def test_an_answer_that_was_lost_is_no_loss(world: World) -> None:
    one = world.member("one")
    world.store.counts.lose_answers = 1
    owner = one.take(b"c")
    assert owner.node == "one" and world.store.items[KEY].revision == owner.epoch
    world.run(100)
    assert one.owners.claim(SESSION) == owner


def test_a_compaction_hides_nothing(world: World) -> None:
    one, two = world.member("one"), world.member("two")
    one.take(b"a")
    world.run(20)
    for client in (b"b", b"c"):
        one.take(client)
        world.store.compact()
    one.owners.release((b"/", b"a"))
    world.run(20)
    world.store.compact()
    world.run(500)
    assert two.owners.counts() == {"one": 2} and two.owners.owner((b"/", b"a")) is None
    assert [bool(one.owners.owned_epoch((b"/", client))) for client in (b"a", b"b", b"c")] == [False, True, True]
    assert not [entry for entry in one.log if entry[0] == "lost"]
