"""The two passes of plan.py with Spark, for recordings of any size: the same computation on DataFrames."""
from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql import Window
from pyspark.sql import functions as F

from fluxmq.record.reading import Recording
from fluxmq.spark.player.amqp_operations import ANSWERED
from fluxmq.spark.player.operations import COMMAND, KINDS, OPERATIONS
from fluxmq.spark.player.queue_commands import COMMAND_PATTERN, FROM_QUEUE
from fluxmq.spark.recorded import rows_of
from fluxmq.spark.replay.plan import (
    ACKNOWLEDGEMENTS,
    AMQP_DELIVERIES,
    AMQP_ROWS,
    AMQP_SESSION,
    AT_START,
    AT_THE_START,
    COLUMNS,
    HELD_NS,
    SESSION_ROWS,
    ConnectionSeen,
    Plan,
    Survey,
)

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

__all__ = ["recorded_rows", "spark_hash", "spark_operations", "spark_survey"]

MASK = 0xFFFFFFFF


def recorded_rows(spark: SparkSession, recording: Recording) -> DataFrame:
    """The columns for a replay; time in ns since 1970."""
    return rows_of(spark, recording).select(*("time" if name == "time_ns" else name for name in COLUMNS))


def _played() -> Column:
    published = (F.col("kind") == "PUBLISH") & ~F.coalesce("dup", F.lit(False))
    packets = (F.col("direction") == "in") & (F.col("kind").isin(*SESSION_ROWS) | published)
    there = (F.col("kind") == "accepted") & F.col("detail").contains(AT_START)
    mqtt = (F.col("protocol") == "mqtt") & (packets | there | (F.col("kind") == "closed"))
    methods = (((F.col("direction") == "in") & F.col("kind").isin(*AMQP_ROWS))
               | ((F.col("direction") == "out") & F.col("kind").isin(*ANSWERED)))
    amqp = (F.col("protocol") == "amqp091") & (methods | F.col("kind").isin(*AMQP_SESSION))
    return F.coalesce(mqtt, F.lit(False)) | F.coalesce(amqp, F.lit(False))


def _ordered() -> Column:
    """A command about a message of a queue."""
    return F.coalesce((F.col("protocol") == "mqtt") & (F.col("direction") == "in") & (F.col("kind") == "PUBLISH")
                      & F.col("topic").rlike(COMMAND_PATTERN) & ~F.coalesce("dup", F.lit(False)), F.lit(False))


def _delivered() -> Column:
    """A delivery that must be acknowledged."""
    return (F.col("kind") == "PUBLISH") & (F.col("direction") == "out") & (F.col("qos") > 0)


def _acknowledged() -> Column:
    return (F.col("direction") == "in") & F.col("kind").isin(*ACKNOWLEDGEMENTS)


def _manual(rows: DataFrame) -> list[int]:
    mqtt = rows.where(F.col("protocol") == "mqtt")
    counted = mqtt.where(_delivered() | _acknowledged()).groupBy("connection").agg(
        F.count_if(_acknowledged()).alias("acks"))
    silent = counted.where("acks = 0").select("connection")
    order = Window.partitionBy("connection").orderBy("seq")
    acks = mqtt.where(_acknowledged() & F.col("answers").isNotNull()).select(
        "connection", "ack_latency", (F.col("answers") < F.lag("answers").over(order)).alias("crossed"))
    strange = acks.where(F.coalesce("crossed", F.lit(False)) | (F.coalesce("ack_latency", F.lit(0)) > HELD_NS))
    return sorted(row[0] for row in silent.union(strange.select("connection")).distinct().collect())


