"""What a group's consumers said about retries, and what holds where they said nothing: the queue's `retry`.

A contract belongs to the group, not to who said it: it outlives the consumer, and is kept in the group's record.
Each of its parts is what was said of it last.
"""
from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from fluxmq.model.units import format_duration

if TYPE_CHECKING:
    from fluxmq.model.queues import Retry

__all__ = ["PROPERTIES", "SILENT", "Contract", "backoff_ms", "backoff_problem", "deliveries_max", "terms"]


class Contract(msgspec.Struct, array_like=True, frozen=True):
    """Named and meant as in Retry; times in seconds. None: nobody said anything of it."""

    max_retries: int | None = None
    initial_backoff: float | None = None
    max_backoff: float | None = None
    multiplier: float | None = None

    def said(self) -> dict[str, int | float]:
        """What was said, by field."""
        return {name: value for name in self.__struct_fields__ if (value := getattr(self, name)) is not None}

    def updated(self, later: Contract) -> Contract:
        """This one, and what was said of it later."""
        return msgspec.structs.replace(self, **later.said())


SILENT = Contract()
PROPERTIES = {"max_retries": "max-retries", "initial_backoff": "initial-backoff", "max_backoff": "max-backoff",
              "multiplier": "backoff-multiplier"}  # field -> user property of a SUBSCRIBE


def terms(retry: Retry, contract: Contract) -> Retry:
    """What holds for a group of a queue with this `retry`."""
    return retry if contract == SILENT else msgspec.structs.replace(retry, **contract.said())


def deliveries_max(retry: Retry) -> int:
    """As Group.deliveries_max; 0 = any number."""
    return retry.max_retries + 1 if retry.max_retries else 0


def backoff_ms(retry: Retry, deliveries: int) -> int:
    """How long a message waits after so many deliveries before the next one."""
    return int(1000 * min(retry.initial_backoff * retry.multiplier ** min(deliveries - 1, 64), retry.max_backoff))


def backoff_problem(retry: Retry, contract: Contract) -> str:
    """Why such a contract cannot be added to what holds by now; "" for nothing."""
    then = terms(retry, contract)
    if then.initial_backoff <= then.max_backoff or (contract.initial_backoff is None and contract.max_backoff is None):
        return ""
    return (f"initial-backoff would be {format_duration(then.initial_backoff)}, longer than max-backoff, which would "
            f"be {format_duration(then.max_backoff)}")
