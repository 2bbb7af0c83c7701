"""What the admin ring needs from the recorder, as Protocols: `RecordPort`, `AttachedRecording`."""
from __future__ import annotations

from typing import Any, Protocol

from fluxmq._core.errors import FluxError

__all__ = ["AttachedRecording", "RecordPort", "RecordRefused"]


class RecordRefused(FluxError):
    """No recording can begin. kind: conflict (one runs), invalid, unavailable. hint: what to do, or ""."""

    def __init__(self, kind: str, text: str, hint: str = "") -> None:
        super().__init__(text)
        self.kind = kind
        self.text = text
        self.hint = hint

    def __reduce__(self) -> tuple[type, tuple[str, str, str]]:
        return type(self), (self.kind, self.text, self.hint)


class AttachedRecording(Protocol):
    """A recording that another process writes, or a view that it shows."""

    @property
    def about(self) -> dict[str, Any]:
        """What the writer must know: where the ring is, and which broker is recorded."""

    @property
    def running(self) -> bool:
        """Whether the recording is still running."""

    def counters(self) -> dict[str, int] | None:
        """Of a view, since the broker was started: messages received and sent, entries and bytes tapped and lost (since
        the view began), connections. None: it is a recording."""

    def end(self) -> None:
        """Called when the writer has gone; may be called twice."""


class RecordPort(Protocol):
    """Starts recordings."""

    async def attach(self, ring_bytes: int, *, view: bool = False, who: str = "") -> AttachedRecording:
        """Begins a recording, or a view, into a new ring. ring_bytes: 0 = as configured. who: who reads it. Raises
        RecordRefused."""
