"""Logs what a start found torn or damaged on disk and repaired.

If the power did not fail, an operator can see from it that the disk lost data that it had confirmed.
"""
from __future__ import annotations

import logging

from fluxmq.engine.ports.store import StateStore
from fluxmq.storage.segments import SegmentStore
from fluxmq.storage.store import RocksStore

__all__ = ["TORN", "log_recovery"]

TORN = ("A crash or a loss of power leaves this of a write that was not confirmed yet. If there was "
         "neither, the disk has damaged the end of the file, and the last confirmed messages may be lost: check the "
         "kernel's log")


def log_recovery(log: logging.Logger, store: StateStore | None, segments: SegmentStore | None) -> None:
    """One warning for each thing. store, segments: after they were opened."""
    if isinstance(store, RocksStore):
        found = store.recovery
        if found.truncated_bytes:
            log.warning(f"the end of the journal did not hold and was cut off. {TORN}",
                        extra={"file": str(found.path / found.truncated_file), "offset": found.truncated_at,
                               "bytes": found.truncated_bytes})
        if store.repaired is not None:
            done = store.repaired
            for title, lines in (("given up", done.given_up), ("kept aside", done.kept_aside),
                                 ("cut off", done.cut_off), ("made again", done.made_again)):
                for line in lines:
                    log.warning(f"repaired at the start, {title}: {line}")
    if segments is None:
        return
    opened = segments.recovery
    for line in opened.truncated:
        log.warning(f"the end of a log did not hold and was cut off: {line}. What belongs there is written again from "
                    f"the journal. {TORN}")
    for title, lines in (("given up", opened.dropped), ("kept aside", opened.set_aside)):
        for line in lines:
            log.warning(f"repaired at the start, {title}: {line}")
    for line in opened.rebuilt:
        log.info(f"repaired at the start: {line}")
