"""The PUBLISH template: all frames of one message. See amqp_reading.pxd and amqp_publishing.pxd for the frames that the
engine reads and writes during the run."""
from __future__ import annotations

from typing import NamedTuple

from fluxmq._core.amqp091 import methods as m
from fluxmq._core.amqp091.properties import encode_properties
from fluxmq._core.client.amqp091_machine import HEAD, content_frames

__all__ = ["CHANNEL", "Publication", "publication"]

CHANNEL = 1                     # the only channel of each connection


class Publication(NamedTuple):
    """All frames of one message, and the position of its payload."""

    packet: bytes
    payload_at: int


def publication(exchange: str, routing_key: str, payload: bytes, *, persistent: bool, frame_max: int) -> Publication:
    """basic.publish and its content. The engine copies them and writes number and time into the payload."""
    publish = m.BasicPublish(exchange=exchange, routing_key=routing_key).frame(CHANNEL)
    header, *bodies = content_frames(CHANNEL, encode_properties({"delivery_mode": 2 if persistent else 1}), payload,
                                     frame_max)
    return Publication(publish + header + b"".join(bodies), len(publish) + len(header) + HEAD)
