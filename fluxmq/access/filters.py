"""Topic filters compared: does a filter match a topic, cover another filter, overlap with it.

Pure functions for the access list, which asks rarely; the broker's routing has its own compiled trie. A filter stands
for the set of topics it matches (MQTT 5.0 section 4.7):

    matches(f, t)   t is in the set of f
    covers(f, g)    the set of g lies within the set of f
    overlaps(f, g)  the sets have a topic in common

Two things make this more than a comparison of levels. `a/#` also matches `a` [MQTT-4.7.1-2], so `#` may stand for
nothing. And a wildcard in first place matches no topic that begins with `$` [MQTT-4.7.2-1]. The empty topic counts as
one, though no message can have it [MQTT-4.7.3-1]: that keeps the rules plain, and where it makes a difference (`/#`
matches it through its `#`) the answer is the one that refuses.

The functions expect valid filters and topics; `filter_problem` says whether a filter is one.
"""
from collections.abc import Sequence

__all__ = ["covers", "filter_problem", "levels_cover", "levels_overlap", "matches", "overlaps", "shared_filter"]

FILTER_SIZE_BYTES_MAX = 65_535


def matches(filter_: str, topic: str) -> bool:
    """Whether `topic`, a topic name without wildcards, is matched by `filter_`."""
    # A topic name is the filter that matches it alone.
    return levels_cover(filter_.split("/"), topic.split("/"))


def covers(rule_filter: str, filter_: str) -> bool:
    """Whether every topic that `filter_` matches is matched by `rule_filter`."""
    return levels_cover(rule_filter.split("/"), filter_.split("/"))


def overlaps(a: str, b: str) -> bool:
    """Whether some topic is matched by both."""
    return levels_overlap(a.split("/"), b.split("/"))


def levels_cover(rule: Sequence[str], asked: Sequence[str]) -> bool:
    """`covers` over filters that are split into levels already."""
    if rule[0] in ("+", "#"):
        if asked[0].startswith("$"):
            return False
        # Every topic has a first level, so `+/#` matches all that `#` does. Deeper down `#` may stand for no level.
        if rule[0] == "+" and len(rule) == 2 and rule[1] == "#":
            return True
    for index, level in enumerate(rule):
        if level == "#":
            return True
        if index == len(asked):
            return False
        if level == "+":
            if asked[index] == "#":
                return False
        elif level != asked[index]:
            return False
    return len(rule) == len(asked)


def levels_overlap(a: Sequence[str], b: Sequence[str]) -> bool:
    """`overlaps` over filters that are split into levels already."""
    if (a[0] in ("+", "#") and b[0].startswith("$")) or (b[0] in ("+", "#") and a[0].startswith("$")):
        return False
    for left, right in zip(a, b, strict=False):
        if left == "#" or right == "#":
            return True
        if left != right and left != "+" and right != "+":
            return False
    if len(a) == len(b):
        return True
    longer, shorter = (a, b) if len(a) > len(b) else (b, a)
    return len(longer) == len(shorter) + 1 and longer[-1] == "#"


def shared_filter(filter_: str) -> str | None:
    """The filter that a subscription listens on: what is behind `$share/group/`, else the filter itself.

    None when `$share` is not followed by a group and a filter [MQTT-4.8.2-1].
    """
    if filter_ != "$share" and not filter_.startswith("$share/"):
        return filter_
    parts = filter_.split("/", 2)
    return parts[2] if len(parts) == 3 and parts[1] and parts[2] else None


def filter_problem(filter_: str) -> str:
    """What is wrong with a topic filter [MQTT-4.7.1-1] [MQTT-4.7.3-1]; "" when nothing is."""
    if not filter_:
        return "a topic filter may not be empty"
    if "\0" in filter_:
        return "a topic filter may not contain the character U+0000"
    if len(filter_.encode("utf-8", "surrogatepass")) > FILTER_SIZE_BYTES_MAX:
        return f"a topic filter may have {FILTER_SIZE_BYTES_MAX} bytes at most"
    levels = filter_.split("/")
    for index, level in enumerate(levels):
        if "#" in level and (level != "#" or index != len(levels) - 1):
            return "'#' must be a whole level, and the last one"
        if "+" in level and level != "+":
            return "'+' must be a whole level"
    return ""
