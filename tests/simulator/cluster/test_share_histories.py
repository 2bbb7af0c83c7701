"""Histories of share groups whose members are on three nodes that lose their leases and come back, each from one seed.

One group. Its members have persistent sessions and clean ones, subscriptions of QoS 1 and of QoS 2; they leave, come to
any node, and for a while do not acknowledge. Publishers at each node send with QoS 1 and 2 and repeat what was not
answered. Beside the group stands a subscriber of its own session, without a share: what is lost for the group alone is
told from what is lost for everybody. Nodes stand still (SIGSTOP) for less and for longer than their lease, are cut off
in both directions or in one, lose their lease by a word of the store (one, or all at once), are killed and come back.
In the end everything heals, and every member is there.

What is checked, by the identities of messages (a payload is published once):

    lost        what was acknowledged to its publisher has come to a member of the group, and to the subscriber beside;
                but for what a node that dies, or is fenced, had just sent to a member without a session that outlives
                its connection (docs/internals/cluster.md, Share groups): not more than such members had there
    parked      in the end nothing waits for a member, and nothing is in doubt
"""
from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest
from kit.sizes import some
from oracle.mqtt import Suback
from simulator.cluster.brokers import BrokerProcess, Client
from simulator.cluster.test_brokers import serving
from simulator.cluster.test_queue_histories import REFUSED, Publisher

from fluxmq.cluster.keys import node_key

NAMES = ("one", "two", "three")
FILTER = "t/#"
SHARE = f"$share/g/{FILTER}"
LEASE_S = 10.0
MEMBERS = 5
NO_SUBSCRIBERS = 0x10       # MQTT 5.0 section 3.4.2.1: nobody was there


class Member(Client):
    """persistent: it continues its session wherever it connects. It subscribes when a connection has no session."""

    def __init__(self, history: History, at: str, name: str, filter_: str, qos: int, persistent: bool) -> None:
        super().__init__(history.brokers, at, name)
        history.brokers.clients.append(self)
        self.filter, self.qos, self.persistent = filter_, qos, persistent
        self.asked = 0
        self.subscribed = False

    def go(self, at: str, *, anew: bool = False) -> None:
        """anew: it leaves its session behind."""
        self.asked, self.subscribed, self.acks = 0, False, True
        self.connect(at=at, clean_start=anew or not self.persistent, expiry_s=1000 if self.persistent else 0)

    def read(self) -> None:
        before = len(self.got)
        super().read()
        if any(isinstance(packet, Suback) and packet.packet_id == self.asked and packet.reasons[0] < REFUSED
               for packet in self.got[before:]):
            self.subscribed = True
        if not self.asked and self.connected:
            self.subscribed = self.connacks[-1].session_present and self.subscribed
            self.asked = self.subscribe(self.filter, self.qos)


