"""Matching of topic filters. MQTT 5.0 section 4.7."""
from __future__ import annotations

from fluxmq._core.errors import UsageError
from fluxmq._core.wire.queue_address import queue_topic

__all__ = ["check_filter", "filter_matches", "topic_part"]

NO_LOCAL = 4


def check_filter(topic_filter: str, options: int) -> None:
    """Raises UsageError for a filter at which a server must refuse or close. `Connection` does not check this."""
    levels = topic_filter.split("/")
    if any(("#" in level or "+" in level) and len(level) > 1 for level in levels) or "#" in levels[:-1]:
        raise UsageError(f'{topic_filter!r} is no topic filter: "+" is a whole level, "#" the whole last one')
    if options & NO_LOCAL and levels[0] == "$share":        # [MQTT-3.8.3-4]
        raise UsageError(f"no_local cannot be asked for a shared subscription: {topic_filter!r}")


def topic_part(topic_filter: str) -> str:
    """The filter to match topics with: without `$share/<group>/`; of a queue, including its routing keys."""
    if topic_filter.startswith("$share/"):
        return topic_filter.split("/", 2)[-1]
    if topic_filter.startswith(queue_topic("")) and topic_filter.count("/") == 1:
        return f"{topic_filter}/#"
    return topic_filter


def filter_matches(topic_filter: str, topic: str) -> bool:
    """Whether the filter (without share name) matches the topic."""
    if topic_filter == topic:
        return True
    if topic.startswith("$") and topic_filter[:1] in ("+", "#"):        # [MQTT-4.7.2-1]
        return False
    wanted, levels = topic_filter.split("/"), topic.split("/")
    for position, want in enumerate(wanted):
        if want == "#":
            return True
        if position >= len(levels) or want not in ("+", levels[position]):
            return False
    return len(wanted) == len(levels)
