"""Dead letters between queues, any number and any shape of them: what RabbitMQ's rules say, told a second time and
naively, message by message."""
from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from unit.amqp_world import Consumer, World

from fluxmq._core.queue.queue import Queue

QUEUES = ("a", "b", "c")
TTL_S = 1.0


@dataclass(frozen=True)
class Letter:
    """A message as the model has it. deaths: (queue, reason, count), the last first."""

    body: str
    deaths: tuple[tuple[str, str, int], ...] = ()
    first: tuple[str, str] | None = None
    due: float | None = None

    def died(self, queue: str, reason: str) -> Letter:
        known = {(name, why): count for name, why, count in self.deaths}
        count = known.pop((queue, reason), 0) + 1
        others = tuple((name, why, n) for name, why, n in self.deaths if (name, why) != (queue, reason))
        return replace(self, deaths=((queue, reason, count), *others), first=self.first or (queue, reason))

    def goes_round(self, queue: str) -> bool:
        """It has been there, and whatever happened since, nobody rejected it."""
        names = [name for name, _, _ in self.deaths]
        if queue not in names:
            return False
        return all(reason != "rejected" for _, reason, _ in self.deaths[:names.index(queue) + 1])


@dataclass
class Model:
    """dead: queue -> where its dead letters go. ttl, most: of queues that have one."""

    dead: dict[str, list[str]]
    ttl: set[str]
    most: dict[str, int]
    now: float = 0.0
    queues: dict[str, list[Letter]] = field(default_factory=lambda: {name: [] for name in QUEUES})

    def put(self, queue: str, letter: Letter) -> None:
        self.queues[queue].append(replace(letter, due=self.now + TTL_S if queue in self.ttl else None))

    def die(self, queue: str, letter: Letter, reason: str) -> None:
        dead = letter.died(queue, reason)
        for target in self.dead[queue]:
            if reason == "rejected" or not dead.goes_round(target):
                self.put(target, dead)

    def settle_down(self) -> None:
        """Whatever must die by now dies, a queue after the other, as long as there is anything."""
        busy = True
        while busy:
            busy = False
            for name, queue in self.queues.items():
                while len(queue) > self.most.get(name, len(queue)):
                    self.die(name, queue.pop(0), "maxlen")
                    busy = True
                while queue and queue[0].due is not None and queue[0].due <= self.now:
                    self.die(name, queue.pop(0), "expired")
                    busy = True


shapes = st.dictionaries(st.sampled_from(QUEUES), st.lists(st.sampled_from(QUEUES), unique=True, max_size=3))
steps = st.lists(st.one_of(
    st.tuples(st.just("put"), st.sampled_from(QUEUES)), st.tuples(st.just("reject"), st.sampled_from(QUEUES)),
    st.tuples(st.just("wait"), st.sampled_from(QUEUES))), max_size=12)


def told(letters: list[tuple[str, dict[str, Any]]]) -> list[tuple[Any, ...]]:
    found: list[tuple[Any, ...]] = []
    for body, properties in letters:
        headers = properties.get("headers", {})
        first = ((headers["x-first-death-queue"], headers["x-first-death-reason"])
                 if "x-first-death-queue" in headers else None)
        found.append((body, tuple((death["queue"], death["reason"], int(death["count"]))
                                  for death in headers.get("x-death", [])), first))
    return sorted(found, key=repr)


@settings(max_examples=150, deadline=None)
@given(dead=shapes, ttl=st.sets(st.sampled_from(QUEUES)),
       full=st.sets(st.sampled_from(QUEUES)), steps=steps)
def test_dead_letters_go_where_the_rules_say(dead: dict[str, list[str]], ttl: set[str], full: set[str],
                                             steps: list[tuple[str, str]]) -> None:
    most = dict.fromkeys(full, 0)  # else it were a matter of order which one has room
    dead = {name: dead.get(name, []) for name in QUEUES}
    found: dict[bytes, Queue] = {}
    # An exchange for each queue, named as the queue: fan-out to where its dead letters go.
    world = World(lambda vhost, exchange, key, headers: [found[name.encode()] for name in dead[exchange.decode()]])
    for name in QUEUES:
        arguments: dict[str, Any] = {"dead_letter_exchange": name}
        if name in ttl:
            arguments["message_ttl"] = int(TTL_S * 1000)
        if name in most:
            arguments["max_length"] = most[name]
        found[name.encode()] = world.declare(name, **arguments).queue
    model = Model(dead, ttl, most)
    for number, (verb, name) in enumerate(steps):
        if verb == "put":
            world.put(str(number), to=name)
            model.put(name, Letter(str(number)))
        elif verb == "reject" and model.queues[name]:
            asker = Consumer(world, name, asks=True)
            head = told(world.letters(name)[:1])[0]  # of those that came at the same time the model knows no order
            asker.ask()
            asker.reject(asker.take()[0])
            asker.leave()
            letter = next(one for one in model.queues[name] if (one.body, one.deaths, one.first) == head)
            model.queues[name].remove(letter)
            model.die(name, letter, "rejected")
        elif verb == "wait":
            world.after(TTL_S)
            model.now += TTL_S
        for _ in range(len(QUEUES) * 4):
            world.turn()
        model.settle_down()
        for queue, letters in model.queues.items():
            assert told(world.letters(queue)) == sorted(
                [(one.body, one.deaths, one.first) for one in letters], key=repr), (number, queue)
