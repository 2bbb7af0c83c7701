"""Since when this node's member of etcd has known no leader, without a break: what the node tells others that ask
whether they may serve on (quorum.py).

    KNOWS ONE ──a look shows none──► LEADERLESS ──a look shows one, or that there was one since──► KNOWS ONE
                                       │      ▲
                                       └ ends ┴ starts again: goes on if no leader was seen in the life that has ended

A member confirms an entry of a leader only when it knows that leader. So while it is leaderless, or its process has
ended, no lease can end with its consent.
"""
from __future__ import annotations

import secrets
from collections.abc import Callable

from fluxmq.cluster.messages import VoterAnswer
from fluxmq.cluster.ports import LocalMember, StoreError
from fluxmq.engine.ports.driver import Driver

__all__ = ["LOOK_S", "LeaderWatch"]

LOOK_S = 0.1  # between two looks at the member
LOOK_LED_S = 1.0  # while it knows a leader, and nothing says that it may have lost it: each look costs it a call
LED_STEP_S = 0.25  # between two looks whether something does


class LeaderWatch:
    """One per member. clock_s: CLOCK_BOOTTIME in seconds, read at the call. on_look: called after each look. doubtful:
    whether the member may have lost its leader although the last look showed one. draw: returns a number of so many
    bits that no other life draws."""

    def __init__(self, member: LocalMember, driver: Driver, clock_s: Callable[[], float],
                 draw: Callable[[int], int] = secrets.randbits) -> None:
        self.number = 0  # of the member; 0: it has not answered yet
        self.leader = False  # it knew one at the last look
        self.on_look: Callable[[], None] = lambda: None
        self.doubtful: Callable[[], bool] = lambda: False
        self._member = member
        self._driver = driver
        self._clock_s = clock_s
        self._draw = draw
        self._since_s: float | None = None  # leaderless since; None: it knows a leader, or it is not known
        self._upto_s = 0.0  # until when that is certain
        self._period = 0
        self._life = 0  # that was looked at last
        self._ended = False  # that life has ended, and what it has seen is taken into account
        self._seen: int | None = 0  # leaders, in that life
        self._asked = False  # since the last look: another node has no renewal
        self._closed = False

    async def keep(self) -> None:
        """Looks until close()."""
        while not self._closed:
            self._asked = False
            await self._look()
            self.on_look()
            looked_s = self._clock_s()
            await self._driver.sleep(LOOK_S)
            while self._is_led() and self._clock_s() < looked_s + LOOK_LED_S:
                await self._driver.pace(LED_STEP_S)

    def _is_led(self) -> bool:
        """As far as can be told without a call: a leader that is lost is noticed LOOK_LED_S later at most, and the time
        without it counts from then."""
        member = self._member
        return (self.leader and member.running and member.life == self._life
                and not (self._asked or self._closed or self.doubtful()))

    def close(self) -> None:
        """Ends keep()."""
        self._closed = True

    async def _look(self) -> None:
        member = self._member
        if not self._follow_life():
            return
        sent, life = self._clock_s(), member.life
        try:
            look = await member.look()
        except StoreError:
            return                          # what was certain stays so, and grows old
        if member.life != life or not member.running:
            return                          # the next look takes its end into account
        self.number, self.leader = look.member, look.leader
        if look.leader:
            self._since_s, self._seen = None, look.leaders_seen
            return
        if self._since_s is None or look.leaders_seen is None or look.leaders_seen != self._seen:
            self._begin()
        self._seen = look.leaders_seen
        self._upto_s = sent

    def _begin(self) -> None:
        self._since_s = self._clock_s()
        self._period = self._draw(62)

    def _follow_life(self) -> bool:
        """Takes ends and starts of the process into account; whether it runs."""
        member = self._member
        if member.life > self._life + self._ended:
            self._since_s = None            # a life has passed that was never looked at
        if member.life != self._life:
            self._life, self._seen, self._ended = member.life, 0, False
        if member.running:
            return True
        if not self._ended:
            if self._since_s is None or self._seen is None or member.ended_with != self._seen:
                self._begin()
            self._ended, self.leader = True, False
        self._upto_s = self._clock_s()
        return False

    def answer(self, voters: dict[int, str]) -> VoterAnswer:
        """What the node says now, to itself or another whose renewal is late. voters: as it knows them."""
        self._asked = True
        if not self._member.running and self._member.life == self._life and self._ended:
            self._upto_s = self._clock_s()
        now = self._clock_s()
        leaderless = None if self._since_s is None or not self.number else max(0.0, now - self._since_s)
        return VoterAnswer(member=self.number, leaderless_s=leaderless, age_s=max(0.0, now - self._upto_s),
                           period=self._period, voters=voters)
