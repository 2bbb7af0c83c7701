"""User properties about queues: in a SUBSCRIBE to `$queue/…`, and in a command, a PUBLISH to `$queue/…/$ack` or alike.

    SUBSCRIBE   consumer-group, ack (auto | manual), prefetch, offset (first | last | next | n | offset=n |
                timestamp=<ms or ISO 8601>), visibility-timeout (seconds), exclusive (true | false);
                of the group: max-retries, initial-backoff, max-backoff (seconds), backoff-multiplier
    orders      message-id, or partition and offset; group-id, delay (ms), reason, upto, lease (ms)

3.1.1 has no user properties: it gets the default group, `ack: auto`, and a stream from the next message on.
"""
from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from fluxmq._core.mqtt.props import decode_properties
from fluxmq.engine.queues.positions import read_position
from fluxmq.engine.queues.properties import with_length
from fluxmq.engine.queues.retry import RetryPolicy
from fluxmq.engine.sessions.state import Consume
from fluxmq.model.mqtt import PacketType, Property

__all__ = ["pairs_of_publish", "read_consume", "user_pairs"]

PREFETCH_MAX = 65535
GROUP_BYTES_MAX = 255
LEASE_SECONDS_MAX = BACKOFF_SECONDS_MAX = 7 * 24 * 3600
RETRIES_MAX = 65000  # limits as in the configuration of a queue
MULTIPLIER_MAX = 100
TRUTHS = {"true": True, "false": False, "1": True, "0": False, "": True}


def user_pairs(properties: Iterable[tuple[int, Any]]) -> dict[str, str]:
    """The user properties of a packet; the last value if a name repeats."""
    return dict(value for identifier, value in properties if identifier == Property.USER_PROPERTY)


def pairs_of_publish(properties: bytes) -> dict[str, str]:
    """The user properties of a PUBLISH, from its properties' wire bytes without their length."""
    return user_pairs(decode_properties(with_length(properties), PacketType.PUBLISH))


def read_consume(options: dict[str, str]) -> Consume:
    """Parses the options of a subscription. Raises ValueError with a sentence about what is invalid."""
    group = options.get("consumer-group", "").encode()
    if len(group) > GROUP_BYTES_MAX:
        raise ValueError(f"consumer-group is longer than {GROUP_BYTES_MAX} bytes")
    if not options.get("consumer-group", "").isprintable():
        raise ValueError("consumer-group contains characters that cannot be printed")
    ack = options.get("ack", "auto")
    if ack not in ("auto", "manual"):
        raise ValueError(f"ack is auto or manual, not {ack!r}")
    prefetch = _number(options, "prefetch", PREFETCH_MAX)
    position = options.get("offset", "")
    if position:
        read_position(position)
    lease = options.get("visibility-timeout")
    lease_ms = None
    if lease is not None:
        try:
            lease_ms = int(float(lease) * 1000)
        except (ValueError, OverflowError):
            lease_ms = -1
        if not 0 <= lease_ms <= LEASE_SECONDS_MAX * 1000:
            raise ValueError(f"visibility-timeout is 0 to {LEASE_SECONDS_MAX} seconds, not {lease!r}")
    exclusive = None
    if (said := options.get("exclusive")) is not None:
        if said.lower() not in TRUTHS:
            raise ValueError(f"exclusive is true or false, not {said!r}")
        exclusive = TRUTHS[said.lower()]
    return Consume(group, ack == "manual", prefetch, position, lease_ms, exclusive, _retry_policy(options))


def _retry_policy(options: dict[str, str]) -> RetryPolicy:
    return RetryPolicy(_number(options, "max-retries", RETRIES_MAX) if "max-retries" in options else None,
                    _decimal(options, "initial-backoff", 0, BACKOFF_SECONDS_MAX, " seconds"),
                    _decimal(options, "max-backoff", 0, BACKOFF_SECONDS_MAX, " seconds"),
                    _decimal(options, "backoff-multiplier", 1, MULTIPLIER_MAX))


def _decimal(options: dict[str, str], name: str, minimum: int, maximum: int, unit: str = "") -> float | None:
    text = options.get(name)
    if text is None:
        return None
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not minimum <= value <= maximum:  # also false for nan
        raise ValueError(f"{name} is {minimum} to {maximum}{unit}, not {text!r}")
    return value


def _number(options: dict[str, str], name: str, maximum: int) -> int:
    text = options.get(name, "0")
    if not text.isascii() or not text.isdigit() or int(text) > maximum:
        raise ValueError(f"{name} is a number up to {maximum}, not {text!r}")
    return int(text)
