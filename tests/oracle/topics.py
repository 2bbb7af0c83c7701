"""Topic matching by the letter of section 4.7 of the MQTT specifications, slowly: the oracle of the compiled indexes.

It shares no idea with them: one filter against one topic, level lists, no tree and no hash.
"""
__all__ = ["NaiveIndex", "matches", "matching_topics"]


def matches(topic_filter: bytes, topic: bytes) -> bool:
    """Whether a topic filter (without `$share/`) matches a topic name. Both are valid already."""
    # [MQTT-4.7.2-1] filters starting with a wildcard do not match topics beginning with `$`.
    if topic[:1] == b"$" and topic_filter[:1] in (b"+", b"#"):
        return False
    wanted = topic_filter.split(b"/")
    given = topic.split(b"/")
    if wanted[-1] == b"#":
        # [MQTT-4.7.1-2] `#` is the parent and any number of child levels.
        wanted = wanted[:-1]
        if len(given) < len(wanted):
            return False
        given = given[:len(wanted)]
    # [MQTT-4.7.1-3] `+` is exactly one level; [MQTT-4.7.3-4] everything else is compared byte for byte.
    return len(wanted) == len(given) and all(w in (b"+", g) for w, g in zip(wanted, given, strict=True))


class NaiveIndex:
    """Subscriptions in a dict: (filter, key) -> (identifier, options)."""

    def __init__(self) -> None:
        self.held: dict[tuple[bytes, int], tuple[int, int]] = {}

    def add(self, topic_filter: bytes, key: int, identifier: int, options: int) -> bool:
        new = (topic_filter, key) not in self.held
        self.held[topic_filter, key] = (identifier, options)
        return new

    def remove(self, topic_filter: bytes, key: int) -> bool:
        return self.held.pop((topic_filter, key), None) is not None

    def match(self, topic: bytes) -> list[tuple[int, int, int]]:
        return [(key, identifier, options) for (topic_filter, key), (identifier, options) in self.held.items()
                if matches(topic_filter, topic)]


def matching_topics(topic_filter: bytes, topics: dict[bytes, object]) -> list[object]:
    """The values of the topics that the filter matches."""
    return [value for topic, value in topics.items() if matches(topic_filter, topic)]
