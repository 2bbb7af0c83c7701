"""Expected deliveries against the actual ones: which violate what QoS promises, and the counts of what does not.

    must-missing         it is must (expected.py), and there is none
    must-not-delivered   nothing of the session could bring it; or nobody published it, or on another topic, or in
                         another size; or with a QoS that no subscription explains
    duplicate            more often than one delivery for the session, one for each `$share` group it is in, and those
                         as a retained message. QoS 1 may be repeated with DUP, and on a later connection, and when its
                         publisher had to send it again on one. Queues repeat as they see fit. `$share`: a second
                         member, unless QoS 1 and the connection of the first one had ended
    order                of one publisher's connection, topic and QoS, behind a later one; of first deliveries,
                         neither retained ones nor those through `$share` or a queue

A row is one violation: `run`, `kind`, `why`, the receiver (`client`, `client_number`, `connection`, `session`;
`group`), `arrived` (ns since 1970) and the publish that shows it (KEY, `p_client`, `p_topic`, `p_qos`, `p_sent`,
`p_acked`).
"""
from __future__ import annotations

from functools import reduce
from typing import TYPE_CHECKING

from pyspark.sql import Window
from pyspark.sql import functions as F

from fluxmq._core.wire.queue_address import queue_topic
from fluxmq.spark.verify.expected import KEY, expected, group_expected, meetings, met_chains, publishes, queue_chances
from fluxmq.spark.verify.sessions import connections, pieces, sessions

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

__all__ = ["COUNTS", "KINDS", "Judged", "counts", "expected_sums", "judged", "violations"]

KINDS = ("must-missing", "must-not-delivered", "duplicate", "order")
PUBLISH = ["p_client", "p_connection", "p_topic", "p_qos", "p_retain", "p_sent", "p_acked", "p_will", "p_again",
           "p_size"]
FROM_QUEUE = queue_topic("%")


class Judged:
    """Tables that verdicts are read from. pairs: one row per publish and session that expects or got it; groups: one
    per publish and group; strays: deliveries that no publish explains; untraced: deliveries without a trace,
counted."""

    def __init__(self, pairs: DataFrame, groups: DataFrame, strays: DataFrame, names: DataFrame) -> None:
        self.pairs = pairs
        self.groups = groups
        self.strays = strays
        self.names = names


def judged(events: DataFrame, *, settle_ns: int = 1_000_000_000, complete: bool = True,
           several: bool = False) -> Judged:
    """events: rows of results (result.SCHEMA), and `run`, which tells several apart.

    settle_ns: how long a session must have stayed connected for what was published before to have arrived. complete:
    whether all publishes are there; of a replay that broke off a delivery may name one that was not written down.
    several: whether clients were connected to several nodes of a cluster.
    """
    # Every table that is used twice is computed here: Spark analyses the whole plan of a table for each step that is
    # built on it, and with plans this large that takes longer than the work itself.
    linked = connections(events).localCheckpoint()
    held = sessions(linked, settle_ns)
    subscribed = pieces(events, linked, held).localCheckpoint()
    sent = publishes(events, linked, several).localCheckpoint()
    by_session, chains = expected(met_chains(meetings(sent, subscribed)).localCheckpoint())
    groups = group_expected(chains, queue_chances(subscribed, linked, settle_ns))
    shown = sent.select(*KEY, *PUBLISH)
    got = (_deliveries(events, linked)
           .join(shown.withColumn("known", F.lit(True)), KEY, "left"))
    strays = got.where("known is null" if complete else "false")
    queues = subscribed.where("kind = 'queue'").groupBy("run", "client_number", "session").agg(
        F.min("begin_from").alias("any_queue"))
    pairs = (_paired(by_session.join(shown, KEY), got.where("known"))
             .join(F.broadcast(held.select("run", "client_number", "session", "unknown")),
                   ["run", "client_number", "session"], "left")
             .join(F.broadcast(queues), ["run", "client_number", "session"], "left"))
    names = events.groupBy("run", "client_number").agg(F.first("client").alias("client"))
    return Judged(_explained(pairs).localCheckpoint(), groups.localCheckpoint(), strays, names)


