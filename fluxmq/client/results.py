"""Results of publishing."""
from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from fluxmq._core.client.properties import Properties

__all__ = ["PublishResult"]


@dataclass(frozen=True, slots=True)
class PublishResult:
    """The server accepted it. reason: 0, or 0x10 if there are no subscribers (MQTT 5). properties: of PUBACK or
    PUBCOMP."""

    reason: int
    properties: Properties = field(default_factory=Properties)

    SUCCESS: ClassVar[PublishResult]


PublishResult.SUCCESS = PublishResult(0)
