"""Stories by chance: what clients did, for a replay against a real broker whose deliveries are judged afterwards."""
from __future__ import annotations

import random

from kit.story import Story

__all__ = ["TOPICS", "chance_story"]

TOPICS = ("a", "a/b", "a/b/c", "b", "b/c", "/a", "a/", "$own/a", "$own/b")
FILTERS = ("#", "+", "a/#", "a/+", "+/b", "a/b", "a/b/#", "+/+/c", "/+", "a/", "b/#", "$own/#", "$own/+", "b", "+/#")
NO_LOCAL, AS_PUBLISHED, HANDLING = 4, 8, 16
OPERATIONS = 60


class _Chance:
    """Who is connected, and how, while a story is told."""

    def __init__(self, seed: int, prefix: str, shared: float) -> None:
        self.shared = shared
        # Members of its own: sessions that another story left behind on the broker would take what is theirs.
        self.groups = (f"{prefix}g", f"{prefix}h")
        self.random = random.Random(seed)
        self.story = Story()
        self.names = [f"{prefix}{number}" for number in range(self.random.randint(3, 6))]
        self.versions = {name: self.random.choice((5, 5, 4)) for name in self.names}
        self.here: set[str] = set()

    def connect(self, name: str) -> None:
        choose, version = self.random, self.versions[name]
        will = None
        if choose.random() < 0.3:
            will = {"topic": choose.choice(TOPICS), "qos": choose.randrange(3), "retain": choose.random() < 0.3,
                    "size": 24}
        expiry = choose.choice((0, 0, 600)) if version == 5 else 0
        self.story.connect(name, version=version, clean=choose.random() < 0.4, will=will,
                           properties={"session_expiry_interval": expiry} if expiry else None)
        self.here.add(name)

    def subscribe(self, name: str) -> None:
        choose = self.random
        asked = []
        for topic_filter in choose.sample(FILTERS, choose.randint(1, 3)):
            options = choose.randrange(3)
            shared = choose.random() < self.shared
            if self.versions[name] == 5:
                options |= AS_PUBLISHED * choose.randrange(2) | HANDLING * choose.randrange(3)
                options |= 0 if shared else NO_LOCAL * choose.randrange(2)
            asked.append((f"$share/{choose.choice(self.groups)}/{topic_filter}" if shared else topic_filter, options))
        self.story.subscribe(name, *asked)

    def publish(self, name: str) -> None:
        choose = self.random
        expires = {"message_expiry_interval": 600} if self.versions[name] == 5 and choose.random() < 0.1 else None
        for _ in range(choose.choice((1, 1, 5))):
            self.story.publish(name, choose.choice(TOPICS), choose.randrange(3), size=choose.choice((0, 16, 32, 300)),
                               retain=choose.random() < 0.2, properties=expires)

    def leave(self, name: str) -> None:
        how = self.random.random()
        if how < 0.5:
            self.story.disconnect(name)
        elif how < 0.6 and self.versions[name] == 5:
            self.story.disconnect(name, reason=4)
        elif how < 0.8:
            self.story.lost(name)
        else:
            self.connect(name)              # while the connection before is there: it takes over
            return
        self.here.discard(name)

    def step(self, calm: bool) -> None:
        name = self.random.choice(self.names)
        if name not in self.here:
            self.connect(name)
            return
        what = self.random.random()
        if what < 0.6:
            self.publish(name)
        elif what < 0.85:
            self.subscribe(name)
        elif what < 0.91:
            self.story.unsubscribe(name, *self.random.sample(FILTERS, 2))
        elif not calm:
            self.leave(name)


def chance_story(seed: int, prefix: str = "", *, calm: bool = False, shared: float = 0.2) -> Story:
    """The same seed tells the same. prefix: of client ids and groups. calm: nobody leaves, so nearly all that comes
    must come. shared: how many of the subscriptions are `$share`."""
    told = _Chance(seed, prefix, shared)
    for name in told.names:
        told.connect(name)
        told.subscribe(name)
    for _ in range(OPERATIONS):
        told.step(calm)
    return told.story
