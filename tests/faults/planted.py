"""Defects that a broker might have, planted to see that the points find them: what a sync that failed should have
written is taken to be on the medium, because a later one succeeds."""
from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable

from faults import hosts, play
from kit.faultydisk import Point
from kit.journals import Ops

from fluxmq.storage import journal_files, segment_recovery, segment_writer
from fluxmq.storage.segment_files import FileOps

__all__ = ["DEFECTS", "plant", "suspected"]

# By name: the kind of file; the phase; how the broker ends at a point that shows it; how often a checkpoint is taken
# before the end, and between its two halves.
DEFECTS = {"journal syncs again": ("journal", "load", "power", 0.0, 0.0),
           "segments sync again": ("segment", "checkpoint", "power", 1.0, 0.0),
           "journal read is firm": ("journal", "load", "kill+power", 0.0, 0.0),
           "segments read are firm": ("segment", "checkpoint", "kill+power", 1.0, 1.0)}


def _again(fd: int) -> None:
    with contextlib.suppress(OSError):
        os.fdatasync(fd)
        return
    os.fdatasync(fd)


def plant(name: str) -> None:
    """Every broker of this process has it from now on."""
    if name == "journal syncs again":
        hosts.journal_ops = Ops()
        hosts.journal_ops.fdatasync = _again
    elif name == "segments sync again":
        FileOps.fdatasync = lambda _self, fd: _again(fd)                        # type: ignore[method-assign]
    elif name == "journal read is firm":
        journal_files.write_again = lambda *_: None                             # type: ignore[attr-defined]
    else:
        segment_recovery.write_again = lambda *_: None                          # type: ignore[attr-defined]


def suspected(everything: Callable[[], Iterable[Point]], name: str) -> list[tuple[Point, str]]:
    """Where a broker with this defect might fail. everything: the points of the story."""
    kind, phase, how, play.CHECKPOINT_LAST, play.CHECKPOINT_BETWEEN = DEFECTS[name]
    segment_writer._SYNC_EACH_MAX = 64                                          # type: ignore[attr-defined]
    return [(point, how) for point in everything()
            if (point.phase, point.call, point.kind, point.error) == (phase, "fdatasync", kind, "EIO")]
