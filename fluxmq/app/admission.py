"""The part of the composition root that is about who is kept out: what one address may have, and who
guesses passwords."""
from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from typing import Any

from fluxmq.access.guard import Guard
from fluxmq.access.guesses import Guesses, Rules
from fluxmq.app.descriptors import connections_of_one_address
from fluxmq.edge.origins import Origins
from fluxmq.model.config import Config
from fluxmq.model.origins import Networks

__all__ = ["admission"]

KEY_BYTES = 32


def admission(config: Config, descriptors: int, later: Callable[[float, Callable[[], None]], Any],
              on_log: Callable[[str, str, str, dict[str, Any]], None]) -> tuple[Origins, Guard]:
    """What all listeners share. descriptors: the limit of open files. later: the loop's call_later."""
    auth = config.auth
    rules = Rules(delay_after=auth.delay_after, delay_max_ms=int(auth.delay_max * 1000), ban_after=auth.ban_after,
                  ban_origin_after=auth.ban_address_after, ban_ms=int(auth.ban_time * 1000))
    guesses = Guesses(rules, secrets.token_bytes(KEY_BYTES))
    return (Origins(Networks(config.server.exempt_networks), connections_of_one_address(config, descriptors)),
            Guard(guesses, clock=time.monotonic, wall=time.time, later=later, on_log=on_log))