def spark_survey(rows: DataFrame, nodes: tuple[int, ...] = (0,)) -> Survey:
    """The first pass. rows: recorded_rows(). nodes: see Survey."""
    played = _played()
    repeated = ((F.col("protocol") == "mqtt") & (F.col("direction") == "in") & (F.col("kind") == "PUBLISH")
                & F.col("dup"))
    live = F.when(played & (F.col("kind") != "accepted"), F.col("time"))
    published = F.when(played & F.col("kind").isin("PUBLISH", "basic.publish"), F.col("time"))
    ordered = _ordered()
    sent = F.col("kind").isin("PUBLISH", "basic.publish")
    came = ((F.col("kind") == "PUBLISH") & (F.col("direction") == "out")) | F.col("kind").isin(*AMQP_DELIVERIES)
    kinds = {"publish": played & sent & ~ordered, "delivery": came, "settlement": ordered}
    found = rows.where(F.col("protocol").isNotNull()).groupBy("connection").agg(
        *(F.count_if(one).alias(f"of_{what}") for what, one in kinds.items()),
        F.max("client_id").alias("client"), F.max("protocol").alias("protocol"),
        F.count_if(played).alias("operations"), F.min(live).alias("first"), F.max(live).alias("last"),
        F.min(published).alias("published"), F.max(published).alias("silent"),
        F.min(F.when(played & (F.col("kind") != "closed"), F.col("time"))).alias("begun"),
        F.max(F.when(played & (F.col("direction") == "in"), F.col("time"))).alias("sent"),
        F.count_if(repeated).alias("repeated")).collect()
    connections = [ConnectionSeen(row["connection"], row["client"], row["protocol"], row["operations"], row["begun"],
                                  row["sent"]) for row in found]
    lived = [row for row in found if row["first"] is not None]
    return Survey(connections, _manual(rows), min((row["first"] for row in lived), default=0),
                  max((row["last"] for row in lived), default=0), sum(row["repeated"] for row in found),
                  min((row["published"] for row in lived if row["published"] is not None), default=0),
                  max((row["silent"] for row in lived if row["silent"] is not None), default=0),
                  sorted(row["connection"] for row in found if row["of_settlement"]),
                  {what: sum(row[f"of_{what}"] for row in found) for what in kinds}, nodes)


def spark_hash(value: int) -> int:
    """Spark's `hash` of an integer: Murmur3, 32 bits, seed 42."""
    def turned(word: int, bits: int) -> int:
        return (word << bits | word >> (32 - bits)) & MASK

    mixed = turned(value * 0xCC9E2D51 & MASK, 15) * 0x1B873593 & MASK
    state = (turned(42 ^ mixed, 13) * 5 + 0xE6546B64 & MASK) ^ 4
    state = (state ^ state >> 16) * 0x85EBCA6B & MASK
    state = (state ^ state >> 13) * 0xC2B2AE35 & MASK
    state ^= state >> 16
    return state - (1 << 32) if state >> 31 else state


def _keys(partitions: int) -> list[int]:
    """For each partition a number that Spark's hash assigns to it, so that rows can be sent to a given partition."""
    found: dict[int, int] = {}
    key = 0
    while len(found) < partitions:
        found.setdefault(spark_hash(key) % partitions, key)
        key += 1
    return [found[number] for number in range(partitions)]


def _order_ranks(rows: DataFrame, settling: DataFrame) -> DataFrame:
    """(seq, rank) of commands: see queue_commands.command_ranks. settling: the connections that send commands."""
    pairs = F.from_json(F.get_json_object("properties", "$.user_property"), "array<array<string>>")

    def named(word: str) -> Column:
        return F.try_element_at(F.filter(pairs, lambda pair: pair[0] == word), F.lit(-1))[1]

    theirs = rows.where((F.col("protocol") == "mqtt") & (F.col("kind") == "PUBLISH")
                        & F.col("topic").startswith(FROM_QUEUE)).join(F.broadcast(settling), "connection", "left_semi")
    place = Window.partitionBy("connection", "queue").orderBy("seq")
    message = Window.partitionBy("connection", "queue", "name").orderBy("seq")
    out = F.col("direction") == "out"
    counted = theirs.select(
        "seq", "connection", "direction", F.split("topic", "/")[1].alias("queue"), _ordered().alias("ordered"),
        F.coalesce(named("message-id"), F.concat(named("partition"), F.lit(":"), named("offset"))).alias("name"),
    ).withColumn("count", F.when(out, F.sum(out.cast("bigint")).over(place) - 1))
    found = counted.withColumn("settled", F.last("count", ignorenulls=True).over(message))
    return found.where("ordered and name is not null").select("seq", "settled")


