"""Dead letters and what clients say of them: names in a queue's arguments, `x-death` in a publisher's headers."""
from __future__ import annotations

import pytest
from unit.amqp_world import World, refused

from fluxmq._core.amqp091.fields import Integer
from fluxmq.engine.queues.amqp.dead_letters import with_death


@pytest.mark.parametrize("name", ["dead_letter_exchange", "dead_letter_routing_key"])
def test_where_dead_letters_go_fits_the_wire(name: str) -> None:
    world = World()
    given = {"dead_letter_exchange": "x", "dead_letter_routing_key": "k"}
    world.declare(**given | {name: "n" * 255})      # type: ignore[arg-type]
    with refused(406):
        world.declare("other", **given | {name: "n" * 256})     # type: ignore[arg-type]


@pytest.mark.parametrize(("count", "then"), [(1, 2), (2**63 - 1, 2**63 - 1), (-(2**63), -(2**63) + 1), ("many", 1)])
def test_a_count_that_a_publisher_made_up(count: object, then: int) -> None:
    """It stays a number that the wire carries: a message with it must be able to die."""
    deaths = [{"queue": "q", "reason": "expired", "count": count}]
    told = with_death({"x-death": deaths}, name="q", reason="expired", exchange="", keys=["q"], expiration=None,
                      time_s=0)
    assert told["x-death"] == [{"queue": "q", "reason": "expired", "count": then}]
    assert isinstance(told["x-death"][0]["count"], Integer)
