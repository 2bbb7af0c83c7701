"""Where dead letters go is named by a queue's arguments; exchange and routing key become short strings."""
from __future__ import annotations

import pytest
from unit.amqp_world import World, refused


@pytest.mark.parametrize("name", ["dead_letter_exchange", "dead_letter_routing_key"])
def test_where_dead_letters_go_fits_the_wire(name: str) -> None:
    world = World()
    given = {"dead_letter_exchange": "x", "dead_letter_routing_key": "k"}
    world.declare(**given | {name: "n" * 255})      # type: ignore[arg-type]
    with refused(406):
        world.declare("other", **given | {name: "n" * 256})     # type: ignore[arg-type]
