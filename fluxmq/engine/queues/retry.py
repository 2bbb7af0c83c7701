"""Retries of a group: how often a message is redelivered, and after which backoff.

Consumers may set a retry policy when they subscribe; fields not set have the values of the queue's `retry`. The policy
belongs to the group, not to the consumer that set it: it outlives the consumer and is stored in the group's record.
Each field has the value that was set last.
"""
from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from fluxmq.model.units import format_duration

if TYPE_CHECKING:
    from fluxmq.model.queues import Retry

__all__ = ["PROPERTIES", "UNSPECIFIED", "RetryPolicy", "backoff_ms", "backoff_problem", "deliveries_max", "effective"]


class RetryPolicy(msgspec.Struct, array_like=True, frozen=True):
    """Fields as in Retry; times in seconds. None: the value of the queue's `retry`."""

    max_retries: int | None = None
    initial_backoff: float | None = None
    max_backoff: float | None = None
    multiplier: float | None = None

    def specified(self) -> dict[str, int | float]:
        """Fields that are set, by name."""
        return {name: value for name in self.__struct_fields__ if (value := getattr(self, name)) is not None}

    def updated(self, later: RetryPolicy) -> RetryPolicy:
        """This policy, with the fields that are set in a later one."""
        return msgspec.structs.replace(self, **later.specified())


UNSPECIFIED = RetryPolicy()
PROPERTIES = {"max_retries": "max-retries", "initial_backoff": "initial-backoff", "max_backoff": "max-backoff",
              "multiplier": "backoff-multiplier"}  # field -> user property of a SUBSCRIBE


def effective(retry: Retry, policy: RetryPolicy) -> Retry:
    """The effective settings of a group of a queue with this `retry`."""
    return retry if policy == UNSPECIFIED else msgspec.structs.replace(retry, **policy.specified())


def deliveries_max(retry: Retry) -> int:
    """Value for Group.deliveries_max; 0 = any number."""
    return retry.max_retries + 1 if retry.max_retries else 0


def backoff_ms(retry: Retry, deliveries: int) -> int:
    """The backoff of a message after this number of deliveries."""
    return int(1000 * min(retry.initial_backoff * retry.multiplier ** min(deliveries - 1, 64), retry.max_backoff))


def backoff_problem(retry: Retry, policy: RetryPolicy) -> str:
    """Why a policy cannot be combined with the present one; "" if it can."""
    then = effective(retry, policy)
    if then.initial_backoff <= then.max_backoff or (policy.initial_backoff is None and policy.max_backoff is None):
        return ""
    return (f"initial-backoff would be {format_duration(then.initial_backoff)}, longer than max-backoff, which would "
            f"be {format_duration(then.max_backoff)}")
