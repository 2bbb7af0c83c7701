"""Messages with an origin: each session gets each once, over checkpoints and restarts, until that is forgotten."""
from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

import pytest
from kit.carrier import Carrier
from kit.stored_node import StoredNode

from fluxmq._core.errors import CorruptError
from fluxmq._core.hub.hub import Hub
from fluxmq._core.hub.origins import read_origin
from fluxmq._core.testing.peer_probe import queued, release_all


class World:
    """had: of each session, how often it must have each message. here: sessions that were there at the last publish of
    an identity."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.lives = 0
        self.had: dict[bytes, Counter[int]] = {}
        self.here: dict[int, set[bytes]] = {}
        self.start()

    def start(self) -> None:
        self.lives += 1
        self.node = StoredNode(self.directory, 7, small=1 << 20)
        self.node.hub.begin_identities(self.lives)

    def join(self) -> None:
        name, connection = b"s%d" % len(self.had), Carrier(stays=True)
        session, _ = self.node.broker.connect(name, version=5, clean_start=False, expiry_s=1 << 20, keep_alive_s=0,
                                              will=None, username=None, connection=connection)
        self.node.broker.subscribe(session, b"w", 1, 0)
        self.node.broker.disconnect(session, connection, publish_will=False)
        self.had[name] = Counter()

    def publish(self, identity: int) -> None:
        self.node.hub.publish_message(b"w", b"%d" % identity, 1, identity=identity)
        before = self.here.setdefault(identity, set())
        for name in self.had.keys() - before:
            self.had[name][identity] += 1
        before.update(self.had)

    def forget(self, identity: int) -> None:
        self.node.hub.origins.forget(identity)
        self.here.pop(identity, None)

    def check(self) -> None:
        for name, expected in self.had.items():
            got = Counter(int(payload) for _, payload, *_ in queued(self.node.broker.sessions[b"/", name]))
            assert got == expected, name


@pytest.mark.parametrize("seed", range(12))
def test_each_session_gets_each_once(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    world = World(tmp_path)
    world.join()
    for _ in range(60):
        what = chance.random()
        if what < 0.1 and len(world.had) < 12:
            world.join()
        elif what < 0.75:
            world.publish(chance.randint(1, 6))
        elif what < 0.85:
            world.forget(chance.randint(1, 6))
        else:
            if chance.random() < 0.5:
                world.node.checkpoint()
            else:
                world.node.sync()
            if chance.random() < 0.7:
                world.node.close()
                world.start()
        world.check()
    for identity in range(1, 7):
        world.forget(identity)
    world.node.checkpoint()
    world.node.close()
    world.start()
    world.check()
    assert not len(world.node.hub.origins)
    world.node.close()


def test_no_life_gives_out_what_another_has() -> None:
    given: set[int] = set()
    for epoch in (1, 2, 3, 1000, 1 << 40):
        hub = Hub(None)
        assert hub.next_identity() == 0         # alone
        hub.begin_identities(epoch)
        some = {hub.next_identity() for _ in range(1000)}
        assert len(some) == 1000 and not some & given and 0 not in some
        given |= some


@pytest.mark.parametrize("released", [65_535, 65_537])
def test_what_is_released_while_a_session_comes_is_not_brought(released: int) -> None:
    """Of more than 65 536 identifiers nobody knows which, so nothing is brought until the last session is whole."""
    origins = (hub := Hub(None)).origins
    origins.watch(True)
    origins.watch(True)
    release_all(hub, 7, 1, 65_535)
    if released > 65_535:
        release_all(hub, 8, 1, released - 65_535)
    origins.bring(7, 5, 70, 1)
    assert not len(origins), "that was released"
    origins.bring(9, 1, 70, 1)
    origins.bring_group(9, 2, 70, 3)
    assert len(origins) == (2 if released == 65_535 else 0)
    origins.watch(False)
    origins.bring(9, 3, 70, 1)
    assert len(origins) == (3 if released == 65_535 else 0)
    origins.watch(False)
    origins.bring(7, 5, 71, 1)
    origins.bring(9, 4, 70, 1)
    assert len(origins) == (5 if released == 65_535 else 2)


def test_what_is_read_of_a_record() -> None:
    def number(n: int) -> bytes:
        return n.to_bytes(8, "big")

    key, value = number(5) + b"\0\3" + number(9), number(11) + b"\1" + number(2)
    had = number(11) + b"\5" + b"\0\0\0\2" + number(8) + number(9) + number(2)
    groups = number(11) + b"\x0e" + b"\0\0\0\1" + number(8) + b"\0\0\0\2" + number(1 << 31) + number(7) + number(2)
    assert read_origin(key, value) == (5, 3, 9, 11, 1, (2,), (), ())
    assert read_origin(key, had) == (5, 3, 9, 11, 1, (2,), (8, 9), ())
    assert read_origin(key, groups) == (5, 3, 9, 11, 2, (2,), (8,), (1 << 31, 7))
    assert read_origin(key) == (5, 3, 9, 0, 0, (), (), ())
    assert read_origin(key[:8]) == (5, None, 0, 0, 0, (), (), ())
    for wrong in (b"", value[:8], value + b"\0", had[:10], had[:20], had + b"\0", value[:8] + b"\x10", groups[:26],
                  groups[:30]):
        with pytest.raises(CorruptError):
            read_origin(key, wrong)


def test_what_sessions_bring_is_kept_over_a_restart(tmp_path: Path) -> None:
    world = World(tmp_path)
    name = 77
    for checkpoint in (False, True):
        origins = world.node.hub.origins
        origins.bring(name, 1, 5, 3)
        origins.bring(name, 1, 5, 4)
        origins.bring(name, 2, 6)
        origins.bring(name, 3, 0, 4)
        assert sorted(origins.had_by(4)) == [(name, 1, 5), (name, 3, 0)]
        assert origins.had_by(3) == [(name, 1, 5)] and origins.own(name) == [(2, 6)]
        world.node.checkpoint() if checkpoint else world.node.sync()
        world.node.close()
        world.start()
        origins = world.node.hub.origins
        assert origins.uses(name) == {1: [5], 2: [6], 3: [0]}
        # Nobody knows what was released meanwhile.
        assert origins.had_by(4) == [] and origins.own(name) == []
    world.node.close()


def test_a_session_that_was_absent_has_not_had_what_came_in_this_life(tmp_path: Path) -> None:
    """It keeps what came before that life, however much has come and is over since."""
    world = World(tmp_path)
    world.join()
    for identity in range(1, 6):
        world.publish(identity)
    world.node.sync()
    world.node.close()
    world.start()
    number = world.node.broker.sessions[b"/", b"s0"].number
    origins = world.node.hub.origins
    for identity in range(100, 600):
        world.publish(identity)
        if identity % 50:
            world.forget(identity)
    assert len(origins.had_by(number)) == 10
    origins.absent(number)
    assert origins.had_by(number) == []
    for identity in (150, 599):
        world.here[identity] = set()
    for identity in (5, 150, 599):              # again
        world.publish(identity)
    world.check()
    world.node.close()
