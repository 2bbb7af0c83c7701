"""Which topic filters match which topic names, by section 4.7 of MQTT, as joins of Spark: the oracle of `verify`.

It knows nothing of the broker's trie. A topic is compared with no filter. The filters that there are have few *shapes*
(which levels are `+`, how many levels, `#` behind them or not); a topic is turned into the one filter of each shape
that would match it, and that is looked up by an equi-join. Its cost is topics × shapes, not topics × filters: 10 000
filters `site/+/device-N/#` are one shape.
"""
from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as F

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

__all__ = ["GROUP_DEFAULT", "filter_parts", "matches"]

# The group of consumers that name none.
GROUP_DEFAULT = "default"

SHARED = r"(?s)^\$share/([^/]+)/(.+)$"
QUEUE_ROOT = r"(?s)^\$queue/[^/]+$"


def filter_parts(topic_filter: Column, asked_group: Column) -> dict[str, Column]:
    """Columns of a subscription's filter: `kind` (plain, share, queue), `group` (null for plain), `pattern` to match.

    asked_group: the user property `consumer-group`, null: none. A queue without a routing key matches all routing keys;
    each filter makes a group of its own, of `$share` and of queues.
    """
    share = F.regexp_extract(topic_filter, SHARED, 1)
    shared = share != ""
    rest = F.when(shared, F.regexp_extract(topic_filter, SHARED, 2)).otherwise(topic_filter)
    queue = rest.startswith("$queue/")
    named = F.when(shared, share).otherwise(F.coalesce(asked_group, F.lit(GROUP_DEFAULT)))
    return {
        "kind": F.when(queue, "queue").when(shared, "share").otherwise("plain"),
        "group": F.when(queue | shared, F.concat_ws("/", F.lit("$share"), named, rest)),
        "pattern": F.when(rest.rlike(QUEUE_ROOT), F.concat(rest, F.lit("/#"))).otherwise(rest),
    }


def matches(topics: DataFrame, patterns: DataFrame) -> DataFrame:
    """Pairs (run, topic, pattern) that match.

    topics: (run, topic), distinct; names, without wildcards. patterns: (run, pattern), distinct; valid filters without
    `$share/…/`. Both may be of several results at a time, told apart by `run`.
    """
    split = F.split("pattern", "/", -1)
    wide = F.element_at(split, -1) == "#"
    named = F.when(wide, F.slice(split, F.lit(1), F.size(split) - 1)).otherwise(split)
    any_word = F.transform(named, lambda level: level == "+")
    shapes = patterns.select(any_word.alias("marks"), wide.alias("wide")).distinct()
    levels, marks = F.col("levels"), F.col("marks")
    # [MQTT-4.7.1-2] `#` also matches the parent level, so the number of levels before it is enough.
    fits = F.when(F.col("wide"), F.size(levels) >= F.size(marks)).otherwise(F.size(levels) == F.size(marks))
    # [MQTT-4.7.2-1] a filter that begins with a wildcard matches no topic that begins with `$`.
    hidden = F.col("topic").startswith("$") & ((F.size(marks) == 0) | F.coalesce(F.get(marks, F.lit(0)), F.lit(False)))
    wanted = F.zip_with(F.slice(levels, F.lit(1), F.size(marks)), marks,
                        lambda level, mark: F.when(mark, F.lit("+")).otherwise(level))
    whole = F.when(F.col("wide"), F.concat(wanted, F.array(F.lit("#")))).otherwise(wanted)
    candidates = (topics.withColumn("levels", F.split("topic", "/", -1))
                  .join(F.broadcast(shapes), fits & ~hidden)
                  .select("run", "topic", F.array_join(whole, "/").alias("pattern")))
    return candidates.join(patterns.select("run", "pattern"), ["run", "pattern"])