class History:
    """clean: some members have no session that outlives their connection."""

    STEPS = {"publish": 30, "come": 8, "leave": 4, "silence": 2, "rest": 4, "move_publisher": 3,
             "come_anew": 2}
    FAULTS = {"stand_still": 3, "cut_off": 3, "lose_lease": 2, "lose_all_leases": 1, "die": 2, "tear": 2,
              "cut_one_way": 2}

    def __init__(self, seed: int, clean: bool = False, steps: int = 40) -> None:
        self.chance = chance = random.Random(seed)
        self.names = NAMES if seed % 3 < 2 else (*NAMES, "four")    # with four, lives end beside two that go on
        self.brokers = serving(*self.names, seed=seed)
        self.brokers.writer_s = chance.choice((0.001, 0.005, 0.05))
        self.events: list[str] = []
        self.wrong: list[str] = []
        self.sent: dict[bytes, tuple[Publisher, int, int]] = {}     # its publisher, QoS, when (ms)
        self.ends: list[list[int]] = []     # when a life ended (ms), what members were sent there that ended with it
        self.brokers.ending = self.count_what_ends
        # The first two keep their sessions: while one of these lives the group has members. Who may lose its session
        # has subscribed with QoS 1: a delivery of QoS 2 that has begun ends with it [MQTT-4.8.2-5].
        self.members = [Member(self, self.names[number % len(self.names)], f"m{number}", SHARE,
                               1 if clean and number >= 2 else chance.choice((1, 2)),
                               number < 2 or not clean or chance.random() < 0.5) for number in range(MEMBERS)]
        self.clean = clean
        self.beside = Member(self, chance.choice(self.names), "beside", FILTER, 2, True)
        self.publishers = [Publisher(self, at, f"p-{at}") for at in self.names]  # type: ignore[arg-type]
        for client in self.clients:
            client.go(client.at)
        self.until(lambda: all(member.subscribed for member in (*self.members, self.beside))
                   and all(publisher.connected for publisher in self.publishers), 10.0, "begin")
        for _ in range(steps):
            self.step()
            self.brokers.run_for(chance.choice((0, 0.001, 0.01, 0.1, 0.5)))
        self.end()

    @property
    def clients(self) -> list[Member | Publisher]:
        return [*self.members, self.beside, *self.publishers]

    def note(self, text: str) -> None:
        self.events.append(f"{self.brokers.world.now_ms} {text}")

    def count_what_ends(self, broker: BrokerProcess) -> None:
        members = {(b"/", member.name.encode()) for member in self.members}
        self.ends.append([self.brokers.world.now_ms, sum(
            held.inflight + held.queued for session, held in broker.node.broker.sessions.items()
            if session in members and not held.data.durable)])

    def ended_with_a_member(self, sent_ms: int) -> bool:
        """Whether a message may be one of those. It came while the node still served."""
        for end in self.ends:
            if end[1] and sent_ms <= end[0] <= sent_ms + LEASE_S * 2000:
                end[1] -= 1
                return True
        return False

    def hears(self, client: Any) -> None:
        """For Publisher."""

    def until(self, condition: Any, limit_s: float, what: str) -> None:
        if not self.brokers.world.holds_within(condition, limit_s):
            raise AssertionError(f"not within {limit_s} s: {what}")

    # ------------------------------------------------------------------ what clients do

    def up(self) -> list[str]:
        return [name for name in self.names if self.brokers.processes[name].serving
                and not self.brokers.processes[name].process.paused]

    def step(self) -> None:
        steps = self.STEPS | self.FAULTS
        getattr(self, self.chance.choices(list(steps), list(steps.values()))[0])()

    def publish(self, most: int = 20) -> None:
        publisher = self.chance.choice(self.publishers)
        for _ in range(self.chance.choice((1, 3, most)) if publisher.connected else 0):
            qos, payload = self.chance.choice((1, 2, 2)), b"%d" % len(self.sent)
            self.sent[payload] = publisher, qos, self.brokers.world.now_ms
            publisher.offer("t/x", payload, qos)
            self.note(f"{publisher.name} at {publisher.at} sends {payload!r} with {qos}")

    def go(self, client: Member | Publisher, at: str) -> None:
        """Connects. A connection that has no CONNACK yet is closed first; another one may be displaced."""
        if client.open and (not client.connected or self.chance.random() < 0.5):
            client.leave()
        self.note(f"{client.name} connects to {at}")
        client.go(at)

    def come(self) -> None:
        if up := self.up():
            self.go(self.chance.choice((*self.members, self.beside)), self.chance.choice(up))

    def come_anew(self) -> None:
        """A member leaves its session behind, with what it had not acknowledged."""
        if self.clean and (up := self.up()):
            member = self.chance.choice(self.members[2:])
            self.note(f"{member.name} connects with Clean Start")
            member.go(self.chance.choice(up), anew=True)

    def move_publisher(self) -> None:
        if up := self.up():
            self.go(self.chance.choice(self.publishers), self.chance.choice(up))

    def leave(self) -> None:
        member = self.chance.choice(self.members)
        if member.connected:
            self.note(f"{member.name} leaves")
            member.leave()

    def silence(self) -> None:
        """A member does not acknowledge any more, until it connects again."""
        self.chance.choice(self.members).acks = False

    def rest(self) -> None:
        self.brokers.run_for(2.0)

    def meanwhile(self, seconds: float) -> None:
        """Time passes, and clients that were sent away come back, to any node."""
        for _ in range(4):
            self.publish(6)
            self.brokers.run_for(seconds / 4)
            for client in self.clients:
                if not client.open and (up := self.up()) and self.chance.random() < 0.7:
                    self.go(client, self.chance.choice(up))

    # ------------------------------------------------------------------ faults

    def lease_ends(self, name: str) -> None:
        if node_key(name) in self.brokers.store.items:
            self.note(f"the lease of {name} ends")
            self.brokers.end_lease_of(name)

    def serve_again(self) -> None:
        """Who was fenced, or killed, joins again."""
        self.until(lambda: len(self.up()) == len(self.names), 60.0, f"all serve again: {self.up()}")

    def failing(self) -> None:
        """Of what follows, some comes while the node joins."""
        if self.chance.random() < 0.5:
            self.serve_again()

    def stand_still(self) -> None:
        """SIGSTOP, for less or for longer than the lease."""
        if len(self.up()) < len(self.names):
            return
        name = self.chance.choice(self.names)
        beyond = self.chance.random() < 0.8
        self.note(f"{name} stands still" + " beyond its lease" * beyond)
        self.brokers.processes[name].process.pause()
        self.meanwhile(LEASE_S * (1.0 if beyond else 0.4))
        if beyond:
            self.lease_ends(name)
            self.meanwhile(self.chance.choice((0.2, 3.0)))
        self.brokers.processes[name].process.resume()
        self.note(f"{name} goes on")
        if beyond:
            self.failing()

    def cut_off(self) -> None:
        """From the other nodes, in both directions, for longer than the lease."""
        if len(self.up()) < len(self.names):
            return
        name = self.chance.choice(self.names)
        self.note(f"{name} is cut off")
        self.brokers.network.isolate(name)
        self.meanwhile(LEASE_S)
        self.lease_ends(name)
        self.meanwhile(self.chance.choice((0.2, 3.0)))
        self.brokers.network.heal()
        self.note(f"{name} is reached again")
        self.failing()

    def cut_one_way(self) -> None:
        """What one node sends to another is lost, or late; both keep their leases, or the first one loses it."""
        if len(self.up()) < len(self.names):
            return
        one, other = self.chance.sample(self.names, 2)
        how = self.chance.choice((self.brokers.network.cut, self.brokers.network.stall))
        self.note(f"nothing comes from {one} to {other}")
        how(one, other, back=False)
        self.meanwhile(self.chance.choice((1.0, 6.0, 25.0)))
        loses = self.chance.random() < 0.4
        if loses:
            self.lease_ends(one)
            self.meanwhile(0.5)
        self.brokers.network.heal()
        self.note(f"{other} hears {one} again")
        if loses:
            self.failing()

    def lose_lease(self) -> None:
        """The store ends a lease of a node that is well."""
        if len(self.up()) == len(self.names):
            name = self.chance.choice(self.names)
            self.lease_ends(name)
            self.meanwhile(0.4)
            self.failing()

    def lose_all_leases(self) -> None:
        if len(self.up()) == len(self.names):
            for name in self.names:
                self.lease_ends(name)
            self.meanwhile(0.4)
            self.failing()

    def die(self) -> None:
        """SIGKILL, and the node is back at once, or when its lease has ended."""
        if len(self.up()) < len(self.names):
            return
        name = self.chance.choice(self.names)
        self.note(f"{name} is killed")
        self.brokers.kill(name)
        if self.chance.random() < 0.6:
            self.meanwhile(self.chance.choice((0.5, 3.0)))
            self.lease_ends(name)
            self.meanwhile(self.chance.choice((0.2, 3.0)))
        self.brokers.processes[name].start()
        self.failing()

    def tear(self) -> None:
        self.note("streams break")
        self.brokers.break_streams()

    # ------------------------------------------------------------------ the verdict

    def end(self) -> None:
        self.note("end")
        self.brokers.network.heal()
        self.serve_again()
        for again in (False, True):     # the second time nothing of an earlier connection waits any more
            for number, client in enumerate(self.clients):
                if again or not client.connected or not getattr(client, "acks", True):
                    self.go(client, self.names[number % len(self.names)])
            self.settle()
        self.note("verdict")
        self.judge()
        if self.wrong:
            raise AssertionError("\n".join(self.wrong[:20]))

    def settle(self) -> None:
        """Until everybody is connected and answered, and nothing waits for a member."""
        calm = 0
        for _ in range(400):
            self.brokers.run_for(0.1)
            for client in self.clients:
                if not client.open:
                    self.go(client, client.at)
            calm = calm + 1 if not self.stuck() else 0
            if calm == 10:
                return
        raise AssertionError(f"does not settle: {self.stuck()}")

    def stuck(self) -> list[str]:
        found = [f"{member.name} is not subscribed" for member in (*self.members, self.beside) if not member.subscribed]
        found += [f"{publisher.name} waits for {len(publisher.open_)} answers" for publisher in self.publishers
                  if publisher.open_ or not publisher.connected]
        found += [f"{at} keeps messages for a member" for at in self.names
                  if self.brokers.processes[at].node.broker.share_groups.parked]
        return found

    def judge(self) -> None:
        by_member = [Counter(payload for _, payload in member.messages) for member in self.members]
        beside = {payload for _, payload in self.beside.messages}
        for payload, (publisher, qos, sent_ms) in self.sent.items():
            reason = publisher.answers.get(payload)
            if reason is None or reason >= REFUSED or reason == NO_SUBSCRIBERS:
                continue
            had = [member.name for member, counts in zip(self.members, by_member, strict=True) if counts[payload]]
            if not had and not self.ended_with_a_member(sent_ms):
                self.wrong.append(f"{payload!r} (QoS {qos}, {publisher.name}) was acknowledged and came to no member")
            if payload not in beside:
                self.wrong.append(f"{payload!r} (QoS {qos}, {publisher.name}) was acknowledged and did not come to the "
                                  "subscriber beside the group")


def run(seed: int, clean: bool = False) -> None:
    """clean: see History."""
    try:
        History(seed, clean)
    except AssertionError as error:
        error.add_note(f"History({seed}, clean={clean})")
        raise


@pytest.mark.parametrize("clean", [False, True])
@pytest.mark.parametrize("seed", some(2, range(30)))
def test_histories(seed: int, clean: bool) -> None:
    run(seed, clean)
