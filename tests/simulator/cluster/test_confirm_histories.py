"""Histories of publisher confirms while destinations end: exclusive queues of clients that come and go, queues that
delete themselves (auto-delete, x-expires) or are deleted, and requesters that leave before the reply comes. Publishers,
queues and clients are at three brokers, whose watches of the store may be behind.

A durable queue, "kept", stays; messages reach it by a fanout, with header CC, and as dead letters of a queue with a
time to live. The others are guests of the same fanout.

What is checked:

    answered        each publish is acknowledged or refused, once
    refused         only if a queue that did not end could not take it: while all nodes live, nothing is. A transaction
                    is not refused for a guest either
    lost            what was acknowledged, and was routed to "kept", is consumed there
    returned        what was mandatory, and was for one destination only, comes back or was delivered: it does come back
                    if that had ended long before, and does not if it was there all the time
    closed          no publisher's channel is closed
"""
from __future__ import annotations

import random

import pytest
from simulator.cluster.amqp import Amqp
from simulator.cluster.test_brokers import serving

NAMES = ("one", "two", "three")
HEARD_S = (0.0, 0.0, 0.02, 0.2)     # how long a node's watch of the store may be behind
CERTAIN_MS = 2000                   # after so long all nodes know what has ended
TTL_MS = 100
REPLY_TO = "amq.rabbitmq.reply-to"
KINDS = ("exclusive", "exclusive", "auto-delete", "x-expires", "deleted", "reply")


class Guest:
    """A destination that ends. name: its routing key in the default exchange. since_ms, until_ms: its life, as its
    client knows it; 0: not yet."""

    def __init__(self, kind: str, client: Amqp, name: str, since_ms: int, consumes: bool) -> None:
        self.kind, self.client, self.name, self.since_ms = kind, client, name, since_ms
        self.consumes = consumes
        self.until_ms = 0


class Sent:
    """One publish. to_kept: it is routed to "kept". only: the guest that is its only destination."""

    def __init__(self, publisher: Publisher, since_ms: int, to_kept: bool, only: Guest | None, mandatory: bool) -> None:
        self.publisher, self.since_ms, self.to_kept, self.only = publisher, since_ms, to_kept, only
        self.mandatory = mandatory
        self.acked: bool | None = None
        self.answered_ms = 0


class Publisher(Amqp):
    """In confirm mode."""

    def __init__(self, history: History, at: str) -> None:
        self.history = history
        self.tags: dict[int, bytes] = {}        # delivery tag -> payload, of what is not answered
        self.sent = self.read_answers = self.confirmed = 0
        super().__init__(history.brokers, at)
        self.method("confirm.select")
        self.ask("confirm.select-ok")
        self.read_answers = len(self.answers)

    def read(self) -> None:
        super().read()
        now = self.brokers.world.now_ms
        for name, told in self.answers[self.read_answers:] if self.sent else ():
            if name == "channel.close" or name == "connection.close":
                self.history.wrong.append(f"the publisher at {self.at} is told {name}: {told}")
            elif name in ("basic.ack", "basic.nack"):
                last = told["delivery_tag"]
                found = [tag for tag in self.tags if tag == last or (told["multiple"] and tag < last)]
                if last not in found:
                    self.history.wrong.append(f"{last} is answered again at {self.at}, with {name}")
                for tag in found:
                    sent = self.history.sent[self.tags.pop(tag)]
                    sent.acked, sent.answered_ms = name == "basic.ack", now
        self.read_answers = len(self.answers)