def _deliveries(events: DataFrame, linked: DataFrame) -> DataFrame:
    """Deliveries that identify their publish, with their session and the end of their connection."""
    got = events.where("event = 'delivery' and publisher is not null").select(
        *KEY, "client_number", "connection", "op", F.col("sent").alias("arrived"),
        F.col("qos").cast("int").alias("qos"), F.coalesce("dup", F.lit(False)).alias("dup"), "topic", "size")
    ends = linked.select("run", "client_number", "connection", "session", F.col("end_from").alias("cut"))
    return (got.join(F.broadcast(ends), ["run", "client_number", "connection"], "left")
            .withColumn("session", F.coalesce("session", F.lit(-1))))


def _paired(wanted: DataFrame, got: DataFrame) -> DataFrame:
    """Joins both sides: what was expected, and `got`, the deliveries in order of arrival."""
    one = F.struct("op", "arrived", "connection", "qos", "dup", "topic", "cut", "size")
    key = [*KEY, "client_number", "session"]
    arrived = got.groupBy(*key).agg(F.sort_array(F.collect_list(one)).alias("got"),
                                    *[F.first(name).alias(f"g_{name}") for name in PUBLISH])
    both = wanted.join(arrived, key, "full_outer")
    both = both.withColumns({name: F.coalesce(name, f"g_{name}") for name in PUBLISH})
    both = both.drop(*[f"g_{name}" for name in PUBLISH])
    return both.withColumns({
        "got": F.coalesce("got", F.array().cast(arrived.schema["got"].dataType)),
        "groups": F.coalesce("groups", F.array().cast("array<string>")),
        "queues": F.coalesce("queues", F.array().cast("array<string>")), "kept": F.coalesce("kept", F.lit(0)),
        **{name: F.coalesce(name, F.lit(False)) for name in ("plain", "owed", "due", "owed_0", "barred")}})


def _explained(pairs: DataFrame) -> DataFrame:
    """Adds of each pair's deliveries: queued (through a queue), got (the others), counted (those that are no repetition
    that QoS 1 allows), allowed (how many may be counted), later (a later message of the stream did arrive)."""
    captured = F.col("any_queue").isNotNull()

    def from_queue(one: Column) -> Column:
        return one["topic"].like(FROM_QUEUE)

    split = pairs.withColumns({"queued": F.filter("got", from_queue),
                               "got": F.filter("got", lambda one: ~from_queue(one))})
    first = F.get("got", F.lit(0))
    repeated = F.filter(F.slice("got", 2, F.lit(2**31 - 1)),
                        lambda one: ~(F.col("p_again") | ((one["qos"] == 1) & (
                            one["dup"] | (one["connection"] != first["connection"])))))
    # A missing delivery would have had qos_high; if that is ambiguous because of No Local, no stream can be named.
    sure = F.when(F.col("qos_high") == F.col("qos_may"), F.col("qos_high"))
    stream = Window.partitionBy("run", "client_number", "session", "publisher", "p_connection", "p_topic", "p_qos",
                                F.coalesce(first["qos"], sure, F.lit(-1)))
    live = (F.size("got") > 0) & F.col("plain") & (F.col("kept") == 0) & ~F.col("p_will")
    told = split.withColumns({
        "repeated": repeated, "captured": captured,
        "allowed": F.col("plain").cast("int") + F.size("groups") + F.col("kept"),
        "later": F.max(F.when(live, F.col("publisher_op"))).over(stream)})
    must = F.col("due") | (F.col("owed") & (F.col("later") > F.col("publisher_op")))
    earlier = F.max(F.when(F.col("ordered"), F.col("publisher_op"))).over(
        stream.orderBy(F.coalesce(first["op"], F.lit(-1))).rowsBetween(Window.unboundedPreceding, -1))
    # No order is checked for a session that also gets messages retained, by a group or by a queue: the way is unknown.
    return (told.withColumns({"must": must, "ordered": live & (F.size("groups") == 0)})
            .withColumn("behind", F.when(F.col("ordered"), earlier)))


def _row(kind: str, why: Column, one: Column | None = None) -> list[Column]:
    """Columns of a violation of a pair; one: the delivery that shows it."""
    missing = F.lit(None).cast("bigint")
    return [F.col("run"), F.lit(kind).alias("kind"), why.alias("why"), F.col("client_number"),
            (missing if one is None else one["connection"].cast("bigint")).alias("connection"),
            F.col("session").cast("bigint").alias("session"), F.lit(None).cast("string").alias("group"),
            (missing if one is None else one["arrived"]).alias("arrived"), *map(F.col, KEY[1:]),
            *map(F.col, ("p_client", "p_topic", "p_qos", "p_sent", "p_acked"))]


