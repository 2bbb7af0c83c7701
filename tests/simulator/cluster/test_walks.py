"""A takeover and a move of a queue do not enter more files, or more often, than they need to."""
from __future__ import annotations

import pytest
from simulator.cluster.walks import PART, WALKS


@pytest.mark.parametrize(("name", "files_max", "entries_max", "of_part_max"), [
    ("takeover", 34, 315, 297), ("move", 34, 250, 230)])
def test_a_walk_does_not_grow(name: str, files_max: int, entries_max: int, of_part_max: int) -> None:
    """What was counted when this was written, and a little more. Who adds a step looks at the table first:
    `cd tests && python -m simulator.cluster.walks`."""
    walk = WALKS[name]()
    table = "\n".join(walk.table())
    assert len(walk.files()) <= files_max, table
    assert walk.of().total() <= entries_max, table
    assert walk.of(PART).total() <= of_part_max, table


def test_what_is_counted() -> None:
    """Nodes that take part are a part of all; what goes on is no call, and is some of it."""
    walk = WALKS["move"]()
    assert {entry.node for entry in walk.entries} == {"one", "two", "three"}
    assert 0 < sum(count for entry, count in walk.entries.items() if entry.goes_on) < walk.of().total() / 4
    assert all(entry.caller.split(" ")[0] != entry.called.split(" ")[0] for entry in walk.entries)
