"""File descriptors: the limit of the process, and how many of them clients may use.

A connection needs a descriptor, and so does each file to which messages are written. So the listeners together leave
some unused (limits.DESCRIPTORS_KEPT): idle clients must not prevent others from publishing.
"""
from __future__ import annotations

import contextlib
import logging
import resource
from collections.abc import Iterable

from fluxmq.model import limits
from fluxmq.model.config import Config

__all__ = ["connections_of_one_address", "connections_that_fit", "raise_descriptor_limit", "warn_of_descriptor_limit"]


def raise_descriptor_limit() -> int:
    """Raises the soft limit of open files to the hard one; returns it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        with contextlib.suppress(ValueError, OSError):  # a container may forbid it; the remaining limit is reported
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def connections_that_fit(descriptors: int) -> int:
    """Number of connections of all listeners under this limit of open files. Of a very low limit they get half; files
    are then opened and closed more often."""
    return max(descriptors - limits.DESCRIPTORS_KEPT, descriptors // 2)


def connections_of_one_address(config: Config, descriptors: int) -> int:
    """server.max_connections_per_address, or the default for 0: a quarter of all listeners' connections, so that one
    host leaves most of them to others."""
    given = config.server.max_connections_per_address
    total = min(connections_that_fit(descriptors), sum(slot.max_connections for _, slot in config.listeners()))
    return given or max(total // 4, limits.CONNECTIONS_PER_ADDRESS_MIN)


def warn_of_descriptor_limit(wanted: Iterable[int], descriptors: int, log: logging.Logger) -> None:
    """Warns if the listeners' limits together exceed what is possible. wanted: max_connections of each."""
    fit, total = connections_that_fit(descriptors), sum(wanted)
    if total > fit:
        log.warning(f"listeners may take {total} connections (max_connections), but {descriptors} open files leave "
                    f"room for {fit}: further ones are closed as they come. Raise the limit (ulimit -n; LimitNOFILE= "
                    f"in the systemd unit) to {total + limits.DESCRIPTORS_KEPT}, or lower max_connections",
                    extra={"connections": fit, "open_files": descriptors})