def violations(found: Judged) -> DataFrame:
    """All violations, one row each; columns as the top of this module says."""
    known = found.pairs.where("not coalesce(unknown, true)")
    first = F.get("got", F.lit(0))
    told = F.lit
    missing = known.where("must and size(got) = 0").select(*_row("must-missing", F.concat(
        told("subscribed for as long as the publish took, with QoS "), F.col("qos_low").cast("string"),
        told(", and never delivered"))))
    nothing = known.where("allowed = 0 and size(got) > 0").withColumn("one", F.explode("got"))
    why = F.when(F.col("barred"), "its own publish, and the subscription has No Local").otherwise(
        "no subscription of the session held while it was published")
    stranger = nothing.select(*_row("must-not-delivered", why, F.col("one")))
    renamed = (F.col("topic_of") != F.col("p_topic"))
    other = (known.where("allowed > 0").withColumn("one", F.explode("got")).withColumn("topic_of", F.col("one.topic"))
             .where(renamed).select(*_row("must-not-delivered", F.concat(told("delivered on the topic "), "topic_of"),
                                          F.col("one"))))
    # Payloads are not stored, but a trace with another size is not the message that was sent.
    resized = (known.where("allowed > 0").withColumn("one", F.explode("got")).where("one.size != p_size")
               .select(*_row("must-not-delivered", F.concat(
                   told("delivered with "), F.col("one.size").cast("string"), told(" bytes, not with "),
                   F.col("p_size").cast("string")), F.col("one"))))
    wrong = (known.where("plain and size(groups) = 0 and kept = 0 and size(got) > 0")
             .where((first["qos"] > F.col("qos_high")) | (first["qos"] < F.col("qos_low")))
             .select(*_row("must-not-delivered", F.concat(
                 told("delivered with QoS "), first["qos"].cast("string"), told(", not with QoS "),
                 F.col("qos_high").cast("string")), first)))
    held = F.col("queue_from").isNotNull()
    late = F.filter("queued", lambda one: ~F.coalesce(
        F.when(F.col("p_topic").like(FROM_QUEUE), F.when(held, (one["arrived"] >= F.col("queue_from"))
                                                         & (one["arrived"] <= F.col("queue_to"))))
        .otherwise(one["arrived"] >= F.col("any_queue")), F.lit(False)))
    # A dead letter is in a queue to which it was not published, so any consumer of queues may get it.
    nobody = F.array().cast(found.pairs.schema["queued"].dataType)
    late = F.when(held | F.col("any_queue").isNull(), late).otherwise(nobody)
    unasked = known.withColumn("one", F.explode(late)).select(
        *_row("must-not-delivered", told("the session did not consume from the queue then"), F.col("one")))
    extra = (known.where("allowed > 0 and size(repeated) >= allowed")
             .withColumn("one", F.explode(F.slice("repeated", F.col("allowed"), F.size("repeated"))))
             .select(*_row("duplicate", F.concat(told("delivered again, with QoS "), F.col("one.qos").cast("string")),
                           F.col("one"))))
    behind = known.where("behind > publisher_op").select(*_row("order", F.concat(
        told("delivered behind operation "), F.col("behind").cast("string"),
        told(" of the same publisher and topic")), first))
    stray = found.strays.select(
        "run", F.lit("must-not-delivered").alias("kind"), F.lit("nobody published it").alias("why"), "client_number",
        F.col("connection").cast("bigint").alias("connection"), F.col("session").cast("bigint").alias("session"),
        F.lit(None).cast("string").alias("group"), "arrived", "publisher", "publisher_op", "p_client",
        F.col("topic").alias("p_topic"), "p_qos", "p_sent", "p_acked")
    every: list[DataFrame] = [missing, stranger, other, resized, wrong, unasked, extra, behind, stray,
                              *_of_groups(found)]
    return (reduce(lambda one, more: one.unionByName(more), every)
            .join(F.broadcast(found.names), ["run", "client_number"], "left"))