def spark_operations(spark: SparkSession, rows: DataFrame, plan: Plan) -> DataFrame:
    """The second pass: OPERATIONS in `plan.partitions` partitions, each sorted."""
    keys = F.array(*(F.lit(key).cast("int") for key in _keys(plan.partitions)))
    # As Arrow: rows of Python would start a Python process on each executor only to convert them.
    who = spark.createDataFrame(pa.table({
        "connection": pa.array(list(plan.numbers), pa.int64()), "number": pa.array(plan.numbers.values(), pa.int64()),
        "name": pa.array(plan.names.values(), pa.string()), "place": pa.array(plan.places.values(), pa.int32()),
        "after": pa.array([plan.moves.after.get(one, AT_THE_START) for one in plan.numbers], pa.int64()),
        "later": pa.array([one in plan.moves.later for one in plan.numbers], pa.bool_())}))
    chosen = rows.where(_played()).withColumn("rank", F.lit(None).cast("bigint"))
    if plan.survey.settling:
        settling = spark.createDataFrame(pa.table({"connection": pa.array(plan.survey.settling, pa.int64())}))
        settled = chosen.join(_order_ranks(rows, settling), "seq", "left")
        chosen = settled.withColumn("rank", F.col("settled")).select(*chosen.columns)
    if plan.survey.manual:
        manual = spark.createDataFrame(pa.table({"connection": pa.array(plan.survey.manual, pa.int64())}))
        theirs = rows.where(F.col("protocol") == "mqtt").join(F.broadcast(manual), "connection", "left_semi")
        order = Window.partitionBy("connection").orderBy("seq")
        ranks = theirs.where(_delivered()).select(
            F.col("seq").alias("answers"), (F.row_number().over(order) - 1).cast("bigint").alias("rank"))
        chosen = chosen.unionByName(theirs.where(_acknowledged()).join(ranks, "answers").select(*chosen.columns))
    copied = chosen.withColumn("copy", F.explode(F.sequence(F.lit(0), F.lit(plan.copies - 1))))
    kinds = F.create_map(*(F.lit(one) for pair in KINDS.items() for one in pair))
    beside, amqp = F.col("copy") > 0, F.col("protocol") == "amqp091"
    there = (F.col("kind") == "accepted") & ~amqp & ~F.col("later")         # see plan.py, _times
    made = copied.join(F.broadcast(who), "connection").withColumns({
        "time": F.when(there, F.lit(AT_THE_START)).otherwise(F.greatest("time", "after")),
        "kind": F.when(_ordered(), F.lit(COMMAND)).otherwise(kinds[F.col("kind")]).cast("tinyint"),
        "method": F.when(amqp, F.col("kind")), "tag": F.col("packet_id"),
        "link": F.col("connection") * plan.copies + F.col("copy"),
        "client_number": F.col("number") * plan.copies + F.col("copy"),
        "client": F.when(beside, F.concat("name", F.lit("~"), F.col("copy").cast("string"))).otherwise(F.col("name")),
        "topic": F.when(beside & ~amqp & ~F.col("topic").startswith("$"), F.concat(
            F.lit("~"), F.col("copy").cast("string"), F.lit("/"), "topic")).otherwise(F.col("topic")),
        "key": keys[F.pmod(F.col("place") + F.col("copy"), F.lit(plan.partitions))]})
    return (made.repartition(plan.partitions, "key").sortWithinPartitions("time", "seq", "copy")
            .select(*OPERATIONS.names))
