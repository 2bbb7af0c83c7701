"""What a publish comes to."""
from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from fluxmq._core.client.properties import Properties

__all__ = ["PublishResult"]


@dataclass(frozen=True, slots=True)
class PublishResult:
    """The server took it. reason: 0, or 0x10 when nobody subscribes (MQTT 5). properties: of PUBACK or PUBCOMP."""

    reason: int
    properties: Properties = field(default_factory=Properties)

    SUCCESS: ClassVar[PublishResult]


PublishResult.SUCCESS = PublishResult(0)