def _of_groups(found: Judged) -> list[DataFrame]:
    """`$share` and `$queue`: a group that got nothing, and a `$share` that got it twice."""
    members = found.pairs.select(
        *KEY, "client_number", "session", "got", *PUBLISH, F.size("groups").alias("k"),
        F.size("got").alias("n_all"), F.when(F.size("got") > 0, 1 + F.size("repeated")).otherwise(0).alias("n"),
        F.size("queued").alias("n_queued"), F.col("plain").cast("int").alias("p"), F.col("kept").alias("r"),
        F.col("must").cast("int").alias("must_plain"), F.explode(F.array_union("groups", "queues")).alias("group"))
    shared = F.col("group").isNotNull() & (F.col("k") > 0)
    reached = ((F.col("n_all") > F.col("must_plain")) & shared) | (F.col("n_queued") > 0)
    got = members.groupBy(*KEY, "group").agg(F.bool_or(reached).alias("reached"),
                                             *[F.first(name).alias(name) for name in PUBLISH])
    # Deliveries that an unknown session got may have come through any group.
    doubtful = found.pairs.where("coalesce(unknown, true) and size(got) + size(queued) > 0").select(*KEY).distinct()
    lost = (found.groups.where("must").join(got, [*KEY, "group"]).where("not reached")
            .join(doubtful, KEY, "left_anti"))
    nobody = lost.select(
        "run", F.lit("must-missing").alias("kind"),
        F.when(F.col("kind") == "share", "no member of the group got it").otherwise(
            "no consumer of the group got it").alias("why"),
        F.lit(None).cast("bigint").alias("client_number"), F.lit(None).cast("bigint").alias("connection"),
        F.lit(None).cast("bigint").alias("session"), "group", F.lit(None).cast("bigint").alias("arrived"),
        *KEY[1:], "p_client", "p_topic", "p_qos", "p_sent", "p_acked")
    # Deliveries that only this group explains.
    surely = members.where("k > 0 and n > p + r + k - 1 and not p_again").withColumn("one", F.get("got", F.lit(0)))
    order = Window.partitionBy(*KEY, "group").orderBy("one.arrived", "client_number")
    before = order.rowsBetween(Window.unboundedPreceding, -1)
    again = (surely.withColumns({"place": F.row_number().over(order), "left": F.max("one.cut").over(before)})
             .where("place > 1 and not (one.qos = 1 and left <= one.arrived)"))
    second = again.select(
        "run", F.lit("duplicate").alias("kind"), F.lit("a second member of the group got it").alias("why"),
        "client_number", F.col("one.connection").cast("bigint").alias("connection"),
        F.col("session").cast("bigint").alias("session"), "group", F.col("one.arrived").alias("arrived"), *KEY[1:],
        "p_client", "p_topic", "p_qos", "p_sent", "p_acked")
    return [nobody, second]


# Of counts(): name and meaning.
COUNTS = {
    "must": "deliveries expected",
    "must_delivered": "of these, received",
    "may": "deliveries allowed but not required",
    "may_delivered": "of these, received",
    "group_must": "messages expected by one member of a group",
    "lost_qos_0": "QoS 0 deliveries missing at a connected session",
    "repeated": "repeated deliveries, which QoS 1 and queues allow",
    "captured": "deliveries from queues",
    "unknown": "deliveries to sessions that are older than the replay",
    "untraced": "deliveries of no publish of the replay",
}


def expected_sums() -> list[Column]:
    """Sums over rows of Judged.pairs: must, must_delivered, may, may_delivered, lost_qos_0."""
    here = F.size("got") > 0
    may = ~F.col("must") & (F.col("allowed") > 0)
    sums = {"must": F.col("must"), "must_delivered": F.col("must") & here, "may": may, "may_delivered": may & here,
            "lost_qos_0": F.col("owed_0") & ~here}
    return [F.sum(F.coalesce(condition, F.lit(False)).cast("int")).alias(name) for name, condition in sums.items()]


def counts(found: Judged, events: DataFrame) -> dict[str, int]:
    """COUNTS as numbers, of all results together. events: as judged() was given."""
    row = found.pairs.agg(
        *expected_sums(),
        F.sum(F.greatest(F.size("got") - 1 - F.size("repeated"), F.lit(0))).alias("repeated"),
        F.sum(F.size("queued")).alias("captured"),
        F.sum(F.when(F.coalesce("unknown", F.lit(True)), F.size("got")).otherwise(0)).alias("unknown")).first()
    numbers = {} if row is None else {name: int(value or 0) for name, value in row.asDict().items()}
    numbers["group_must"] = found.groups.where("must").count()
    numbers["untraced"] = events.where("event = 'delivery' and publisher is null").count()
    return {name: numbers.get(name, 0) for name in COUNTS}
