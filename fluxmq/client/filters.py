"""Which topic a filter selects. MQTT 5.0 section 4.7."""
from __future__ import annotations

__all__ = ["filter_matches", "topic_part"]


def topic_part(topic_filter: str) -> str:
    """The filter that topics are compared with: without `$share/<group>/` in front, for a queue with routing keys."""
    if topic_filter.startswith("$share/"):
        return topic_filter.split("/", 2)[-1]
    if topic_filter.startswith("$queue/") and topic_filter.count("/") == 1:
        return f"{topic_filter}/#"
    return topic_filter


def filter_matches(topic_filter: str, topic: str) -> bool:
    """Whether the filter, without a share name, selects the topic."""
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
