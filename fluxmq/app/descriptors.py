"""File descriptors: how many the process may have, and how many of them clients get.

A connection is a descriptor, and so is every file that what was published must be written to. So listeners together
leave some (limits.DESCRIPTORS_KEPT): clients that connect and say nothing must not stop those who publish.
"""
from __future__ import annotations

import contextlib
import logging
import resource
from collections.abc import Iterable

from fluxmq.model import limits
from fluxmq.model.config import Config

__all__ = ["connections_of_one_address", "connections_that_fit", "raise_descriptor_limit", "tell_what_does_not_fit"]


def raise_descriptor_limit() -> int:
    """Lifts the soft limit of open files to the hard one; returns it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        with contextlib.suppress(ValueError, OSError):  # a container may forbid it; what we have is announced
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def connections_that_fit(descriptors: int) -> int:
    """Of all listeners together, under this limit of open files. A limit that is far too low is halved: then files may
    be opened and closed more often than they should."""
    return max(descriptors - limits.DESCRIPTORS_KEPT, descriptors // 2)


def connections_of_one_address(config: Config, descriptors: int) -> int:
    """server.max_connections_per_address, or what 0 stands for: a quarter of what all listeners together take, so that
    one host leaves most of it to others."""
    given = config.server.max_connections_per_address
    most = min(connections_that_fit(descriptors), sum(slot.max_connections for _, slot in config.listeners()))
    return given or max(most // 4, limits.CONNECTIONS_PER_ADDRESS_MIN)


def tell_what_does_not_fit(wanted: Iterable[int], descriptors: int, log: logging.Logger) -> None:
    """Warns when listeners may take more than there can be. wanted: max_connections of each."""
    fit, most = connections_that_fit(descriptors), sum(wanted)
    if most > fit:
        log.warning(f"listeners may take {most} connections (max_connections), but {descriptors} open files leave room "
                    f"for {fit}: further ones are closed as they come. Raise the limit (ulimit -n; LimitNOFILE= in the "
                    f"systemd unit) to {most + limits.DESCRIPTORS_KEPT}, or lower max_connections",
                    extra={"connections": fit, "open_files": descriptors})
