"""Matching by shapes is matching by the letter of section 4.7: against oracle/topics.py, over all pairs, in one job."""
from __future__ import annotations

from itertools import product
from random import Random
from typing import TYPE_CHECKING

from oracle.topics import matches as matches_by_letter

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

WORDS = ["a", "b", "", "$", "$x", "ä", "a b"]


def test_every_pair(spark: SparkSession) -> None:
    from fluxmq.spark.verify.matching import matches

    chance = Random(7)
    topics = {"/".join(chance.choices(WORDS, k=chance.randint(1, 5))) for _ in range(150)} - {""}
    filters = {"/".join(chance.choices([*WORDS, "+", "+"], k=chance.randint(1, 5))) for _ in range(200)} - {""}
    filters |= {f"{one}/#" for one in list(filters)[:80]} | {"#", "+", "+/#", "/#", "$x/#", "+/+"}
    found = matches(spark.createDataFrame([("r", one) for one in topics], "run string, topic string"),
                    spark.createDataFrame([("r", one) for one in filters], "run string, pattern string")).collect()
    assert len(found) == len(set(found))
    assert {(row.topic, row.pattern) for row in found} == {
        (topic, one) for topic, one in product(topics, filters) if matches_by_letter(one.encode(), topic.encode())}


def test_results_are_kept_apart(spark: SparkSession) -> None:
    from fluxmq.spark.verify.matching import matches

    topics = spark.createDataFrame([("one", "a"), ("two", "b")], "run string, topic string")
    patterns = spark.createDataFrame([("one", "+"), ("two", "a")], "run string, pattern string")
    found = matches(topics, patterns).select("run", "topic", "pattern").collect()
    assert [tuple(row) for row in found] == [("one", "a", "+")]


def test_parts_of_filters(spark: SparkSession) -> None:
    from pyspark.sql import functions as F

    from fluxmq.spark.verify.matching import filter_parts

    given = {("a/#", None): ("plain", None, "a/#"), ("$share/g/a/+", None): ("share", "$share/g/a/+", "a/+"),
             ("$share/g//a", "x"): ("share", "$share/g//a", "/a"),
             ("$queue/q", None): ("queue", "$share/default/$queue/q", "$queue/q/#"),
             ("$queue/q/eu/#", "g"): ("queue", "$share/g/$queue/q/eu/#", "$queue/q/eu/#"),
             ("$share/g/$queue/q", None): ("queue", "$share/g/$queue/q", "$queue/q/#"),
             ("$SYS/#", None): ("plain", None, "$SYS/#"), ("a\nb/+", None): ("plain", None, "a\nb/+")}
    frame = spark.createDataFrame(list(given), "filter string, asked string")
    parts = filter_parts(F.col("filter"), F.col("asked"))
    rows = frame.select("filter", "asked", *[column.alias(name) for name, column in parts.items()]).collect()
    assert {(row["filter"], row.asked): (row.kind, row.group, row.pattern) for row in rows} == given
