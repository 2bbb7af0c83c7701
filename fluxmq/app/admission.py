"""The part of the composition root for admission: limits per address, and bans of clients that guess passwords."""
from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from fluxmq.access.guard import Guard
from fluxmq.access.guesses import Guesses, Rules
from fluxmq.app.descriptors import (
    connections_of_one_address,
    connections_that_fit,
    raise_descriptor_limit,
    warn_of_descriptor_limit,
)
from fluxmq.app.logs import Notes
from fluxmq.edge.listening import Gate
from fluxmq.edge.origins import Origins
from fluxmq.model.config import Config
from fluxmq.model.origins import Networks

__all__ = ["Admission", "admission"]

KEY_BYTES = 32


class Admission(NamedTuple):
    """Shared by all listeners. descriptors: the limit of open files. connections_max: of all listeners together.
    proxies: where balancers are that name their clients; None: there are none."""

    descriptors: int
    connections_max: int
    origins: Origins
    guard: Guard
    gate: Gate
    proxies: Networks | None


def admission(config: Config, later: Callable[[float, Callable[[], None]], Any], notes: Notes) -> Admission:
    """later: the loop's call_later."""
    descriptors = raise_descriptor_limit()
    # The default asks for the largest possible number; an operator relies on a configured one.
    warn_of_descriptor_limit((slot.max_connections for _, slot in config.listeners()
                              if slot.max_connections != type(slot)().max_connections), descriptors, notes.log)
    auth = config.auth
    rules = Rules(delay_after=auth.delay_after, delay_max_ms=int(auth.delay_max * 1000), ban_after=auth.ban_after,
                  ban_origin_after=auth.ban_address_after, ban_ms=int(auth.ban_time * 1000))
    guesses = Guesses(rules, secrets.token_bytes(KEY_BYTES))
    exempt = Networks(config.server.exempt_networks)
    return Admission(
        descriptors, connections_that_fit(descriptors),
        Origins(exempt, connections_of_one_address(config, descriptors)),
        Guard(guesses, clock=time.monotonic, wall=time.time, later=later, on_log=notes.say, exempt=exempt), Gate(),
        Networks(config.server.proxy_networks) if config.server.proxy_networks else None)