class History:
    """faults: names of steps that may occur, besides what clients do."""

    FAULTS = {"tear": 2, "restart": 2}

    def __init__(self, seed: int, faults: tuple[str, ...] = (), steps: int = 50) -> None:
        self.chance = chance = random.Random(seed)
        self.faults = faults
        self.brokers = brokers = serving(*NAMES, seed=seed)
        brokers.writer_s = chance.choice((0.005, 0.005, 0.05))
        self.wrong: list[str] = []
        self.sent: dict[bytes, Sent] = {}
        self.transacted: set[bytes] = set()
        self.guests: list[Guest] = []
        self.deaths: list[int] = []         # when a node died
        self.numbers = 0
        self.hear()
        self.keeper = self.client()
        for name, arguments in (("kept", {}), ("short", {"x-message-ttl": TTL_MS, "x-dead-letter-exchange": "all"})):
            self.done(self.keeper, "queue.declare", queue=name, durable=True, arguments=arguments)
        for name in ("all", "mine"):
            self.done(self.keeper, "exchange.declare", exchange=name, type="fanout", durable=True)
            self.done(self.keeper, "queue.bind", queue="kept", exchange=name)
        self.publishers = [Publisher(self, at) for at in NAMES]
        self.committer = self.client()
        self.committer.method("tx.select")
        self.committer.ask("tx.select-ok")
        for _ in range(steps):
            self.step()
            brokers.run_for(chance.choice((0, 0.001, 0.01, 0.1, 0.5)))
        self.end()

    # ------------------------------------------------------------------ clients

    def client(self, at: str = "") -> Amqp:
        return Amqp(self.brokers, at or self.chance.choice(NAMES), acks=False)

    def done(self, client: Amqp, method: str, **arguments: object) -> dict[str, object]:
        before = len(client.answers)
        client.method(method, **arguments)
        self.brokers.run_until(lambda: len(client.answers) > before)
        name, told = client.answers[before]
        assert name == method + "-ok", told
        return told

    def come(self) -> None:
        """A guest."""
        kind, client = self.chance.choice(KINDS), self.client()
        consumes = kind in ("auto-delete", "reply") or self.chance.random() < 0.5
        self.numbers += 1
        name = f"guest-{self.numbers}"
        if kind == "reply":
            before = self.replies(client.at)
            client.consume(REPLY_TO, no_ack=True)
            name = (self.replies(client.at) - before).pop()
        else:
            arguments = {"x-expires": self.chance.choice((300, 2000))} if kind == "x-expires" else {}
            name = str(self.done(client, "queue.declare", queue="" if kind == "exclusive" else name,
                                 exclusive=kind == "exclusive", auto_delete=kind == "auto-delete",
                                 durable=kind == "deleted", arguments=arguments)["queue"])
            if kind != "x-expires" or self.chance.random() < 0.8:
                self.done(client, "queue.bind", queue=name, exchange="all")
            if consumes and kind != "x-expires":
                client.consume(name, no_ack=True)
        self.guests.append(Guest(kind, client, name, self.brokers.world.now_ms, consumes))

    def replies(self, at: str) -> set[str]:
        return {name.decode() for _, name in self.brokers.processes[at].node.manager.queues
                if name.startswith(REPLY_TO.encode())}

    def leave(self) -> None:
        staying = [guest for guest in self.guests if not guest.until_ms]
        if not staying:
            return
        guest = self.chance.choice(staying)
        if self.chance.random() < 0.5:
            self.publish_some(guest)
        guest.until_ms = self.brokers.world.now_ms
        if guest.kind == "deleted":
            guest.client.method("queue.delete", queue=guest.name)
        elif guest.kind == "auto-delete" and self.chance.random() < 0.5:
            guest.client.method("basic.cancel", consumer_tag=guest.client.told("basic.consume-ok")[-1]["consumer_tag"])
        elif guest.kind != "x-expires":
            self.close(guest.client)
        if self.chance.random() < 0.7:
            self.brokers.run_for(self.chance.choice((0, 0.001, 0.01)))
            self.publish_some(guest)

    def close(self, client: Amqp) -> None:
        if self.chance.random() < 0.5:
            client.method("connection.close", 0, reply_code=200, reply_text="", class_id=0, method_id=0)
            return
        client.pipe.client_closed = client.pipe.reset = True
        broker = self.brokers.processes[client.at]
        broker.process.driver.soon(broker.turn)

    # ------------------------------------------------------------------ steps

    def hear(self) -> None:
        for broker in self.brokers.processes.values():
            broker.cluster._store.late_s = self.chance.choice(HEARD_S)      # type: ignore[attr-defined]

    def step(self) -> None:
        steps = {"publish": 25, "come": 8, "leave": 8, "commit": 4, "hear": 2}
        steps.update({name: weight for name, weight in self.FAULTS.items() if name in self.faults})
        getattr(self, self.chance.choices(list(steps), list(steps.values()))[0])()

    def publish(self) -> None:
        self.publish_some(self.chance.choice(self.guests) if self.guests else None)

    def publish_some(self, guest: Guest | None) -> None:
        for _ in range(self.chance.choice((1, 2, 15))):
            self.publish_one(self.chance.choice(self.publishers), guest)

    def publish_one(self, publisher: Publisher, guest: Guest | None) -> None:
        way = self.chance.choice(("all", "all", "copies", "letter", "only", "only"))
        mandatory = way == "only" and self.chance.random() < 0.5
        if way == "only" and guest is None:
            return
        payload = b"%d" % len(self.sent)
        self.sent[payload] = Sent(publisher, self.brokers.world.now_ms, way != "only",
                                  guest if way == "only" else None, mandatory)
        publisher.sent += 1
        publisher.tags[publisher.sent] = payload
        if way == "only":
            assert guest is not None
            publisher.publish("", guest.name, payload, mandatory=mandatory)
        elif way == "copies":
            publisher.publish("", "kept", payload, CC=[guest.name] if guest is not None else ["nobody"])
        else:
            publisher.publish(*(("all", "") if way == "all" else ("", "short")), payload)

    def commit(self) -> None:
        """A transaction whose destinations are "kept", and a guest that is to end."""
        client, guest = self.committer, self.client(self.home())
        name = str(self.done(guest, "queue.declare", queue="", exclusive=True)["queue"])
        self.done(guest, "queue.bind", queue=name, exchange="mine")
        self.close(guest)
        self.brokers.run_for(self.chance.choice((0, 0.001, 0.01, 0.1)))
        payloads = []
        for _ in range(3):
            payload = b"tx-%d-%d" % (len(self.transacted), self.numbers)
            self.numbers += 1
            payloads.append(payload)
            client.publish("mine", "", payload)
        before = len(client.answers)
        client.method("tx.commit")
        self.brokers.run_until(lambda: len(client.answers) > before)
        if client.answers[-1][0] != "tx.commit-ok":
            self.wrong.append(f"a transaction is answered {client.answers[-1]}")
            self.committer = self.client()
            self.committer.method("tx.select")
        else:
            self.transacted.update(payloads)

    def home(self) -> str:
        """The node that has "kept"."""
        return next(at for at in NAMES for state in self.brokers.processes[at].node.manager.queues.values()
                    if state.queue.name == b"kept" and state.here)

    def tear(self) -> None:
        self.brokers.break_streams()

    def restart(self) -> None:
        """A node dies, and is back: its clients are gone."""
        at = self.chance.choice(NAMES)
        self.deaths.append(self.brokers.world.now_ms)
        self.brokers.kill(at)
        self.brokers.end_lease_of(at)
        for guest in self.guests:
            if guest.client.at == at and not guest.until_ms:
                guest.until_ms = self.brokers.world.now_ms
        self.publish_some(None)
        self.brokers.processes[at].start()
        self.brokers.run_until(lambda: self.brokers.processes[at].serving, 60.0)
        self.deaths.append(self.brokers.world.now_ms)
        self.publishers = [Publisher(self, at) if one.at == at else one for one in self.publishers]
        if self.committer.at == at:
            self.committer = self.client()
            self.committer.method("tx.select")
            self.committer.ask("tx.select-ok")

    # ------------------------------------------------------------------ the verdict

    def end(self) -> None:
        for guest in self.guests:
            guest.until_ms = guest.until_ms or self.brokers.world.now_ms
        self.brokers.run_for(12.0)          # also what nobody waits for any more
        reader = self.client()
        reader.consume("kept", no_ack=True)
        got = len(reader.bodies)
        self.brokers.run_for(2.0)
        while len(reader.bodies) != got:
            got = len(reader.bodies)
            self.brokers.run_for(1.0)
        self.verdict(set(reader.bodies))
        if self.wrong:
            raise AssertionError("\n".join(self.wrong[:20]))

    def verdict(self, kept: set[bytes]) -> None:
        self.wrong += [f"{payload!r} of a transaction is lost" for payload in self.transacted - kept]
        for payload, sent in self.sent.items():
            of, at = sent.only, sent.publisher.at
            if sent.publisher not in self.publishers and sent.acked is None:
                continue                    # its node has died
            if sent.acked is None:
                self.wrong.append(f"{payload!r} at {at} is not answered")
            elif not sent.acked and not any(sent.since_ms - CERTAIN_MS <= died <= sent.answered_ms
                                            for died in self.deaths):
                self.wrong.append(f"{payload!r} at {at} is refused; in \"kept\": {payload in kept}; for "
                                  f"{of.kind if of else 'all'}")
            elif sent.acked and sent.to_kept and payload not in kept:
                self.wrong.append(f"{payload!r} at {at} was acknowledged and is lost")
            if of is not None and sent.acked:
                self.check_return(payload, sent, of)

    def check_return(self, payload: bytes, sent: Sent, of: Guest) -> None:
        """Of what had one destination."""
        returned, delivered = payload in sent.publisher.returned, payload in of.client.bodies
        if returned and (delivered or not sent.mandatory):
            self.wrong.append(f"{payload!r} comes back from {of.kind}, mandatory: {sent.mandatory}, delivered: "
                              f"{delivered}")
        if self.deaths:
            return
        there = sent.since_ms >= of.since_ms + CERTAIN_MS and sent.answered_ms < of.until_ms
        if there and returned and of.kind != "x-expires":
            self.wrong.append(f"{payload!r} comes back from {of.kind}, which is there")
        if there and of.consumes and of.kind != "x-expires" and not delivered and (
                sent.answered_ms + CERTAIN_MS < of.until_ms):
            self.wrong.append(f"{payload!r} was acknowledged, and {of.kind}, which was there, has not got it")
        if sent.mandatory and sent.since_ms > of.until_ms + CERTAIN_MS and of.kind != "x-expires" and not returned:
            self.wrong.append(f"{payload!r} is for {of.kind}, which has ended, and does not come back")


def run(seed: int, faults: tuple[str, ...], steps: int = 50) -> None:
    History(seed, faults, steps)


LEVELS = {"clients": (), "streams": ("tear",), "nodes": ("tear", "restart")}


@pytest.mark.parametrize("level", LEVELS)
def test_histories(level: str, seed: int) -> None:
    for number in range(3):
        this = seed * 1_000_000 + number
        try:
            run(this, LEVELS[level])
        except BaseException as error:
            error.add_note(f"run({this}, LEVELS[{level!r}])")
            raise
