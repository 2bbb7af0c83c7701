"""The will of a connection, as the client that made it knows it: when it must not come, and when it must.

    live            the connection is there, and nobody may get the will
    lost            the connection has gone without DISCONNECT: it is published, when its delay has passed
    withdrawing     DISCONNECT was sent; when the broker has read it and that is on disk, nobody gets it any more
    void            nobody knows: the broker, too, was gone, or the client has come back
"""
from __future__ import annotations

from typing import TYPE_CHECKING

from oracle.mqtt import V5, Will
from simulator.judge import Message

if TYPE_CHECKING:
    from simulator.node import Pipe

__all__ = ["WillBook"]


class WillBook:
    """message: what is published. delay_s: Will Delay Interval, of MQTT 5.0 only."""

    def __init__(self, message: Message, delay_s: int) -> None:
        self.message, self.delay_s = message, delay_s
        self.state = "void"
        self.lost_ms = 0
        self.pipe: Pipe | None = None

    def packet(self, version: int) -> Will:
        properties = {"will_delay_interval": self.delay_s} if version == V5 and self.delay_s else {}
        return Will(topic=self.message.topic, payload=self.message.payload, qos=self.message.qos,
                    properties=tuple(properties.items()))

    def begin(self, pipe: Pipe) -> None:
        self.pipe, self.state = pipe, "live"
        self.message.withheld = True
        self.message.sends = 1

    def lost(self, now_ms: int, *, told: bool) -> None:
        """told: the client had CONNACK."""
        if self.state == "live":
            self.state, self.lost_ms, self.message.withheld = "lost" if told else "void", now_ms, False

    def withdraw(self) -> None:
        if self.state == "live":
            self.state = "withdrawing"

    def void(self) -> None:
        if self.state != "withdrawn":
            self.state, self.message.withheld = "void", False

    def look(self) -> None:
        """What the broker has closed it may have published."""
        if self.state == "live" and self.pipe is not None and self.pipe.broker_closed:
            self.message.withheld = False

    def quiet(self, ticked_ms: int) -> bool:
        """Nothing is under way, and all is on disk. ticked_ms: when the broker last looked at the time. Whether it must
        have been published now, and was not before."""
        if self.state == "withdrawing" and self.pipe is not None and self.pipe.broker_closed:
            self.state = "withdrawn"
        if self.state != "lost" or (self.delay_s and ticked_ms <= self.lost_ms + 1000 * self.delay_s):
            return False
        self.state = "published"
        return True
